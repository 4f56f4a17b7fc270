"""Migrations: once, whoever starts first; never over something unknown."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import asyncpg
import pytest

from cognizes.engine import Engine, MigrationError, SetupError
from cognizes.engine.database import migrations
from cognizes.engine.database.migrations import Migrator, Script


@pytest.fixture
async def connection(empty_database_url: str) -> Any:
    opened = await asyncpg.connect(empty_database_url)
    yield opened
    await opened.close()


def migrator(connection: Any) -> Migrator:
    return Migrator(connection, schema="public", embedding_dimension=256)


def test_six_processes_start_on_an_empty_database(empty_database_url: str) -> None:
    program = (
        "import asyncio, sys\nfrom cognizes.engine import Engine\n"
        "async def main():\n"
        "    async with Engine.open(sys.argv[1], pool_size=2) as engine:\n"
        "        await engine.sessions.create('app', 'user', session_id=sys.argv[2], state={'app:' + sys.argv[2]: 1})\n"
        "asyncio.run(main())"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, empty_database_url, f"s{n}"], stderr=subprocess.PIPE, text=True
        )
        for n in range(6)
    ]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 6, errors


async def test_pending_then_nothing(connection: Any) -> None:
    assert "0001_pulse.sql" in await migrator(connection).pending()
    ran = await migrator(connection).migrate()
    assert ran[0] == "0001_pulse.sql"
    assert await migrator(connection).pending() == []
    assert await migrator(connection).migrate() == []


async def test_a_newer_schema_is_refused(connection: Any, empty_database_url: str) -> None:
    await migrator(connection).migrate()
    await connection.execute("INSERT INTO schema_migrations VALUES ('9999_future.sql', 9999, 'x', '99.0.0')")
    with pytest.raises(MigrationError, match="upgrade cognizes-engine"):
        await migrator(connection).migrate()
    with pytest.raises(MigrationError):
        async with Engine.open(empty_database_url):
            pytest.fail("an engine opened a schema it does not know")


async def test_an_edited_migration_is_refused(connection: Any) -> None:
    await migrator(connection).migrate()
    await connection.execute("UPDATE schema_migrations SET checksum = 'other' WHERE number = 1")
    with pytest.raises(MigrationError, match=r"0001_pulse\.sql was edited"):
        await migrator(connection).pending()


async def test_a_failing_migration_leaves_nothing(connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known = migrations.migrations()
    broken = Script(name="0099_broken.sql", number=99, sql="CREATE TABLE {schema}.half (); SELECT 1 / 0")
    monkeypatch.setattr(migrations, "migrations", lambda: [*known, broken])
    with pytest.raises(Exception, match="division by zero"):
        await migrator(connection).migrate()
    assert await connection.fetchval("SELECT to_regclass('threads')") is None
    assert await connection.fetchval("SELECT to_regclass('half')") is None


async def test_functions_follow_the_newer_engine_only(connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await migrator(connection).migrate()
    name = migrations.functions()[0].name
    await connection.execute(
        "UPDATE schema_migrations SET checksum = 'newer', engine_version = '99.0.0' WHERE name = $1", name
    )
    assert await migrator(connection).migrate() == [], "an older engine put its old function back"
    monkeypatch.setattr(migrations, "__version__", "100.0.0")
    assert await migrator(connection).migrate() == [name]


class OldServer:
    """Answers like a server that will not do."""

    def __init__(self, **row: Any) -> None:
        self._row = row

    async def fetchrow(self, _: str) -> dict[str, Any]:
        return {"number": 170000, "spelling": "17.0", "has_vector": True, **self._row}


async def test_an_old_server_is_refused() -> None:
    with pytest.raises(SetupError, match=r"PostgreSQL 15\.4.*16 or newer"):
        await migrator(OldServer(number=150004, spelling="15.4")).migrate()


async def test_a_server_without_pgvector_is_refused_naming_what_to_install() -> None:
    with pytest.raises(SetupError, match="postgresql-17-pgvector"):
        await migrator(OldServer(has_vector=False)).migrate()
