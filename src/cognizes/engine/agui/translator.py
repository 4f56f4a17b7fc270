"""Translates the engine's events into AG-UI frames, for both profiles.

| event | frames |
| --- | --- |
| text fragment | TEXT_MESSAGE_START once, then TEXT_MESSAGE_CONTENT; one id per model turn |
| whole text | the part that was not streamed, then TEXT_MESSAGE_END |
| thought | REASONING_*, closed before any text or tool frame of its turn |
| fragment of a tool call | TOOL_CALL_START once, then TOOL_CALL_ARGS |
| tool call, tool result | TOOL_CALL_START, ARGS (the part that was not streamed), END; TOOL_CALL_RESULT |
| question to a person, long-running tool, `interrupt` | no result; they become the outcome of the run |
| `step_start`, `step_end`, `activity`, `agui_frame` | STEP_STARTED, STEP_FINISHED, ACTIVITY_SNAPSHOT, that frame |
| state delta | STATE_DELTA, without `temp:` |
| agent that is not the root | SUBAGENT_STARTED, SUBAGENT_FINISHED around its events (STEP_* to older clients) |
| error, end of a run | END of all open items, then RUN_ERROR or RUN_FINISHED, then nothing |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import ag_ui.core
from ag_ui.core import (
    PROTOCOL_VERSION,
    ActivitySnapshotEvent,
    AssistantMessage,
    BaseEvent,
    ContentPart,
    CustomEvent,
    Interrupt,
    Message,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    StateDeltaEvent,
    StateSnapshotEvent,
    StepFinishedEvent,
    StepStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
)
from pydantic import TypeAdapter, ValidationError

from cognizes.engine.agui.call_arguments import ArgumentsWriter, StreamedText
from cognizes.engine.agui.frames import ModelTurn, OpenItems, Subagents, clean_text, milliseconds, now, to_json
from cognizes.engine.agui.json_patch import json_patch
from cognizes.engine.models import Event, JsonObject, is_delete
from cognizes.engine.pulse.events import apply_delta, message_role, without_temp
from cognizes.engine.runs.waits import Wait
from cognizes.engine.streams.chunks import THOUGHT_SUFFIX, CallHead
from cognizes.engine.timeline.event_reading import (
    CLIENT_HISTORY_MARK,
    REQUEST_PREFIX,
    Answer,
    Call,
    CallFragment,
    Question,
    Result,
    Text,
    adk_field,
    client_history_of,
    is_partial,
    is_text_of_user,
    long_running_calls,
    read_call_fragments,
    read_parts,
    unconfirmed_calls,
)

Frames = Iterator[BaseEvent]
_SILENT = (
    *("run_created", "run_started", "run_waiting", "run_signalled", "run_resumed", "run_released", "run_retried"),
    *("state_update", "message", "agent_checkpoint"),
)
_MESSAGE: TypeAdapter[Message] = TypeAdapter(Message)
_INTERRUPTS: TypeAdapter[list[Interrupt]] = TypeAdapter(list[Interrupt])
_FRAME: TypeAdapter[BaseEvent] = TypeAdapter(ag_ui.core.Event)
_PARTS: TypeAdapter[list[ContentPart]] = TypeAdapter(list[ContentPart])
_AGENT_KINDS = ("interrupt", "step_start", "step_end", "activity", "agui_frame")
PARTS_FORMAT = "parts"
"""The `format` of a tool result that consists of text, images and other parts."""
CONFIRMATION = f"{REQUEST_PREFIX}confirmation"
_RUNNER = "model"
"""The author of what ADK's runner says itself, such as the answer of a plugin that skips the agent."""
_CONFIRMATION_ANSWER: JsonObject = {
    "type": "object",
    "properties": {"confirmed": {"type": "boolean"}, "payload": {}},
    "required": ["confirmed"],
}


class Profile(Enum):
    """Which frames a translator makes.

    STRICT tracks a run: state, sub-agents, and its end, after which no frame follows. MONITOR translates each event by
    itself, so that a reader may begin at any event and readers can share frames: no sub-agents, no state tracking, no
    end of the stream; user messages are included.
    """

    STRICT = auto()
    MONITOR = auto()


@dataclass(frozen=True)
class UnfinishedTurn:
    """A message whose whole event did not arrive; `text` is the part that was streamed."""

    id: str
    author: str
    branch: str
    text: str


@dataclass(frozen=True)
class UnfinishedCall:
    """A tool call whose whole event did not arrive; `arguments` is the text that was streamed."""

    id: str
    name: str
    author: str
    parent_id: str
    arguments: str


@dataclass(frozen=True)
class _StreamedCall:
    name: str
    author: str
    parent_id: str
    writer: ArgumentsWriter | StreamedText


class Translator:
    """Translates the events of one run, in order. It is stateful: each stream needs its own.

    `state` is what the client holds after STATE_SNAPSHOT. The translator removes only keys that the client has, because
    a patch that does not apply makes the client's state diverge silently. `with_user` includes user messages, for
    observers. `interrupts` are the questions that are already open, `pending` the tool calls that already wait.
    """

    def __init__(
        self,
        *,
        thread_id: str,
        run_id: str,
        state: Mapping[str, Any] | None = None,
        root_agent: str | None = None,
        with_user: bool = False,
        interrupts: Mapping[str, Interrupt] | None = None,
        pending: Iterable[str] = (),
        profile: Profile = Profile.STRICT,
    ) -> None:
        self.thread_id = thread_id
        self.run_id = run_id
        self.has_ended = False
        self._is_strict = profile is Profile.STRICT
        self._state: JsonObject = without_temp(state or {})
        self._with_user = with_user or not self._is_strict
        self._turns: dict[tuple[str, str], ModelTurn] = {}
        self._followed: dict[str, ModelTurn] = {}
        self._calls: dict[str, _StreamedCall] = {}
        self._subagents = Subagents(root_agent)
        self._open_items = OpenItems()
        self._interrupts = dict(interrupts or {})
        self._pending: dict[str, str | None] = dict.fromkeys(pending)

    @property
    def interrupts(self) -> list[Interrupt]:
        return list(self._interrupts.values())

    @property
    def pending(self) -> list[str]:
        """Return the ids of long-running tool calls without a result."""
        return list(self._pending)

    def unfinished_turns(self) -> list[UnfinishedTurn]:
        """Return the messages that were streamed and are in no stored event."""
        turns = ((author, branch, turn) for (author, branch), turn in self._turns.items())
        return [
            UnfinishedTurn(id=turn.id, author=author, branch=branch, text=turn.streamed_text)
            for author, branch, turn in turns
            if turn.streamed_text
        ]

    def unfinished_calls(self) -> list[UnfinishedCall]:
        """Return the tool calls that were streamed and are in no stored event."""
        return [
            UnfinishedCall(call_id, call.name, call.author, call.parent_id, call.writer.text)
            for call_id, call in self._calls.items()
        ]

    def start(self, run_input: RunAgentInput | None = None) -> list[BaseEvent]:
        """Return the first frames of a run: RUN_STARTED with the new input, and the state."""
        started = RunStartedEvent(
            thread_id=self.thread_id,
            run_id=self.run_id,
            protocol_version=PROTOCOL_VERSION,
            input=run_input,
            timestamp=now(),
        )
        return [started, StateSnapshotEvent(snapshot=dict(self._state), timestamp=now())]

    def translate(self, event: Event) -> list[BaseEvent]:
        """Return the frames of an event; none after the run has ended."""
        if self.has_ended:
            return []
        frames = list(self._frames(event))
        if not self._is_strict:
            self.has_ended = False
        moment = milliseconds(event.created_at)
        for frame in frames:
            frame.timestamp = moment
        return frames

    def stream(
        self, message_id: str, role: str, author: str, deltas: Iterable[str], *, is_thought: bool = False
    ) -> list[BaseEvent]:
        """Return the frames of new chunks of a message that another process writes, or of the thoughts before it. Its
        whole event arrives later, under the same id."""
        if self.has_ended:
            return []
        frames: list[BaseEvent] = []
        if (turn := self._followed.get(message_id)) is None:
            if self._is_strict:
                frames += self._subagents.enter(author, "", event_id=clean_text(message_id))
            turn = self._followed[message_id] = ModelTurn(clean_text(message_id), role)
        for delta in deltas:
            frames += turn.stream(delta, is_thought=is_thought)
        for frame in frames:
            frame.timestamp = now()
        return frames

    def stream_call(self, head: CallHead, author: str, deltas: Iterable[str]) -> list[BaseEvent]:
        """Return the frames of new fragments of a tool call that another process writes. Its whole event follows."""
        if self.has_ended:
            return []
        frames: list[BaseEvent] = []
        if (call := self._calls.get(head.call_id)) is None:
            if self._is_strict:
                frames += self._subagents.enter(author, "", event_id=clean_text(head.parent_id))
            if turn := self._followed.get(head.parent_id):
                frames += turn.close_thought()
            call = self._calls[head.call_id] = _StreamedCall(head.tool_name, author, head.parent_id, StreamedText())
            frames.append(
                ToolCallStartEvent(
                    tool_call_id=head.call_id, tool_call_name=head.tool_name, parent_message_id=head.parent_id
                )
            )
        if isinstance(call.writer, StreamedText):
            for delta in deltas:
                call.writer.append(delta)
                frames.append(ToolCallArgsEvent(tool_call_id=head.call_id, delta=delta))
        for frame in frames:
            frame.timestamp = now()
        return frames

    def break_off_call(self, call_id: str) -> list[BaseEvent]:
        """Close a call of another process that ended without a stored event."""
        return [ToolCallEndEvent(tool_call_id=call_id, timestamp=now())] if self._calls.pop(call_id, None) else []

    def break_off(self, message_id: str) -> list[BaseEvent]:
        """Close a message of another process that ended without a stored event."""
        turn = self._followed.pop(message_id, None)
        return list(turn.close()) if turn else []

    def recall(self, event: Event) -> list[BaseEvent]:
        """Return the frames of an event that the client has received; `state` contains its changes."""
        state = self._state
        frames = self.translate(event)
        self._state = state
        return frames

    def finish(self, *, result: Any = None) -> list[BaseEvent]:
        """Return the last frames of a run that succeeded, or that waits if questions are open."""
        outcome: RunFinishedInterruptOutcome | RunFinishedSuccessOutcome | None = None
        if self._interrupts:
            outcome = RunFinishedInterruptOutcome(interrupts=self.interrupts)
        elif self._pending:
            outcome = RunFinishedSuccessOutcome(pending_tool_call_ids=self.pending)
        return self._end(
            RunFinishedEvent(
                thread_id=self.thread_id, run_id=self.run_id, outcome=outcome, result=result, timestamp=now()
            )
        )

    def cancel(self) -> list[BaseEvent]:
        return self._end(
            RunFinishedEvent(
                thread_id=self.thread_id, run_id=self.run_id, outcome=RunFinishedCancelledOutcome(), timestamp=now()
            )
        )

    def fail(self, message: str, code: str | None = None) -> list[BaseEvent]:
        text = clean_text(message)
        return self._end(RunErrorEvent(message=text, code=code, timestamp=now()), error=text)

    def _end(self, last: BaseEvent, *, error: str | None = None) -> list[BaseEvent]:
        if self.has_ended:
            return []
        frames = list(self._close(error))
        for frame in frames:
            frame.timestamp = last.timestamp
        self.has_ended = True
        return [*frames, last]

    def _close(self, error: str | None) -> Frames:
        for turn in (*self._turns.values(), *self._followed.values()):
            yield from turn.close()
        for call_id in self._calls:
            yield ToolCallEndEvent(tool_call_id=call_id)
        yield from self._open_items.end_frames(error=error, is_waiting=bool(self._interrupts))
        yield from self._subagents.close(error=error, is_waiting=bool(self._interrupts))

    def _frames(self, event: Event) -> Frames:
        if event.event_type in ("run_finished", "run_failed", "run_cancelled"):
            yield from self._run_ends(event)
            return
        if event.event_type in ("run_signalled", "run_resumed"):
            # The code of the agent is called again: its wait is over, or begins again.
            for asked in self.interrupts:
                if wait_of(asked).get("runId") == event.run_id:
                    del self._interrupts[asked.id]
        if waits_for(event, self._interrupts):
            # To an AG-UI client the run ends here; `resume` of the next input continues it.
            yield from self.finish()
            return
        if isinstance(original := client_history_of(event), dict):
            yield from self._brought(original, is_quoted=event.author == "user")
        elif message_role(event) == "user" or event.author == "user":
            yield from self._from_user(event)
        elif is_partial(event):
            yield from self._fragment(event)
        else:
            yield from self._whole(event)
        if self._is_strict:
            yield from self._state_change(event)
        error, message = adk_field(event, "error_code"), adk_field(event, "error_message")
        if (error or message) and not is_partial(event):
            yield from self.fail(message or error, error)

    def _run_ends(self, event: Event) -> Frames:
        if event.event_type != "run_finished":
            # It may be a call of a tool of the server that the run did not execute: no client brings its result.
            self._pending = {call: run_id for call, run_id in self._pending.items() if run_id != event.run_id}
        if event.event_type == "run_failed":
            yield from self.fail(str(event.content.get("error") or "the run failed"))
            # No run waits for the answers any more.
            self._interrupts.clear()
        elif event.event_type == "run_cancelled":
            yield from self.cancel()
            # A cancelled run withdraws its questions.
            self._interrupts.clear()
        else:
            yield from self.finish(result={"status": "completed"})

    def _fragment(self, event: Event) -> Frames:
        yield from self._enter(event)
        turn = self._turn(event)
        for part in read_call_fragments(event):
            if isinstance(part, Text):
                yield from turn.stream(part.text, is_thought=part.is_thought)
            else:
                yield from self._stream_call(part, turn, event.author)

    def _stream_call(self, part: CallFragment, turn: ModelTurn, author: str) -> Frames:
        if (call := self._calls.get(part.id)) is None:
            if not part.name:
                return
            call = self._calls[part.id] = _StreamedCall(part.name, author, turn.id, ArgumentsWriter())
            yield from turn.close()
            yield ToolCallStartEvent(tool_call_id=part.id, tool_call_name=part.name, parent_message_id=turn.id)
        if isinstance(call.writer, ArgumentsWriter) and (delta := call.writer.write(part.arguments)):
            yield ToolCallArgsEvent(tool_call_id=part.id, delta=delta)

    def _whole(self, event: Event) -> Frames:
        if event.event_type in _AGENT_KINDS and (frames := self._agent_frames(event)) is not None:
            yield from frames
            return
        if event.event_type.startswith("run_") or not (parts := list(read_parts(event))):
            if event.event_type not in _SILENT and "adk" not in event.content:
                yield CustomEvent(name=event.event_type, value=event.content)
            return
        yield from self._enter(event)
        turn = self._turn(event)
        turn.begin_whole()
        long_running = long_running_calls(event)
        for number, part in enumerate(parts):
            if isinstance(part, Text):
                yield from turn.stream_rest(part.text, is_thought=part.is_thought)
                continue
            yield from turn.close()
            if isinstance(part, Call):
                pending_of = (event.run_id or "") if part.id in long_running else None
                yield from self._call(part, turn.id, pending_of=pending_of)
            elif isinstance(part, Question):
                self._interrupts[part.id] = interrupt_of(part)
            elif isinstance(part, Result) and not self._is_preliminary(event, part):
                self._pending.pop(part.call_id, None)
                yield self._result(event, part, number)
        yield from self._leave(event)

    def _is_preliminary(self, event: Event, result: Result) -> bool:
        """Return whether a result only says that the call waits: ADK stores one for a long-running tool at once."""
        waits = "adk" in event.content and result.call_id in self._pending
        return waits or result.call_id in unconfirmed_calls(event)

    def _agent_frames(self, event: Event) -> list[BaseEvent] | None:
        """Return the frames of an event that the recorder of a hosted agent stored; None if it is not of its form."""
        content = event.content
        try:
            match event.event_type:
                case "interrupt":
                    asked = _INTERRUPTS.validate_python(content["interrupts"])
                    self._interrupts |= {interrupt.id: interrupt for interrupt in asked}
                    return []
                case "step_start":
                    frame: BaseEvent = StepStartedEvent(step_name=content["step_name"])
                case "step_end":
                    frame = StepFinishedEvent(step_name=content["step_name"])
                case "activity":
                    frame = ActivitySnapshotEvent(
                        message_id=_message_id(event),
                        activity_type=content["activity_type"],
                        content=content["content"],
                    )
                case _:
                    frame = _FRAME.validate_python(content["frame"])
        except (KeyError, ValidationError):
            return None
        return [frame] if self._open_items.accepts(frame) else []

    def _from_user(self, event: Event) -> Frames:
        if event.event_type == "resume":
            for name in event.content.get("answered") or ():
                self._interrupts.pop(name, None)
            return
        text = ""
        if is_text_of_user(event):
            # A text instead of an answer abandons the open questions and calls.
            self._interrupts.clear()
            self._pending.clear()
        for number, part in enumerate(read_parts(event)):
            if isinstance(part, Text):
                text += clean_text(part.text)
            elif isinstance(part, Answer):
                self._interrupts.pop(part.id, None)
            elif isinstance(part, Result):
                self._pending.pop(part.call_id, None)
                if self._with_user:
                    yield self._result(event, part, number)
        if text and self._with_user:
            message_id = _message_id(event)
            yield TextMessageStartEvent(message_id=message_id, role="user")
            yield TextMessageContentEvent(message_id=message_id, delta=text)
            yield TextMessageEndEvent(message_id=message_id)

    def _brought(self, original: JsonObject, *, is_quoted: bool) -> Frames:
        """Yield the frames of a message that a client brought from an earlier conversation, as the client has it."""
        with suppress(ValidationError):
            message = _MESSAGE.validate_python(original)
            for frame in message_frames(message) if self._with_user else ():
                if is_quoted and isinstance(frame, TextMessageStartEvent | ToolCallStartEvent | ToolCallResultEvent):
                    frame.metadata = CLIENT_HISTORY_MARK
                yield frame

    def _call(self, call: Call, parent: str, *, pending_of: str | None) -> Frames:
        if pending_of is not None:
            self._pending[call.id] = pending_of
        arguments = to_json(call.arguments) if call.text is None else clean_text(call.text)
        if streamed := self._calls.pop(call.id, None):
            arguments = streamed.writer.rest(arguments)
        else:
            yield ToolCallStartEvent(
                tool_call_id=call.id, tool_call_name=call.name, parent_message_id=call.parent_id or parent
            )
        if arguments:
            yield ToolCallArgsEvent(tool_call_id=call.id, delta=arguments)
        yield ToolCallEndEvent(tool_call_id=call.id)

    def _result(self, event: Event, result: Result, number: int) -> ToolCallResultEvent:
        message_id = _message_id(event) if number == 0 else f"{_message_id(event)}/{number}"
        content = to_json(result.content) if result.text is None else clean_text(result.text)
        frame = ToolCallResultEvent(message_id=message_id, tool_call_id=result.call_id, content=content, role="tool")
        if event.content.get("format") == PARTS_FORMAT:
            with suppress(ValidationError):
                frame.content = _PARTS.validate_python(result.content)
        return frame

    def _state_change(self, event: Event) -> Frames:
        delta = without_temp(event.actions.get("state_delta") or {})
        fitting = {key: value for key, value in delta.items() if key in self._state or not is_delete(value)}
        if fitting and not is_partial(event):
            self._state = apply_delta(self._state, fitting)
            yield StateDeltaEvent.model_validate({"delta": json_patch(fitting)})

    def _turn(self, event: Event) -> ModelTurn:
        if followed := self._followed.get(_message_id(event)):
            return followed
        return self._turns.setdefault(_place(event), ModelTurn(_message_id(event), message_role(event)))

    def _enter(self, event: Event) -> Frames:
        if self._is_strict and event.author != _RUNNER:
            yield from self._subagents.enter(
                event.author, adk_field(event, "branch") or "", event_id=_message_id(event)
            )

    def _leave(self, event: Event) -> Frames:
        if event.event_type == "thought" and (thinking := self._followed.get(_message_id(event))):
            # The thoughts are complete; the text under the same id follows.
            yield from thinking.close_thought()
            return
        followed = self._followed.pop(_message_id(event), None)
        if turn := followed or self._turns.pop(_place(event), None):
            yield from turn.close()


def _place(event: Event) -> tuple[str, str]:
    # Parallel agents stream at the same time, each on its own branch.
    return event.author, adk_field(event, "branch") or ""


def _message_id(event: Event) -> str:
    given = event.content.get("message_id")
    name = clean_text(given if isinstance(given, str) and given else event.id)
    # Streamed thoughts are stored under the id of their frames, which ModelTurn derives from the turn's id.
    return name.removesuffix(THOUGHT_SUFFIX) if event.event_type == "thought" else name


def message_frames(message: Message) -> Frames:
    """Yield the frames that make a client hold a whole message."""
    if isinstance(message, ToolMessage):
        yield ToolCallResultEvent(
            message_id=message.id, tool_call_id=message.tool_call_id, content=message.content, role="tool"
        )
        return
    if isinstance(message.content, str) and message.content:
        role: Any = message.role if message.role in ("assistant", "system", "developer") else "user"
        yield TextMessageStartEvent(message_id=message.id, role=role)
        yield TextMessageContentEvent(message_id=message.id, delta=clean_text(message.content))
        yield TextMessageEndEvent(message_id=message.id)
    for call in (isinstance(message, AssistantMessage) and message.tool_calls) or ():
        yield ToolCallStartEvent(tool_call_id=call.id, tool_call_name=call.function.name, parent_message_id=message.id)
        if call.function.arguments:
            yield ToolCallArgsEvent(tool_call_id=call.id, delta=clean_text(call.function.arguments))
        yield ToolCallEndEvent(tool_call_id=call.id)


def wait_key_of(interrupt_ids: Iterable[str]) -> str:
    """Return the correlation key with which a run waits for the answers to its interrupts."""
    return ",".join(sorted(interrupt_ids))


def waits_for(event: Event, interrupt_ids: Collection[str]) -> bool:
    """Return whether an event says that its run waits for the answer to one of these interrupts."""
    if event.event_type != "run_waiting":
        return False
    return not set(str(event.content.get("correlation_key")).split(",")).isdisjoint(interrupt_ids)


def interrupt_of_wait(wait: Wait, run_id: str) -> Interrupt:
    """Return the interrupt that shows clients for what the code of a hosted agent waits."""
    return Interrupt(
        id=wait.correlation_key,
        reason=wait.kind.value,
        message=clean_text(wait.reason) if wait.reason else None,
        expires_at=wait.expires_at.isoformat() if wait.expires_at else None,
        metadata={"cognizes": {"wait": wait.kind.value, "runId": run_id}},
    )


def wait_of(interrupt: Interrupt) -> JsonObject:
    """Return the kind (`wait`) and the run of the wait that an interrupt shows; empty for the question of an agent."""
    described = (interrupt.metadata or {}).get("cognizes")
    return described if isinstance(described, dict) and "wait" in described else {}


def interrupt_of(question: Question) -> Interrupt:
    """Return the interrupt of a question; the next input's `resume` answers it by its id."""
    if question.name != CONFIRMATION:
        message, schema, call_id = (
            question.arguments.get(name) for name in ("message", "response_schema", "functionCallId")
        )
        return Interrupt(
            id=question.id,
            reason=question.name.removeprefix(REQUEST_PREFIX),
            message=message if isinstance(message, str) else None,
            tool_call_id=call_id if isinstance(call_id, str) else None,
            response_schema=schema if isinstance(schema, dict) else None,
            metadata=question.arguments,
        )
    call = question.arguments.get("originalFunctionCall") or {}
    confirmation = question.arguments.get("toolConfirmation") or {}
    return Interrupt(
        id=question.id,
        reason="confirmation",
        message=confirmation.get("hint") or f"May {call.get('name')} be called?",
        tool_call_id=call.get("id"),
        response_schema=_CONFIRMATION_ANSWER,
        metadata={"toolName": call.get("name"), "arguments": call.get("args") or {}},
    )
