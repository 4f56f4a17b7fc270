"""Measure seed 003 §8.3: a thousand signals per second, a hundred concurrent pulls, a message of 10 MB, long threads.

    uv run python benchmarks/signals.py [--quick] [--out DIRECTORY]

Starts a separate embedded PostgreSQL (fsync on) and a real API process. The producer is this process, so all signals
pass through PostgreSQL. Stops everything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import uvloop

from cognizes.engine import Engine, Session
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.sync.client import SignalPullClient
from live_client import percentile
from live_server import serve
from report import Bars, Grid, Report, Target

_HERE = Path(__file__).parent
_MESSAGES = 40
"""So many that each writes more slowly than the flusher: every token is a separate signal."""
_RATE = 1000
_PULLS = 100
_LARGE = 10 * 1024 * 1024
_TIMEOUT = 120


@dataclass(frozen=True)
class Plan:
    """The amount of work."""

    seconds: int
    rounds: int
    long_thread: int


_FULL = Plan(seconds=30, rounds=200, long_thread=10_000)
_QUICK = Plan(seconds=3, rounds=50, long_thread=10_000)


@dataclass
class Heard:
    """The signals that a reader received."""

    signals: int = 0
    bytes: int = 0
    largest: int = 0
    reached: dict[str, int] = field(default_factory=dict)
    completed: dict[str, int] = field(default_factory=dict)
    went_back: int = 0
    is_open: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, line: str) -> None:
        """Read one line of the stream."""
        self.bytes += len(line) + 1
        if not line.startswith("data: "):
            return
        self.is_open.set()
        self.signals += 1
        self.largest = max(self.largest, len(line) - 6)
        signal = json.loads(line[6:])
        name = signal.get("message_id")
        if signal["type"] == "content_delta":
            self.went_back += signal["current_sequence"] <= self.reached.get(name, 0)
            self.reached[name] = signal["current_sequence"]
        elif signal["type"] == "message_completed":
            self.completed[name] = signal["final_sequence"]


@asynccontextmanager
async def listening(url: str, session: Session) -> AsyncIterator[Heard]:
    """Receive the signals of a context for the duration of the block."""
    heard = Heard()

    async def hear() -> None:
        async with (
            httpx.AsyncClient(base_url=url, timeout=_TIMEOUT) as http,
            http.stream("GET", f"/contexts/{session.thread_id}/events") as response,
        ):
            async for line in response.aiter_lines():
                heard.take(line)

    task = asyncio.create_task(hear())
    await heard.is_open.wait()
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.wait([task])


async def produce(engine: Engine, session: Session, messages: int, seconds: float) -> dict[str, int]:
    """Stream messages concurrently, together a thousand tokens per second; return their lengths."""
    written: dict[str, int] = {}

    async def write(number: int) -> None:
        count = int(seconds * _RATE / messages)
        async with engine.stream_message(session, message_id=f"m{number}") as message:
            started = time.perf_counter()
            for token in range(count):
                await message.write(f"token {token} ")
                ahead = started + (token + 1) * messages / _RATE - time.perf_counter()
                await asyncio.sleep(max(ahead, 0))
        written[message.message_id] = count

    await asyncio.gather(*(write(number) for number in range(messages)))
    return written


async def until(condition: Callable[[], Any]) -> None:
    """Waits for a condition."""
    async with asyncio.timeout(_TIMEOUT):
        while not condition():
            await asyncio.sleep(0.02)


def _client(url: str, session: Session) -> SignalPullClient:
    # The condition shares this process with the producer: it is checked only five times per second.
    return SignalPullClient(url, session.thread_id, debounce=0.2)


async def measure_signals(engine: Engine, url: str, messages: int, seconds: int) -> dict[str, float]:
    """Measure a thousand tokens per second on one context, with one reader and one client."""
    session = await engine.sessions.create("bench", "signals")
    async with listening(url, session) as heard, _client(url, session) as client:
        started = time.perf_counter()
        written = await produce(engine, session, messages, seconds)
        took = time.perf_counter() - started
        await until(lambda: len(heard.completed) == messages)
        async with asyncio.timeout(_TIMEOUT):
            await client.wait_for(
                lambda copy: len(copy.messages) == messages and all(found.is_complete for found in copy.messages)
            )
    stored = {message.id: message.content for message in await engine.sessions.messages(session)}
    mirrored = {message.id: message.text for message in client.copy.messages}
    tokens = sum(written.values())
    return {
        "tokens_per_second": tokens / took,
        "signals_per_second": heard.signals / took,
        "lost": sum(heard.completed.get(name) != count for name, count in written.items()) + heard.went_back,
        "bytes_per_1000_tokens": heard.bytes / tokens * 1000,
        "largest_signal": heard.largest,
        "wrong_texts": sum(mirrored.get(name) != text for name, text in stored.items()),
    }


async def measure_pulls(engine: Engine, url: str) -> dict[str, float]:
    """Measure a hundred concurrent pulls of a message of a thousand tokens, and the compression."""
    session = await engine.sessions.create("bench", "pulls")
    async with engine.stream_message(session, message_id="m") as message:
        for token in range(1000):
            await message.write(f"token {token} ")
    path = f"/contexts/{session.thread_id}/messages/m/streaming-chunks"
    # The server closes connections that are idle for five seconds; older ones must not be reused.
    limits = httpx.Limits(max_connections=_PULLS, max_keepalive_connections=_PULLS, keepalive_expiry=2)
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT, limits=limits) as http:
        plain = await http.get(path, headers={"Accept-Encoding": "identity"})
        async with http.stream("GET", path, headers={"Accept-Encoding": "gzip"}) as packed:
            small = b"".join([part async for part in packed.aiter_raw()])
        times: list[float] = []

        async def pull() -> int:
            started = time.perf_counter()
            page = (await http.get(path)).json()
            times.append(time.perf_counter() - started)
            return len(page["chunks"])

        await asyncio.gather(*(pull() for _ in range(_PULLS)))  # connections are opened
        times.clear()
        started = time.perf_counter()
        found = await asyncio.gather(*(pull() for _ in range(_PULLS)))
        took = time.perf_counter() - started
    return {
        "whole": sum(count == 1000 for count in found),
        "seconds": took,
        "p50_ms": median(times) * 1000,
        "p99_ms": percentile(times, 0.99) * 1000,
        "plain_kilobytes": len(plain.content) / 1024,
        "gzip_kilobytes": len(small) / 1024,
    }


async def measure_large(engine: Engine, url: str) -> dict[str, float]:
    """Measure the pull of a whole message of 10 MB."""
    session = await engine.sessions.create("bench", "large")
    chunk = "0123456789abcdef" * 64
    async with engine.stream_message(session, message_id="m") as message:
        for _ in range(_LARGE // len(chunk)):
            await message.write(chunk)
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT) as http:
        parts: list[str] = []
        last, pulls = 0, 0
        started = time.perf_counter()
        while True:
            params = {"from_sequence": last}
            page = (await http.get(f"/contexts/{session.thread_id}/messages/m/streaming-chunks", params=params)).json()
            pulls += 1
            parts += [found["delta"] for found in page["chunks"]]
            last = page["chunks"][-1]["sequence"]
            if not page["has_more"]:
                break
        took = time.perf_counter() - started
    return {"is_whole": "".join(parts) == chunk * (_LARGE // len(chunk)), "seconds": took, "pulls": pulls}


async def make_thread(engine: Engine, events: int) -> Session:
    """Create a thread of turns: a question, a thought, a call, its result, an answer."""
    session = await engine.sessions.create("bench", "timeline")
    kinds = ("user_message", "thought", "act", "observe", "assistant_message")
    for start in range(0, events, 500):
        await asyncio.gather(*(
            engine.sessions.append(
                session, author="user" if number % 5 == 0 else "agent", kind=kinds[number % 5],
                text=f"event {number} " * 8, content={"tool_call_id": f"c{number // 5}", "tool_name": "search"},
            )
            for number in range(start, min(start + 500, events))
        ))  # fmt: skip
    return session


async def measure_growth(
    read: Callable[[Session], Awaitable[Any]], short: Session, long: Session, rounds: int
) -> tuple[float, float]:
    """Measure the median milliseconds of reading a short and a long thread, alternating."""
    times: dict[str, list[float]] = {short.thread_id: [], long.thread_id: []}
    for number in range(rounds + 5):
        for session in (short, long):
            started = time.perf_counter()
            await read(session)
            if number >= 5:
                times[session.thread_id].append(time.perf_counter() - started)
    return median(times[short.thread_id]) * 1000, median(times[long.thread_id]) * 1000


async def run(plan: Plan, directory: Path) -> Report:
    """Run all measurements."""
    server = EmbeddedPostgres(directory / "data")
    await server.start()
    try:
        async with Engine.open(server.url) as engine, serve(server.url, directory, "api") as api:
            many = await measure_signals(engine, api.url, _MESSAGES, plan.seconds)
            one = await measure_signals(engine, api.url, 1, plan.seconds)
            pulls = await measure_pulls(engine, api.url)
            large = await measure_large(engine, api.url)
            short, long = await make_thread(engine, 100), await make_thread(engine, plan.long_thread)
            page = await measure_growth(
                lambda session: engine.timeline.read(session.thread_id, limit=50), short, long, plan.rounds
            )
            metadata = await measure_growth(
                lambda session: engine.contexts.metadata(session.thread_id), short, long, plan.rounds
            )
    finally:
        await server.close()
    return make_report(many, one, pulls, large, page, metadata, plan)


def make_report(
    many: dict[str, float], one: dict[str, float], pulls: dict[str, float], large: dict[str, float],
    page: tuple[float, float], metadata: tuple[float, float], plan: Plan,
) -> Report:  # fmt: skip
    """Build the report with its targets."""
    report = Report("signals", "Signals and pulls")
    columns = ("", "tokens/s", "signals/s", "lost", "bytes on SSE per 1000 tokens", "largest signal, bytes")
    rows = [
        (name, found["tokens_per_second"], found["signals_per_second"], found["lost"],
         found["bytes_per_1000_tokens"], found["largest_signal"])
        for name, found in ((f"{_MESSAGES} messages at once", many), ("one message", one))
    ]  # fmt: skip
    report.grids.append(Grid(f"A thousand tokens a second on one context, for {plan.seconds} s", columns, rows))
    report.grids.append(
        Grid(
            "Pulls", ("", "seconds", "p50 ms", "p99 ms"),
            [(f"{_PULLS} at once, 1000 chunks each", pulls["seconds"], pulls["p50_ms"], pulls["p99_ms"]),
             ("10 MB, whole", large["seconds"], "", "")],
        )
    )  # fmt: skip
    report.grids.append(
        Grid(
            "Reading a thread of 100 and of 10 000 events, p50 ms", ("", "100", "10 000", "growth"),
            [("newest page of the timeline", *page, page[1] / page[0]),
             ("metadata", *metadata, metadata[1] / metadata[0])],
        )
    )  # fmt: skip
    report.panels.append(
        Bars(
            "Reading a thread, p50",
            "ms",
            ("100 events", "10 000 events"),
            {"newest page of the timeline": page, "metadata": metadata},
        )
    )
    report.targets += [
        Target(f"signals of {_MESSAGES} messages at once", many["signals_per_second"], _RATE * 0.9, "/s"),
        Target("messages not announced to the end, or backwards", many["lost"] + one["lost"], 0, "", at_least=False),
        Target("wrong texts of the client", many["wrong_texts"] + one["wrong_texts"], 0, "", at_least=False),
        Target("largest signal", max(many["largest_signal"], one["largest_signal"]), 1023, "bytes", at_least=False),
        Target("pulls at once that came back whole", pulls["whole"], _PULLS, ""),
        Target("10 MB pulled whole", float(large["is_whole"]), 1, ""),
        Target("1000 tokens pulled, compressed", pulls["plain_kilobytes"] / pulls["gzip_kilobytes"], 5),
        Target("timeline, growth from 100 to 10 000 events", page[1] / page[0], 1.3, at_least=False),
        Target("metadata, growth from 100 to 10 000 events", metadata[1] / metadata[0], 1.3, at_least=False),
    ]  # fmt: skip
    report.details = {"many": many, "one": one, "pulls": pulls, "large": large, "page": page, "metadata": metadata}
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="seconds instead of a minute; the figures are rougher")
    parser.add_argument("--out", type=Path, default=_HERE / "results", help="where the report goes")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="cognizes-signals-"))
    try:
        report = uvloop.run(run(_QUICK if options.quick else _FULL, directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report.print()
    for path in report.write(options.out):
        print(path)


if __name__ == "__main__":
    main()
