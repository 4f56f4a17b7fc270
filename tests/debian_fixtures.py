"""A PostgreSQL 17 with pg_cron and a PgBouncer for the tests marked `server`, one pair for the whole run."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

if TYPE_CHECKING:
    from debian_server import DebianServer

SCRIPT = Path(__file__).parents[1] / "scripts" / "debian_server.py"
END_RUNNING_JOBS = """
    SELECT pg_terminate_backend(pid, 5000)
    FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND application_name = 'pg_cron'
"""


@pytest.fixture(scope="session")
def debian_server() -> Iterator[DebianServer]:
    """The running servers. Skips the tests that need them where they cannot run."""
    server_class = _load_server_class()
    reason = server_class.available()
    if reason is not None:
        pytest.skip(reason)
    with server_class() as server:
        yield server


@pytest.fixture
def new_debian_server(debian_server: DebianServer) -> Iterator[DebianServer]:
    """Another pair of servers that no test has used, for tests that wait for a job of pg_cron.

    The launcher of pg_cron wakes up once per second. When a schema with many objects is dropped while it sleeps, the
    queue of cache invalidations overflows and the launcher misses that `cron.job` was dropped and created again: it
    then runs the jobs of the previous `cron.job` until it is restarted.
    """
    with type(debian_server)() as server:
        yield server


@pytest.fixture
async def server_url(debian_server: DebianServer) -> str:
    """The URL of PostgreSQL; the schema `public` of its database is empty and pg_cron is not installed."""
    await empty_database(debian_server)
    return debian_server.url


async def empty_database(debian_server: DebianServer) -> None:
    """Drop everything that a test left. pg_cron works in one database only, so another database is no alternative."""
    await _reconnect_pgbouncer(debian_server.pgbouncer_url)
    # A connection that a test left open causes an error here instead of a run that hangs.
    connection = await asyncpg.connect(debian_server.url, server_settings={"lock_timeout": "10s"})
    try:
        await connection.execute("DROP EXTENSION IF EXISTS pg_cron CASCADE")
        # Without the extension no job starts, but a running job continues and holds its locks.
        await connection.execute(END_RUNNING_JOBS)
        await connection.execute("DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public")
    finally:
        await connection.close()


async def _reconnect_pgbouncer(url: str) -> None:
    """Drop the pooled connections: their prepared statements refer to types that are dropped next."""
    console = await asyncpg.connect(url, database="pgbouncer")
    try:
        await console.execute("RECONNECT")
    finally:
        await console.close()


def _load_server_class() -> type[DebianServer]:
    specification = importlib.util.spec_from_file_location("debian_server", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    server_class: type[DebianServer] = module.DebianServer
    return server_class
