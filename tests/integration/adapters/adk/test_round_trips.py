"""An append is one round trip and a read is one, counted on the wire."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import pytest
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig

from cognizes.engine.adapters.adk import OpenSessionService
from cognizes.engine.database.queries import Queries
from tests.engine_parts import maintenance_of

_STARTUP = 196608
_OURS = {" ".join(sql.split()): name for name, sql in Queries().items()}
_OF_THE_BACKGROUND = (
    "prune_",
    "release_",
    "resume_",
    "expire_",
    "streams",
    "job",
    "lease",
    "embed",
    "episod",
    "migrat",
    "ping",
    "LISTEN",
    # How asyncpg learns a type that is new to a connection, once per connection.
    "set_config('jit'",
    "typeinfo_tree",
)


class CountingProxy:
    """Stands between a client and PostgreSQL's socket and notes the statements that are executed, by name.

    Preparing a statement is a round trip once per connection and is not noted; nor is what the engine does of its own
    accord, at any time. A statement that has no name of ours, such as `BEGIN`, is noted as it is.
    """

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._server: asyncio.Server | None = None
        self._executed: list[str] = []

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def taken(self) -> list[str]:
        """What was executed since the last time."""
        executed, self._executed = self._executed, []
        return [name for name in executed if not any(word in name for word in _OF_THE_BACKGROUND)]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_unix_connection(self._socket)
        back = asyncio.create_task(_pump(from_server, writer))
        prepared: dict[bytes, str] = {}
        try:
            while True:
                head = await reader.readexactly(8)
                to_server.write(head + await reader.readexactly(struct.unpack("!i", head[:4])[0] - 8))
                if struct.unpack("!i", head[4:])[0] == _STARTUP:
                    break
            while True:
                head = await reader.readexactly(5)
                body = await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
                self._note(head[:1], body, prepared)
                to_server.write(head + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            to_server.close()
            await asyncio.wait([back])

    def _note(self, kind: bytes, body: bytes, prepared: dict[bytes, str]) -> None:
        if kind == b"P":
            name, text = body.split(b"\0")[:2]
            sql = " ".join(text.decode().split())
            prepared[name] = _OURS.get(sql, sql)
        elif kind == b"B":
            self._executed.append(prepared[body.split(b"\0")[1]])
        elif kind == b"Q":
            self._executed.append(body.rstrip(b"\0").decode())


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
            engine = await service.engine()
            await maintenance_of(engine).close()
            yield service, proxy
    finally:
        await proxy.stop()


@pytest.mark.parametrize("delta", [{}, {"a": 1}, {"a": 1, "user:b": 2, "app:c": 3, "temp:d": 4}])
async def test_an_append_is_one_round_trip(database_url: str, delta: dict[str, int]) -> None:
    async with counted(database_url) as (service, proxy):
        session = await service.create_session(app_name="shop", user_id="ada")
        proxy.taken()
        for _ in range(5):
            await service.append_event(session, Event(author="agent", actions=EventActions(state_delta=dict(delta))))
            assert proxy.taken() == ["append_event"]


@pytest.mark.parametrize("config", [None, GetSessionConfig(num_recent_events=2), GetSessionConfig(after_timestamp=1.0)])
async def test_a_read_is_one_round_trip(database_url: str, config: GetSessionConfig | None) -> None:
    async with counted(database_url) as (service, proxy):
        names = {"app_name": "shop", "user_id": "ada"}
        session = await service.create_session(**names, session_id="s")
        for _ in range(5):
            await service.append_event(session, Event(author="agent"))
        proxy.taken()
        for _ in range(3):
            assert await service.get_session(**names, session_id="s", config=config) is not None
            assert proxy.taken() == ["adk_read_session"]
        await service.list_sessions(**names)
        assert proxy.taken() == ["adk_list_sessions"]
        await service.create_session(**names, state={"a": 1, "user:b": 2})
        assert proxy.taken() == ["create_sessions"]
