"""AG-UI frames on the wire: camelCase JSON without optional nulls, LF framing, an `id:` line."""

from __future__ import annotations

import json
import math
import re
import time
from typing import Any

from ag_ui.core import (
    BaseEvent,
    RunFinishedEvent,
    StepFinishedEvent,
    StepStartedEvent,
    SubagentErrorEvent,
    SubagentFinishedEvent,
    SubagentStartedEvent,
)

KEEP_ALIVE = ": keep-alive\n\n"
"""A comment that keeps proxies from closing an idle stream; clients ignore it."""
_SURROGATES = re.compile("[\ud800-\udfff]")
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def now() -> int:
    """Return the time in whole milliseconds, as AG-UI timestamps are."""
    return time.time_ns() // 1_000_000


def speaks_protocol_1(version: str | None) -> bool:
    """Return whether a client that declares this protocol version supports all of protocol 1.0."""
    major = (version or "").partition(".")[0]
    return major.isdecimal() and int(major) >= 1


class FrameEncoder:
    """Encodes the frames of one stream for the protocol version of its client.

    A client that does not declare protocol 1.0 gets steps for sub-agents, and no outcomes but interrupts: it would die
    of what it does not know.
    """

    def __init__(self, *, protocol_1: bool = True) -> None:
        self._protocol_1 = protocol_1
        self._names: dict[str, str] = {}

    def encode(self, frame: BaseEvent, *, number: int | None = None) -> str:
        line = "" if number is None else f"id: {number}\n"
        return f"{line}data: {to_json(self.dump(frame))}\n\n"

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
