"""A proxy in front of PostgreSQL that notes the executed statements, to count round trips on the wire."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

from cognizes.engine.database.queries import Queries

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
    # The notifier's statement follows a commit on a connection of its own; no caller waits for it.
    "notify_many",
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
async def counting_proxy(database_url: str) -> AsyncIterator[tuple[str, CountingProxy]]:
    """Yield a proxy of an embedded server's socket and the URL that leads through it."""
    parts = urlsplit(database_url)
    proxy = CountingProxy(f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432")
    port = await proxy.start()
    try:
        yield f"postgresql://postgres@127.0.0.1:{port}{parts.path}?sslmode=disable", proxy
    finally:
        await proxy.stop()
