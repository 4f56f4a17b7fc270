"""`cognizes migrate`: applied scripts, pending scripts, and the schema as text."""

from __future__ import annotations

import json
from pathlib import Path

import asyncpg
import pytest

from cognizes.engine.database.migrations import Migrator, functions, migrations, whole_schema
from cognizes.engine.errors import SetupError
from tests.integration.cli.running_command import Cognizes

EVERYTHING = [script.name for script in [*migrations(), *functions()]]


def test_it_runs_once(cognizes: Cognizes, quick: Cognizes, empty_database_url: str) -> None:
    first = cognizes("migrate", DATABASE_URL=empty_database_url)
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines() == [
        *EVERYTHING,
        f"Ran {len(EVERYTHING)} scripts; the schema is up to date.",
    ]
    second = quick("migrate", "--database-url", empty_database_url)
    assert (second.returncode, second.stdout) == (0, "The schema was up to date.\n")


async def test_check_changes_nothing(quick: Cognizes, empty_database_url: str) -> None:
    pending = quick("migrate", "--check", DATABASE_URL=empty_database_url)
    assert pending.returncode == 1
    assert pending.stdout.splitlines() == EVERYTHING
    assert "run `cognizes migrate`" in pending.stderr
    connection = await asyncpg.connect(empty_database_url)
    assert await connection.fetchval("SELECT to_regclass('schema_migrations')") is None
    await connection.close()


def test_check_of_an_untouched_directory_does_not_create_it(quick: Cognizes) -> None:
    pending = quick("migrate", "--check")
    assert (pending.returncode, pending.stdout.splitlines()) == (1, EVERYTHING)
    assert not quick.data_dir.exists()


def test_check_of_a_migrated_embedded_database(quick: Cognizes, kept_data_dir: Path) -> None:
    checked = quick("migrate", "--check", "--data-dir", str(kept_data_dir), DATABASE_URL="postgresql://ignored/x")
    assert (checked.returncode, checked.stdout) == (0, "The schema is up to date.\n")


def test_the_plan_of_a_current_and_of_an_empty_database(quick: Cognizes, kept_data_dir: Path) -> None:
    planned = quick("migrate", "--plan", "--data-dir", str(kept_data_dir))
    assert (planned.returncode, planned.stdout) == (0, "The schema is up to date.\n")
    empty = quick("migrate", "--plan", "--json")
    assert not quick.data_dir.exists()
    plans = json.loads(empty.stdout)
    assert [plan["name"] for plan in plans] == [*(script.name for script in migrations()), "functions and views"]
    assert all(plan["tables"] == [] for plan in plans)


async def test_the_plan_names_locks_rewrites_and_indexes_and_changes_nothing(
    quick: Cognizes, database_url: str
) -> None:
    connection = await asyncpg.connect(database_url)
    wanted = ["0021_page_bytes.sql", "0062_artifacts.sql", "0094_queues.sql"]
    await connection.execute("DELETE FROM schema_migrations WHERE name = ANY ($1)", wanted)
    await connection.execute("UPDATE schema_migrations SET checksum = 'x' WHERE name LIKE 'webhooks/queue_webhooks%'")
    before = await connection.fetch("SELECT * FROM schema_migrations ORDER BY name")
    planned = quick("migrate", "--plan", "--json", DATABASE_URL=database_url)
    assert planned.returncode == 0, planned.stderr
    plans = {plan["name"]: {table["table"]: table for table in plan["tables"]} for plan in json.loads(planned.stdout)}
    assert list(plans) == [*wanted, "functions and views"]
    events = plans["0021_page_bytes.sql"]["events"]
    assert (events["lock"], events["effect"]) == ("AccessExclusiveLock", "blocks reads and writes")
    assert events["rewrites_table"], "the migration adds a computed column"
    assert plans["0062_artifacts.sql"] == {}, "it creates tables and locks no existing one"
    runs = plans["0094_queues.sql"]["runs"]
    assert (runs["lock"], runs["rewrites_table"]) == ("AccessExclusiveLock", False)
    assert runs["builds_indexes"] == ["idx_runs_claim"]
    (trigger,) = plans["functions and views"].values()
    assert (trigger["table"], trigger["lock"]) == ("runs", "ShareRowExclusiveLock")
    shown = quick("migrate", "--plan", DATABASE_URL=database_url).stdout
    assert "AccessExclusiveLock, blocks reads and writes\n    rewrites the table" in shown
    assert "builds the index idx_runs_claim" in shown
    assert await connection.fetch("SELECT * FROM schema_migrations ORDER BY name") == before
    assert await connection.fetch("SELECT 1 FROM pg_namespace WHERE nspname LIKE '%plan%'") == []
    await connection.close()


def test_sql_prints_the_whole_schema_of_the_configured_name(quick: Cognizes) -> None:
    printed = quick("migrate", "--sql", COGNIZES_DB_SCHEMA="agents", COGNIZES_EMBEDDING_DIMENSION="8")
    assert printed.returncode == 0
    assert printed.stdout == whole_schema(schema="agents", embedding_dimension=8)
    assert not quick.data_dir.exists()


def test_wrong_uses(quick: Cognizes) -> None:
    assert quick("migrate", "--check", "--sql").returncode == 2
    assert quick("migrate", "--plan", "--check").returncode == 2
    assert quick("migrate", "--json").returncode == 2
    assert quick.fail("migrate", "--sql", COGNIZES_DB_SCHEMA="no good").startswith("'no good' is not a schema name")


def test_a_server_that_does_not_answer(quick: Cognizes) -> None:
    said = quick.fail("migrate", DATABASE_URL="postgresql://ada:s3cret@127.0.0.1:1/shop")
    assert said.startswith("cannot use the PostgreSQL server at 127.0.0.1:1/shop")


async def test_a_database_of_a_newer_engine_is_left_alone(quick: Cognizes, database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        "INSERT INTO schema_migrations (name, number, checksum, engine_version) VALUES ('9999_new.sql', 9999, '', '9')"
    )
    await connection.close()
    sentence = quick.fail("migrate", DATABASE_URL=database_url)
    assert sentence.startswith("the database is at schema 9999")
    assert sentence.endswith("upgrade cognizes-engine")


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        ({"number": 150010, "spelling": "15.10", "has_vector": True}, "this is PostgreSQL 15.10; the engine needs 16"),
        ({"number": 170002, "spelling": "17.2", "has_vector": False}, "the server lacks pgvector; .*postgresql-17-pgv"),
    ],
)
async def test_an_unsuitable_server(server: dict[str, object], sentence: str) -> None:
    class OldServer:
        async def fetchrow(self, _query: str) -> dict[str, object]:
            return server

    with pytest.raises(SetupError, match=sentence):
        await Migrator(OldServer(), schema="public", embedding_dimension=256).migrate()
