"""The reducer: frames become messages, a state and what is still open, exactly as a client reduces them.

A snapshot of a thread is the fold of its frames, so what a client streamed and what it is told after a reload are the
same messages under the same ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ag_ui.core import (
    BaseEvent,
    MessagesSnapshotEvent,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    RunStartedEvent,
    StateDeltaEvent,
    StateSnapshotEvent,
    StepFinishedEvent,
    StepStartedEvent,
    SubagentErrorEvent,
    SubagentFinishedEvent,
    SubagentStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from cognizes.engine.agui.frames import now
from cognizes.engine.models import JsonObject


@dataclass
class Snapshot:
    """A thread as a client sees it. Messages are JSON, oldest first; `open` has the START frames of open items."""

    messages: list[JsonObject] = field(default_factory=list)
    state: Any = field(default_factory=dict)
    open: dict[tuple[str, str], list[BaseEvent]] = field(default_factory=dict)

    def fold(self, frames: Iterable[BaseEvent]) -> Snapshot:
        """Takes frames in; returns itself."""
        for frame in frames:
            self._fold_messages(frame)
            self._fold_state(frame)
            self._fold_open(frame)
        return self

    def frames(self) -> list[BaseEvent]:
        """What brings a client here, cold or warm: state, messages, and START again for items that are still open."""
        return [
            StateSnapshotEvent(snapshot=self.state, timestamp=now()),
            self.messages_frame(),
            *(frame for frames in self.open.values() for frame in frames),
        ]

    def take_open(self) -> list[BaseEvent]:
        """The START frames of open items, once."""
        opened = [frame for frames in self.open.values() for frame in frames]
        self.open.clear()
        return opened

    def messages_frame(self) -> MessagesSnapshotEvent:
        """The messages alone."""
        return MessagesSnapshotEvent.model_validate({"messages": self.messages, "timestamp": now()})

    def find(self, message_id: str) -> JsonObject | None:
        """A message by its id."""
        return next((message for message in reversed(self.messages) if message["id"] == message_id), None)

    def _fold_messages(self, frame: BaseEvent) -> None:
        match frame:
            case RunStartedEvent():
                for given in frame.input.messages if frame.input else ():
                    self._add(given.model_dump(by_alias=True))
            case MessagesSnapshotEvent():
                self.messages = [given.model_dump(by_alias=True) for given in frame.messages]
            case TextMessageStartEvent():
                self._add({"id": frame.message_id, "role": frame.role or "assistant", "content": ""})
            case ReasoningMessageStartEvent():
                self._add({"id": frame.message_id, "role": "reasoning", "content": ""})
            case TextMessageContentEvent() | ReasoningMessageContentEvent():
                if message := self.find(frame.message_id):
                    message["content"] = (message.get("content") or "") + frame.delta
            case ToolCallStartEvent():
                self._add_call(frame)
            case ToolCallArgsEvent():
                if call := self._find_call(frame.tool_call_id):
                    call["function"]["arguments"] += frame.delta
            case ToolCallResultEvent():
                self._add_result(frame)

    def _fold_state(self, frame: BaseEvent) -> None:
        if isinstance(frame, StateSnapshotEvent):
            self.state = frame.snapshot
        elif isinstance(frame, StateDeltaEvent):
            # The engine replaces whole keys, so a path names one key.
            changed = dict(self.state)
            for operation in frame.delta:
                key = operation.path[1:].replace("~1", "/").replace("~0", "~")
                if operation.op == "remove":
                    changed.pop(key, None)
                elif operation.op == "add":
                    changed[key] = operation.value
            self.state = changed

    def _fold_open(self, frame: BaseEvent) -> None:
        match frame:
            case TextMessageStartEvent():
                self.open["text", frame.message_id] = [frame]
            case TextMessageEndEvent():
                self.open.pop(("text", frame.message_id), None)
            case ReasoningStartEvent():
                self.open["reasoning", frame.message_id] = [frame]
            case ReasoningMessageStartEvent():
                self.open.setdefault(("reasoning", frame.message_id), []).append(frame)
            case ReasoningEndEvent():
                self.open.pop(("reasoning", frame.message_id), None)
            case ToolCallStartEvent():
                self.open["call", frame.tool_call_id] = [frame]
            case ToolCallEndEvent():
                self.open.pop(("call", frame.tool_call_id), None)
            case SubagentStartedEvent():
                self.open["subagent", frame.subagent_run_id] = [frame]
            case SubagentFinishedEvent() | SubagentErrorEvent():
                self.open.pop(("subagent", frame.subagent_run_id), None)
            case StepStartedEvent():
                self.open["step", frame.step_name] = [frame]
            case StepFinishedEvent():
                self.open.pop(("step", frame.step_name), None)

    def _add(self, message: JsonObject) -> None:
        if self.find(message["id"]) is None:
            self.messages.append(message)

    def _add_call(self, frame: ToolCallStartEvent) -> None:
        if self._find_call(frame.tool_call_id):
            return
        parent = self.find(frame.parent_message_id) if frame.parent_message_id else None
        if parent is None or parent["role"] != "assistant":
            # The parent's id is only free for a message when nobody has it.
            is_free = frame.parent_message_id and parent is None
            parent = {"id": frame.parent_message_id if is_free else frame.tool_call_id, "role": "assistant"}
            self.messages.append(parent)
        function = {"name": frame.tool_call_name, "arguments": ""}
        parent.setdefault("toolCalls", []).append({"id": frame.tool_call_id, "type": "function", "function": function})

    def _find_call(self, call_id: str) -> JsonObject | None:
        calls = (call for message in reversed(self.messages) for call in message.get("toolCalls") or ())
        return next((call for call in calls if call["id"] == call_id), None)

    def _add_result(self, frame: ToolCallResultEvent) -> None:
        """Right behind the call and the results that are there."""
        result = frame.model_dump(by_alias=True, include={"tool_call_id", "content"})
        message = {"id": frame.message_id, "role": "tool", **result}
        owners = (
            place
            for place, known in enumerate(self.messages)
            if any(call["id"] == frame.tool_call_id for call in known.get("toolCalls") or ())
        )
        place = next(owners, len(self.messages) - 1) + 1
        while place < len(self.messages) and self.messages[place]["role"] == "tool":
            place += 1
        self.messages.insert(place, message)
