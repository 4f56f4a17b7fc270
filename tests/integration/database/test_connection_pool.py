"""The pool: bounded, shared by many, and clear when it is full."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from uuid import UUID

import asyncpg
import pytest

from cognizes.engine import (
    DatabaseError,
    DatabaseUnavailableError,
    Engine,
    EngineClosedError,
    InvalidInputError,
    PoolTimeoutError,
)
from cognizes.engine.concurrency import retry_while_unavailable
from cognizes.engine.database import Database
from cognizes.engine.pulse.session_store import SessionStore
from tests.engine_parts import database_of


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
        assert database_of(engine).pool.get_size() <= 10


async def test_waiting_for_a_connection_ends_in_a_clear_error(database_url: str) -> None:
    async with Engine.open(database_url, pool_size=2) as engine:
        async with database_of(engine).connection(), database_of(engine).connection():
            impatient = SessionStore(Database(database_of(engine).pool, pool_timeout=0.05), engine.settings)
            with pytest.raises(PoolTimeoutError, match="COGNIZES_POOL_SIZE"):
                await impatient.get("app", "user", "s")
        assert await engine.sessions.get("app", "user", "s") is None


async def test_a_server_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(DatabaseUnavailableError, match="not reachable"):
        async with Engine.open("postgresql://postgres@127.0.0.1:1/nothing", retry_seconds=0.1):
            pytest.fail("there is no server on port 1")


async def test_a_closed_engine_says_that_it_is_closed(database_url: str) -> None:
    async with Engine.open(database_url) as engine:
        session = await engine.sessions.create("app", "user")
    for ask in (
        lambda: engine.sessions.get("app", "user", session.id),
        lambda: engine.sessions.create("app", "user"),
        lambda: engine.sessions.append(session, author="user", kind="message"),
        lambda: engine.runs.list(session.thread_id),
        lambda: engine.memory.recall("anything", app="app", user="user"),
        lambda: engine.feed.read_chunks(session.thread_id, "m", wait=60),
        lambda: engine.access.find_owner(UUID(session.thread_id)),
    ):
        with pytest.raises(EngineClosedError, match="closed"):
            await ask()


async def test_an_unknown_statement_of_a_missing_schema_says_what_to_do(empty_database_url: str) -> None:
    from cognizes.engine.pulse.state_manager import StateManager

    async with asyncpg.create_pool(empty_database_url, min_size=1, max_size=2) as pool:
        with pytest.raises(DatabaseError, match="cognizes migrate"):
            await StateManager(pool).get_session("app", "user", "s")


@pytest.mark.parametrize(("connections", "taken"), [(4, 1), (3, 6)])
async def test_consecutive_reads_reuse_a_connection(
    database_url: str, monkeypatch: pytest.MonkeyPatch, connections: int, taken: int
) -> None:
    async with asyncpg.create_pool(database_url, min_size=1, max_size=connections) as pool:
        database = Database(pool, reuse_seconds=3600)
        acquired = 0
        acquire = database.acquire

        async def count(**options: bool) -> object:
            nonlocal acquired
            acquired += 1
            return await acquire(**options)

        monkeypatch.setattr(database, "acquire", count)
        for _ in range(2):
            assert await database.fetch("read_session", "a", "u", "s") == []
            assert await database.fetch_row("read_session", "a", "u", "s") is None
            assert await database.fetch_value("find_thread", "a", "u", "s") is None
        assert acquired == taken
        with pytest.raises(InvalidInputError):
            await database.fetch("read_session", "a", "u", "with a NUL: \x00")
        assert len(await asyncio.gather(*(database.fetch("read_session", "a", "u", "s") for _ in range(20)))) == 20
        await database.close()


async def test_concurrent_reads_reuse_connections_that_others_get_when_the_pool_is_empty(database_url: str) -> None:
    read = "read_session", "a", "u", "s"
    async with asyncpg.create_pool(database_url, min_size=4, max_size=4) as pool:
        database = Database(pool, pool_timeout=60, reuse_seconds=3600)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(database.close)
            await asyncio.gather(database.fetch(*read), database.fetch(*read))
            assert pool.get_idle_size() == 2
            await asyncio.gather(database.fetch(*read), database.fetch(*read))
            assert pool.get_idle_size() == 2
            for _ in range(4):
                await stack.enter_async_context(database.connection())


async def test_a_reused_connection_that_broke_is_replaced(database_url: str) -> None:
    read = "read_session", "a", "u", "s"
    async with asyncpg.create_pool(database_url, min_size=1, max_size=4) as pool:
        database = Database(pool, reuse_seconds=3600)
        assert await database.fetch(*read) == []
        other = await asyncpg.connect(database_url)
        # With a time limit it returns when the backend is gone.
        assert await other.fetchval(
            """SELECT bool_and(pg_terminate_backend(pid, 30_000)) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"""
        )
        await other.close()
        assert await database.fetch(*read) == []
        await database.close()


async def test_a_wrong_number_of_arguments_is_not_unavailability(engine: Engine) -> None:
    """It fails at once and names its cause, instead of being retried as if PostgreSQL were away."""
    for call in (database_of(engine).fetch, database_of(engine).fetch_row, database_of(engine).fetch_value):
        with pytest.raises(DatabaseError, match="expects 3 arguments") as caught:
            await retry_while_unavailable(lambda call=call: call("read_session", "a"), seconds=60)
        assert not isinstance(caught.value, DatabaseUnavailableError)
        assert isinstance(caught.value.__cause__, asyncpg.InterfaceError)


async def test_a_closed_connection_is_unavailability(database_url: str) -> None:
    async with asyncpg.create_pool(database_url, min_size=1, max_size=2) as pool:
        database = Database(pool)
        with pytest.raises(DatabaseUnavailableError):
            async with database.connection() as connection:
                connection.terminate()
                await connection.fetch("SELECT 1")
        with pytest.raises(DatabaseUnavailableError):
            async with database.connection() as connection:
                await connection.close()
                await connection.fetch("SELECT 1")


async def test_a_function_that_a_migration_replaces_is_a_reason_to_try_again(database_url: str) -> None:
    async with Engine.open(database_url) as engine:
        raised = "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'XX000', MESSAGE = '{}'; END $$"
        with pytest.raises(DatabaseUnavailableError, match="try again"):
            async with database_of(engine).connection() as connection:
                await connection.execute(raised.format("cache lookup failed for function 19227"))
        with pytest.raises(DatabaseError, match="another") as caught:
            async with database_of(engine).connection() as connection:
                await connection.execute(raised.format("another internal error"))
        assert not isinstance(caught.value, DatabaseUnavailableError)
