"""Handlers for workers that are killed: they leave marks in a folder, and stop where a mark asks them to."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from cognizes.engine import LeaseLostError
from cognizes.engine.runs import HandledRun


def _folder() -> Path:
    return Path(os.environ["RUN_MARKS"])


def _write(name: str, line: Any) -> None:
    with (_folder() / name).open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


async def _reach(point: str) -> None:
    _write(f"reached.{point}", os.getpid())
    while (_folder() / f"hold.{point}").exists():
        await asyncio.sleep(0.01)


def _done(step: str) -> dict[str, str]:
    _write("steps", step)
    return {"did": step}


async def journey(run: HandledRun) -> Any:
    """Plans, waits for a human, continues with its memory snapshot."""
    if run.cursor_node is None:
        plan = await run.step("plan", _done, "plan")
        await run.memory.set("prefs", "colour", "blue")
        await run.update_state({"draft": "v1", "steps": ["plan"]})
        await run.memory.write_scratchpad("half a thought")
        await _reach("before_wait")
        await run.wait(
            kind="human",
            correlation_key="approve",
            reason="may I ship?",
            cursor_node="ship",
            plan_decision_id="decision-1",
            payload_results={"plan": plan},
        )
    resumed = run.resumption
    assert resumed is not None
    _write(
        "seen",
        {
            "cursor": run.cursor_node,
            "state": run.session.state,
            "payload": resumed.payload,
            "results": resumed.payload_results,
            "decision": resumed.plan_decision_id,
            "episodes": [episode.summary for episode in resumed.episodic_tail],
            "long_term": [[*key, value] for key, value in resumed.long_term.items()],
            "scratchpad": (await run.memory.snapshot()).working_memory.scratchpad,
            "kept_keys": resumed.kept_keys,
        },
    )
    await run.step("pack", _done, "pack")
    await run.update_state({"draft": "v2"})
    await _reach("mid_resume")
    shipped = await run.step("ship", _done, "ship")
    await run.append(kind="assistant_message", text="shipped", event_id="answer")
    return {"shipped": shipped, "approved_by": resumed.payload}


async def stubborn(run: HandledRun) -> str:
    """Does not stop when it is cancelled, and tries to write for a run that is not its own any more."""
    if run.attempt > 1:
        return "done by the second"
    try:
        await _reach("holding")
    except asyncio.CancelledError:
        _write("cancelled", os.getpid())
    for write in (
        lambda: run.append(kind="assistant_message", text="from the grave"),
        lambda: run.update_state(lambda state: {"n": state.get("n", 0) + 1, "user:n": 1, "app:n": 1}),
        lambda: run.step("late", _done, "late"),
        lambda: run.wait(kind="human", correlation_key="late"),
        lambda: run.think("late"),
    ):
        try:
            await write()
            _write("written", "it was not refused")
        except LeaseLostError as error:
            _write("refused", str(error))
    return "done by the first"
