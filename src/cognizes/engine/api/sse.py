"""Server-sent events by hand: cheap when idle, quick to notice that the reader is gone."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Annotated, Any, Protocol

from fastapi import Depends
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cognizes.engine.api.middleware import DEFERRED
from cognizes.engine.database.tenancy import continue_in_task
from cognizes.engine.supervision import SupervisedLoop, Supervisor

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 30
SEND_SECONDS = 30.0
"""How long a reader may take to make room for one frame."""
FRAMES_BYTES = 8 * 1024
"""How much may wait for a reader in its connection's buffer."""
_WAITING_OFFERS = 64

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-store"),
    (b"x-accel-buffering", b"no"),
]


class Connection(Protocol):
    """What hangs on the wheel."""

    def beat(self) -> None:
        """A turn is over: say that the connection lives."""
        ...

    def end(self) -> None:
        """The server is about to stop."""
        ...


class HeartbeatWheel:
    """One timer for all connections: each has a place on a wheel that turns once in thirty seconds."""

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
        self._places: list[set[Connection]] = [set() for _ in range(seconds)]
        self._now = 0
        self._tick = tick
        self._loop: SupervisedLoop | None = None
        self.has_ended = False

    @property
    def connections(self) -> int:
        """How many connections hang on the wheel."""
        return sum(len(place) for place in self._places)

    def join(self, stream: Connection) -> Callable[[], None]:
        """Has `beat` called once a turn; returns what to call when leaving."""
        # The emptiest place, not the current one: those who came together would all beat together.
        place = min(self._places, key=len)
        place.add(stream)
        if self._loop is None:
            self._loop = self._supervisor.start("heartbeat-wheel", self._turn, longest_pause=self._tick)
        return lambda: place.discard(stream)

    def end(self) -> None:
        """Lets every connection end: the server is about to stop. Those that come later end at once."""
        self.has_ended = True
        for stream in [stream for place in self._places for stream in place]:
            stream.end()

    async def close(self) -> None:
        """Stops the wheel."""
        self.end()
        if self._loop is not None:
            await self._loop.stop()
            self._loop = None

    async def _turn(self) -> None:
        await asyncio.sleep(self._tick)
        self._now = (self._now + 1) % len(self._places)
        for stream in list(self._places[self._now]):
            try:
                stream.beat()
            except Exception:
                # One connection must not take the heartbeats of the others; its own next one is due in a turn.
                logger.exception("the heartbeat of a connection failed")


class EventStream(Response):
    """Sends what its source puts until the source ends, the reader leaves, stops reading, or the server closes.

    It has one task besides the request's own. The middleware runs it after the layers between have returned: a
    connection that is idle for hours would keep the frames of them all, which is half of its memory.
    """

    def __init__(self, source: Source, *, wheel: HeartbeatWheel, heartbeat: Callable[[], str]) -> None:
        self.background = None
        self._source = source
        self._wheel = wheel
        self._heartbeat = heartbeat
        self._is_over = False
        self._is_given_up = False
        self._puts_waiting = 0
        self._others: set[asyncio.Future[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if DEFERRED in scope:
            scope[DEFERRED].append(self.run)
        else:
            await self.run(receive, send)

    async def run(self, receive: Receive, send: Send) -> None:
        """Streams."""
        self._receive, self._send, self._request = receive, send, asyncio.current_task()
        if (transport := self._transport) is not None:
            # What a reader that stopped reading costs; the usual 64 KiB is much for thousands of them.
            transport.set_write_buffer_limits(high=FRAMES_BYTES)
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        self._sending = continue_in_task(self._source(self), name="event-stream")
        # Not in that task itself: one that is cancelled before its first step runs none of its own code.
        self._sending.add_done_callback(self._complete_soon)
        leave = self._wheel.join(self)
        if self._wheel.has_ended:
            self.end()
        try:
            # Says so, too, when the response is complete.
            while (await receive())["type"] != "http.disconnect":
                pass
        except asyncio.CancelledError:
            if not self._is_given_up or self._request is None:
                raise
            self._request.uncancel()
        finally:
            self._is_over = self._is_given_up = True
            leave()
            under_way = [self._sending, *self._others]
            for task in under_way:
                task.cancel()
            await asyncio.wait(under_way)

    async def put(self, text: str) -> None:
        """Sends frames; returns when there is room for more. What comes after the end is dropped."""
        if not self._is_over:
            await self._write(text.encode(), more_body=True)

    def offer(self, text: str) -> bool:
        """Sends frames that may be left out; False when the reader is too slow for them."""
        if self._is_over or len(self._others) >= _WAITING_OFFERS:
            return False
        self._begin(self.put(text))
        return True

    def beat(self) -> None:
        """Sends a heartbeat, unless something waits to be sent anyway."""
        if not self._puts_waiting:
            self.offer(self._heartbeat())

    def end(self) -> None:
        """Ends the response."""
        if self._puts_waiting:
            self._hang_up()  # a reader that does not read would keep the server from stopping
        self._sending.cancel()

    @property
    def _transport(self) -> asyncio.WriteTransport | None:
        """What is below ASGI, under uvicorn: its `receive` is a method of the request, which has the transport."""
        return getattr(getattr(self._receive, "__self__", None), "transport", None)

    def _complete_soon(self, sending: asyncio.Future[None]) -> None:
        error = None if sending.cancelled() else sending.exception()
        if error is not None and not self._is_given_up:
            logger.error("a stream of events failed", exc_info=error)
        if not self._is_over:
            self._is_over = True
            self._begin(self._write(b"", more_body=False))

    def _begin(self, writing: Awaitable[None]) -> None:
        task = asyncio.ensure_future(writing)
        self._others.add(task)
        task.add_done_callback(self._end_other)

    def _end_other(self, task: asyncio.Future[None]) -> None:
        self._others.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._is_given_up:
            logger.error("a frame could not be sent", exc_info=error)
            self._hang_up()

    async def _write(self, body: bytes, *, more_body: bool) -> None:
        self._puts_waiting += 1
        try:
            async with asyncio.timeout(self._wheel.send_seconds):
                await self._send({"type": "http.response.body", "body": body, "more_body": more_body})
        except TimeoutError:
            self._hang_up()
            raise
        finally:
            self._puts_waiting -= 1

    def _hang_up(self) -> None:
        """ASGI closes a connection after all was sent, which to a reader that stopped reading is never; it has no word
        for giving up. So the connection is cut below it, where the server lets us, and else only left alone."""
        if self._is_given_up:
            return
        self._is_over = self._is_given_up = True
        logger.info("a reader of events stopped reading; its connection is closed")
        if (transport := self._transport) is not None:
            _reset(transport)
        elif self._request is not None:
            self._request.cancel()


def _reset(transport: asyncio.WriteTransport) -> None:
    """Ends a connection at once. Without that, the kernel would keep what it has of it for as long as nobody reads."""
    if (connected := transport.get_extra_info("socket")) is not None:
        with suppress(OSError), socket.socket(fileno=os.dup(connected.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


Source = Callable[[EventStream], Coroutine[Any, Any, None]]


def each(frames: AsyncGenerator[str, None]) -> Source:
    """A source out of a generator."""

    async def put_all(stream: EventStream) -> None:
        async with aclosing(frames):
            async for frame in frames:
                await stream.put(frame)

    return put_all


async def _wheel(connection: HTTPConnection) -> HeartbeatWheel:
    wheel: HeartbeatWheel = connection.app.state.wheel
    return wheel


Wheel = Annotated[HeartbeatWheel, Depends(_wheel)]
