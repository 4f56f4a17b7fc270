"""The rules that AG-UI clients enforce (contracts/agui.md), as a checker for frames that came over the wire."""

from __future__ import annotations

from typing import Any

from ag_ui.core import Event
from pydantic import TypeAdapter

Frame = dict[str, Any]

TERMINAL = ("RUN_FINISHED", "RUN_ERROR")
_OPENS = {
    "TEXT_MESSAGE_START": ("text", "messageId"),
    "REASONING_START": ("reasoning", "messageId"),
    "REASONING_MESSAGE_START": ("thought", "messageId"),
    "TOOL_CALL_START": ("call", "toolCallId"),
    "STEP_STARTED": ("step", "stepName"),
    "SUBAGENT_STARTED": ("subagent", "subagentRunId"),
}
_CLOSES = {
    "TEXT_MESSAGE_END": ("text", "messageId"),
    "REASONING_END": ("reasoning", "messageId"),
    "REASONING_MESSAGE_END": ("thought", "messageId"),
    "TOOL_CALL_END": ("call", "toolCallId"),
    "STEP_FINISHED": ("step", "stepName"),
    "SUBAGENT_FINISHED": ("subagent", "subagentRunId"),
    "SUBAGENT_ERROR": ("subagent", "subagentRunId"),
}
_NEEDS = {
    "TEXT_MESSAGE_CONTENT": ("text", "messageId"),
    "REASONING_MESSAGE_CONTENT": ("thought", "messageId"),
    "TOOL_CALL_ARGS": ("call", "toolCallId"),
}
_EVENT: TypeAdapter[Any] = TypeAdapter(Event)


def assert_legal(frames: list[Frame], *, protocol_1: bool = True) -> None:
    """Every rule a client enforces, and that the stream ends with a terminal event."""
    opened: set[tuple[str, str]] = set()
    finished: set[tuple[str, str]] = set()
    is_running = False
    state: dict[str, Any] | None = None
    for number, frame in enumerate(frames):
        kind = frame["type"]
        where = f"frame {number}, {frame}"
        _assert_well_formed(frame, where)
        if kind == "RUN_STARTED":
            assert not is_running, where
            is_running, opened, finished, state = True, set(), set(), None
        elif kind == "RUN_ERROR" and number == 0:
            continue
        else:
            assert is_running, where
        if kind in _OPENS:
            item = _item(_OPENS, frame)
            assert item not in opened, where
            assert item not in finished, where  # an id names one piece of a sub-agent's work
            if kind in ("TEXT_MESSAGE_START", "TOOL_CALL_START"):
                turn = frame.get("messageId") or frame.get("parentMessageId") or ""
                assert ("reasoning", f"{turn}/thought") not in opened, where
            opened.add(item)
        if kind in _CLOSES:
            assert _item(_CLOSES, frame) in opened, where
            opened.remove(_item(_CLOSES, frame))
            if kind.startswith("SUBAGENT"):
                finished.add(_item(_CLOSES, frame))
        if kind in _NEEDS:
            assert _item(_NEEDS, frame) in opened, where
            assert frame["delta"] != "", where
        if kind == "STATE_SNAPSHOT":
            state = dict(frame["snapshot"])
        if kind == "STATE_DELTA":
            assert state is not None, where
            _apply(state, frame["delta"], where)
        if kind == "RUN_FINISHED":
            assert not opened, (where, opened)
            if not protocol_1:
                assert frame.get("outcome", {}).get("type") in (None, "interrupt"), where
        if not protocol_1:
            assert not kind.startswith("SUBAGENT"), where
        if kind in TERMINAL:
            is_running = False
    assert frames, "no frames"
    assert frames[0]["type"] in ("RUN_STARTED", "RUN_ERROR"), frames[0]
    assert frames[-1]["type"] in TERMINAL, frames[-1]
    for number, frame in enumerate(frames[:-1]):
        if frame["type"] == "RUN_STARTED":
            assert frames[number + 1]["type"] == "STATE_SNAPSHOT", frames[number + 1]


def _assert_well_formed(frame: Frame, where: str) -> None:
    _EVENT.validate_python(frame)
    assert isinstance(frame["timestamp"], int), where
    allowed_nulls = {"value", "snapshot", "result", "event"}
    assert all(value is not None for key, value in frame.items() if key not in allowed_nulls), where
    assert not any("_" in key for key in frame), where


def _item(table: dict[str, tuple[str, str]], frame: Frame) -> tuple[str, str]:
    name, key = table[frame["type"]]
    return name, frame[key]


def _apply(state: dict[str, Any], operations: list[Frame], where: str) -> None:
    for operation in operations:
        assert operation["op"] in ("add", "remove"), where
        key = operation["path"].removeprefix("/").replace("~1", "/").replace("~0", "~")
        assert not key.startswith("temp:"), where
        if operation["op"] == "remove":
            assert key in state, where
            del state[key]
        else:
            state[key] = operation["value"]
