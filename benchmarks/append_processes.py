"""Measure appends of several processes against one process with the same number of writers.

    uv run python benchmarks/append_processes.py [--quick] [--out DIRECTORY]

`after` the commit is what an engine does. `inside` is the same engine with `Sessions` without a notifier, whose events
the trigger notifies in the writing transaction. An embedded PostgreSQL with fsync on; the shapes alternate in one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

import psutil
import uvloop

from append import appender
from cognizes.engine import Engine
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.pulse.sessions import Sessions
from report import Bars, Grid, Report, Target

_HERE = Path(__file__).parent
_SHAPES = ((1, 32), (4, 8))
_MODES = ("after", "inside")
_WARM_UP = 0.5


async def _open(url: str, mode: str, opened: AsyncExitStack) -> Sessions:
    engine = await opened.enter_async_context(Engine.open(url))
    if mode == "after":
        return engine.sessions
    sessions = Sessions(engine._database, engine.settings)
    opened.push_async_callback(sessions.close)
    return sessions


async def _write(url: str, mode: str, *, writers: int, seconds: float) -> dict[str, float]:
    """Append until the end of the measurement; return the number of appends within it, and the CPU time used."""
    async with AsyncExitStack() as opened:
        sessions = await _open(url, mode, opened)
        steps = [appender(sessions, await sessions.create("bench", "processes")) for _ in range(writers)]
        print("ready", flush=True)
        start = float(await asyncio.to_thread(sys.stdin.readline)) + _WARM_UP
        end = start + seconds
        done = 0
        cpu_before = 0.0

        async def repeat(place: int) -> None:
            nonlocal done, cpu_before
            while (now := time.time()) < end:
                await steps[place]()
                if now >= start:
                    cpu_before = cpu_before or time.process_time()
                    done += 1

        await asyncio.gather(*map(repeat, range(writers)))
        return {"appends": done, "cpu": (time.process_time() - cpu_before) / seconds}


async def _measure(url: str, mode: str, *, processes: int, writers: int, seconds: float) -> dict[str, float]:
    """Return the appends per second of all processes, and the cores that clients and server used."""
    children = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, str(_HERE / "append_processes.py")),
            *("--write", url, mode, str(writers), str(seconds)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(processes)
    ]
    for child in children:
        assert child.stdout is not None
        await child.stdout.readline()
    busy_before = psutil.cpu_times()
    answers = await asyncio.gather(*(child.communicate(f"{time.time()}\n".encode()) for child in children))
    busy_after = psutil.cpu_times()
    if any(child.returncode for child in children):
        raise RuntimeError("a writing process failed")
    found = [json.loads(output) for output, _ in answers]
    elapsed = seconds + _WARM_UP
    return {
        "rate": sum(one["appends"] for one in found) / seconds,
        "client_cores": sum(one["cpu"] for one in found),
        "machine_cores": (sum(busy_after) - sum(busy_before) - (busy_after.idle - busy_before.idle)) / elapsed,
    }


async def run(*, rounds: int, seconds: float) -> Report:
    report = Report("append_processes", "Appends of several processes: cognizes-engine")
    directory = Path(tempfile.mkdtemp(prefix="cognizes-bench-"))
    server = EmbeddedPostgres(directory)
    await server.start()
    samples: dict[tuple[str, int, int], list[dict[str, float]]] = {}
    try:
        async with Engine.open(server.url):
            pass
        for round_ in range(1, rounds + 1):
            for processes, writers in _SHAPES:
                for mode in _MODES:
                    found = await _measure(server.url, mode, processes=processes, writers=writers, seconds=seconds)
                    samples.setdefault((mode, processes, writers), []).append(found)
            print(f"round {round_} of {rounds}", file=sys.stderr, flush=True)
    finally:
        await server.close()
        shutil.rmtree(directory)
    rates = {shape: median(one["rate"] for one in found) for shape, found in samples.items()}
    report.grids.append(
        Grid(
            "Appends per second, each writer on a session of its own",
            ("shape", "notification", "appends/s", "cores of clients", "cores of the machine"),
            [
                (
                    f"{processes} x {writers}",
                    "after the commit" if mode == "after" else "in the transaction",
                    rates[mode, processes, writers],
                    *(median(one[name] for one in found) for name in ("client_cores", "machine_cores")),
                )
                for (mode, processes, writers), found in samples.items()
            ],
        )
    )
    one, four = rates["after", 1, 32], rates["after", 4, 8]
    report.targets += [
        Target("4 processes x 8 writers against 1 x 32", four / one, 0.65),
        Target("4 x 8, notified after the commit against in the transaction", four / rates["inside", 4, 8], 2),
        Target("1 x 32, notified after the commit against in the transaction", one / rates["inside", 1, 32], 1),
    ]
    report.panels.append(
        Bars(
            "Appends per second",
            "appends/s, more is better",
            [f"{processes} x {writers}" for processes, writers in _SHAPES],
            {mode: [rates[mode, *shape] for shape in _SHAPES] for mode in _MODES},
        )
    )
    report.details["samples"] = {" ".join(map(str, shape)): found for shape, found in samples.items()}
    return report


def main() -> None:
    """Run, print and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds of one second")
    parser.add_argument("--out", type=Path, default=_HERE / "results", help="where the JSON and the chart go")
    parser.add_argument("--write", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        url, mode, writers, seconds = arguments.write
        print(json.dumps(uvloop.run(_write(url, mode, writers=int(writers), seconds=float(seconds)))))
        return
    report = uvloop.run(run(rounds=3 if arguments.quick else 5, seconds=1 if arguments.quick else 3))
    report.print()
    for path in report.write(arguments.out):
        print(path)


if __name__ == "__main__":
    main()
