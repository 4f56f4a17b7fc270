"""A client of the REST API, over an engine on a database of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from cognizes.engine import Engine
from cognizes.engine.api.main import create_app


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_app(engine=engine), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as opened:
        yield opened
