"""Events as the engine stores them, without a database."""

from __future__ import annotations

from typing import Any

from ag_ui.core import BaseEvent

from cognizes.engine.agui.translator import Translator
from cognizes.engine.models import Event

Part = dict[str, Any]


def said(text: str, **part: Any) -> Part:
    return {"text": text, **part}


def thought(text: str) -> Part:
    return {"text": text, "thought": True}


def call(call_id: str, tool: str = "search", **arguments: Any) -> Part:
    return {"function_call": {"id": call_id, "name": tool, "args": arguments}}


def response(call_id: str, result: Any, name: str = "search") -> Part:
    return {"function_response": {"id": call_id, "name": name, "response": result}}


def adk(
    *parts: Part, event_id: str = "e1", author: str = "root", actions: dict[str, Any] | None = None, **fields: Any
) -> Event:
    """An event of ADK, as `encode_event` writes it."""
    role = "user" if author == "user" else "model"
    kind = "user_message" if author == "user" else "assistant_message"
    if any("function_response" in part for part in parts):
        kind = "observe"
    content: dict[str, Any] = {"adk": {"timestamp": 1.0, **fields}}
    if parts:
        content |= {"parts": list(parts), "role": role}
    return Event(event_id, "t", "i", author, kind, content, actions or {}, run_id="r")


def engine_event(kind: str, author: str = "agent", event_id: str = "e1", **content: Any) -> Event:
    return Event(event_id, "t", "", author, kind, content, run_id="r")


def make_translator(**options: Any) -> Translator:
    return Translator(**({"thread_id": "t", "run_id": "r", "state": {}, "root_agent": "root"} | options))


def dump(frames: list[BaseEvent]) -> list[dict[str, Any]]:
    return [frame.model_dump(by_alias=True, mode="json") for frame in frames]


def kinds(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["type"] for frame in frames]
