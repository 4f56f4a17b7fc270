"""An ADK event as a row of the engine's log, and back, with nothing lost.

- `content` holds ADK's content as it is (`role`, `parts`), so every reader of the log understands it, and first of
  all, under the key `adk`, the fields only ADK knows: `timestamp` first, then branch, grounding metadata and so on.
  SQL recognises ADK's events and their time by these first bytes (`is_conversation`, `adk_event_time`).
- `actions` holds ADK's actions; the engine applies their `state_delta`.
- Bytes are base64, as in ADK's own JSON. Values that are no JSON become what pydantic makes of them.
"""

from __future__ import annotations

from typing import Any

import asyncpg
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types
from pydantic_core import to_jsonable_python

from cognizes.engine import models
from cognizes.engine.database.documents import load_json
from cognizes.engine.models import JsonObject
from cognizes.engine.pulse.events import message_role, message_text

_COLUMNS = frozenset({"id", "invocation_id", "author"})
_EMPTY_ACTIONS = frozenset(name for name, info in EventActions.model_fields.items() if info.default_factory is dict)


def to_json(value: Any) -> Any:
    """A value as JSON data: NaN and the infinities stay, what has no JSON form becomes its `repr`."""
    try:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="constants", serialize_unknown=True)
    except UnicodeEncodeError:
        # Pydantic knows no keys with lone surrogates. Then everything around them is taken apart here.
        if isinstance(value, dict):
            return {key if isinstance(key, str) else str(to_json(key)): to_json(item) for key, item in value.items()}
        if isinstance(value, str):
            return value
        return [to_json(item) for item in value]


def encode_event(event: Event, *, thread_id: str, run_id: str | None = None) -> models.Event:
    """The row of an ADK event."""
    fields: JsonObject = to_json(event.model_dump(exclude=set(_COLUMNS), exclude_none=True))
    content: JsonObject | None = fields.pop("content", None)
    actions: JsonObject = fields.pop("actions")
    if fields["node_info"] == {"path": ""}:
        del fields["node_info"]
    if content == {}:
        # Told apart from no content at all.
        fields["content"] = {}
    return models.Event(
        id=event.id,
        thread_id=thread_id,
        invocation_id=event.invocation_id,
        author=event.author,
        event_type=event_kind(event),
        content={"adk": {"timestamp": fields.pop("timestamp"), **fields}, **(content or {})},
        actions={name: value for name, value in actions.items() if value != {} or name not in _EMPTY_ACTIONS},
        run_id=run_id,
    )


def event_kind(event: Event) -> str:
    """What an event is to the timeline. One that speaks is a message, whatever else it carries."""
    parts = (event.content.parts if event.content else None) or []
    if any(part.function_response for part in parts):
        return "observe"
    if event.author == "user" and parts:
        return "user_message"
    if any(part.text and not part.thought for part in parts):
        return "assistant_message"
    if any(part.function_call for part in parts):
        return "act"
    if parts:
        return "thought" if all(part.thought for part in parts) else "assistant_message"
    if event.error_code or event.error_message:
        return "error"
    return "state_update" if event.actions.state_delta else "message"


def decode_event(row: asyncpg.Record) -> Event:
    """The ADK event of a row; of an event that ADK did not write, what it says and changes."""
    content: JsonObject = load_json(row["content"])
    actions: JsonObject = load_json(row["actions"])
    fields = content.pop("adk", None)
    if not isinstance(fields, dict) or "timestamp" not in fields:
        return _decode_foreign(row, content, actions)
    if content:
        fields["content"] = content
    return Event.model_validate(
        fields | {"id": row["id"], "invocation_id": row["invocation_id"], "author": row["author"], "actions": actions}
    )


def _decode_foreign(row: asyncpg.Record, content: JsonObject, actions: JsonObject) -> Event:
    event = models.Event(row["id"], "", row["invocation_id"], row["author"], row["event_type"], content)
    role = message_role(event)
    text = message_text(content) if role else None
    return Event(
        id=row["id"],
        invocation_id=row["invocation_id"],
        author=row["author"],
        timestamp=row["created_at"].timestamp(),
        content=None
        if text is None
        else types.Content(role="user" if role == "user" else "model", parts=[types.Part(text=text)]),
        actions=EventActions(state_delta=actions.get("state_delta") or {}),
    )
