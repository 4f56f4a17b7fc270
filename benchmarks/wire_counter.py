"""Count round trips with a proxy between a client and PostgreSQL's socket."""

from __future__ import annotations

import asyncio
import struct
from typing import Self

_STARTUP = 196608
_AWAITS_AN_ANSWER = (b"S", b"H", b"Q")


class WireCounter:
    """Listens on a free port; `requests` counts the messages after which a client waits for the server.

    Connections whose start-up message contains `uncounted`, an application name, are passed on without counting.
    """

    def __init__(self, socket: str, *, uncounted: str | None = None) -> None:
        self._socket = socket
        self._uncounted = uncounted.encode() if uncounted is not None else None
        self._server: asyncio.Server | None = None
        self.requests = 0
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    async def settle(self) -> int:
        """Wait for an idle period; return the number of requests so far."""
        before = -1
        while before != self.requests:
            before = self.requests
            await asyncio.sleep(0.05)
        return before

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_unix_connection(self._socket)
        back = asyncio.create_task(_pump(from_server, writer))
        try:
            version = 0
            parameters = b""
            while version != _STARTUP:  # a client may request TLS first
                size, version = struct.unpack("!ii", head := await reader.readexactly(8))
                to_server.write(head + (parameters := await reader.readexactly(size - 8)))
            is_counted = self._uncounted is None or self._uncounted not in parameters
            while True:
                head = await reader.readexactly(5)
                to_server.write(head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4))
                self.requests += is_counted and head[:1] in _AWAITS_AN_ANSWER
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
