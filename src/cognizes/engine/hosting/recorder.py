"""FrameRecorder: stores the frames of a run whose agent keeps no history, and makes them legal.

| frame of the agent | stored |
| --- | --- |
| TEXT_MESSAGE_*, REASONING_* | chunks, then one `assistant_message` or `thought`; `interrupted` if no END comes |
| TOOL_CALL_START, ARGS, END | chunks, then one `act`; `interrupted` if no END comes |
| TOOL_CALL_RESULT | one `observe` |
| STATE_SNAPSHOT, STATE_DELTA | one `state_update` with the changed top-level keys |
| MESSAGES_SNAPSHOT | the messages with unknown ids; the frames of these replace the snapshot |
| STEP_STARTED, STEP_FINISHED | `step_start`, `step_end` |
| ACTIVITY_SNAPSHOT, ACTIVITY_DELTA | `activity` with the whole content; changes in quick succession share one |
| CUSTOM, RAW, SUBAGENT_*, REASONING_ENCRYPTED_VALUE | `agui_frame`, up to `COGNIZES_MAX_FRAME_BYTES` |
| RUN_FINISHED with interrupts | `interrupt` |

Clients receive what the stored events become when they are translated: a client that stays and one that connects later
hold the same. An id that the thread already has gets a new one. Content before START opens its item, a second END is
dropped; an event whose meaning is not certain is an `IllegalFrameError`, which fails the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ag_ui.core import (
    ActivityDeltaEvent,
    ActivityMessage,
    ActivitySnapshotEvent,
    AssistantMessage,
    BaseEvent,
    EventType,
    Interrupt,
    Message,
    MessagesSnapshotEvent,
    ReasoningEncryptedValueEvent,
    ReasoningMessage,
    ReasoningMessageChunkEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    StateDeltaEvent,
    StateSnapshotEvent,
    StepFinishedEvent,
    StepStartedEvent,
    TextMessageChunkEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallChunkEvent,
    ToolCallEndEvent,
    ToolCallStartEvent,
    ToolMessage,
    UserMessage,
)

from cognizes.engine.agui.frames import OpenItems, clean_text, now, to_json
from cognizes.engine.agui.json_patch import apply_patch, json_patch, parse_pointer
from cognizes.engine.agui.translator import Translator
from cognizes.engine.database.documents import text_bytes
from cognizes.engine.errors import IllegalFrameError, InvalidInputError, LimitExceededError
from cognizes.engine.hosting.agent import RunContext
from cognizes.engine.hosting.recorded_items import Emit, RecordedCalls, RecordedRun, RecordedTexts, illegal
from cognizes.engine.hosting.turns import tool_message_event, user_message_event
from cognizes.engine.models import DELETE, Event, JsonObject, is_delete
from cognizes.engine.pulse.events import SESSION, apply_delta, parse_state_prefix, without_temp
from cognizes.engine.streams.chunks import THOUGHT_SUFFIX

_ACTIVITY_SECONDS = 0.25


@dataclass(eq=False)
class _Activity:
    id: str
    type: str
    content: JsonObject
    stored_at: float = 0.0
    is_dirty: bool = True


class FrameRecorder:
    """Records one run. `emit` receives the frames for clients; an end that it emits is stored already."""

    def __init__(self, context: RunContext, *, author: str, client_tools: Sequence[str], emit: Emit) -> None:
        self._context = context
        self._run = RecordedRun(context, author=author, emit=emit)
        self._emit = emit
        self._is_aborted = False
        self._texts = RecordedTexts(self._run)
        self._calls = RecordedCalls(self._run, client_tools=client_tools)
        self._from_chunks: tuple[str, str] | None = None
        self._open = OpenItems()
        self._activities: dict[str, _Activity] = {}
        self._state = RecordedState(context, author=author)
        self._handlers: dict[EventType, Callable[[Any], Awaitable[None]]] = {
            EventType.TEXT_MESSAGE_START: self._texts.start_text,
            EventType.TEXT_MESSAGE_CONTENT: self._texts.write_text,
            EventType.TEXT_MESSAGE_END: self._texts.end_text,
            EventType.TEXT_MESSAGE_CHUNK: self._take_text_chunk,
            EventType.REASONING_START: self._ignore,
            EventType.REASONING_MESSAGE_START: self._texts.start_thought,
            EventType.REASONING_MESSAGE_CONTENT: self._texts.write_thought,
            EventType.REASONING_MESSAGE_END: self._texts.end_thought,
            EventType.REASONING_END: self._texts.end_thought,
            EventType.REASONING_MESSAGE_CHUNK: self._take_thought_chunk,
            EventType.TOOL_CALL_START: self._calls.start,
            EventType.TOOL_CALL_ARGS: self._calls.write,
            EventType.TOOL_CALL_END: self._calls.end,
            EventType.TOOL_CALL_CHUNK: self._take_call_chunk,
            EventType.TOOL_CALL_RESULT: self._calls.take_result,
            EventType.STATE_SNAPSHOT: self._take_state,
            EventType.STATE_DELTA: self._take_state_delta,
            EventType.MESSAGES_SNAPSHOT: self._take_messages,
            EventType.STEP_STARTED: self._take_step,
            EventType.STEP_FINISHED: self._take_step,
            EventType.ACTIVITY_SNAPSHOT: self._take_activity,
            EventType.ACTIVITY_DELTA: self._take_activity_delta,
        }

    @property
    def pending(self) -> list[str]:
        """Return the calls of client tools that have no result yet."""
        return list(self._run.pending)

    async def take(self, frame: BaseEvent) -> None:
        """Store a frame of the agent, and emit what clients receive of it; ignore it when the run was aborted."""
        if self._is_aborted:
            return
        kind = frame.type
        if self._from_chunks is not None and kind not in _CHUNKS and kind is not EventType.RAW:
            await self._end_chunks()
        frame.raw_event = None
        if frame.timestamp is None:
            frame.timestamp = now()
        await self._handlers.get(kind, self._take_other)(frame)

    async def finish(self, interrupts: Sequence[Interrupt] = (), *, given_ids: Mapping[str, str] | None = None) -> None:
        """End the items that the agent left open, and store its questions: the run has succeeded or waits.

        `given_ids` are the agent's ids of questions that have another id for clients. An aborted run stores nothing.
        """
        if self._is_aborted:
            return
        self._from_chunks = None
        await self._texts.finish()
        await self._calls.finish()
        for frame in self._open.end_frames(is_waiting=bool(interrupts)):
            await self._store_end(frame)
        await self._store_activities()
        if interrupts:
            asked = [interrupt.model_dump(mode="json", by_alias=True) for interrupt in interrupts]
            content: JsonObject = {"interrupts": asked} | ({"given_ids": dict(given_ids)} if given_ids else {})
            await self._run.append("interrupt", content)

    async def abort(self) -> None:
        """Keep what arrived until now: the run has failed, was cancelled, or continues elsewhere. Never raises.

        The code of an abandoned agent may still yield frames.
        """
        self._is_aborted = True
        await self._texts.abort()
        await self._calls.abort()
        if not self._context.is_released:
            await self._run.keep(self._store_activities)

    async def _ignore(self, frame: BaseEvent) -> None:
        """Emit nothing for the frame around a thought: the recorder emits its own with every thought."""

    # Chunks: frames that open and close their items by themselves

    async def _take_text_chunk(self, frame: TextMessageChunkEvent) -> None:
        name = await self._follow_chunks("text", frame.message_id, frame)
        if not self._texts.has_text(name):
            await self._texts.start_text(
                TextMessageStartEvent(message_id=name, role=frame.role, name=frame.name, timestamp=frame.timestamp)
            )
        await self._texts.write_text(
            TextMessageContentEvent(message_id=name, delta=frame.delta or "", timestamp=frame.timestamp)
        )

    async def _take_thought_chunk(self, frame: ReasoningMessageChunkEvent) -> None:
        name = await self._follow_chunks("thought", frame.message_id, frame)
        if frame.delta == "":
            await self._end_chunks()
            return
        if not self._texts.has_thought(name):
            await self._texts.start_thought(ReasoningMessageStartEvent(message_id=name, timestamp=frame.timestamp))
        await self._texts.write_thought(
            ReasoningMessageContentEvent(message_id=name, delta=frame.delta or "", timestamp=frame.timestamp)
        )

    async def _take_call_chunk(self, frame: ToolCallChunkEvent) -> None:
        name = await self._follow_chunks("call", frame.tool_call_id, frame)
        if not self._calls.has_call(name):
            if frame.tool_call_name is None:
                raise illegal(frame, "its first chunk has no toolCallName")
            await self._calls.start(
                ToolCallStartEvent(
                    tool_call_id=name,
                    tool_call_name=frame.tool_call_name,
                    parent_message_id=frame.parent_message_id,
                    timestamp=frame.timestamp,
                )
            )
        if frame.delta:
            await self._calls.write(ToolCallArgsEvent(tool_call_id=name, delta=frame.delta, timestamp=frame.timestamp))

    async def _follow_chunks(self, kind: str, given: str | None, frame: BaseEvent) -> str:
        """Return the id of the item that a chunk continues; end the item before if the chunk belongs to another."""
        current = self._from_chunks
        if current is not None and (current[0] != kind or given not in (None, current[1])):
            await self._end_chunks()
            current = None
        if current is None:
            if given is None:
                raise illegal(frame, "its first chunk has no id")
            current = self._from_chunks = (kind, given)
        return current[1]

    async def _end_chunks(self) -> None:
        if self._from_chunks is None:
            return
        (kind, name), self._from_chunks = self._from_chunks, None
        if kind == "text":
            await self._texts.end_text(TextMessageEndEvent(message_id=name, timestamp=now()))
        elif kind == "thought":
            await self._texts.end_thought(ReasoningMessageEndEvent(message_id=name, timestamp=now()))
        else:
            await self._calls.end(ToolCallEndEvent(tool_call_id=name, timestamp=now()))

    # State

    async def _take_state(self, frame: StateSnapshotEvent) -> None:
        if frame.snapshot is None:
            return
        if not isinstance(frame.snapshot, dict):
            raise illegal(frame, "a state is an object whose keys have scopes")
        self._emit(await self._state.replace(frame.snapshot))

    async def _take_state_delta(self, frame: StateDeltaEvent) -> None:
        try:
            self._emit(await self._state.patch(frame))
        except IllegalFrameError as error:
            raise illegal(frame, str(error)) from error

    # Messages

    async def _take_messages(self, frame: MessagesSnapshotEvent) -> None:
        for message in frame.messages:
            used = self._id_of(message)
            if used not in self._run.message_ids and await self._run.is_hidden(used):
                continue
            for event in await self._store_message(message, used):
                translator = Translator(
                    thread_id="", run_id=self._context.run.id, root_agent=self._run.author, with_user=True
                )
                self._emit(translator.translate(event))

    def _id_of(self, message: Message) -> str:
        """Return the id under which clients have a message of the agent."""
        kind = "thought" if isinstance(message, ReasoningMessage) else "message"
        used = self._run.used_ids.get((kind, message.id), message.id)
        return used + THOUGHT_SUFFIX if kind == "thought" and not used.endswith(THOUGHT_SUFFIX) else used

    async def _store_message(self, message: Message, used: str) -> list[Event]:
        """Store a message with an unknown id, and its calls with unknown ids; return their events."""
        is_new = used not in self._run.message_ids
        if is_new:
            self._run.show(used)
            self._run.store(used)
        self._run.message_ids.add(used)
        events: list[Event] = []
        if isinstance(message, AssistantMessage):
            if is_new and message.content:
                content = {"text": clean_text(message.content), "message_id": used}
                events.append(await self._run.append("assistant_message", content, event_id=used))
            for call in message.tool_calls or ():
                call_id = self._run.used_ids.get(("call", call.id), call.id)
                if not self._run.knows_call(call_id):
                    self._run.call_ids.add(call_id)
                    function = call.function
                    events.append(
                        await self._calls.store_whole(call_id, function.name, function.arguments, parent=used)
                    )
        elif not is_new:
            return []
        elif isinstance(message, UserMessage):
            events.append(await self._run.append_event(user_message_event(message)))
        elif isinstance(message, ToolMessage):
            call_id = self._run.used_ids.get(("call", message.tool_call_id), message.tool_call_id)
            if self._run.knows_call(call_id):
                known = message.model_copy(update={"tool_call_id": call_id})
                events.append(await self._run.append_event(tool_message_event(known, author=self._run.author)))
        elif isinstance(message, ReasoningMessage):
            content = {"thought": clean_text(message.content), "message_id": used}
            events.append(await self._run.append("thought", content, event_id=used))
        elif isinstance(message, ActivityMessage):
            activity = {"message_id": used, "activity_type": message.activity_type, "content": message.content}
            events.append(await self._run.append("activity", activity))
        else:
            content = {"text": clean_text(message.content), "message_id": used}
            events.append(await self._run.append("system_message", content, event_id=used))
        return events

    # Steps, activities, and frames that are stored as they are

    async def _take_step(self, frame: StepStartedEvent | StepFinishedEvent) -> None:
        is_start = isinstance(frame, StepStartedEvent)
        if not self._open.accepts(frame):
            if not is_start:
                return
            await self._take_step(StepFinishedEvent(step_name=frame.step_name, timestamp=frame.timestamp))
            self._open.fold(frame)
        await self._run.append("step_start" if is_start else "step_end", {"step_name": frame.step_name})
        self._emit([frame])

    async def _store_end(self, frame: BaseEvent) -> None:
        frame.timestamp = now()
        if isinstance(frame, StepFinishedEvent):
            await self._run.append("step_end", {"step_name": frame.step_name})
            self._emit([frame])
        else:
            await self._store_frame(frame)

    async def _take_activity(self, frame: ActivitySnapshotEvent) -> None:
        known = self._find_activity(frame.message_id)
        if known is None:
            used = await self._run.assign("message", frame.message_id)
            known = self._activities[frame.message_id] = _Activity(used, frame.activity_type, frame.content)
            self._run.show(used)
            self._run.store(used)
        elif frame.replace is False:
            return
        else:
            known.type, known.content, known.is_dirty = frame.activity_type, frame.content, True
        await self._activity_changed(known)
        self._emit([frame.model_copy(update={"message_id": known.id})])

    async def _take_activity_delta(self, frame: ActivityDeltaEvent) -> None:
        if (known := self._find_activity(frame.message_id)) is None:
            raise illegal(frame, f"there is no activity {frame.message_id!r:.80}")
        try:
            changed = apply_patch(known.content, frame.patch)
        except InvalidInputError as error:
            raise illegal(frame, str(error)) from error
        if not isinstance(changed, dict):
            raise illegal(frame, "the content of an activity is an object")
        known.content, known.is_dirty = changed, True
        await self._activity_changed(known)
        self._emit([frame.model_copy(update={"message_id": known.id})])

    def _find_activity(self, given: str) -> _Activity | None:
        if (known := self._activities.get(given)) is not None:
            return known
        stored = self._run.history.find(given) if self._run.history else None
        if stored is None or stored["role"] != "activity":
            return None
        known = self._activities[given] = _Activity(given, stored["activityType"], stored["content"], is_dirty=False)
        return known

    async def _activity_changed(self, activity: _Activity) -> None:
        if asyncio.get_running_loop().time() - activity.stored_at >= _ACTIVITY_SECONDS:
            await self._store_activity(activity)

    async def _store_activities(self) -> None:
        for activity in list(self._activities.values()):
            if activity.is_dirty:
                await self._store_activity(activity)

    async def _store_activity(self, activity: _Activity) -> None:
        activity.stored_at, activity.is_dirty = asyncio.get_running_loop().time(), False
        content = {"message_id": activity.id, "activity_type": activity.type, "content": activity.content}
        await self._run.append("activity", content)

    async def _take_other(self, frame: BaseEvent) -> None:
        if isinstance(frame, ReasoningEncryptedValueEvent):
            kinds = ("call",) if frame.subtype == "tool-call" else ("message", "thought")
            used = next((self._run.used_ids[kind, frame.entity_id] for kind in kinds if (kind, frame.entity_id)
                         in self._run.used_ids), frame.entity_id)  # fmt: skip
            frame = frame.model_copy(update={"entity_id": used})
        if self._open.accepts(frame):
            await self._store_frame(frame)

    async def _store_frame(self, frame: BaseEvent) -> None:
        document = frame.model_dump(mode="json", by_alias=True, exclude={"timestamp", "raw_event"})
        limit = self._context.engine.settings.max_frame_bytes
        if (size := text_bytes(to_json(document))) > limit:
            raise LimitExceededError(
                f"the event {frame.type.value} of the agent", size=size, limit=limit, setting="COGNIZES_MAX_FRAME_BYTES"
            )
        await self._run.append("agui_frame", {"frame": document})
        self._emit([frame])


_CHUNKS = (EventType.TEXT_MESSAGE_CHUNK, EventType.REASONING_MESSAGE_CHUNK, EventType.TOOL_CALL_CHUNK)


_ABSENT = object()


class RecordedState:
    """Two views of one state: what the agent sent, and what the session and its clients have.

    The agent may hold less than the session, because a snapshot of the agent removes only keys that this run wrote, and
    it may hold older values, because other writers change the session at the same time.
    """

    def __init__(self, context: RunContext, *, author: str) -> None:
        self._context = context
        self._author = author
        self._shown: JsonObject = without_temp(context.session.state)
        self._agents: JsonObject = dict(self._shown)
        self._written: set[str] | None = None

    async def replace(self, snapshot: JsonObject) -> list[BaseEvent]:
        """Store a snapshot of the agent; return the frames for clients."""
        before, self._agents = self._agents, dict(snapshot)
        changed: JsonObject = {
            key: value
            for key, value in snapshot.items()
            if before.get(key, _ABSENT) != value and self._shown.get(key, _ABSENT) != value
        }
        omitted = {key: DELETE for key in await self._written_keys() if key not in snapshot}
        await self._store(changed | omitted)
        return [StateSnapshotEvent(snapshot=dict(self._shown), timestamp=now())]

    async def patch(self, frame: StateDeltaEvent) -> list[BaseEvent]:
        """Store a patch of the agent; return the frames for clients. `IllegalFrameError` if it does not apply."""
        before = self._agents
        try:
            after = apply_patch(before, frame.delta)
        except InvalidInputError as error:
            raise IllegalFrameError(str(error)) from error
        if not isinstance(after, dict):
            raise IllegalFrameError("a state is an object whose keys have scopes")
        self._agents = after
        delta: JsonObject = {key: value for key, value in after.items() if before.get(key, _ABSENT) is not value}
        delta |= {key: DELETE for key in before if key not in after}
        fits = all(
            self._shown.get(key, _ABSENT) is before.get(key, _ABSENT) and not key.startswith("temp:")
            for key in {parse_pointer(operation.path)[0] for operation in frame.delta if operation.path} | delta.keys()
        ) and all(operation.path and operation.op not in ("move", "copy", "test") for operation in frame.delta)
        stored, foreign = await self._store(delta)
        frames: list[BaseEvent] = []
        if stored:
            # A client that shows the same values applies the agent's own patch, which may be much smaller.
            frames.append(frame if fits else _delta_frame(stored))
        if foreign:
            frames.append(_delta_frame(foreign))
        return frames

    async def _store(self, delta: JsonObject) -> tuple[JsonObject, JsonObject]:
        """Store a delta; return the part of it that changed something, and what other writers changed."""
        stored = {
            key: value for key, value in without_temp(delta).items() if key in self._shown or not is_delete(value)
        }
        if not stored:
            return {}, {}
        written = await self._written_keys()
        for key, value in stored.items():
            if parse_state_prefix(key)[0] == SESSION:
                (written.discard if is_delete(value) else written.add)(key)
        session, version = self._context.session, self._context.session.version
        await self._context.engine.sessions.update(session, stored, author=self._author, run_id=self._context.run.id)
        self._shown = apply_delta(self._shown, stored)
        foreign: JsonObject = {}
        if session.version != version + 1:
            foreign = _difference(self._shown, without_temp(session.state))
            self._shown = apply_delta(self._shown, foreign)
        return stored, foreign

    async def _written_keys(self) -> set[str]:
        """Return the keys of the session that this run wrote, also in an earlier attempt."""
        if self._written is None:
            found: list[str] = []
            if self._context.fence.attempt > 1:
                arguments = self._context.thread_id, self._context.run.id, self._author
                rows = await self._context.engine._database.fetch("find_keys_written_by_run", *arguments)
                found = [row["key"] for row in rows]
            self._written = {key for key in found if parse_state_prefix(key)[0] == SESSION}
        return self._written


def _delta_frame(delta: JsonObject) -> StateDeltaEvent:
    return StateDeltaEvent.model_validate({"delta": json_patch(delta), "timestamp": now()})


def _difference(before: JsonObject, after: JsonObject) -> JsonObject:
    changed: dict[str, Any] = {key: value for key, value in after.items() if before.get(key, _ABSENT) != value}
    return changed | {key: DELETE for key in before if key not in after}
