"""A real server in this process: its responses stream, and the test holds its engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import httpx
import pytest
import uvicorn

from cognizes.engine import Engine, Session
from cognizes.engine.api.main import create_app
from cognizes.engine.api.sse import HeartbeatTimer
from tests.integration.api.conftest import client

__all__ = ["client"]

TIMEOUT = 60
Found = TypeVar("Found")


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The signals of the test run are the test run's."""
        yield


@contextmanager
def kept_port() -> Iterator[int]:
    """A port that no other process is given, for servers that come and go on it."""
    with _bound(0) as keeping:
        yield keeping.getsockname()[1]


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


@asynccontextmanager
async def serving(engine: Engine, *, beat: float = 1.0, seconds: int = 30, port: int = 0) -> AsyncIterator[str]:
    """Serves an engine on a free port; yields the URL. `beat` is how long a tick of the heartbeat timer takes."""
    app = create_app(engine=engine)
    app.state.heartbeats = HeartbeatTimer(seconds, tick=beat)
    listening = _bound(port)
    server = _Server(uvicorn.Config(app, lifespan="off", log_level="warning", ws="websockets-sansio"))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    await until(lambda: server.started or task.done())
    assert not task.done()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        app.state.heartbeats.end()
        await task
        await app.state.heartbeats.close()
        listening.close()


async def until(condition: Callable[[], Found | Awaitable[Found]]) -> Found:
    """Waits for a condition, for as long as a slow machine may need."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            value = condition()
            found = await value if isinstance(value, Awaitable) else value
            if found:
                return found
            await asyncio.sleep(0.01)


@pytest.fixture
async def url(engine: Engine) -> AsyncIterator[str]:
    async with serving(engine) as address:
        yield address


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as opened:
        yield opened


@pytest.fixture
async def session(engine: Engine) -> Session:
    return await engine.sessions.create("shop", "ada", session_id="my session", metadata={"model_id": "gpt-4"})


class SignalReader:
    """Reads the frames of a stream of signals."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.ids: list[str] = []
        self.seen: list[dict[str, Any]] = []
        self.bytes = 0
        self.lines = response.aiter_lines()

    async def next(self) -> dict[str, Any]:
        """The next signal."""
        frame: dict[str, str] = {}
        async with asyncio.timeout(TIMEOUT):
            async for line in self.lines:
                self.bytes += len(line.encode()) + 1
                if line:
                    name, _, value = line.partition(": ")
                    frame[name] = value
                elif frame:
                    break
            else:
                raise AssertionError("the stream has ended")
        assert set(frame) == {"id", "event", "data"}
        assert frame["event"] == "signal"
        assert len(frame["data"].encode()) < 1024
        self.ids.append(frame["id"])
        self.seen.append(json.loads(frame["data"]))
        return self.seen[-1]

    async def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Reads on to a signal of a kind that has these fields."""
        while True:
            signal = await self.next()
            if signal["type"] == kind and fields.items() <= signal.items():
                return signal


@asynccontextmanager
async def listening(
    http: httpx.AsyncClient, path: str, *, last_event_id: str | None = None
) -> AsyncIterator[SignalReader]:
    headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    async with http.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in response.headers
        yield SignalReader(response)
