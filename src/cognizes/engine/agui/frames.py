"""AG-UI frames of both profiles: the items that they open and close, and their encoding on the wire."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

from ag_ui.core import (
    BaseEvent,
    CustomEvent,
    EventType,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    RunFinishedEvent,
    StepFinishedEvent,
    StepStartedEvent,
    SubagentErrorEvent,
    SubagentFinishedEvent,
    SubagentFinishedSuspendedOutcome,
    SubagentStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
)
from pydantic.alias_generators import to_camel

from cognizes.engine.database.documents import dump_json
from cognizes.engine.models import JsonObject
from cognizes.engine.streams.chunks import THOUGHT_SUFFIX

Frames = Iterator[BaseEvent]
Role = Literal["assistant", "system"]

KEEP_ALIVE = ": keep-alive\n\n"
"""A comment that keeps proxies from closing an idle stream; clients ignore it."""
PREDICT_STATE = "PredictState"
"""The name of the CUSTOM frame that says which arguments of a tool call predict a key of the state."""
_SURROGATES = re.compile("[\ud800-\udfff]")
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


_DELTA_FRAMES: dict[type[BaseEvent], tuple[tuple[str, str], ...]] = {
    kind: tuple((name, to_camel(name)) for name in kind.model_fields)
    for kind in (TextMessageContentEvent, ReasoningMessageContentEvent, ToolCallArgsEvent)
}


def now() -> int:
    """Return the time in whole milliseconds, as AG-UI timestamps are."""
    return time.time_ns() // 1_000_000


def milliseconds(moment: datetime | None) -> int:
    """Return a time, by default the current one, in milliseconds."""
    return int((moment or datetime.now(UTC)).timestamp() * 1000)


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


def raw_frame(run_id: str, payload: JsonObject) -> AgUiEvent:
    return AgUiEvent(AgUiEventType.RAW, run_id, milliseconds(None), {"payload": payload})


def speaks_protocol_1(version: str | None) -> bool:
    """Return whether a client that declares this protocol version supports all of protocol 1.0."""
    major = (version or "").partition(".")[0]
    return major.isdecimal() and int(major) >= 1


class FrameEncoder:
    """Encodes the frames of one stream for the protocol version of its client.

    A client that does not declare protocol 1.0 gets steps for sub-agents, and no outcomes but interrupts: it raises an
    error at unknown frames and outcomes.
    """

    def __init__(self, *, protocol_1: bool = True) -> None:
        self._protocol_1 = protocol_1
        self._names: dict[str, str] = {}

    def encode(self, frame: BaseEvent, *, number: int | None = None) -> str:
        line = "" if number is None else f"id: {number}\n"
        return f"{line}data: {to_json(_dump_delta(frame) or self.dump(frame))}\n\n"

    def dump(self, frame: BaseEvent) -> dict[str, Any]:
        data = (frame if self._protocol_1 else self._for_older(frame)).model_dump(by_alias=True)
        if not self._protocol_1 and isinstance(frame, RunFinishedEvent):
            return _without_new_outcomes(data)
        return data

    def _for_older(self, frame: BaseEvent) -> BaseEvent:
        if isinstance(frame, SubagentStartedEvent):
            self._names[frame.subagent_run_id] = frame.name
            return StepStartedEvent(step_name=frame.name, timestamp=frame.timestamp)
        if isinstance(frame, SubagentFinishedEvent | SubagentErrorEvent):
            name = self._names.pop(frame.subagent_run_id, frame.subagent_run_id)
            return StepFinishedEvent(step_name=name, timestamp=frame.timestamp)
        return frame


def _dump_delta(frame: BaseEvent) -> dict[str, Any] | None:
    """Return the JSON of a frame that every token has, as `model_dump` does it but four times as fast; None for others.

    A client of any protocol version gets these frames as they are.
    """
    names = _DELTA_FRAMES.get(type(frame))
    if names is None or frame.__pydantic_extra__:
        return None
    values = frame.__dict__
    return {alias: values[name] for name, alias in names if values[name] is not None}


def to_json(value: Any) -> str:
    """Return strict JSON: NaN and the infinities become null, as in JavaScript."""
    try:
        text = _ENCODER.encode(value)
    except ValueError:
        text = _ENCODER.encode(_without_nan(value))
    return clean_text(text)


def clean_text(text: str) -> str:
    """Return text that is valid UTF-8: a lone surrogate becomes U+FFFD."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _without_new_outcomes(data: dict[str, Any]) -> dict[str, Any]:
    outcome = data.get("outcome")
    if outcome and outcome["type"] != "interrupt":
        return {key: value for key, value in data.items() if key != "outcome"}
    return data


class ModelTurn:
    """Opens and closes the text and the thoughts of one turn: never both at once, and no text twice."""

    def __init__(self, turn_id: str, role: str | None) -> None:
        self.id = turn_id
        self._role: Role = "system" if role == "system" else "assistant"
        self._open: Literal["text", "thought"] | None = None
        # Pieces: adding each token to one string would copy the text so far.
        self._streamed: dict[str, list[str]] = {"text": [], "thought": []}
        self._unmatched = {"text": "", "thought": ""}

    @property
    def streamed_text(self) -> str:
        return "".join(self._streamed["text"])

    def stream(self, delta: str, *, is_thought: bool) -> Frames:
        kind = _kind(is_thought=is_thought)
        self._streamed[kind].append(delta)
        yield from self._write(kind, delta)

    def begin_whole(self) -> None:
        """Prepare for the parts of the whole event, which repeat the fragments."""
        self._unmatched = {kind: "".join(pieces) for kind, pieces in self._streamed.items()}

    def stream_rest(self, text: str, *, is_thought: bool) -> Frames:
        """Yield the frames of a part of the whole event, without what was streamed.

        When the whole differs from the fragments (a callback rewrote it), the client keeps what it received until its
        next snapshot: the protocol cannot retract text.
        """
        kind = _kind(is_thought=is_thought)
        streamed = self._unmatched[kind]
        known = len(streamed) if text.startswith(streamed) else len(text)
        self._unmatched[kind] = streamed[known:]
        if rest := text[known:]:
            yield from self._write(kind, rest)

    def close(self) -> Frames:
        """Close the open message; later text opens it again."""
        if self._open == "text":
            yield TextMessageEndEvent(message_id=self.id)
        elif self._open == "thought":
            yield ReasoningMessageEndEvent(message_id=self.id + THOUGHT_SUFFIX)
            yield ReasoningEndEvent(message_id=self.id + THOUGHT_SUFFIX)
        self._open = None

    def close_thought(self) -> Frames:
        """Close the thoughts if they are open; open text stays open."""
        if self._open == "thought":
            yield from self.close()

    def _write(self, kind: Literal["text", "thought"], text: str) -> Frames:
        if self._open != kind:
            yield from self.close()
            yield from self._begin(kind)
        delta = clean_text(text)
        if kind == "text":
            yield TextMessageContentEvent(message_id=self.id, delta=delta)
        else:
            yield ReasoningMessageContentEvent(message_id=self.id + THOUGHT_SUFFIX, delta=delta)

    def _begin(self, kind: Literal["text", "thought"]) -> Frames:
        self._open = kind
        if kind == "text":
            yield TextMessageStartEvent(message_id=self.id, role=self._role)
        else:
            yield ReasoningStartEvent(message_id=self.id + THOUGHT_SUFFIX)
            yield ReasoningMessageStartEvent(message_id=self.id + THOUGHT_SUFFIX)


def _kind(*, is_thought: bool) -> Literal["text", "thought"]:
    return "thought" if is_thought else "text"


@dataclass(frozen=True)
class _Activation:
    """The work of a sub-agent, from its first event until another agent takes over."""

    id: str
    branch: str


class Subagents:
    """Yields a START frame when a sub-agent begins and an END frame when another agent takes over.

    Agents on one branch work one after the other, agents on sibling branches at the same time. Without the name of the
    root agent, the first agent counts as the root. The protocol demands a new id for each activation of an agent, so
    ids come from the event that begins the activation.
    """

    def __init__(self, root: str | None) -> None:
        self._root = root
        self._open: dict[str, _Activation] = {}

    def enter(self, agent: str, branch: str, *, event_id: str) -> Iterator[BaseEvent]:
        if self._root is None:
            self._root = agent
        for name, activation in list(self._open.items()):
            place = activation.branch
            if name != agent and (branch in (place, "") or place.startswith(f"{branch}.")):
                del self._open[name]
                yield SubagentFinishedEvent(subagent_run_id=activation.id)
        if agent != self._root and agent not in self._open:
            self._open[agent] = _Activation(f"{event_id}/{agent}", branch)
            yield SubagentStartedEvent(subagent_run_id=self._open[agent].id, name=agent)

    def close(self, *, error: str | None = None, is_waiting: bool = False) -> Iterator[BaseEvent]:
        """Yield the END frames of all open sub-agents, when the run ends, fails or waits for a person."""
        for activation in reversed(self._open.values()):
            yield from _end_frames("subagent", activation.id, error=error, is_waiting=is_waiting)
        self._open.clear()


_STARTS = {
    EventType.TEXT_MESSAGE_START: ("text", "message_id"),
    EventType.REASONING_START: ("reasoning", "message_id"),
    EventType.REASONING_MESSAGE_START: ("reasoning", "message_id"),
    EventType.TOOL_CALL_START: ("call", "tool_call_id"),
    EventType.SUBAGENT_STARTED: ("subagent", "subagent_run_id"),
    EventType.STEP_STARTED: ("step", "step_name"),
}
_ENDS = {
    EventType.TEXT_MESSAGE_END: ("text", "message_id"),
    EventType.REASONING_END: ("reasoning", "message_id"),
    EventType.TOOL_CALL_END: ("call", "tool_call_id"),
    EventType.SUBAGENT_FINISHED: ("subagent", "subagent_run_id"),
    EventType.SUBAGENT_ERROR: ("subagent", "subagent_run_id"),
    EventType.STEP_FINISHED: ("step", "step_name"),
}


class OpenItems:
    """The items of a stream of frames that have a START and no END yet, and the predictions of state."""

    def __init__(self) -> None:
        self._starts: dict[tuple[str, str], list[BaseEvent]] = {}

    def fold(self, frame: BaseEvent) -> None:
        if start := _STARTS.get(frame.type):
            kind, name = start
            self._starts.setdefault((kind, getattr(frame, name)), []).append(frame)
        elif end := _ENDS.get(frame.type):
            kind, name = end
            self._starts.pop((kind, getattr(frame, name)), None)
        elif isinstance(frame, CustomEvent) and frame.name == PREDICT_STATE:
            self._starts.setdefault(("prediction", ""), []).append(frame)

    def accepts(self, frame: BaseEvent) -> bool:
        """Fold a frame; return False for a START of an open item and for an END of an item that is not open."""
        if start := _STARTS.get(frame.type):
            kind, name = start
            if (kind, getattr(frame, name)) in self._starts:
                return False
        elif (end := _ENDS.get(frame.type)) and (end[0], getattr(frame, end[1])) not in self._starts:
            return False
        self.fold(frame)
        return True

    def start_frames(self) -> list[BaseEvent]:
        return [frame for frames in self._starts.values() for frame in frames]

    def end_frames(self, *, error: str | None = None, is_waiting: bool = False) -> list[BaseEvent]:
        """Return the END frames that close all items, the last opened first, and forget the items."""
        frames = [
            frame
            for kind, name in reversed(self._starts)
            for frame in _end_frames(kind, name, error=error, is_waiting=is_waiting)
        ]
        self._starts.clear()
        return frames

    def clear(self) -> None:
        self._starts.clear()


def _end_frames(kind: str, name: str, *, error: str | None, is_waiting: bool) -> Iterable[BaseEvent]:
    match kind:
        case "text":
            return [TextMessageEndEvent(message_id=name)]
        case "reasoning":
            return [ReasoningMessageEndEvent(message_id=name), ReasoningEndEvent(message_id=name)]
        case "call":
            return [ToolCallEndEvent(tool_call_id=name)]
        case "step":
            return [StepFinishedEvent(step_name=name)]
        case "prediction":
            return []
    if error is not None:
        return [SubagentErrorEvent(subagent_run_id=name, message=error)]
    outcome = SubagentFinishedSuspendedOutcome() if is_waiting else None
    return [SubagentFinishedEvent(subagent_run_id=name, outcome=outcome)]
