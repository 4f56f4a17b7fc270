"""Runs: the status machine, and an event for every change in the same transaction."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest

from cognizes.engine import ConflictError, Engine, IllegalTransitionError, NotFoundError, RunStatus

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
        allowed = await engine.database.pool.fetchval("SELECT run_transition_allowed($1, $2)", before, after)
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
        ask = getattr(engine.database, name)

        async def asked(query: str, *arguments: Any) -> Any:
            nonlocal answers
            answer = await ask(query, *arguments)
            answers += 1
            if answers == moment:
                task.cancel()
            return answer

        monkeypatch.setattr(engine.database, name, asked)

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


async def test_an_illegal_move_changes_nothing(engine: Engine) -> None:
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
        await engine.runs.finish(session.thread_id, "nobody")
    with pytest.raises(NotFoundError):
        await engine.runs.get("not-a-uuid", "nobody")


async def test_of_two_who_end_a_run_one_does(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    run = await engine.runs.create(session, running=True)
    outcomes = await asyncio.gather(
        engine.runs.finish(session.thread_id, run.id),
        engine.runs.cancel(session.thread_id, run.id),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["IllegalTransitionError", "Run"]
    assert len(await engine.sessions.events(session)) == 2
