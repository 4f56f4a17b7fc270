"""Compare ADK's DatabaseSessionService with OpenSessionService on one embedded PostgreSQL with fsync on.

    uv run python benchmarks/against_adk.py [--quick] [--out DIRECTORY]

Both get the same calls, pools of the same size and separate databases on one server, and alternate in one run; one is
idle while the other works. A figure is the median of the rounds, a ratio the ratio of two medians.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import psutil
import uvloop
from google.adk.errors import StaleSessionError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.session import Session
from google.genai import types

from append import measure_rate
from cognizes.engine.adapters.adk import OpenSessionService
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.database.embedded import DATABASE
from cognizes.engine.database.notifications import NOTIFIER_NAME as NOTIFIER
from report import Bars, Grid, Report, Target, format_number
from wire_counter import WireCounter

_HERE = Path(__file__).parent
_APP = "bench"
_CONNECTIONS = 10
_ADK, _OURS, _OURS_REBASE, _OURS_UNCACHED = "ADK", "ours", "ours, rebase", "ours, no cache"
_RECENT = GetSessionConfig(num_recent_events=20)
_WRITERS = 10
_numbers = count()


@dataclass(frozen=True)
class Plan:
    """The amount of work in a round, on each side: seconds for rates, or a number of operations."""

    rounds: int
    seconds: float
    reads: int
    appends_per_writer: int
    budget: float
    """Seconds after which no further round starts, after at least five rounds."""
    targets_only: bool = False


_FULL = Plan(rounds=9, seconds=0.5, reads=5, appends_per_writer=5, budget=150)
_QUICK = Plan(rounds=5, seconds=0.06, reads=2, appends_per_writer=2, budget=0, targets_only=True)

Service = BaseSessionService
Measure = Callable[[Service, Plan], Awaitable[float]]
"""Seconds per operation in one round."""


@dataclass(frozen=True)
class Workload:
    """An operation on both sides."""

    name: str
    measure: Measure
    wanted: float | None = None
    sides: tuple[str, str] = (_ADK, _OURS)
    label: str = ""
    """The label in the chart; none omits it."""


def new_event(*, text: str | None = None, author: str = "agent") -> Event:
    """An event that changes one key of the state."""
    return Event(
        author=author,
        invocation_id="benchmark",
        content=types.Content(role="model", parts=[types.Part(text=text)]) if text else None,
        actions=EventActions(state_delta={"step": next(_numbers)}),
    )


async def new_session(service: Service, *, user: str = "ada", state: dict[str, Any] | None = None) -> Session:
    """An empty session."""
    return await service.create_session(app_name=_APP, user_id=user, state=state)


async def read(service: Service, session: Session, config: GetSessionConfig | None = None) -> Session:
    """Return the stored session."""
    found = await service.get_session(
        app_name=session.app_name, user_id=session.user_id, session_id=session.id, config=config
    )
    if found is None:
        raise RuntimeError(f"session {session.id} is gone")
    return found


# Writing


def creating(clients: int) -> Measure:
    """Create sessions with two keys of state, with concurrent clients."""

    async def measure(service: Service, plan: Plan) -> float:
        async def create() -> None:
            await new_session(service, state={"topic": "tea", "step": 0})

        return 1 / await measure_rate([create] * clients, plan.seconds)

    return measure


def appending(sessions: int, *, text: str | None = None, state: dict[str, Any] | None = None) -> Measure:
    """Append events with a delta of one key, one writer per session."""

    async def measure(service: Service, plan: Plan) -> float:
        made = [await new_session(service, state=state) for _ in range(sessions)]

        def appender(session: Session) -> Callable[[], Awaitable[Any]]:
            return lambda: service.append_event(session, new_event(text=text))

        return 1 / await measure_rate([appender(session) for session in made], plan.seconds)

    return measure


async def measure_contention(service: Service, plan: Plan) -> float:
    """Append with one session object per writer to one new session; a stale writer reads it and retries."""
    created = await new_session(service)
    copies = [await read(service, created) for _ in range(_WRITERS)]

    async def write(session: Session) -> None:
        for _ in range(plan.appends_per_writer):
            event = new_event()
            while True:
                try:
                    await service.append_event(session, event.model_copy(deep=True))
                    break
                except StaleSessionError:
                    session = await read(service, session)

    start = time.perf_counter()
    await asyncio.gather(*map(write, copies))
    seconds = time.perf_counter() - start
    wanted = _WRITERS * plan.appends_per_writer
    stored = len((await read(service, created)).events)
    if stored != wanted:
        raise RuntimeError(f"{stored} events are stored, not {wanted}")
    return seconds / wanted


# Reading


class LongSessions:
    """A session of 1000 events on each side."""

    def __init__(self) -> None:
        self._made: dict[type[Service], Session] = {}

    async def get(self, service: Service) -> Session:
        """Return the session of the service's database; create it on first use."""
        session = self._made.get(type(service))
        if session is None:
            session = self._made[type(service)] = await new_session(service)
            for _ in range(1000):
                await service.append_event(session, new_event(text=_TEXT))
        return session


def reading(sessions: LongSessions, config: GetSessionConfig | None = None, *, looks: bool = False) -> Measure:
    """Read a long session, each time after one untimed append.

    With `looks` every event is also read from the list: OpenSessionService copies it only then.
    """

    async def measure(service: Service, plan: Plan) -> float:
        session = await sessions.get(service)
        spent: list[float] = []
        for _ in range(plan.reads):
            await service.append_event(session, new_event(text=_TEXT))
            start = time.perf_counter()
            found = await read(service, session, config)
            events = list(found.events) if looks else found.events
            spent.append(time.perf_counter() - start)
            if len(events) < 20 or events[-1].id != session.events[-1].id:
                raise RuntimeError("the read is not what was written")
        return median(spent)

    return measure


class Listing:
    """Lists of 200 sessions."""

    def __init__(self) -> None:
        self._made: set[Service] = set()

    async def measure(self, service: Service, plan: Plan) -> float:
        """Seconds per list."""
        if service not in self._made:
            self._made.add(service)
            for number in range(200):
                await new_session(service, user="lister", state={"topic": "tea", "step": number, "done": False})

        async def list_all() -> None:
            if len((await service.list_sessions(app_name=_APP, user_id="lister")).sessions) != 200:
                raise RuntimeError("the list is not complete")

        return 1 / await measure_rate([list_all], plan.seconds)


_TEXT = "The kettle is on; the tea will be ready in about three minutes. Would you like milk or lemon with it?"


def _large_state() -> dict[str, str]:
    digits = random.Random(4)
    return {f"key {number}": digits.randbytes(500).hex() for number in range(100)}


def workloads() -> list[Workload]:
    """The workloads with targets, and a few without that show further cases."""
    long = LongSessions()
    return [
        Workload("create_session, 1 client", creating(1), 4, label="create, 1"),
        Workload("create_session, 10 clients", creating(10), 15, label="create, 10"),
        Workload("append_event with a delta, 1 client", appending(1), 4, label="append, 1"),
        Workload("append_event with a delta, 10 sessions", appending(10), 15, label="append, 10"),
        Workload("append_event with a delta and text, 1 client", appending(1, text=_TEXT)),
        Workload("append_event with a delta and text, 10 sessions", appending(10, text=_TEXT)),
        Workload("10 writers on one session, retrying", measure_contention, 25, label="10 writers"),
        Workload(
            "10 writers on one session, ours rebases",
            measure_contention,
            50,
            sides=(_ADK, _OURS_REBASE),
            label="10 writers, rebasing",
        ),
        Workload("get_session of 1000 events, after one append", reading(long), 5, label="get 1000"),
        Workload("the same, and looking at every event", reading(long, looks=True)),
        Workload(
            "get_session of 1000 events, every event, without our cache",
            reading(long, looks=True),
            2,
            sides=(_ADK, _OURS_UNCACHED),
            label="get 1000, no cache",
        ),
        Workload("get_session recent 20 of 1000", reading(long, _RECENT), 8, label="recent 20"),
        Workload("the same without our cache", reading(long, _RECENT), sides=(_ADK, _OURS_UNCACHED)),
        Workload("list_sessions, 200 sessions", Listing().measure, 5, label="list 200"),
        Workload("append of one key on a 100 kB state", appending(1, state=_large_state()), 10, label="100 kB state"),
    ]


async def compare(services: dict[str, Service], urls: Sequence[str], plan: Plan, report: Report) -> None:
    """Run every workload on every side, round by round; the first side changes each round."""
    asked = [workload for workload in workloads() if workload.wanted or not plan.targets_only]
    start = time.perf_counter()
    commits: list[float] = []
    found: list[dict[str, list[float]]] = [{side: [] for side in workload.sides} for workload in asked]
    warm_up = replace(plan, seconds=0.1, reads=2, appends_per_writer=1)
    for round_ in range(plan.rounds + 1):
        for workload, times in zip(asked, found, strict=True):
            for side in workload.sides if round_ % 2 else reversed(workload.sides):
                # One side must not pay for the garbage of the other.
                gc.collect()
                spent = await workload.measure(services[side], plan if round_ else warm_up)
                if round_:
                    times[side].append(spent)
        if round_:
            commits.append(await _time_commit(urls[0]))
        else:
            await _vacuum(urls)
        _progress(f"round {round_} of {plan.rounds}" if round_ else "warm")
        if round_ >= 5 and time.perf_counter() - start > plan.budget:
            break
    _report_times(asked, found, report)
    report.grids.append(
        Grid("Beneath both", ("what", "ms"), [("one row inserted, asyncpg alone", median(commits) * 1e3)])
    )
    report.details["seconds_per_commit"] = commits


async def _time_commit(url: str) -> float:
    """Measure the smallest writing transaction: the lower bound of any session service."""
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE IF NOT EXISTS commits (n integer)")
    insert = await connection.prepare("INSERT INTO commits VALUES ($1)")
    spent: list[float] = []
    for number in range(20):
        start = time.perf_counter()
        await insert.fetch(number)
        spent.append(time.perf_counter() - start)
    await connection.close()
    return median(spent)


async def _vacuum(urls: Sequence[str]) -> None:
    """Analyse both databases, as autovacuum would."""
    for url in urls:
        connection = await asyncpg.connect(url)
        await connection.execute("VACUUM ANALYZE")
        await connection.close()


def _report_times(asked: Sequence[Workload], found: Sequence[dict[str, list[float]]], report: Report) -> None:
    rows: list[tuple[str, ...]] = []
    bars: dict[str, tuple[float, float]] = {}
    for workload, times in zip(asked, found, strict=True):
        base, value = (median(times[side]) * 1e3 for side in workload.sides)
        rows.append((workload.name, format_number(base), format_number(value), f"{base / value:.1f} x"))
        if workload.wanted is not None:
            report.targets.append(Target(workload.name, base / value, workload.wanted))
            bars[workload.label] = (base / value, workload.wanted)
    report.grids.append(Grid("Milliseconds per operation", ("workload", "ADK", "ours", "ADK / ours"), rows))
    report.details["seconds_per_operation"] = [
        {"workload": workload.name, "seconds": times} for workload, times in zip(asked, found, strict=True)
    ]
    for title, labels in (
        ("Writing", ("create, 1", "create, 10", "append, 1", "append, 10", "100 kB state")),
        ("Reading", ("get 1000", "get 1000, no cache", "recent 20", "list 200")),
        ("Ten writers on one session, retrying", ("10 writers", "10 writers, rebasing")),
    ):
        series = {
            "faster than ADK": [bars[label][0] for label in labels],
            "wanted": [bars[label][1] for label in labels],
        }
        report.panels.append(Bars(title, "times as fast as ADK's DatabaseSessionService", labels, dict(series)))


_COUNTED = ("create_session", "append_event", "get_session", "get_session, recent 20", "list_sessions")


async def count_round_trips(services: dict[str, tuple[Service, WireCounter]], report: Report) -> None:
    """Count the round trips of an operation with prepared statements."""
    counts = {side: await _count(service, wire) for side, (service, wire) in services.items()}
    report.grids.append(
        Grid(
            "Round trips per operation",
            ("operation", *counts),
            [(name, *(f"{by[name]:g}" for by in counts.values())) for name in _COUNTED],
        )
    )
    for name in ("append_event", "get_session"):
        report.targets.append(Target(f"round trips of {name}", counts[_OURS][name], 1, unit="", at_least=False))
    report.details["round_trips"] = counts


async def _count(service: Service, wire: WireCounter) -> dict[str, float]:
    session = await new_session(service, user="counted")
    steps: tuple[Callable[[], Awaitable[Any]], ...] = (
        lambda: new_session(service, user="counted"),
        lambda: service.append_event(session, new_event()),
        lambda: read(service, session),
        lambda: read(service, session, _RECENT),
        lambda: service.list_sessions(app_name=_APP, user_id="counted"),
    )
    found: dict[str, float] = {}
    for name, step in zip(_COUNTED, steps, strict=True):
        for _ in range(3):
            await step()
            await wire.settle()
        before = wire.requests
        for _ in range(5):
            await step()
        found[name] = (await wire.settle() - before) / 5
    return found


def _adk_service(url: str) -> DatabaseSessionService:
    return DatabaseSessionService(
        url.replace("postgresql://", "postgresql+asyncpg://"), pool_size=_CONNECTIONS, max_overflow=0
    )


async def run(plan: Plan) -> Report:
    """Run the whole benchmark."""
    report = Report("against_adk", "OpenSessionService against ADK's DatabaseSessionService")
    directory = Path(tempfile.mkdtemp(prefix="cognizes-bench-"))
    report.details["load_average_before"] = psutil.getloadavg()
    server = EmbeddedPostgres(directory)
    await server.start()
    try:
        urls = {_OURS: server.url, _ADK: await _new_database(server.url, "adk")}
        await _run_all(urls, plan, report)
    finally:
        await server.close()
        shutil.rmtree(directory)
    report.details["load_average_after"] = psutil.getloadavg()
    return report


async def _run_all(urls: dict[str, str], plan: Plan, report: Report) -> None:
    ours = urls[_OURS]
    async with AsyncExitStack() as opened:
        services: dict[str, Service] = {_ADK: await opened.enter_async_context(_adk_service(urls[_ADK]))}
        # They share one engine, and so one pool.
        options: dict[str, dict[str, Any]] = {
            _OURS: {},
            _OURS_REBASE: {"on_conflict": "rebase"},
            _OURS_UNCACHED: {"cache_size": 0},
        }
        for side, given in options.items():
            service = OpenSessionService(ours, pool_size=_CONNECTIONS, **given)
            services[side] = await opened.enter_async_context(service)
        await compare(services, list(urls.values()), plan, report)
    socket = f"{parse_qs(urlsplit(ours).query)['host'][0]}/.s.PGSQL.5432"
    async with AsyncExitStack() as opened:
        counted: dict[str, tuple[Service, WireCounter]] = {}
        for side, url in urls.items():
            # No caller waits for the notification after a commit, which has a connection of its own.
            wire = await opened.enter_async_context(WireCounter(socket, uncounted=NOTIFIER))
            address = f"postgresql://postgres@127.0.0.1:{wire.port}{urlsplit(url).path}"
            counted_service = (
                _adk_service(f"{address}?ssl=disable")
                if side == _ADK
                else OpenSessionService(f"{address}?sslmode=disable", pool_size=_CONNECTIONS)
            )
            counted[side] = (await opened.enter_async_context(counted_service), wire)
        await count_round_trips(counted, report)


async def _new_database(url: str, name: str) -> str:
    connection = await asyncpg.connect(url)
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    return url.replace(f"/{DATABASE}?", f"/{name}?")


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run, print and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a shorter run, of what has a target only")
    parser.add_argument("--out", type=Path, default=_HERE / "results", help="where the JSON and the chart go")
    arguments = parser.parse_args()
    report = uvloop.run(run(_QUICK if arguments.quick else _FULL))
    report.print()
    for path in report.write(arguments.out):
        print(path)


if __name__ == "__main__":
    main()
