"""The pool: bounded, shared by many, and clear when it is full."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Self
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


READ = "read_session", "a", "u", "s"


@pytest.fixture
def acquired(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The pools from which connections were acquired."""
    pools: list[object] = []
    acquire = asyncpg.Pool.acquire

    def count(pool: asyncpg.Pool, **options: float) -> object:
        pools.append(pool)
        return acquire(pool, **options)

    monkeypatch.setattr(asyncpg.Pool, "acquire", count)
    return pools


@asynccontextmanager
async def opened(
    url: str, *, size: int, pool_timeout: float = 60.0, reuse_seconds: float = 3600.0
) -> AsyncIterator[Database]:
    async with asyncpg.create_pool(url, min_size=1, max_size=size) as pool:
        database = Database(pool, pool_timeout=pool_timeout, reuse_seconds=reuse_seconds)
        try:
            yield database
        finally:
            await database.close()


@pytest.mark.parametrize(("connections", "taken"), [(4, 1), (3, 6)])
async def test_consecutive_reads_reuse_a_connection(
    database_url: str, acquired: list[object], connections: int, taken: int
) -> None:
    async with opened(database_url, size=connections) as database:
        for _ in range(2):
            assert await database.fetch(*READ) == []
            assert await database.fetch_row(*READ) is None
            assert await database.fetch_value("find_thread", "a", "u", "s") is None
        assert len(acquired) == taken
        with pytest.raises(InvalidInputError):
            await database.fetch("read_session", "a", "u", "with a NUL: \x00")
        assert len(await asyncio.gather(*(database.fetch(*READ) for _ in range(20)))) == 20


class Loops:
    """Tasks that call a function in a loop; `counts` are their finished calls."""

    def __init__(self, call: Callable[[], Awaitable[object]], number: int) -> None:
        self._call = call
        self.counts = [0] * number
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self.tasks = [asyncio.create_task(self._run(number)) for number in range(len(self.counts))]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)

    async def _run(self, number: int) -> None:
        while True:
            await self._call()
            self.counts[number] += 1

    async def finish(self, calls: int) -> None:
        """Return when each task has finished this many further calls."""
        ends = [count + calls for count in self.counts]
        while any(count < end for count, end in zip(self.counts, ends, strict=True)):
            assert not any(task.done() for task in self.tasks)
            await asyncio.sleep(0.001)


def readers(database: Database, number: int) -> Loops:
    return Loops(lambda: database.fetch(*READ), number)


def blocks(database: Database, number: int) -> Loops:
    async def transaction() -> None:
        async with database.connection() as connection, connection.transaction():
            await connection.fetchval("SELECT 1")

    return Loops(transaction, number)


async def test_fifty_readers_take_turns_on_kept_connections(database_url: str, acquired: list[object]) -> None:
    async with opened(database_url, size=10) as database:
        async with readers(database, 50) as reading:
            await reading.finish(40)
            assert max(reading.counts) < 2 * min(reading.counts)
            assert len(acquired) == 8
        assert not database.waiting


async def test_blocks_and_batches_get_connections_while_fifty_readers_loop(database_url: str) -> None:
    async with opened(database_url, size=10) as database, readers(database, 50) as reading:
        await reading.finish(2)
        read = sum(reading.counts)
        async with blocks(database, 20) as running:
            await running.finish(10)
            assert max(running.counts) < 2 * min(running.counts)
            # Where both wait, each gets every second connection.
            assert sum(running.counts) < 3 * (sum(reading.counts) - read)
            read = sum(reading.counts)
            for _ in range(20):
                assert await database.fetch_batch(*READ, apps=None) == []
            assert sum(reading.counts) - read < 20 * 50, "a batch waited behind all readers"
        await reading.finish(2)


async def test_readers_get_connections_while_more_blocks_wait_than_there_are_connections(database_url: str) -> None:
    async with opened(database_url, size=4) as database, blocks(database, 20) as running:
        await running.finish(2)
        async with readers(database, 1) as reading:
            await reading.finish(20)


async def test_cancelled_callers_lose_no_connection(database_url: str) -> None:
    random = Random(0)
    async with opened(database_url, size=4) as database:
        for _ in range(60):
            tasks = [asyncio.create_task(database.fetch(*READ)) for _ in range(12)]
            for _ in range(random.randrange(12)):
                await asyncio.sleep(0)
            for task in random.sample(tasks, 8):
                task.cancel()
            await asyncio.wait(tasks)
            assert all(task.cancelled() or task.result() == [] for task in tasks)
        assert not database.waiting
        async with AsyncExitStack() as stack:
            for _ in range(4):
                await stack.enter_async_context(database.connection())
        assert await database.fetch(*READ) == []


@pytest.mark.parametrize("kept", [True, False])
async def test_a_task_that_is_cancelled_as_it_is_served_gives_its_turn_to_the_next(
    database_url: str, kept: bool
) -> None:
    async with opened(database_url, size=4, pool_timeout=20) as database, AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(database.connection())

        async def use_the_last_and_cancel() -> None:
            if kept:
                await database.fetch(*READ)
            else:
                async with database.connection():
                    await asyncio.sleep(0)
            # The next task has a connection, or the right to acquire one, and has not run since.
            assert database.waiting == 2
            waiting[0].cancel()

        using = asyncio.create_task(use_the_last_and_cancel())
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(database.fetch(*READ)) for _ in range(2)]
        await using
        assert await waiting[1] == []
        assert waiting[0].cancelled()


async def test_waiting_readers_time_out_one_by_one(database_url: str) -> None:
    async with opened(database_url, size=4, pool_timeout=0.05) as database:
        async with AsyncExitStack() as stack:
            for _ in range(4):
                await stack.enter_async_context(database.connection())
            waiting = [asyncio.create_task(database.fetch(*READ)) for _ in range(5)]
            await asyncio.wait(waiting)
            for task in waiting:
                with pytest.raises(PoolTimeoutError, match="COGNIZES_POOL_SIZE"):
                    task.result()
            assert not database.waiting
        assert await database.fetch(*READ) == []


async def test_closing_ends_the_calls_of_fifty_readers(database_url: str) -> None:
    async with opened(database_url, size=10) as database, readers(database, 50) as reading:
        await reading.finish(2)
        await database.close()
        await asyncio.wait(reading.tasks)
        for task in reading.tasks:
            with pytest.raises(EngineClosedError, match="closed"):
                task.result()


async def test_kept_connections_go_back_after_a_moment(database_url: str) -> None:
    async with opened(database_url, size=6, reuse_seconds=0.01) as database:
        await asyncio.gather(*(database.fetch(*READ) for _ in range(20)))
        async with asyncio.timeout(30), AsyncExitStack() as stack:
            # Another user of the pool gets all connections.
            for _ in range(6):
                await stack.enter_async_context(database.pool.acquire())


async def test_expired_connections_are_replaced_while_readers_loop(database_url: str) -> None:
    servers = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%session_id%'"
    async with opened(database_url, size=6) as database, readers(database, 20) as reading:
        found: list[set[int]] = []
        for _ in range(2):
            await reading.finish(5)
            async with database.connection() as connection:
                found.append({row["pid"] for row in await connection.fetch(servers)})
            await database.expire_connections()
        assert found[0]
        assert not found[0] & found[1]


async def test_blocks_get_the_kept_connections_of_readers(database_url: str) -> None:
    async with asyncpg.create_pool(database_url, min_size=4, max_size=4) as pool:
        database = Database(pool, pool_timeout=60, reuse_seconds=3600)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(database.close)
            for _ in range(2):
                await asyncio.gather(*(database.fetch(*READ) for _ in range(10)))
                assert pool.get_idle_size() == 2
            for _ in range(4):
                await stack.enter_async_context(database.connection())


async def test_kept_connections_that_broke_are_replaced(database_url: str) -> None:
    async with opened(database_url, size=4) as database:
        for _ in range(2):
            assert await asyncio.gather(*(database.fetch(*READ) for _ in range(10))) == [[]] * 10
            other = await asyncpg.connect(database_url)
            # With a time limit it returns when the backend is gone.
            assert await other.fetchval(
                """SELECT bool_and(pg_terminate_backend(pid, 30_000)) FROM pg_stat_activity
                    WHERE datname = current_database() AND pid <> pg_backend_pid()
                      AND backend_type = 'client backend'"""
            )
            await other.close()
        assert await asyncio.gather(*(database.fetch(*READ) for _ in range(10))) == [[]] * 10


async def test_databases_of_one_pool_share_its_queue(database_url: str, acquired: list[object]) -> None:
    async with (
        opened(database_url, size=4) as database,
        readers(database, 10) as first,
        readers(database.without_tenants(), 10) as second,
    ):
        await first.finish(5)
        await second.finish(5)
        assert len(acquired) == 2


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
