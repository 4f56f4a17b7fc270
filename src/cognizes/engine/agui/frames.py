"""AG-UI frames on the wire: camelCase JSON, nothing null that may be left out, LF framing, an `id:` line."""

from __future__ import annotations

import json
import math
import re
import time
from typing import Any

from ag_ui.core import BaseEvent, RunFinishedEvent

KEEP_ALIVE = ": keep-alive\n\n"
"""A comment: it keeps proxies from closing an idle stream, and no client sees it."""

_SURROGATES = re.compile("[\ud800-\udfff]")
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def now() -> int:
    """The time as AG-UI counts it: whole milliseconds."""
    return time.time_ns() // 1_000_000


def speaks_protocol_1(version: str | None) -> bool:
    """Whether a client that declares this protocol version understands all of protocol 1.0."""
    major = (version or "").partition(".")[0]
    return major.isdecimal() and int(major) >= 1


def encode(frame: BaseEvent, *, number: int | None = None, protocol_1: bool = True) -> str:
    """A frame as a server-sent event. Clients before protocol 1.0 get it without the outcomes that would end them."""
    data = frame.model_dump(by_alias=True)
    if not protocol_1 and isinstance(frame, RunFinishedEvent):
        data = _without_new_outcomes(data)
    line = "" if number is None else f"id: {number}\n"
    return f"{line}data: {to_json(data)}\n\n"


def to_json(value: Any) -> str:
    """A value as every JSON parser takes it: NaN and the infinities are null, as in JavaScript."""
    try:
        text = _ENCODER.encode(value)
    except ValueError:
        text = _ENCODER.encode(_without_nan(value))
    return clean_text(text)


def clean_text(text: str) -> str:
    """Text as every client takes it: a lone surrogate becomes U+FFFD."""
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
