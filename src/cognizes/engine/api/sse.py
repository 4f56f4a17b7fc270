"""Server-sent events with little memory per idle connection; a client that stops reading is disconnected."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from functools import partial
from typing import Annotated, Any, Protocol

from fastapi import Depends
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from cognizes.engine.api.exchanges import EXCHANGE
from cognizes.engine.supervision import SupervisedLoop, Supervisor

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 30
SEND_SECONDS = 30.0
"""The time in which a client must accept one frame."""
FRAMES_BYTES = 8 * 1024
"""The limit of a connection's write buffer."""
_LARGEST_WRITE = 16 * 1024
_WAITING_OFFERS = 64
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-store"),
    (b"x-accel-buffering", b"no"),
]


class Connection(Protocol):
    """A connection that sends heartbeats and ends when the server stops."""

    def beat(self) -> None: ...

    def end(self) -> None: ...


class StreamConnection(Protocol):
    """What `HttpExchange` offers beside ASGI."""

    @property
    def transport(self) -> asyncio.WriteTransport | None: ...

    def bind_writer(self, write: Callable[[RequestResponseCycle, bytes], bool]) -> Callable[[bytes], bool] | None:
        """Return `write` for this connection, whose response has begun; None below a layer that must see each part."""


class HeartbeatTimer:
    """What all event streams share: `chunks`, and one timer for heartbeats, which it spreads over the interval."""

    def __init__(
        self,
        seconds: int = HEARTBEAT_SECONDS,
        *,
        tick: float = 1.0,
        send_seconds: float = SEND_SECONDS,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._supervisor = supervisor or Supervisor()
        self.send_seconds = send_seconds
        self._slots: list[set[Connection]] = [set() for _ in range(seconds)]
        self._now = 0
        self._tick = tick
        self._loop: SupervisedLoop | None = None
        self.has_ended = False
        self.chunks = ChunkWriter()

    @property
    def connections(self) -> int:
        return sum(len(slot) for slot in self._slots)

    def add(self, stream: Connection) -> Callable[[], None]:
        """Call `beat` of a connection once per interval; return a function that removes it."""
        # The emptiest slot, not the current one: connections opened together would all send together.
        slot = min(self._slots, key=len)
        slot.add(stream)
        if self._loop is None:
            self._loop = self._supervisor.start("heartbeats", self._next_slot, longest_pause=self._tick)
        return lambda: slot.discard(stream)

    def end(self) -> None:
        """End all connections, also those that are added later, because the server stops."""
        self.has_ended = True
        for stream in [stream for slot in self._slots for stream in slot]:
            stream.end()

    async def close(self) -> None:
        self.end()
        if self._loop is not None:
            await self._loop.stop()
            self._loop = None

    async def _next_slot(self) -> None:
        await asyncio.sleep(self._tick)
        self._now = (self._now + 1) % len(self._slots)
        for stream in list(self._slots[self._now]):
            try:
                stream.beat()
            except Exception:
                # The heartbeats of the other connections must not depend on this one.
                logger.exception("the heartbeat of a connection failed")


class ChunkWriter:
    """Writes parts of streams at once. Connections that get the same part share its bytes, also while they are slow."""

    def __init__(self) -> None:
        self._body = b""
        self._chunk = b""

    def write(self, cycle: RequestResponseCycle, body: bytes) -> bool:
        """Write a part of a response that has begun; return False when the connection must be waited for."""
        is_open = cycle.response_started and not cycle.response_complete and not cycle.disconnected
        if not is_open or not cycle.chunked_encoding or cycle.flow.write_paused:
            return False
        if body is not self._body:
            self._body, self._chunk = body, b"%x\r\n%b\r\n" % (len(body), body)
        cycle.transport.write(self._chunk)
        return True


class EventStream(Response):
    """Sends the frames of a source until it ends, the client disconnects or stops reading, or the server stops.

    It has one task besides the request's own. The middleware runs it after the inner layers have returned, because
    their stack frames are half of the memory of an idle connection.
    """

    def __init__(self, source: Source, *, heartbeats: HeartbeatTimer, heartbeat: Callable[[], str]) -> None:
        self.background = None
        self._source = source
        self._heartbeats = heartbeats
        self._heartbeat = heartbeat
        self._is_complete = False
        self._is_aborted = False
        self._puts_waiting = 0
        self._collected: list[str] = []
        self._collected_size = 0
        self._late: asyncio.Future[None] | None = None
        self._write_now: Callable[[bytes], bool] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._others: set[asyncio.Future[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = scope.get(EXCHANGE)
        if exchange is None:
            await self.run(receive, send)
        else:
            exchange.defer(partial(self.run, connection=exchange))

    async def run(self, receive: Receive, send: Send, *, connection: StreamConnection | None = None) -> None:
        self._send, self._request = send, asyncio.current_task()
        if connection is not None:
            self._transport = connection.transport
        # A client may leave before its stream begins; uvloop refuses to change a closed connection.
        if self._transport is not None and not self._transport.is_closing():
            # A client that stopped reading fills this buffer; the default is 64 KiB for each of thousands.
            self._transport.set_write_buffer_limits(high=FRAMES_BYTES)
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        if connection is not None:
            self._write_now = connection.bind_writer(self._heartbeats.chunks.write)
        self._sending = asyncio.create_task(self._source(self), name="event-stream")
        # A callback, because a task that is cancelled before its first step runs none of its code.
        self._sending.add_done_callback(self._complete_soon)
        leave = self._heartbeats.add(self)
        if self._heartbeats.has_ended:
            self.end()
        try:
            # A complete response ends with `http.disconnect`, too.
            while (await receive())["type"] != "http.disconnect":
                pass
        except asyncio.CancelledError:
            if not self._is_aborted or self._request is None:
                raise
            self._request.uncancel()
        finally:
            self._is_complete = self._is_aborted = True
            leave()
            pending = [self._sending, *self._others]
            for task in pending:
                task.cancel()
            await asyncio.wait(pending)

    async def put(self, frames: str | bytes) -> None:
        """Send frames; return when there is room for more. Frames after the end are dropped.

        Text is collected and written at the end of this turn of the event loop. Bytes are written at once, because
        several connections may share them. Neither needs a timer while the client is fast enough.
        """
        is_collected = isinstance(frames, str) and self._write_now is not None and not self._puts_waiting
        if not is_collected:
            self._write_collected()
        if self._late is not None:
            # The client is slow, and earlier text is still being written.
            await asyncio.wait({self._late})
        if self._is_complete:
            return
        if isinstance(frames, str):
            if is_collected:
                self._collect(frames)
                return
            frames = frames.encode()
        if self._write_now is None or self._puts_waiting or not self._write_now(frames):
            await self._write(frames, more_body=True)

    def _collect(self, text: str) -> None:
        if not self._collected:
            asyncio.get_running_loop().call_soon(self._write_collected)
        self._collected.append(text)
        self._collected_size += len(text)
        if self._collected_size >= _LARGEST_WRITE:
            self._write_collected()

    def _write_collected(self) -> None:
        if not self._collected or self._write_now is None or self._is_complete:
            return
        body = "".join(self._collected).encode()
        self._collected.clear()
        self._collected_size = 0
        if self._puts_waiting or not self._write_now(body):
            # The client is slow; `put` waits for this.
            self._late = self._begin(self._write(body, more_body=True))
            self._late.add_done_callback(self._forget_late)

    def _forget_late(self, _: asyncio.Future[None]) -> None:
        self._late = None

    def offer(self, text: str) -> bool:
        """Send frames that may be dropped; return False if the client is too slow for them."""
        if self._is_complete or len(self._others) >= _WAITING_OFFERS:
            return False
        self._begin(self.put(text))
        return True

    def beat(self) -> None:
        """Send a heartbeat, unless frames are being sent."""
        if not self._puts_waiting:
            self.offer(self._heartbeat())

    def end(self) -> None:
        if self._puts_waiting:
            self._abort()  # A client that stopped reading must not delay the shutdown.
        self._sending.cancel()

    def _complete_soon(self, sending: asyncio.Future[None]) -> None:
        error = None if sending.cancelled() else sending.exception()
        if error is not None and not self._is_aborted:
            logger.error("a stream of events failed", exc_info=error)
        if not self._is_complete:
            self._write_collected()
            self._is_complete = True
            self._begin(self._write(b"", more_body=False))

    def _begin(self, writing: Awaitable[None]) -> asyncio.Future[None]:
        task = asyncio.ensure_future(writing)
        self._others.add(task)
        task.add_done_callback(self._end_other)
        return task

    def _end_other(self, task: asyncio.Future[None]) -> None:
        self._others.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._is_aborted:
            logger.error("a frame could not be sent", exc_info=error)
            self._abort()

    async def _write(self, body: bytes, *, more_body: bool) -> None:
        self._puts_waiting += 1
        try:
            async with asyncio.timeout(self._heartbeats.send_seconds):
                await self._send({"type": "http.response.body", "body": body, "more_body": more_body})
        except TimeoutError:
            self._abort()
            raise
        finally:
            self._puts_waiting -= 1

    def _abort(self) -> None:
        """Reset the connection of a client that stopped reading.

        ASGI closes a connection only after all data is sent, and has no message to abort it. Without a transport the
        request is cancelled.
        """
        if self._is_aborted:
            return
        self._is_complete = self._is_aborted = True
        logger.info("a client stopped reading its event stream; the connection is reset")
        if self._transport is not None:
            _reset(self._transport)
        elif self._request is not None:
            self._request.cancel()


def _reset(transport: asyncio.WriteTransport) -> None:
    """Close a connection with RST; a normal close would keep its send buffer in the kernel."""
    if (connected := transport.get_extra_info("socket")) is not None:
        with suppress(OSError), socket.socket(fileno=os.dup(connected.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


Source = Callable[[EventStream], Coroutine[Any, Any, None]]


def each(frames: AsyncGenerator[str, None]) -> Source:
    """Return a source that sends the frames of a generator."""

    async def put_all(stream: EventStream) -> None:
        async with aclosing(frames):
            async for frame in frames:
                await stream.put(frame)

    return put_all


async def _heartbeats(connection: HTTPConnection) -> HeartbeatTimer:
    heartbeats: HeartbeatTimer = connection.app.state.heartbeats
    return heartbeats


Heartbeats = Annotated[HeartbeatTimer, Depends(_heartbeats)]
