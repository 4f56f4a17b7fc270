"""One embedded PostgreSQL per test process, one fresh database per test, all of it in memory where there is room."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
from hypothesis import settings

from cognizes.engine import Engine, Settings
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.database.migrations import Migrator
from tests.database_supply import DatabaseSupply
from tests.debian_fixtures import debian_server, new_debian_server, server_url

__all__ = ["debian_server", "new_debian_server", "server_url"]

_TEMPLATE = "migrated"
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 4 * 2**30
"""Free space in `/dev/shm` from which on the run's temporary files are kept there."""

# The browser tests need the dependency group `ci` (`uv run --group ci pytest -m browser`).
collect_ignore = [] if find_spec("playwright") else ["browser"]

# Use the same examples in each run, so that a failure is caused by the change.
# `--hypothesis-profile=random` finds new ones.
settings.register_profile("same", derandomize=True, deadline=None, database=None)
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile("same")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare what the processes of pytest-xdist and the commands that tests start inherit."""
    if hasattr(config, "workerinput"):
        return
    if sys.dont_write_bytecode:
        # Compiling all imports again takes longer than most commands that tests run: use a cache outside of the tree.
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(config.rootpath / ".pytest_cache" / "bytecode")
        sys.dont_write_bytecode = False
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES:
        # The embedded servers of this run are in temporary directories. In memory a new database costs 20 times less.
        directory = tempfile.mkdtemp(prefix="cognizes-", dir=_MEMORY)
        tempfile.tempdir = os.environ["TMPDIR"] = directory
        config.add_cleanup(lambda: shutil.rmtree(directory))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Use several processes for the default run only: sets that share one server and chosen files run in one."""
    is_default = not getattr(config.option, "file_or_dir", None) and "not server" in config.option.markexpr
    return 4 if is_default else 0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of modules marked `pgbouncer` on the embedded server and, with `-m server`, through PgBouncer."""
    if "engine_urls" in metafunc.fixturenames and metafunc.definition.get_closest_marker("pgbouncer"):
        through_pgbouncer = pytest.param("pgbouncer", marks=pytest.mark.server)
        metafunc.parametrize(
            "engine_urls", [pytest.param("embedded", id=pytest.HIDDEN_PARAM), through_pgbouncer], indirect=True
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test on the Debian server may have to download packages."""
    for item in items:
        if item.get_closest_marker("server"):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session", autouse=True)
def _own_settings_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide the settings of the developer's environment and of a `.env` from the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("cwd"))
        for name in ("DATABASE_URL", "REDIS_URL", *(f"COGNIZES_{field.upper()}" for field in Settings.model_fields)):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedPostgres]:
    """An embedded server in a temporary directory, stopped and removed at the end."""
    directory = Path(tempfile.mkdtemp(prefix="cognizes-test-"))
    server = EmbeddedPostgres(directory)
    asyncio.run(server.start())
    try:
        asyncio.run(_make_template(server.url))
        yield server
    finally:
        asyncio.run(server.close())
        shutil.rmtree(directory)


async def _make_template(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        # Most of the time of a new database would be flushing. Tests of crashes start servers of their own.
        await connection.execute("ALTER SYSTEM SET fsync = off")
        await connection.execute("SELECT pg_reload_conf()")
        await connection.execute(f"CREATE DATABASE {_TEMPLATE}")
        template = await asyncpg.connect(url, database=_TEMPLATE)
        await Migrator(template, schema="public", embedding_dimension=256).migrate()
        # A quarter of the work of new connections would be reading catalogs that are not vacuumed. The tables of the
        # engine stay as they are: plans of queries depend on it.
        catalogs = await template.fetchval(
            "SELECT string_agg(oid::regclass::text, ', ') FROM pg_class "
            "WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r'"
        )
        await template.execute(f"VACUUM {catalogs}")
        await template.close()
    finally:
        await connection.close()


def replace_database(url: str, name: str) -> str:
    """Return the URL of another database on the same embedded server."""
    return url.replace("/cognizes-engine?", f"/{name}?")


@pytest.fixture(scope="session")
def database_supply(postgres_server: EmbeddedPostgres) -> Iterator[DatabaseSupply]:
    """Databases with the schema, created in advance."""
    with closing(DatabaseSupply(postgres_server.url, _TEMPLATE)) as supply:
        yield supply


@pytest.fixture
async def empty_database_url(postgres_server: EmbeddedPostgres) -> AsyncIterator[str]:
    """A new database with nothing in it."""
    name = f"test_{uuid4().hex}"
    connection = await asyncpg.connect(postgres_server.url)
    try:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE template1")
        yield replace_database(postgres_server.url, name)
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()


@pytest.fixture
async def database_url(postgres_server: EmbeddedPostgres, database_supply: DatabaseSupply) -> AsyncIterator[str]:
    """A new database with the schema."""
    name = await database_supply.take()
    yield replace_database(postgres_server.url, name)
    database_supply.give_back(name)


@pytest.fixture
def engine_urls(request: pytest.FixtureRequest) -> dict[str, str]:
    """Where `engine` connects: a database of its own on the embedded server, or PgBouncer with LISTEN beside it."""
    if getattr(request, "param", "embedded") == "embedded":
        return {"database_url": request.getfixturevalue("database_url")}
    listen_url = request.getfixturevalue("server_url")
    return {"database_url": request.getfixturevalue("debian_server").pgbouncer_url, "listen_url": listen_url}


@pytest.fixture
async def engine(engine_urls: dict[str, str]) -> AsyncIterator[Engine]:
    """An engine on a database of its own."""
    async with Engine.open(**engine_urls) as opened:
        yield opened


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    """A plain asyncpg pool without the settings of the engine."""
    async with asyncpg.create_pool(database_url, min_size=1, max_size=10) as bare:
        yield bare
