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
from functools import cache
from uuid import UUID

from ag_ui.core import BaseEvent

from cognizes.engine.agui.followed_messages import FollowedMessages
from cognizes.engine.agui.frames import now
from cognizes.engine.agui.open_items import THOUGHT as THOUGHT_SUFFIX
from cognizes.engine.agui.translator import Profile, Translator
from cognizes.engine.database import Database
from cognizes.engine.errors import DatabaseUnavailableError, PoolTimeoutError, StreamUnavailableError
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.pulse.event_bridge import AgUiEvent, AgUiEventType, encode, json_patch, milliseconds
from cognizes.engine.pulse.live_hub import LiveHub
from cognizes.engine.streams.delta_stream import StreamHead, StreamStatus
from cognizes.engine.streams.message_streams import MessageStreams
from cognizes.engine.streams.stream_hub import StreamWatch
from cognizes.engine.timeline.event_reading import adk_field, is_partial, read_parts

logger = logging.getLogger(__name__)

_RUN_STATUS = {"run_finished": "completed", "run_failed": "failed", "run_cancelled": "cancelled"}
_STEPS_KEPT = 256
_LARGEST_KEPT = 16 * 1024
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


class Step:
    """One step of a followed thread: a stored event, or more of a message that is being streamed (`event` is None)."""

    __slots__ = ("_frames", "_text", "event")

    def __init__(self, event: Event | None, frames: list[AgUiEvent] | None = None) -> None:
        self.event = event
        self._frames = frames
        self._text: str | None = None

    @property
    def frames(self) -> list[AgUiEvent]:
        """The frames, without the text that was streamed to this reader before."""
        if self._frames is None:
            self._frames = frames_of(self.event) if self.event else []
        return self._frames

    @property
    def text(self) -> str:
        """The frames on the wire."""
        if self._text is None:
            self._text = "".join(map(encode, self.frames))
        return self._text

    @property
    def is_streamed(self) -> bool:
        """Whether these are frames of a message that was streamed, or of an event that its stream has stored."""
        return self.event is None or self.event.content.get("message_id") == self.event.id


class StreamedStep(Step):
    """A stored event whose message was streamed to this reader."""

    __slots__ = ()

    @property
    def is_streamed(self) -> bool:
        """True: some of its text was told by chunks."""
        return True


class MonitorFrames:
    """Follows runs and threads for any number of readers: stored events, and the chunks of messages being streamed."""

    def __init__(self, database: Database, hub: LiveHub, streams: MessageStreams) -> None:
        self._database = database
        self._hub = hub
        self._streams = streams
        self._steps: dict[tuple[str, int | None], Step] = {}

    def on_unstored(self, callback: Callable[[JsonObject], None]) -> None:
        """Register a plain function for notifications that are no stored event."""
        self._hub.on_unstored(callback)

    def off_unstored(self, callback: Callable[[JsonObject], None]) -> None:
        """Remove such a function."""
        self._hub.off_unstored(callback)

    def follow_run(
        self, run_id: str, *, after: int = 0, thread_id: UUID | None = None
    ) -> AsyncGenerator[list[Step], None]:
        """Yield the steps of a run after an event: those that exist, then those to come. The run may not exist yet."""
        return self._follow(thread_id, run_id, after)

    def follow_thread(self, thread_id: UUID, *, after: int = 0) -> AsyncGenerator[list[Step], None]:
        """Yield the steps of a thread after an event: those that exist, then those to come."""
        return self._follow(thread_id, None, after)

    async def _follow(self, thread_id: UUID | None, run_id: str | None, after: int) -> AsyncGenerator[list[Step], None]:
        # One generator for both: thousands of readers wait here, and each layer costs each of them memory.
        if run_id is not None:
            if (run := await self._hub.find_run(run_id, thread_id)) is None:
                return
            thread_id, after = run["thread_id"], max(after, run["begins_after"])
        assert thread_id is not None  # noqa: S101 - one of the two is given
        make_step = Step if run_id is None else self._shared_step
        following: _Following | None = None
        try:
            async with aclosing(self._hub.follow_with_streams(thread_id, after=after)) as pages:
                async for events in pages:
                    after = (events[-1].sequence_num or after) if events else after
                    # Stored events first: they happened before what is being streamed now.
                    steps = [
                        make_step(event) if following is None else following.take(event) or make_step(event)
                        for event in events
                        if run_id is None or event.run_id == run_id
                    ]
                    if following is None and self._hub.is_streaming(thread_id):
                        following = _Following(self._database, self._hub, self._streams, thread_id, run_id)
                    if following is not None:
                        if frames := await following.read_streams(after):
                            steps.append(Step(None, frames))
                        if following.is_over:
                            following.close()
                            following = None
                    if steps:
                        yield steps
        finally:
            if following is not None:
                following.close()

    def _shared_step(self, event: Event) -> Step:
        """Return the step of an event; readers of one run share it and its text."""
        key = (event.thread_id, event.sequence_num)
        if (step := self._steps.get(key)) is None:
            step = Step(event)
            if len(step.text) <= _LARGEST_KEPT:
                self._steps[key] = step
                if len(self._steps) > _STEPS_KEPT:
                    del self._steps[next(iter(self._steps))]
        return step


class _Following:
    """What one reader was told of the messages that are being streamed in a thread.

    It exists only while the hub knows of a stream: a reader of a quiet thread costs nothing more.
    """

    def __init__(
        self, database: Database, hub: LiveHub, streams: MessageStreams, thread_id: UUID, run_id: str | None
    ) -> None:
        self._database = database
        self._hub = hub
        self._streams = streams
        self._thread_id = thread_id
        self._run_id = run_id
        self._watch: StreamWatch | None = None
        self._translator = Translator(thread_id=str(thread_id), run_id=run_id or "", profile=Profile.MONITOR)
        self._messages = FollowedMessages(streams, self._translator, run_id=run_id)
        self._starts: dict[str, int] = {}
        self._waiting: dict[str, StreamHead] = {}

    @property
    def is_over(self) -> bool:
        """Whether nothing is being streamed any more and every message that was is stored."""
        return not self._starts and not self._hub.is_streaming(self._thread_id)

    def take(self, event: Event) -> Step | None:
        """Return the step of a stored event whose message was streamed; None when nothing of it was."""
        for name in (event.id, event.id + THOUGHT_SUFFIX):
            self._starts.pop(name, None)
        has_told = self._messages.has_told(event)
        self._messages.skip(event)
        return StreamedStep(event, frames_of(event, self._translator)) if has_told else None

    async def read_streams(self, cursor: int) -> list[AgUiEvent]:
        """Return the frames of what was streamed since the last call, of messages that began before `cursor`."""
        if self._watch is None:
            await self._open_watch()
        frames: list[AgUiEvent] = []
        for head in self._watch.take_pending() if self._watch else ():
            if self._run_id in (None, head.run_id):
                frames += await self._place(head)
        for name, head in list(self._waiting.items()):
            if (start := self._starts.get(name)) is None or start <= cursor:
                del self._waiting[name]
                frames += _streamed(head, await self._messages.take(head))
        return frames

    def close(self) -> None:
        """Stop watching streams."""
        if self._watch is not None:
            self._watch.close()

    async def _open_watch(self) -> None:
        watch = self._streams.watch(self._thread_id, with_thoughts=True)
        try:
            await watch.__aenter__()
        except (DatabaseUnavailableError, PoolTimeoutError, StreamUnavailableError) as error:
            logger.warning("thread %s: its token streams cannot be followed now: %s", self._thread_id, error)
            return  # stored events are told all the same; the next movement tries again
        self._watch = watch

    async def _place(self, head: StreamHead) -> list[AgUiEvent]:
        """Let a stream wait until the events before it were told. A stored message is told by its event alone."""
        name = head.message_id
        if head.status is not StreamStatus.STREAMING:
            self._waiting.pop(name, None)
            if head.current_sequence == 0 and self._starts.pop(name, None) is not None:
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
