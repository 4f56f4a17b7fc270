"""Which events a client may write as its own. Only administrators may write anything.

Everybody else may not write what the engine itself says about runs, nor a confirmation of a tool call: those come
through the routes that check them. An end user speaks as a user, and changes neither the app's state nor what agents
said.
"""

from __future__ import annotations

import re
from typing import Any

from cognizes.engine.access import Permission, Principal
from cognizes.engine.errors import PermissionDeniedError

_OF_THE_ENGINE = re.compile(r"run_.*|branch_.*|tool_confirmation.*|memory_.*")
_CONFIRMATION = "adk_request_confirmation"
_OF_USERS = frozenset(
    {"user_message", "message", "state_update", "clarification_answered", "decision_answered", "feedback"}
)


def check_event(principal: Principal, body: dict[str, Any]) -> None:
    """Refuses a body that would store an event the caller may not write; says which part of it."""
    if principal.may(Permission.ADMIN):
        return
    kind = body.get("event_type")
    if isinstance(kind, str) and _OF_THE_ENGINE.fullmatch(kind):
        raise PermissionDeniedError(f"events of the type {kind} are written by the engine")
    if isinstance(kind, str) and _mentions_confirmation(body.get("content")):
        raise PermissionDeniedError("a confirmation of a tool call is given by resuming its run, not as an event")
    if principal.user_id is not None:
        _check_user_event(principal.user_id, body)


def _check_user_event(user_id: str, body: dict[str, Any]) -> None:
    kind, author, role = (body.get(name) for name in ("event_type", "author", "role"))
    if isinstance(author, str) and author not in ("user", user_id):
        raise PermissionDeniedError(f"a user may not write as {author!r}")
    if isinstance(role, str) and role != "user":
        raise PermissionDeniedError(f"a user may not write with the role {role!r}")
    if isinstance(kind, str) and kind not in _OF_USERS:
        raise PermissionDeniedError(f"a user may not write events of the type {kind!r}")
    content = body.get("content")
    if isinstance(content, dict) and ("adk" in content or content.get("role", "user") != "user"):
        raise PermissionDeniedError("a user may not write what ADK stores (`adk`), nor content of another role")
    actions = body.get("actions")
    if isinstance(actions, dict) and actions.keys() - {"state_delta"}:
        raise PermissionDeniedError(
            "a user's event changes state and does nothing else (`actions` holds `state_delta` only)"
        )
    changed = [body.get("delta"), body.get("state"), actions.get("state_delta") if isinstance(actions, dict) else None]
    for delta in changed:
        if isinstance(delta, dict) and any(str(key).startswith("app:") for key in delta):
            raise PermissionDeniedError("a user may not change the state of the app (`app:` keys)")


def _mentions_confirmation(value: Any) -> bool:
    """Whether the name of ADK's confirmation stands anywhere in it. Without recursion: it may be deep."""
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
