"""A migration that finds a locked table gives way to other sessions, and is tried again."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from cognizes.engine import Engine, MigrationError
from cognizes.engine.database.migrations import Migrator


def migrator(connection: asyncpg.Connection, *, wait_seconds: float) -> Migrator:
    return Migrator(connection, schema="public", embedding_dimension=256, lock_seconds=0.2, wait_seconds=wait_seconds)


async def test_a_long_reader_does_not_block_writers_behind_a_waiting_migration(
    engine: Engine, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader, migrating = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    session = await engine.sessions.create("shop", "ada")
    await migrating.execute("DELETE FROM schema_migrations WHERE name = '0094_queues.sql'")
    held = reader.transaction()
    await held.start()
    await reader.fetch("SELECT count(*) FROM runs")
    migration = asyncio.create_task(migrator(migrating, wait_seconds=120).migrate())
    # Three attempts of the migration fail. Without a limit, the second write would wait as long as the reader reads.
    written = 0
    async with asyncio.timeout(100):
        while caplog.text.count("rolled back and is tried again") < 3:
            await engine.runs.create(session)
            written += 1
            await asyncio.sleep(0.01)
    assert written > 0
    assert not migration.done()
    await held.rollback()
    assert await migration == ["0094_queues.sql"]
    await engine.runs.create(session)
    await reader.close()
    await migrating.close()


async def test_a_migration_that_never_gets_its_lock_changes_nothing_and_names_the_session(database_url: str) -> None:
    reader = await asyncpg.connect(database_url, server_settings={"application_name": "a long report"})
    migrating = await asyncpg.connect(database_url)
    await migrating.execute("DELETE FROM schema_migrations WHERE name = '0094_queues.sql'")
    async with reader.transaction():
        await reader.fetch("SELECT count(*) FROM runs")
        with pytest.raises(MigrationError, match=r"nothing was changed.*a long report"):
            await migrator(migrating, wait_seconds=0.5).migrate()
        assert await migrator(migrating, wait_seconds=0).pending() == ["0094_queues.sql"]
    assert await migrating.fetchval("SHOW lock_timeout") == "0", "the limit ends with the transaction"
    assert await migrator(migrating, wait_seconds=0).migrate() == ["0094_queues.sql"]
    await reader.close()
    await migrating.close()
