"""Claiming: oldest first, each run once, fenced by its attempt."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from cognizes.engine import ConflictError, Engine, IllegalTransitionError, InvalidInputError, LeaseLostError, RunStatus
from cognizes.engine.memory.working import WorkingMemory
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.pulse.sessions import RunFence, fenced_by
from cognizes.engine.runs import RunMemory
from tests.engine_parts import maintenance_of
from tests.integration.runs.conditions import expire_lease, later, run_events, until_status


async def test_oldest_first_and_each_once(engine: Engine) -> None:
    sessions = [await engine.sessions.create("app", f"user-{number}") for number in range(5)]
    runs = [await engine.runs.enqueue(session, "work", input={"n": n}) for n, session in enumerate(sessions * 4)]
    first = await engine.runs.claim(["work"], limit=3)
    assert [run.input["n"] for run in first] == [0, 1, 2]
    assert {(run.status, run.attempt) for run in first} == {(RunStatus.RUNNING, 1)}
    assert all(run.lease_expires_at is not None for run in first)
    taken: list[str] = []
    while len(taken) < len(runs) - 3:
        # A claim skips a thread that another claim locks, and looks again.
        claims = await asyncio.gather(*(engine.runs.claim(["work"], worker_id=f"w{n}", limit=2) for n in range(4)))
        taken += [run.id for claimed in claims for run in claimed]
    assert sorted(taken) == sorted(run.id for run in runs[3:])
    assert await engine.runs.claim(["work"], limit=10) == []
    assert await run_events(engine, runs[0]) == ["run_created", "run_started"]


async def test_a_claim_takes_due_runs_of_its_handlers(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    by_hand = await engine.runs.create(session)
    for handler in ("a", "b", "c"):
        await engine.runs.enqueue(session, handler, run_id=handler)
    await engine.runs.enqueue(session, "a", run_id="tomorrow", available_at=later(days=1))
    claimed = await engine.runs.claim(["c", "a", "unknown"], limit=10)
    assert [run.id for run in claimed] == ["a", "c"]
    assert (await engine.runs.get(session.thread_id, by_hand.id)).status == "pending"
    with pytest.raises(ConflictError):
        await engine.runs.claim_one(session.thread_id, "a")
    assert (await engine.runs.claim_one(session.thread_id, "tomorrow")).attempt == 1
    with pytest.raises(ConflictError):
        await engine.runs.enqueue(session, "a", run_id="a")
    with pytest.raises(InvalidInputError):
        await engine.runs.enqueue(session, "a", max_attempts=0)


async def test_a_waiting_run_is_never_claimed(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    await engine.runs.enqueue(session, "work")
    (run,) = await engine.runs.claim(["work"])
    waiting = await engine.runs.wait(run, kind="human", correlation_key="k", reason="why\x00", cursor_node="next")
    assert waiting.status == "waiting"
    assert waiting.lease_expires_at is None
    assert waiting.wait is not None
    assert (waiting.wait.kind, waiting.wait.correlation_key, waiting.wait.reason) == ("human", "k", "why\x00")
    await engine.runs.expire()
    assert await engine.runs.claim(["work"]) == []
    assert await run_events(engine, run) == ["run_created", "run_started", "run_waiting"]


async def test_a_heartbeat_extends_a_lease_and_reports_a_lost_one(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    for run_id in ("kept", "lost"):
        await engine.runs.enqueue(session, "work", run_id=run_id)
    kept, lost = await engine.runs.claim(["work"], limit=2)
    await expire_lease(engine, lost)
    assert [run.id for run in await engine.runs.heartbeat([kept, lost])] == ["kept", "lost"]
    await expire_lease(engine, lost)
    await engine.runs.expire()
    assert [run.id for run in await engine.runs.heartbeat([kept, lost])] == ["kept"]
    (again,) = await engine.runs.claim(["work"])
    assert (again.id, again.attempt) == ("lost", 2)
    assert await run_events(engine, lost) == ["run_created", "run_started", "run_released", "run_resumed"]


async def test_a_lost_lease_cannot_write(engine: Engine) -> None:
    """Every kind of write, by an attempt that was overtaken: refused, and nothing is stored."""
    session = await engine.sessions.create("app", "user", state={"n": 1, "user:n": 1, "app:n": 1})
    await engine.runs.enqueue(session, "work")
    (old,) = await engine.runs.claim(["work"])
    await expire_lease(engine, old)
    await engine.runs.expire()
    (new,) = await engine.runs.claim(["work"])
    before = await engine.sessions.events(session)
    memory = RunMemory(engine.memory, session)
    await memory.write_scratchpad("mine")
    snapshot = replace(await memory.snapshot(), working_memory=WorkingMemory("app", session.id, variables={"n": 9}))
    fence = RunFence(thread_uuid(old.thread_id), old.id, old.attempt)
    with fenced_by(fence):
        for write in (
            lambda: engine.sessions.append(session, author="a", kind="assistant_message", text="late"),
            lambda: engine.sessions.update(session, {"n": 2}),
            lambda: engine.sessions.update(session, lambda state: {"user:n": state["user:n"] + 1, "app:n": 2}),
            lambda: engine.runs.think(old.thread_id, old.id, "late"),
            lambda: engine.runs.call_tool(old.thread_id, old.id, "tool", {}),
            lambda: engine.runs.finish(old.thread_id, old.id),
            lambda: engine.runs.fail(old.thread_id, old.id, error="late"),
            lambda: engine.runs.finish(old, result="late"),
            lambda: engine.runs.fail(old, error="late"),
            lambda: engine.runs.release(old, cause="late"),
            lambda: engine.runs.wait(old, kind="human", correlation_key="late"),
            lambda: memory.write_scratchpad("late"),
            lambda: engine.memory.snapshots.apply(session, snapshot, run_id=old.id),
        ):
            with pytest.raises(LeaseLostError):
                await write()
        # Other threads are none of its business.
        other = await engine.sessions.create("app", "other")
        await engine.sessions.append(other, author="a", kind="note")
    assert await engine.sessions.events(session) == before
    assert (await engine.sessions.store.get_thread(session.thread_id)).state == session.state
    assert (await memory.snapshot()).working_memory.scratchpad == "mine"
    assert (await engine.runs.finish(new, result={"answer": 42})).result == {"answer": 42}


async def test_a_lost_lease_completes_no_message(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    await engine.runs.enqueue(session, "work")
    (run,) = await engine.runs.claim(["work"])
    fence = RunFence(thread_uuid(run.thread_id), run.id, run.attempt)
    with fenced_by(fence):
        async with engine.stream_message(session, run_id=run.id) as message:
            await message.write("in time")
        with pytest.raises(LeaseLostError):
            async with engine.stream_message(session, run_id=run.id) as message:
                await message.write("too late")
                await engine.runs.cancel(run.thread_id, run.id)
    whole = [
        event.content for event in await engine.sessions.events(session) if event.event_type == "assistant_message"
    ]
    assert [content["text"] for content in whole if not content.get("interrupted")] == ["in time"]


async def test_fenced_and_unfenced_appends_share_a_batch_in_order(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    other = await engine.sessions.create("app", "other")
    await engine.runs.enqueue(session, "work")
    (run,) = await engine.runs.claim(["work"])
    fence = RunFence(thread_uuid(run.thread_id), run.id, run.attempt)
    stale = RunFence(thread_uuid(run.thread_id), run.id, run.attempt - 1)

    async def append(number: int) -> None:
        free = engine.sessions.append(other, author="a", kind="note", content={"n": number})
        if number % 3 == 0:
            await free
            return
        free.close()
        with fenced_by(fence if number % 3 == 1 else stale):
            await engine.sessions.append(session, author="a", kind="note", content={"n": number})

    outcomes = await asyncio.gather(*(append(number) for number in range(60)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [
        LeaseLostError if number % 3 == 2 else type(None) for number in range(60)
    ]
    notes = [event.content["n"] for event in await engine.sessions.events(session) if event.event_type == "note"]
    assert notes == [number for number in range(60) if number % 3 == 1]
    notes = [event.content["n"] for event in await engine.sessions.events(other)]
    assert notes == [number for number in range(60) if number % 3 == 0]


async def test_too_many_lost_leases_fail_the_run(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    await engine.runs.enqueue(session, "work", max_attempts=2)
    for _ in range(2):
        (run,) = await engine.runs.claim(["work"])
        await expire_lease(engine, run)
        await engine.runs.expire()
    failed = await engine.runs.get(run.thread_id, run.id)
    assert (failed.status, failed.error) == ("failed", "the lease of its worker ran out")
    assert await engine.runs.claim(["work"]) == []
    again = await engine.runs.retry(run.thread_id, run.id)
    assert (again.status, again.failures, again.error) == ("pending", 0, None)
    with pytest.raises(IllegalTransitionError):
        await engine.runs.retry(run.thread_id, run.id)


async def test_backoff_doubles(database_url: str) -> None:
    async with Engine.open(database_url, run_lease_seconds=600, run_backoff_seconds=100) as engine:
        await maintenance_of(engine).close()
        session = await engine.sessions.create("app", "user")
        run = await engine.runs.enqueue(session, "work", max_attempts=3)
        pauses: list[timedelta] = []
        for _ in range(2):
            claimed = await engine.runs.claim_one(run.thread_id, run.id)
            assert claimed == await engine.runs.get(run.thread_id, run.id)
            assert await engine.runs.release(claimed, cause="broken") == RunStatus.PENDING
            released = await engine.runs.get(run.thread_id, run.id)
            event = (await engine.sessions.events(session))[-1]
            assert event.created_at is not None
            assert released.available_at is not None
            pauses.append(released.available_at - event.created_at)
            assert await engine.runs.claim(["work"]) == []
        # Measured to the event a moment later, so never more.
        assert pauses[0] <= timedelta(seconds=100) < pauses[1] <= timedelta(seconds=200)
        await engine.runs.claim_one(run.thread_id, run.id)
        assert await engine.runs.release(await engine.runs.get(run.thread_id, run.id), cause="x\x00") == "failed"
        assert (await until_status(engine, run, RunStatus.FAILED)).error == "x\x00"


async def test_a_release_counts_no_failure(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    run = await engine.runs.enqueue(session, "work", max_attempts=1)
    for attempt in (1, 2, 3):
        (claimed,) = await engine.runs.claim(["work"])
        assert claimed.attempt == attempt
        assert await engine.runs.release(claimed) == RunStatus.PENDING
    assert (await engine.runs.get(run.thread_id, run.id)).failures == 0
