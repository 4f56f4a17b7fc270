"""The monitor profile: the frames of seed 000, made by the translator of the strict profile.

| source | frames |
| --- | --- |
| `run_started` | RUN_STARTED |
| `run_finished`, `run_failed`, `run_cancelled` | RUN_FINISHED with `status` and `error` |
| a chunk of a message that is being streamed | TEXT_MESSAGE_START once, TEXT_MESSAGE_CONTENT |
| a stored message of user or agent | the text that was not streamed yet, TEXT_MESSAGE_END |
| a thought, streamed or stored | REASONING_START, REASONING_MESSAGE_*, REASONING_END |
| a tool call (`act`, `tool_call`, an ADK function call) | TOOL_CALL_START, TOOL_CALL_ARGS, TOOL_CALL_END |
| a tool result (`observe`, `tool_result`, an ADK function response) | TOOL_CALL_RESULT |
| a state delta of any event | STATE_DELTA, as RFC 6902 operations |
| any other event | CUSTOM, named after the event's type |

The strict profile keeps the state of the run that it translates. This profile translates each event by itself, so a
client may begin at any event and all clients share the frames. Only a message that is being streamed has state.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from functools import cache
from typing import Protocol
from uuid import UUID

from ag_ui.core import BaseEvent

from cognizes.engine.agui.frames import AgUiEvent, AgUiEventType, encode, milliseconds, now, raw_frame
from cognizes.engine.agui.json_patch import json_patch
from cognizes.engine.agui.stream_translator import StreamTranslator
from cognizes.engine.agui.translator import Profile, Translator
from cognizes.engine.errors import FeedRewoundError
from cognizes.engine.feed import Chunks, Feed, FeedItem, Notification, StreamEnd
from cognizes.engine.feed.thread_channel import FeedPage
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.streams.chunks import StreamHead
from cognizes.engine.timeline.event_reading import adk_field, is_partial, read_parts

_RUN_STATUS = {"run_finished": "completed", "run_failed": "failed", "run_cancelled": "cancelled"}
_LARGEST_PUT = 16 * 1024
_OUTER = ("type", "timestamp")


def frames_of(event: Event, translator: Translator | None = None) -> list[AgUiEvent]:
    """Return the frames of a stored event. `translator` knows what of its message was streamed before."""
    if is_partial(event):
        return []  # the whole event follows
    moment = milliseconds(event.created_at)
    frames = _content_frames(event, translator)
    if delta := event.actions.get("state_delta"):
        frames.append((AgUiEventType.STATE_DELTA, {"delta": json_patch(delta)}))
    made = [AgUiEvent(kind, event.run_id or "", moment, data) for kind, data in frames]
    if made:
        made[-1].sequence = event.sequence_num
    return made


def _content_frames(event: Event, translator: Translator | None) -> list[tuple[AgUiEventType, JsonObject]]:
    kind, content = event.event_type, event.content
    if kind == "run_started":
        return [(AgUiEventType.RUN_STARTED, {"threadId": event.thread_id})]
    if kind in _RUN_STATUS:
        error = {"error": content["error"]} if "error" in content else {}
        return [(AgUiEventType.RUN_FINISHED, {"threadId": event.thread_id, "status": _RUN_STATUS[kind]} | error)]
    if translator or adk_field(event, "error_code") or any(True for _ in read_parts(event)):
        translator = translator or Translator(thread_id="", run_id="", profile=Profile.MONITOR)
        if frames := [_plain(frame, event) for frame in translator.translate(event)]:
            return frames
    if kind == "state_update" or (event.actions.get("state_delta") and "adk" in content):
        return []
    return [(AgUiEventType.CUSTOM, {"name": kind, "value": content})]


def _plain(frame: BaseEvent, event: Event | None = None) -> tuple[AgUiEventType, JsonObject]:
    # The models are flat; `model_dump` would cost ten times as much.
    data = {_camel(name): value for name, value in vars(frame).items() if value is not None and name not in _OUTER}
    if event is not None and "parts" not in event.content:
        data.pop("parentMessageId", None)  # the engine's own tool calls belong to no message
    return AgUiEventType(frame.type.value), data


@cache
def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


class FrameGroup:
    """The frames of one feed item: of a stored event, of new chunks, of a stream's end, or of a notification.

    `is_streamed` says that these are frames of a message that was streamed, or of an event that its stream stored.
    """

    __slots__ = ("_frames", "_text", "event", "is_streamed", "notification")

    def __init__(
        self,
        event: Event | None = None,
        frames: list[AgUiEvent] | None = None,
        *,
        is_streamed: bool = False,
        notification: JsonObject | None = None,
    ) -> None:
        self.event = event
        self.notification = notification
        self.is_streamed = is_streamed or (event is not None and event.content.get("message_id") == event.id)
        self._frames = frames
        self._text: str | None = None

    @property
    def frames(self) -> list[AgUiEvent]:
        """The frames, without the text that was streamed to this subscriber before."""
        if self._frames is None:
            self._frames = frames_of(self.event) if self.event else []
        return self._frames

    @property
    def text(self) -> str:
        if self._text is None:
            self._text = "".join(map(encode, self.frames))
        return self._text


class FrameSink(Protocol):
    """A connection; `put` returns when it has room for more."""

    async def put(self, frames: str | bytes) -> None: ...


class MonitorFrames:
    """Encodes the feed of runs and threads in the monitor profile."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def follow_run(
        self, run_id: str, *, after: int = 0, thread_id: UUID | None = None
    ) -> AsyncGenerator[list[FrameGroup], None]:
        """Yield the frame groups of a run after an event, existing and future ones. The run may not exist yet.

        The first page comes at once and may be empty.
        """
        encoder = _GroupEncoder(run_id)
        async with aclosing(self._feed.follow_run(run_id, after, thread_id, notifications=True)) as pages:
            async for items in pages:
                yield encoder.encode(items)

    async def follow_thread(self, thread_id: UUID, *, after: int = 0) -> AsyncGenerator[list[FrameGroup], None]:
        """Yield the frame groups of a thread like `follow_run`."""
        encoder = _GroupEncoder(None)
        async with aclosing(self._feed.follow(thread_id, after, notifications=True)) as pages:
            async for items in pages:
                yield encoder.encode(items)

    async def send(
        self, run_id: str, sink: FrameSink, *, after: int = 0, greeting: str = "", thread_id: UUID | None = None
    ) -> None:
        """Send the frames of a run until the feed ends, first the greeting.

        The subscription exists before the greeting is sent: a client that has it misses no notification.
        """
        encoder = _GroupEncoder(run_id)
        try:
            async with aclosing(self._feed.follow_run(run_id, after, thread_id, notifications=True)) as pages:
                async for items in pages:
                    if greeting:
                        await sink.put(greeting)
                        greeting = ""
                    for body in _bodies(items, encoder):
                        await sink.put(body)
        except FeedRewoundError as error:
            data = {"message": str(error), "code": "FEED_REWOUND"}
            await sink.put(AgUiEvent(AgUiEventType.RUN_ERROR, run_id, data=data).to_sse())


def _bodies(items: list[FeedItem], encoder: _GroupEncoder) -> Sequence[bytes]:
    """Return the frames of a page. Subscribers at the same position share those of stored events."""
    if isinstance(items, FeedPage) and not encoder.is_streaming:
        return items.encoded(_event_bodies)
    return _joined(group.text for group in encoder.encode(items))


def _event_bodies(items: list[FeedItem]) -> Sequence[bytes]:
    return _joined(FrameGroup(item).text for item in items if isinstance(item, Event))


class _GroupEncoder:
    """Encodes the feed for one subscriber. It has a translator only while a message is being streamed."""

    __slots__ = ("_run_id", "_streamed")

    def __init__(self, run_id: str | None) -> None:
        self._run_id = run_id
        self._streamed: StreamTranslator | None = None

    @property
    def is_streaming(self) -> bool:
        return self._streamed is not None

    def encode(self, items: Iterable[FeedItem]) -> list[FrameGroup]:
        groups = [group for item in items if (group := self._encode(item)) is not None]
        if self._streamed is not None and self._streamed.is_idle:
            self._streamed = None
        return groups

    def _encode(self, item: FeedItem) -> FrameGroup | None:
        match item:
            case Event():
                if self._streamed is not None and self._streamed.forget(item):
                    return FrameGroup(item, frames_of(item, self._streamed.translator), is_streamed=True)
                return FrameGroup(item)
            case Chunks():
                if self._streamed is None:
                    translator = Translator(
                        thread_id=item.head.thread_id, run_id=self._run_id or "", profile=Profile.MONITOR
                    )
                    self._streamed = StreamTranslator(translator)
                return _streamed_group(item.head, self._streamed.translate_chunks(item))
            case StreamEnd():
                return _streamed_group(item.head, self._streamed.end(item)) if self._streamed is not None else None
            case Notification():
                frames = [raw_frame(self._run_id, item.payload)] if self._run_id is not None else []
                return FrameGroup(frames=frames, notification=item.payload)


def _streamed_group(head: StreamHead, frames: Iterable[BaseEvent]) -> FrameGroup | None:
    moment = now()
    plain = [AgUiEvent(kind, head.run_id or "", moment, data) for kind, data in map(_plain, frames)]
    return FrameGroup(frames=plain, is_streamed=True) if plain else None


def _joined(texts: Iterable[str]) -> list[bytes]:
    """Join and encode texts, but only up to the size that a slow reader may cost."""
    bodies: list[bytes] = []
    together, length = list[str](), 0
    for text in texts:
        together.append(text)
        length += len(text)
        if length >= _LARGEST_PUT:
            bodies.append("".join(together).encode())
            together, length = [], 0
    if length:
        bodies.append("".join(together).encode())
    return bodies
