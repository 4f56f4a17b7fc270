"""Measure claims and completions of runs, and the time to resume after a signal and after a kill of the worker.

    uv run python benchmarks/runs.py [--quick] [--out DIRECTORY]

Starts a separate embedded PostgreSQL (fsync on). The peer is a hand-written queue: one table without leases, events or
fencing, `FOR UPDATE SKIP LOCKED`, two commits per job. In both, workers are loops of one process that claim one run,
complete it, and claim the next; a real `Worker` also reads the session and the steps, and writes an episode. The kill
ends a real `cognizes worker`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import asyncpg
import psutil
import uvloop

from cognizes.engine import Engine, RunStatus
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.runs import HandledRun, Worker
from live_client import percentile
from report import Bars, Grid, Report, Target

_HERE = Path(__file__).parent
_WORKERS = (1, 4, 16)
_LEASE_SECONDS = 5.0


@dataclass(frozen=True)
class Plan:
    """The amount of work."""

    runs: int
    signals: int
    kills: int


_FULL = Plan(runs=4000, signals=300, kills=5)
_QUICK = Plan(runs=300, signals=30, kills=1)


async def claim_and_finish(engine: Engine, runs: int, workers: int) -> float:
    """Measure runs per second from a full queue by number of workers."""
    await _enqueue(engine, runs, f"noop-{workers}")
    left = runs

    async def work(name: str) -> None:
        nonlocal left
        while left > 0:
            claimed = await engine.runs.claim([f"noop-{workers}"], worker_id=name)
            for run in claimed:
                await engine.runs.finish(run)
                left -= 1
            if not claimed:
                await asyncio.sleep(0.001)

    began = time.perf_counter()
    await asyncio.gather(*(work(f"w{number}") for number in range(workers)))
    return runs / (time.perf_counter() - began)


async def work_off(engine: Engine, runs: int, concurrency: int) -> float:
    """Measure runs per second of one real worker with the given concurrency, until the last run has ended."""
    await _enqueue(engine, runs, "noop-worker")
    left = runs
    is_done = asyncio.Event()

    async def handler(run: HandledRun) -> None:
        nonlocal left
        left -= 1
        if not left:
            is_done.set()

    began = time.perf_counter()
    async with Worker(engine, {"noop-worker": handler}, concurrency=concurrency):
        await is_done.wait()
    return runs / (time.perf_counter() - began)


async def _enqueue(engine: Engine, runs: int, handler: str) -> None:
    sessions = [await engine.sessions.create("bench", f"user-{number}") for number in range(min(runs, 500))]
    for number in range(runs):
        await engine.runs.enqueue(sessions[number % len(sessions)], handler)


async def by_hand(url: str, runs: int, workers: int) -> float:
    """Measure the hand-written queue."""
    async with asyncpg.create_pool(url, min_size=workers, max_size=workers) as pool:
        await pool.execute(
            "DROP TABLE IF EXISTS hand_made; CREATE TABLE hand_made (id bigserial PRIMARY KEY, state text)"
        )
        await pool.execute("INSERT INTO hand_made (state) SELECT 'todo' FROM generate_series(1, $1::int)", runs)
        await pool.execute("CREATE INDEX ON hand_made (id) WHERE state = 'todo'")

        async def work() -> None:
            while True:
                job = await pool.fetchval(
                    "UPDATE hand_made SET state = 'doing' WHERE id = (SELECT id FROM hand_made WHERE state = 'todo' "
                    "ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id"
                )
                if job is None:
                    return
                await pool.execute("UPDATE hand_made SET state = 'done' WHERE id = $1", job)

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(workers)))
        return runs / (time.perf_counter() - began)


async def signal_to_resumed(engine: Engine, signals: int) -> list[float]:
    """Measure milliseconds from the call of `signal` to the resumed handler with restored memory."""
    resumed: dict[str, float] = {}

    async def handler(run: HandledRun) -> None:
        await run.wait(kind="human", correlation_key="go")
        resumed[run.id] = time.perf_counter()

    samples: list[float] = []
    session = await engine.sessions.create("bench", "ada")
    async with Worker(engine, {"waiter": handler}):
        for _ in range(signals):
            run = await engine.runs.enqueue(session, "waiter")
            await _until(lambda run_id=run.id: _has(engine, session.thread_id, run_id, RunStatus.WAITING))  # type: ignore[misc]
            sent = time.perf_counter()
            await engine.runs.signal(run.id, correlation_key="go")
            await _until(lambda run_id=run.id: _is_there(resumed, run_id))  # type: ignore[misc]
            samples.append((resumed[run.id] - sent) * 1000)
    return samples


async def kill_to_continued(engine: Engine, url: str, kills: int) -> list[float]:
    """Measure seconds from kill -9 of a worker, right after a lease extension, to the next attempt of its run."""
    samples: list[float] = []
    session = await engine.sessions.create("bench", "bob")
    for _ in range(kills):
        first, second = (_start_worker(url) for _ in range(2))
        run = await engine.runs.enqueue(session, "hang")
        await _until(lambda run_id=run.id: _has(engine, session.thread_id, run_id, RunStatus.RUNNING))  # type: ignore[misc]
        owner = (await engine.runs.get(session.thread_id, run.id)).worker_id or ""
        victim, other = (first, second) if f"/{first.pid}/" in owner else (second, first)
        killed = time.perf_counter()
        victim.kill()
        await _until(lambda run_id=run.id: _is_again(engine, session.thread_id, run_id))  # type: ignore[misc]
        samples.append(time.perf_counter() - killed)
        await engine.runs.cancel(session.thread_id, run.id)
        other.kill()
        for process in (first, second):
            process.wait()
    return samples


async def hang(run: HandledRun) -> None:
    """A handler that never ends."""
    await asyncio.Event().wait()


def _start_worker(url: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [Path(sys.executable).parent / "cognizes", "worker", "--handler", "runs:hang"],
        cwd=_HERE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "DATABASE_URL": url, "COGNIZES_RUN_LEASE_SECONDS": str(_LEASE_SECONDS)},
    )


async def _until(look: Callable[[], Awaitable[bool]]) -> None:
    while not await look():
        await asyncio.sleep(0.001)


async def _has(engine: Engine, thread_id: str, run_id: str, status: RunStatus) -> bool:
    return (await engine.runs.get(thread_id, run_id)).status == status


async def _is_again(engine: Engine, thread_id: str, run_id: str) -> bool:
    run = await engine.runs.get(thread_id, run_id)
    return run.status == RunStatus.RUNNING and run.attempt == 2


async def _is_there(found: dict[str, float], run_id: str) -> bool:
    return run_id in found


async def run(plan: Plan) -> Report:
    """Run the whole benchmark."""
    report = Report("runs", "Durable runs: cognizes-engine")
    report.details["load_average_before"] = psutil.getloadavg()
    directory = Path(tempfile.mkdtemp(prefix="cognizes-bench-"))
    server = EmbeddedPostgres(directory)
    await server.start()
    try:
        async with Engine.open(server.url, pool_size=20) as engine:
            ours = [await claim_and_finish(engine, plan.runs, workers) for workers in _WORKERS]
            worker = await work_off(engine, plan.runs // 2, _WORKERS[-1])
        theirs = [await by_hand(server.url, plan.runs, workers) for workers in _WORKERS]
        async with Engine.open(server.url) as engine:
            waits = await signal_to_resumed(engine, plan.signals)
            kills = await kill_to_continued(engine, server.url, plan.kills)
    finally:
        await server.close()
        shutil.rmtree(directory)
    rows = [
        (f"{count} workers", mine, hand, mine / hand) for count, mine, hand in zip(_WORKERS, ours, theirs, strict=True)
    ]
    report.grids = [
        Grid("Runs claimed and completed per second", ("", "engine", "by hand", "ratio"), rows),
        Grid("Runs worked off per second", ("", "engine"), [(f"one Worker, {_WORKERS[-1]} at once", worker)]),
        Grid("Signal to resumed, ms", ("", "p50", "p95"), [("one at a time", median(waits), percentile(waits, 0.95))]),
        Grid(
            f"kill -9 to continued, s (lease {_LEASE_SECONDS:g} s)",
            ("", "median", "longest"),
            [("", median(kills), max(kills))],
        ),
    ]
    report.targets = [Target("kill -9 to continued", max(kills), _LEASE_SECONDS + 5, "s", at_least=False)]
    report.panels = [
        Bars("Runs claimed and completed", "runs/s", [f"{count} workers" for count in _WORKERS],
             {"engine (leases, events, fencing)": ours, "queue by hand": theirs}),
    ]  # fmt: skip
    report.details |= {"signal_ms": waits, "kill_seconds": kills}
    return report


def main() -> None:
    """Run, print and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a shorter run")
    parser.add_argument("--out", type=Path, default=_HERE / "results", help="where the JSON and the chart go")
    arguments = parser.parse_args()
    report = uvloop.run(run(_QUICK if arguments.quick else _FULL))
    report.print()
    for path in report.write(arguments.out):
        print(path)


if __name__ == "__main__":
    main()
