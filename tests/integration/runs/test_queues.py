"""Queues: concurrency and rate over all processes, priorities, and claims that stay cheap."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from cognizes.engine import Engine, InvalidInputError, NotFoundError, Run, RunStatus, Session
from cognizes.engine.runs import HandledRun, Worker
from tests.engine_parts import database_of
from tests.integration.runs.conditions import later, table, until_status


async def enqueue(engine: Engine, handler: str = "work", count: int = 1, **more: object) -> list[Run]:
    """Enqueue runs, each in a session of its own: a claim skips threads that another claim has locked."""
    found = []
    for _ in range(count):
        session = await engine.sessions.create("shop", "ada")
        found.append(await engine.runs.enqueue(session, handler, **more))
    return found


async def test_a_queue_never_exceeds_its_concurrency_over_several_processes(database_url: str, engine: Engine) -> None:
    await engine.queues.set("gpu", concurrency=3)
    await enqueue(engine, "train", 10, queue="gpu")
    await enqueue(engine, "infer", 10, queue="gpu")
    async with Engine.open(database_url) as other, Engine.open(database_url) as third:
        engines = (engine, other, third)
        claims = await asyncio.gather(*(each.runs.claim(["train", "infer"], limit=5) for each in engines * 3))
    claimed = [run for claim in claims for run in claim]
    # A claim skips a queue that another claim has locked, so fewer are possible at first, but never more.
    assert 1 <= len(claimed) <= 3
    claimed += await engine.runs.claim(["train", "infer"], limit=20)
    assert len(claimed) == 3
    assert {run.queue for run in claimed} == {"gpu"}
    assert await engine.runs.claim(["train", "infer"], limit=5) == []
    await engine.runs.finish(claimed[0])
    assert len(await engine.runs.claim(["train", "infer"], limit=5)) == 1
    queue = await engine.queues.get("gpu")
    assert (queue.running, queue.pending) == (3, 16)


async def test_a_waiting_run_leaves_its_place_to_another(engine: Engine) -> None:
    await engine.queues.set("work", concurrency=1)
    await enqueue(engine, count=2)
    (first,) = await engine.runs.claim(["work"], limit=5)
    assert await engine.runs.claim(["work"]) == []
    await engine.runs.wait(first, kind="human", correlation_key="k")
    assert len(await engine.runs.claim(["work"], limit=5)) == 1


async def test_a_run_without_a_queue_is_in_that_of_its_handler(engine: Engine) -> None:
    await enqueue(engine, "mail", 3)
    await enqueue(engine, "other", 1, queue="mail")
    await enqueue(engine, "free", 2)
    await engine.queues.set("mail", concurrency=2)
    claimed = await engine.runs.claim(["mail", "other", "free"], limit=10)
    assert sorted(run.handler or "" for run in claimed) == ["free", "free", "mail", "mail"]
    await engine.queues.delete("mail")
    assert len(await engine.runs.claim(["mail", "other", "free"], limit=10)) == 2


async def test_a_rate_limits_claims(engine: Engine) -> None:
    await engine.queues.set("api", rate=3, per=timedelta(hours=1))
    await enqueue(engine, "call", 8, queue="api")
    assert len(await engine.runs.claim(["call"], limit=2)) == 2
    assert len(await engine.runs.claim(["call"], limit=5)) == 1
    assert await engine.runs.claim(["call"], limit=5) == []
    # Twenty minutes later one token is back.
    await database_of(engine).pool.execute("UPDATE run_queues SET refilled_at = refilled_at - interval '20 minutes'")
    assert len(await engine.runs.claim(["call"], limit=5)) == 1
    # A day later the bucket is full, not fuller.
    await database_of(engine).pool.execute("UPDATE run_queues SET refilled_at = refilled_at - interval '1 day'")
    assert len(await engine.runs.claim(["call"], limit=5)) == 3
    # The same limits again give no new tokens; other limits begin with a full bucket.
    await engine.queues.set("api", rate=3, per=timedelta(hours=1))
    assert await engine.runs.claim(["call"], limit=5) == []
    await engine.queues.set("api", rate=1, per=timedelta(hours=1))
    assert len(await engine.runs.claim(["call"], limit=5)) == 1


async def test_a_concurrency_of_zero_stops_a_queue(engine: Engine) -> None:
    await engine.queues.set("work", concurrency=0)
    await enqueue(engine)
    assert await engine.runs.claim(["work"]) == []
    await engine.queues.set("work", concurrency=1)
    assert len(await engine.runs.claim(["work"])) == 1


async def test_higher_priorities_first_then_the_oldest_run_of_all_queues(engine: Engine) -> None:
    order: dict[str, str] = {}
    for name, handler, more in (
        ("old", "a", {}),
        ("in queue", "a", {"queue": "q"}),
        ("of b", "b", {}),
        ("low", "a", {"priority": -5}),
        ("high", "b", {"priority": 7, "queue": "q"}),
        ("higher, not due", "a", {"priority": 9, "available_at": later(hours=1)}),
        ("new", "a", {}),
    ):
        (run,) = await enqueue(engine, handler, **more)
        order[run.id] = name
    claimed = []
    for _ in range(7):
        claimed += [order[run.id] for run in await engine.runs.claim(["a", "b"])]
    assert claimed == ["high", "old", "in queue", "of b", "new", "low"]


async def test_a_full_queue_delays_no_other_one(engine: Engine) -> None:
    await engine.queues.set("slow", concurrency=1)
    await enqueue(engine, "work", 20, queue="slow", priority=100)
    (other,) = await enqueue(engine, "work")
    claimed = await engine.runs.claim(["work"], limit=5)
    assert len(claimed) == 2
    assert other.id in {run.id for run in claimed}


async def test_a_backlog_of_one_queue_leaves_turns_to_another(engine: Engine) -> None:
    """Runs of one priority are claimed by age: a queue that gets new runs all the time does not starve another one."""
    await enqueue(engine, "a", 5, queue="large")
    (small,) = await enqueue(engine, "a", queue="small")
    claimed: list[str] = []
    while small.id not in claimed:
        await enqueue(engine, "a", 2, queue="large")
        claimed += [run.id for run in await engine.runs.claim(["a"])]
        assert len(claimed) <= 6


async def test_claims_read_one_entry_per_group_however_long_the_queues_are(engine: Engine) -> None:
    session = await engine.sessions.create("shop", "ada")
    pool = database_of(engine).pool
    await pool.execute(
        "INSERT INTO runs (thread_id, id, app_name, status, handler, queue, priority, available_at, max_attempts)"
        " SELECT $1::uuid, 'r' || n, 'shop', 'pending', 'work', "
        " CASE n % 3 WHEN 0 THEN '' WHEN 1 THEN 'full' ELSE 'q' END,"
        "        n % 2, CASE WHEN n % 5 = 0 THEN now() + interval '1 day' END, 1 FROM generate_series(1, 20000) n",
        session.thread_id,
    )
    await engine.queues.set("full", concurrency=0)
    async with pool.acquire() as connection, connection.transaction():
        await connection.fetch("SELECT id FROM claim_runs('{work}', '{w}', '1 minute')")
        read = await connection.fetchval(
            "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'runs'"
        )
    assert read < 60, "the claim reads a number of rows that does not depend on the length of the queues"


async def test_a_worker_executes_a_limited_queue_one_after_the_other(engine: Engine) -> None:
    active, most = 0, 0

    async def work(run: HandledRun) -> None:
        nonlocal active, most
        active += 1
        most = max(most, active)
        await asyncio.sleep(0.01)
        active -= 1

    await engine.queues.set("work", concurrency=2)
    runs = await enqueue(engine, count=10)
    async with Worker(engine, {"work": work}, concurrency=10):
        for run in runs:
            await until_status(engine, run, RunStatus.COMPLETED)
    assert most == 2


async def test_scheduled_runs_have_the_queue_and_priority_of_their_schedule(engine: Engine) -> None:
    schedule = await engine.schedules.create(
        timedelta(hours=1), "work", app_name="shop", user_id="ada", queue="night", priority=-3
    )
    await database_of(engine).pool.execute("UPDATE schedules SET next_at = now() WHERE id = $1::uuid", schedule.id)
    await engine.schedules.fire_due()
    (run,) = (await engine.runs.search(handler="work")).items
    assert (run.queue, run.priority) == ("night", -3)


async def test_wrong_limits_change_nothing(engine: Engine, session: Session) -> None:
    for name, limits, text in (
        ("", {"concurrency": 1}, "queue is blank"),
        ("q", {}, "needs a concurrency or a rate"),
        ("q", {"concurrency": -1}, "the concurrency is -1"),
        ("q", {"rate": 0}, "the rate is 0"),
        ("q", {"rate": 1, "per": timedelta(0)}, "the time of the rate"),
        ("q", {"rate": 1, "per": timedelta(days=9999)}, "the time of the rate"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            await engine.queues.set(name, **limits)
    with pytest.raises(NotFoundError, match="no limits are set for a queue 'q'"):
        await engine.queues.delete("q")
    for more, text in (({"priority": 1001}, "the priority is 1001"), ({"queue": " "}, "queue is blank")):
        with pytest.raises(InvalidInputError, match=text):
            await engine.runs.enqueue(session, "work", **more)
    assert await engine.queues.list() == []
    assert await table(engine, "SELECT count(*) FROM runs") == [(0,)]


@pytest.fixture
async def session(engine: Engine) -> Session:
    return await engine.sessions.create("shop", "ada")
