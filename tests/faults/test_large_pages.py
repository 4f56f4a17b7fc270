"""Threads of very large events: what a request takes of the server's memory does not grow with the thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import psutil
import pytest

from cognizes.engine import Engine, Session
from tests.served import Served, serve

_WRITES = 40
_BYTES = 5 * 1024 * 1024
_BOUND = 800 * 1024 * 1024
"""All readers together take about 200 MiB, and the events are 200 MiB: one reader of all of them took twice this."""


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Served]:
    # What is measured is memory: a slow machine may take its time.
    started = await asyncio.to_thread(serve, database_url, COGNIZES_STATEMENT_TIMEOUT="0")
    yield started
    if started.process.poll() is None:
        await asyncio.to_thread(started.kill)


async def _write(engine: Engine) -> Session:
    """Half of the events hold a large text, half a large value of the state."""
    session = await engine.sessions.create("app", "user")
    for number in range(_WRITES):
        large = f"{number:02}" + "x" * _BYTES
        content: dict[str, Any] = {"text": large, "message_id": f"m{number}"}
        if number % 2:
            scope = "user:" if number % 4 == 1 else ""
            await engine.sessions.append(session, author="a", kind="state_update", state={f"{scope}large": large})
        else:
            await engine.sessions.append(session, author="a", kind="assistant_message", content=content)
    return session


async def _watch(process: psutil.Process, peak: list[int]) -> None:
    while True:
        peak[0] = max(peak[0], process.memory_info().rss)
        await asyncio.sleep(0.02)


async def test_requests_take_bounded_memory_however_large_a_thread_is(engine: Engine, server: Served) -> None:
    session = await _write(engine)
    thread = session.thread_id
    ids = ",".join(f"m{number}" for number in range(0, _WRITES, 2))
    paths = [
        f"/api/sessions/{thread}/events?limit=10000",
        f"/api/sessions/{thread}/events?recent=10000",
        f"/api/sessions/{thread}/messages?limit=10000",
        f"/api/sessions/{thread}/state?sequence={_WRITES}",
        f"/contexts/{thread}/messages?limit=1000",
        f"/contexts/{thread}/messages?ids={ids}",
        f"/contexts/{thread}/metadata",
        f"/contexts/{thread}/llm-context?max_tokens=1000000000",
        f"/conversations/{thread}/messages?limit=10000",
        f"/api/debug/threads/{thread}/events?limit=500",
        f"/api/debug/threads/{thread}/questions",
        f"/api/debug/threads/{thread}/state?limit=10000",
        f"/api/debug/threads/{thread}/keys?key=large&limit=10000",
        f"/api/debug/threads/{thread}/keys?key=user:large&limit=10000",
        f"/api/debug/threads/{thread}/scopes?sequence={_WRITES}",
        f"/api/debug/threads/{thread}/export",
        f"/api/debug/threads/{thread}/export?format=ndjson",
    ]
    process = psutil.Process(server.process.pid)
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:

        async def read(path: str) -> tuple[str, int]:
            size = 0
            async with client.stream("GET", path) as response:
                assert response.status_code == 200, (path, await response.aread())
                async for part in response.aiter_bytes():
                    size += len(part)
            return path, size

        await read(f"/contexts/{thread}/metadata")
        before = process.memory_info().rss
        peak = [before]
        watching = asyncio.create_task(_watch(process, peak))
        try:
            await asyncio.gather(*(read(paths[0]) for _ in range(4)))
            sizes = dict(await asyncio.gather(*(read(path) for path in paths)))
        finally:
            watching.cancel()
    assert peak[0] - before < _BOUND, (before, peak)
    # The exports are whole all the same, and no list is empty.
    assert min(sizes[path] for path in paths if "export" in path) > _WRITES * _BYTES
    assert min(sizes[path] for path in paths if "limit=10000" in path) > _BYTES
