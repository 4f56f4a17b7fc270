"""A TCP relay in front of a server: it cuts connections, moves to another server, answers like a load balancer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Relay:
    """Passes bytes to the server of `target`. `answers` are sent instead, one per request, while there are any."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.answers: list[bytes] = []
        self.connections = 0
        self.url = ""
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self.url
        finally:
            server.close()
            self.cut()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await server.wait_closed()

    def cut(self) -> None:
        """Reset all open connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            if self.answers:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(self.answers.pop(0))
                await writer.drain()
                return
            address = urlsplit(self.target)
            from_server, to_server = await asyncio.open_connection(address.hostname, address.port)
            self._writers.add(to_server)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_pump(reader, to_server))
                    tasks.create_task(_pump(from_server, writer))
            finally:
                self._writers.discard(to_server)
                to_server.transport.abort()
        except OSError:
            pass  # no server at the target: the client sees a reset connection
        finally:
            self._writers.discard(writer)
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def answer(status: str, *headers: str, body: str = "") -> bytes:
    """An answer of a load balancer, which closes the connection."""
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "Connection: close", "", body]
    return "\r\n".join(lines).encode()
