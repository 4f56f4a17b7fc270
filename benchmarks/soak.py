"""Soak test: an hour of load; memory, threads and file descriptors must stay constant.

    uv run python benchmarks/soak.py --minutes 60
    uv run python benchmarks/soak.py --quick

The server is a separate process with an embedded PostgreSQL. Writers append, readers open and close streams, pages are
read, sessions are created and deleted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parent))

from report import Grid, Report, Target

WRITERS, READERS = 6, 6
MIB = 1024 * 1024


class Server:
    """`cognizes serve` on a separate data directory."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "serve.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [Path(sys.executable).parent / "cognizes", "serve", "--port", "0", "--log-level", "warning"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "COGNIZES_DATA_DIR": str(folder / "data"), "DATABASE_URL": ""},
            )
        self.process = psutil.Process(self._process.pid)

    async def url(self) -> str:
        while not (found := re.search(r"Page +(http://\S+)/", self._log.read_text())):
            assert self._process.poll() is None, self._log.read_text()
            await asyncio.sleep(0.1)
        return found[1]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


class Load:
    """Clients with mixed requests until they are stopped."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests = 0
        self.errors = 0

    async def write(self) -> None:
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as client:
            while True:
                body = {"app_name": "soak", "user_id": f"u{random.randrange(50)}"}
                thread = (await self._ask(client, "POST", "/api/sessions", json=body))["thread_id"]
                for number in range(40):
                    event = {"author": "user", "event_type": "user_message", "content": {"text": f"{number} " * 20}}
                    event["actions"] = {"state_delta": {"n": number, "user:n": number}}
                    await self._ask(client, "POST", f"/api/sessions/{thread}/events", json=event)
                await self._ask(client, "GET", f"/conversations/{thread}/messages")
                await self._ask(client, "GET", f"/api/sessions/{thread}/state", params={"sequence": 20})
                if random.random() < 0.9:
                    await self._ask(client, "DELETE", f"/api/sessions/{thread}")

    async def read(self) -> None:
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as client:
            while True:
                body = {"app_name": "soak", "user_id": "reader"}
                thread = (await self._ask(client, "POST", "/api/sessions", json=body))["thread_id"]
                event = {"author": "user", "event_type": "user_message", "content": {"text": "hi"}, "run_id": thread}
                await self._ask(client, "POST", f"/api/sessions/{thread}/events", json=event)
                for path in (f"/api/runs/{thread}/events", f"/contexts/{thread}/events"):
                    async with client.stream("GET", path) as stream:
                        async for _ in stream.aiter_lines():
                            self.requests += 1
                            break
                await self._ask(client, "DELETE", f"/api/sessions/{thread}")

    async def _ask(self, client: httpx.AsyncClient, method: str, path: str, **more: object) -> dict[str, str]:
        self.requests += 1
        answer = await client.request(method, path, **more)  # type: ignore[arg-type]
        self.errors += answer.status_code >= 500
        return answer.json() if answer.content else {}


def sample(process: psutil.Process) -> tuple[float, int, int]:
    """Resident memory in MiB, file descriptors and threads."""
    with process.oneshot():
        return process.memory_info().rss / MIB, process.num_fds(), process.num_threads()


async def soak(seconds: float) -> Report:
    folder = Path(tempfile.mkdtemp(prefix="cognizes-soak-"))
    server = Server(folder)
    samples: list[tuple[float, float, int, int]] = []
    try:
        load = Load(await server.url())
        work = [asyncio.create_task(load.write()) for _ in range(WRITERS)]
        work += [asyncio.create_task(load.read()) for _ in range(READERS)]
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            samples.append((passed, *sample(server.process)))
            await asyncio.sleep(max(1.0, seconds / 120))
            for task in work:
                if task.done():
                    task.result()
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return _report(samples, load)


def _report(samples: list[tuple[float, float, int, int]], load: Load) -> Report:
    # The first third fills caches and pools.
    warm = samples[len(samples) // 3 :]
    half = len(warm) // 2
    early, late = warm[:half], warm[half:]

    def mean(part: list[tuple[float, float, int, int]], column: int) -> float:
        return sum(row[column] for row in part) / len(part)

    growth = mean(late, 1) / mean(early, 1)
    rows = [[f"{row[0] / 60:.1f}", row[1], row[2], row[3]] for row in samples[:: max(1, len(samples) // 20)]]
    return Report(
        name="soak",
        title="Soak",
        grids=[Grid("Over time", ["minutes", "RSS MiB", "file descriptors", "threads"], rows)],
        targets=[
            Target("RSS, last third against the one before", growth, 1.1, at_least=False),
            Target("file descriptors, the same", mean(late, 2) / mean(early, 2), 1.1, at_least=False),
            Target("threads, the same", mean(late, 3) / mean(early, 3), 1.1, at_least=False),
            Target("answers of 5xx", load.errors, 0, unit="", at_least=False),
            Target("requests", load.requests, 1, unit=""),
        ],
        details={"samples": samples},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--quick", action="store_true", help="one minute, to see that it works")
    arguments = parser.parse_args()
    report = asyncio.run(soak(60.0 if arguments.quick else arguments.minutes * 60))
    report.print()
    if not arguments.quick:
        report.write(Path(__file__).parent / "results")
    sys.exit(not all(target.is_met for target in report.targets))


if __name__ == "__main__":
    main()
