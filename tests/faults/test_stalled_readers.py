"""Hundreds of readers that stop reading cost little memory, delay no other reader, and are disconnected."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from cognizes.engine import Engine, Session
from tests.served import Served, serve

_STALLED = 500
_EVENTS = 100
_BYTES = 4096
_TIMEOUT = 5
_HANGUP = select.POLLHUP | select.POLLERR | select.POLLRDHUP


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Served]:
    started = await asyncio.to_thread(serve, database_url, COGNIZES_SEND_SECONDS=str(_TIMEOUT))
    yield started
    if started.process.poll() is None:
        await asyncio.to_thread(started.kill)


async def _stall(url: str, run_id: str) -> socket.socket:
    """Asks for the events of a run, and reads nothing but the first few bytes: the stream has begun then."""
    address = urlsplit(url)
    stalled = socket.socket()
    # A small window and segments as on a network: loopback's would take in megabytes for a reader that sleeps.
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stalled.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
    stalled.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(stalled, (address.hostname, address.port))
    await loop.sock_sendall(stalled, f"GET /api/runs/{run_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert (await loop.sock_recv(stalled, 15)).startswith(b"HTTP/1.1 200")
    return stalled


async def _read(url: str, run_id: str, *, until: int) -> list[int]:
    """A reader beside them: the numbers of what it gets."""
    numbers: list[int] = []
    async with (
        httpx.AsyncClient(timeout=120) as client,
        client.stream("GET", f"{url}/api/runs/{run_id}/events") as response,
    ):
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                numbers.append(int(line.removeprefix("id: ")))
                if numbers[-1] == until:
                    return numbers
    return numbers


async def _flow(engine: Engine, session: Session, events: int) -> None:
    for _ in range(events):
        await engine.sessions.append(session, author="a", kind="message", text="x" * _BYTES, run_id="r")


async def stall(server: Served, engine: Engine, *, events: int) -> None:
    """Stalled readers beside one that reads."""
    session = await engine.sessions.create("app", "user")
    await engine.sessions.append(session, author="a", kind="message", text="first", run_id="r")
    process = psutil.Process(server.process.pid)
    with ExitStack() as opened:
        stalled = []
        for _ in range(_STALLED):
            stalled.append(opened.enter_context(await _stall(server.url, "r")))
        before = process.memory_info().rss
        reading = asyncio.create_task(_read(server.url, "r", until=events + 1))
        await _flow(engine, session, events)
        assert await asyncio.wait_for(reading, 120) == list(range(1, events + 2))
        grown = process.memory_info().rss - before
        assert grown < 50 * 2**20, f"{grown / 2**20:.1f} MiB for {_STALLED} readers that do not read"
        await _until_cut_off(stalled)
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        assert (await client.get("/health")).status_code == 200


async def _until_cut_off(stalled: list[socket.socket]) -> None:
    poll = select.poll()
    for one in stalled:
        poll.register(one, _HANGUP)
    async with asyncio.timeout(120):
        while sum(bool(happened & _HANGUP) for _, happened in poll.poll(0)) < len(stalled):
            await asyncio.sleep(0.1)


async def test_500_readers_that_stop_reading(server: Served, engine: Engine) -> None:
    await stall(server, engine, events=_EVENTS)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_the_same_with_more_to_read(server: Served, engine: Engine) -> None:
    await stall(server, engine, events=20 * _EVENTS)
