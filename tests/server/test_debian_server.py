"""The servers that tests marked `server` use: their versions, their isolation, and that they leave nothing behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import asyncpg
import pytest

from tests.debian_fixtures import empty_database

if TYPE_CHECKING:
    from debian_server import DebianServer

pytestmark = pytest.mark.server


async def test_postgres_is_version_17(server_url: str) -> None:
    connection = await asyncpg.connect(server_url)
    try:
        assert connection.get_server_version().major == 17
    finally:
        await connection.close()


async def test_pgvector_measures_distances(server_url: str) -> None:
    connection = await asyncpg.connect(server_url)
    try:
        await connection.execute("CREATE EXTENSION vector")
        assert await connection.fetchval("SELECT '[1,2]'::vector <-> '[4,6]'::vector") == 5.0
    finally:
        await connection.close()


async def test_pg_cron_runs_a_job(new_debian_server: DebianServer) -> None:
    connection = await asyncpg.connect(new_debian_server.url)
    try:
        await connection.execute("CREATE EXTENSION pg_cron; CREATE TABLE ticks (at timestamptz)")
        assert await connection.fetch("SELECT * FROM cron.job") == []
        await connection.execute("SELECT cron.schedule('tick', '1 second', 'INSERT INTO ticks VALUES (now())')")
        async with asyncio.timeout(60):
            while not await connection.fetchval("SELECT count(*) FROM ticks"):
                await asyncio.sleep(0.1)
    finally:
        await connection.close()


async def test_the_next_test_finds_an_empty_database(new_debian_server: DebianServer) -> None:
    for _ in range(2):
        await empty_database(new_debian_server)
        direct = await asyncpg.connect(new_debian_server.url)
        pooled = await asyncpg.connect(new_debian_server.pgbouncer_url)
        try:
            # Each step fails on what the round before left: objects, a lock of a running job, a statement of old types.
            await direct.execute("CREATE EXTENSION vector; CREATE EXTENSION pg_cron; CREATE TABLE mess ()")
            assert await pooled.fetchval("SELECT '[1,2]'::vector") == "[1,2]"
            await direct.execute("SELECT cron.schedule('mess', '1 second', 'LOCK TABLE mess; SELECT pg_sleep(60)')")
            async with asyncio.timeout(60):
                while not await direct.fetchval("SELECT count(*) FROM pg_locks WHERE relation = 'mess'::regclass"):
                    await asyncio.sleep(0.1)
        finally:
            await pooled.close()
            await direct.close()


async def test_pgbouncer_pools_transactions_and_keeps_prepared_statements(
    debian_server: DebianServer, server_url: str
) -> None:
    first = await asyncpg.connect(debian_server.pgbouncer_url)
    second = await asyncpg.connect(debian_server.pgbouncer_url)
    try:
        statement = await first.prepare("SELECT pg_backend_pid() + $1::integer - $1::integer")
        shared = await statement.fetchval(1)
        async with second.transaction():
            assert await second.fetchval("SELECT pg_backend_pid()") == shared, "the clients do not share a backend"
            assert await statement.fetchval(1) != shared, "the statement stays on one backend"
    finally:
        await first.close()
        await second.close()


async def test_a_second_server_runs_beside_the_first_and_stops(debian_server: DebianServer) -> None:
    with type(debian_server)() as other:
        url, pgbouncer_url = other.url, other.pgbouncer_url
        assert len({url, pgbouncer_url, debian_server.url, debian_server.pgbouncer_url}) == 4
        assert await _answers(url)
        assert await _answers(pgbouncer_url)
    assert not await _answers(url)
    assert not await _answers(pgbouncer_url)
    assert await _answers(debian_server.url)


async def test_nothing_outlives_a_killed_owner(debian_server: DebianServer) -> None:
    script = sys.modules[type(debian_server).__module__].__file__
    assert script is not None
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        urls = [owner.stdout.readline().split()[1] for _ in range(2)]
        assert all([await _answers(url) for url in urls])
        owner.kill()
    async with asyncio.timeout(30):
        while any([await _answers(url) for url in urls]):
            await asyncio.sleep(0.05)


async def _answers(url: str) -> bool:
    try:
        connection = await asyncpg.connect(url)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False
    await connection.close()
    return True
