"""`cognizes migrate`: applied scripts, pending scripts, and the schema as text."""

from __future__ import annotations

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


def test_sql_prints_the_whole_schema_of_the_configured_name(quick: Cognizes) -> None:
    printed = quick("migrate", "--sql", COGNIZES_DB_SCHEMA="agents", COGNIZES_EMBEDDING_DIMENSION="8")
    assert printed.returncode == 0
    assert printed.stdout == whole_schema(schema="agents", embedding_dimension=8)
    assert not quick.data_dir.exists()


def test_wrong_uses(quick: Cognizes) -> None:
    assert quick("migrate", "--check", "--sql").returncode == 2
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
