"""A TCP proxy that cuts connections where it hurts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum


class Cut(StrEnum):
    """When a connection is cut."""

    NEVER = "never"
    IN_THE_REQUEST = "in the request"
    BEFORE_THE_ANSWER = "before the answer"
    IN_THE_ANSWER = "in the answer"


@dataclass
class CuttingProxy:
    """Passes bytes on to a port. The next connection is cut as `plan` says; what was cut is counted."""

    target: int
    plan: Cut = Cut.NEVER
    cuts: dict[Cut, int] = field(default_factory=dict)
    port: int = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        """Listens; yields the port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            self.port = server.sockets[0].getsockname()[1]
            yield self.port
        finally:
            server.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._pass_one(reader, writer, upstream_reader, upstream):
                    pass
        finally:
            for end in (writer, upstream):
                end.transport.abort()

    async def _pass_one(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream_reader: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> bool:
        """One request and its answer; False when the connection is cut."""
        request = await _read_message(reader)
        plan = self.plan
        if plan is Cut.IN_THE_REQUEST:
            upstream.write(request[: len(request) // 2])
            await upstream.drain()
            return self._cut(plan)
        upstream.write(request)
        answer = await _read_message(upstream_reader)
        if plan is Cut.BEFORE_THE_ANSWER:
            return self._cut(plan)
        if plan is Cut.IN_THE_ANSWER:
            writer.write(answer[: len(answer) // 2])
            await writer.drain()
            return self._cut(plan)
        writer.write(answer)
        await writer.drain()
        return True

    def _cut(self, plan: Cut) -> bool:
        self.cuts[plan] = self.cuts.get(plan, 0) + 1
        return False


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    """One HTTP message with a Content-Length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
    )
    return head + await reader.readexactly(length)
