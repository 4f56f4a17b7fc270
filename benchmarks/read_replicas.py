"""Timeline pages with 0, 1 and 2 read replicas: requests per second, and who spends the CPU.

    uv run python benchmarks/read_replicas.py [--quick] [--rounds 5] [--seconds 4] [--out DIRECTORY]

One primary and two streaming standbys (the PostgreSQL that the package brings) and three servers, which differ only in
`COGNIZES_READ_URL`. In each round every server answers pages of 50 items of 64 threads for some seconds, one server
after the other; the figures are medians of the rounds. All processes share one machine: with two cores the requests per
second show what the checks of replicas cost, and the CPU of the primary shows how much it is relieved.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.standbys import Standby

from cognizes.engine import Engine
from cognizes.engine.database import EmbeddedPostgres
from report import Bars, Grid, Report, Target

_THREADS = 64
_EVENTS = 120
_CONNECTIONS = 16
_PAGE = 50
_START_SECONDS = 60.0


@dataclass(frozen=True)
class Figures:
    """One server in one round: requests per second, and milliseconds of CPU per request by process."""

    requests: float
    server: float
    primary: float
    replicas: float


def _cpu(processes: list[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
            total += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return total


def _postgres(server: EmbeddedPostgres) -> list[psutil.Process]:
    postmaster = psutil.Process(int((server.cluster / "postmaster.pid").read_text().split("\n", 1)[0]))
    return [postmaster, *postmaster.children(recursive=True)]


async def _fill(url: str) -> list[str]:
    async with Engine.open(url) as engine:
        sessions = [await engine.sessions.create("shop", f"user-{number}") for number in range(_THREADS)]
        for session in sessions:
            for number in range(_EVENTS):
                role = "user_message" if number % 2 else "assistant_message"
                await engine.sessions.append(session, author="user", kind=role, text=f"message {number} " + "x" * 200)
        await engine._database.pool.execute("VACUUM ANALYZE")
        return [str(session.thread_id) for session in sessions]


@asynccontextmanager
async def _serve(url: str, read_url: str) -> AsyncIterator[tuple[int, psutil.Process]]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("COGNIZES_")},
        "DATABASE_URL": url,
        "COGNIZES_AGENTS": "",
        "COGNIZES_LOG_LEVEL": "WARNING",
        **({"COGNIZES_READ_URL": read_url} if read_url else {}),
    }
    program = Path(sys.executable).parent / "cognizes"
    process = await asyncio.create_subprocess_exec(
        program, "serve", "--port", "0", env=environment, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_START_SECONDS):
            while (found := re.search(rb"http://127\.0\.0\.1:(\d+)", await process.stdout.readline())) is None:
                pass
        yield int(found[1]), psutil.Process(process.pid)
    finally:
        process.terminate()
        await process.wait()


async def _load(port: int, threads: list[str], seconds: float) -> int:
    """Request pages on some connections; return how many were answered."""
    deadline = time.perf_counter() + seconds
    answered = 0

    async def client(first: int) -> None:
        nonlocal answered
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        place = first
        while time.perf_counter() < deadline:
            path = f"/conversations/{threads[place % len(threads)]}/messages?limit={_PAGE}"
            writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode())
            length = re.search(rb"(?i)content-length: (\d+)", head)
            assert length is not None
            await reader.readexactly(int(length[1]))
            answered += 1
            place += 7
        writer.close()

    await asyncio.gather(*(client(number) for number in range(_CONNECTIONS)))
    return answered


async def measure(rounds: int, seconds: float) -> Report:
    samples: dict[int, list[Figures]] = {0: [], 1: [], 2: []}
    folder = Path(tempfile.mkdtemp(prefix="replicas-"))
    primary = EmbeddedPostgres(folder / "primary")
    async with AsyncExitStack() as parts:
        parts.callback(shutil.rmtree, folder, ignore_errors=True)
        await primary.start()
        parts.push_async_callback(primary.close)
        threads = await _fill(primary.url)
        standbys = [Standby(primary, folder / f"standby{number}") for number in (1, 2)]
        for standby in standbys:
            await standby.start()
            parts.push_async_callback(standby.close)
            await standby.catch_up()
        sockets = [standby.url.partition("host=")[2] for standby in standbys]
        read_urls = ["", *(f"{primary.url.partition('host=')[0]}host={','.join(sockets[:count])}" for count in (1, 2))]
        servers = [await parts.enter_async_context(_serve(primary.url, read_url)) for read_url in read_urls]
        for port, _ in servers:
            await _load(port, threads, 1.0)
        for _ in range(rounds):
            for count, (port, server) in enumerate(servers):
                groups = ([server], _postgres(primary), [one for standby in standbys for one in _postgres(standby)])
                before = [_cpu(group) for group in groups]
                started = time.perf_counter()
                answered = await _load(port, threads, seconds)
                elapsed = time.perf_counter() - started
                spent = [(_cpu(group) - then) * 1000 / answered for group, then in zip(groups, before, strict=True)]
                samples[count].append(Figures(answered / elapsed, *spent))
    return _report(samples)


def _report(samples: dict[int, list[Figures]]) -> Report:
    middle = {
        count: Figures(*(median(getattr(one, name) for one in found) for name in Figures.__dataclass_fields__))
        for count, found in samples.items()
    }
    rows = [[str(count), one.requests, one.server, one.primary, one.replicas] for count, one in middle.items()]
    columns = (
        "replicas",
        "requests/s",
        "server, ms of CPU each",
        "primary, ms of CPU each",
        "replicas, ms of CPU each",
    )
    report = Report("read_replicas", "Timeline pages with read replicas")
    report.grids.append(Grid(f"Timeline pages of {_PAGE} items, {_CONNECTIONS} connections, medians", columns, rows))
    relieved = middle[0].primary / max(middle[2].primary, 0.001)
    report.targets.append(Target("CPU of the primary per page, none against two replicas", relieved, 2.0))
    report.panels.append(
        Bars(
            "CPU per page",
            "ms",
            [str(count) for count in middle],
            {name: [getattr(one, name) for one in middle.values()] for name in ("server", "primary", "replicas")},
        )
    )
    report.details["samples"] = {str(count): [vars(one) for one in found] for count, found in samples.items()}
    return report


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds of two seconds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="where the files go")
    arguments = parser.parse_args()
    rounds, seconds = (2, 2.0) if arguments.quick else (arguments.rounds, arguments.seconds)
    report = asyncio.run(measure(rounds, seconds))
    report.print()
    for path in report.write(arguments.out):
        print(path)


if __name__ == "__main__":
    main()
