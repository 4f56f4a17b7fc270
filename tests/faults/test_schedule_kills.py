"""A scheduler that is killed between firing a schedule and storing its run: the due time fires exactly once."""

from __future__ import annotations

import asyncio
import os
import subprocess
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from cognizes.engine import Engine
from tests.integration.cli.running_command import PROGRAM
from tests.integration.runs.conditions import until

REPOSITORY = Path(__file__).parents[2]


def start_worker(database_url: str, marks: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [PROGRAM, "worker", "--handler=other=tests.faults.run_handlers:journey"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, cwd=REPOSITORY,
        env={**os.environ, "DATABASE_URL": database_url, "RUN_MARKS": str(marks)},
    )  # fmt: skip


@pytest.mark.parametrize("statement_survives", [True, False])
async def test_a_scheduler_killed_while_it_fires(
    engine: Engine, database_url: str, tmp_path: Path, statement_survives: bool
) -> None:
    """Its statement waits before the run is stored. PostgreSQL completes it, or it is lost with its connection."""
    schedule = await engine.schedules.create(timedelta(hours=1), "poll", app_name="shop", user_id="ada")
    holder = await asyncpg.connect(database_url)
    watcher = await asyncpg.connect(database_url)
    held = holder.transaction()
    await held.start()
    await holder.execute("LOCK TABLE schedule_firings IN SHARE MODE")
    await watcher.execute("UPDATE schedules SET next_at = clock_timestamp() - interval '1 second'")
    due_at = await watcher.fetchval("SELECT next_at FROM schedules")
    first = start_worker(database_url, tmp_path)
    try:

        async def waiting() -> int | None:
            return await watcher.fetchval(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
                " AND query LIKE '%fire_schedule%'"
            )

        backend = await until(waiting)
        assert await watcher.fetchval("SELECT next_at FROM schedules") == due_at, "nothing is committed yet"
        first.kill()
        first.wait()
        if not statement_survives:
            await watcher.execute("SELECT pg_terminate_backend($1)", backend)

            async def gone() -> bool:
                return not await watcher.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", backend)

            await until(gone)
            assert await watcher.fetchval("SELECT next_at FROM schedules") == due_at, "the firing was rolled back"
    finally:
        first.kill()
        await held.rollback()
    second = start_worker(database_url, tmp_path)
    try:

        async def fired() -> bool:
            return (await engine.schedules.get(schedule.id)).next_at > due_at

        await until(fired)
        await asyncio.sleep(1.5)  # a second firing would come with the next round
    finally:
        second.kill()
        second.wait()
        await holder.close()
        await watcher.close()
    (firing,) = await engine.schedules.firings(schedule.id)
    assert firing.due_at == due_at
    assert len((await engine.runs.search(handler="poll")).items) == 1
