"""Which events a client may write, and with which author they are stored. Administrators may write any event.

Other callers write neither the engine's own events about runs nor a confirmation of a tool call: both come through
routes that check them. An end user writes the user's text and media and nothing else, and changes neither the state of
the app nor what agents wrote. The caller decides the role, which is stored with the event, so that all views agree.
"""

from __future__ import annotations

import re
from typing import Any

from cognizes.engine.access import ANONYMOUS, Permission, Principal
from cognizes.engine.errors import PermissionDeniedError
from cognizes.engine.models import Event
from cognizes.engine.timeline.event_kinds import KINDS
from cognizes.engine.timeline.event_reading import CLIENT_HISTORY

_ENGINE_KINDS = re.compile(r"run_.*|branch_.*|tool_confirmation.*|memory_.*|monitor_.*")
_CONFIRMATION = "adk_request_confirmation"
_USER_KINDS = frozenset(
    {"user_message", "message", "state_update", "clarification_answered", "decision_answered", "feedback"}
)
_PART_TYPES = frozenset({"text", "image", "image_url", "audio", "input_audio", "video", "file", "document", "binary"})
_TOOL_FIELDS = frozenset(
    {
        *("function_call", "functionCall", "function_response", "functionResponse", "thought", "thought_signature"),
        *("tool_call", "tool_calls", "tool_call_id", "tool_use", "tool_result", "tool_response", "toolCall"),
        *("executable_code", "executableCode", "code_execution_result", "codeExecutionResult"),
    }
)


def default_author(principal: Principal) -> str:
    return "system" if principal is ANONYMOUS else principal.name


def store_as_user(event: Event) -> None:
    """Give an end user's event the author `user`, and the id of its message.

    With its own id it cannot take the place of another message.
    """
    event.author = "user"
    message_id = event.content.get("message_id")
    if not event.id and isinstance(message_id, str):
        event.id = message_id


def check_event(principal: Principal, body: dict[str, Any]) -> None:
    """Raise `PermissionDeniedError` for a body that would store an event the caller may not write."""
    if principal.may(Permission.ADMIN):
        return
    kind = body.get("event_type")
    if isinstance(kind, str) and _is_engine_kind(kind):
        raise PermissionDeniedError(f"events of the type {kind} are written by the engine")
    if isinstance(kind, str) and _mentions_confirmation(body.get("content")):
        raise PermissionDeniedError("a confirmation of a tool call is given by resuming its run, not as an event")
    if principal.user_id is not None:
        _check_user_event(principal.user_id, body)


def _is_engine_kind(kind: str) -> bool:
    known = KINDS.get(kind)
    return (known is not None and known.engine_only) or _ENGINE_KINDS.fullmatch(kind) is not None


def _check_user_event(user_id: str, body: dict[str, Any]) -> None:
    kind, author, role = (body.get(name) for name in ("event_type", "author", "role"))
    if isinstance(author, str) and author not in ("user", user_id):
        raise PermissionDeniedError(f"a user may not write as {author!r}")
    if isinstance(role, str) and role != "user":
        raise PermissionDeniedError(f"a user may not write with the role {role!r}")
    if isinstance(kind, str) and kind not in _USER_KINDS:
        raise PermissionDeniedError(f"a user may not write events of the type {kind!r}")
    content = body.get("content")
    if isinstance(content, dict) and ("adk" in content or content.get("role", "user") != "user"):
        raise PermissionDeniedError("a user may not write what ADK stores (`adk`), nor content of another role")
    if isinstance(content, dict) and CLIENT_HISTORY in content:
        # Views and agents read the message under this name instead of the text, in the role that it claims.
        raise PermissionDeniedError(f"the host writes `{CLIENT_HISTORY}`; bring a history with the input of a run")
    _check_parts(content)
    if isinstance(content, dict) and body.get("id") and content.get("message_id", body["id"]) != body["id"]:
        # Clients add the text to the message that has this id.
        raise PermissionDeniedError("a user's event has the id of its message: `id` and `message_id` are the same")
    actions = body.get("actions")
    if isinstance(actions, dict) and actions.keys() - {"state_delta"}:
        raise PermissionDeniedError(
            "a user's event changes state and does nothing else (`actions` holds `state_delta` only)"
        )
    changed = [body.get("delta"), body.get("state"), actions.get("state_delta") if isinstance(actions, dict) else None]
    for delta in changed:
        if isinstance(delta, dict) and any(str(key).startswith("app:") for key in delta):
            raise PermissionDeniedError("a user may not change the state of the app (`app:` keys)")


def _check_parts(content: Any) -> None:
    """Refuse parts that models and views could read as a tool call, its result or a thought."""
    lists = [content.get("parts"), content.get("content")] if isinstance(content, dict) else [content]
    for part in (part for parts in lists if isinstance(parts, list) for part in parts):
        if not isinstance(part, dict) or part.keys() & _TOOL_FIELDS or part.get("type", "text") not in _PART_TYPES:
            raise PermissionDeniedError(
                "a part of a user's message is a text or media, no tool call, result or thought; "
                f"known types are {', '.join(sorted(_PART_TYPES))}"
            )


def _mentions_confirmation(value: Any) -> bool:
    """Return whether a value contains the name of ADK's confirmation. Not recursive: it may be deep."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if item == _CONFIRMATION:
            return True
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return False
