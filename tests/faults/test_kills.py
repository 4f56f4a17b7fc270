"""kill -9 of PostgreSQL and of API processes under load: nothing acknowledged is lost, and writing goes on."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from cognizes.engine.database import EmbeddedPostgres
from tests.faults.histories import Acknowledged, find_losses, stored_events

WRITERS = 6
PATIENCE = 120


class ApiProcess:
    """A server in a process of its own; it may be killed and started again."""

    def __init__(self, data_dir: Path, number: int) -> None:
        self._data_dir = data_dir
        self._log = data_dir.parent / f"api-{number}.log"
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        # Into a file: a pipe that nobody reads would stop the server when it is full.
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "uvicorn", "cognizes.engine.api.main:app", "--port", "0", "--no-access-log"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "DATABASE_URL": "", "COGNIZES_DATA_DIR": str(self._data_dir)},
            )
        async with asyncio.timeout(PATIENCE):
            while not (found := re.search(r"running on (http://\S+)", self._log.read_text())):
                assert self.process.poll() is None, self._log.read_text()
                await asyncio.sleep(0.05)
        self.url = found[1]

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await asyncio.to_thread(self.process.wait)

    async def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                await asyncio.to_thread(self.process.wait, 60)
            finally:
                self.process.kill()


class Load:
    """Writers that append one event after the other, each to a thread of its own, whatever happens."""

    def __init__(self, servers: list[ApiProcess]) -> None:
        self._servers = servers
        self.threads: list[str] = []
        self.answers: dict[str, list[Acknowledged]] = {}
        self.is_over = False

    async def create_threads(self) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            for number in range(WRITERS):
                body = {"app_name": "a", "user_id": f"u{number}"}
                answer = await client.post(f"{self._servers[0].url}/api/sessions", json=body)
                self.threads.append(answer.json()["thread_id"])
                self.answers[self.threads[-1]] = []

    async def write(self, number: int) -> None:
        thread = self.threads[number]
        async with httpx.AsyncClient(timeout=20) as client:
            count = 0
            while not self.is_over:
                count += 1
                await self._append(client, thread, f"{number}-{count}", turn=number + count)

    async def _append(self, client: httpx.AsyncClient, thread: str, name: str, *, turn: int) -> None:
        event = {"id": name, "author": "w", "event_type": "note", "content": {"text": name}}
        event["actions"] = {"state_delta": {"last": name}}
        while True:
            asked_at = time.perf_counter()
            turn += 1
            url = self._servers[turn % len(self._servers)].url
            try:
                answer = await client.post(f"{url}/api/sessions/{thread}/events", json=event)
            except httpx.HTTPError:
                await asyncio.sleep(0.05)
                continue
            if answer.status_code in (200, 201):
                body = answer.json()
                self.answers[thread].append(
                    Acknowledged(name, body["sequence_num"], body["version"], asked_at, time.perf_counter())
                )
                return
            assert answer.status_code == 503, answer.text
            await asyncio.sleep(0.05)

    async def everybody_wrote_again(self) -> None:
        """Returns when each writer was answered twice more: one answer may have been on its way."""
        before = {thread: len(answers) for thread, answers in self.answers.items()}
        async with asyncio.timeout(PATIENCE):
            while any(len(self.answers[thread]) < count + 2 for thread, count in before.items()):
                await asyncio.sleep(0.02)


@asynccontextmanager
async def running_servers(count: int) -> AsyncIterator[tuple[Path, list[ApiProcess]]]:
    folder = Path(tempfile.mkdtemp(prefix="cognizes-kills-"))
    data_dir = folder / "data"
    servers = [ApiProcess(data_dir, number) for number in range(count)]
    try:
        for server in servers:
            await server.start()
        yield data_dir, servers
    finally:
        for server in servers:
            await server.stop()
        # A process that was killed left the server to nobody.
        last = EmbeddedPostgres(data_dir)
        await last.start()
        await last.close()
        shutil.rmtree(folder)


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.timeout(1800)
async def test_nothing_acknowledged_is_lost(rounds: int, record_property: pytest.RecordProperty) -> None:
    async with running_servers(2) as (data_dir, servers):
        load = Load(servers)
        await load.create_threads()
        writing = [asyncio.create_task(load.write(number)) for number in range(WRITERS)]
        try:
            await load.everybody_wrote_again()
            for number in range(rounds):
                since = time.perf_counter()
                if number % 2 == 0:
                    os.kill(int((data_dir / "postgres" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
                else:
                    victim = servers[number // 2 % len(servers)]
                    await victim.kill()
                    await victim.start()
                    since = time.perf_counter()
                await load.everybody_wrote_again()
                what = "PostgreSQL" if number % 2 == 0 else "an API process"
                record_property(f"round {number}: writing again after a kill of {what}", time.perf_counter() - since)
        finally:
            load.is_over = True
            done = await asyncio.gather(*writing, return_exceptions=True)
        assert [result for result in done if result is not None] == []
        await _check(servers[0].url, load)


async def _check(url: str, load: Load) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        for thread, answers in load.answers.items():
            events: list[dict[str, object]] = []
            while True:
                after = {"after": len(events), "limit": 5000}
                page = (await client.get(f"{url}/api/sessions/{thread}/events", params=after)).json()
                events += page["events"]
                if not page["has_more"]:
                    break
            assert answers
            assert find_losses(answers, stored_events(events)) == []
            # The writer resends until it is answered: what is stored is what was acknowledged.
            assert len(events) == len(answers)
