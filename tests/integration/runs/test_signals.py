"""Signals: the right key, once, also too early; timers, messages and waits that take too long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cognizes.engine import ConflictError, Engine, InvalidInputError, NotFoundError, Run, RunStatus
from cognizes.engine.errors import PermissionDeniedError
from cognizes.engine.runs import HandledRun, SignalOutcome, WaitKind, Worker
from cognizes.engine.runs.waits import read_resumption
from tests.engine_parts import database_of
from tests.integration.runs.conditions import later, run_events, table, until_status

CONTEXT: dict[str, Any] = {"payload_results": {"plan": [1, {"b": 1, "a": "\x00"}]}, "plan_decision_id": "d-7"}


async def waiting_run(engine: Engine, **wait: Any) -> Run:
    session = await engine.sessions.create("app", "user")
    await engine.runs.enqueue(session, "work")
    (run,) = await engine.runs.claim(["work"])
    return await engine.runs.wait(run, **{"kind": "human", "correlation_key": "k", "cursor_node": "next", **wait})


async def resumption(engine: Engine, run: Run) -> Any:
    (claimed,) = await engine.runs.claim(["work"])
    assert claimed.id == run.id
    return await read_resumption(database_of(engine), claimed)


async def past(engine: Engine, run: Run) -> None:
    await database_of(engine).pool.execute(
        "UPDATE runs SET wait_expires_at = now() - interval '1 s' WHERE id = $1", run.id
    )


async def test_the_right_key_resumes(engine: Engine) -> None:
    run = await waiting_run(engine, **CONTEXT)
    payload = {"ok": True, "text": "\x00\ud800", "z": 1, "a": float("inf")}
    assert await engine.runs.signal(run.id, correlation_key="k", payload=payload) == SignalOutcome.RESUMED
    resumed = await resumption(engine, run)
    assert (resumed.payload, resumed.cursor_node, resumed.plan_decision_id) == (payload, "next", "d-7")
    assert resumed.payload_results == {**CONTEXT["payload_results"], "k": payload}
    assert not resumed.timed_out
    assert await run_events(engine, run) == [
        "run_created", "run_started", "run_waiting", "run_signalled", "run_resumed",
    ]  # fmt: skip


async def test_a_wrong_key_changes_nothing(engine: Engine) -> None:
    run = await waiting_run(engine)
    before = await run_events(engine, run)
    with pytest.raises(ConflictError, match="does not wait for wrong"):
        await engine.runs.signal(run.id, correlation_key="wrong", payload=1)
    assert await engine.runs.get(run.thread_id, run.id) == run
    assert await run_events(engine, run) == before
    assert await table(engine, "SELECT * FROM run_signals") == []
    with pytest.raises(NotFoundError):
        await engine.runs.signal("unknown", correlation_key="k")


async def test_the_same_signal_twice_counts_once(engine: Engine) -> None:
    run = await waiting_run(engine)
    outcomes = await asyncio.gather(
        *(engine.runs.signal(run.id, correlation_key="k", payload=number) for number in range(6))
    )
    assert sorted(outcomes) == ["duplicate"] * 5 + ["resumed"]
    first = outcomes.index(SignalOutcome.RESUMED)
    assert (await resumption(engine, run)).payload == first
    assert await engine.runs.signal(run.id, correlation_key="k", payload="later") == SignalOutcome.DUPLICATE
    claimed = await engine.runs.get(run.thread_id, run.id)
    await engine.runs.wait(claimed, kind="human", correlation_key="k2", cursor_node="last")
    assert await engine.runs.signal(run.id, correlation_key="k", payload="again") == SignalOutcome.DUPLICATE
    assert (await engine.runs.get(run.thread_id, run.id)).status == "waiting"
    await engine.runs.signal(run.id, correlation_key="k2")
    assert (await resumption(engine, run)).payload_results == {"k": first, "k2": None}
    await engine.runs.finish(await engine.runs.get(run.thread_id, run.id))
    assert await engine.runs.signal(run.id, correlation_key="k") == SignalOutcome.DUPLICATE
    with pytest.raises(ConflictError, match="completed"):
        await engine.runs.signal(run.id, correlation_key="new")


@pytest.mark.parametrize("claimed_before", [True, False])
async def test_a_signal_before_the_wait_is_kept_and_used(engine: Engine, claimed_before: bool) -> None:
    session = await engine.sessions.create("app", "user")
    run = await engine.runs.enqueue(session, "work")
    claims = await engine.runs.claim(["work"]) if claimed_before else []
    assert await engine.runs.signal(run.id, correlation_key="k", payload=1) == SignalOutcome.KEPT
    assert await engine.runs.signal(run.id, correlation_key="k", payload=2) == SignalOutcome.DUPLICATE
    (claimed,) = claims or await engine.runs.claim(["work"])
    waited = await engine.runs.wait(claimed, kind="webhook", correlation_key="k", cursor_node="next")
    assert waited.status == "pending"
    assert (await resumption(engine, run)).payload == 1
    assert await engine.runs.signal(run.id, correlation_key="k", payload=3) == SignalOutcome.DUPLICATE
    again = await engine.runs.get(run.thread_id, run.id)
    with pytest.raises(ConflictError, match="a key of its own"):
        await engine.runs.wait(again, kind="webhook", correlation_key="k", cursor_node="next")


async def test_a_sender_with_more_rights_replaces_a_kept_signal(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    run = await engine.runs.enqueue(session, "work")
    human = [WaitKind.HUMAN]
    assert await engine.runs.signal(run.id, correlation_key="k", payload=1, may_answer=human) == SignalOutcome.KEPT
    assert await engine.runs.signal(run.id, correlation_key="k", payload=2, may_answer=human) == SignalOutcome.DUPLICATE
    assert await engine.runs.signal(run.id, correlation_key="k", payload=3) == SignalOutcome.KEPT
    assert await engine.runs.signal(run.id, correlation_key="k", payload=4, may_answer=human) == SignalOutcome.DUPLICATE
    (claimed,) = await engine.runs.claim(["work"])
    waited = await engine.runs.wait(claimed, kind="webhook", correlation_key="k", cursor_node="next")
    assert waited.status == "pending"
    assert (await resumption(engine, run)).payload == 3


async def test_a_handler_does_not_take_a_signal_that_its_wait_may_not_use(engine: Engine) -> None:
    async def pay(run: HandledRun) -> Any:
        return await run.wait(kind="webhook", correlation_key="paid")

    session = await engine.sessions.create("app", "user")
    run = await engine.runs.enqueue(session, "pay")
    await engine.runs.signal(run.id, correlation_key="paid", payload="forged", may_answer=[WaitKind.HUMAN])
    async with Worker(engine, {"pay": pay}):
        await until_status(engine, run, RunStatus.WAITING)
        with pytest.raises(PermissionDeniedError, match="waits for a webhook"):
            await engine.runs.signal(run.id, correlation_key="paid", payload="forged", may_answer=[WaitKind.HUMAN])
        await engine.runs.signal(run.id, correlation_key="paid", payload="true")
        done = await until_status(engine, run, RunStatus.COMPLETED)
    assert done.result == "true"


async def test_a_timer_fires_by_itself(engine: Engine) -> None:
    run = await waiting_run(engine, kind="timer", expires_at=later(hours=1))
    await engine.runs.expire()
    assert (await engine.runs.get(run.thread_id, run.id)).status == "waiting"
    await past(engine, run)
    await engine.runs.expire()
    resumed = await resumption(engine, run)
    assert (resumed.payload, resumed.timed_out, resumed.cursor_node) == (None, False, "next")


async def test_a_wait_that_took_too_long_fails_or_takes_its_branch(engine: Engine) -> None:
    failing = await waiting_run(engine, expires_at=later(hours=1))
    branching = await waiting_run(engine, expires_at=later(hours=1), timeout_node="timed_out_node", **CONTEXT)
    await past(engine, failing)
    await past(engine, branching)
    with pytest.raises(ConflictError, match="too late"):
        await engine.runs.signal(failing.id, correlation_key="k")
    await engine.runs.expire()
    failed = await engine.runs.get(failing.thread_id, failing.id)
    assert (failed.status, failed.error) == ("failed", "no answer to k arrived in time")
    resumed = await resumption(engine, branching)
    assert (resumed.timed_out, resumed.cursor_node) == (True, "timed_out_node")
    assert resumed.payload_results == CONTEXT["payload_results"]
    with pytest.raises(ConflictError, match="too late"):
        await engine.runs.signal(branching.id, correlation_key="k")


async def test_a_message_of_the_user_ends_a_wait_for_one(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    await engine.sessions.append(session, author="user", kind="user_message", text="before the run")
    await engine.runs.enqueue(session, "work")
    (run,) = await engine.runs.claim(["work"])
    await engine.sessions.append(session, author="user", kind="user_message", text="before the question")
    await engine.sessions.append(session, author="agent", kind="assistant_message", text="which?", run_id=run.id)
    await engine.runs.wait(run, kind="message", correlation_key="m1", cursor_node="next")
    await engine.sessions.append(session, author="agent", kind="assistant_message", text="not the user")
    await engine.runs.expire()
    assert (await engine.runs.get(run.thread_id, run.id)).status == "waiting"
    await engine.sessions.append(session, author="user", kind="user_message", text="blue\x00")
    await engine.sessions.append(session, author="user", kind="user_message", text="or green")
    await engine.runs.expire()
    assert (await resumption(engine, run)).payload["text"] == "blue\x00"
    claimed = await engine.runs.get(run.thread_id, run.id)
    await engine.runs.wait(claimed, kind="message", correlation_key="m2", cursor_node="next")
    await engine.runs.expire()
    assert (await resumption(engine, run)).payload["text"] == "or green"


async def test_invalid_waits_are_refused(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    await engine.runs.enqueue(session, "work")
    (run,) = await engine.runs.claim(["work"])
    for wait in (
        {"kind": "miracle"},
        {"kind": "timer"},
        {"correlation_key": ""},
        {"timeout_node": "n"},
        {"expires_at": later(hours=1).replace(tzinfo=None)},
        {"payload_results": {1: 2}},
        {"payload_results": {"a": object()}},
    ):
        with pytest.raises(InvalidInputError):
            await engine.runs.wait(run, **{"kind": "human", "correlation_key": "k", **wait})  # type: ignore[arg-type]
    assert (await engine.runs.get(run.thread_id, run.id)).status == "running"


async def test_two_threads_with_one_run_id(engine: Engine) -> None:
    for user in ("a", "b"):
        session = await engine.sessions.create("app", user)
        await engine.runs.enqueue(session, "work", run_id="twin")
    with pytest.raises(ConflictError, match="thread_id"):
        await engine.runs.signal("twin", correlation_key="k")
    outcome = await engine.runs.signal("twin", correlation_key="k", thread_id=session.thread_id)
    assert outcome == SignalOutcome.KEPT
