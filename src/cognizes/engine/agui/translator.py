"""From the engine's events to AG-UI frames that every client accepts.

| event | frames |
| --- | --- |
| a fragment of text | TEXT_MESSAGE_START once, then TEXT_MESSAGE_CONTENT; one id for a turn of the model |
| the whole text | what of it was not streamed yet, then TEXT_MESSAGE_END |
| a thought | REASONING_*, closed before any text or tool frame of its turn |
| a tool call, its result | TOOL_CALL_START, ARGS, END; TOOL_CALL_RESULT |
| a question to a person, a long-running tool | no result; they become the outcome of the run |
| a state delta | STATE_DELTA, without `temp:` |
| an agent that is not the root | SUBAGENT_STARTED, SUBAGENT_FINISHED around what it does (STEP_* to older clients) |
| an error, the end of a run | everything open is closed, then RUN_ERROR or RUN_FINISHED, then nothing |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ag_ui.core import (
    PROTOCOL_VERSION,
    BaseEvent,
    CustomEvent,
    Interrupt,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    StateDeltaEvent,
    StateSnapshotEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from cognizes.engine.agui.frames import clean_text, now, to_json
from cognizes.engine.agui.interrupts import interrupt_of, waits_for
from cognizes.engine.agui.model_turn import THOUGHT, ModelTurn
from cognizes.engine.agui.subagents import Subagents
from cognizes.engine.models import Event, JsonObject, is_delete
from cognizes.engine.pulse.event_bridge import json_patch, milliseconds
from cognizes.engine.pulse.messages import message_role
from cognizes.engine.pulse.scopes import apply_delta, without_temp
from cognizes.engine.timeline.event_reading import (
    Answer,
    Call,
    Question,
    Result,
    Text,
    adk_field,
    is_partial,
    long_running_calls,
    read_parts,
    unconfirmed_calls,
)

Frames = Iterator[BaseEvent]

_SILENT = (
    *("run_created", "run_started", "run_waiting", "run_signalled", "run_resumed", "run_released", "run_retried"),
    *("state_update", "message"),
)


@dataclass(frozen=True)
class UnfinishedTurn:
    """A message that broke off; `text` is as far as it came."""

    id: str
    author: str
    branch: str
    text: str


class Translator:
    """Translates the events of one run, in their order. It has a memory: use one for each stream.

    `state` is what the client holds after STATE_SNAPSHOT; a key is only removed from it when it is there, because a
    patch that does not fit makes a client drift silently. With `with_user` what people say is told too, for observers.
    `interrupts` are questions that are open already, `pending` tool calls that wait already.
    """

    def __init__(
        self,
        *,
        thread_id: str,
        run_id: str,
        state: Mapping[str, Any],
        root_agent: str | None = None,
        with_user: bool = False,
        interrupts: Mapping[str, Interrupt] | None = None,
        pending: Iterable[str] = (),
    ) -> None:
        self.thread_id = thread_id
        self.run_id = run_id
        self.has_ended = False
        self._state: JsonObject = without_temp(state)
        self._with_user = with_user
        self._turns: dict[tuple[str, str], ModelTurn] = {}
        self._followed: dict[str, ModelTurn] = {}
        self._subagents = Subagents(root_agent)
        self._interrupts = dict(interrupts or {})
        self._pending: dict[str, None] = dict.fromkeys(pending)

    @property
    def interrupts(self) -> list[Interrupt]:
        """What people were asked for so far."""
        return list(self._interrupts.values())

    @property
    def pending(self) -> list[str]:
        """The tool calls that somebody else has to answer, and has not yet."""
        return list(self._pending)

    def unfinished_turns(self) -> list[UnfinishedTurn]:
        """What was streamed and is not whole yet, or never became it: it is in no stored event."""
        turns = ((author, branch, turn) for (author, branch), turn in self._turns.items())
        return [
            UnfinishedTurn(id=turn.id, author=author, branch=branch, text=turn.streamed_text)
            for author, branch, turn in turns
            if turn.streamed_text
        ]

    def start(self, run_input: RunAgentInput | None = None) -> list[BaseEvent]:
        """The first frames: the run, with what is new in its input, and the state."""
        started = RunStartedEvent(
            thread_id=self.thread_id,
            run_id=self.run_id,
            protocol_version=PROTOCOL_VERSION,
            input=run_input,
            timestamp=now(),
        )
        return [started, StateSnapshotEvent(snapshot=dict(self._state), timestamp=now())]

    def translate(self, event: Event) -> list[BaseEvent]:
        """The frames of an event; none after the run has ended."""
        if self.has_ended:
            return []
        frames = list(self._frames(event))
        moment = milliseconds(event.created_at)
        for frame in frames:
            frame.timestamp = moment
        return frames

    def stream(
        self, message_id: str, role: str, author: str, deltas: Iterable[str], *, is_thought: bool = False
    ) -> list[BaseEvent]:
        """More of a message that another process is writing, or of the thoughts before it; its whole event comes later,
        under the same id."""
        if self.has_ended:
            return []
        frames: list[BaseEvent] = []
        if (turn := self._followed.get(message_id)) is None:
            frames += self._subagents.enter(author, "", event_id=clean_text(message_id))
            turn = self._followed[message_id] = ModelTurn(clean_text(message_id), role)
        for delta in deltas:
            frames += turn.stream(Text(delta, is_thought=is_thought))
        for frame in frames:
            frame.timestamp = now()
        return frames

    def break_off(self, message_id: str) -> list[BaseEvent]:
        """A message that another process was writing ended without ever being stored."""
        turn = self._followed.pop(message_id, None)
        return list(turn.close()) if turn else []

    def recall(self, event: Event) -> list[BaseEvent]:
        """The frames of an event that the client has seen; `state` has its changes already."""
        state = self._state
        frames = self.translate(event)
        self._state = state
        return frames

    def finish(self, *, result: Any = None) -> list[BaseEvent]:
        """The end of a run that went well; it waits when people were asked for something."""
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
        """The end of a run that somebody stopped."""
        return self._end(
            RunFinishedEvent(
                thread_id=self.thread_id,
                run_id=self.run_id,
                outcome=RunFinishedCancelledOutcome(),
                timestamp=now(),
            )
        )

    def fail(self, message: str, code: str | None = None) -> list[BaseEvent]:
        """The end of a run that failed."""
        said = clean_text(message)
        return self._end(RunErrorEvent(message=said, code=code, timestamp=now()), error=said)

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
        yield from self._subagents.close(error=error, is_waiting=bool(self._interrupts))

    def _frames(self, event: Event) -> Frames:
        if event.event_type in ("run_finished", "run_failed", "run_cancelled"):
            yield from self._run_ends(event)
            return
        if waits_for(event, self._interrupts):
            # For an AG-UI client the run ends here; the next input's `resume` answers.
            yield from self.finish()
            return
        if message_role(event) == "user" or event.author == "user":
            yield from self._from_user(event)
        elif is_partial(event):
            yield from self._fragment(event)
        else:
            yield from self._whole(event)
        yield from self._state_change(event)
        error, message = adk_field(event, "error_code"), adk_field(event, "error_message")
        if (error or message) and not is_partial(event):
            yield from self.fail(message or error, error)

    def _run_ends(self, event: Event) -> Frames:
        if event.event_type == "run_failed":
            yield from self.fail(str(event.content.get("error") or "the run failed"))
        elif event.event_type == "run_cancelled":
            yield from self.cancel()
            # Its questions are withdrawn.
            self._interrupts.clear()
        else:
            yield from self.finish(result={"status": "completed"})

    def _fragment(self, event: Event) -> Frames:
        yield from self._enter(event)
        turn = self._turn(event)
        for part in read_parts(event):
            # A call in a fragment may lack arguments; the whole event has them.
            if isinstance(part, Text):
                yield from turn.stream(part)

    def _whole(self, event: Event) -> Frames:
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
                yield from turn.stream_rest(part)
                continue
            yield from turn.close()
            if isinstance(part, Call):
                yield from self._call(part, turn.id, is_pending=part.id in long_running)
            elif isinstance(part, Question):
                self._interrupts[part.id] = interrupt_of(part)
            elif isinstance(part, Result) and not self._is_preliminary(event, part):
                yield self._result(event, part, number)
        yield from self._leave(event)

    def _from_user(self, event: Event) -> Frames:
        said = ""
        if any(isinstance(part, Text) for part in read_parts(event)):
            # Whoever says something else has moved on.
            self._interrupts.clear()
            self._pending.clear()
        for number, part in enumerate(read_parts(event)):
            if isinstance(part, Text):
                said += clean_text(part.text)
            elif isinstance(part, Answer):
                self._interrupts.pop(part.id, None)
            elif isinstance(part, Result):
                self._pending.pop(part.call_id, None)
                if self._with_user:
                    yield self._result(event, part, number)
        if said and self._with_user:
            message_id = _message_id(event)
            yield TextMessageStartEvent(message_id=message_id, role="user")
            yield TextMessageContentEvent(message_id=message_id, delta=said)
            yield TextMessageEndEvent(message_id=message_id)

    def _call(self, call: Call, parent: str, *, is_pending: bool) -> Frames:
        if is_pending:
            self._pending[call.id] = None
        yield ToolCallStartEvent(tool_call_id=call.id, tool_call_name=call.name, parent_message_id=parent)
        yield ToolCallArgsEvent(tool_call_id=call.id, delta=to_json(call.arguments))
        yield ToolCallEndEvent(tool_call_id=call.id)

    def _is_preliminary(self, event: Event, result: Result) -> bool:
        return result.call_id in self._pending or result.call_id in unconfirmed_calls(event)

    def _result(self, event: Event, result: Result, number: int) -> ToolCallResultEvent:
        message_id = _message_id(event) if number == 0 else f"{_message_id(event)}/{number}"
        return ToolCallResultEvent(
            message_id=message_id, tool_call_id=result.call_id, content=to_json(result.content), role="tool"
        )

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
        yield from self._subagents.enter(event.author, adk_field(event, "branch") or "", event_id=_message_id(event))

    def _leave(self, event: Event) -> Frames:
        if event.event_type == "thought" and (thinking := self._followed.get(_message_id(event))):
            # What was thought is whole; what is said under the same id is still to come.
            yield from thinking.close_thought()
            return
        followed = self._followed.pop(_message_id(event), None)
        if turn := followed or self._turns.pop(_place(event), None):
            yield from turn.close()


def _place(event: Event) -> tuple[str, str]:
    # Parallel agents speak at the same time, each on a branch of its own.
    return event.author, adk_field(event, "branch") or ""


def _message_id(event: Event) -> str:
    given = event.content.get("message_id")
    name = clean_text(given if isinstance(given, str) and given else event.id)
    # Thoughts that were streamed have the id of their frames, which a turn makes of its own.
    return name.removesuffix(THOUGHT) if event.event_type == "thought" else name
