"""A proxy before PostgreSQL whose server can go away and come back: outages as clients see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs, urlsplit


class Outages:
    """Passes bytes on to PostgreSQL's socket; while `is_away`, connections are cut and new ones are refused."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        """Where new connections lead: a test may name the socket of another server."""
        self._writers: set[asyncio.StreamWriter] = set()
        self.is_away = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        """Listen; yield the port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            self.begin()
            server.close()
            await server.wait_closed()

    def begin(self) -> None:
        self.is_away = True
        for writer in self._writers:
            writer.transport.abort()

    def end(self) -> None:
        self.is_away = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_away:
            writer.transport.abort()
            return
        from_server, to_server = await asyncio.open_unix_connection(self.socket)
        ends = {writer, to_server}
        self._writers |= ends
        try:
            await asyncio.gather(_pass_on(reader, to_server), _pass_on(from_server, writer))
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@asynccontextmanager
async def outages(database_url: str) -> AsyncIterator[tuple[str, Outages]]:
    """Yield the URL of a database of the embedded server through a proxy, and the proxy."""
    parts = urlsplit(database_url)
    proxy = Outages(f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432")
    async with proxy.open() as port:
        yield f"postgresql://postgres@127.0.0.1:{port}{parts.path}?sslmode=disable", proxy
