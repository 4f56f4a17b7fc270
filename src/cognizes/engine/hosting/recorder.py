"""FrameRecorder: stores the frames of a run whose agent keeps no history, and makes them legal.

| frame of the agent | stored |
| --- | --- |
| TEXT_MESSAGE_*, REASONING_* | chunks, then one `assistant_message` or `thought`; `interrupted` if no END comes |
| TOOL_CALL_START, ARGS, END | one `act` |
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
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal
from uuid import UUID

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
    ReasoningEndEvent,
    ReasoningMessage,
    ReasoningMessageChunkEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
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
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
    UserMessage,
)

from cognizes.engine.agui.frames import OpenItems, clean_text, now, to_json
from cognizes.engine.agui.json_patch import apply_patch
from cognizes.engine.agui.translator import PARTS_FORMAT, Translator
from cognizes.engine.database.documents import dump_jsonb, text_bytes
from cognizes.engine.errors import EngineError, IllegalFrameError, InvalidInputError, LimitExceededError, NotFoundError
from cognizes.engine.hosting.agent import RunContext
from cognizes.engine.hosting.recorded_state import RecordedState
from cognizes.engine.hosting.turns import ThreadTurn, tool_message_event, user_message_event
from cognizes.engine.models import Event, JsonObject, new_id
from cognizes.engine.streams.chunks import THOUGHT, THOUGHT_SUFFIX
from cognizes.engine.streams.writer import MessageWriter
from cognizes.engine.timeline.event_reading import TEXT_FORMAT, parse_document

logger = logging.getLogger(__name__)

Emit = Callable[[Sequence[BaseEvent]], None]
_ACTIVITY_SECONDS = 0.25
_ROLES: dict[str, Literal["user", "system"]] = {"user": "user", "system": "system", "developer": "system"}


@dataclass(eq=False)
class _Text:
    """A text or a thought that is being streamed, under the id that clients receive."""

    id: str
    writer: MessageWriter


@dataclass(eq=False)
class _NewText:
    """A text without content so far. Clients receive its START with the first content; an empty text is dropped."""

    id: str
    role: Literal["user", "system", "assistant"]
    name: str | None


@dataclass(eq=False)
class _ToolCall:
    """A tool call whose arguments arrive. A second attempt to store it has the same event id."""

    id: str
    name: str
    parent_id: str
    arguments: list[str] = field(default_factory=list)
    size: int = 0
    event_id: str = field(default_factory=lambda: str(new_id()))


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
        self._author = author
        self._client_tools = frozenset(client_tools)
        self._emit = emit
        self._max_bytes = context.engine.settings.max_event_bytes
        history = context.turn.history if isinstance(context.turn, ThreadTurn) else None
        self._history = history.snapshot if history else None
        self._message_ids: set[str] = {message["id"] for message in self._history.messages} if self._history else set()
        self._call_ids: set[str] = set()
        self._used_ids: dict[tuple[str, str], str] = {}
        self._texts: dict[str, _Text] = {}
        self._new_texts: dict[str, _NewText] = {}
        self._thoughts: dict[str, _Text] = {}
        self._new_thoughts: dict[str, str] = {}
        self._calls: dict[str, _ToolCall] = {}
        self._from_chunks: tuple[str, str] | None = None
        self._open = OpenItems()
        self._activities: dict[str, _Activity] = {}
        self._pending: dict[str, None] = dict.fromkeys(history.pending) if history else {}
        self._state = RecordedState(context, author=author)
        self._handlers: dict[EventType, Callable[[Any], Awaitable[None]]] = {
            EventType.TEXT_MESSAGE_START: self._start_text,
            EventType.TEXT_MESSAGE_CONTENT: self._write_text,
            EventType.TEXT_MESSAGE_END: self._end_text,
            EventType.TEXT_MESSAGE_CHUNK: self._take_text_chunk,
            EventType.REASONING_START: self._ignore,
            EventType.REASONING_MESSAGE_START: self._start_thought,
            EventType.REASONING_MESSAGE_CONTENT: self._write_thought,
            EventType.REASONING_MESSAGE_END: self._end_thought,
            EventType.REASONING_END: self._end_thought,
            EventType.REASONING_MESSAGE_CHUNK: self._take_thought_chunk,
            EventType.TOOL_CALL_START: self._start_call,
            EventType.TOOL_CALL_ARGS: self._write_arguments,
            EventType.TOOL_CALL_END: self._end_call,
            EventType.TOOL_CALL_CHUNK: self._take_call_chunk,
            EventType.TOOL_CALL_RESULT: self._take_result,
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
        return list(self._pending)

    async def take(self, frame: BaseEvent) -> None:
        """Store a frame of the agent, and emit what clients receive of it."""
        kind = frame.type
        if self._from_chunks is not None and kind not in _CHUNKS and kind is not EventType.RAW:
            await self._end_chunks()
        frame.raw_event = None
        if frame.timestamp is None:
            frame.timestamp = now()
        await self._handlers.get(kind, self._take_other)(frame)

    async def finish(self, interrupts: Sequence[Interrupt] = ()) -> None:
        """End the items that the agent left open, and store its questions: the run has succeeded or waits."""
        self._from_chunks = None
        for thought in list(self._thoughts):
            await self._end_thought(ReasoningMessageEndEvent(message_id=thought, timestamp=now()))
        for text in list(self._texts):
            await self._end_text(TextMessageEndEvent(message_id=text, timestamp=now()))
        for call in list(self._calls):
            await self._end_call(ToolCallEndEvent(tool_call_id=call, timestamp=now()))
        for frame in self._open.end_frames(is_waiting=bool(interrupts)):
            await self._store_end(frame)
        await self._store_activities()
        if interrupts:
            asked = [interrupt.model_dump(mode="json", by_alias=True) for interrupt in interrupts]
            await self._append("interrupt", {"interrupts": asked})

    async def abort(self) -> None:
        """Keep what arrived until now: the run has failed, was cancelled, or continues elsewhere. Never raises."""
        for item in (*self._thoughts.values(), *self._texts.values()):
            await self._keep(item.writer.abort)
            item.writer.abandon()
        if not self._context.is_released:
            for call in self._calls.values():
                await self._keep(partial(self._store_call, call, interrupted=True))
            await self._keep(self._store_activities)

    async def _keep(self, store: Callable[[], Awaitable[object]]) -> None:
        try:
            await store()
        except EngineError as error:
            logger.warning("run %s: a part of its unfinished answer is not stored: %s", self._context.run.id, error)

    # Texts and thoughts

    async def _start_text(self, frame: TextMessageStartEvent) -> None:
        if frame.message_id in self._texts or frame.message_id in self._new_texts:
            return
        if frame.message_id in self._thoughts:
            await self._end_thought(ReasoningMessageEndEvent(message_id=frame.message_id, timestamp=now()))
        used = self._assign("message", frame.message_id, self._message_ids)
        self._new_texts[frame.message_id] = _NewText(used, _ROLES.get(frame.role or "") or "assistant", frame.name)

    async def _begin_text(self, given: str, timestamp: int | None) -> _Text:
        if given not in self._new_texts:
            await self._start_text(TextMessageStartEvent(message_id=given))
        new = self._new_texts.pop(given)
        self._emit([TextMessageStartEvent(message_id=new.id, role=new.role, name=new.name, timestamp=timestamp)])
        text = self._texts[given] = _Text(new.id, await self._open_stream(new.id, role=new.role))
        return text

    async def _write_text(self, frame: TextMessageContentEvent) -> None:
        if frame.delta:
            if (text := self._texts.get(frame.message_id)) is None:
                text = await self._begin_text(frame.message_id, frame.timestamp)
            delta = clean_text(frame.delta)
            await text.writer.write(delta)
            if text.id != frame.message_id or delta is not frame.delta:
                frame = TextMessageContentEvent(message_id=text.id, delta=delta, timestamp=frame.timestamp)
            self._emit([frame])

    async def _end_text(self, frame: TextMessageEndEvent) -> None:
        self._new_texts.pop(frame.message_id, None)
        if text := self._texts.get(frame.message_id):
            await text.writer.complete()
            del self._texts[frame.message_id]
            self._emit([TextMessageEndEvent(message_id=text.id, timestamp=frame.timestamp)])

    async def _start_thought(self, frame: ReasoningMessageStartEvent) -> None:
        if frame.message_id not in self._thoughts and frame.message_id not in self._new_thoughts:
            used = self._assign("thought", frame.message_id, self._message_ids, suffix=THOUGHT_SUFFIX)
            self._new_thoughts[frame.message_id] = used

    async def _begin_thought(self, given: str, timestamp: int | None) -> _Text:
        if given not in self._new_thoughts:
            await self._start_thought(ReasoningMessageStartEvent(message_id=given))
        used = self._new_thoughts.pop(given)
        self._emit(
            [
                ReasoningStartEvent(message_id=used, timestamp=timestamp),
                ReasoningMessageStartEvent(message_id=used, timestamp=timestamp),
            ]
        )
        thought = self._thoughts[given] = _Text(used, await self._open_stream(used, role=THOUGHT))
        return thought

    async def _write_thought(self, frame: ReasoningMessageContentEvent) -> None:
        if frame.delta:
            if (thought := self._thoughts.get(frame.message_id)) is None:
                thought = await self._begin_thought(frame.message_id, frame.timestamp)
            delta = clean_text(frame.delta)
            await thought.writer.write(delta)
            self._emit([ReasoningMessageContentEvent(message_id=thought.id, delta=delta, timestamp=frame.timestamp)])

    async def _end_thought(self, frame: ReasoningMessageEndEvent | ReasoningEndEvent) -> None:
        self._new_thoughts.pop(frame.message_id, None)
        if thought := self._thoughts.get(frame.message_id):
            await thought.writer.complete()
            del self._thoughts[frame.message_id]
            self._emit(
                [
                    ReasoningMessageEndEvent(message_id=thought.id, timestamp=frame.timestamp),
                    ReasoningEndEvent(message_id=thought.id, timestamp=frame.timestamp),
                ]
            )
            if said := thought.writer.text.strip():
                await self._note("thought", {"thought": said, "at": _moment()})

    async def _open_stream(self, message_id: str, *, role: str) -> MessageWriter:
        writer = self._context.engine.stream_message(
            self._context.thread_id,
            role=role,
            message_id=message_id,
            author="user" if role == "user" else self._author,
            run_id=self._context.run.id,
            invocation_id=self._context.run.id,
        )
        return await writer.open()

    async def _ignore(self, frame: BaseEvent) -> None:
        """Emit nothing for the frame around a thought: the recorder emits its own with every thought."""

    # Chunks: frames that open and close their items by themselves

    async def _take_text_chunk(self, frame: TextMessageChunkEvent) -> None:
        name = await self._follow_chunks("text", frame.message_id, frame)
        if name not in self._texts:
            await self._start_text(
                TextMessageStartEvent(message_id=name, role=frame.role, name=frame.name, timestamp=frame.timestamp)
            )
        await self._write_text(
            TextMessageContentEvent(message_id=name, delta=frame.delta or "", timestamp=frame.timestamp)
        )

    async def _take_thought_chunk(self, frame: ReasoningMessageChunkEvent) -> None:
        name = await self._follow_chunks("thought", frame.message_id, frame)
        if frame.delta == "":
            await self._end_chunks()
            return
        if name not in self._thoughts:
            await self._start_thought(ReasoningMessageStartEvent(message_id=name, timestamp=frame.timestamp))
        await self._write_thought(
            ReasoningMessageContentEvent(message_id=name, delta=frame.delta or "", timestamp=frame.timestamp)
        )

    async def _take_call_chunk(self, frame: ToolCallChunkEvent) -> None:
        name = await self._follow_chunks("call", frame.tool_call_id, frame)
        if name not in self._calls:
            if frame.tool_call_name is None:
                raise _illegal(frame, "its first chunk has no toolCallName")
            await self._start_call(
                ToolCallStartEvent(
                    tool_call_id=name,
                    tool_call_name=frame.tool_call_name,
                    parent_message_id=frame.parent_message_id,
                    timestamp=frame.timestamp,
                )
            )
        if frame.delta:
            await self._write_arguments(
                ToolCallArgsEvent(tool_call_id=name, delta=frame.delta, timestamp=frame.timestamp)
            )

    async def _follow_chunks(self, kind: str, given: str | None, frame: BaseEvent) -> str:
        """Return the id of the item that a chunk continues; end the item before if the chunk belongs to another."""
        current = self._from_chunks
        if current is not None and (current[0] != kind or given not in (None, current[1])):
            await self._end_chunks()
            current = None
        if current is None:
            if given is None:
                raise _illegal(frame, "its first chunk has no id")
            current = self._from_chunks = (kind, given)
        return current[1]

    async def _end_chunks(self) -> None:
        if self._from_chunks is None:
            return
        (kind, name), self._from_chunks = self._from_chunks, None
        if kind == "text":
            await self._end_text(TextMessageEndEvent(message_id=name, timestamp=now()))
        elif kind == "thought":
            await self._end_thought(ReasoningMessageEndEvent(message_id=name, timestamp=now()))
        else:
            await self._end_call(ToolCallEndEvent(tool_call_id=name, timestamp=now()))

    # Tool calls and results

    async def _start_call(self, frame: ToolCallStartEvent) -> None:
        given = frame.tool_call_id
        if (open_call := self._calls.get(given)) is not None:
            if open_call.name != frame.tool_call_name:
                raise _illegal(frame, f"the call {given!r:.80} is open, for the tool {open_call.name!r:.80}")
            return
        used = self._assign("call", given, self._call_ids)
        parent = self._used_ids.get(("message", frame.parent_message_id or ""), frame.parent_message_id)
        call = self._calls[given] = _ToolCall(used, frame.tool_call_name, parent or used)
        self._message_ids.add(call.parent_id)
        self._emit(
            [
                ToolCallStartEvent(
                    tool_call_id=used,
                    tool_call_name=call.name,
                    parent_message_id=call.parent_id,
                    timestamp=frame.timestamp,
                )
            ]
        )

    async def _write_arguments(self, frame: ToolCallArgsEvent) -> None:
        if (call := self._calls.get(frame.tool_call_id)) is None:
            raise _illegal(frame, f"no call {frame.tool_call_id!r:.80} is open, and its tool is unknown")
        if frame.delta:
            delta = clean_text(frame.delta)
            call.size += text_bytes(delta)
            if call.size > self._max_bytes:
                raise LimitExceededError(
                    f"the arguments of the call {call.id!r:.80}",
                    size=call.size,
                    limit=self._max_bytes,
                    setting="COGNIZES_MAX_EVENT_BYTES",
                )
            call.arguments.append(delta)
            self._emit([ToolCallArgsEvent(tool_call_id=call.id, delta=delta, timestamp=frame.timestamp)])

    async def _end_call(self, frame: ToolCallEndEvent) -> None:
        if call := self._calls.get(frame.tool_call_id):
            await self._store_call(call)
            del self._calls[frame.tool_call_id]
            if call.name in self._client_tools:
                self._pending[call.id] = None
            self._emit([ToolCallEndEvent(tool_call_id=call.id, timestamp=frame.timestamp)])

    async def _store_call(self, call: _ToolCall, *, interrupted: bool = False) -> None:
        text = "".join(call.arguments)
        await self._store_act(call.id, call.name, text, parent=call.parent_id, event_id=call.event_id, more=(
            {"interrupted": True} if interrupted else {}
        ))  # fmt: skip

    async def _store_act(
        self, call_id: str, name: str, text: str, *, parent: str, event_id: str = "", more: JsonObject | None = None
    ) -> Event:
        parsed = parse_document(text)
        content: JsonObject = {
            "tool_call_id": call_id,
            "tool_name": name,
            **_document("tool_input", text, parsed),
            "parent_message_id": parent,
            **(more or {}),
        }
        if name in self._client_tools:
            content["client_tool"] = True
        entry = {"id": call_id, "tool_name": name, "input": parsed, "at": _moment()}
        event, _ = await asyncio.gather(self._append("act", content, event_id=event_id), self._note("act", entry))
        return event

    async def _take_result(self, frame: ToolCallResultEvent) -> None:
        given = frame.tool_call_id
        if given in self._calls:
            await self._end_call(ToolCallEndEvent(tool_call_id=given, timestamp=frame.timestamp))
        call_id = self._used_ids.get(("call", given), given)
        if call_id not in self._call_ids and not (self._history and self._history.find_call(call_id)):
            raise _illegal(frame, f"there is no tool call {given!r:.80}")
        message_id = self._assign("message", frame.message_id, self._message_ids)
        content = frame.content
        if isinstance(content, str):
            text = clean_text(content)
            value = parse_document(text)
            document = _document("observation", text, value)
            content = text
        else:
            value = [part.model_dump(mode="json", by_alias=True) for part in content]
            document = {"observation": value, "format": PARTS_FORMAT}
        stored = {"tool_call_id": call_id, "message_id": message_id, "is_error": False, **document}
        entry = {"id": call_id, "output": value, "is_error": False, "finished_at": _moment()}
        await asyncio.gather(self._append("observe", stored, event_id=message_id), self._note("observe", entry))
        self._pending.pop(call_id, None)
        self._emit(
            [
                ToolCallResultEvent(
                    message_id=message_id,
                    tool_call_id=call_id,
                    content=content,
                    role="tool",
                    timestamp=frame.timestamp,
                )
            ]
        )

    # State

    async def _take_state(self, frame: StateSnapshotEvent) -> None:
        if frame.snapshot is None:
            return
        if not isinstance(frame.snapshot, dict):
            raise _illegal(frame, "a state is an object whose keys have scopes")
        self._emit(await self._state.replace(frame.snapshot))

    async def _take_state_delta(self, frame: StateDeltaEvent) -> None:
        try:
            self._emit(await self._state.patch(frame))
        except IllegalFrameError as error:
            raise _illegal(frame, str(error)) from error

    # Messages

    async def _take_messages(self, frame: MessagesSnapshotEvent) -> None:
        for message in frame.messages:
            for event in await self._store_message(message):
                translator = Translator(
                    thread_id="", run_id=self._context.run.id, root_agent=self._author, with_user=True
                )
                self._emit(translator.translate(event))

    async def _store_message(self, message: Message) -> list[Event]:
        """Store a message with an unknown id, and its calls with unknown ids; return their events."""
        kind = "thought" if isinstance(message, ReasoningMessage) else "message"
        used = self._used_ids.get((kind, message.id), message.id)
        if kind == "thought" and not used.endswith(THOUGHT_SUFFIX):
            used += THOUGHT_SUFFIX
        is_new = used not in self._message_ids
        self._message_ids.add(used)
        events: list[Event] = []
        if isinstance(message, AssistantMessage):
            if is_new and message.content:
                content = {"text": clean_text(message.content), "message_id": used}
                events.append(await self._append("assistant_message", content, event_id=used))
            for call in message.tool_calls or ():
                call_id = self._used_ids.get(("call", call.id), call.id)
                if not self._knows_call(call_id):
                    self._call_ids.add(call_id)
                    events.append(
                        await self._store_act(call_id, call.function.name, call.function.arguments, parent=used)
                    )
        elif not is_new:
            return []
        elif isinstance(message, UserMessage):
            events.append(await self._append_event(user_message_event(message)))
        elif isinstance(message, ToolMessage):
            call_id = self._used_ids.get(("call", message.tool_call_id), message.tool_call_id)
            if self._knows_call(call_id):
                known = message.model_copy(update={"tool_call_id": call_id})
                events.append(await self._append_event(tool_message_event(known, author=self._author)))
        elif isinstance(message, ReasoningMessage):
            content = {"thought": clean_text(message.content), "message_id": used}
            events.append(await self._append("thought", content, event_id=used))
        elif isinstance(message, ActivityMessage):
            activity = {"message_id": used, "activity_type": message.activity_type, "content": message.content}
            events.append(await self._append("activity", activity))
        else:
            content = {"text": clean_text(message.content), "message_id": used}
            events.append(await self._append("system_message", content, event_id=used))
        return events

    def _knows_call(self, call_id: str) -> bool:
        return call_id in self._call_ids or bool(self._history and self._history.find_call(call_id))

    # Steps, activities, and frames that are stored as they are

    async def _take_step(self, frame: StepStartedEvent | StepFinishedEvent) -> None:
        is_start = isinstance(frame, StepStartedEvent)
        if not self._open.accepts(frame):
            if not is_start:
                return
            await self._take_step(StepFinishedEvent(step_name=frame.step_name, timestamp=frame.timestamp))
            self._open.fold(frame)
        await self._append("step_start" if is_start else "step_end", {"step_name": frame.step_name})
        self._emit([frame])

    async def _store_end(self, frame: BaseEvent) -> None:
        frame.timestamp = now()
        if isinstance(frame, StepFinishedEvent):
            await self._append("step_end", {"step_name": frame.step_name})
            self._emit([frame])
        else:
            await self._store_frame(frame)

    async def _take_activity(self, frame: ActivitySnapshotEvent) -> None:
        known = self._find_activity(frame.message_id)
        if known is None:
            used = self._assign("message", frame.message_id, self._message_ids)
            known = self._activities[frame.message_id] = _Activity(used, frame.activity_type, frame.content)
        elif frame.replace is False:
            return
        else:
            known.type, known.content, known.is_dirty = frame.activity_type, frame.content, True
        await self._activity_changed(known)
        self._emit([frame.model_copy(update={"message_id": known.id})])

    async def _take_activity_delta(self, frame: ActivityDeltaEvent) -> None:
        if (known := self._find_activity(frame.message_id)) is None:
            raise _illegal(frame, f"there is no activity {frame.message_id!r:.80}")
        try:
            changed = apply_patch(known.content, frame.patch)
        except InvalidInputError as error:
            raise _illegal(frame, str(error)) from error
        if not isinstance(changed, dict):
            raise _illegal(frame, "the content of an activity is an object")
        known.content, known.is_dirty = changed, True
        await self._activity_changed(known)
        self._emit([frame.model_copy(update={"message_id": known.id})])

    def _find_activity(self, given: str) -> _Activity | None:
        if (known := self._activities.get(given)) is not None:
            return known
        stored = self._history.find(given) if self._history else None
        if stored is None or stored["role"] != "activity":
            return None
        known = self._activities[given] = _Activity(given, stored["activityType"], stored["content"], is_dirty=False)
        return known

    async def _activity_changed(self, activity: _Activity) -> None:
        if asyncio.get_running_loop().time() - activity.stored_at >= _ACTIVITY_SECONDS:
            await self._store_activity(activity)

    async def _store_activities(self) -> None:
        for activity in self._activities.values():
            if activity.is_dirty:
                await self._store_activity(activity)

    async def _store_activity(self, activity: _Activity) -> None:
        activity.stored_at, activity.is_dirty = asyncio.get_running_loop().time(), False
        content = {"message_id": activity.id, "activity_type": activity.type, "content": activity.content}
        await self._append("activity", content)

    async def _take_other(self, frame: BaseEvent) -> None:
        if isinstance(frame, ReasoningEncryptedValueEvent):
            kinds = ("call",) if frame.subtype == "tool-call" else ("message", "thought")
            used = next((self._used_ids[kind, frame.entity_id] for kind in kinds if (kind, frame.entity_id)
                         in self._used_ids), frame.entity_id)  # fmt: skip
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
        await self._append("agui_frame", {"frame": document})
        self._emit([frame])

    # Storing

    def _assign(self, kind: str, given: str, taken: set[str], *, suffix: str = "") -> str:
        """Return the id that clients receive for an item: the agent's, unless the thread has it already."""
        used = given if given.endswith(suffix) else given + suffix
        is_taken = used in taken or not used or (kind == "call" and self._knows_call(used))
        if is_taken:
            used = f"{new_id()}{suffix}"
        taken.add(used)
        self._used_ids[kind, given] = used
        return used

    async def _append(self, kind: str, content: JsonObject, *, event_id: str = "") -> Event:
        return await self._append_event(
            Event(
                id=event_id or str(new_id()),
                thread_id="",
                invocation_id="",
                author=self._author,
                event_type=kind,
                content=content,
            )
        )

    async def _append_event(self, event: Event) -> Event:
        run = self._context.run
        event.thread_id, event.run_id, event.invocation_id = run.thread_id, run.id, run.id
        await self._context.engine.sessions.append_to_thread(UUID(run.thread_id), event)
        return event

    async def _note(self, kind: str, entry: JsonObject) -> None:
        """Note a thought, a call or a result on the run's row. A failure is logged: the event itself is stored."""
        run, engine = self._context.run, self._context.engine
        arguments = self._context.thread_id, run.id, kind, dump_jsonb(entry), None, None, self._context.fence.attempt
        try:
            await engine.runs.until_available(partial(engine._database.fetch_value, "record_run_progress", *arguments))
        except NotFoundError:
            # The result of a call that the client's history or a snapshot brought.
            logger.debug("run %s: the %s %s is not on its row", run.id, kind, entry.get("id"))
        except EngineError as error:
            logger.warning("run %s: its progress could not be recorded: %s", run.id, error)


_CHUNKS = (EventType.TEXT_MESSAGE_CHUNK, EventType.REASONING_MESSAGE_CHUNK, EventType.TOOL_CALL_CHUNK)


def _document(key: str, text: str, parsed: Any) -> JsonObject:
    """Return a JSON document that an agent sent as text: parsed if that loses nothing, else the text."""
    if not isinstance(parsed, str) and to_json(parsed) == text:
        return {key: parsed}
    return {key: text, "format": TEXT_FORMAT}


def _illegal(frame: BaseEvent, reason: str) -> IllegalFrameError:
    return IllegalFrameError(f"the agent yielded {frame.type.value}: {reason}")


def _moment() -> str:
    return datetime.now(UTC).isoformat()
