"""An engine behind PgBouncer's transaction pooling, with LISTEN on the direct URL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from cognizes.engine import Engine


@pytest.fixture
async def engine(debian_server: Any, server_url: str) -> AsyncIterator[Engine]:
    """Takes the place of the engine on the embedded server."""
    async with Engine.open(debian_server.pgbouncer_url, listen_url=server_url) as opened:
        yield opened
