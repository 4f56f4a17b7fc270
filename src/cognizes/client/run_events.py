"""The events of a run, read from server-sent events, each delivered once.

The server numbers stored events (`id:`), and a client resumes after the last one that it has. Two things have no
number: the text of a message that is still being written, and the first frames of an event with several. The reader
therefore

- delivers text as it arrives, and after a re-attachment skips as many characters of a message as it has delivered;
- delivers all other frames of an event when the last one, which has the number, is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pydantic import JsonValue

from cognizes.client.errors import FeedRewoundError, InvalidAnswerError
from cognizes.client.models import ENDED, JsonObject, decode

_IGNORED = ("RAW",)
_GREETINGS = ("connected", "heartbeat")


@dataclass(frozen=True)
class RunEvent:
    """An event of a run. `sequence_num` is that of its stored event; None for the text of a message in progress."""

    sequence_num: int | None


@dataclass(frozen=True)
class RunStarted(RunEvent):
    """An attempt of the run began."""


@dataclass(frozen=True)
class MessageStarted(RunEvent):
    """A message began; `role` is `user`, `assistant`, `system`, `tool`, or `thought` for reasoning of the model."""

    message_id: str
    role: str


@dataclass(frozen=True)
class TextDelta(RunEvent):
    """Text of a message, or of a thought; `role` is that of its `MessageStarted`."""

    message_id: str
    text: str
    is_thought: bool
    role: str = "assistant"


@dataclass(frozen=True)
class MessageEnded(RunEvent):
    """A message is complete, or was broken off."""

    message_id: str


@dataclass(frozen=True)
class ToolCalled(RunEvent):
    """A tool call with its whole arguments, as JSON text."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ToolReturned(RunEvent):
    """The result of a tool call, as text."""

    call_id: str
    content: str


@dataclass(frozen=True)
class StateChanged(RunEvent):
    """A change of the session's state, as operations of JSON Patch (RFC 6902)."""

    operations: list[JsonObject]


@dataclass(frozen=True)
class RunWaiting(RunEvent):
    """The run waits. `runs.answer` continues it."""

    content: JsonObject


@dataclass(frozen=True)
class RunEnded(RunEvent):
    """The run ended: `completed`, `failed` or `cancelled`. It is the last event."""

    status: str
    error: str | None


@dataclass(frozen=True)
class OtherEvent(RunEvent):
    """An event of any other kind, of an application or of a newer server."""

    name: str
    value: JsonValue


@dataclass
class _Text:
    """How much of a message was delivered, and how much this connection has sent."""

    delivered: int = 0
    received: int = 0
    is_started: bool = False
    has_ended: bool = False
    role: str = "assistant"


@dataclass
class RunEventReader:
    """Makes events of frames. It keeps its position over several connections: call `reattach` before each."""

    last_sequence: int = 0
    """The last stored event that was delivered completely."""
    _texts: dict[str, _Text] = field(default_factory=dict)
    _held: list[JsonObject] = field(default_factory=list)

    def reattach(self) -> None:
        """Forget the incomplete event of the last connection: the server sends it again."""
        self._held.clear()
        for text in self._texts.values():
            text.received = 0

    def read(self, data: str, event_id: str) -> Iterator[RunEvent]:
        """Yield the events that a frame completes."""
        try:
            frame = decode(data)
        except ValueError as error:
            raise InvalidAnswerError(f"the stream of a run sent a frame that is not JSON: {data[:200]!r}") from error
        if not isinstance(frame, dict):
            raise InvalidAnswerError(f"the stream of a run sent a frame that is no object: {data[:200]!r}")
        kind = str(frame.get("type"))
        if kind == "RUN_ERROR" and frame.get("code") == "FEED_REWOUND":
            raise FeedRewoundError(f"{frame.get('message')}; reload the session")
        # A parser of server-sent events gives a frame without an id that of the frame before it.
        sequence = int(event_id) if event_id.isdecimal() and int(event_id) > self.last_sequence else None
        if kind in _IGNORED or (kind == "CUSTOM" and sequence is None and frame.get("name") in _GREETINGS):
            return
        is_text = kind.startswith(("TEXT_MESSAGE_", "REASONING_"))
        if is_text and not self._held:
            yield from self._text(kind, frame, sequence)
        else:
            self._held.append(frame)
        if sequence is not None:
            frames, self._held = self._held, []
            yield from self._whole(frames, sequence)
            self.last_sequence = sequence
            # The server does not send these messages again.
            self._texts = {name: text for name, text in self._texts.items() if not text.has_ended}

    def _whole(self, frames: list[JsonObject], sequence: int) -> Iterator[RunEvent]:
        calls: dict[str, tuple[str, str]] = {}
        for frame in frames:
            kind, call_id = str(frame.get("type")), str(frame.get("toolCallId"))
            match kind:
                case "TOOL_CALL_START":
                    calls[call_id] = (str(frame.get("toolCallName")), "")
                case "TOOL_CALL_ARGS" if call_id in calls:
                    name, arguments = calls[call_id]
                    calls[call_id] = (name, arguments + str(frame.get("delta", "")))
                case "TOOL_CALL_END" if call_id in calls:
                    name, arguments = calls.pop(call_id)
                    yield ToolCalled(sequence, call_id, name, arguments or "{}")
                case _ if kind.startswith(("TEXT_MESSAGE_", "REASONING_")):
                    yield from self._text(kind, frame, sequence)
                case _:
                    yield _other(kind, frame, sequence)

    def _text(self, kind: str, frame: JsonObject, sequence: int | None) -> Iterator[RunEvent]:
        name = str(frame.get("messageId"))
        is_thought = kind.startswith("REASONING_")
        text = self._texts.setdefault(f"{is_thought} {name}", _Text())
        if kind.endswith("MESSAGE_START"):
            if not text.is_started:
                text.is_started = True
                text.role = "thought" if is_thought else str(frame.get("role", "assistant"))
                yield MessageStarted(sequence, name, text.role)
        elif kind.endswith("MESSAGE_CONTENT"):
            delta = str(frame.get("delta", ""))
            fresh = delta[max(text.delivered - text.received, 0) :]
            text.received += len(delta)
            text.delivered = max(text.delivered, text.received)
            if fresh:
                yield TextDelta(sequence, name, fresh, is_thought, text.role)
        elif kind.endswith("MESSAGE_END") and not text.has_ended:
            text.has_ended = True
            yield MessageEnded(sequence, name)


def _other(kind: str, frame: JsonObject, sequence: int) -> RunEvent:
    match kind:
        case "RUN_STARTED":
            return RunStarted(sequence)
        case "RUN_FINISHED" if (status := str(frame.get("status"))) in ENDED:
            error = frame.get("error")
            return RunEnded(sequence, status, None if error is None else str(error))
        case "TOOL_CALL_RESULT":
            return ToolReturned(sequence, str(frame.get("toolCallId")), str(frame.get("content", "")))
        case "STATE_DELTA":
            delta = frame.get("delta")
            operations = [item for item in delta if isinstance(item, dict)] if isinstance(delta, list) else []
            return StateChanged(sequence, operations)
        case "CUSTOM" if frame.get("name") == "run_waiting":
            value = frame.get("value")
            return RunWaiting(sequence, value if isinstance(value, dict) else {})
        case "CUSTOM":
            return OtherEvent(sequence, str(frame.get("name")), frame.get("value"))
        case _:
            rest: JsonObject = {name: value for name, value in frame.items() if name not in ("type", "runId")}
            return OtherEvent(sequence, kind, rest)
