"""Texts, thoughts, tool calls and results of a recorded run: streamed while they grow, stored when they end."""

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
    BaseEvent,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from cognizes.engine.agui.frames import clean_text, now, to_json
from cognizes.engine.agui.translator import PARTS_FORMAT
from cognizes.engine.database.documents import dump_jsonb, text_bytes
from cognizes.engine.errors import EngineError, IllegalFrameError, LimitExceededError, NotFoundError
from cognizes.engine.hosting.agent import RunContext
from cognizes.engine.hosting.turns import ThreadTurn
from cognizes.engine.models import Event, JsonObject, new_id
from cognizes.engine.streams.chunks import CALL, THOUGHT, THOUGHT_SUFFIX, CallHead
from cognizes.engine.streams.writer import MessageWriter
from cognizes.engine.timeline.event_reading import SHOWN_BEFORE, TEXT_FORMAT, parse_document

logger = logging.getLogger(__name__)

Emit = Callable[[Sequence[BaseEvent]], None]
_ROLES: dict[str, Literal["user", "system"]] = {"user": "user", "system": "system", "developer": "system"}
_EARLY_CHARACTERS = 256
"""The longest first delta that clients receive before the row of its stream is committed."""


class RecordedRun:
    """Stores the events of one run, and knows the ids of its thread. `emit` receives the frames for clients."""

    def __init__(self, context: RunContext, *, author: str, emit: Emit) -> None:
        history = context.turn.history if isinstance(context.turn, ThreadTurn) else None
        self.context = context
        self.author = author
        self.emit = emit
        self.history = history.snapshot if history else None
        self.pending: dict[str, None] = dict.fromkeys(history.pending) if history else {}
        self.message_ids: set[str] = {message["id"] for message in self.history.messages} if self.history else set()
        self.call_ids: set[str] = set()
        self.used_ids: dict[tuple[str, str], str] = {}
        self._is_branched = isinstance(context.turn, ThreadTurn) and context.turn.is_branched
        self._order: list[str] = []
        self._stored: set[str] = set()

    async def assign(self, kind: str, given: str, *, suffix: str = "") -> str:
        """Return the id that clients receive for an item: the agent's, unless the thread has it already."""
        used = given if given.endswith(suffix) else given + suffix
        if kind == "call":
            is_taken = not used or used in self.call_ids or self.knows_call(used)
        else:
            is_taken = not used or used in self.message_ids or await self.is_hidden(used)
        if is_taken:
            used = f"{new_id()}{suffix}"
        (self.call_ids if kind == "call" else self.message_ids).add(used)
        self.used_ids[kind, given] = used
        return used

    async def is_hidden(self, event_id: str) -> bool:
        """Return whether the thread has an event of this id that its history does not show: of another branch."""
        if not self._is_branched:
            return False
        return await self.context.engine.sessions.log.find(self.context.thread_id, event_id) is not None

    def show(self, name: str) -> None:
        """Note that clients receive the beginning of a message or a call."""
        self._order.append(name)

    def store(self, name: str) -> JsonObject:
        """Return what the event of a message or a call contains if another one began later and is stored already.

        Events have the order in which items end. Clients have the items in the order in which these begin.
        """
        self._stored.add(name)
        later = self._order[self._order.index(name) + 1 :] if name in self._order else ()
        following = next((other for other in later if other in self._stored), None)
        while self._order and self._order[0] in self._stored:
            self._stored.discard(self._order.pop(0))
        return {} if following is None else {SHOWN_BEFORE: following}

    def knows_call(self, call_id: str) -> bool:
        return call_id in self.call_ids or bool(self.history and self.history.find_call(call_id))

    async def append(self, kind: str, content: JsonObject, *, event_id: str = "") -> Event:
        return await self.append_event(
            Event(
                id=event_id or str(new_id()),
                thread_id="",
                invocation_id="",
                author=self.author,
                event_type=kind,
                content=content,
            )
        )

    async def append_event(self, event: Event) -> Event:
        run = self.context.run
        event.thread_id, event.run_id, event.invocation_id = run.thread_id, run.id, run.id
        await self.context.engine.sessions.append_to_thread(UUID(run.thread_id), event)
        return event

    def open_stream(self, message_id: str, *, role: str) -> asyncio.Task[MessageWriter]:
        """Open a stream. A cancelled run does not cancel the task, because it stores what clients have received."""
        writer = self.context.engine.stream_message(
            self.context.thread_id,
            role=role,
            message_id=message_id,
            author="user" if role == "user" else self.author,
            run_id=self.context.run.id,
            invocation_id=self.context.run.id,
        )
        return asyncio.create_task(writer.open(), name=f"open-{message_id:.80}")

    async def keep(self, store: Callable[[], Awaitable[object]]) -> None:
        """Store a part of an unfinished answer. A failure is logged: the run ends in any case."""
        try:
            await store()
        except EngineError as error:
            logger.warning("run %s: a part of its unfinished answer is not stored: %s", self.context.run.id, error)


@dataclass(eq=False)
class _Text:
    """A text or a thought that is being streamed, under the id that clients receive.

    `first` is the delta that clients received before the row of the stream was committed, until the stream has it.
    """

    id: str
    opening: asyncio.Task[MessageWriter]
    first: str = ""
    writer: MessageWriter | None = None

    async def open(self) -> MessageWriter:
        """Return the writer when the row of the stream is committed."""
        if self.writer is None:
            writer = await asyncio.shield(self.opening)
            first, self.first = self.first, ""
            await writer.write(first)
            self.writer = writer
        return self.writer

    async def abort(self, content: JsonObject) -> None:
        """Store the text so far as interrupted."""
        await (await self.open()).abort(content=content)

    def abandon(self) -> None:
        """Let the engine end the stream, if it is open."""
        if self.writer is not None:
            self.writer.abandon()


@dataclass(eq=False)
class _NewText:
    """A text without content so far. Clients receive its START with the first content; an empty text is dropped."""

    id: str
    role: Literal["user", "system", "assistant"]
    name: str | None


class RecordedTexts:
    """The texts and thoughts of a run."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._texts: dict[str, _Text] = {}
        self._new_texts: dict[str, _NewText] = {}
        self._thoughts: dict[str, _Text] = {}
        self._new_thoughts: dict[str, str] = {}

    def has_text(self, given: str) -> bool:
        return given in self._texts

    def has_thought(self, given: str) -> bool:
        return given in self._thoughts

    async def finish(self) -> None:
        for thought in list(self._thoughts):
            await self.end_thought(ReasoningMessageEndEvent(message_id=thought, timestamp=now()))
        for text in list(self._texts):
            await self.end_text(TextMessageEndEvent(message_id=text, timestamp=now()))

    async def abort(self) -> None:
        for item in (*self._thoughts.values(), *self._texts.values()):
            await self._run.keep(partial(item.abort, self._run.store(item.id)))
            item.abandon()

    async def start_text(self, frame: TextMessageStartEvent) -> None:
        if frame.message_id in self._texts or frame.message_id in self._new_texts:
            return
        if frame.message_id in self._thoughts:
            await self.end_thought(ReasoningMessageEndEvent(message_id=frame.message_id, timestamp=now()))
        used = await self._run.assign("message", frame.message_id)
        self._new_texts[frame.message_id] = _NewText(used, _ROLES.get(frame.role or "") or "assistant", frame.name)

    async def write_text(self, frame: TextMessageContentEvent) -> None:
        if frame.delta:
            delta = clean_text(frame.delta)
            if (text := self._texts.get(frame.message_id)) is None:
                await self._begin_text(frame.message_id, delta, frame.timestamp)
                return
            await (text.writer or await text.open()).write(delta)
            if text.id != frame.message_id or delta is not frame.delta:
                frame = TextMessageContentEvent(message_id=text.id, delta=delta, timestamp=frame.timestamp)
            self._run.emit([frame])

    async def _begin_text(self, given: str, delta: str, timestamp: int | None) -> None:
        if given not in self._new_texts:
            await self.start_text(TextMessageStartEvent(message_id=given))
        new = self._new_texts.pop(given)
        text = self._texts[given] = _Text(new.id, self._run.open_stream(new.id, role=new.role))
        self._run.show(new.id)
        start = TextMessageStartEvent(message_id=new.id, role=new.role, name=new.name, timestamp=timestamp)
        await self._begin(
            text, delta, [start, TextMessageContentEvent(message_id=new.id, delta=delta, timestamp=timestamp)]
        )

    async def _begin(self, text: _Text, delta: str, frames: Sequence[BaseEvent]) -> None:
        """Emit the first frames of a text, and write its first delta when the row of its stream is committed.

        Clients of this process do not wait for that commit, unless the delta might be refused for its size. Other
        processes get every delta with a flush, after it.
        """
        if is_early := len(delta) <= _EARLY_CHARACTERS:
            text.first = delta
            self._run.emit(frames)
        writer = await text.open()
        if not is_early:
            await writer.write(delta)
            self._run.emit(frames)

    async def end_text(self, frame: TextMessageEndEvent) -> None:
        self._new_texts.pop(frame.message_id, None)
        if text := self._texts.get(frame.message_id):
            writer = await text.open()
            await writer.complete(content=self._run.store(text.id))
            del self._texts[frame.message_id]
            self._run.emit([TextMessageEndEvent(message_id=text.id, timestamp=frame.timestamp)])

    async def start_thought(self, frame: ReasoningMessageStartEvent) -> None:
        if frame.message_id not in self._thoughts and frame.message_id not in self._new_thoughts:
            used = await self._run.assign("thought", frame.message_id, suffix=THOUGHT_SUFFIX)
            self._new_thoughts[frame.message_id] = used

    async def write_thought(self, frame: ReasoningMessageContentEvent) -> None:
        if frame.delta:
            delta = clean_text(frame.delta)
            if (thought := self._thoughts.get(frame.message_id)) is None:
                await self._begin_thought(frame.message_id, delta, frame.timestamp)
                return
            await (thought.writer or await thought.open()).write(delta)
            self._run.emit(
                [ReasoningMessageContentEvent(message_id=thought.id, delta=delta, timestamp=frame.timestamp)]
            )

    async def _begin_thought(self, given: str, delta: str, timestamp: int | None) -> None:
        if given not in self._new_thoughts:
            await self.start_thought(ReasoningMessageStartEvent(message_id=given))
        used = self._new_thoughts.pop(given)
        self._run.show(used)
        thought = self._thoughts[given] = _Text(used, self._run.open_stream(used, role=THOUGHT))
        frames: list[BaseEvent] = [
            ReasoningStartEvent(message_id=used, timestamp=timestamp),
            ReasoningMessageStartEvent(message_id=used, timestamp=timestamp),
            ReasoningMessageContentEvent(message_id=used, delta=delta, timestamp=timestamp),
        ]
        await self._begin(thought, delta, frames)

    async def end_thought(self, frame: ReasoningMessageEndEvent | ReasoningEndEvent) -> None:
        self._new_thoughts.pop(frame.message_id, None)
        if thought := self._thoughts.get(frame.message_id):
            writer = await thought.open()
            await writer.complete(content=self._run.store(thought.id))
            del self._thoughts[frame.message_id]
            self._run.emit(
                [
                    ReasoningMessageEndEvent(message_id=thought.id, timestamp=frame.timestamp),
                    ReasoningEndEvent(message_id=thought.id, timestamp=frame.timestamp),
                ]
            )
            if said := writer.text.strip():
                await note_progress(self._run.context, "thought", {"thought": said, "at": _moment()})


@dataclass(eq=False)
class _ToolCall:
    """A tool call whose arguments arrive. A second attempt to store it has the same event id.

    `writer` streams the arguments to other processes, from the second fragment on: most calls that arrive as a whole
    have one fragment, and need no stream. `opening` is the task that opens the stream.
    """

    id: str
    name: str
    parent_id: str
    arguments: list[str] = field(default_factory=list)
    size: int = 0
    event_id: str = field(default_factory=lambda: str(new_id()))
    opening: asyncio.Task[MessageWriter] | None = None
    writer: MessageWriter | None = None

    async def stream(self, opening: asyncio.Task[MessageWriter]) -> None:
        """Write the arguments so far when the row of the stream is committed."""
        self.opening = opening
        self.writer = await asyncio.shield(opening)
        await self.writer.write(CallHead(self.id, self.name, self.parent_id).text())
        for delta in self.arguments:
            await self.writer.write(delta)


class RecordedCalls:
    """The tool calls and the results of a run."""

    def __init__(self, run: RecordedRun, *, client_tools: Sequence[str]) -> None:
        self._run = run
        self._client_tools = frozenset(client_tools)
        self._max_bytes = run.context.engine.settings.max_event_bytes
        self._calls: dict[str, _ToolCall] = {}

    def has_call(self, given: str) -> bool:
        return given in self._calls

    async def finish(self) -> None:
        for call in list(self._calls):
            await self.end(ToolCallEndEvent(tool_call_id=call, timestamp=now()))

    async def abort(self) -> None:
        for call in list(self._calls.values()):
            if call.writer is None and call.opening is not None:
                # The run was cancelled while the stream was being opened.
                await self._run.keep(partial(call.stream, call.opening))
            if call.writer is not None:
                await self._run.keep(call.writer.abort)
                call.writer.abandon()
            elif not self._run.context.is_released:
                await self._run.keep(partial(self._store, call, interrupted=True))

    async def start(self, frame: ToolCallStartEvent) -> None:
        given = frame.tool_call_id
        if (open_call := self._calls.get(given)) is not None:
            if open_call.name != frame.tool_call_name:
                raise illegal(frame, f"the call {given!r:.80} is open, for the tool {open_call.name!r:.80}")
            return
        used = await self._run.assign("call", given)
        parent = self._run.used_ids.get(("message", frame.parent_message_id or ""), frame.parent_message_id)
        call = self._calls[given] = _ToolCall(used, frame.tool_call_name, parent or used)
        self._run.message_ids.add(call.parent_id)
        self._run.show(used)
        self._run.emit(
            [
                ToolCallStartEvent(
                    tool_call_id=used,
                    tool_call_name=call.name,
                    parent_message_id=call.parent_id,
                    timestamp=frame.timestamp,
                )
            ]
        )

    async def write(self, frame: ToolCallArgsEvent) -> None:
        if (call := self._calls.get(frame.tool_call_id)) is None:
            raise illegal(frame, f"no call {frame.tool_call_id!r:.80} is open, and its tool is unknown")
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
            if call.writer is not None:
                await call.writer.write(delta)
            elif len(call.arguments) > 1:
                await call.stream(self._run.open_stream(call.event_id, role=CALL))
            self._run.emit([ToolCallArgsEvent(tool_call_id=call.id, delta=delta, timestamp=frame.timestamp)])

    async def end(self, frame: ToolCallEndEvent) -> None:
        if call := self._calls.get(frame.tool_call_id):
            await self._store(call)
            del self._calls[frame.tool_call_id]
            if call.name in self._client_tools:
                self._run.pending[call.id] = None
            self._run.emit([ToolCallEndEvent(tool_call_id=call.id, timestamp=frame.timestamp)])

    async def _store(self, call: _ToolCall, *, interrupted: bool = False) -> None:
        content, entry = self._describe(call.id, call.name, "".join(call.arguments), parent=call.parent_id)
        if interrupted:
            content["interrupted"] = True
        content |= self._run.store(call.id)
        stored: Awaitable[object]
        if call.writer is not None:
            stored = call.writer.complete(content=content)
        else:
            stored = self._run.append("act", content, event_id=call.event_id)
        await asyncio.gather(stored, note_progress(self._run.context, "act", entry))

    async def store_whole(self, call_id: str, name: str, text: str, *, parent: str) -> Event:
        """Store a call of a message of the agent; return its event."""
        content, entry = self._describe(call_id, name, text, parent=parent)
        event, _ = await asyncio.gather(
            self._run.append("act", content), note_progress(self._run.context, "act", entry)
        )
        return event

    def _describe(self, call_id: str, name: str, text: str, *, parent: str) -> tuple[JsonObject, JsonObject]:
        """Return the content of the event of a call, and its entry on the run's row."""
        parsed = parse_document(text)
        content: JsonObject = {
            "tool_call_id": call_id,
            "tool_name": name,
            **document("tool_input", text, parsed),
            "parent_message_id": parent,
        }
        if name in self._client_tools:
            content["client_tool"] = True
        return content, {"id": call_id, "tool_name": name, "input": parsed, "at": _moment()}

    async def take_result(self, frame: ToolCallResultEvent) -> None:
        given = frame.tool_call_id
        if given in self._calls:
            await self.end(ToolCallEndEvent(tool_call_id=given, timestamp=frame.timestamp))
        call_id = self._run.used_ids.get(("call", given), given)
        if not self._run.knows_call(call_id):
            raise illegal(frame, f"there is no tool call {given!r:.80}")
        message_id = await self._run.assign("message", frame.message_id)
        content = frame.content
        if isinstance(content, str):
            content = clean_text(content)
            value = parse_document(content)
            observed = document("observation", content, value)
        else:
            value = [part.model_dump(mode="json", by_alias=True) for part in content]
            observed = {"observation": value, "format": PARTS_FORMAT}
        stored = {"tool_call_id": call_id, "message_id": message_id, "is_error": False, **observed}
        entry = {"id": call_id, "output": value, "is_error": False, "finished_at": _moment()}
        await asyncio.gather(
            self._run.append("observe", stored, event_id=message_id), note_progress(self._run.context, "observe", entry)
        )
        self._run.pending.pop(call_id, None)
        self._run.emit(
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


async def note_progress(context: RunContext, kind: str, entry: JsonObject) -> None:
    """Note a thought, a call or a result on the run's row. A failure is logged: the event itself is stored."""
    run, engine = context.run, context.engine
    arguments = context.thread_id, run.id, kind, dump_jsonb(entry), None, None, context.fence.attempt
    try:
        await engine.runs.until_available(partial(engine._database.fetch_value, "record_run_progress", *arguments))
    except NotFoundError:
        # The result of a call that the client's history or a snapshot brought, or of an earlier run.
        logger.debug("run %s: the %s %s is not on its row", run.id, kind, entry.get("id"))
    except EngineError as error:
        logger.warning("run %s: its progress could not be recorded: %s", run.id, error)


def document(key: str, text: str, parsed: Any) -> JsonObject:
    """Return a JSON document that an agent sent as text: parsed if that loses nothing, else the text."""
    if not isinstance(parsed, str) and to_json(parsed) == text:
        return {key: parsed}
    return {key: text, "format": TEXT_FORMAT}


def illegal(frame: BaseEvent, reason: str) -> IllegalFrameError:
    return IllegalFrameError(f"the agent yielded {frame.type.value}: {reason}")


def _moment() -> str:
    return datetime.now(UTC).isoformat()
