"""`engine.sessions`: what an agent does with a session, in as few words as it deserves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from cognizes.engine.errors import ConcurrencyConflictError
from cognizes.engine.models import Event, JsonObject, Message, Page, PastState, Session, new_id
from cognizes.engine.pulse.events import Messages, state_delta
from cognizes.engine.pulse.state import Overlay, ScopedDelta, StateVersions, without_temp
from cognizes.engine.pulse.state_manager import StateFunction, StateManager
from cognizes.engine.pulse.time_travel import TimeTravel

_WIDER_SCOPES = ScopedDelta(user={"": None}, app={"": None})

Events = list[Event]
Conversation = list[Message]


class Sessions:
    """Sessions with their events, state, messages and past."""

    def __init__(self, manager: StateManager, messages: Messages, time_travel: TimeTravel) -> None:
        self._manager = manager
        self._store = manager.sessions
        self._messages = messages
        self._time_travel = time_travel

    async def create(
        self,
        app_name: str,
        user_id: str,
        *,
        state: Mapping[str, Any] | None = None,
        session_id: str | None = None,
        title: str | None = None,
        metadata: JsonObject | None = None,
    ) -> Session:
        """A new session at version 1; `AlreadyExistsError` when the session id is taken."""
        return await self._store.create(
            app_name, user_id, state=state, session_id=session_id, title=title, metadata=metadata
        )

    async def get(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        """A session with its effective state, or None."""
        return await self._store.get(app_name, user_id, session_id)

    async def list(
        self,
        app_name: str,
        user_id: str | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
        with_state: bool = True,
    ) -> Page[Session]:
        """Newest activity first, a page at a time; without a user, those of the whole app."""
        return await self._store.list(app_name, user_id, limit=limit, cursor=cursor, with_state=with_state)

    async def change(
        self, session: Session, *, title: str | None = None, metadata: JsonObject | None = None
    ) -> Session:
        """Sets the title (empty removes it) and merges metadata; the object follows."""
        thread_id = await self._store.find_thread(session)
        changed = await self._store.change(thread_id, title=title, metadata=metadata)
        session.title, session.metadata, session.updated_at = changed.title, changed.metadata, changed.updated_at
        session.last_sequence = changed.last_sequence
        return session

    async def delete(self, session: Session) -> bool:
        """Removes a session with its memories, episodes and all else that comes from it; whether there was one."""
        return await self._store.delete(session.app_name, session.user_id, session.id)

    async def fork(self, session: Session, *, at_sequence: int | None = None, session_id: str | None = None) -> Session:
        """A new session with the same past, up to an event or up to now."""
        thread_id = await self._store.find_thread(session)
        past = None if at_sequence is None else await self._time_travel.at(thread_id, sequence=at_sequence)
        return await self._store.fork(thread_id, session_id=session_id, past=past)

    async def append(
        self,
        session: Session,
        *,
        author: str,
        kind: str,
        text: str | None = None,
        content: JsonObject | None = None,
        state: Mapping[str, Any] | None = None,
        event_id: str = "",
        invocation_id: str = "",
        run_id: str | None = None,
    ) -> Event:
        """Stores an event, with `text` as its content's text and `state` as its delta."""
        event = Event(
            id=event_id,
            thread_id=session.thread_id,
            invocation_id=invocation_id,
            author=author,
            event_type=kind,
            content={**(content or {}), **({"text": text} if text is not None else {})},
            actions={"state_delta": dict(state)} if state else {},
            run_id=run_id,
        )
        return await self._manager.append_event(session, event)

    async def update(
        self, session: Session, change: Mapping[str, Any] | StateFunction, *, author: str = "system"
    ) -> Session:
        """Changes state by a delta, or exactly, by a function of the fresh state that returns one."""
        return await self._manager.update_session_state(session, change, author=author)

    def invocation(
        self, session: Session, *, author: str = "system", invocation_id: str | None = None
    ) -> AbstractAsyncContextManager[Overlay]:
        """A scratchpad over the state: reads see pending writes, the end makes them one event."""
        return _invocation(self._manager, session, author=author, invocation_id=invocation_id)

    async def events(self, session: Session, *, after: int = 0, limit: int = 1000) -> Events:
        """Oldest first, after a sequence number. The list also ends at `COGNIZES_PAGE_BYTES`, but is empty only at the
        end of the thread; `iterate_events` yields all."""
        return await self._manager.events.read(await self._store.find_thread(session), after=after, limit=limit)

    async def iterate_events(self, session: Session, *, after: int = 0) -> AsyncIterator[Event]:
        """All events after a sequence number, oldest first, with one page of them in memory at a time."""
        thread_id = await self._store.find_thread(session)
        async for event in self._manager.events.iterate(thread_id, after=after):
            yield event

    async def recent_events(self, session: Session, *, limit: int) -> Events:
        """The newest `limit` events, oldest first, or fewer that fit into `COGNIZES_PAGE_BYTES`."""
        return await self._manager.events.recent(await self._store.find_thread(session), limit=limit)

    async def messages(
        self, session: Session, *, after: int = 0, at_sequence: int | None = None, limit: int = 1000
    ) -> Conversation:
        """The conversation, oldest first; `at_sequence` shows it as it was then. The list also ends at
        `COGNIZES_PAGE_BYTES`, but is empty only at the end: go on `after` the last `sequence_num`."""
        thread_id = await self._store.find_thread(session)
        return await self._messages.read(thread_id, after=after, up_to=at_sequence, limit=limit)

    async def at(self, session: Session, *, sequence: int | None = None, version: int | None = None) -> PastState:
        """Time travel: the state right after an event, or at a version."""
        return await self._time_travel.at(await self._store.find_thread(session), sequence=sequence, version=version)

    async def snapshot(self, session: Session) -> int:
        """Keeps the present state as a starting point for replays; returns its version."""
        return await self._time_travel.snapshot(await self._store.find_thread(session))


@asynccontextmanager
async def _invocation(
    manager: StateManager, session: Session, *, author: str = "system", invocation_id: str | None = None
) -> AsyncIterator[Overlay]:
    """Yield an overlay whose pending changes are committed as one event at the end, or dropped after an exception.

    Raises `ConcurrencyConflictError` when the state of the session, or of a wider scope that is written, was changed
    since, or when another task on this object changed a value that was read.
    """
    if not StateVersions.of(session).are_known(_WIDER_SCOPES):
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
    # `temp:` keys live as long as the invocation.
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
    # There is no await between here and the append: these are the versions of the values compared.
    if not overlay.reads_are_current():
        raise ConcurrencyConflictError(expected=began, actual=session.version)
    await manager.append_on(session, event, StateVersions.of(session))
