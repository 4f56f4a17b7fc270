"""ADK's services and ours, on a database of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import asyncpg
import pytest
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.in_memory_session_service import InMemorySessionService

from cognizes.engine.adapters.adk import OpenSessionService
from cognizes.engine.database import EmbeddedPostgres

_EMPTY = (
    "DELETE FROM threads; DELETE FROM user_states; DELETE FROM app_states; DELETE FROM state_writes; "
    "DELETE FROM artifacts; DELETE FROM artifact_blobs"
)


@pytest.fixture(scope="session")
def adk_database_url(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """One database for this folder: making one takes longer than most of these tests."""
    name = f"adk_{uuid4().hex}"
    asyncio.run(_execute(postgres_server.url, f"CREATE DATABASE {name} TEMPLATE migrated"))
    yield postgres_server.url.replace("/cognizes-engine?", f"/{name}?")
    asyncio.run(_execute(postgres_server.url, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
async def database_url(adk_database_url: str) -> str:
    """A database with the schema and nothing in it."""
    await _execute(adk_database_url, _EMPTY)
    return adk_database_url


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture
async def ours(database_url: str) -> AsyncIterator[OpenSessionService]:
    """Our service."""
    async with OpenSessionService(database_url) as service:
        yield service


@pytest.fixture
async def rebasing(database_url: str) -> AsyncIterator[OpenSessionService]:
    """Our service, on the same database, that never calls a session stale."""
    async with OpenSessionService(database_url, on_conflict="rebase") as service:
        yield service


@pytest.fixture(params=["in_memory", "open"])
def service(request: pytest.FixtureRequest) -> BaseSessionService:
    """Either service: what is tested on both is the contract."""
    if request.param == "in_memory":
        return InMemorySessionService()
    chosen: BaseSessionService = request.getfixturevalue("ours")
    return chosen
