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

from cognizes.engine.models import DELETE, Event, JsonObject, Session, is_delete, new_id
from cognizes.engine.pulse.scopes import apply_delta
from cognizes.engine.pulse.state_manager import StateManager


class Overlay(MutableMapping[str, Any]):
    """A mapping over a session's state that remembers changes instead of making them. Keys carry their prefix."""

    def __init__(self, session: Session, *, invocation_id: str) -> None:
        self.session = session
        self.invocation_id = invocation_id
        self.pending: JsonObject = {}

    def __getitem__(self, key: str) -> Any:
        value = self.pending[key] if key in self.pending else self.session.state[key]
        if is_delete(value):
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        self.pending[key] = value

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self.pending[key] = DELETE

    def __contains__(self, key: object) -> bool:
        return not is_delete(self.pending[key]) if key in self.pending else key in self.session.state

    def __iter__(self) -> Iterator[str]:
        return iter(self.effective())

    def __len__(self) -> int:
        return len(self.effective())

    def effective(self) -> JsonObject:
        """The state as this invocation sees it."""
        return apply_delta(self.session.state, self.pending)

    def discard(self) -> None:
        """Throws the pending changes away."""
        self.pending = {}


@asynccontextmanager
async def invocation(
    manager: StateManager, session: Session, *, author: str = "system", invocation_id: str | None = None
) -> AsyncIterator[Overlay]:
    """An overlay whose pending changes become one event at the end, or nothing after an exception.

    `ConcurrencyConflictError` when somebody else changed the state in between: what was read may not hold any more.
    """
    overlay = Overlay(session, invocation_id=invocation_id or str(new_id()))
    try:
        yield overlay
    except BaseException:
        overlay.discard()
        raise
    if overlay.pending:
        event = Event(
            id="",
            thread_id=session.thread_id,
            invocation_id=overlay.invocation_id,
            author=author,
            event_type="state_update",
            actions={"state_delta": overlay.pending},
        )
        await manager.append_event(session, event)
        overlay.pending = {}
    # The invocation is over, and `temp:` ends with it.
    session.state = {key: value for key, value in session.state.items() if not key.startswith("temp:")}
