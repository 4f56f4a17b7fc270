"""Runs under kill -9 and SIGSTOP of their workers, which are real processes: `cognizes worker`.

Leases last for ten minutes and are moved by hand, so that a slow machine loses none.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cognizes.engine import Engine, Run, RunStatus
from cognizes.engine.memory.episodic import EpisodicEntry
from cognizes.engine.memory.records import MemoryScope
from cognizes.engine.memory.snapshot import MemorySnapshot
from tests.engine_parts import database_of
from tests.integration.cli.running_command import PROGRAM
from tests.integration.runs.conditions import expire_lease, run_events, until, until_status

REPOSITORY = Path(__file__).parents[2]
StartWorker = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[Engine]:
    async with Engine.open(database_url, run_lease_seconds=600, run_backoff_seconds=0) as opened:
        yield opened


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def start_worker(database_url: str, marks: Path) -> Iterator[StartWorker]:
    """Start `cognizes worker`; processes that still run at the end are killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        handlers = (f"--handler=tests.faults.run_handlers:{name}" for name in ("journey", "stubborn"))
        with (marks / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                [PROGRAM, "worker", *handlers],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=REPOSITORY,
                env={
                    **os.environ, "DATABASE_URL": database_url, "RUN_MARKS": str(marks),
                    "COGNIZES_RUN_LEASE_SECONDS": "600", "COGNIZES_RUN_BACKOFF_SECONDS": "0",
                },
            )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def lines(marks: Path, name: str) -> list[Any]:
    file = marks / name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def until_marked(marks: Path, name: str) -> None:
    async def look() -> list[Any]:
        return lines(marks, name)

    await until(look)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


async def change_state_and_lose_memory(engine: Engine, run: Run) -> None:
    """Another writer changes two keys while the run waits; the rest of its working memory is lost without a writer."""
    session = await engine.sessions.store.get_thread(run.thread_id)
    await engine.sessions.update(session, {"draft": "edited by ada", "address": "Main St 1"})
    await database_of(engine).pool.execute("UPDATE threads SET state = state - 'steps' || '{\"debris\": 1}'")
    await engine.memory.working.delete(MemoryScope.of(session), session.id)


@pytest.mark.parametrize("point", ["before_wait", "after_wait", "between_signal_and_claim", "mid_resume"])
async def test_seed_004_3_4_with_the_worker_killed(
    engine: Engine, marks: Path, start_worker: StartWorker, point: str
) -> None:
    session = await engine.sessions.create("shop", "ada")
    scope = MemoryScope.of(session)
    await engine.memory.episodic.append(EpisodicEntry(scope, "we talked about lamps", id="earlier"))
    run = await engine.runs.enqueue(session, "journey", run_id="r")
    if point in ("before_wait", "mid_resume"):
        (marks / f"hold.{point}").touch()
    first = start_worker()

    if point == "before_wait":
        await until_marked(marks, "reached.before_wait")
        kill(first)
        (marks / "hold.before_wait").unlink()
        await expire_lease(engine, run)
        start_worker()
    waiting = await until_status(engine, run, RunStatus.WAITING)
    if point == "after_wait":
        kill(first)
        start_worker()
    if point == "between_signal_and_claim":
        first.send_signal(signal.SIGSTOP)
    await change_state_and_lose_memory(engine, run)
    assert waiting.wait is not None
    assert (waiting.wait.correlation_key, waiting.wait.reason) == ("approve", "may I ship?")
    assert waiting.resumption_context is not None
    snapshot = MemorySnapshot.from_json(waiting.resumption_context["memory_snapshot"])
    await engine.runs.signal("r", correlation_key="approve", payload="bob")
    if point == "between_signal_and_claim":
        assert (await engine.runs.get(run.thread_id, "r")).status == RunStatus.PENDING
        kill(first)
        start_worker()
    if point == "mid_resume":
        await until_marked(marks, "reached.mid_resume")
        kill(first)
        (marks / "hold.mid_resume").unlink()
        await expire_lease(engine, run)
        start_worker()
    done = await until_status(engine, run, RunStatus.COMPLETED, RunStatus.FAILED)

    assert (done.status, done.error) == (RunStatus.COMPLETED, None)
    assert done.result == {"shipped": {"did": "ship"}, "approved_by": "bob"}
    # Every step was executed once.
    assert lines(marks, "steps") == ["plan", "pack", "ship"]
    seen = lines(marks, "seen")
    # §3.4 step 1: claimed, with the snapshot of the wait; step 2: working memory is the snapshot's, emptiness included,
    # except for the keys that another writer has changed since: they keep the newer value and are listed.
    assert snapshot.working_memory.variables == {"draft": "v1", "steps": ["plan"]}
    assert seen[0]["state"] == {"draft": "edited by ada", "address": "Main St 1", "steps": ["plan"]}
    assert {tuple(entry["kept_keys"]) for entry in seen} == {("address", "draft")}
    assert seen[0]["scratchpad"] == "half a thought" == snapshot.working_memory.scratchpad
    # Step 3: the episodes; step 4: the long-term values it used.
    assert seen[0]["episodes"] == ["we talked about lamps"]
    assert seen[0]["long_term"] == [["prefs", "colour", "blue"]]
    # Step 5: on from the cursor, with the results.
    assert (seen[0]["cursor"], seen[0]["payload"], seen[0]["decision"]) == ("ship", "bob", "decision-1")
    assert seen[0]["results"] == {"plan": {"did": "plan"}, "approve": "bob"}
    # The snapshot was applied once: what the run did after it stays done when it resumes again.
    assert [entry["state"]["draft"] for entry in seen] == (
        ["edited by ada", "v2"] if point == "mid_resume" else ["edited by ada"]
    )
    applied = [event for event in await engine.sessions.events(session) if event.id.startswith("memory_snapshot/")]
    assert len(applied) == 1
    stored = await engine.sessions.store.get_thread(session.thread_id)
    assert stored.state == {"draft": "v2", "address": "Main St 1", "steps": ["plan"]}
    assert [message.content for message in await engine.sessions.messages(session)] == ["shipped"]
    assert (await run_events(engine, run)).count("run_finished") == 1


async def test_a_paused_worker_that_lost_its_lease_cannot_write(
    engine: Engine, marks: Path, start_worker: StartWorker
) -> None:
    session = await engine.sessions.create("shop", "ada", state={"n": 1})
    run = await engine.runs.enqueue(session, "stubborn")
    (marks / "hold.holding").touch()
    first = start_worker()
    await until_marked(marks, "reached.holding")
    first.send_signal(signal.SIGSTOP)
    await expire_lease(engine, run)
    start_worker()
    done = await until_status(engine, run, RunStatus.COMPLETED)
    before = await engine.sessions.events(session)
    # The handler ignores that it is cancelled.
    first.send_signal(signal.SIGCONT)

    async def all_refused() -> bool:
        return len(lines(marks, "refused")) == 5

    await until(all_refused)
    assert lines(marks, "written") == []
    assert lines(marks, "steps") == []
    assert (done.result, done.attempt) == ("done by the second", 2)
    assert await engine.runs.get(run.thread_id, run.id) == done
    assert await engine.sessions.events(session) == before
    assert (await engine.sessions.store.get_thread(session.thread_id)).state == {"n": 1}


async def test_a_stopped_worker_process_releases_its_run(
    engine: Engine, marks: Path, start_worker: StartWorker
) -> None:
    session = await engine.sessions.create("shop", "ada")
    run = await engine.runs.enqueue(session, "journey", max_attempts=1)
    (marks / "hold.before_wait").touch()
    first = start_worker()
    await until_marked(marks, "reached.before_wait")
    first.send_signal(signal.SIGTERM)
    given_back = await until_status(engine, run, RunStatus.PENDING)
    assert (given_back.failures, first.wait(60)) == (0, 0)
    (marks / "hold.before_wait").unlink()
    start_worker()
    await until_status(engine, run, RunStatus.WAITING)
    assert lines(marks, "steps") == ["plan"]
