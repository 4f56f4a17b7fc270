"""The lifecycle of runs: transitions, leases, one end, and an event for each change in the same transaction."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from cognizes.engine import (
    ConflictError,
    DatabaseError,
    Engine,
    IllegalTransitionError,
    NotFoundError,
    Run,
    RunStatus,
    Session,
)
from cognizes.engine.runs import CLIENT_LEASE
from tests.engine_parts import database_of, listener_of, maintenance_of
from tests.integration.runs.conditions import expire_lease, until, until_status

ALLOWED = {
    ("pending", "running"), ("pending", "failed"), ("pending", "cancelled"),
    ("running", "waiting"), ("running", "completed"), ("running", "failed"), ("running", "cancelled"),
    ("running", "pending"),
    ("failed", "pending"),
    ("waiting", "pending"), ("waiting", "running"), ("waiting", "failed"), ("waiting", "cancelled"),
    ("waiting", "completed"),
}  # fmt: skip


async def test_the_whole_transition_table(engine: Engine) -> None:
    for before, after in product(RunStatus, RunStatus):
        allowed = await database_of(engine).pool.fetchval("SELECT run_transition_allowed($1, $2)", before, after)
        assert allowed == ((before, after) in ALLOWED), (before, after)


async def test_a_run_from_start_to_end(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    async with engine.runs.start(session, run_id="r") as run:
        assert (await engine.runs.get(session.thread_id, "r")).status == "running"
        await run.think("first")
        call = await run.call_tool("search", {"q": "x"})
        pending = (await engine.runs.get(session.thread_id, "r")).tool_calls[0]
        assert "output" not in pending
        await run.finish_tool(call, {"hits": 0}, is_error=True)
    done = await engine.runs.get(session.thread_id, "r")
    assert (done.status, done.error) == ("completed", None)
    assert [step["thought"] for step in done.thinking_steps] == ["first"]
    assert (done.tool_calls[0]["output"], done.tool_calls[0]["is_error"]) == ({"hits": 0}, True)
    assert done.started_at is not None
    assert done.completed_at is not None
    assert done.started_at <= done.completed_at
    events = await engine.sessions.events(session)
    assert [event.event_type for event in events] == ["run_started", "thought", "act", "observe", "run_finished"]
    assert {event.run_id for event in events} == {"r"}


async def test_an_exception_fails_the_run_and_a_cancellation_cancels_it(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    with pytest.raises(ValueError, match="boom"):
        async with engine.runs.start(session, run_id="broken"):
            raise ValueError("boom\x00")

    async def hang() -> None:
        async with engine.runs.start(session, run_id="hung"):
            await asyncio.Event().wait()

    task = asyncio.create_task(hang())
    while not await engine.runs.list(session.thread_id) or len(await engine.runs.list(session.thread_id)) < 2:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    broken = await engine.runs.get(session.thread_id, "broken")
    assert (broken.status, broken.error) == ("failed", "ValueError: boom\x00")
    assert (await engine.runs.get(session.thread_id, "hung")).status == "cancelled"


@pytest.mark.parametrize("moment", range(1, 5))
async def test_a_run_that_is_cancelled_while_it_begins_does_not_stay_running(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    session = await engine.sessions.create("app", "user")
    answers = 0

    def watched(name: str) -> None:
        ask = getattr(database_of(engine), name)

        async def asked(query: str, *arguments: Any) -> Any:
            nonlocal answers
            answer = await ask(query, *arguments)
            answers += 1
            if answers == moment:
                task.cancel()
            return answer

        monkeypatch.setattr(database_of(engine), name, asked)

    async def hang() -> None:
        async with engine.runs.start(session, run_id="hung"):
            await asyncio.Event().wait()

    for name in ("fetch", "fetch_row", "fetch_value"):
        watched(name)
    task = asyncio.create_task(hang())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert answers >= moment
    assert (await engine.runs.get(session.thread_id, "hung")).status == "cancelled"
    assert not engine.runs.leases.held


async def test_an_illegal_transition_changes_nothing(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    run = await engine.runs.create(session)
    with pytest.raises(IllegalTransitionError, match=r"pending.*completed"):
        await engine.runs.finish(session.thread_id, run.id)
    with pytest.raises(IllegalTransitionError):
        await engine.runs.think(session.thread_id, run.id, "too early")
    assert (await engine.runs.get(session.thread_id, run.id)).status == "pending"
    assert [event.event_type for event in await engine.sessions.events(session)] == ["run_created"]
    with pytest.raises(ConflictError):
        await engine.runs.create(session, run_id=run.id)
    with pytest.raises(NotFoundError):
        await engine.runs.finish(session.thread_id, "unknown")
    with pytest.raises(NotFoundError):
        await engine.runs.get("not-a-uuid", "unknown")


async def test_of_two_concurrent_ends_one_succeeds(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    run = await engine.runs.create(session, running=True)
    outcomes = await asyncio.gather(
        engine.runs.finish(session.thread_id, run.id),
        engine.runs.cancel(session.thread_id, run.id),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["IllegalTransitionError", "Run"]
    assert len(await engine.sessions.events(session)) == 2


async def test_a_run_that_a_caller_executes_has_a_lease_and_an_attempt(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    created = await engine.runs.create(session, run_id="created", running=True)
    pending = await engine.runs.create(session, run_id="begun")
    assert (pending.attempt, pending.lease_expires_at, pending.worker_id) == (0, None, None)
    begun = await engine.runs.begin(session.thread_id, "begun", lease=timedelta(minutes=5))
    for run, lease in ((created, CLIENT_LEASE), (begun, timedelta(minutes=5))):
        assert run.attempt == 1
        assert run.lease_expires_at is not None
        assert timedelta(0) < datetime.now(UTC) + lease - run.lease_expires_at < timedelta(minutes=1)
    (held,) = await engine.runs.heartbeat([begun], lease=timedelta(minutes=9))
    assert held == begun
    extended = (await engine.runs.get(session.thread_id, "begun")).lease_expires_at
    assert extended is not None
    assert begun.lease_expires_at is not None
    assert timedelta(minutes=3) < extended - begun.lease_expires_at < timedelta(minutes=5)
    assert await engine.runs.heartbeat([replace(begun, attempt=2)]) == []
    for run in (created, begun):
        await expire_lease(engine, run)
    await engine.runs.think(session.thread_id, "begun", "still here")
    assert await engine.runs.expire() == 1
    failed, revived = (
        await engine.runs.get(session.thread_id, "created"),
        await engine.runs.get(begun.thread_id, "begun"),
    )
    assert (failed.status, failed.error) == ("failed", "the process that executed the run went away")
    assert revived.status == "running"
    assert revived.lease_expires_at is not None
    assert revived.lease_expires_at > datetime.now(UTC) + timedelta(minutes=8)


async def test_every_run_ends_in_one_function(engine: Engine) -> None:
    """Without `end_runs` no part of the engine ends a run."""
    session = await engine.sessions.create("app", "user")
    thread_id = session.thread_id

    async def new(run_id: str, handler: str = "work", max_attempts: int = 1) -> Run:
        await engine.runs.enqueue(session, handler, run_id=run_id, max_attempts=max_attempts)
        return await engine.runs.claim_one(thread_id, run_id)

    claimed = {name: await new(name) for name in ("complete", "abandon", "finish", "fail", "cancel", "release")}
    dead, homeless = await new("dead"), await engine.runs.begin_leased(session, run_id="homeless")
    waiting = await engine.runs.wait(
        await new("waiting"), kind="human", correlation_key="k", expires_at=datetime.now(UTC)
    )
    before = {run.id: run.status for run in await engine.runs.list(thread_id)}
    events = len(await engine.sessions.events(session))
    await database_of(engine).pool.execute("DROP FUNCTION end_runs")
    for end in (
        lambda: engine.runs.finish(claimed["complete"]),
        lambda: engine.runs.fail(claimed["abandon"], error="x"),
        lambda: engine.runs.finish(thread_id, "finish"),
        lambda: engine.runs.fail(thread_id, "fail", error="x"),
        lambda: engine.runs.cancel(thread_id, "cancel"),
        lambda: engine.runs.release(claimed["release"], cause="x"),
        engine.runs.expire,
    ):
        with pytest.raises(DatabaseError, match="end_runs"):
            await end()
    for run in (dead, homeless):
        await expire_lease(engine, run)
        with pytest.raises(DatabaseError, match="end_runs"):
            await database_of(engine).fetch_value("release_expired_leases")
        await engine.runs.heartbeat([run], lease=timedelta(hours=1))
    assert waiting.status == RunStatus.WAITING
    assert {run.id: run.status for run in await engine.runs.list(thread_id)} == before
    assert len(await engine.sessions.events(session)) == events


@pytest.mark.parametrize("kind", ["signal", "message"])
async def test_a_waiting_run_sends_no_query_for_events_of_other_threads(
    database_url: str, engine: Engine, kind: str
) -> None:
    sent: list[str] = []
    received = asyncio.Event()
    async with Engine.open(database_url, pool_size=2, run_lease_seconds=600) as waiting:
        await maintenance_of(waiting).close()
        session = await waiting.sessions.create("app", "user")
        block = asyncio.create_task(_wait(waiting, session, kind))
        await until_status(waiting, await _created(waiting, session), RunStatus.WAITING)
        async with database_of(waiting).connection() as first, database_of(waiting).connection() as second:
            for connection in (first, second):
                connection.add_query_logger(lambda record: sent.append(record.query))
        other = await engine.sessions.create("app", "other")
        listener_of(waiting).tap("event_stream", lambda text: received.set() if "run_cancelled" in text else None)
        sent.clear()
        begun = time.monotonic()
        for number in range(30):
            await engine.sessions.append(other, author="user", kind="user_message", text=str(number))
        run = await engine.runs.enqueue(other, "work")
        await engine.runs.cancel(run.thread_id, run.id)
        await asyncio.wait_for(received.wait(), 30)
        await asyncio.sleep(0.1)
        # Once per second: the sweep of the process, and one query for the status of all its waiting runs.
        rounds = time.monotonic() - begun + 1
        assert len(sent) <= 2 * rounds, sent
        if kind == "message":
            await engine.sessions.append(session, author="user", kind="user_message", text="mine")
        else:
            await engine.runs.signal("waits", correlation_key="k", thread_id=session.thread_id)
        await asyncio.wait_for(block, 30)


async def _wait(engine: Engine, session: Session, kind: str) -> None:
    async with engine.runs.start(session, run_id="waits") as run:
        await run.wait(kind=kind, correlation_key="k")


async def _created(engine: Engine, session: Session) -> Run:
    async def found() -> list[Run]:
        return await engine.runs.list(session.thread_id)

    return (await until(found))[0]
