"""Measure appends on a separate embedded PostgreSQL with fsync on.

    uv run python benchmarks/append.py [--quick] [--out DIRECTORY]
    uv run python benchmarks/append.py --repeat 5     only one writer against pgbench, on a new server each time

Comparisons alternate, A B A B, in one run: a ratio of medians is robust on a noisy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg
import psutil
import uvloop

from cognizes.engine import Engine, Event, Session, Settings
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.database.embedded import DATABASE
from cognizes.engine.pulse.sessions import Sessions
from peers import Pgbench, Seed001
from report import Bars, Grid, Lines, Report, Target

_HERE = Path(__file__).parent
_CLIENTS = (1, 10, 50)
_SIDES = ("ours", "pgbench", "seed 001")
_APPENDS_PER_BLOCK = 20

Step = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Plan:
    """The amount of work."""

    rounds: int
    seconds: int
    lengths: tuple[int, ...]
    thread_counts: tuple[int, ...]
    blocks: int


_FULL = Plan(rounds=9, seconds=2, lengths=(1, 100, 10_000, 100_000), thread_counts=(10, 1_000, 1_000_000), blocks=100)
_QUICK = Plan(rounds=3, seconds=1, lengths=(1, 100, 10_000, 100_000), thread_counts=(10, 1_000, 100_000), blocks=20)


async def measure_rate(steps: Sequence[Step], seconds: float) -> float:
    """Return steps per second; a separate task repeats each of `steps`."""
    start = time.perf_counter()
    deadline = start + seconds
    done = 0

    async def repeat(step: Step) -> None:
        nonlocal done
        while time.perf_counter() < deadline:
            await step()
            done += 1

    await asyncio.gather(*map(repeat, steps))
    return done / (time.perf_counter() - start)


async def measure_warm(steps: Sequence[Step], seconds: float) -> float:
    """Return steps per second after an untimed warm-up, in which every connection plans its statements."""
    await measure_rate(steps, 0.5)
    return await measure_rate(steps, seconds)


async def append(sessions: Sessions, session: Session) -> None:
    """Return the measured append: an event that changes one key of the state."""
    delta = {"step": session.version}
    await sessions.append_event(
        session,
        Event(
            id="",
            thread_id=session.thread_id,
            invocation_id="benchmark",
            author="agent",
            event_type="state_update",
            actions={"state_delta": delta},
        ),
    )


def appender(sessions: Sessions, session: Session) -> Step:
    """A step for `measure_rate`."""
    return lambda: append(sessions, session)


def seed_appender(seed: Seed001, session: Session) -> Step:
    """Return a step with the append of the seed."""
    return lambda: seed.append(session, {"step": session.version})


async def compare_rates(server: EmbeddedPostgres, plan: Plan, report: Report) -> None:
    """Measure appends per second: the engine, pgbench with the same function, and seed 001."""
    rates = await measure_rates(server, plan, _CLIENTS)
    best = {name: {clients: median(by[clients]) for clients in _CLIENTS} for name, by in rates.items()}
    _report_rates(best, report)
    report.details["appends_per_second"] = rates


async def measure_rates(
    server: EmbeddedPostgres, plan: Plan, numbers: Sequence[int], *, names: Sequence[str] = _SIDES
) -> dict[str, dict[int, list[float]]]:
    """Return the appends per second of each side in each round, by its number of writers.

    The engine is closed while the others run, because it would receive their notifications.
    """
    settings = Settings()
    async with Engine.open(server.url) as engine:
        ours = [await engine.sessions.create("bench", "ours") for _ in range(max(numbers))]
        for client in range(max(numbers)):
            await engine.sessions.create("bench", "pgbench", session_id=f"pgbench-{client}")
    pgbench = Pgbench(server.url, snapshot_every=settings.snapshot_every, max_state_bytes=settings.max_state_bytes)
    # Ten connections are asyncpg's default, which the seed uses; fifty are not faster here.
    seed = await Seed001.open(server.url, connections=10)
    theirs = [await seed.create_session("bench", "seed") for _ in range(max(numbers))]

    async def measure(name: str, clients: int) -> float:
        if name == "pgbench":
            return await pgbench.run(clients, plan.seconds)
        if name == "seed 001":
            return await measure_warm([seed_appender(seed, one) for one in theirs[:clients]], plan.seconds)
        async with Engine.open(server.url) as engine:
            return await measure_warm([appender(engine.sessions, one) for one in ours[:clients]], plan.seconds)

    rates: dict[str, dict[int, list[float]]] = {name: {clients: [] for clients in numbers} for name in names}
    for round_ in range(1, plan.rounds + 1):
        for clients in numbers:
            for name in names:
                rates[name][clients].append(await measure(name, clients))
        _progress(f"round {round_} of {plan.rounds}")
    await seed.close()
    await _check_pgbench(server.url)
    return rates


async def _check_pgbench(url: str) -> None:
    """Check that every append of pgbench was stored and none was refused as a conflict."""
    connection = await asyncpg.connect(url)
    differ = await connection.fetchval(
        "SELECT count(*) FROM threads WHERE user_id = 'pgbench' AND (version <> last_sequence + 1 OR last_sequence = 0)"
    )
    await connection.close()
    if differ:
        raise RuntimeError(f"pgbench did other work than ours: {differ} of its threads did not change with each event")


def _report_rates(best: dict[str, dict[int, float]], report: Report) -> None:
    ours, pgbench, seed = best["ours"], best["pgbench"], best["seed 001"]
    report.grids.append(
        Grid(
            "Appends per second",
            ("writers", "ours", "pgbench", "seed 001", "ours / pgbench", "ours / seed 001"),
            [
                (str(n), ours[n], pgbench[n], seed[n], f"{ours[n] / pgbench[n]:.2f} x", f"{ours[n] / seed[n]:.2f} x")
                for n in _CLIENTS
            ],
        )
    )
    report.targets += [
        Target("append, 1 client, against pgbench", ours[1] / pgbench[1], 0.85),
        Target("append, 50 clients, against pgbench", ours[50] / pgbench[50], 1.5),
        Target("append, 10 writers, against seed 001", ours[10] / seed[10], 2),
        Target("append, 50 writers, against seed 001", ours[50] / seed[50], 5),
    ]
    report.panels.append(
        Bars(
            "Appends per second, each writer on a session of its own",
            "appends/s, more is better",
            [f"{clients} writer{'s' if clients > 1 else ''}" for clients in _CLIENTS],
            {
                "ours": list(ours.values()),
                "pgbench, same function": list(pgbench.values()),
                "seed 001, asyncpg": list(seed.values()),
            },
        )
    )


async def measure_creation(engine: Engine, plan: Plan, report: Report) -> None:
    """Sessions created per second."""

    def create() -> Awaitable[Session]:
        return engine.sessions.create("bench", "creator")

    rates: dict[int, list[float]] = {1: [], 50: []}
    await measure_rate([create] * 50, 0.5)
    for _ in range(plan.rounds):
        for clients, found in rates.items():
            found.append(await measure_rate([create] * clients, plan.seconds))
    best = {clients: median(found) for clients, found in rates.items()}
    report.grids.append(
        Grid("Sessions created per second", ("clients", "sessions/s"), [(str(n), rate) for n, rate in best.items()])
    )
    report.targets.append(Target("create session, 50 clients", best[50], 5000, unit="sessions/s"))
    report.details["sessions_per_second"] = {str(clients): found for clients, found in rates.items()}


async def measure_latency(samples: dict[int, list[tuple[Sessions, list[Session]]]]) -> dict[int, list[float]]:
    """Measure microseconds per append of one writer for each key, in alternating blocks."""
    found: dict[int, list[float]] = {key: [] for key in samples}
    for place in range(max(map(len, samples.values()))):
        for key, blocks in samples.items():
            writer, sessions = blocks[place]
            for session in sessions:
                start = time.perf_counter()
                await append(writer, session)
                found[key].append((time.perf_counter() - start) * 1e6)
    return found


async def compare_lengths(engine: Engine, plan: Plan, report: Report) -> None:
    """Measure appends to threads of different lengths."""
    samples: dict[int, list[tuple[Sessions, list[Session]]]] = {}
    async with engine._database.connection() as connection:
        for length in plan.lengths:
            # Each block uses a new short thread, because appends make it longer.
            copies = plan.blocks if length < 1000 else 1
            sessions = [await _load_thread(connection, length) for _ in range(copies)]
            samples[length] = [
                (engine.sessions, [sessions[block % copies]] * _APPENDS_PER_BLOCK) for block in range(plan.blocks)
            ]
        await connection.execute("VACUUM ANALYZE")
    found = await measure_latency(samples)
    times = [median(found[length]) for length in plan.lengths]
    report.targets.append(
        Target("append, 100 000 events against 1", times[-1] / times[0], 1.2, at_least=False),
    )
    _report_latency(
        "Cost of an append against the thread's length", "events in the thread", plan.lengths, times, report
    )
    report.details["append_us_by_length"] = {str(length): values for length, values in found.items()}


async def _load_thread(connection: Any, length: int) -> Session:
    """Create a thread with `length` events without firing triggers."""
    async with connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        thread_id = await connection.fetchval(
            """
            INSERT INTO threads (id, app_name, user_id, session_id, state, version, last_sequence)
            SELECT id, 'bench', 'long', id::text, '{"step": 0}', $1::bigint + 1, $1 FROM (SELECT uuidv7() AS id) AS made
            RETURNING id
            """,
            length,
        )
        await connection.execute(
            """
            INSERT INTO events (thread_id, sequence_num, id, app_name, invocation_id, author, event_type, actions,
                                version, changes_state)
            SELECT $1, n, uuidv7()::text, 'bench', 'benchmark', 'agent', 'state_update',
                   ('{"state_delta":{"step":' || n || '}}')::json, n + 1, true
              FROM generate_series(1, $2::bigint) AS n
            """,
            thread_id,
            length,
        )
    return _session(thread_id, version=length + 1, last_sequence=length)


def _session(thread_id: object, *, version: int = 1, last_sequence: int = 0) -> Session:
    key = str(thread_id)
    return Session(key, "bench", "long", version=version, thread_id=key, last_sequence=last_sequence)


async def compare_thread_counts(url: str, plan: Plan, report: Report) -> None:
    """Measure appends to random threads by number of threads, each number in a separate database."""
    appends = plan.blocks * _APPENDS_PER_BLOCK
    samples: dict[int, list[tuple[Sessions, list[Session]]]] = {}
    async with AsyncExitStack() as opened:
        for count in plan.thread_counts:
            other = await opened.enter_async_context(Engine.open(await _new_database(url, f"threads_{count}")))
            sessions = await _load_threads(other, count, at_most=appends)
            samples[count] = [
                (
                    other.sessions,
                    [
                        sessions[(block * _APPENDS_PER_BLOCK + step) % len(sessions)]
                        for step in range(_APPENDS_PER_BLOCK)
                    ],
                )
                for block in range(plan.blocks)
            ]
            _progress(f"{count} threads loaded")
        found = await measure_latency(samples)
    times = [median(found[count]) for count in plan.thread_counts]
    largest = f"{plan.thread_counts[-1]:,}".replace(",", " ")
    report.targets.append(Target(f"append, {largest} threads against 10", times[-1] / times[0], 1.3, at_least=False))
    _report_latency(
        "Cost of an append to a random thread against their number", "threads", plan.thread_counts, times, report
    )
    report.details["append_us_by_threads"] = {str(count): values for count, values in found.items()}


async def _new_database(url: str, name: str) -> str:
    connection = await asyncpg.connect(url)
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    return url.replace(f"/{DATABASE}?", f"/{name}?")


async def _load_threads(engine: Engine, count: int, *, at_most: int) -> list[Session]:
    """Create `count` threads; return a random selection."""
    async with engine._database.connection() as connection:
        await connection.execute(
            """
            INSERT INTO threads (id, app_name, user_id, session_id, state)
            SELECT id, 'bench', 'user-' || n % 10000, id::text, '{"step": 0}'
              FROM (SELECT n, uuidv7() AS id FROM generate_series(1, $1::integer) AS n) AS made
            """,
            count,
            timeout=600,
        )
        await connection.execute("VACUUM ANALYZE", timeout=600)
        await connection.execute("CHECKPOINT", timeout=600)
        rows = await connection.fetch("SELECT id FROM threads ORDER BY random() LIMIT $1", at_most)
    return [_session(row["id"]) for row in rows]


def _report_latency(title: str, axis: str, places: tuple[int, ...], times: list[float], report: Report) -> None:
    report.grids.append(
        Grid(
            title,
            (axis, "median µs", f"against {places[0]}"),
            [
                (f"{place:,}".replace(",", " "), value, f"{value / times[0]:.2f} x")
                for place, value in zip(places, times, strict=True)
            ],
        )
    )
    report.panels.append(Lines(title, "median µs, 1 writer, less is better", axis, places, {"ours": times}))


async def measure_memory(url: str, report: Report) -> None:
    """Measure resident memory in a new process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(_HERE / "memory_probe.py"), url, stdout=asyncio.subprocess.PIPE
    )
    output = (await process.communicate())[0]
    if process.returncode:
        raise RuntimeError("the memory probe failed")
    figures: dict[str, float] = json.loads(output)
    report.grids.append(
        Grid(
            "Memory of the client process (RSS)",
            ("what", "MiB"),
            [
                ("Python with the engine imported", figures["imported_mib"]),
                ("the same with one Engine open", figures["first_engine_mib"]),
                ("each further open Engine", figures["engine_mib"]),
                ("1000 Session objects held", figures["thousand_sessions_mib"]),
            ],
        )
    )
    report.details["memory"] = figures


async def run(plan: Plan) -> Report:
    """Run the whole benchmark."""
    report = Report("append", "Appending events: cognizes-engine")
    directory = Path(tempfile.mkdtemp(prefix="cognizes-bench-"))
    report.details["load_average_before"] = psutil.getloadavg()
    server = EmbeddedPostgres(directory)
    await server.start()
    try:
        await compare_rates(server, plan, report)
        async with Engine.open(server.url) as engine:
            report.details["fsync"] = await engine._database.pool.fetchval("SHOW fsync")
            await measure_creation(engine, plan, report)
            await compare_lengths(engine, plan, report)
            await compare_thread_counts(server.url, plan, report)
            await measure_memory(server.url, report)
    finally:
        await server.close()
        shutil.rmtree(directory)
    return report


async def repeat_ratio(times: int, plan: Plan) -> Report:
    """Measure the ratio to pgbench for one writer several times, each on a new server; the median is the target."""
    report = Report("append_ratio", "One writer against pgbench, repeated")
    rows = []
    for number in range(1, times + 1):
        _progress(f"run {number} of {times}")
        directory = Path(tempfile.mkdtemp(prefix="cognizes-bench-"))
        server = EmbeddedPostgres(directory)
        await server.start()
        try:
            found = await measure_rates(server, plan, (1,), names=("ours", "pgbench"))
        finally:
            await server.close()
            shutil.rmtree(directory)
        ours, pgbench = (median(found[name][1]) for name in ("ours", "pgbench"))
        rows.append((str(number), ours, pgbench, ours / pgbench))
    ratios = [row[-1] for row in rows]
    report.grids.append(Grid("Appends per second, one writer", ("run", "ours", "pgbench", "ours / pgbench"), rows))
    report.targets.append(Target(f"append, 1 client, against pgbench, median of {times} runs", median(ratios), 0.85))
    series = {"ours": [row[1] for row in rows], "pgbench, same function": [row[2] for row in rows]}
    report.panels.append(Bars("Appends per second, one writer", "appends/s", [row[0] for row in rows], series))
    report.details["ratios"] = ratios
    return report


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run, print and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a shorter run, with 100 000 threads at most")
    parser.add_argument("--out", type=Path, default=_HERE / "results", help="where the JSON and the chart go")
    parser.add_argument("--repeat", type=int, metavar="RUNS", help="only one writer against pgbench, so many times")
    arguments = parser.parse_args()
    plan = _QUICK if arguments.quick else _FULL
    report = uvloop.run(repeat_ratio(arguments.repeat, plan) if arguments.repeat else run(plan))
    report.print()
    for path in report.write(arguments.out):
        print(path)


if __name__ == "__main__":
    main()
