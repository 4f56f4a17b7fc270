"""Every write of a run is sent again while PostgreSQL is unavailable, and counts once when its answer was lost."""

from __future__ import annotations

import os
import signal
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cognizes.engine import DatabaseUnavailableError, Engine, Run, RunStatus, StepInterruptedError
from cognizes.engine.runs import HandledRun, SignalOutcome, Worker
from tests.integration.runs.conditions import expire_lease, run_events, until, until_status
from tests.integration.runs.lost_answers import lose_answer, lose_end

OF_A_HANDLER = [
    "create_run",
    "find_runs",
    "record_run_progress",
    "begin_step",
    "end_step",
    "set_long_term",
    "write_scratchpad",
    "read_signal",
    "read_working_memory",
    "wait_run",
    "signal_run",
    "list_steps",
    "apply_memory_snapshot",
]


@pytest.mark.parametrize("query", OF_A_HANDLER)
async def test_a_write_of_a_handler_whose_answer_was_lost_counts_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    payments: list[str] = []

    async def order(run: HandledRun) -> Any:
        if run.resumption is None:
            await run.think("what is in stock?")
            call = await run.call_tool("search", {"q": "lamp"})
            await run.finish_tool(call, ["lamp"])
            await run.memory.set("prefs", "colour", "blue")
            await run.update_state({"draft": 1})
            await run.memory.write_scratchpad("half a thought")
        await run.step("pay", payments.append, "42 EUR")
        answer = await run.wait(kind="human", correlation_key="approve")
        memory = (await run.memory.snapshot()).working_memory
        return [answer, memory.scratchpad, memory.variables, await run.memory.get("prefs", "colour")]

    session = await engine.sessions.create("shop", "ada")
    asked = lose_answer(monkeypatch, engine, query)
    run = await engine.runs.enqueue(session, "order", max_attempts=1)
    async with Worker(engine, {"order": order}):
        await until_status(engine, run, RunStatus.WAITING)
        outcome = await engine.runs.signal(run.id, correlation_key="approve", payload="yes")
        done = await until_status(engine, run, RunStatus.COMPLETED, RunStatus.FAILED)
    assert asked
    assert (done.status, done.error, outcome) == (RunStatus.COMPLETED, None, SignalOutcome.RESUMED)
    assert done.result == ["yes", "half a thought", {"draft": 1}, "blue"]
    assert payments == ["42 EUR"]
    assert (len(done.thinking_steps), len(done.tool_calls), done.attempt) == (1, 1, 2)
    assert Counter(await run_events(engine, run)) == {
        "run_created": 1, "run_started": 1, "thought": 1, "act": 1, "observe": 1, "state_update": 1, "run_waiting": 1,
        "run_signalled": 1, "run_resumed": 1, "memory_restored": 1, "run_finished": 1,
    }  # fmt: skip


async def test_an_interrupted_step_is_reported_although_the_answer_to_its_begin_was_lost(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await engine.sessions.create("shop", "ada")
    run = await engine.runs.enqueue(session, "pay", run_id="r")
    payments: list[int] = []

    with pytest.raises(KeyboardInterrupt):
        async with engine.runs.resume(run.thread_id, "r") as first:
            # As if the process had died within the step.
            await first.step("pay", _die)
    await expire_lease(engine, await engine.runs.get(run.thread_id, "r"))
    await engine.runs.expire()
    asked = lose_answer(monkeypatch, engine, "begin_step")
    async with engine.runs.resume(run.thread_id, "r") as second:
        with pytest.raises(StepInterruptedError, match="attempt 1"):
            await second.step("pay", payments.append, 42, if_interrupted="raise")
    assert (asked, payments) == (["begin_step"] * 2, [])


def _die() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("query", ["create_run", "end", "claim_run", "release_run", "retry_run"])
async def test_a_change_whose_answer_was_lost_counts_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    session = await engine.sessions.create("shop", "ada")
    asked = lose_end(monkeypatch) if query == "end" else lose_answer(monkeypatch, engine, query)
    run = await engine.runs.create(session, run_id="plain")
    await engine.runs.begin(run.thread_id, run.id)
    assert (await engine.runs.finish(run.thread_id, run.id)).status == RunStatus.COMPLETED
    assert await run_events(engine, run) == ["run_created", "run_started", "run_finished"]

    queued = await engine.runs.enqueue(session, "work", run_id="queued", max_attempts=1)
    claimed = await engine.runs.claim_one(queued.thread_id, queued.id)
    assert claimed.attempt == 1
    assert await engine.runs.release(claimed, cause="boom") == RunStatus.FAILED
    assert (await engine.runs.retry(queued.thread_id, queued.id)).status == RunStatus.PENDING
    assert (await engine.runs.cancel(queued.thread_id, queued.id)).status == RunStatus.CANCELLED
    assert await run_events(engine, queued) == [
        "run_created", "run_started", "run_failed", "run_retried", "run_cancelled",
    ]  # fmt: skip
    assert asked


async def test_a_restart_of_postgresql_repeats_no_step_whose_result_was_there() -> None:
    payments: list[int] = []
    with tempfile.TemporaryDirectory(prefix="cognizes-restart-") as folder:
        data_dir = Path(folder) / "data"

        def pay() -> str:
            payments.append(42)
            if len(payments) > 1:
                return "paid twice"
            os.kill(int((data_dir / "postgres" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
            return "paid"

        async def order(run: HandledRun) -> Any:
            return await run.step("pay", pay)

        async with Engine.open(data_dir=data_dir, retry_seconds=120, run_lease_seconds=600) as engine:
            session = await engine.sessions.create("shop", "ada")
            run = await engine.runs.enqueue(session, "order")

            async def ended() -> Run | None:
                with suppress(DatabaseUnavailableError):
                    found = await engine.runs.get(run.thread_id, run.id)
                    return found if found.completed_at is not None else None

            async with Worker(engine, {"order": order}):
                done = await until(ended)
        assert (done.status, done.result, payments) == (RunStatus.COMPLETED, "paid", [42])
