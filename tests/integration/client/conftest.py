"""One server for the tests of the client, with agents that need no model, and a client of its own for each test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from cognizes.client import Client
from cognizes.engine.database import EmbeddedPostgres
from tests.conftest import replace_database
from tests.database_supply import DatabaseSupply
from tests.integration.agui.gates import DIRECTORY, gates_directory
from tests.integration.client.relay import Relay
from tests.served import Served, serve


def serve_agents(database_url: str) -> Served:
    agents = "tests.integration.hosting.agents:generic,examples.langgraph.agent:weather"
    return serve(
        database_url,
        COGNIZES_AGENTS=agents,
        COGNIZES_RUN_LEASE_SECONDS="120",
        COGNIZES_STREAM_LEASE_SECONDS="120",
        **{DIRECTORY: str(gates_directory())},
    )


@pytest.fixture(scope="session")
def database_url(postgres_server: EmbeddedPostgres, database_supply: DatabaseSupply) -> Iterator[str]:
    name = asyncio.run(database_supply.take())
    yield replace_database(postgres_server.url, name)
    database_supply.give_back(name)


@pytest.fixture(scope="session")
def served(database_url: str) -> Iterator[Served]:
    server = serve_agents(database_url)
    yield server
    server.close()


@pytest.fixture
async def client(served: Served) -> AsyncIterator[Client]:
    async with Client(served.url, timeout=60) as opened:
        yield opened


@pytest.fixture
async def relay(served: Served) -> AsyncIterator[Relay]:
    """A relay in front of the server of all tests."""
    relay = Relay(served.url)
    async with relay.open():
        yield relay
