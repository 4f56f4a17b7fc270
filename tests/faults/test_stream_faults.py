"""Streams under kill -9: a reader ends with exactly the events of the database."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from cognizes.engine import Engine
from cognizes.engine.database import EmbeddedPostgres
from tests.engine_parts import database_of
from tests.listeners import kill_listeners
from tests.served import Served, serve

EVENTS = 60


class Reader:
    """A client as one should be written: it reconnects, and says what it has."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.texts: list[str] = []
        self.last_id = "0"
        self.connections = 0

    async def read(self, until: int) -> None:
        """Reads until it has so many texts."""
        while len(self.texts) < until:
            try:
                await self._read_once(until)
            except httpx.HTTPError:
                await asyncio.sleep(0.1)

    async def has(self, count: int) -> None:
        """Waits until it has so many: what happens from now on happens in the middle of its stream."""
        async with asyncio.timeout(120):
            while len(self.texts) < count:
                await asyncio.sleep(0.01)

    async def _read_once(self, until: int) -> None:
        headers = {"Last-Event-ID": self.last_id}
        timeout = httpx.Timeout(60, read=120)
        async with (
            httpx.AsyncClient(timeout=timeout) as client,
            client.stream("GET", f"{self.url}/api/runs/r/events", headers=headers) as response,
        ):
            self.connections += 1
            text = ""
            async for line in response.aiter_lines():
                if line.startswith("data: ") and "delta" in (frame := json.loads(line.removeprefix("data: "))):
                    text = frame["delta"]
                if line.startswith("id: "):
                    # The last frame of an event follows; what was said before it is complete.
                    self.texts.append(text)
                    self.last_id = line.removeprefix("id: ")
                    if len(self.texts) == until:
                        return


async def append(url: str, thread_id: str, number: int) -> None:
    """Sends one event until it is acknowledged; its id makes a resend harmless."""
    body = {"id": f"e{number}", "author": "a", "event_type": "message", "content": {"text": str(number)}, "run_id": "r"}
    async with httpx.AsyncClient(timeout=60) as client:
        while True:
            try:
                answer = await client.post(f"{url}/api/sessions/{thread_id}/events", json=body)
            except httpx.HTTPError:
                await asyncio.sleep(0.1)
                continue
            if answer.status_code in (200, 201):
                return
            assert answer.status_code == 503, answer.text
            await asyncio.sleep(0.1)


@pytest.fixture
async def api_servers(database_url: str) -> AsyncIterator[list[Served]]:
    servers = [await asyncio.to_thread(serve, database_url) for _ in range(2)]
    yield servers
    for server in servers:
        if server.process.poll() is None:
            await asyncio.to_thread(server.stop)


async def test_kill_9_of_the_api_process_in_the_middle_of_a_stream(api_servers: list[Served], engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    first, second = api_servers
    reader = Reader(first.url)
    reading = asyncio.create_task(reader.read(EVENTS))
    for number in range(EVENTS):
        await append(second.url, session.thread_id, number)
        if number == EVENTS // 2:
            await reader.has(1)
            await asyncio.to_thread(first.kill)
            reader.url = second.url
    await asyncio.wait_for(reading, 120)
    assert reader.connections >= 2
    stored = [event.content["text"] for event in await engine.sessions.events(session)]
    assert reader.texts == stored == [str(number) for number in range(EVENTS)]


async def test_killing_the_backend_of_the_listener_in_the_middle_of_a_stream(
    api_servers: list[Served], engine: Engine
) -> None:
    """The stream itself continues: the listener connects again and the feed reads what it missed."""
    session = await engine.sessions.create("app", "user")
    reader = Reader(api_servers[0].url)
    reading = asyncio.create_task(reader.read(EVENTS))
    for number in range(EVENTS):
        await append(api_servers[1].url, session.thread_id, number)
        if number % 20 == 10:
            await reader.has(1)
            await _kill_a_listener(engine)
    await asyncio.wait_for(reading, 120)
    assert reader.connections == 1
    stored = [event.content["text"] for event in await engine.sessions.events(session)]
    assert reader.texts == stored == [str(number) for number in range(EVENTS)]


async def _kill_a_listener(engine: Engine) -> None:
    """One at least: those that were killed before may still be on their way back."""
    async with asyncio.timeout(60):
        while not await kill_listeners(database_of(engine).pool):
            await asyncio.sleep(0.01)


@pytest.fixture
def data_dir() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="cognizes-faults-"))
    yield directory
    asyncio.run(_stop(directory))
    shutil.rmtree(directory)


async def _stop(directory: Path) -> None:
    server = EmbeddedPostgres(directory)
    await server.start()
    await server.close()


def _serve_embedded(data_dir: Path) -> Served:
    # An empty DATABASE_URL is none.
    return serve("", COGNIZES_DATA_DIR=str(data_dir))


async def test_kill_9_of_the_embedded_server_in_the_middle_of_a_stream(data_dir: Path) -> None:
    server = await asyncio.to_thread(_serve_embedded, data_dir)
    try:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            created = (await client.post("/api/sessions", json={"app_name": "app", "user_id": "user"})).json()
        thread_id = created["thread_id"]
        reader = Reader(server.url)
        reading = asyncio.create_task(reader.read(EVENTS))
        for number in range(EVENTS):
            await append(server.url, thread_id, number)
            if number in (EVENTS // 3, 2 * EVENTS // 3):
                await reader.has(number // 2)
                pid = int((data_dir / "postgres" / "postmaster.pid").read_text().split()[0])
                os.kill(pid, signal.SIGKILL)
        await asyncio.wait_for(reading, 120)
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            page = (await client.get(f"/api/sessions/{thread_id}/events", params={"limit": 1000})).json()
        stored = [event["content"]["text"] for event in page["events"]]
        assert reader.texts == stored == [str(number) for number in range(EVENTS)]
        assert [event["sequence_num"] for event in page["events"]] == list(range(1, EVENTS + 1))
    finally:
        code, printed = await asyncio.to_thread(server.stop)
    assert code == 0, printed
