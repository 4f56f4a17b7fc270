"""Scoped state: which scope a key belongs to, how deltas apply, and an invocation's overlay of pending changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Self

from cognizes.engine.models import DELETE, JsonObject, Session, is_delete

SESSION = "session"
USER = "user"
APP = "app"
TEMP = "temp"
_SCOPES = {"user": USER, "app": APP, "temp": TEMP}
_ABSENT = object()


def parse_state_prefix(key: str) -> tuple[str, str]:
    """Return the scope and the bare key: `("user", "language")` for `"user:language"`, else the session's scope."""
    prefix, colon, bare_key = key.partition(":")
    scope = _SCOPES.get(prefix) if colon else None
    return (SESSION, key) if scope is None else (scope, bare_key)


@dataclass
class ScopedDelta:
    """A delta by scope, with bare keys."""

    session: JsonObject = field(default_factory=dict)
    user: JsonObject = field(default_factory=dict)
    app: JsonObject = field(default_factory=dict)
    temp: JsonObject = field(default_factory=dict)

    @property
    def is_stored(self) -> bool:
        return bool(self.session or self.user or self.app)


def split_delta(delta: Mapping[str, Any]) -> ScopedDelta:
    scoped = ScopedDelta()
    parts = {SESSION: scoped.session, USER: scoped.user, APP: scoped.app, TEMP: scoped.temp}
    for key, value in delta.items():
        scope, bare_key = parse_state_prefix(key)
        parts[scope][bare_key] = value
    return scoped


def join_state(session: JsonObject, user: JsonObject, app: JsonObject) -> JsonObject:
    """Return the effective state: the session's keys, and those of wider scopes with their prefix."""
    return {
        **session,
        **{f"user:{key}": value for key, value in user.items()},
        **{f"app:{key}": value for key, value in app.items()},
    }


def apply_delta(state: Mapping[str, Any], delta: Mapping[str, Any]) -> JsonObject:
    """Return a new state: keys replaced, keys with the value `DELETE` removed."""
    changed = {**state, **delta}
    for key, value in delta.items():
        if is_delete(value):
            del changed[key]
    return changed


def without_temp(delta: Mapping[str, Any]) -> JsonObject:
    return {key: value for key, value in delta.items() if not key.startswith("temp:")}


def only_temp(state: Mapping[str, Any]) -> JsonObject:
    return {key: value for key, value in state.items() if key.startswith("temp:")}


@dataclass(frozen=True, slots=True)
class StateVersions:
    """The versions of the three scopes of a state; -1 where the version is unknown."""

    session: int
    user: int
    app: int

    @classmethod
    def of(cls, session: Session) -> Self:
        return cls(session.version, session.user_version, session.app_version)

    def are_known(self, delta: ScopedDelta) -> bool:
        """Return whether the versions of all scopes that a delta writes are known."""
        return not ((delta.user and self.user < 0) or (delta.app and self.app < 0))


class Overlay(MutableMapping[str, Any]):
    """A mapping over a session's state that collects changes until they are committed as one event.

    `State_effective = State_persistent + Σ Delta_pending`: the invocation reads its own pending changes, other readers
    do not see them before the commit. Keys carry their prefix.
    """

    def __init__(self, session: Session, *, invocation_id: str) -> None:
        self.session = session
        self.invocation_id = invocation_id
        self.pending: JsonObject = {}
        self._read: JsonObject = {}
        self._read_whole: JsonObject | None = None

    def __getitem__(self, key: str) -> Any:
        value = self.pending[key] if key in self.pending else self._read_key(key)
        if value is _ABSENT or is_delete(value):
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        self.pending[key] = value

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self.pending[key] = DELETE

    def __contains__(self, key: object) -> bool:
        if key in self.pending:
            return not is_delete(self.pending[key])
        return isinstance(key, str) and self._read_key(key) is not _ABSENT

    def __iter__(self) -> Iterator[str]:
        return iter(self.effective())

    def __len__(self) -> int:
        return len(self.effective())

    def effective(self) -> JsonObject:
        self._read_whole = self.session.state
        return apply_delta(self.session.state, self.pending)

    def reads_are_current(self) -> bool:
        """Return whether the session still shows every value that was read through this overlay."""
        state = self.session.state
        return (self._read_whole is None or self._read_whole == state) and all(
            state.get(key, _ABSENT) == value for key, value in self._read.items()
        )

    def discard(self) -> None:
        self.pending = {}

    def _read_key(self, key: str) -> Any:
        value = self._read[key] = self.session.state.get(key, _ABSENT)
        return value
