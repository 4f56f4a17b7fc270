"""Engines with long leases and without maintenance: a test sweeps when it needs to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cognizes.engine import Engine
from tests.engine_parts import maintenance_of


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[Engine]:
    async with Engine.open(database_url, run_lease_seconds=600, run_backoff_seconds=0) as opened:
        await maintenance_of(opened).close()
        yield opened
