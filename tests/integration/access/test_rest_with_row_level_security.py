"""Every test of the REST API for sessions again, by a caller of one app: nothing it may do is in its way."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from cognizes.engine import Engine
from cognizes.engine.access import Permission
from tests.engine_parts import database_of
from tests.integration.access.conftest import Guarded
from tests.integration.api.test_sessions_api import *  # noqa: F403 - the same tests, for this caller


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[Engine]:
    """Takes the place of the engine that asks for no key."""
    async with Engine.open(database_url, auth="required") as opened:
        assert database_of(opened).has_row_level_security
        yield opened


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    guarded = Guarded(engine)
    key = await guarded.key("shop", permissions=(Permission.READ, Permission.WRITE))
    async with guarded.client(key) as opened:
        yield opened
