"""Server-sent events by hand: cheap when idle, quick to notice that the reader is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any

from starlette.responses import Response

from cognizes.engine.api.requests import Receive, Scope, Send

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 30
_SEND_SECONDS = 30.0

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-store"),
    (b"x-accel-buffering", b"no"),
]


class HeartbeatWheel:
    """One timer for all connections: each has a place on a wheel that turns once in thirty seconds."""

    def __init__(self, seconds: int = HEARTBEAT_SECONDS, *, tick: float = 1.0) -> None:
        self._places: list[set[asyncio.Event]] = [set() for _ in range(seconds)]
        self._now = 0
        self._tick = tick
        self._task: asyncio.Task[None] | None = None
        self.has_ended = False

    @property
    def connections(self) -> int:
        """How many connections hang on the wheel."""
        return sum(len(place) for place in self._places)

    def join(self) -> tuple[asyncio.Event, Callable[[], None]]:
        """An event that is set every turn, and what to call when leaving."""
        beat = asyncio.Event()
        place = self._places[self._now]
        place.add(beat)
        if self._task is None:
            self._task = asyncio.create_task(self._turn(), name="heartbeat-wheel")
        return beat, lambda: place.discard(beat)

    def end(self) -> None:
        """Lets every connection end: the server is about to stop."""
        self.has_ended = True
        for place in self._places:
            for beat in place:
                beat.set()

    async def close(self) -> None:
        """Stops the wheel."""
        self.end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _turn(self) -> None:
        while True:
            await asyncio.sleep(self._tick)
            self._now = (self._now + 1) % len(self._places)
            for beat in self._places[self._now]:
                beat.set()


class EventStream(Response):
    """Sends frames until they end, the reader leaves, stops reading, or the server closes."""

    def __init__(
        self, frames: AsyncGenerator[str, None], *, wheel: HeartbeatWheel, heartbeat: Callable[[], str]
    ) -> None:
        super().__init__()
        self._frames = frames
        self._wheel = wheel
        self._heartbeat = heartbeat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        beat, leave = self._wheel.join()
        gone = asyncio.ensure_future(_wait_until_gone(receive))
        try:
            await self._send_frames(send, gone, beat)
        except TimeoutError:
            logger.info("a reader of events stopped reading; its connection is closed")
        finally:
            leave()
            gone.cancel()
            await self._frames.aclose()

    async def _send_frames(self, send: Send, gone: asyncio.Future[None], beat: asyncio.Event) -> None:
        upcoming = asyncio.ensure_future(self._next_frame())
        beating = asyncio.ensure_future(beat.wait())
        try:
            while not gone.done() and not self._wheel.has_ended:
                changes: set[asyncio.Future[Any]] = {upcoming, beating, gone}
                await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
                if upcoming.done():
                    frame = upcoming.result()
                    if frame is None:
                        break
                    await _send_text(send, frame)
                    upcoming = asyncio.ensure_future(self._next_frame())
                if beating.done() and not self._wheel.has_ended:
                    beat.clear()
                    await _send_text(send, self._heartbeat())
                    beating = asyncio.ensure_future(beat.wait())
            if not gone.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            beating.cancel()
            upcoming.cancel()
            await asyncio.wait([upcoming])

    async def _next_frame(self) -> str | None:
        return await anext(self._frames, None)


async def _send_text(send: Send, text: str) -> None:
    async with asyncio.timeout(_SEND_SECONDS):
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
