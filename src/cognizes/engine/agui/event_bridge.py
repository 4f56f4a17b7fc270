"""`PulseEventBridge`, which yields the frames of a run.

The engine passes `MonitorFrames` as the source of the bridge, which follows the feed. Without a source, the bridge
makes a RAW frame of every notification that names the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing
from typing import Protocol
from uuid import UUID

from cognizes.engine.agui.frames import AgUiEvent, AgUiEventType, raw_frame
from cognizes.engine.database.notifications import DEFAULT_CHANNEL, parse_payload

__all__ = ["AgUiEvent", "AgUiEventType", "PulseEventBridge"]

logger = logging.getLogger(__name__)

_QUEUED_FRAMES = 64


class Subscribable(Protocol):
    async def subscribe(self, channel: str, callback: Callable[[str, str], Awaitable[None]]) -> None: ...

    async def unsubscribe(self, channel: str) -> None: ...


class ItemFrames(Protocol):
    """The frames of one item of the feed."""

    @property
    def frames(self) -> list[AgUiEvent]: ...


class FrameSource(Protocol):
    def follow_run(
        self, run_id: str, *, after: int = 0, thread_id: UUID | None = None
    ) -> AsyncGenerator[Sequence[ItemFrames], None]: ...


class _Done:
    """A completed awaitable: a listener may call the bridge's callback or await it."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class PulseEventBridge:
    """Yields the frames of runs to their subscribers.

    With a source, the frames are those of stored events and streamed messages: in order, without gaps, from the run's
    first event on. Without one, every notification that names the run becomes a RAW frame.
    """

    def __init__(self, listener: Subscribable, source: FrameSource | None = None) -> None:
        self._listener = listener
        self._source = source
        self._queues: dict[str, list[asyncio.Queue[AgUiEvent]]] = {}
        self._is_wanted = False
        self._is_subscribed = False
        self._changing = asyncio.Lock()

    @property
    def subscribers(self) -> int:
        return sum(map(len, self._queues.values()))

    async def start(self) -> None:
        self._is_wanted = True
        await self._apply()

    async def stop(self) -> None:
        self._is_wanted = False
        await self._apply()

    async def subscribe(self, run_id: str, *, after: int = 0) -> AsyncGenerator[AgUiEvent, None]:
        """Yield the frames of a run, existing and future ones. The first subscriber starts the bridge."""
        if self._source is not None:
            async with aclosing(self._source.follow_run(run_id, after=after)) as pages:
                async for groups in pages:
                    for group in groups:
                        for frame in group.frames:
                            yield frame
            return
        queue: asyncio.Queue[AgUiEvent] = asyncio.Queue(_QUEUED_FRAMES)
        self._queues.setdefault(run_id, []).append(queue)
        try:
            await self.start()
            while True:
                yield await queue.get()
        finally:
            self._queues[run_id].remove(queue)
            if not self._queues[run_id]:
                del self._queues[run_id]
            if not self._queues:
                await self.stop()

    async def _apply(self) -> None:
        """Subscribe or unsubscribe, as wanted now; concurrent callers do it one after the other."""
        async with self._changing:
            wanted = self._is_wanted
            if wanted == self._is_subscribed or self._source is not None:
                return
            if wanted:
                await self._listener.subscribe(channel=DEFAULT_CHANNEL, callback=self._on_notification)
            else:
                await self._listener.unsubscribe(DEFAULT_CHANNEL)
            self._is_subscribed = wanted

    def _on_notification(self, _channel: str, text: str) -> Awaitable[None]:
        payload = parse_payload(text)
        if isinstance(run_id := payload.get("run_id"), str):
            for queue in self._queues.get(run_id, ()):
                if queue.full():
                    logger.warning("a subscriber of run %s is too slow for notifications; one is dropped", run_id)
                else:
                    queue.put_nowait(raw_frame(run_id, payload))
        return _Done()
