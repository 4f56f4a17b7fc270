"""A real server with agents, in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import httpx
import pytest

from cognizes.engine.database import EmbeddedPostgres
from tests.conftest import replace_database
from tests.database_supply import DatabaseSupply
from tests.integration.agui.gates import DIRECTORY, gates_directory
from tests.served import Served, serve

AGENTS = ",".join(
    [
        "demo",
        *(
            f"tests.integration.hosting.served.agents:{name}"
            for name in ("slow", "failing", "team", "painter", "steady", "editor", "mirror")
        ),
        "tests.integration.hosting.agents:generic",
    ]
)


def serve_agents(database_url: str, **settings: str) -> Served:
    """Starts a server with the test agents and the demo."""
    return serve(
        database_url,
        **{
            "COGNIZES_AGENTS": AGENTS,
            "COGNIZES_SHUTDOWN_SECONDS": "0.3",
            # Who is slow is not dead: only what a test itself lets run out does.
            "COGNIZES_STREAM_LEASE_SECONDS": "120",
            "COGNIZES_RUN_LEASE_SECONDS": "120",
            "COGNIZES_DEMO_TOKEN_SECONDS": "0.002",
            DIRECTORY: str(gates_directory()),
            **settings,
        },
    )


@pytest.fixture(scope="session")
def database_url(postgres_server: EmbeddedPostgres, database_supply: DatabaseSupply) -> Iterator[str]:
    """One database for all: a server that has imported ADK is too slow to start for every test, or module."""
    name = asyncio.run(database_supply.take())
    yield replace_database(postgres_server.url, name)
    database_supply.give_back(name)


@pytest.fixture(scope="session")
def served(database_url: str) -> Iterator[Served]:
    """The server of all these tests; each has a user of its own."""
    server = serve_agents(database_url)
    yield server
    if server.process.poll() is None:
        server.kill()


@pytest.fixture
async def http(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    """Requests of a user of the test's own."""
    user = {"X-User-ID": f"user-{uuid4()}"}
    async with httpx.AsyncClient(base_url=served.url, timeout=60, headers=user) as opened:
        yield opened
