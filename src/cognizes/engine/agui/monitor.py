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

The strict profile remembers the run it translates; this one translates each event by itself, so that a client may begin
at any event and all clients share the frames. Only a message that is being streamed has a memory.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from uuid import UUID

from ag_ui.core import BaseEvent

from cognizes.engine.agui.followed_messages import FollowedMessages
from cognizes.engine.agui.frames import now
from cognizes.engine.agui.model_turn import THOUGHT as THOUGHT_SUFFIX
from cognizes.engine.agui.translator import Frames, Translator
from cognizes.engine.database import Database
from cognizes.engine.errors import DatabaseUnavailableError, PoolTimeoutError, StreamUnavailableError
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.pulse.event_bridge import AgUiEvent, AgUiEventType, FrameGroup, json_patch, milliseconds
from cognizes.engine.pulse.live_hub import LiveHub
from cognizes.engine.streams.delta_stream import StreamHead, StreamStatus
from cognizes.engine.streams.message_streams import MessageStreams
from cognizes.engine.streams.stream_hub import StreamWatch
from cognizes.engine.timeline.event_reading import adk_field, is_partial, read_parts

logger = logging.getLogger(__name__)

_RUN_STATUS = {"run_finished": "completed", "run_failed": "failed", "run_cancelled": "cancelled"}
_GROUPS_KEPT = 256
_LARGEST_KEPT = 16 * 1024
_OUTER = ("type", "timestamp")


class MonitorTranslator(Translator):
    """Translates what an event says. State and sub-agents depend on earlier events, so they are left out here."""

    def __init__(self, *, thread_id: str = "", run_id: str = "") -> None:
        super().__init__(thread_id=thread_id, run_id=run_id, state={}, with_user=True)

    def translate(self, event: Event) -> list[BaseEvent]:
        """Return the frames of what an event says; an error in it does not end the stream."""
        frames = super().translate(event)
        self.has_ended = False
        return frames

    def _enter(self, event: Event) -> Frames:
        return iter(())

    def _state_change(self, event: Event) -> Frames:
        return iter(())


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
        translator = translator or MonitorTranslator()
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


@dataclass(frozen=True)
class Told:
    """One step of a followed thread: a stored event, or more of a message that is being streamed (`event` is None).

    `frames` is None when nothing of the event was streamed to this reader: `frames_of(event)` has them.
    """

    event: Event | None
    frames: list[AgUiEvent] | None

    @property
    def streamed(self) -> list[AgUiEvent]:
        """Return the text and reasoning frames of a message that was streamed; none of any other event."""
        frames = self.frames
        if frames is None and self.event is not None and self.event.content.get("message_id") == self.event.id:
            frames = frames_of(self.event)  # it was stored by its stream before a chunk of it was read
        return [frame for frame in frames or () if frame.type.startswith(("TEXT_", "REASONING_"))]


class MonitorFrames:
    """Follows runs and threads for any number of readers: stored events, and the chunks of messages being streamed."""

    def __init__(self, database: Database, hub: LiveHub, streams: MessageStreams) -> None:
        self._database = database
        self._hub = hub
        self._streams = streams
        self._groups: dict[tuple[str, int | None], FrameGroup] = {}

    def on_unstored(self, callback: Callable[[JsonObject], None]) -> None:
        """Register a plain function for notifications that are no stored event."""
        self._hub.on_unstored(callback)

    def off_unstored(self, callback: Callable[[JsonObject], None]) -> None:
        """Remove such a function."""
        self._hub.off_unstored(callback)

    async def follow_run(
        self, run_id: str, *, after: int = 0, thread_id: UUID | None = None
    ) -> AsyncGenerator[list[FrameGroup], None]:
        """Yield the frames of a run after an event: those that exist, then those to come. The run may not exist yet."""
        run = await self._hub.find_run(run_id, thread_id)
        if run is None:
            return
        steps = self.follow(run["thread_id"], after=max(after, run["begins_after"]), run_id=run_id)
        async with aclosing(steps) as pages:
            async for told in pages:
                yield [self._group(step) for step in told]

    async def follow(
        self, thread_id: UUID, *, after: int = 0, run_id: str | None = None
    ) -> AsyncGenerator[list[Told], None]:
        """Yield the events of a thread and the chunks of its messages, or those of one of its runs."""
        following = _Following(self._database, self._hub, self._streams, thread_id, run_id)
        cursor = after
        try:
            async with aclosing(self._hub.follow_with_streams(thread_id, after=after)) as pages:
                async for events in pages:
                    # Stored events first: they happened before what is being streamed now.
                    told = [following.take(event) for event in events if run_id in (None, event.run_id)]
                    cursor = (events[-1].sequence_num or cursor) if events else cursor
                    if frames := await following.read_streams(cursor):
                        told.append(Told(None, frames))
                    if told:
                        yield told
        finally:
            following.close()

    def _group(self, told: Told) -> FrameGroup:
        """Return the frames of a step; readers of one thread share those of an event."""
        if told.event is None or told.frames is not None:
            return FrameGroup(told.frames or [])
        key = (told.event.thread_id, told.event.sequence_num)
        if (group := self._groups.get(key)) is None:
            group = FrameGroup(frames_of(told.event))
            if len(group.text) <= _LARGEST_KEPT:
                self._groups[key] = group
                if len(self._groups) > _GROUPS_KEPT:
                    del self._groups[next(iter(self._groups))]
        return group


class _Following:
    """What one reader was told of the messages that are being streamed in a thread.

    It watches streams only while the hub knows of one: a reader of a quiet thread costs nothing more.
    """

    __slots__ = ("_database", "_hub", "_messages", "_run_id", "_starts", "_streams", "_thread_id", "_translator",
                 "_waiting", "_watch")  # fmt: skip

    def __init__(
        self, database: Database, hub: LiveHub, streams: MessageStreams, thread_id: UUID, run_id: str | None
    ) -> None:
        self._database = database
        self._hub = hub
        self._streams = streams
        self._thread_id = thread_id
        self._run_id = run_id
        self._watch: StreamWatch | None = None
        self._translator: Translator | None = None
        self._messages: FollowedMessages | None = None
        self._starts: dict[str, int] = {}
        self._waiting: dict[str, StreamHead] = {}

    def take(self, event: Event) -> Told:
        """Return the frames of a stored event, without the text that was streamed."""
        if self._messages is None:
            return Told(event, None)
        for name in (event.id, event.id + THOUGHT_SUFFIX):
            self._starts.pop(name, None)
        has_told = self._messages.has_told(event)
        self._messages.skip(event)
        return Told(event, frames_of(event, self._translator) if has_told else None)

    async def read_streams(self, cursor: int) -> list[AgUiEvent]:
        """Return the frames of what was streamed since the last call, of messages that began before `cursor`."""
        if self._watch is None and self._hub.is_streaming(self._thread_id):
            await self._open_watch()
        if self._watch is None or self._messages is None:
            return []
        frames: list[AgUiEvent] = []
        for head in self._watch.take_pending():
            if self._run_id in (None, head.run_id):
                frames += await self._place(head)
        for name, head in list(self._waiting.items()):
            if (start := self._starts.get(name)) is None or start <= cursor:
                del self._waiting[name]
                frames += _streamed(head, await self._messages.take(head))
        if not self._starts and not self._hub.is_streaming(self._thread_id):
            self.close()
        return frames

    def close(self) -> None:
        """Stop watching streams."""
        if self._watch is not None:
            self._watch.close()
        self._watch = self._translator = self._messages = None
        self._starts.clear()
        self._waiting.clear()

    async def _open_watch(self) -> None:
        watch = self._streams.watch(self._thread_id, with_thoughts=True)
        try:
            await watch.__aenter__()
        except (DatabaseUnavailableError, PoolTimeoutError, StreamUnavailableError) as error:
            logger.warning("thread %s: its token streams cannot be followed now: %s", self._thread_id, error)
            return  # stored events are told all the same; the next movement tries again
        self._watch = watch
        self._translator = MonitorTranslator(thread_id=str(self._thread_id), run_id=self._run_id or "")
        self._messages = FollowedMessages(self._streams, self._translator, run_id=self._run_id)

    async def _place(self, head: StreamHead) -> list[AgUiEvent]:
        """Let a stream wait until the events before it were told. A stored message is told by its event alone."""
        name = head.message_id
        if head.status is not StreamStatus.STREAMING:
            self._waiting.pop(name, None)
            if head.current_sequence == 0 and self._starts.pop(name, None) is not None and self._messages:
                return _streamed(head, await self._messages.take(head))  # nothing was said: it leaves no event
            return []
        if name not in self._starts:
            row = await self._hub.until_available(
                self._database.fetch_row,
                "read_stream_start",
                self._thread_id,
                [name, name.removesuffix(THOUGHT_SUFFIX)],
                otherwise=None,
            )
            if row is None or row["is_stored"]:
                return []
            self._starts[name] = row["last_sequence"]
        self._waiting[name] = head
        return []


def _streamed(head: StreamHead, frames: Iterable[BaseEvent]) -> list[AgUiEvent]:
    moment = now()
    plain = (_plain(frame) for frame in frames)
    return [AgUiEvent(kind, head.run_id or "", moment, data) for kind, data in plain]
