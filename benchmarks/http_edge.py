"""The HTTP edge against bare FastAPI with the same models, on the same uvicorn, in turns.

    uv run python benchmarks/http.py [--quick] [--rounds 3] [--seconds 4] [--out DIRECTORY]

Needs `wrk` (Debian: apt-get install wrk). Our side is `cognizes serve` as the README starts it, on an embedded
PostgreSQL of its own with the default settings: without keys, with 20 API keys and row level security, and with
`--workers 2`, which serves GET only. The peer (`http_peer.py`) parses and serialises the same models and stores
nothing. In each round every side serves each kind of request for some seconds; the figures are medians of the rounds.
A load begins when the servers have indexed the messages of the loads before, and the first load is not counted.
Before each round, a loop of writes with fdatasync in the data directory shows what the disk takes for a commit.
Processor time is that of the server's Python; it varies less than the rate when other programs run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import httpx
import psutil

from report import Bars, Grid, Report, Target

_HERE = Path(__file__).parent
_CONNECTIONS = (10, 50)
_SESSIONS = 64
_KEYS = 20
_START_SECONDS = 60.0
_SETTLE_SECONDS = 8.0
_QUIET_CORES = 0.1
_LONGEST_PAUSE_SECONDS = 60.0
_WARM_UP_SECONDS = 2.0
_DISK_BLOCK, _DISK_WRITES = 16 * 1024, 500
_EVENT = {
    "author": "agent",
    "event_type": "assistant_message",
    "content": {"text": "a message of a usual size, as an assistant writes it"},
    "actions": {"state_delta": {"step": 2}},
}
_SESSION = {"app_name": "shop", "user_id": "ada", "state": {"cart": ["apple"], "user:name": "Ada", "step": 1}}

GET_SESSION, ONE_SESSION, MANY_SESSIONS, NEW_SESSION = (
    "GET session",
    "POST event, one session",
    "POST event, one session each",
    "POST session",
)
KINDS = (GET_SESSION, ONE_SESSION, MANY_SESSIONS, NEW_SESSION)

_SCRIPT = """
local requests = {}
local number = 0
for line in io.lines(os.getenv("HTTP_REQUESTS")) do
    local method, path, key, body = line:match("^(%S+) (%S+) (%S+) ?(.*)$")
    local headers = {["content-type"] = "application/json"}
    if key ~= "-" then headers["authorization"] = "Bearer " .. key end
    requests[#requests + 1] = wrk.format(method, path, headers, body ~= "" and body or nil)
end
function request()
    number = number + 1
    return requests[number % #requests + 1]
end
function done(summary, latency)
    io.write(string.format(
        "RESULT {\\"requests\\": %d, \\"seconds\\": %f, \\"p50\\": %f, \\"p99\\": %f, \\"errors\\": %d}\\n",
        summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
        summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.timeout))
end
"""


@dataclass(frozen=True)
class Figures:
    """One measurement; latencies in milliseconds."""

    rate: float
    p50: float
    p99: float
    python_cores: float = 0.0
    wrk_cores: float = 0.0
    other_cores: float = 0.0
    connections: Sequence[int] = ()


@dataclass(frozen=True)
class Side:
    """A server that answers the requests, and the sessions and keys that it has."""

    name: str
    url: str
    process: psutil.Process
    threads: Sequence[str]
    keys: Sequence[str] = ("-",)
    kinds: Sequence[str] = KINDS

    def python_seconds(self) -> float:
        """Return the processor time of its processes without PostgreSQL."""
        family = [self.process, *self.process.children(recursive=True)]
        times = [one.cpu_times() for one in family if "postgres" not in one.name()]
        return float(sum(one.user + one.system for one in times))

    def connections(self) -> list[int]:
        """Return how many connections each of its serving processes has, least first."""
        workers = [one for one in self.process.children() if "postgres" not in one.name()] or [self.process]
        port = int(self.url.rpartition(":")[2])
        return sorted(
            count
            for worker in workers
            if (count := sum(one.laddr.port == port and bool(one.raddr) for one in worker.net_connections("tcp")))
        )

    def requests(self, kind: str, connections: int) -> list[str]:
        """Return the request lines of one kind, for the script of wrk."""
        event, session = json.dumps(_EVENT), json.dumps(_SESSION)
        lines = {
            GET_SESSION: [f"GET /api/sessions/{self.threads[0]}"],
            ONE_SESSION: [f"POST /api/sessions/{self.threads[0]}/events"],
            MANY_SESSIONS: [f"POST /api/sessions/{thread}/events" for thread in self.threads[:connections]],
            NEW_SESSION: ["POST /api/sessions"],
        }[kind]
        body = {GET_SESSION: "", NEW_SESSION: f" {session}"}.get(kind, f" {event}")
        # Consecutive requests go to different sessions, with keys as without.
        return [f"{line} {key}{body}" for key in self.keys for line in lines]


async def load(side: Side, kind: str, connections: int, seconds: float, directory: Path) -> Figures:
    """Let wrk send requests for some seconds; raise when a request fails."""
    script, requests = directory / "requests.lua", directory / "requests.txt"
    script.write_text(_SCRIPT)
    requests.write_text("\n".join(side.requests(kind, connections)) + "\n")
    before = _clock(side)
    process = await asyncio.create_subprocess_exec(
        "wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "-s", str(script), side.url,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "HTTP_REQUESTS": str(requests)},
    )  # fmt: skip
    answer = asyncio.create_task(process.communicate())
    await asyncio.wait([answer], timeout=seconds / 2)
    connected = side.connections()
    output = (await answer)[0].decode()
    found = re.search(r"RESULT (.*)", output)
    if found is None:
        raise RuntimeError(f"wrk failed:\n{output}")
    result = json.loads(found[1])
    if result["errors"]:
        raise RuntimeError(f"{side.name}, {kind}: {result['errors']} requests failed:\n{output}")
    rate = result["requests"] / result["seconds"]
    wall, python, wrk, busy = (after - then for after, then in zip(_clock(side), before, strict=True))
    other = max(0.0, busy - python - wrk)
    return Figures(rate, result["p50"], result["p99"], python / wall, wrk / wall, other / wall, connected)


def time_disk(directory: Path) -> tuple[float, float]:
    """Return p50 and p99, in milliseconds, of writing 16 kB into an allocated file and waiting for the disk."""
    path, block = directory / "fdatasync", os.urandom(_DISK_BLOCK)
    times = []
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(descriptor, bytes(_DISK_BLOCK * _DISK_WRITES), 0)
        os.fsync(descriptor)
        for number in range(_DISK_WRITES):
            start = time.perf_counter()
            os.pwrite(descriptor, block, number * _DISK_BLOCK)
            os.fdatasync(descriptor)
            times.append((time.perf_counter() - start) * 1e3)
    finally:
        os.close(descriptor)
        path.unlink()
    parts = quantiles(times, n=100)
    return parts[49], parts[98]


async def wait_until_quiet(sides: Sequence[Side]) -> None:
    """Wait until no server works: after a load it indexes the messages that it stored, beside the next one's load."""
    for _ in range(round(_LONGEST_PAUSE_SECONDS)):
        before = sum(side.python_seconds() for side in sides)
        await asyncio.sleep(1)
        if sum(side.python_seconds() for side in sides) - before < _QUIET_CORES:
            return


def _clock(side: Side) -> tuple[float, float, float, float]:
    """Return wall time, and processor time of the server's Python, of wrk, and of the whole machine."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    machine = psutil.cpu_times()
    busy = sum(machine) - machine.idle - machine.iowait - machine.guest - machine.guest_nice
    return time.perf_counter(), side.python_seconds(), ended.ru_utime + ended.ru_stime, busy


@asynccontextmanager
async def start_server(
    command: Sequence[str], log: Path, environment: dict[str, str]
) -> AsyncIterator[tuple[str, psutil.Process]]:
    """Start a server; yield its URL and its process, and stop it afterwards."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        )
    try:
        async with asyncio.timeout(_START_SECONDS):
            while not (found := re.search(r"(?:Page +|running on )(http://[^/\s]+)", log.read_text())):
                if process.poll() is not None:
                    raise RuntimeError(f"the server did not start:\n{log.read_text()}")
                await asyncio.sleep(0.1)
        # The demo agent is imported in the background.
        await asyncio.sleep(_SETTLE_SECONDS)
        yield found[1], psutil.Process(process.pid)
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


async def _create_sessions(url: str, key: str) -> list[str]:
    headers = {} if key == "-" else {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers) as client:
        created = [await client.post("/api/sessions", json=_SESSION) for _ in range(_SESSIONS)]
    return [response.raise_for_status().json()["thread_id"] for response in created]


def _create_keys(data: Path) -> list[str]:
    command = ["cognizes", "keys", "create", "--app", "shop", "--json", "--data-dir", str(data)]
    made = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(_KEYS)]
    return [json.loads(one.stdout)["key"] for one in made]


@asynccontextmanager
async def serve_ours(directory: Path, name: str, *, with_keys: bool = False, workers: int = 1) -> AsyncIterator[Side]:
    """`cognizes serve` on a data directory of its own, with some sessions."""
    data = directory / name.replace(" ", "-")
    command = ["cognizes", "serve", "--port", "0", "--data-dir", str(data), "--log-level", "info"]
    command += ["--workers", str(workers)] if workers > 1 else []
    keys = await asyncio.to_thread(_create_keys, data) if with_keys else ["-"]
    # The default limit, 1 000 requests per second of a key, is above what 20 keys share.
    environment = {"COGNIZES_AUTH": "required"} if with_keys else {}
    async with start_server(command, directory / f"{data.name}.log", environment) as (url, process):
        kinds = KINDS if workers == 1 else (GET_SESSION,)
        yield Side(name, url, process, await _create_sessions(url, keys[0]), keys, kinds)


@asynccontextmanager
async def serve_peer(directory: Path) -> AsyncIterator[Side]:
    """The peer, on uvicorn with the loop and the parser that we use."""
    command = [sys.executable, "-m", "uvicorn", "http_peer:app", "--app-dir", str(_HERE), "--port", "0"]
    command += ["--loop", "uvloop", "--http", "httptools"]
    async with start_server(command, directory / "peer.log", {}) as (url, process):
        yield Side("bare FastAPI", url, process, ["01a1ecef-aea0-7a5c-868a-27232a0a754d"] * _SESSIONS)


async def measure(rounds: int, seconds: float) -> Report:
    """Measure all sides in turns."""
    directory = Path(tempfile.mkdtemp(prefix="cognizes-http-"))
    samples: dict[tuple[str, str, int], list[Figures]] = {}
    try:
        async with AsyncExitStack() as stack:
            sides = [
                await stack.enter_async_context(serve_ours(directory, "ours")),
                await stack.enter_async_context(serve_ours(directory, "ours with keys", with_keys=True)),
                await stack.enter_async_context(serve_peer(directory)),
                await stack.enter_async_context(serve_ours(directory, "two workers", workers=2)),
            ]
            for side in (side for side in sides if ONE_SESSION in side.kinds):
                # The embedder is imported with the first messages.
                await load(side, ONE_SESSION, _CONNECTIONS[0], _WARM_UP_SECONDS, directory)
            disk = []
            for number in range(rounds):
                await wait_until_quiet(sides)
                disk.append(await asyncio.to_thread(time_disk, directory / "ours"))
                for connections in _CONNECTIONS:
                    for kind in KINDS:
                        for side in (side for side in sides if kind in side.kinds):
                            await wait_until_quiet(sides)
                            figures = await load(side, kind, connections, seconds, directory)
                            samples.setdefault((side.name, kind, connections), []).append(figures)
                print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return _report(samples, [side.name for side in sides], disk)


def _report(
    samples: dict[tuple[str, str, int], list[Figures]], names: Sequence[str], disk: Sequence[tuple[float, float]]
) -> Report:
    report = Report("http", "The HTTP edge against bare FastAPI")
    rates = {key: median(figure.rate for figure in figures) for key, figures in samples.items()}
    ours, with_keys, peer, workers = names
    rows = []
    for connections in _CONNECTIONS:
        for kind in KINDS:
            own = samples[ours, kind, connections]
            p50, p99 = median(one.p50 for one in own), median(one.p99 for one in own)
            ratio = rates[ours, kind, connections] / rates[peer, kind, connections]
            kept = rates[with_keys, kind, connections] / rates[ours, kind, connections]
            used = [
                median(one.python_cores / one.rate for one in samples[name, kind, connections]) * 1e6
                for name in (ours, with_keys, peer)
            ]
            rows.append(
                [f"{kind}, {connections}", rates[ours, kind, connections], p50, p99, ratio,
                 rates[with_keys, kind, connections], kept, rates[peer, kind, connections],
                 *(median(getattr(one, part) for one in samples[peer, kind, connections]) for part in ("p50", "p99")),
                 " / ".join(f"{one:.0f}" for one in used)]
            )  # fmt: skip
            report.targets.append(Target(f"{kind}, {connections} connections, against bare FastAPI", ratio, 0.6))
            report.targets.append(Target(f"{kind}, {connections} connections, keys against none", kept, 0.7))
            if connections == _CONNECTIONS[0] and kind in (GET_SESSION, ONE_SESSION, MANY_SESSIONS):
                report.targets.append(Target(f"{kind}, p99 / p50", p99 / p50, 3.0, at_least=False))
    columns = (
        "",
        "requests/s",
        "p50 ms",
        "p99 ms",
        "of FastAPI",
        "with keys",
        "of no keys",
        "bare FastAPI",
        "its p50 ms",
        "its p99 ms",
        "processor µs: ours / keys / FastAPI",
    )
    report.grids.append(Grid("Requests per second by kind and connections, medians", columns, rows))
    report.grids.append(
        Grid(
            f"The disk: {_DISK_WRITES} writes of {_DISK_BLOCK // 1024} kB with fdatasync in the data directory",
            ("", "p50 ms", "p99 ms"),
            [(f"before round {number}", *times) for number, times in enumerate(disk, start=1)],
        )
    )
    report.grids.append(Grid(
        "GET session with one and with two processes; cores of the machine in use",
        ("", "requests/s", "of one", "connections of each", "our Python", "wrk", "PostgreSQL and others"),
        [
            (f"{name}, {connections} connections", rates[name, GET_SESSION, connections],
             rates[name, GET_SESSION, connections] / rates[ours, GET_SESSION, connections],
             " + ".join(map(str, samples[name, GET_SESSION, connections][-1].connections)),
             *(median(getattr(one, part) for one in samples[name, GET_SESSION, connections])
               for part in ("python_cores", "wrk_cores", "other_cores")))
            for connections in _CONNECTIONS
            for name in (ours, workers)
        ],
    ))  # fmt: skip
    most = _CONNECTIONS[-1]
    scaled = rates[workers, GET_SESSION, most] / rates[ours, GET_SESSION, most]
    report.targets.append(Target(f"two workers against one, GET session, {most} connections", scaled, 1.5))
    for connections in _CONNECTIONS:
        series: dict[str, Sequence[float | None]] = {
            name: [rates.get((name, kind, connections)) for kind in KINDS] for name in names
        }
        report.panels.append(Bars(f"{connections} connections", "requests/s", KINDS, series))
    report.details["fdatasync_ms"] = [{"p50": p50, "p99": p99} for p50, p99 in disk]
    report.details["samples"] = {
        " | ".join(map(str, key)): [vars(one) for one in found] for key, found in samples.items()
    }
    return report


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of two seconds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--out", type=Path, default=_HERE / "results", help="where the JSON and the chart go")
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        parser.error("wrk is not installed; on Debian: apt-get install wrk")
    rounds, seconds = (1, 2.0) if arguments.quick else (arguments.rounds, arguments.seconds)
    report = asyncio.run(measure(rounds, seconds))
    report.print()
    for path in report.write(arguments.out):
        print(path)


if __name__ == "__main__":
    main()
