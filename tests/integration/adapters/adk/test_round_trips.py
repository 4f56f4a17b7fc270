"""An append is one round trip and a read is one, counted on the wire."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import pytest
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig

from cognizes.engine.adapters.adk import OpenSessionService

_STARTUP = 196608
_ENDS_A_REQUEST = b"SHQ"


class CountingProxy:
    """Stands between a client and PostgreSQL's socket and counts requests that await an answer."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._server: asyncio.Server | None = None
        self.requests = 0

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def settle(self) -> None:
        """Waits until nothing has been asked for a while, then counts from zero."""
        while True:
            before = self.requests
            await asyncio.sleep(0.2)
            if self.requests == before:
                break
        self.requests = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_unix_connection(self._socket)
        back = asyncio.create_task(_pump(from_server, writer))
        try:
            while True:
                head = await reader.readexactly(8)
                to_server.write(head + await reader.readexactly(struct.unpack("!i", head[:4])[0] - 8))
                if struct.unpack("!i", head[4:])[0] == _STARTUP:
                    break
            while True:
                head = await reader.readexactly(5)
                to_server.write(head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4))
                self.requests += head[:1] in (bytes([byte]) for byte in _ENDS_A_REQUEST)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            to_server.close()
            await asyncio.wait([back])


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def counted(database_url: str) -> AsyncIterator[tuple[OpenSessionService, CountingProxy]]:
    parts = urlsplit(database_url)
    proxy = CountingProxy(f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432")
    port = await proxy.start()
    try:
        url = f"postgresql://postgres@127.0.0.1:{port}{parts.path}?sslmode=disable"
        async with OpenSessionService(url, memory_background=False) as service:
            yield service, proxy
    finally:
        await proxy.stop()


@pytest.mark.parametrize("delta", [{}, {"a": 1}, {"a": 1, "user:b": 2, "app:c": 3, "temp:d": 4}])
async def test_an_append_is_one_round_trip(database_url: str, delta: dict[str, int]) -> None:
    async with counted(database_url) as (service, proxy):
        session = await service.create_session(app_name="shop", user_id="ada")
        for _ in range(2):
            # The first one prepares the statement on its connection.
            await service.append_event(session, Event(author="agent", actions=EventActions(state_delta=delta)))

        async def append() -> None:
            await service.append_event(session, Event(author="agent", actions=EventActions(state_delta=dict(delta))))

        assert await cost(proxy, append) == 1


async def cost(proxy: CountingProxy, call: Callable[[], Awaitable[object]]) -> int:
    """The round trips of a call: the least of several counts, because housekeeping may ask something meanwhile."""
    await proxy.settle()
    counts = []
    for _ in range(8):
        before = proxy.requests
        await call()
        counts.append(proxy.requests - before)
    return min(counts)


@pytest.mark.parametrize("config", [None, GetSessionConfig(num_recent_events=2), GetSessionConfig(after_timestamp=1.0)])
async def test_a_read_is_one_round_trip(database_url: str, config: GetSessionConfig | None) -> None:
    async with counted(database_url) as (service, proxy):
        session = await service.create_session(app_name="shop", user_id="ada", session_id="s")
        for _ in range(5):
            await service.append_event(session, Event(author="agent"))
        names = {"app_name": "shop", "user_id": "ada", "session_id": "s"}
        # Every connection prepares a statement once, so the first reads of each cost more.
        assert await service.get_session(**names, config=config) is not None
        assert await cost(proxy, lambda: service.get_session(**names, config=config)) == 1
        assert await cost(proxy, lambda: service.list_sessions(app_name="shop", user_id="ada")) == 1
