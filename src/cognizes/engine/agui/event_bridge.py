"""The frames of seed 000 and `PulseEventBridge`, which yields the frames of a run.

The engine passes `MonitorFrames` as the source of the bridge, which follows the feed. Without a source, the bridge
makes a RAW frame of every notification that names the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from cognizes.engine.database.documents import dump_json
from cognizes.engine.database.listener import DEFAULT_CHANNEL, parse_payload
from cognizes.engine.models import JsonObject, is_delete

logger = logging.getLogger(__name__)

_QUEUED_FRAMES = 64


class AgUiEventType(StrEnum):
    """The event types of the AG-UI protocol that the engine sends."""

    RUN_STARTED = "RUN_STARTED"
    RUN_FINISHED = "RUN_FINISHED"
    RUN_ERROR = "RUN_ERROR"
    STEP_STARTED = "STEP_STARTED"
    STEP_FINISHED = "STEP_FINISHED"
    TEXT_MESSAGE_START = "TEXT_MESSAGE_START"
    TEXT_MESSAGE_CONTENT = "TEXT_MESSAGE_CONTENT"
    TEXT_MESSAGE_END = "TEXT_MESSAGE_END"
    TOOL_CALL_START = "TOOL_CALL_START"
    TOOL_CALL_ARGS = "TOOL_CALL_ARGS"
    TOOL_CALL_END = "TOOL_CALL_END"
    TOOL_CALL_RESULT = "TOOL_CALL_RESULT"
    REASONING_START = "REASONING_START"
    REASONING_MESSAGE_START = "REASONING_MESSAGE_START"
    REASONING_MESSAGE_CONTENT = "REASONING_MESSAGE_CONTENT"
    REASONING_MESSAGE_END = "REASONING_MESSAGE_END"
    REASONING_END = "REASONING_END"
    STATE_SNAPSHOT = "STATE_SNAPSHOT"
    STATE_DELTA = "STATE_DELTA"
    MESSAGES_SNAPSHOT = "MESSAGES_SNAPSHOT"
    RAW = "RAW"
    CUSTOM = "CUSTOM"


@dataclass
class AgUiEvent:
    """One frame. `timestamp` is in milliseconds, by default the current time; `data` is flattened into the frame.

    `sequence` is set on the last frame of a stored event: a client that has it has everything up to that event.
    """

    type: AgUiEventType
    run_id: str
    timestamp: int = field(default_factory=lambda: milliseconds(None))
    data: JsonObject = field(default_factory=dict)
    sequence: int | None = None

    def to_sse(self) -> str:
        return f"data: {dump_json(self.to_json())}\n\n"

    def to_json(self) -> JsonObject:
        return {"type": self.type, "runId": self.run_id, "timestamp": self.timestamp, **self.data}


def encode(frame: AgUiEvent) -> str:
    """Return the frame as a server-sent event, with the sequence of the event that it completes as its id."""
    return frame.to_sse() if frame.sequence is None else f"id: {frame.sequence}\n{frame.to_sse()}"


class Subscribable(Protocol):
    async def subscribe(self, channel: str, callback: Callable[[str, str], Awaitable[None]]) -> None: ...

    async def unsubscribe(self, channel: str) -> None: ...


def json_patch(delta: JsonObject) -> list[JsonObject]:
    """Return a state delta as RFC 6902 operations; `add` also replaces existing keys."""
    operations: list[JsonObject] = []
    for key, value in delta.items():
        path = "/" + key.replace("~", "~0").replace("/", "~1")
        operations.append(
            {"op": "remove", "path": path} if is_delete(value) else {"op": "add", "path": path, "value": value}
        )
    return operations


def milliseconds(moment: datetime | None) -> int:
    """Return a time, by default the current one, in milliseconds."""
    return int((moment or datetime.now(UTC)).timestamp() * 1000)


class FrameGroup(Protocol):
    @property
    def frames(self) -> list[AgUiEvent]: ...


class FrameSource(Protocol):
    def follow_run(
        self, run_id: str, *, after: int = 0, thread_id: UUID | None = None
    ) -> AsyncGenerator[Sequence[FrameGroup], None]: ...


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


def raw_frame(run_id: str, payload: JsonObject) -> AgUiEvent:
    return AgUiEvent(AgUiEventType.RAW, run_id, milliseconds(None), {"payload": payload})
