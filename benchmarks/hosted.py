"""A hosted ADK agent against ag-ui-adk with sessions in memory, and connecting to threads of different lengths.

    uv run python benchmarks/hosted.py [--quick] [--rounds 5] [--out DIRECTORY]

Our side is `cognizes serve --agent`, on an embedded PostgreSQL with the default settings: it stores the run, its events
and its chunks. The peer stores nothing. It runs in an environment of its own (`uv run --with ag-ui-adk`), on uvicorn
with the same loop and parser. Both serve the same agent, whose model yields tokens as fast as they are taken
(`hosted_agent.py`). The sides take turns; each request is a new thread. Only our side connects to existing threads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit
from uuid import uuid4

import psutil

from cognizes.engine import Engine, Session
from http_edge import start_server
from report import Bars, Grid, Report, Target

_HERE = Path(__file__).parent
_PEER = "ag-ui-adk==0.11.0"
_TOKENS = 2000
_SHORT = 20
_CONTENT = b'"TEXT_MESSAGE_CONTENT"'
_LENGTHS = (100, 1000, 100_000)
_CONNECTS = 20
_USER = "ada"
_SENTENCE = "a message of a usual size, as a person or an assistant writes it in a conversation"
_LAST = (b'"RUN_FINISHED"', b'"RUN_ERROR"')


@dataclass(frozen=True)
class Figures:
    """One run: milliseconds until its first frames, its frames, and the rate after the first one."""

    first_frame: float
    first_text: float
    texts: int
    rate: float


class _Client(asyncio.Protocol):
    """Sends one request and notes when its frames arrive. It searches the bytes and parses nothing."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._received = bytearray()
        self.first_frame = self.first_text = self.last = 0.0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        before = max(0, len(self._received) - 64)
        self._received += data
        if not self.first_frame and b"data: " in self._received:
            self.first_frame = now
        if not self.first_text and _CONTENT in self._received:
            self.first_text = now
        if any(self._received.find(last, before) >= 0 for last in _LAST) and not self.ended.done():
            self.last = now
            self.ended.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(RuntimeError(f"the stream broke off: {bytes(self._received[-500:])!r}"))

    def close(self) -> None:
        self._transport.close()

    @property
    def size(self) -> int:
        return len(self._received)

    @property
    def texts(self) -> int:
        return self._received.count(_CONTENT)

    @property
    def has_failed(self) -> bool:
        return b'"RUN_ERROR"' in self._received


async def run_agent(url: str, tokens: int) -> Figures:
    """Run the agent once; raise unless each token arrived."""
    body = json.dumps(
        {
            "threadId": str(uuid4()),
            "runId": str(uuid4()),
            "state": {},
            "messages": [{"id": str(uuid4()), "role": "user", "content": str(tokens)}],
            "tools": [],
            "context": [],
            "forwardedProps": {},
        }
    ).encode()
    head = (
        "POST /agui/writer HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"accept: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    place = urlsplit(url)
    loop = asyncio.get_running_loop()
    # Connected before the clock starts: a browser keeps its connection.
    _, client = await loop.create_connection(lambda: _Client(head.encode() + body), place.hostname, place.port)
    started = time.perf_counter()
    async with asyncio.timeout(120):
        await client.ended
    client.close()
    if client.has_failed or client.texts != tokens:
        raise RuntimeError(f"{url}: {client.texts} of {tokens} tokens arrived")
    return Figures(
        (client.first_frame - started) * 1000,
        (client.first_text - started) * 1000,
        client.texts,
        # A short stream may arrive at once.
        client.texts / max(client.last - client.first_frame, 1e-6),
    )


@dataclass(frozen=True)
class Side:
    name: str
    url: str
    process: psutil.Process

    def processor_seconds(self) -> float:
        family = [self.process, *self.process.children(recursive=True)]
        # The embedded PostgreSQL is a child, too: only Python counts.
        times = [one.cpu_times() for one in family if "postgres" not in one.name()]
        return float(sum(one.user + one.system for one in times))


@asynccontextmanager
async def serve_ours(directory: Path) -> AsyncIterator[Side]:
    command = ["cognizes", "serve", "--port", "0", "--data-dir", str(directory / "data")]
    command += ["--agent", "hosted_agent:agent"]
    async with start_server(command, directory / "ours.log", {"PYTHONPATH": str(_HERE)}) as (url, process):
        yield Side("ours", url, process)


@asynccontextmanager
async def serve_peer(directory: Path) -> AsyncIterator[Side]:
    command = ["uv", "run", "--with", _PEER, "uvicorn", "hosted_peer:app", "--app-dir", str(_HERE), "--port", "0"]
    command += ["--loop", "uvloop", "--http", "httptools", "--no-access-log"]
    async with start_server(command, directory / "peer.log", {}) as (url, process):
        yield Side("ag-ui-adk", url, process)


async def connect(url: str, session_id: str) -> tuple[float, int]:
    """Connect to a thread; return the milliseconds until its last frame, and the bytes that came."""
    body = json.dumps({"threadId": session_id}).encode()
    head = (
        "POST /agui/writer/connect HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"x-user-id: {_USER}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    place = urlsplit(url)
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: _Client(head.encode() + body), place.hostname, place.port)
    started = time.perf_counter()
    async with asyncio.timeout(120):
        await client.ended
    client.close()
    if client.has_failed or client.size < 10_000:
        raise RuntimeError(f"{url}: the messages of {session_id} did not arrive")
    return (client.last - started) * 1000, client.size


async def fill(data: Path, length: int) -> str:
    """Create a thread of this length in the database of our side: questions and answers; return its session id."""
    name = f"length-{length}"
    async with Engine.open(data_dir=data) as engine:
        session = await engine.sessions.create("writer", _USER, session_id=name)
        for start in range(0, length, 1000):
            places = range(start, min(start + 1000, length))
            await asyncio.gather(*(_append(engine, session, place) for place in places))
        await engine._database.pool.execute("ANALYZE")
    return name


async def _append(engine: Engine, session: Session, place: int) -> None:
    author, kind = ("user", "user_message") if place % 2 == 0 else ("writer", "assistant_message")
    await engine.sessions.append(session, author=author, kind=kind, text=f"{place}: {_SENTENCE}")


async def measure(rounds: int) -> Report:
    """Measure both sides in turns."""
    directory = Path(tempfile.mkdtemp(prefix="cognizes-hosted-"))
    samples: dict[tuple[str, int], list[Figures]] = {}
    connects: dict[int, list[tuple[float, int]]] = {length: [] for length in _LENGTHS}
    seconds: dict[str, list[float]] = {}
    try:
        async with AsyncExitStack() as stack:
            sides = [
                await stack.enter_async_context(serve_ours(directory)),
                await stack.enter_async_context(serve_peer(directory)),
            ]
            for side in sides:
                for tokens in (_SHORT, _TOKENS):
                    await run_agent(side.url, tokens)
            for number in range(rounds):
                for side in sides:
                    for _ in range(10):
                        samples.setdefault((side.name, _SHORT), []).append(await run_agent(side.url, _SHORT))
                    before = side.processor_seconds()
                    for _ in range(3):
                        samples.setdefault((side.name, _TOKENS), []).append(await run_agent(side.url, _TOKENS))
                    used = (side.processor_seconds() - before) / (3 * _TOKENS) * 1e6
                    seconds.setdefault(side.name, []).append(used)
                print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            # Afterwards: the server indexes these messages for some time.
            threads = {length: await fill(directory / "data", length) for length in _LENGTHS}
            for _ in range(rounds * _CONNECTS):
                for length, found in connects.items():
                    found.append(await connect(sides[0].url, threads[length]))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report = _report(samples, seconds)
    _report_connects(report, connects)
    return report


def _report(samples: dict[tuple[str, int], list[Figures]], seconds: dict[str, list[float]]) -> Report:
    report = Report("hosted", "A hosted ADK agent against ag-ui-adk in memory")
    names = list(seconds)
    rate = {name: median(one.rate for one in samples[name, _TOKENS]) for name in names}
    frame = {name: median(one.first_frame for one in samples[name, _SHORT]) for name in names}
    text = {name: median(one.first_text for one in samples[name, _SHORT]) for name in names}
    used = {name: median(found) for name, found in seconds.items()}
    ours, peer = names
    rows = [
        (f"frames/s, one stream of {_TOKENS} tokens", rate[ours], rate[peer], rate[ours] / rate[peer]),
        ("first frame, ms", frame[ours], frame[peer], frame[ours] / frame[peer]),
        ("first text, ms", text[ours], text[peer], text[ours] / text[peer]),
        ("processor time per token, µs", used[ours], used[peer], used[ours] / used[peer]),
    ]
    report.grids.append(Grid("Medians", ("", *names, "ratio"), rows))
    report.targets.append(Target("frames/s against ag-ui-adk in memory", rate[ours] / rate[peer], 1.0))
    report.targets.append(Target("first frame", frame[ours] / frame[peer], 1.0, at_least=False))
    report.targets.append(Target("first text", text[ours] / text[peer], 1.0, at_least=False))
    report.panels.append(
        Bars(f"One stream of {_TOKENS} tokens", "frames/s", ["frames/s"], {name: [rate[name]] for name in names})
    )
    report.panels.append(
        Bars(
            "Time to the first frames", "ms, less is better", ["first frame", "first text"],
            {name: [frame[name], text[name]] for name in names},
        )
    )  # fmt: skip
    report.details["samples"] = {
        f"{name}, {tokens} tokens": [vars(one) for one in found] for (name, tokens), found in samples.items()
    }
    return report


def _report_connects(report: Report, connects: dict[int, list[tuple[float, int]]]) -> None:
    late = {length: median(one for one, _ in found) for length, found in connects.items()}
    first, last = _LENGTHS[0], _LENGTHS[-1]
    rows = [
        (f"{length:,}".replace(",", " "), late[length], late[length] / late[first], connects[length][0][1] / 1024)
        for length in _LENGTHS
    ]
    columns = ("events", "ms until the last frame", "against the first", "KiB")
    report.grids.append(Grid("Connecting to a thread, by its events", columns, rows))
    report.targets.append(
        Target(f"connect to a thread of {last} events against {first}", late[last] / late[first], 1.3, at_least=False)
    )
    report.panels.append(
        Bars("Connecting to a thread", "ms, less is better", [str(length) for length in _LENGTHS],
             {"until the last frame": list(late.values())})
    )  # fmt: skip
    report.details["connects"] = {str(length): found for length, found in connects.items()}


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=_HERE / "results", help="where the JSON and the chart go")
    arguments = parser.parse_args()
    report = asyncio.run(measure(2 if arguments.quick else arguments.rounds))
    report.print()
    for path in report.write(arguments.out):
        print(path)


if __name__ == "__main__":
    main()
