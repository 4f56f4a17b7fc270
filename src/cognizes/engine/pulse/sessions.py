"""`engine.sessions`: sessions with their events, state, messages and past. The write path of the whole engine."""

from __future__ import annotations

import asyncio
import copy
import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any
from uuid import UUID

from cognizes.engine.concurrency import KeyedLock, RetryQueue
from cognizes.engine.database import Database
from cognizes.engine.database.notifications import Notifier
from cognizes.engine.errors import (
    ConcurrencyConflictError,
    DuplicateEventError,
    InvalidInputError,
    LeaseLostError,
    NotFoundError,
)
from cognizes.engine.models import Event, JsonObject, Message, Page, PastState, Session, TokenUsage, new_id
from cognizes.engine.pulse.events import (
    EventLog,
    Messages,
    Overlay,
    ScopedDelta,
    StateVersions,
    append_item,
    apply_delta,
    check_keys,
    only_temp,
    same_event,
    state_delta,
    without_temp,
)
from cognizes.engine.pulse.group_commit import AppendAnswer, AppendBatcher, AppendItem
from cognizes.engine.pulse.session_store import SessionStore
from cognizes.engine.pulse.time_travel import TimeTravel
from cognizes.engine.settings import Settings

StateFunction = Callable[[JsonObject], "Mapping[str, Any] | Awaitable[Mapping[str, Any]]"]
SessionName = tuple[str, str, str]
"""App name, user id, session id."""
Events = list[Event]
Conversation = list[Message]
_WIDER_SCOPES = ScopedDelta(user={"": None}, app={"": None})
_OTHER_CONFLICT = (
    "conflict: the session is at the expected version, but an event was added to its conversation, or the state of its "
    "user or app was changed; read it again, then retry"
)


class RunFence:
    """An attempt at a run: only the attempt that holds the run may write for it.

    Code that executes a run is fenced on the run's thread. PostgreSQL compares the attempt inside the transaction of
    each write, so a worker that was paused and lost its lease changes nothing after it continues.

    `attempt` grows when the same code claims the run again after a wait.
    `is_releasing`: the code of the run ends it, or makes it wait. That it no longer holds the lease is then no loss.
    """

    def __init__(self, thread_id: UUID, run_id: str, attempt: int) -> None:
        self.thread_id = thread_id
        self.run_id = run_id
        self.attempt = attempt
        self.is_over = False
        self.is_releasing = False

    def end(self) -> None:
        """Stop fencing: the code of the run has ended it, and later writes of that code do not belong to the run."""
        self.is_over = True


_current: ContextVar[RunFence | None] = ContextVar("cognizes_run_fence", default=None)


def current_fence() -> RunFence | None:
    """Return the fence of the run that the calling task executes, on any thread."""
    fence = _current.get()
    return fence if fence is not None and not fence.is_over else None


def fence_of_thread(thread_id: UUID) -> RunFence | None:
    """Return the fence of the run that the calling task executes on this thread, if any."""
    fence = current_fence()
    return fence if fence is not None and fence.thread_id == thread_id else None


def attempt_at(thread_id: UUID, run_id: str) -> int | None:
    """Return the attempt with which the calling task executes this run; None when it does not."""
    fence = fence_of_thread(thread_id)
    return fence.attempt if fence is not None and fence.run_id == run_id else None


@contextmanager
def fenced_by(fence: RunFence) -> Iterator[None]:
    """Fence the writes of this task, and of the tasks that it starts, to the run's thread."""
    token = _current.set(fence)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def releasing(thread_id: UUID, run_id: str) -> Iterator[None]:
    """Mark the fence of the calling task while the task ends this run or makes it wait."""
    fence = fence_of_thread(thread_id)
    if fence is None or fence.run_id != run_id:
        yield
        return
    fence.is_releasing = True
    try:
        yield
    finally:
        fence.is_releasing = False


class Sessions:
    """Creates and reads sessions, appends events and changes state.

    - An append is one round trip and one commit, shared with the appends of other tasks of this process.
    - An append with a state delta succeeds only on the version that the `Session` carries.
    - Local objects change after the commit only; a failed append leaves them unchanged.
    - Tasks that share one `Session` object append in the order of their calls.
    - Code that executes a run writes to its thread only while it holds the run; see `RunFence`.

    `store`, `log`, `message_log` and `time_travel` read sessions, events, messages and past states by thread id.
    With a `notifier` appended events are notified after their commit, else by the trigger in the transaction.
    """

    def __init__(self, database: Database, settings: Settings, *, notifier: Notifier | None = None) -> None:
        self._settings = settings
        self.store = SessionStore(database, settings)
        self.log = EventLog(database)
        self.message_log = Messages(database)
        self.time_travel = TimeTravel(database)
        self._batcher = AppendBatcher(
            database,
            snapshot_every=settings.snapshot_every,
            max_state_bytes=settings.max_state_bytes,
            retry_seconds=settings.retry_seconds,
            notifier=notifier,
        )
        self.retry_queue = RetryQueue(self._batcher.wait_until_answered)
        self._object_locks = KeyedLock()
        self._thread_locks = KeyedLock()
        self._newest: dict[UUID, Session] = {}
        self.conflicts = 0
        self.retries = 0

    async def close(self) -> None:
        """Refuse new appends and sessions, and return when all submitted ones have been answered."""
        await asyncio.gather(self._batcher.close(), self.store.close())

    # Sessions

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
        """Create a session at version 1; `AlreadyExistsError` when the session id is taken."""
        return await self.store.create(
            app_name, user_id, state=state, session_id=session_id, title=title, metadata=metadata
        )

    async def get(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        """Return a session; None if there is none. After a conflict the task waits in `retry_queue`."""
        await self.retry_queue.acquire((app_name, user_id, session_id))
        session = await self.store.get(app_name, user_id, session_id)
        if session is None:
            self.retry_queue.release((app_name, user_id, session_id))
        return session

    async def list(
        self,
        app_name: str,
        user_id: str | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
        with_state: bool = True,
    ) -> Page[Session]:
        """Return a page of the sessions of a user or of the whole app, latest activity first."""
        return await self.store.list(app_name, user_id, limit=limit, cursor=cursor, with_state=with_state)

    async def change(
        self, session: Session, *, title: str | None = None, metadata: JsonObject | None = None
    ) -> Session:
        """Set the title (empty removes it) and merge metadata, in the database and on the object."""
        changed = await self.store.change(await self.store.find_thread(session), title=title, metadata=metadata)
        session.title, session.metadata, session.updated_at = changed.title, changed.metadata, changed.updated_at
        session.last_sequence = changed.last_sequence
        return session

    async def delete(self, session: Session) -> bool:
        """Delete a session with its events, memories and episodes; return whether it existed."""
        return await self.store.delete(session.app_name, session.user_id, session.id)

    async def fork(self, session: Session, *, at_sequence: int | None = None, session_id: str | None = None) -> Session:
        """Create a session with the same past, up to an event or up to now."""
        thread_id = await self.store.find_thread(session)
        past = None if at_sequence is None else await self.time_travel.at(thread_id, sequence=at_sequence)
        return await self.store.fork(thread_id, session_id=session_id, past=past)

    async def refresh(self, session: Session) -> None:
        """Update a session object to what is stored; never to an older version than it shows."""
        thread_id = await self.store.find_thread(session)
        await self.retry_queue.acquire(_name_of(session))
        while True:
            known = session.version
            fresh = await self.store.get_thread(thread_id)
            # An append of another task may have been answered since the row was read.
            if fresh.version >= session.version or session.version == known:
                break
        fresh.last_sequence = max(fresh.last_sequence, session.last_sequence)
        vars(session).update(vars(fresh) | {"state": fresh.state | only_temp(session.state)})

    # Appending

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
        usage: TokenUsage | None = None,
    ) -> Event:
        """Append an event, with `text` as its content's text and `state` as its delta.

        `usage` is what a model used for it; it is counted once, with the event.
        """
        event = Event(
            id=event_id,
            thread_id=session.thread_id,
            invocation_id=invocation_id,
            author=author,
            event_type=kind,
            content={**(content or {}), **({"text": text} if text is not None else {})},
            actions={"state_delta": dict(state)} if state else {},
            run_id=run_id,
            usage=usage,
        )
        return await self.append_event(session, event)

    async def append_event(self, session: Session, event: Event, *, on: StateVersions | None = None) -> Event:
        """Append an event and apply its `actions["state_delta"]`, in one transaction.

        With a delta, `ConcurrencyConflictError` when the session is not at the version of the object. `on` names the
        versions that the delta was computed from: they are expected instead, also those of wider scopes that the delta
        writes. The same event (id and content) again is stored once and answered the same.
        """
        delta = state_delta(event)
        # An object without a thread id needs a query first: later calls must not overtake it.
        if delta.is_stored or not session.thread_id or self._object_locks.is_locked(id(session)):
            async with self._object_locks.acquire(id(session)):
                return await self._append(session, event, delta, on)
        return await self._append(session, event, delta, on)

    async def append_to_thread(
        self,
        thread_id: UUID,
        event: Event,
        *,
        expected_version: int | None = None,
        expected_sequence: int | None = None,
        session: SessionName | None = None,
    ) -> bool:
        """Append without a `Session` object; return False when the event was stored already.

        With an `expected_sequence` a later event of the conversation is a conflict too. With a session's name the
        task waits in `retry_queue` before it reads the session again.
        """
        item = self._item(event, state_delta(event), thread_id=thread_id, expected_version=expected_version)
        item.expected_sequence = expected_sequence
        answer = await self._submit(event, item, session)
        return answer.status == "stored"

    async def _append(
        self, session: Session, event: Event, delta: ScopedDelta, versions: StateVersions | None
    ) -> Event:
        thread_id = await self.store.find_thread(session)
        # The object may show a later version than the state that the delta was computed from.
        version = session.version if versions is None else versions.session
        expected = version if delta.is_stored else None
        item = self._item(event, delta, thread_id=thread_id, expected_version=expected)
        if versions is not None:
            # The thread's version does not cover wider scopes: other threads write them too.
            item.expected_user_version = versions.user if delta.user else None
            item.expected_app_version = versions.app if delta.app else None
        answer = await self._submit(event, item, _name_of(session))
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

    async def _submit(self, event: Event, item: AppendItem, session: SessionName | None) -> AppendAnswer:
        try:
            answer = await self._batcher.submit(item)
            if answer.status != "stored":
                await self._raise_refusal(answer, item)
        except ConcurrencyConflictError:
            if session is not None:
                self.retry_queue.note_conflict(session, writes=item.order_key)
            raise
        except BaseException:
            self.retry_queue.release(session)
            raise
        self.retry_queue.release(session)
        event.id = item.event_id
        event.thread_id = str(item.thread_id)
        event.created_at = answer.created_at
        event.sequence_num = answer.sequence_num
        event.version = answer.version
        return answer

    async def _raise_refusal(self, answer: AppendAnswer, item: AppendItem) -> None:
        """Raise the error of a status; return when the stored event is the one that was sent."""
        match answer.status:
            case "missing":
                raise NotFoundError(f"there is no thread {item.thread_id}; it was deleted or never created")
            case "fenced":
                raise LeaseLostError("this attempt no longer holds its run; nothing was stored; stop executing it")
            case "conflict":
                self.conflicts += 1
                raise ConcurrencyConflictError(
                    "" if item.expected_version != answer.version else _OTHER_CONFLICT,
                    expected=item.expected_version,
                    actual=answer.version,
                )
            case "duplicate":
                stored = await self.log.find(item.thread_id, item.event_id)
                if stored is None:
                    raise NotFoundError(f"there is no thread {item.thread_id}; it was deleted concurrently")
                if not same_event(item, stored):
                    raise DuplicateEventError(
                        f"event {item.event_id!r} is already in the thread, with another content; the stored event "
                        "is unchanged; send the new one with an id of its own"
                    )

    # State

    async def update(
        self,
        session: Session,
        change: Mapping[str, Any] | StateFunction,
        *,
        author: str = "system",
        run_id: str | None = None,
        max_retries: int = 50,
    ) -> Session:
        """Change state by a delta, or by a function of the fresh state that returns one; retry after conflicts.

        With a function the change is exact, in every scope that it writes: N concurrent increments end at N. Tasks of
        this process queue per thread, so that most conflicts come from other processes.
        """
        if max_retries < 1:
            raise InvalidInputError("max_retries must be at least 1")
        thread_id = await self.store.find_thread(session)
        async with self._thread_locks.acquire(thread_id):
            self._copy_newest(session, thread_id)
            try:
                await self._update(session, change, author=author, run_id=run_id, max_retries=max_retries)
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
        *,
        author: str,
        run_id: str | None,
        max_retries: int,
    ) -> None:
        for attempt in range(max_retries):
            # Read before the function runs: other tasks may update the object while it does.
            versions = StateVersions.of(session) if callable(change) else None
            if callable(change):
                # A copy: the session changes with the commit only.
                result = change(copy.deepcopy(session.state))
                delta = await result if inspect.isawaitable(result) else result
            else:
                delta = change
            event = _state_update(
                session, check_keys("a change of state", delta), author=author, invocation_id=str(new_id())
            )
            event.run_id = run_id
            try:
                await self.append_event(session, event, on=versions)
                return
            except ConcurrencyConflictError:
                if attempt == max_retries - 1:
                    raise
            self.retries += 1
            await asyncio.sleep(random.uniform(0, 0.002 * min(2**attempt, 64)))  # noqa: S311 - jitter
            await self.refresh(session)

    def _copy_newest(self, session: Session, thread_id: UUID) -> None:
        """Copy the state that the previous task in the queue has stored, which saves a conflict."""
        newest = self._newest.get(thread_id)
        if newest is not None and newest.version > session.version:
            session.state = newest.state | only_temp(session.state)
            session.version = newest.version
            session.user_version, session.app_version = newest.user_version, newest.app_version
            session.last_sequence = max(session.last_sequence, newest.last_sequence)
            session.updated_at = newest.updated_at

    @asynccontextmanager
    async def invocation(
        self, session: Session, *, author: str = "system", invocation_id: str | None = None
    ) -> AsyncIterator[Overlay]:
        """Yield an overlay whose pending changes are committed as one event at the end, or dropped after an exception.

        Raises `ConcurrencyConflictError` when the state of the session, or of a wider scope that is written, was
        changed since, or when another task on this object changed a value that was read.
        """
        if not StateVersions.of(session).are_known(_WIDER_SCOPES):
            await self.refresh(session)
        overlay = Overlay(session, invocation_id=invocation_id or str(new_id()))
        began = session.version
        try:
            yield overlay
        except BaseException:
            overlay.discard()
            raise
        if overlay.pending:
            event = _state_update(session, overlay.pending, author=author, invocation_id=overlay.invocation_id)
            if not StateVersions.of(session).are_known(state_delta(event)):
                await self.refresh(session)
            # There is no await between here and the append: these are the versions of the values compared.
            if not overlay.reads_are_current():
                raise ConcurrencyConflictError(expected=began, actual=session.version)
            await self.append_event(session, event, on=StateVersions.of(session))
            overlay.discard()
        # `temp:` keys live as long as the invocation.
        session.state = without_temp(session.state)

    # Reading

    async def events(self, session: Session, *, after: int = 0, limit: int = 1000) -> Events:
        """Return events after a sequence number, oldest first. The list also ends at `COGNIZES_PAGE_BYTES`, but is
        empty only at the end of the thread; `iterate_events` yields all."""
        return await self.log.read(await self.store.find_thread(session), after=after, limit=limit)

    async def iterate_events(self, session: Session, *, after: int = 0) -> AsyncIterator[Event]:
        """Yield all events after a sequence number, oldest first, with one page of them in memory at a time."""
        thread_id = await self.store.find_thread(session)
        async for event in self.log.iterate(thread_id, after=after):
            yield event

    async def recent_events(self, session: Session, *, limit: int) -> Events:
        """Return the newest `limit` events, oldest first, or fewer that fit into `COGNIZES_PAGE_BYTES`."""
        return await self.log.recent(await self.store.find_thread(session), limit=limit)

    async def messages(
        self, session: Session, *, after: int = 0, at_sequence: int | None = None, limit: int = 1000
    ) -> Conversation:
        """Return the messages, oldest first; with `at_sequence` those up to that event. The list also ends at
        `COGNIZES_PAGE_BYTES`, but is empty only at the end: continue `after` the last `sequence_num`."""
        thread_id = await self.store.find_thread(session)
        return await self.message_log.read(thread_id, after=after, up_to=at_sequence, limit=limit)

    async def at(self, session: Session, *, sequence: int | None = None, version: int | None = None) -> PastState:
        return await self.time_travel.at(await self.store.find_thread(session), sequence=sequence, version=version)

    async def snapshot(self, session: Session) -> int:
        """Store the present state as a starting point for replays; return its version."""
        return await self.time_travel.snapshot(await self.store.find_thread(session))


def _name_of(session: Session) -> SessionName:
    return session.app_name, session.user_id, session.id


def _state_update(session: Session, delta: JsonObject, *, author: str, invocation_id: str) -> Event:
    return Event(
        id="",
        thread_id=session.thread_id,
        invocation_id=invocation_id,
        author=author,
        event_type="state_update",
        actions={"state_delta": delta},
    )


def _advance(
    session: Session, event: Event, delta: ScopedDelta, answer: AppendAnswer, versions: StateVersions | None
) -> None:
    """Apply a stored event to the session object, if the object showed the version before it."""
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
    """Return the version of a wider scope after an append: known only if the append expected the one shown."""
    return shown + 1 if expected == shown else -1
