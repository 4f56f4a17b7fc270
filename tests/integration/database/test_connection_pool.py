"""The pool: bounded, shared by many, and clear when it is full."""

from __future__ import annotations

import asyncio

import pytest

from cognizes.engine import DatabaseUnavailableError, Engine, PoolTimeoutError
from cognizes.engine.database import Database
from cognizes.engine.pulse.session_store import SessionStore


async def test_two_hundred_clients_on_ten_connections(database_url: str) -> None:
    async with Engine.open(database_url, pool_size=10) as engine:
        sessions = await asyncio.gather(*(engine.sessions.create("app", f"u{n}") for n in range(200)))

        async def client(number: int) -> int:
            session = sessions[number]
            for step in range(5):
                await engine.sessions.append(session, author="user", kind="message", state={"n": step})
                found = await engine.sessions.get("app", f"u{number}", session.id)
                assert found is not None
                assert found.state == {"n": step}
            return session.version

        assert set(await asyncio.gather(*(client(n) for n in range(200)))) == {6}
        assert engine.database.pool.get_size() <= 10


async def test_waiting_for_a_connection_ends_in_a_clear_error(database_url: str) -> None:
    async with Engine.open(database_url, pool_size=2) as engine:
        async with engine.database.connection(), engine.database.connection():
            impatient = SessionStore(Database(engine.database.pool, pool_timeout=0.05), engine.settings)
            with pytest.raises(PoolTimeoutError, match="COGNIZES_POOL_SIZE"):
                await impatient.get("app", "user", "s")
        assert await engine.sessions.get("app", "user", "s") is None


async def test_a_server_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(DatabaseUnavailableError, match="not reachable"):
        async with Engine.open("postgresql://postgres@127.0.0.1:1/nothing"):
            pytest.fail("there is no server on port 1")


async def test_an_unknown_statement_of_a_missing_schema_says_what_to_do(empty_database_url: str) -> None:
    import asyncpg

    from cognizes.engine import DatabaseError
    from cognizes.engine.pulse.state_manager import StateManager

    async with asyncpg.create_pool(empty_database_url, min_size=1, max_size=2) as pool:
        with pytest.raises(DatabaseError, match="cognizes migrate"):
            await StateManager(pool).get_session("app", "user", "s")
