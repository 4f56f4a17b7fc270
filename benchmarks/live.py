"""Measure the latency of an event from another process, through PostgreSQL, to an SSE connection.

    uv run python benchmarks/live.py [--quick] [--out DIRECTORY]

Starts a separate embedded PostgreSQL (fsync on), real API processes and a writer process; stops them all.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from uuid import UUID

import psutil
import uvloop

from cognizes.engine import Engine, Event
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.pulse.state_manager import StateManager
from live_client import Follower, Stream, open_counting, open_stalled, open_stream, percentile
from live_server import ApiServer, Writer, serve, start_writer
from live_writer import append_beat
from report import Bars, Grid, Report, Target

_HERE = Path(__file__).parent
_RATES = (100, 1000)
_SUBSCRIBERS = (0, 1, 100)
_WARM_CONNECTIONS = 100
_CONNECT_AT_ONCE = 50
_WRITERS = 10
_STALLED = 200
_FLOW_EVENTS = 2000
_FLOW_BYTES = 1024
_CUT_OFF_SECONDS = 40
"""The server disconnects a reader that does not read after 30 seconds."""


@dataclass(frozen=True)
class Plan:
    """The amount of work."""

    seconds: int
    connections: int
    signals: int
    signal_seconds: float
    flow_seconds: int
    rounds: int
    append_seconds: float


_FULL = Plan(seconds=60, connections=5000, signals=200, signal_seconds=40, flow_seconds=20, rounds=5, append_seconds=2)
_QUICK = Plan(seconds=5, connections=500, signals=200, signal_seconds=5, flow_seconds=5, rounds=2, append_seconds=1)


@dataclass(frozen=True)
class Place:
    """A followed run and its thread, which has one event, `run_started`."""

    thread: UUID
    run_id: str


async def make_places(engine: Engine, count: int) -> list[Place]:
    """Threads with one run each."""
    return await asyncio.gather(*(_make_place(engine) for _ in range(count)))


async def _make_place(engine: Engine) -> Place:
    session = await StateManager(engine._database).create_session("bench", "live")
    place = Place(UUID(session.thread_id), f"run-{session.thread_id}")
    event = Event(
        id="",
        thread_id=session.thread_id,
        invocation_id="",
        author="agent",
        event_type="run_started",
        run_id=place.run_id,
    )
    await engine.sessions.append_to_thread(place.thread, event)
    return place


async def follow(url: str, place: Place) -> tuple[Stream, Follower]:
    """Open a connection and wait until it has received all stored events."""
    follower = Follower(expected=1)
    stream = await open_stream(url, place.run_id, follower.take)
    if not await _until(lambda: follower.received, 20):
        raise RuntimeError(f"no frame of {place.run_id} came from {url}")
    follower.received = 0
    follower.latencies.clear()
    return stream, follower


async def _until(is_so: Callable[[], object], seconds: float) -> bool:
    deadline = time.perf_counter() + seconds
    while not is_so():
        if time.perf_counter() > deadline:
            return False
        await asyncio.sleep(0.005)
    return True


async def measure_delivery(
    engine: Engine, writer: Writer, servers: list[ApiServer], plan: Plan, report: Report
) -> None:
    """Measure from the append in another process to the frame, with two API processes and one connection each."""
    rows: list[tuple[str, ...]] = []
    found: dict[int, dict[str, float]] = {}
    for rate in _RATES:
        place = (await make_places(engine, 1))[0]
        followed = [await follow(server.url, place) for server in servers]
        busy = [server.processor_seconds() for server in servers]
        wrote = await writer.append(
            thread=str(place.thread), run=place.run_id, rate=rate, seconds=plan.seconds, bytes=0
        )
        appends = int(wrote["appends"])
        await _until(lambda: all(follower.received >= appends for _, follower in followed), 10)  # noqa: B023
        shares = [(s.processor_seconds() - b) / wrote["seconds"] for s, b in zip(servers, busy, strict=True)]
        await asyncio.sleep(0.2)
        for stream, _ in followed:
            stream.close()
        late = [latency for _, follower in followed for latency in follower.latencies]
        stored = await engine._database.pool.fetchval(
            "SELECT count(*) FROM events WHERE thread_id = $1 AND event_type = 'beat'", place.thread
        )
        found[rate] = {
            "appends": appends,
            "stored": stored,
            "rate": appends / wrote["seconds"],
            "p50": percentile(late, 0.5),
            "p99": percentile(late, 0.99),
            "max": max(late),
            "received": sum(follower.received for _, follower in followed),
            "lost": sum(stored - follower.received for _, follower in followed),
            "gaps": sum(follower.lost for _, follower in followed),
            "doubled_or_out_of_order": sum(follower.repeated for _, follower in followed),
            "processor_share_of_a_server": median(shares),
        }
        figures = found[rate]
        rows.append(
            (
                f"{rate}/s",
                f"{figures['rate']:.0f}",
                f"{figures['p50']:.1f}",
                f"{figures['p99']:.1f}",
                f"{figures['max']:.1f}",
                f"{figures['received']:.0f}",
                f"{figures['lost']:.0f}",
                f"{figures['doubled_or_out_of_order']:.0f}",
                f"{figures['processor_share_of_a_server']:.0%}",
            )
        )
        _progress(f"{rate} messages/s: p99 {figures['p99']:.1f} ms")
    report.grids.append(
        Grid(
            "Append in another process → frame, two API processes, ms",
            ("rate", "reached", "p50", "p99", "max", "frames", "lost", "doubled, disordered", "CPU of a server"),
            rows,
        )
    )
    report.targets += [
        Target("append → frame, 100/s, p99", found[100]["p99"], 50, unit="ms", at_least=False),
        Target(
            "lost, doubled or out of order, both rates",
            sum(abs(f["lost"]) + f["gaps"] + f["doubled_or_out_of_order"] for f in found.values()),
            0,
            unit="events",
            at_least=False,
        ),
    ]
    report.panels.append(
        Bars(
            "Append in another process → frame at the client, two API processes",
            "ms, less is better",
            [f"{rate} messages/s" for rate in _RATES],
            {"p50": [found[rate]["p50"] for rate in _RATES], "p99": [found[rate]["p99"] for rate in _RATES]},
        )
    )
    report.details["delivery"] = {str(rate): figures for rate, figures in found.items()}


class Crowd:
    """Thousands of idle connections to one API process, each following its own run."""

    def __init__(self, engine: Engine, server: ApiServer) -> None:
        self._engine = engine
        self._server = server
        self.streams: list[tuple[Stream, Place]] = []

    async def connect(self, places: list[Place]) -> float:
        """Open a connection per run; return the seconds until the last one is subscribed."""
        waiting = len(places)
        done = asyncio.Event()

        def count(number: int, data: bytes) -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                done.set()

        start = time.perf_counter()
        gate = asyncio.Semaphore(_CONNECT_AT_ONCE)

        async def connect(place: Place) -> None:
            async with gate:
                self.streams.append((await open_stream(self._server.url, place.run_id, count), place))

        await asyncio.gather(*map(connect, places))
        await done.wait()
        return time.perf_counter() - start

    async def signal(self, times: int, seconds: float) -> list[float]:
        """Measure milliseconds from an append to its frame, each time on another connection."""
        late: list[float] = []
        for place in range(times):
            stream, followed = random.choice(self.streams)
            follower = Follower(expected=0)
            stream.on_event = follower.take
            began = time.perf_counter()
            await append_beat(self._engine, followed.thread, followed.run_id)
            if not await _until(lambda: follower.latencies, 60):  # noqa: B023
                raise RuntimeError(f"signal {place} never arrived")
            late += follower.latencies
            await asyncio.sleep(max(0.0, seconds / times * random.uniform(0.5, 1.5) - (time.perf_counter() - began)))
        return late

    @property
    def open(self) -> int:
        return sum(stream.is_open for stream, _ in self.streams)

    def close(self) -> None:
        for stream, _ in self.streams:
            stream.close()


async def measure_crowd(engine: Engine, writer: Writer, server: ApiServer, plan: Plan, report: Report) -> None:
    """Measure cost and latency of idle connections, also with readers that do not read."""
    places = await make_places(engine, plan.connections + _WARM_CONNECTIONS)
    crowd = Crowd(engine, server)
    # The first connections load modules, which is not a cost per connection.
    await crowd.connect(places[:_WARM_CONNECTIONS])
    await crowd.signal(5, 0.1)
    before = server.resident()
    seconds = await crowd.connect(places[_WARM_CONNECTIONS:])
    gc.freeze()
    await asyncio.sleep(3)
    each = (server.resident() - before) / plan.connections / 1024
    _progress(f"{plan.connections} connections in {seconds:.1f} s, {each:.1f} KiB each")

    idle_from = server.processor_seconds(), time.perf_counter()
    alone = await crowd.signal(plan.signals, plan.signal_seconds)
    share = (server.processor_seconds() - idle_from[0]) / (time.perf_counter() - idle_from[1])
    held = (server.resident() - before) / plan.connections / 1024
    _progress(f"signal to one of them: p99 {percentile(alone, 0.99):.1f} ms")

    flow_place, stalled_place = await make_places(engine, 2)
    control = await _signal_beside_flow(crowd, writer, flow_place, plan)
    stalled = [await open_stalled(server.url, stalled_place.run_id) for _ in range(_STALLED)]
    await asyncio.sleep(2)
    without = server.resident()
    beside = await _signal_beside_flow(crowd, writer, stalled_place, plan)
    grown = (server.resident() - without) / 2**20
    _progress(f"beside {_STALLED} stalled readers: p99 {percentile(beside, 0.99):.1f} ms, {grown:.1f} MiB more")
    await asyncio.sleep(_CUT_OFF_SECONDS)
    afterwards = await crowd.signal(plan.signals, plan.flow_seconds)
    after_cut = (server.resident() - without) / 2**20
    still_open = crowd.open
    for one in stalled:
        one.close()
    crowd.close()

    report.grids += [
        Grid(
            f"{plan.connections} idle connections on one API process, each on a run of its own",
            ("what", "measured"),
            [
                ("until all are subscribed, s", seconds),
                ("connections per second", plan.connections / seconds),
                ("RSS per connection, KiB", each),
                ("the same after the signals, KiB", held),
                ("CPU of the idle server, of one core", f"{share:.1%}"),
                ("connections lost", float(len(crowd.streams) - still_open)),
            ],
        ),
        Grid(
            "A signal to one of them, ms",
            ("beside", "p50", "p99", "max"),
            [
                _latency_row("nothing", alone),
                _latency_row(f"{_FLOW_EVENTS} events of 1 KB without subscribers", control),
                _latency_row(f"the same for {_STALLED} readers that do not read", beside),
                _latency_row("nothing, while those readers are disconnected", afterwards),
            ],
        ),
        Grid(
            f"RSS of the server with {_STALLED} stalled readers",
            ("when", "MiB more"),
            [("when all events had been sent", grown), ("when the readers had been disconnected", after_cut)],
        ),
    ]
    report.targets += [
        Target(f"RSS per connection, {plan.connections} idle", each, 24, unit="KiB", at_least=False),
        Target("signal to one idle connection, p99", percentile(alone, 0.99), 20, unit="ms", at_least=False),
        Target(
            f"the same beside {_STALLED} stalled readers, against the flow alone",
            percentile(beside, 0.99) / percentile(control, 0.99),
            1.5,
            at_least=False,
        ),
    ]
    report.panels.append(
        Bars(
            f"A signal to one of {plan.connections} idle connections of one process",
            "ms, less is better",
            ["nothing else", "flow, no reader", "flow, 200 stalled", "those cut off"],
            {
                f"p{share:.0%}"[:-1]: [percentile(late, share) for late in (alone, control, beside, afterwards)]
                for share in (0.5, 0.99)
            },
        )
    )
    report.details["crowd"] = {
        "connect_seconds": seconds,
        "kib_per_connection": each,
        "signal_ms": {"alone": alone, "control": control, "beside_stalled": beside, "afterwards": afterwards},
        "stalled_mib": {"sent": grown, "cut_off": after_cut},
    }


async def _signal_beside_flow(crowd: Crowd, writer: Writer, place: Place, plan: Plan) -> list[float]:
    """Measure latency while events are appended to another thread."""
    flow = writer.append(
        thread=str(place.thread),
        run=place.run_id,
        rate=_FLOW_EVENTS / plan.flow_seconds,
        seconds=plan.flow_seconds,
        bytes=_FLOW_BYTES,
    )
    late, _ = await asyncio.gather(crowd.signal(plan.signals, plan.flow_seconds), flow)
    return late


def _latency_row(name: str, late: list[float]) -> tuple[str, float, float, float]:
    return name, percentile(late, 0.5), percentile(late, 0.99), max(late)


async def measure_appends(engine: Engine, writer: Writer, server: ApiServer, plan: Plan, report: Report) -> None:
    """Measure the cost of subscribers for the writer, alternating: 0, 1, 100, 0, 1, 100, …

    One subscriber measures the latency of each frame; the others count their frames, so that the clients take little
    of the processor time.
    """
    rates: dict[int, list[float]] = {count: [] for count in _SUBSCRIBERS}
    frames: dict[int, list[float]] = {count: [] for count in _SUBSCRIBERS}
    late: dict[int, list[float]] = {count: [] for count in _SUBSCRIBERS}
    cost: dict[int, list[float]] = {count: [] for count in _SUBSCRIBERS}
    warm = (await make_places(engine, 1))[0]
    await writer.append(thread=str(warm.thread), run=warm.run_id, writers=_WRITERS, bytes=0, seconds=0.5)
    for _ in range(plan.rounds):
        for count in _SUBSCRIBERS:
            place = (await make_places(engine, 1))[0]
            measured = await follow(server.url, place) if count else None
            counting = [await open_counting(server.url, place.run_id) for _ in range(count - 1)]
            if not await _until(lambda: all(stream.newest for stream in counting), 20):  # noqa: B023
                raise RuntimeError("a subscriber got no frame")
            order = {"thread": str(place.thread), "run": place.run_id, "writers": _WRITERS, "bytes": 0}
            start, used = time.perf_counter(), server.processor_seconds()
            wrote = await writer.append(**order, seconds=plan.append_seconds)
            rates[count].append(wrote["appends"] / wrote["seconds"])
            appends = int(wrote["appends"])
            if measured is not None:
                stream, follower = measured
                # Their first frame is that of the event before.
                received = [lambda: follower.received, *(lambda one=one: one.received - 1 for one in counting)]  # noqa: B023
                if not await _until(lambda: all(count_of() >= appends for count_of in received), 60):  # noqa: B023
                    raise RuntimeError("a subscriber did not get all events")
                if any(count_of() != appends for count_of in received) or follower.lost or follower.repeated:
                    raise RuntimeError("a subscriber got an event twice, or not at all")
                last = max(follower.last_at, *(one.last_at for one in counting), 0.0)
                frames[count].append(appends * count / (last - start))
                late[count] += follower.latencies
                stream.close()
            cost[count].append((server.processor_seconds() - used) / appends * 1e6)
            for one in counting:
                one.close()
        _progress("appends/s: " + ", ".join(f"{count}: {rates[count][-1]:.0f}" for count in _SUBSCRIBERS))
    best = {count: median(found) for count, found in rates.items()}
    report.grids.append(
        Grid(
            f"Appends per second on one thread, {_WRITERS} writers in one process",
            (
                "subscribers",
                "appends/s",
                "against none",
                "frames/s sent",
                "append → frame p50 ms",
                "p99 ms",
                "server, µs of processor time per append",
            ),
            [
                (
                    str(count),
                    best[count],
                    f"{best[count] / best[0]:.2f} x",
                    median(frames[count]) if count else "-",
                    percentile(late[count], 0.5) if count else "-",
                    percentile(late[count], 0.99) if count else "-",
                    median(cost[count]),
                )
                for count in _SUBSCRIBERS
            ],
        )
    )
    most = _SUBSCRIBERS[-1]
    report.targets.append(Target(f"appends with {most} subscribers against none", best[most] / best[0], 0.8))
    report.targets.append(
        Target(f"append → frame, {most} subscribers, p99", percentile(late[most], 0.99), 20, "ms", at_least=False)
    )
    report.panels.append(
        Bars(
            "Appends per second on one thread by its subscribers",
            "appends/s, more is better",
            [f"{count} subscriber{'' if count == 1 else 's'}" for count in _SUBSCRIBERS],
            {f"{_WRITERS} writers, one process": list(best.values())},
        )
    )
    report.details["appends"] = {str(count): found for count, found in rates.items()}


async def run(plan: Plan, parts: str) -> Report:
    """Run the whole benchmark."""
    report = Report("live", "From an append to the screens: cognizes-engine")
    report.details["load_average_before"] = psutil.getloadavg()
    directory = Path(tempfile.mkdtemp(prefix="cognizes-live-"))
    async with AsyncExitStack() as opened:
        opened.callback(shutil.rmtree, directory)
        postgres = EmbeddedPostgres(directory / "data")
        await postgres.start()
        opened.push_async_callback(postgres.close)
        engine = await opened.enter_async_context(Engine.open(postgres.url))
        writer = await opened.enter_async_context(start_writer(postgres.url))
        if "1" in parts:
            async with serve(postgres.url, directory, "a") as first, serve(postgres.url, directory, "b") as second:
                await measure_delivery(engine, writer, [first, second], plan, report)
        if "2" in parts:
            async with serve(postgres.url, directory, "crowd") as server:
                await measure_crowd(engine, writer, server, plan, report)
        if "3" in parts:
            async with serve(postgres.url, directory, "appends") as server:
                await measure_appends(engine, writer, server, plan, report)
    return report


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run, print and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="five seconds a rate, 500 connections")
    parser.add_argument("--parts", default="123", help="1 delivery, 2 idle connections, 3 appends by subscribers")
    parser.add_argument("--out", type=Path, default=_HERE / "results", help="where the JSON and the chart go")
    arguments = parser.parse_args()
    # Child processes inherit it: server and client need a descriptor per connection.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    report = uvloop.run(run(_QUICK if arguments.quick else _FULL, arguments.parts))
    report.print()
    for path in report.write(arguments.out):
        print(path)


if __name__ == "__main__":
    main()
