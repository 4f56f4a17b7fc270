"""Every test of the REST API again, with PgBouncer's transaction pooling in between and LISTEN on the direct URL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from cognizes.engine import Engine
from tests.integration.api.conftest import client  # noqa: F401 - the same client, on this engine
from tests.integration.api.test_sessions_api import *  # noqa: F403 - the same tests, on this engine

pytestmark = pytest.mark.server


@pytest.fixture
async def engine(debian_server: Any, server_url: str) -> AsyncIterator[Engine]:
    """Takes the place of the engine on the embedded server."""
    async with Engine.open(debian_server.pgbouncer_url, listen_url=server_url) as opened:
        yield opened
