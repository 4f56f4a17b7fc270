"""PulseEventBridge: the frames of a run in the words of seed 000, for any number of followers.

`agui/monitor.py` makes the frames of stored events and of messages that are being streamed; the engine passes it in as
the bridge's source. Notifications that are no stored event become RAW frames here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol, TypeVar
from uuid import UUID

from cognizes.engine.database.documents import dump_json
from cognizes.engine.database.tenancy import continue_in_task
from cognizes.engine.models import JsonObject, is_delete
from cognizes.engine.pulse.pg_notify_listener import DEFAULT_CHANNEL, parse_payload

logger = logging.getLogger(__name__)

_WAITING_FRAMES = 64
_LARGEST_PUT = 4 * 1024


class AgUiEventType(StrEnum):
    """The event types of the AG-UI protocol that the engine speaks."""

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
    """One frame. `timestamp` is in milliseconds, by default those of now; `data` is flattened into the frame.

    `sequence` is the number of the stored event whose last frame this is: whoever has it, has all up to that event.
    """

    type: AgUiEventType
    run_id: str
    timestamp: int = field(default_factory=lambda: milliseconds(None))
    data: JsonObject = field(default_factory=dict)
    sequence: int | None = None

    def to_sse(self) -> str:
        """The frame on the wire."""
        return f"data: {dump_json(self.to_json())}\n\n"

    def to_json(self) -> JsonObject:
        """The frame as a JSON object."""
        return {"type": self.type, "runId": self.run_id, "timestamp": self.timestamp, **self.data}


def encode(frame: AgUiEvent) -> str:
    """The frame on the wire, with the number of the event that it completes."""
    return frame.to_sse() if frame.sequence is None else f"id: {frame.sequence}\n{frame.to_sse()}"


class Subscribable(Protocol):
    """What the bridge needs of a listener."""

    async def subscribe(self, channel: str, callback: Callable[[str, str], Awaitable[None]]) -> None: ...

    async def unsubscribe(self, channel: str) -> None: ...


def json_patch(delta: JsonObject) -> list[JsonObject]:
    """A state delta as RFC 6902 operations; `add` also replaces, so it fits new keys and old ones."""
    operations: list[JsonObject] = []
    for key, value in delta.items():
        path = "/" + key.replace("~", "~0").replace("/", "~1")
        operations.append(
            {"op": "remove", "path": path} if is_delete(value) else {"op": "add", "path": path, "value": value}
        )
    return operations


def milliseconds(moment: datetime | None) -> int:
    """A moment as AG-UI counts time."""
    return int((moment or datetime.now(UTC)).timestamp() * 1000)


class FrameGroup(Protocol):
    """Frames that belong together, and their text on the wire."""

    @property
    def frames(self) -> list[AgUiEvent]: ...

    @property
    def text(self) -> str: ...


class FrameSource(Protocol):
    """What makes the frames of runs."""

    def on_unstored(self, callback: Callable[[JsonObject], None]) -> None: ...

    def off_unstored(self, callback: Callable[[JsonObject], None]) -> None: ...

    def follow_run(
        self, run_id: str, *, after: int = 0, thread_id: UUID | None = None
    ) -> AsyncGenerator[Sequence[FrameGroup], None]: ...


class _Done:
    """The awaitable of work that is done: a listener may call the bridge's callback or await it."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class Outlet(Protocol):
    """Where frames go: a connection. `put` returns when there is room for more; `offer` may leave something out."""

    async def put(self, text: str) -> None: ...

    def offer(self, text: str) -> bool: ...


Follower = TypeVar("Follower")


class PulseEventBridge:
    """Delivers the frames of runs to their followers.

    With a source, the frames are those of stored events and streamed messages: in order, without gaps, from the run's
    first event on. Without one, a notification is passed on as it came.
    """

    def __init__(self, listener: Subscribable, source: FrameSource | None = None) -> None:
        self._listener = listener
        self._source = source
        self._followers: dict[str, set[asyncio.Queue[AgUiEvent | None]]] = {}
        self._outlets: dict[str, set[Outlet]] = {}
        self._is_wanted = False
        self._is_listening = False
        self._settling = asyncio.Lock()

    async def start(self) -> None:
        """Begins to hear the doorbell."""
        self._is_wanted = True
        await self._settle()

    async def stop(self) -> None:
        """Hears it no longer."""
        self._is_wanted = False
        await self._settle()

    async def subscribe(self, run_id: str, *, after: int = 0) -> AsyncGenerator[AgUiEvent, None]:
        """The frames of a run, those that are there and those to come. The first follower starts the bridge."""
        frames: asyncio.Queue[AgUiEvent | None] = asyncio.Queue(_WAITING_FRAMES)
        pump: asyncio.Task[None] | None = None
        _add(self._followers, run_id, frames)
        try:
            await self.start()
            pump = continue_in_task(self._pump(run_id, after, frames.put), name="bridge-pump")
            while (frame := await frames.get()) is not None:
                yield frame
            await pump
        finally:
            if pump is not None:
                pump.cancel()
                await asyncio.wait([pump])
            _remove(self._followers, run_id, frames)
            await self._stop_when_alone()

    async def forward(
        self, run_id: str, outlet: Outlet, *, after: int = 0, greeting: str = "", thread_id: UUID | None = None
    ) -> None:
        """Hands over the frames of a run as text for the wire, as many at once as are there, until there is nothing
        more to come. Cheaper than `subscribe` for those who only pass them on: no queue, no task.

        The greeting goes first; what rings behind it is not missed.
        """
        _add(self._outlets, run_id, outlet)
        try:
            await self.start()
            if greeting:
                await outlet.put(greeting)
            if self._source is None:
                await asyncio.Event().wait()
                return
            async with aclosing(self._source.follow_run(run_id, after=after, thread_id=thread_id)) as pages:
                async for groups in pages:
                    for text in _joined(group.text for group in groups):
                        await outlet.put(text)
        finally:
            _remove(self._outlets, run_id, outlet)
            await self._stop_when_alone()

    async def _stop_when_alone(self) -> None:
        """With nobody to tell, hearing every append of every process would cost each of them something."""
        if not self._followers and not self._outlets:
            await self.stop()

    async def _settle(self) -> None:
        """Listens or not, as is wanted by now. Those who come and those who go at the same time take turns."""
        async with self._settling:
            wanted = self._is_wanted
            if wanted == self._is_listening:
                return
            if self._source is not None:
                (self._source.on_unstored if wanted else self._source.off_unstored)(self._pass_on)
            elif wanted:
                await self._listener.subscribe(channel=DEFAULT_CHANNEL, callback=self._on_notification)
            else:
                await self._listener.unsubscribe(DEFAULT_CHANNEL)
            self._is_listening = wanted

    async def _pump(self, run_id: str, after: int, put: Callable[[AgUiEvent | None], Awaitable[None]]) -> None:
        if self._source is None:
            return
        try:
            async with aclosing(self._source.follow_run(run_id, after=after)) as pages:
                async for groups in pages:
                    for frame in (frame for group in groups for frame in group.frames):
                        await put(frame)
        except Exception:
            await put(None)
            raise
        # The engine was closed or the thread deleted: there is nothing more to come.
        await put(None)

    def _on_notification(self, _channel: str, text: str) -> Awaitable[None]:
        self._pass_on(parse_payload(text))
        return _Done()

    def _pass_on(self, payload: JsonObject) -> None:
        """A notification that is no stored event, or one whose event nobody reads back."""
        if not isinstance(run_id := payload.get("run_id"), str):
            return
        frame = AgUiEvent(AgUiEventType.RAW, run_id, milliseconds(None), {"payload": payload})
        heard = [outlet.offer(frame.to_sse()) for outlet in self._outlets.get(run_id, ())]
        heard += [_offer(frames, frame) for frames in self._followers.get(run_id, ())]
        if not all(heard):
            logger.warning("a follower of run %s is too slow for notifications; one was left out", run_id)


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """Texts put together, but no more at once than a slow reader may cost."""
    together, length = list[str](), 0
    for text in texts:
        together.append(text)
        length += len(text)
        if length >= _LARGEST_PUT:
            yield "".join(together)
            together, length = [], 0
    if together:
        yield "".join(together)


def _offer(frames: asyncio.Queue[AgUiEvent | None], frame: AgUiEvent) -> bool:
    try:
        frames.put_nowait(frame)
    except asyncio.QueueFull:
        return False
    return True


def _add(registry: dict[str, set[Follower]], run_id: str, follower: Follower) -> None:
    registry.setdefault(run_id, set()).add(follower)


def _remove(registry: dict[str, set[Follower]], run_id: str, follower: Follower) -> None:
    followers = registry[run_id]
    followers.discard(follower)
    if not followers:
        del registry[run_id]
