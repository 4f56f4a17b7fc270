"""Workers: handlers with steps and waits, failures, cancellation, stopping."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from cognizes.engine import (
    DELETE,
    Engine,
    InvalidInputError,
    LeaseLostError,
    RunFailedError,
    RunStatus,
    StepInterruptedError,
    WaitExpiredError,
)
from cognizes.engine.runs import HandledRun, RunContext, Worker
from tests.engine_parts import database_of
from tests.integration.runs.conditions import expire_lease, later, run_events, until, until_status
from tests.integration.runs.lost_answers import lose_end


async def test_steps_run_once_and_a_linear_handler_continues_after_its_wait(engine: Engine) -> None:
    calls: Counter[str] = Counter()

    async def order(run: HandledRun) -> Any:
        calls["handler"] += 1

        async def reserve(what: str) -> Any:
            calls["reserve"] += 1
            return {"reserved": what, "pair": (1, 2)}

        reserved = await run.step("reserve", reserve, run.input["item"])
        answer = await run.wait(kind="human", correlation_key="approve")
        shipped = await run.step("ship", lambda: calls.update(["ship"]) or "shipped")
        return {"reserved": reserved, "answer": answer, "shipped": shipped}

    session = await engine.sessions.create("shop", "ada")
    run = await engine.runs.enqueue(session, "order", input={"item": "lamp"})
    async with Worker(engine, {"order": order}):
        await until_status(engine, run, RunStatus.WAITING)
        await engine.runs.signal(run.id, correlation_key="approve", payload={"by": "bob"})
        done = await until_status(engine, run, RunStatus.COMPLETED)
    assert done.result == {
        "reserved": {"reserved": "lamp", "pair": [1, 2]}, "answer": {"by": "bob"}, "shipped": "shipped",
    }  # fmt: skip
    assert calls == {"handler": 2, "reserve": 1, "ship": 1}
    episodes = await engine.memory.episodic.list_by_session(run_scope(session), session.id)
    assert [episode.run_id for episode in episodes] == [run.id]


def run_scope(session: Any) -> Any:
    from cognizes.engine.memory.records import MemoryScope

    return MemoryScope.of(session)


async def test_memory_is_restored_after_a_wait(engine: Engine) -> None:
    """Working memory as it was, the episodes and long-term values it used, the cursor and the results so far."""
    seen: list[Any] = []

    async def agent(run: HandledRun) -> str:
        if run.cursor_node is None:
            await run.memory.set("prefs", "colour", "blue")
            await run.update_state({"draft": "v1", "plan": ["search"], "user:kept": 1})
            await run.memory.write_scratchpad("half a thought")
            await run.wait(
                kind="human", correlation_key="k", cursor_node="after", plan_decision_id="p",
                payload_results={"search": [1]},
            )  # fmt: skip
            raise AssertionError("a wait with a cursor does not return")
        memory = (await run.memory.snapshot()).working_memory
        seen.append((run.cursor_node, run.resumption, dict(run.session.state), memory))
        await run.update_state({"draft": "v2"})
        return "done"

    session = await engine.sessions.create("shop", "ada")
    run = await engine.runs.enqueue(session, "agent")
    async with Worker(engine, {"agent": agent}):
        await until_status(engine, run, RunStatus.WAITING)
        # Working memory is lost without a writer; the run restores it.
        await database_of(engine).pool.execute("UPDATE threads SET state = '{\"debris\": 1}'")
        await engine.memory.working.delete(run_scope(session), session.id)
        await engine.memory.long_term.set(run_scope(session), "prefs", "colour", "green")
        await engine.runs.signal(run.id, correlation_key="k", payload="go")
        await until_status(engine, run, RunStatus.COMPLETED)
    ((cursor, resumption, state, memory),) = seen
    assert (cursor, resumption.payload, resumption.plan_decision_id) == ("after", "go", "p")
    assert resumption.payload_results == {"search": [1], "k": "go"}
    assert state == {"draft": "v1", "plan": ["search"], "user:kept": 1}
    assert (memory.scratchpad, memory.variables) == ("half a thought", {"draft": "v1", "plan": ["search"]})
    assert resumption.kept_keys == []
    assert resumption.long_term == {("prefs", "colour"): "green"}
    assert resumption.memory_snapshot.working_memory.scratchpad == "half a thought"
    assert (await engine.sessions.store.get_thread(session.thread_id)).state["draft"] == "v2"


_ADDRESS = "Main St 1\x00" + " " * 20_000
"""Larger than the rows that a page of changes holds at once."""


@pytest.mark.parametrize("in_process", [True, False])
async def test_a_resumed_run_keeps_what_others_wrote_while_it_waited(engine: Engine, in_process: bool) -> None:
    """Keys that another writer changed keep their value and are listed; the other keys of the snapshot are restored."""
    seen: list[Any] = []

    async def agent(run: RunContext) -> None:
        await run.step("prepare", lambda: None)
        if run.resumption is None:
            await run.update_state({"draft": "v1", "cart": ["tea"], "old": True, "same": 1})
        await run.wait(kind="human", correlation_key="k")
        assert run.resumption is not None
        seen.append((run.resumption.kept_keys, dict(run.session.state)))
        if run.attempt == 2:
            memory = await engine.memory.working.load(run_scope(run.session), run.session.id)
            assert memory is not None
            assert {**memory.variables, "user:language": "de"} == run.session.state
            await run.update_state({"cart": ["milk"], "draft": "v2"})
            if not in_process:
                raise RuntimeError("the next attempt gets the same list")

    async def block() -> None:
        async with engine.runs.start(session, run_id="r") as run:
            await agent(run)

    session = await engine.sessions.create("shop", "ada", state={"first": 1})
    if in_process:
        task = asyncio.create_task(block())
        await until(lambda: _has_status(engine, session, "r", RunStatus.WAITING))
    else:
        await engine.runs.enqueue(session, "agent", run_id="r")
    async with Worker(engine, {"agent": agent}):
        await until(lambda: _has_status(engine, session, "r", RunStatus.WAITING))
        other = await engine.sessions.store.get_thread(session.thread_id)
        await engine.sessions.update(other, {"cart": ["tea", "lamp"], "address": _ADDRESS, "old": DELETE})
        second = await engine.runs.create(other, run_id="second", running=True)
        await engine.sessions.append(other, author="a", kind="note", state={"same": 2}, run_id=second.id)
        await engine.sessions.update(other, {"same": 1, "user:language": "de"})
        await database_of(engine).pool.execute("UPDATE threads SET state = state - 'draft' - 'first'")
        await engine.runs.signal("r", correlation_key="k", thread_id=session.thread_id)
        await until(lambda: _has_status(engine, session, "r", RunStatus.COMPLETED))
    if in_process:
        await task
    kept = ["address", "cart", "old"]
    state = {"draft": "v1", "cart": ["tea", "lamp"], "address": _ADDRESS, "same": 1, "first": 1}
    expected = [(kept, {**state, "user:language": "de"})]
    if not in_process:
        expected.append((kept, {**state, "user:language": "de", "cart": ["milk"], "draft": "v2"}))
    assert seen == expected
    restored = [event for event in await engine.sessions.events(session) if event.event_type == "memory_restored"]
    assert [event.content["kept_keys"] for event in restored] == [kept]


async def test_a_failing_handler_is_tried_again_and_then_fails_with_the_cause(engine: Engine) -> None:
    attempts: list[int] = []

    async def flaky(run: HandledRun) -> str:
        attempts.append(run.attempt)
        await run.step("first", lambda: None)
        if run.input == "always" or len(attempts) < 2:
            raise ValueError("boom\x00")
        return "fine"

    async def hopeless(run: HandledRun) -> None:
        attempts.append(run.attempt)
        raise RunFailedError("no such order")

    async def speechless(run: HandledRun) -> object:
        return object()

    session = await engine.sessions.create("app", "user")
    async with Worker(engine, {"flaky": flaky, "hopeless": hopeless, "speechless": speechless}):
        fine = await until_status(engine, await engine.runs.enqueue(session, "flaky"), RunStatus.COMPLETED)
        assert (fine.result, fine.error, attempts) == ("fine", None, [1, 2])
        attempts.clear()
        run = await engine.runs.enqueue(session, "flaky", input="always", max_attempts=3)
        failed = await until_status(engine, run, RunStatus.FAILED)
        assert (failed.error, attempts) == ("ValueError: boom\x00", [1, 2, 3])
        attempts.clear()
        failed = await until_status(engine, await engine.runs.enqueue(session, "hopeless"), RunStatus.FAILED)
        assert (failed.error, attempts) == ("no such order", [1])
        run = await engine.runs.enqueue(session, "speechless", max_attempts=1)
        assert "object" in ((await until_status(engine, run, RunStatus.FAILED)).error or "")


async def test_a_cancelled_run_stops_where_it_is(engine: Engine) -> None:
    ended: list[BaseException] = []
    started = asyncio.Event()

    async def endless(run: HandledRun) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            ended.append(error)
            raise

    session = await engine.sessions.create("app", "user")
    run = await engine.runs.enqueue(session, "endless")
    async with Worker(engine, {"endless": endless}) as worker:
        await started.wait()
        await engine.runs.cancel(run.thread_id, run.id)
        await until(lambda: _is_idle(worker))
    assert len(ended) == 1
    assert (await engine.runs.get(run.thread_id, run.id)).status == RunStatus.CANCELLED
    assert await run_events(engine, run) == ["run_created", "run_started", "run_cancelled"]


async def _is_idle(worker: Worker) -> bool:
    return not worker.active


async def test_a_run_that_another_worker_took_is_stopped_and_its_late_writes_are_refused(engine: Engine) -> None:
    outcomes: list[BaseException] = []
    started, taken = asyncio.Event(), asyncio.Event()

    async def stubborn(run: HandledRun) -> str:
        if run.attempt > 1:
            return "by the second"
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await taken.wait()
        try:
            await run.append(kind="assistant_message", text="too late")
        except LeaseLostError as error:
            outcomes.append(error)
        raise RuntimeError("no more")

    session = await engine.sessions.create("app", "user")
    run = await engine.runs.enqueue(session, "stubborn")
    async with Worker(engine, {"stubborn": stubborn}, worker_id="first", concurrency=1):
        await started.wait()
        await expire_lease(engine, run)
        await engine.runs.expire()
        async with Worker(engine, {"stubborn": stubborn}, worker_id="second"):
            done = await until_status(engine, run, RunStatus.COMPLETED)
            taken.set()
    assert (done.result, done.attempt, done.worker_id) == ("by the second", 2, "second")
    assert len(outcomes) == 1
    assert await engine.sessions.messages(session) == []
    assert (await engine.runs.get(run.thread_id, run.id)).status == RunStatus.COMPLETED


async def test_a_stopped_worker_releases_its_runs(engine: Engine) -> None:
    started = asyncio.Event()
    reported: list[Any] = []

    async def slow(run: HandledRun) -> str:
        reported.append([step.name for step in run.interrupted_steps])

        async def work() -> str:
            if run.attempt == 1:
                started.set()
                await asyncio.Event().wait()
            return "worked"

        return await run.step("work", work)

    session = await engine.sessions.create("app", "user")
    run = await engine.runs.enqueue(session, "slow", max_attempts=1)
    async with Worker(engine, {"slow": slow}, grace_seconds=0):
        await started.wait()
    released = await engine.runs.get(run.thread_id, run.id)
    assert (released.status, released.failures) == (RunStatus.PENDING, 0)
    async with Worker(engine, {"slow": slow}):
        assert (await until_status(engine, run, RunStatus.COMPLETED)).result == "worked"
    assert reported == [[], ["work"]]


async def test_the_handler_decides_about_an_interrupted_step(engine: Engine) -> None:
    judged: list[int] = []

    async def handler(run: HandledRun) -> Any:
        async def judge(attempt: int) -> str:
            judged.append(attempt)
            return "the bank says it was paid"

        with pytest.raises(StepInterruptedError):
            await run.step("notify", lambda: "again", if_interrupted="raise")
        paid = await run.step("pay", lambda: "paid again", if_interrupted=judge)
        return [paid, await run.step("log", lambda: "logged"), await run.step("pay", lambda: "never")]

    session = await engine.sessions.create("app", "user")
    run = await engine.runs.enqueue(session, "handler")
    (claimed,) = await engine.runs.claim(["handler"])
    for name in ("pay", "log", "notify"):
        await database_of(engine).fetch("begin_step", session.thread_id, run.id, 1, name)
    await expire_lease(engine, claimed)
    async with Worker(engine, {"handler": handler}):
        done = await until_status(engine, run, RunStatus.COMPLETED)
    assert (done.result, judged) == (["the bank says it was paid", "logged", "the bank says it was paid"], [1])


async def test_concurrent_runs_change_wider_scopes_exactly(engine: Engine) -> None:
    """Updates by function of `user:` and `app:` keys, by runs on different threads: none is lost."""

    async def count(run: HandledRun) -> None:
        for _ in range(5):
            await run.update_state(
                lambda state: {key: state.get(key, 0) + 1 for key in ("mine", "user:shared", "app:shared")}
            )

    sessions = [await engine.sessions.create("app", "user") for _ in range(6)]
    runs = [await engine.runs.enqueue(session, "count") for session in sessions]
    async with Worker(engine, {"count": count}, concurrency=3), Worker(engine, {"count": count}, concurrency=3):
        for run in runs:
            await until_status(engine, run, RunStatus.COMPLETED, RunStatus.FAILED)
    states = [(await engine.sessions.store.get_thread(session.thread_id)).state for session in sessions]
    assert states == [{"mine": 5, "user:shared": 30, "app:shared": 30}] * 6
    events = [event for event in await engine.sessions.events(sessions[0]) if event.event_type == "state_update"]
    assert {event.run_id for event in events} == {runs[0].id}


async def test_in_process_a_wait_returns_the_payload(engine: Engine) -> None:
    session = await engine.sessions.create("shop", "ada")
    with_payload: list[Any] = []

    async def block() -> None:
        async with engine.runs.start(session, run_id="r") as run:
            await run.append(kind="assistant_message", text="may I?")
            with_payload.append(await run.wait(kind="human", correlation_key="approve-42"))
            await run.append(kind="assistant_message", text="thanks")
            assert run.attempt == 2
            with pytest.raises(InvalidInputError, match="key of its own"):
                await run.wait(kind="human", correlation_key="approve-42")
            assert await run.wait(kind="timer", correlation_key="soon", expires_at=later(seconds=0.01)) is None

    task = asyncio.create_task(block())
    await until(lambda: _has_status(engine, session, "r", RunStatus.WAITING))
    await engine.runs.signal("r", correlation_key="approve-42", payload={"ok": 1})
    await task
    assert with_payload == [{"ok": 1}]
    done = await engine.runs.get(session.thread_id, "r")
    assert (done.status, done.attempt) == (RunStatus.COMPLETED, 3)
    assert [message.content for message in await engine.sessions.messages(session)] == ["may I?", "thanks"]
    # The task that executed the run is free to write afterwards.
    await engine.sessions.append(session, author="a", kind="note")


async def _has_status(engine: Engine, session: Any, run_id: str, status: RunStatus) -> bool:
    found = [run for run in await engine.runs.list(session.thread_id) if run.id == run_id]
    return bool(found) and found[0].status == status


async def test_the_run_of_a_dead_process_keeps_waiting_and_another_resumes_it(engine: Engine) -> None:
    session = await engine.sessions.create("shop", "ada")

    async def block() -> None:
        async with engine.runs.start(session, run_id="r") as run:
            await run.wait(kind="human", correlation_key="k")

    task = asyncio.create_task(block())
    await until(lambda: _has_status(engine, session, "r", RunStatus.WAITING))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await engine.runs.get(session.thread_id, "r")).status == RunStatus.WAITING
    await engine.runs.signal("r", correlation_key="k", payload="still there")
    async with engine.runs.resume(session.thread_id, "r") as run:
        assert await run.wait(kind="human", correlation_key="k") == "still there"
    assert (await engine.runs.get(session.thread_id, "r")).status == RunStatus.COMPLETED


async def test_in_process_a_wait_expires_and_a_cancelled_run_stops_its_block(engine: Engine) -> None:
    session = await engine.sessions.create("shop", "ada")
    with pytest.raises(WaitExpiredError):
        async with engine.runs.start(session, run_id="r1") as run:
            await run.wait(kind="webhook", correlation_key="k", expires_at=later(seconds=0.01))
    assert (await engine.runs.get(session.thread_id, "r1")).status == RunStatus.FAILED

    async def block() -> None:
        async with engine.runs.start(session, run_id="r2"):
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await until(lambda: _has_status(engine, session, "r2", RunStatus.RUNNING))
    await engine.runs.cancel(session.thread_id, "r2")
    with pytest.raises(LeaseLostError):
        await task


async def test_a_message_and_a_timer_wake_a_worker(engine: Engine) -> None:
    async def chat(run: HandledRun) -> Any:
        await run.append(kind="assistant_message", text="which one?", event_id="question")
        said = await run.wait(kind="message", correlation_key="m")
        await run.wait(kind="timer", correlation_key="t", expires_at=run.run.created_at)
        return said["text"]

    session = await engine.sessions.create("app", "user")
    run = await engine.runs.enqueue(session, "chat")
    async with Worker(engine, {"chat": chat}):
        await until_status(engine, run, RunStatus.WAITING)
        await engine.sessions.append(session, author="user", kind="user_message", text="the red one")
        assert (await until_status(engine, run, RunStatus.COMPLETED)).result == "the red one"


async def test_a_worker_without_handlers_or_concurrency_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidInputError):
        Worker(engine, {})
    with pytest.raises(InvalidInputError):
        Worker(engine, {"a": test_a_worker_without_handlers_or_concurrency_is_refused}, concurrency=0)  # type: ignore[dict-item]


@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED])
async def test_an_end_whose_answer_was_lost_has_happened_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, status: RunStatus
) -> None:
    async def work(run: HandledRun) -> str:
        if status is RunStatus.FAILED:
            raise RunFailedError("no")
        return "done"

    session = await engine.sessions.create("shop", "ada")
    run = await engine.runs.enqueue(session, "work")
    asked = lose_end(monkeypatch, run.id)
    caplog.set_level("INFO", logger="cognizes.engine.runs.worker")
    async with Worker(engine, {"work": work}) as worker:
        await until_status(engine, run, status)

        async def is_idle() -> bool:
            return not worker.active

        await until(is_idle)
    assert asked == [run.id] * 2
    assert "lost run" not in caplog.text
    events = await run_events(engine, run)
    assert len([kind for kind in events if kind in ("run_finished", "run_failed")]) == 1
    episodes = await engine.memory.episodic.list_by_session(run_scope(session), session.id)
    assert [episode.run_id for episode in episodes] == [run.id]


async def test_an_unexpected_exception_does_not_end_a_worker(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    claim, defects = engine.runs.claim, [ValueError("a defect")]

    async def fails_once(*arguments: Any, **named: Any) -> Any:
        if defects:
            raise defects.pop()
        return await claim(*arguments, **named)

    async def work(run: HandledRun) -> str:
        return "done"

    monkeypatch.setattr(engine.runs, "claim", fails_once)
    session = await engine.sessions.create("app", "user")
    run = await engine.runs.enqueue(session, "work")
    async with Worker(engine, {"work": work}):
        await until_status(engine, run, RunStatus.COMPLETED)
    assert "a defect" in caplog.text
