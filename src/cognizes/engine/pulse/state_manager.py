"""StateManager: sessions, events and scoped state over one pool, exact under concurrency.

The engine's whole write path goes through here: library, REST and adapters share it.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg

from cognizes.engine.concurrency import KeyedLock
from cognizes.engine.database import Database
from cognizes.engine.errors import (
    ConcurrencyConflictError,
    DuplicateEventError,
    InvalidInputError,
    LeaseLostError,
    NotFoundError,
)
from cognizes.engine.models import Event, JsonObject, Session, new_id
from cognizes.engine.pulse.events import EventLog, append_item, check_keys, same_event, state_delta
from cognizes.engine.pulse.fencing import fence_of_thread
from cognizes.engine.pulse.group_commit import AppendAnswer, AppendBatcher, AppendItem
from cognizes.engine.pulse.session_store import SessionStore
from cognizes.engine.pulse.state import (
    TEMP,
    ScopedDelta,
    StateVersions,
    apply_delta,
    only_temp,
    parse_state_prefix,
    without_temp,
)
from cognizes.engine.settings import Settings

_SOMETHING_ELSE_CHANGED = (
    "conflict: the session is at the expected version, but its conversation went on, or the state of its user or app "
    "was changed; read it again, then retry"
)

__all__ = ["ConcurrencyConflictError", "Event", "Session", "StateManager"]


StateFunction = Callable[[JsonObject], "Mapping[str, Any] | Awaitable[Mapping[str, Any]]"]


class StateManager:
    """Creates sessions, appends events and changes state.

    - An append is one round trip and one commit, shared with the appends of other tasks of this process.
    - An append with a state delta succeeds only on the version that the `Session` carries.
    - Local objects change after the commit and only then; a failed append leaves them as they were.
    - Tasks that share one `Session` object append in the order in which they called.
    - Code that executes a run writes to its thread only while it holds the run; see `fencing`.
    """

    def __init__(self, pool: asyncpg.Pool[Any] | Database, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._database = (
            pool
            if isinstance(pool, Database)
            else Database(pool, schema=self._settings.db_schema, page_bytes=self._settings.page_bytes)
        )
        self.pool = self._database.pool
        self.sessions = SessionStore(self._database, self._settings)
        self.events = EventLog(self._database)
        self._batcher = AppendBatcher(
            self._database,
            snapshot_every=self._settings.snapshot_every,
            max_state_bytes=self._settings.max_state_bytes,
            retry_seconds=self._settings.retry_seconds,
        )
        self._object_locks = KeyedLock()
        self._thread_locks = KeyedLock()
        self._newest: dict[UUID, Session] = {}
        self.conflicts = 0
        self.retries = 0

    async def close(self) -> None:
        """Refuses new appends and sessions, and waits until every one under way is answered.

        The pool is its owner's to close.
        """
        await asyncio.gather(self._batcher.close(), self.sessions.close())

    # Sessions

    async def create_session(
        self,
        app_name: str,
        user_id: str,
        initial_state: Mapping[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """A new session at version 1; `AlreadyExistsError` when the session id is taken."""
        return await self.sessions.create(app_name, user_id, state=initial_state, session_id=session_id)

    async def get_session(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        """A session with its effective state, or None."""
        return await self.sessions.get(app_name, user_id, session_id)

    async def list_sessions(self, app_name: str, user_id: str) -> list[Session]:
        """All sessions of a user, newest activity first."""
        found: list[Session] = []
        cursor: str | None = None
        while True:
            page = await self.sessions.list(app_name, user_id, limit=1000, cursor=cursor)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def delete_session(self, app_name: str, user_id: str, session_id: str) -> bool:
        """Removes a session with its events; whether there was one."""
        return await self.sessions.delete(app_name, user_id, session_id)

    # Events

    async def append_event(self, session: Session, event: Event) -> Event:
        """Stores an event and applies its `actions["state_delta"]`, in one transaction.

        With a delta, `ConcurrencyConflictError` when the session is not at the version this object carries.
        The same event (id and content) again is stored once and answered the same.
        """
        return await self._append_in_turn(session, event, None)

    async def append_on(self, session: Session, event: Event, versions: StateVersions) -> Event:
        """The same, for a delta that was computed from a state at these versions: `ConcurrencyConflictError` when the
        session, or a wider scope that the delta writes, is not there any more."""
        return await self._append_in_turn(session, event, versions)

    async def _append_in_turn(self, session: Session, event: Event, versions: StateVersions | None) -> Event:
        delta = state_delta(event)
        # An object that does not know its thread yet has to ask: whoever comes after must not be faster.
        if delta.is_stored or not session.thread_id or self._object_locks.is_locked(id(session)):
            async with self._object_locks.acquire(id(session)):
                return await self._append(session, event, delta, versions)
        return await self._append(session, event, delta, versions)

    async def append_to_thread(
        self,
        thread_id: UUID,
        event: Event,
        *,
        expected_version: int | None = None,
        expected_sequence: int | None = None,
    ) -> bool:
        """Appends without a `Session`: for callers that hold only ids. False when the event was there already.

        With an `expected_sequence` it is a conflict, too, that somebody spoke or changed state after that event.
        """
        delta = state_delta(event)
        item = self._item(event, delta, thread_id=thread_id, expected_version=expected_version)
        item.expected_sequence = expected_sequence
        answer = await self._batcher.submit(item)
        if answer.status != "stored":
            await self._explain(answer, item)
        _fill(event, item, answer)
        return answer.status == "stored"

    async def _append(
        self, session: Session, event: Event, delta: ScopedDelta, versions: StateVersions | None
    ) -> Event:
        thread_id = await self.sessions.find_thread(session)
        # The object may have moved on since its state was read: what counts is what was read.
        version = session.version if versions is None else versions.session
        expected = version if delta.is_stored else None
        item = self._item(event, delta, thread_id=thread_id, expected_version=expected)
        if versions is not None:
            # The thread's version says nothing of wider scopes: other threads write them too.
            item.expected_user_version = versions.user if delta.user else None
            item.expected_app_version = versions.app if delta.app else None
        answer = await self._batcher.submit(item)
        if answer.status != "stored":
            await self._explain(answer, item)
        _fill(event, item, answer)
        _advance(session, event, delta, answer, versions)
        return event

    def _item(self, event: Event, delta: ScopedDelta, *, thread_id: UUID, expected_version: int | None) -> AppendItem:
        item = append_item(
            event,
            delta,
            thread_id=thread_id,
            expected_version=expected_version,
            max_bytes=self._settings.max_event_bytes,
            max_depth=self._settings.max_json_depth,
        )
        if fence := fence_of_thread(thread_id):
            item.fence = fence.run_id, fence.attempt
        return item

    async def _explain(self, answer: AppendAnswer, item: AppendItem) -> None:
        """Raises what the status means; returns when the stored event is the one that was sent."""
        match answer.status:
            case "missing":
                raise NotFoundError(f"there is no thread {item.thread_id}; it was deleted or never created")
            case "fenced":
                raise LeaseLostError("this attempt does not hold its run any more, so nothing was stored: stop here")
            case "conflict":
                self.conflicts += 1
                raise ConcurrencyConflictError(
                    "" if item.expected_version != answer.version else _SOMETHING_ELSE_CHANGED,
                    expected=item.expected_version,
                    actual=answer.version,
                )
            case "duplicate":
                stored = await self.events.find(item.thread_id, item.event_id)
                if stored is None:
                    raise NotFoundError(f"there is no thread {item.thread_id}; it was deleted meanwhile")
                if not same_event(item, stored):
                    raise DuplicateEventError(
                        f"event {item.event_id!r} is in the thread already, with another content; "
                        "the stored one is kept: send the new one under an id of its own"
                    )

    # State

    async def update_session_state(
        self,
        session: Session,
        change: Mapping[str, Any] | StateFunction,
        max_retries: int = 50,
        *,
        author: str = "system",
        run_id: str | None = None,
    ) -> Session:
        """Changes state by a delta, or by a function of the fresh state that returns one; retries conflicts.

        With a function the change is exact, in every scope that it writes: N concurrent increments end at N. Tasks of
        this process take turns per thread, so that mostly other processes can be in the way.
        """
        if max_retries < 1:
            raise InvalidInputError("max_retries must be at least 1")
        thread_id = await self.sessions.find_thread(session)
        async with self._thread_locks.acquire(thread_id):
            self._catch_up(session, thread_id)
            try:
                await self._update(session, change, max_retries, author=author, run_id=run_id)
            finally:
                if self._thread_locks.has_waiters(thread_id):
                    self._newest[thread_id] = replace(session, state=without_temp(session.state))
                else:
                    self._newest.pop(thread_id, None)
        return session

    async def _update(
        self,
        session: Session,
        change: Mapping[str, Any] | StateFunction,
        max_retries: int,
        *,
        author: str,
        run_id: str | None,
    ) -> None:
        for attempt in range(max_retries):
            # Before the function sees the state: while it thinks, other tasks may move the object on.
            versions = StateVersions.of(session) if callable(change) else None
            event = await self._state_update(session, change, author=author, run_id=run_id)
            try:
                await self._append_in_turn(session, event, versions)
                return
            except ConcurrencyConflictError:
                if attempt == max_retries - 1:
                    raise
            self.retries += 1
            await asyncio.sleep(random.uniform(0, 0.002 * min(2**attempt, 64)))  # noqa: S311 - jitter
            await self.refresh(session)

    async def refresh(self, session: Session) -> None:
        """Brings a session object up to what is stored, and never back."""
        thread_id = await self.sessions.find_thread(session)
        while True:
            known = session.version
            fresh = await self.sessions.get_thread(thread_id)
            # An append of another task may have been answered since the row was read.
            if fresh.version >= session.version or session.version == known:
                break
        fresh.last_sequence = max(fresh.last_sequence, session.last_sequence)
        vars(session).update(vars(fresh) | {"state": fresh.state | only_temp(session.state)})

    def _catch_up(self, session: Session, thread_id: UUID) -> None:
        """Takes over what the task before in the queue knows, instead of running into a conflict to learn it."""
        newest = self._newest.get(thread_id)
        if newest is not None and newest.version > session.version:
            session.state = newest.state | only_temp(session.state)
            session.version = newest.version
            session.user_version, session.app_version = newest.user_version, newest.app_version
            session.last_sequence = max(session.last_sequence, newest.last_sequence)
            session.updated_at = newest.updated_at

    async def _state_update(
        self, session: Session, change: Mapping[str, Any] | StateFunction, *, author: str, run_id: str | None
    ) -> Event:
        if callable(change):
            # A copy: whatever the function does to it, the session changes only with the commit.
            result = change(copy.deepcopy(session.state))
            delta = await result if inspect.isawaitable(result) else result
        else:
            delta = change
        return Event(
            id="",
            thread_id=session.thread_id,
            invocation_id=str(new_id()),
            author=author,
            event_type="state_update",
            actions={"state_delta": check_keys("a change of state", delta)},
            run_id=run_id,
        )

    def parse_state_prefix(self, key: str) -> tuple[str, str]:
        """`"user:language"` is `("user", "language")`."""
        return parse_state_prefix(key)

    async def set_state(self, session: Session, key: str, value: Any) -> None:
        """Sets one key in the scope its prefix names; a `temp:` key lives on this object only and is never stored."""
        if parse_state_prefix(key)[0] == TEMP:
            session.state = apply_delta(session.state, {key: value})
        else:
            await self.update_session_state(session, {key: value})

    async def get_state(self, session: Session, key: str, default: Any = None) -> Any:
        """The stored value of one key, or `default`."""
        return (await self.get_all_state(session)).get(key, default)

    async def get_all_state(self, session: Session) -> JsonObject:
        """The stored effective state with prefixed keys, and the `temp:` keys of this object."""
        fresh = await self.sessions.get_thread(await self.sessions.find_thread(session))
        return fresh.state | only_temp(session.state)


def _fill(event: Event, item: AppendItem, answer: AppendAnswer) -> None:
    event.id = item.event_id
    event.thread_id = str(item.thread_id)
    event.created_at = answer.created_at
    event.sequence_num = answer.sequence_num
    event.version = answer.version


def _advance(
    session: Session, event: Event, delta: ScopedDelta, answer: AppendAnswer, versions: StateVersions | None
) -> None:
    """Moves the local session to where the append left the stored one, if it is known to have been there before."""
    if delta.is_stored and answer.version == session.version + 1:
        session.state = apply_delta(session.state, event.actions["state_delta"])
        session.version = answer.version
        if delta.user:
            session.user_version = _next(session.user_version, None if versions is None else versions.user)
        if delta.app:
            session.app_version = _next(session.app_version, None if versions is None else versions.app)
    elif delta.temp:
        session.state = apply_delta(session.state, {f"temp:{key}": value for key, value in delta.temp.items()})
    session.last_sequence = max(session.last_sequence, answer.sequence_num)
    session.updated_at = max(session.updated_at or answer.created_at, answer.created_at)


def _next(shown: int, expected: int | None) -> int:
    """The version of a wider scope after an append: known only if it was checked against the one the object shows."""
    return shown + 1 if expected == shown else -1
