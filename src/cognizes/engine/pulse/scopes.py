"""Which part of a state a key belongs to: `user:`, `app:`, `temp:`, or the session itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cognizes.engine.models import JsonObject, is_delete

SESSION = "session"
USER = "user"
APP = "app"
TEMP = "temp"

_SCOPES = {"user": USER, "app": APP, "temp": TEMP}


def parse_state_prefix(key: str) -> tuple[str, str]:
    """`"user:language"` is `("user", "language")`; a key without a known prefix is the session's."""
    prefix, colon, bare_key = key.partition(":")
    scope = _SCOPES.get(prefix) if colon else None
    return (SESSION, key) if scope is None else (scope, bare_key)


@dataclass
class ScopedDelta:
    """A delta taken apart by scope, with bare keys."""

    session: JsonObject = field(default_factory=dict)
    user: JsonObject = field(default_factory=dict)
    app: JsonObject = field(default_factory=dict)
    temp: JsonObject = field(default_factory=dict)

    @property
    def is_stored(self) -> bool:
        """Whether anything of it outlives the invocation."""
        return bool(self.session or self.user or self.app)


def split_delta(delta: Mapping[str, Any]) -> ScopedDelta:
    """Takes a delta with prefixed keys apart."""
    scoped = ScopedDelta()
    parts = {SESSION: scoped.session, USER: scoped.user, APP: scoped.app, TEMP: scoped.temp}
    for key, value in delta.items():
        scope, bare_key = parse_state_prefix(key)
        parts[scope][bare_key] = value
    return scoped


def join_state(session: JsonObject, user: JsonObject, app: JsonObject) -> JsonObject:
    """The effective state: the session's keys, and those of wider scopes behind their prefix."""
    return {
        **session,
        **{f"user:{key}": value for key, value in user.items()},
        **{f"app:{key}": value for key, value in app.items()},
    }


def apply_delta(state: Mapping[str, Any], delta: Mapping[str, Any]) -> JsonObject:
    """A new state: keys replaced, keys marked with `DELETE` gone."""
    changed = {**state, **delta}
    for key, value in delta.items():
        if is_delete(value):
            del changed[key]
    return changed


def without_temp(delta: Mapping[str, Any]) -> JsonObject:
    """What of a delta is stored."""
    return {key: value for key, value in delta.items() if not key.startswith("temp:")}
