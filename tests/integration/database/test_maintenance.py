"""Maintenance by the engine itself, and the functions it calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from cognizes.engine import DELETE, DatabaseError, Engine, HistoryExpiredError, Settings
from cognizes.engine.api.main import create_app
from cognizes.engine.concurrency import Sweeper
from cognizes.engine.database import Database
from cognizes.engine.database.maintenance import Maintenance, jobs
from cognizes.engine.supervision import Supervisor
from tests.engine_parts import database_of, maintenance_of, supervisor_of, sweeper_of


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[Engine]:
    """An engine with every job scheduled: retention is off by default."""
    kept = dict.fromkeys(("audit_kept_days", "streams_kept_days", "state_history_kept_days"), 30)
    async with Engine.open(database_url, **kept) as opened:
        yield opened


def test_retention_is_off_by_default() -> None:
    names = {job.name for job in jobs(Settings())}
    assert names.isdisjoint({"prune_audit_log", "prune_streams", "fold_state_writes"})


async def test_snapshots_keep_the_newest_and_the_first(engine: Engine) -> None:
    await maintenance_of(engine).close()  # it would do, and count, the same
    session = await engine.sessions.create("app", "user", state={"n": 0})
    for number in range(1, 7):
        await engine.sessions.update(session, {"n": number})
        await engine.sessions.snapshot(session)
    assert await database_of(engine).fetch_value("prune_snapshots", 2) == 4
    kept = await database_of(engine).pool.fetch("SELECT version FROM snapshots ORDER BY version")
    assert [row["version"] for row in kept] == [1, 6, 7]
    for number in range(7):
        assert (await engine.sessions.at(session, sequence=number)).state == {"n": number}


async def test_chunks_go_by_age(engine: Engine) -> None:
    await maintenance_of(engine).close()  # it would do, and count, the same
    session = await engine.sessions.create("app", "user")
    for age in (0, 30):
        await database_of(engine).pool.execute(
            "INSERT INTO message_chunks (thread_id, message_id, sequence, app_name, delta, created_at) "
            "VALUES ($1, 'm', $2::int, 'app', 'x', now() - make_interval(hours => $2::int))",
            session.thread_id,
            age,
        )
    assert await database_of(engine).fetch_value("prune_chunks", timedelta(hours=24)) == 1
    assert await database_of(engine).pool.fetchval("SELECT array_agg(sequence) FROM message_chunks") == [0]


async def test_finished_runs_go_by_age_and_their_events_stay(engine: Engine) -> None:
    await maintenance_of(engine).close()  # it would do, and count, the same
    session = await engine.sessions.create("app", "user")
    for run_id in ("old", "new", "running"):
        await engine.runs.create(session, run_id=run_id, running=True)
    for run_id in ("old", "new"):
        await engine.runs.finish(session.thread_id, run_id)
    await database_of(engine).pool.execute(
        "UPDATE runs SET completed_at = now() - interval '40 days' WHERE id = 'old';"
        "UPDATE runs SET created_at = now() - interval '40 days' WHERE id = 'running'"
    )
    assert await database_of(engine).fetch_value("prune_runs", timedelta(days=30)) == 1
    assert {run.id for run in await engine.runs.list(session.thread_id)} == {"new", "running"}
    assert len(await engine.sessions.events(session)) == 5


async def test_expired_leases_are_released_with_an_event(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    for run_id in ("silent", "homeless", "alive", "unleased"):
        await engine.runs.create(session, run_id=run_id, running=True)
    await maintenance_of(engine).close()
    await database_of(engine).pool.execute(
        "UPDATE runs SET handler = 'unknown' WHERE id = 'silent';"
        "UPDATE runs SET lease_expires_at = now() - interval '1 s' WHERE id IN ('silent', 'homeless');"
        "UPDATE runs SET lease_expires_at = now() + interval '1 min' WHERE id = 'alive'"
    )
    assert await database_of(engine).fetch_value("release_expired_leases") == 2
    assert await database_of(engine).fetch_value("release_expired_leases") == 0
    assert {run.id: run.status for run in await engine.runs.list(session.thread_id)} == {
        "silent": "pending", "homeless": "failed", "alive": "running", "unleased": "running",
    }  # fmt: skip
    ends = [event.event_type for event in await engine.sessions.events(session)][-2:]
    assert sorted(ends) == ["run_failed", "run_released"]


async def test_a_due_job_runs_in_one_process_only(engine: Engine) -> None:
    await maintenance_of(engine).close()
    await database_of(engine).pool.execute("TRUNCATE maintenance_jobs")
    # However slow the machine is, nothing is due twice in this test.
    schedule = [replace(job, every=timedelta(hours=1)) for job in jobs(engine.settings)]
    schedulers = [
        Maintenance(database_of(engine), engine.settings, sweeper=sweeper_of(engine), schedule=schedule)
        for _ in range(5)
    ]
    done = await asyncio.gather(*(scheduler.run_due_jobs() for scheduler in schedulers))
    ran = [name for jobs in done for name in jobs]
    assert sorted(ran) == [
        "expire_memories",
        "fold_state_writes",
        "prune_audit_log",
        "prune_chunks",
        "prune_dead_letters",
        "prune_fact_history",
        "prune_graph_items",
        "prune_runs",
        "prune_snapshots",
        "prune_streams",
        "release_expired_leases",
        "resume_due_waits",
    ]
    assert await schedulers[0].run_due_jobs() == {}
    await database_of(engine).pool.execute(
        "UPDATE maintenance_jobs SET last_run_at = now() - interval '2 hours' WHERE name = 'prune_snapshots'"
    )
    assert list(await schedulers[1].run_due_jobs()) == ["prune_snapshots"]


_COUNT_JOBS = "SELECT count(*) FROM maintenance_jobs WHERE name NOT LIKE 'lease_sweep%'"


async def test_without_pg_cron_the_engine_schedules(engine: Engine) -> None:
    assert maintenance_of(engine).scheduler == "engine"
    for _ in range(1200):
        if (
            await database_of(engine).pool.fetchval(
                "SELECT count(*) FROM maintenance_jobs WHERE name NOT LIKE 'lease_sweep%'"
            )
            == 12
        ):
            break
        await asyncio.sleep(0.05)
    assert (
        await database_of(engine).pool.fetchval(
            "SELECT count(*) FROM maintenance_jobs WHERE name NOT LIKE 'lease_sweep%'"
        )
        == 12
    )


class FlawedDatabase(Database):
    """Raises what no driver raises, as often as it is asked to."""

    flaws = 0

    async def fetch_value(self, query: str, *arguments: Any) -> Any:
        if self.flaws:
            self.flaws -= 1
            raise ValueError("a defect")
        return await super().fetch_value(query, *arguments)


async def test_an_unexpected_exception_does_not_end_housekeeping(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    await maintenance_of(engine).close()
    await database_of(engine).pool.execute("TRUNCATE maintenance_jobs")
    flawed = FlawedDatabase(database_of(engine).pool)
    maintenance = Maintenance(flawed, engine.settings, sweeper=Sweeper(Supervisor()))
    await maintenance.start()
    flawed.flaws = 1  # its first round comes after this
    async with asyncio.timeout(60):
        while await database_of(engine).pool.fetchval("SELECT count(*) FROM maintenance_jobs") < 8:
            await asyncio.sleep(0.05)
    await maintenance.close()
    assert "a defect" in caplog.text


async def test_a_job_that_fails_does_not_keep_the_others_from_running(engine: Engine) -> None:
    await maintenance_of(engine).close()
    await database_of(engine).pool.execute(
        "TRUNCATE maintenance_jobs; DROP FUNCTION release_expired_leases()"
    )  # the first of all jobs
    with pytest.raises(DatabaseError):
        await maintenance_of(engine).run_due_jobs()
    assert await database_of(engine).pool.fetchval("SELECT count(*) FROM maintenance_jobs") >= 7


async def test_health_shows_a_failing_background_task(engine: Engine) -> None:
    transport = httpx.ASGITransport(create_app(engine=engine, agents=[]))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
        health = (await http.get("/health")).json()
        assert health["status"] == "ok"
        assert health["background"] == {"tasks": len(supervisor_of(engine).names), "failing": []}
        await maintenance_of(engine).close()
        await database_of(engine).pool.execute("DROP FUNCTION release_expired_leases(); TRUNCATE maintenance_jobs")
        await maintenance_of(engine).start()
        async with asyncio.timeout(60):
            while not (health := (await http.get("/health")).json())["background"]["failing"]:
                await asyncio.sleep(0.01)
        assert health["status"] == "degraded"
        (failing,) = health["background"]["failing"]
        assert failing["name"] == "maintenance"
        assert "release_expired_leases" in failing["error"]


async def test_every_background_task_of_an_engine_is_supervised(engine: Engine) -> None:
    supervised = set(supervisor_of(engine).names)
    assert supervised >= {
        "feed-events", "feed-streams", "feed-sweep", "maintenance", "memory-episodes", "memory-index",
        "memory-vector-index",
        "notify-listener", "stream-expiry", "stream-flusher", "stream-leases",
    }  # fmt: skip
    # Whatever else runs now belongs to this test, or was started for one request and ends with it.
    own = asyncio.current_task()
    others = {task.get_name() for task in asyncio.all_tasks() if task is not own} - supervised
    assert not {name for name in others if not name.startswith(("Task-", "group-commit"))}


async def test_the_audit_log_is_pruned_by_age_in_batches(engine: Engine) -> None:
    await maintenance_of(engine).close()
    await database_of(engine).pool.execute(
        "INSERT INTO audit_log (app_name, created_at, actor, action) "
        "SELECT 'app', now() - make_interval(days => day), 'a', 'x' || day FROM generate_series(1, 20) AS old (day)"
    )
    age = timedelta(days=10, hours=1)
    assert [await database_of(engine).fetch_value("prune_audit_log", age, 4) for _ in range(4)] == [4, 4, 2, 0]
    assert await database_of(engine).pool.fetchval("SELECT count(*) FROM audit_log") == 10


async def test_rows_of_completed_streams_are_pruned_and_their_messages_stay(engine: Engine) -> None:
    await maintenance_of(engine).close()
    session = await engine.sessions.create("app", "user")
    for name in ("old", "new", "interrupted"):
        async with engine.stream_message(session, message_id=name) as writer:
            await writer.write("hello")
    await database_of(engine).pool.execute(
        "UPDATE message_streams SET ended_at = now() - interval '100 days' WHERE message_id <> 'new';"
        "UPDATE message_streams SET status = 'interrupted' WHERE message_id = 'interrupted'"
    )
    assert await database_of(engine).fetch_value("prune_streams", timedelta(days=90), 100) == 1
    rows = await database_of(engine).pool.fetch("SELECT message_id FROM message_streams ORDER BY message_id")
    assert [row["message_id"] for row in rows] == ["interrupted", "new"]
    assert [message.content for message in await engine.sessions.messages(session)] == ["hello"] * 3


async def test_folded_history_keeps_later_moments_and_earlier_ones_expire(engine: Engine) -> None:
    """The writes of another thread are folded too; states after the fold are exactly those from before it."""
    await maintenance_of(engine).close()
    first = await engine.sessions.create("app", "user")
    other = await engine.sessions.create("app", "user")
    for number in range(1, 7):
        session = (first, other)[number % 2]
        await engine.sessions.refresh(session)
        changes = {"user:n": number, "app:n": number, f"user:k{number}": number}
        await engine.sessions.update(session, changes | ({f"user:k{number - 1}": DELETE} if number == 4 else {}))
    before = {n: (await engine.sessions.at(first, sequence=n)).state for n in range(first.last_sequence + 1)}
    assert before[3] == {"user:n": 6, "app:n": 6} | {f"user:k{n}": n for n in (1, 2, 4, 5, 6)}
    # The writes 1 to 4 are old; the fourth is event 2 of the first thread.
    await database_of(engine).pool.execute(
        "UPDATE state_writes SET created_at = now() - interval '400 days' WHERE version <= 4"
    )
    fold = "fold_state_writes", timedelta(days=365)
    assert await database_of(engine).fetch_value(*fold, 3) == 4  # three writes of each scope became one
    assert await database_of(engine).fetch_value(*fold, 100) == 2
    assert await database_of(engine).fetch_value(*fold, 100) == 0
    assert await database_of(engine).pool.fetchval("SELECT count(*) FROM state_writes") == 6
    assert {n: (await engine.sessions.at(first, sequence=n)).state for n in (2, 3)} == {n: before[n] for n in (2, 3)}
    for sequence in (0, 1):
        with pytest.raises(HistoryExpiredError, match="COGNIZES_STATE_HISTORY_KEPT_DAYS"):
            await engine.sessions.at(first, sequence=sequence)
    new = await engine.sessions.create("app", "user")
    assert (await engine.sessions.at(new, sequence=0)).state == before[3]
    transport = httpx.ASGITransport(create_app(engine=engine, agents=[]))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
        answer = await http.get(f"/api/sessions/{first.thread_id}/state", params={"sequence": 1})
    assert answer.status_code == 410
