"""Migrations run once, in one process, and never on an unknown schema."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from cognizes.engine import Engine, MigrationError, SetupError
from cognizes.engine.database import migrations
from cognizes.engine.database.migrations import Migrator, Script
from cognizes.engine.database.queries import render


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
    with pytest.raises(MigrationError, match=r"another version of migration 0001_pulse\.sql.*pg_dump --data-only"):
        await migrator(connection).pending()


async def test_a_failing_migration_leaves_nothing(connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known = migrations.migrations()
    broken = Script(name="0099_broken.sql", number=99, sql="CREATE TABLE {schema}.half (); SELECT 1 / 0")
    monkeypatch.setattr(migrations, "migrations", lambda: [*known, broken])
    with pytest.raises(Exception, match="division by zero"):
        await migrator(connection).migrate()
    assert await connection.fetchval("SELECT to_regclass('threads')") is None
    assert await connection.fetchval("SELECT to_regclass('half')") is None


BODY = "SELECT prosrc FROM pg_proc WHERE oid = 'merge_state(jsonb, jsonb)'::regprocedure"


def release(monkeypatch: pytest.MonkeyPatch, revision: int) -> None:
    """Make this engine one whose functions have another revision."""
    known = migrations.read_release()
    monkeypatch.setattr(migrations, "read_release", lambda: replace(known, revision=revision))


async def install_another_merge_state(connection: Any, *, revision: int | None = None) -> str:
    """Replace a function as another engine would; without a revision as an engine before revisions would."""
    await connection.execute(
        "CREATE OR REPLACE FUNCTION merge_state(p_state jsonb, p_delta jsonb) RETURNS jsonb"
        " LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS 'BEGIN RETURN p_delta; END'"
    )
    await connection.execute("UPDATE schema_migrations SET checksum = 'x' WHERE name = 'state/merge_state.sql'")
    if revision is not None:
        await connection.execute("UPDATE schema_migrations SET revision = $1 WHERE number = 0", revision)
    return str(await connection.fetchval(BODY))


async def test_an_older_engine_of_the_same_version_leaves_functions_alone(connection: Any) -> None:
    await migrator(connection).migrate()
    newer = await install_another_merge_state(connection, revision=migrations.read_release().revision + 1)
    assert await migrator(connection).pending() == []
    assert await migrator(connection).migrate() == []
    assert await connection.fetchval(BODY) == newer, "an older engine put its old function back"


async def test_a_function_that_a_newer_engine_removed_is_not_created_again(connection: Any) -> None:
    await migrator(connection).migrate()
    await connection.execute(
        "DROP FUNCTION memory_passes; DELETE FROM schema_migrations WHERE name LIKE '96_memory_p%'"
    )
    await connection.execute(
        "UPDATE schema_migrations SET revision = $1 WHERE number = 0", migrations.read_release().revision + 1
    )
    assert await migrator(connection).migrate() == []


async def test_a_newer_engine_replaces_what_differs_and_records_its_revision(
    connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrator(connection).migrate()
    own = await connection.fetchval(BODY)
    older = await install_another_merge_state(connection)
    await connection.execute("INSERT INTO schema_migrations VALUES ('00_removed.sql', 0, 'x', '0.1.0')")
    release(monkeypatch, 100)
    assert await migrator(connection).migrate() == ["state/merge_state.sql"]
    assert await connection.fetchval(BODY) == own != older
    installed = "SELECT min(revision), max(revision) FROM schema_migrations WHERE number = 0"
    assert tuple(await connection.fetchrow(installed)) == (100, 100)
    assert await connection.fetchval("SELECT count(*) FROM schema_migrations WHERE name = '00_removed.sql'") == 0


async def test_a_revision_that_changes_no_script_of_this_database_is_recorded(
    connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrator(connection).migrate()
    release(monkeypatch, 100)
    assert await migrator(connection).migrate() == []
    assert await connection.fetchval("SELECT max(revision) FROM schema_migrations") == 100


SHAPE = """
SELECT format('column %s.%s %s %s %s %s', c.oid::regclass, a.attname, format_type(a.atttypid, a.atttypmod),
              a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attstorage) AS line
  FROM pg_class c
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL SELECT format('%s %s', conrelid::regclass, pg_get_constraintdef(oid))
            FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT format('%s %s %s', p.oid::regprocedure, md5(p.prosrc), p.proconfig)
            FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
             AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
ORDER BY 1"""


async def shape(connection: Any) -> list[str]:
    """Return every column, index, constraint, trigger and function, one line each."""
    return [row["line"] for row in await connection.fetch(SHAPE)]


@pytest.fixture
async def expected_shape(database_url: str) -> list[str]:
    opened = await asyncpg.connect(database_url)
    lines = await shape(opened)
    await opened.close()
    return lines


async def run_base_commit(connection: Any) -> None:
    """Build the database of the commit before revisions: migrations 1 to 12, functions, no column `revision`."""
    await connection.execute(
        "CREATE TABLE schema_migrations (name text PRIMARY KEY, number integer NOT NULL, checksum text NOT NULL,"
        " engine_version text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
    )
    for script in migrations.migrations():
        if script.number > 12:
            continue
        await connection.execute(render(script.sql, "public", embedding_dimension=256))
        await connection.execute(
            "INSERT INTO schema_migrations VALUES ($1, $2, $3, '0.1.0')", script.name, script.number, script.checksum
        )
    await connection.execute(
        "CREATE FUNCTION merge_state(p_state jsonb, p_delta jsonb) RETURNS jsonb"
        " LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS 'BEGIN RETURN p_delta; END';"
        "INSERT INTO schema_migrations VALUES ('state/merge_state.sql', 0, 'older', '0.1.0');"
        "INSERT INTO threads (app_name, user_id, session_id, state) VALUES ('a', 'u', 's', '{\"k\": 1}')"
    )


async def opens_with_its_data(url: str) -> None:
    async with Engine.open(url) as engine:
        session = await engine.sessions.get("a", "u", "s")
        assert session is not None
        await engine.sessions.append(
            session, author="user", kind="user_message", text="hi", state={"n": 2, "user:k": 3}
        )
        assert (await engine.sessions.at(session, sequence=1)).state["n"] == 2
        assert session.state["k"] == 1


async def test_a_database_of_the_commit_before_revisions_migrates(
    connection: Any, empty_database_url: str, expected_shape: list[str]
) -> None:
    await run_base_commit(connection)
    ran = await migrator(connection).migrate()
    assert "state/merge_state.sql" in ran
    assert await shape(connection) == expected_shape
    assert await migrator(connection).migrate() == []
    await opens_with_its_data(empty_database_url)


async def test_a_database_of_the_first_commits_migrates(
    connection: Any, empty_database_url: str, expected_shape: list[str]
) -> None:
    """Their 0001 and 0004 were edited later: the earlier checksums are known, and 0019 repairs what differs."""
    await run_base_commit(connection)
    known = migrations.read_release().migrations
    for name in ("0001_pulse.sql", "0004_memory.sql"):
        await connection.execute("UPDATE schema_migrations SET checksum = $2 WHERE name = $1", name, known[name][-1])
    await connection.execute(
        "ALTER TABLE threads DROP COLUMN began_at; ALTER TABLE threads ALTER COLUMN state SET STORAGE EXTENDED;"
        "ALTER TABLE user_states ALTER COLUMN state SET STORAGE EXTENDED;"
        "ALTER TABLE app_states ALTER COLUMN state SET STORAGE EXTENDED;"
        "DROP INDEX idx_threads_app_user; CREATE INDEX idx_threads_app_user ON threads (app_name, user_id, id);"
        "CREATE UNIQUE INDEX threads_app_user_session ON threads (app_name, user_id, md5(session_id));"
        "ALTER TABLE memory_scopes DROP COLUMN graph_model, DROP COLUMN graph_is_ready;"
        "CREATE FUNCTION merge_app_state(text, jsonb, uuid, bigint, integer) RETURNS void LANGUAGE sql AS 'SELECT'"
    )
    await migrator(connection).migrate()
    assert await shape(connection) == expected_shape
    assert await connection.fetchval("SELECT began_at = created_at FROM threads")
    await opens_with_its_data(empty_database_url)


async def test_the_script_of_an_older_engine_is_refused(database_url: str) -> None:
    opened = await asyncpg.connect(database_url)
    await opened.execute("UPDATE schema_migrations SET revision = revision + 1 WHERE number = 0")
    newer = await install_another_merge_state(opened)
    with pytest.raises(asyncpg.RaiseError, match="a newer engine has migrated this database"):
        await opened.execute(migrations.whole_schema())
    await opened.execute("ROLLBACK")
    assert await opened.fetchval(BODY) == newer
    await opened.close()


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
