"""kill -9 of PostgreSQL and of API processes under load: no acknowledged event is lost, and writing continues."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from cognizes.engine.database import EmbeddedPostgres
from tests.faults.histories import Acknowledged, find_losses, stored_events
from tests.served import Served, serve

WRITERS = 6
TIMEOUT = 120


class ApiProcess:
    """A server that may be killed and started again."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._served: Served | None = None
        self.url = ""

    async def start(self) -> None:
        self._served = await asyncio.to_thread(serve, "", COGNIZES_DATA_DIR=str(self._data_dir))
        self.url = self._served.url

    async def kill(self) -> None:
        assert self._served is not None
        await asyncio.to_thread(self._served.kill)

    async def stop(self) -> None:
        if self._served is not None:
            await asyncio.to_thread(self._served.close)


class Load:
    """Writers that append one event after the other, each to its own thread, and retry after errors."""

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

    async def until_all_wrote_again(self) -> None:
        """Return when each writer was answered twice more: one answer may have been in flight."""
        before = {thread: len(answers) for thread, answers in self.answers.items()}
        async with asyncio.timeout(TIMEOUT):
            while any(len(self.answers[thread]) < count + 2 for thread, count in before.items()):
                await asyncio.sleep(0.02)


@asynccontextmanager
async def running_servers(count: int) -> AsyncIterator[tuple[Path, list[ApiProcess]]]:
    folder = Path(tempfile.mkdtemp(prefix="cognizes-kills-"))
    data_dir = folder / "data"
    servers = [ApiProcess(data_dir) for _ in range(count)]
    try:
        for server in servers:
            await server.start()
        yield data_dir, servers
    finally:
        for server in servers:
            await server.stop()
        # The server of a killed process still runs.
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
            await load.until_all_wrote_again()
            for number in range(rounds):
                since = time.perf_counter()
                if number % 2 == 0:
                    os.kill(int((data_dir / "postgres" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
                else:
                    victim = servers[number // 2 % len(servers)]
                    await victim.kill()
                    await victim.start()
                    since = time.perf_counter()
                await load.until_all_wrote_again()
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
