"""The overlay: an invocation's own view of the state.

    State_effective = State_persistent + Σ Delta_pending

ADK calls it the trap of "airborne state": a change that was yielded is not there until its event is committed, and
code that reads it back too early sees the old value. On an overlay it sees the new one. Nobody else does, until the
commit makes all pending changes one event; an exception throws them away.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from cognizes.engine.errors import ConcurrencyConflictError
from cognizes.engine.models import DELETE, Event, JsonObject, Session, is_delete, new_id
from cognizes.engine.pulse.event_log import state_delta
from cognizes.engine.pulse.scopes import ScopedDelta, apply_delta, without_temp
from cognizes.engine.pulse.state_manager import StateManager, StateVersions

_ABSENT = object()
_EVERY_SCOPE = ScopedDelta(user={"": None}, app={"": None})


class Overlay(MutableMapping[str, Any]):
    """A mapping over a session's state that remembers changes instead of making them. Keys carry their prefix."""

    def __init__(self, session: Session, *, invocation_id: str) -> None:
        self.session = session
        self.invocation_id = invocation_id
        self.pending: JsonObject = {}
        self._seen: JsonObject = {}
        self._seen_whole: JsonObject | None = None

    def __getitem__(self, key: str) -> Any:
        value = self.pending[key] if key in self.pending else self._look_at(key)
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
        return isinstance(key, str) and self._look_at(key) is not _ABSENT

    def __iter__(self) -> Iterator[str]:
        return iter(self.effective())

    def __len__(self) -> int:
        return len(self.effective())

    def effective(self) -> JsonObject:
        """The state as this invocation sees it."""
        self._seen_whole = self.session.state
        return apply_delta(self.session.state, self.pending)

    def still_holds(self) -> bool:
        """Whether what was read through this overlay, when it was read last, is what the session shows now."""
        state = self.session.state
        return (self._seen_whole is None or self._seen_whole == state) and all(
            state.get(key, _ABSENT) == value for key, value in self._seen.items()
        )

    def _look_at(self, key: str) -> Any:
        value = self._seen[key] = self.session.state.get(key, _ABSENT)
        return value

    def discard(self) -> None:
        """Throws the pending changes away."""
        self.pending = {}


@asynccontextmanager
async def invocation(
    manager: StateManager, session: Session, *, author: str = "system", invocation_id: str | None = None
) -> AsyncIterator[Overlay]:
    """An overlay whose pending changes become one event at the end, or nothing after an exception.

    `ConcurrencyConflictError` when somebody else changed the state in between, in this session or in a wider scope that
    is written, or when another task on this object changed what was read: it may not hold any more.
    """
    if not StateVersions.of(session).are_known(_EVERY_SCOPE):
        await manager.refresh(session)
    overlay = Overlay(session, invocation_id=invocation_id or str(new_id()))
    began = session.version
    try:
        yield overlay
    except BaseException:
        overlay.discard()
        raise
    if overlay.pending:
        await _commit(manager, overlay, author=author, began=began)
        overlay.pending = {}
    # The invocation is over, and `temp:` ends with it.
    session.state = without_temp(session.state)


async def _commit(manager: StateManager, overlay: Overlay, *, author: str, began: int) -> None:
    session = overlay.session
    event = Event(
        id="",
        thread_id=session.thread_id,
        invocation_id=overlay.invocation_id,
        author=author,
        event_type="state_update",
        actions={"state_delta": overlay.pending},
    )
    if not StateVersions.of(session).are_known(state_delta(event)):
        await manager.refresh(session)
    # From here to the append nothing waits: these are the versions of what is compared.
    if not overlay.still_holds():
        raise ConcurrencyConflictError(expected=began, actual=session.version)
    await manager.append_on(session, event, StateVersions.of(session))
