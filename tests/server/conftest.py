"""A PostgreSQL 17 with pg_cron and a PgBouncer for the tests in this folder, one pair for the whole run."""

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

HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "scripts" / "debian_server.py"
END_RUNNING_JOBS = """
    SELECT pg_terminate_backend(pid, 5000)
    FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND application_name = 'pg_cron'
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first may have to download the packages: give it the time, unless it asks for its own."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def debian_server() -> Iterator[DebianServer]:
    """The running servers; the tests that need them are skipped where they cannot run."""
    server_class = _load_server_class()
    reason = server_class.available()
    if reason is not None:
        pytest.skip(reason)
    with server_class() as server:
        yield server


@pytest.fixture
async def server_url(debian_server: DebianServer) -> str:
    """PostgreSQL's URL, its database as good as new: schema public is empty, and pg_cron not there yet.

    pg_cron lives in one database only, so this cleans that one instead of creating another.
    """
    await _reconnect_pgbouncer(debian_server.pgbouncer_url)
    # A connection that some test forgot shows as an error here, not as a run that hangs.
    connection = await asyncpg.connect(debian_server.url, server_settings={"lock_timeout": "10s"})
    try:
        await connection.execute("DROP EXTENSION IF EXISTS pg_cron CASCADE")
        # Without the extension no job starts, but one that runs goes on and holds its locks.
        await connection.execute(END_RUNNING_JOBS)
        await connection.execute("DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public")
    finally:
        await connection.close()
    return debian_server.url


async def _reconnect_pgbouncer(url: str) -> None:
    """Drops the pooled connections: statements prepared there speak of types that are about to be dropped."""
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
