"""RunBatcher: ends and claims share commits, and no item delays or fails another."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from cognizes.engine import Engine, LeaseLostError, NotFoundError, Run, RunStatus
from cognizes.engine.runs.batcher import RunClaim, assign_in_turn
from tests.engine_parts import database_of
from tests.integration.runs.conditions import expire_lease, later, run_events, table, until, until_status


async def claimed(engine: Engine, count: int) -> list[Run]:
    """Return claimed runs of `count` threads."""
    for number in range(count):
        session = await engine.sessions.create("app", f"user-{number}")
        await engine.runs.enqueue(session, "work", run_id=f"run-{number}")
    runs = await engine.runs.claim(["work"], limit=count)
    assert len(runs) == count
    return runs


async def test_concurrent_ends_share_a_commit(engine: Engine) -> None:
    runs = await claimed(engine, 20)
    done = await asyncio.gather(*(engine.runs.finish(run, result={"n": run.id}) for run in runs))
    assert [(run.id, run.status, run.result) for run in done] == [
        (run.id, RunStatus.COMPLETED, {"n": run.id}) for run in runs
    ]
    commits = "SELECT count(DISTINCT xmin::text) FROM events WHERE event_type = $1"
    ((ended,),) = await table(engine, commits, "run_finished")
    assert ended == 1
    assert [await run_events(engine, run) for run in runs] == [["run_created", "run_started", "run_finished"]] * 20


async def test_an_end_that_fails_does_not_fail_the_others(engine: Engine) -> None:
    lost, good, gone, bad = await claimed(engine, 4)
    await expire_lease(engine, lost)
    await engine.runs.expire()
    (again,) = await engine.runs.claim(["work"])
    await engine.sessions.delete(await engine.sessions.store.get_thread(gone.thread_id))
    outcomes = await asyncio.gather(
        engine.runs.finish(lost, result="late"),
        engine.runs.finish(good, result="in time"),
        engine.runs.finish(gone),
        engine.runs.fail(bad, error="broken \x00"),
        engine.runs.finish(again, result="once"),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [LeaseLostError, Run, NotFoundError, Run, Run]
    kept = [await engine.runs.get(run.thread_id, run.id) for run in (lost, good, bad)]
    assert [(run.status, run.result, run.error) for run in kept] == [
        ("completed", "once", None),
        ("completed", "in time", None),
        ("failed", None, "broken \x00"),
    ]
    assert (await run_events(engine, lost)).count("run_finished") == 1


async def test_the_same_end_twice_counts_once(engine: Engine) -> None:
    (run,) = await claimed(engine, 1)
    ends = [engine.runs.finish(run, result=number, event_id=f"end-{number}") for number in range(5)]
    outcomes = await asyncio.gather(*ends, return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["LeaseLostError"] * 4 + ["Run"]
    resent = await engine.runs.finish(run, result=0, event_id="end-0")
    assert (resent.result, (await run_events(engine, run)).count("run_finished")) == (0, 1)


async def test_a_locked_thread_delays_only_its_own_end(engine: Engine) -> None:
    held, free = await claimed(engine, 2)
    async with database_of(engine).connection() as other, other.transaction():
        await other.execute("SELECT FROM threads WHERE id = $1::uuid FOR NO KEY UPDATE", held.thread_id)
        waiting = asyncio.create_task(engine.runs.finish(held))
        assert (await engine.runs.finish(free)).status == RunStatus.COMPLETED
        assert not waiting.done()
    assert (await waiting).status == RunStatus.COMPLETED


async def test_runs_of_a_cancelled_claim_are_released(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    run = await engine.runs.enqueue(session, "work", max_attempts=1)
    async with database_of(engine).connection() as other, other.transaction():
        await other.execute("LOCK TABLE run_signals, runs IN ACCESS EXCLUSIVE MODE")
        leaving = asyncio.create_task(engine.runs.claim(["work"]))
        waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%.claim_runs(%'"
        await until(lambda: table(engine, waits))
        leaving.cancel()
        await asyncio.wait([leaving])
        assert leaving.cancelled()

    async def is_released() -> bool:
        return (await run_events(engine, run))[-1] == "run_released"

    await until(is_released)
    (again,) = await engine.runs.claim(["work"])
    assert (again.id, again.attempt, again.failures) == (run.id, 2, 0)


async def test_a_claim_does_not_read_runs_that_are_due_later(engine: Engine) -> None:
    """Counted by the index entries that a claim reads."""
    session = await engine.sessions.create("app", "user")
    due = await engine.runs.enqueue(session, "work")
    await database_of(engine).pool.execute(
        "INSERT INTO runs (thread_id, id, app_name, handler, created_at, available_at) "
        "SELECT $1::uuid, 'later-' || n, 'app', 'work', now() - interval '1 day', now() + interval '1 day' "
        "FROM generate_series(1, 500) n",
        session.thread_id,
    )
    read = "SELECT pg_stat_get_xact_tuples_returned('idx_runs_claim'::regclass)"
    async with database_of(engine).connection() as connection, connection.transaction():
        found = await connection.fetch(
            "SELECT id FROM claim_runs(ARRAY['work', 'idle'], ARRAY['w', 'w', 'w'], $1)", timedelta(minutes=1)
        )
        assert [row["id"] for row in found] == [due.id]
        assert 0 < await connection.fetchval(read) < 10


async def test_runs_are_claimed_in_the_order_in_which_they_became_due(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    for run_id, minutes in (("old", None), ("was scheduled", -5), ("tomorrow", 24 * 60), ("new", None)):
        at = later(minutes=minutes) if minutes is not None else None
        await engine.runs.enqueue(session, "work", run_id=run_id, available_at=at)
    await database_of(engine).pool.execute("UPDATE runs SET created_at = now() - interval '9 minutes' WHERE id = 'old'")
    await database_of(engine).pool.execute(
        "UPDATE runs SET created_at = now() - interval '9 days' WHERE id IN ('was scheduled', 'tomorrow')"
    )
    assert [run.id for run in await engine.runs.claim(["work"], limit=9)] == ["old", "was scheduled", "new"]
    tomorrow = await engine.runs.get(session.thread_id, "tomorrow")
    assert (await until_status(engine, tomorrow, RunStatus.PENDING)).attempt == 0


def test_claims_of_one_batch_get_runs_in_turn() -> None:
    many, one = RunClaim(("work",), "many", 3), RunClaim(("work",), "one", 1)
    assert [item.worker_id for item in assign_in_turn([many, one])] == ["many", "one", "many", "many"]
    assert assign_in_turn([]) == []
