"""No statement outlives its limit, on any pool, and a request that is given up cancels its statement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import httpx
import pytest

from cognizes.engine import Engine
from cognizes.engine.database import Database
from cognizes.engine.errors import StatementTimeoutError
from tests.engine_parts import database_of, maintenance_of
from tests.served import serve

_LIMIT = 0.5
_SLEEP = "SELECT pg_sleep(60)"


@asynccontextmanager
async def _locked(url: str, table: str) -> AsyncIterator[asyncpg.Connection]:
    """Holds a table, so that every statement on it waits."""
    holder = await asyncpg.connect(url)
    try:
        async with holder.transaction():
            await holder.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            yield holder
    finally:
        await holder.close()


async def _waiting(observer: asyncpg.Connection) -> int:
    """How many statements of this database wait for a lock."""
    count: int = await observer.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return count


async def _until(observer: asyncpg.Connection, waiting: int) -> None:
    async with asyncio.timeout(20):
        while await _waiting(observer) != waiting:
            await asyncio.sleep(0.02)


async def test_the_server_limits_the_statements_of_both_pools(database_url: str) -> None:
    async with Engine.open(database_url, auth="required", statement_timeout=_LIMIT) as engine:
        for for_tenants in (False, True):
            async with database_of(engine).connection(for_tenants=for_tenants) as connection:
                # The client would wait for longer: the server ends the statement by itself.
                with pytest.raises(asyncpg.QueryCanceledError):
                    await connection.execute(_SLEEP, timeout=60)


async def test_a_statement_that_the_client_gives_up_ends_on_the_server(database_url: str) -> None:
    observer = await asyncpg.connect(database_url)
    # Without a limit on the server, as behind a pooler: only the request to cancel ends a statement.
    async with asyncpg.create_pool(database_url, min_size=1, max_size=4, command_timeout=_LIMIT) as pool:
        database = Database(pool)
        async with _locked(database_url, "memories"):
            statements = (database.fetch("read_memories", "a", "u", [1], 1) for _ in range(3))
            outcomes = await asyncio.gather(*statements, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [StatementTimeoutError] * 3
            await _until(observer, 0)
        await database.close()
    await observer.close()


async def test_maintenance_has_a_limit_of_its_own(database_url: str) -> None:
    observer = await asyncpg.connect(database_url)
    async with Engine.open(database_url, statement_timeout=_LIMIT, memory_background=False) as engine:
        await maintenance_of(engine).close()
        await observer.execute("UPDATE maintenance_jobs SET last_run_at = '-infinity' WHERE name = 'prune_chunks'")
        async with _locked(database_url, "message_chunks"):
            running = asyncio.create_task(maintenance_of(engine).run_due_jobs())
            await _outlast_the_limit(observer)
        assert "prune_chunks" in await running
    await observer.close()


async def test_migrations_and_index_builds_have_limits_of_their_own(database_url: str) -> None:
    observer = await asyncpg.connect(database_url)
    await observer.execute("DELETE FROM schema_migrations WHERE name = 'memory/count_memories.sql'")
    async with _locked(database_url, "memories"):
        opening = asyncio.create_task(
            Engine.open(database_url, statement_timeout=_LIMIT, memory_background=False).start()
        )
        # Migrations wait for locks in short attempts; together they outlast the limit of a statement.
        await asyncio.sleep(_LIMIT + 2)
        assert not opening.done()
    engine = await opening
    async with _locked(database_url, "memories"):
        building = asyncio.create_task(database_of(engine).execute_within(60, "REINDEX TABLE CONCURRENTLY memories"))
        await _outlast_the_limit(observer)
    await building
    async with database_of(engine).connection() as connection:
        assert await connection.fetchval("SHOW statement_timeout") == "500ms"
    await engine.close()
    await observer.close()


async def _outlast_the_limit(observer: asyncpg.Connection) -> None:
    """Returns when a statement has waited for longer than the usual limit, by the server's own clock."""
    async with asyncio.timeout(20):
        while not await observer.fetchval(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() "
            "AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > $1)",
            timedelta(seconds=_LIMIT + 2),
        ):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/memory/recall", {"app_name": "a", "user_id": "u", "query": "tea"}),
        ("GET", "/memory?app_name=a&user_id=u", None),
    ],
)
async def test_a_client_that_disconnects_cancels_its_statement(
    database_url: str, method: str, path: str, body: dict[str, str] | None
) -> None:
    served = await asyncio.to_thread(serve, database_url, COGNIZES_MEMORY_BACKGROUND="false")
    observer = await asyncpg.connect(database_url)
    try:
        async with _locked(database_url, "memories"), httpx.AsyncClient(base_url=served.url, timeout=60) as client:
            asking = asyncio.create_task(client.request(method, path, json=body))
            await _until(observer, 1)
            asking.cancel()
            await asyncio.wait([asking])
            # The limit of a statement is 30 seconds: it ends before, because its client has gone.
            await _until(observer, 0)
        async with httpx.AsyncClient(base_url=served.url) as client:
            assert (await client.request(method, path, json=body)).status_code == 200
    finally:
        await observer.close()
        await asyncio.to_thread(served.kill)
