"""OpenSessionService: ADK's session service on this engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal
from uuid import UUID

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.not_found_error import NotFoundError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session

from cognizes.engine import errors, models
from cognizes.engine.adapters.adk.events import encode_event, to_json
from cognizes.engine.adapters.adk.session_reader import (
    Revision,
    SessionCache,
    SessionKey,
    SessionReader,
    make_session,
)
from cognizes.engine.adapters.engines import SHARED_ENGINES, EngineLease, EngineUser, known_settings, parse_address
from cognizes.engine.concurrency import KeyedLock
from cognizes.engine.database.documents import load_jsonb
from cognizes.engine.engine import Engine
from cognizes.engine.models import DELETE, JsonObject, Page, is_delete
from cognizes.engine.pulse.events import check_text, without_temp
from cognizes.engine.pulse.session_store import thread_uuid

OnConflict = Literal["raise", "rebase"]
_EVERYTHING = GetSessionConfig()


@dataclass(frozen=True)
class ListedSession:
    """A session without its events, with its title, for which ADK's `Session` has no field."""

    session: Session
    title: str | None


class OpenSessionService(EngineUser, BaseSessionService):
    """Sessions of Google ADK in PostgreSQL, embedded when no URL is given.

    - Connects when first used; services with the same settings share one engine. `close()` releases it.
    - An append is one round trip, a read is one round trip and fetches only events that were not read before.
    - A failed append leaves the session and the event as they were, so it can be tried again; the same event
      delivered twice is stored once. An event without an id gets one before the first try, and keeps it.
    - `on_conflict="raise"`: a session object that is not current any more raises ADK's `StaleSessionError`, decided by
      version and sequence number. `"rebase"`: the event is appended to what is there now, its state delta merged key
      by key.
    - `cache_size` bounds the events kept decoded. Sessions that are handed out share nothing with the cache.

    Other keyword arguments are settings of the engine (`pool_size`, `db_schema`, …); those that ADK's servers hand to
    every service are ignored.
    """

    def __init__(
        self,
        database_url: str | None = None,
        *,
        uri: str | None = None,
        on_conflict: OnConflict = "raise",
        cache_size: int = 10_000,
        **settings: Any,
    ) -> None:
        """Accept `uri`, which `services.yaml` passes, as another name of `database_url`."""
        address = parse_address(database_url if database_url is not None else uri)
        options: dict[str, Any] = {"on_conflict": on_conflict, "cache_size": cache_size} | settings | address.options
        self._on_conflict = options.pop("on_conflict")
        if self._on_conflict not in ("raise", "rebase"):
            raise ValueError(f"on_conflict is 'raise' or 'rebase', not {self._on_conflict!r}")
        self._cache = SessionCache(int(options.pop("cache_size")))
        self._reader = SessionReader(self._cache)
        self._lease = EngineLease(
            SHARED_ENGINES.settings(known_settings(options, "OpenSessionService") | address.settings)
        )
        self._append_locks = KeyedLock()
        self._runs: dict[tuple[UUID, str], str] = {}
        self._listeners: dict[tuple[UUID, str], Callable[[Event], Awaitable[None]]] = {}
        self._models: dict[tuple[str, str], str] = {}

    async def flush(self) -> None:
        """Do nothing: an append returns after its commit."""

    # The interface of ADK

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Create a session; a blank id means a new one. `AlreadyExistsError` when the id is taken."""
        engine = await self.engine()
        with _adk_errors:
            created = await engine.sessions.store.create(
                app_name, user_id, state=to_json(without_temp(state or {})), session_id=_clean(session_id) or None
            )
        return _empty_session(created)

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with its events, or those that `config` selects; None when there is none."""
        engine = await self.engine()
        key = _key(app_name, user_id, session_id)
        await engine.sessions.retry_queue.acquire(key)
        session = await self._reader.read(engine._database, key, config or _EVERYTHING)
        if session is None:
            engine.sessions.retry_queue.release(key)
        return session

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return all sessions of a user, or of the app, oldest update first, without events."""
        engine = await self.engine()
        check_text("app_name", app_name)
        if user_id is not None:
            check_text("user_id", user_id)
        return ListSessionsResponse(sessions=await self._reader.list(engine._database, app_name, user_id))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session and its events, if it exists. User and app state stay."""
        engine = await self.engine()
        key = _key(app_name, user_id, session_id)
        self._cache.drop(key)
        await engine.sessions.store.delete(*key)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        engine = await self.engine()
        names = check_text("app_name", app_name), check_text("user_id", user_id)
        document = await engine._database.fetch_value("read_user_state", *names)
        state: JsonObject = load_jsonb(document or "{}")
        return state

    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event and apply its state delta, then update the session object; ignore a partial event.

        `StaleSessionError` when the object is not current, `SessionNotFoundError` when the session was deleted,
        `AlreadyExistsError` when another event has this id.
        """
        if event.partial:
            return event
        # Before the first attempt: a retry with the same object after a lost answer must send the same id.
        if not event.id:
            event.id = Event.new_id()
        engine = await self.engine()
        # Parallel agents share one session object; each must see the update of the one before.
        async with self._append_locks.acquire(id(session)):
            revision = Revision.of(session) or await self._find_revision(engine, session)
            row = encode_event(
                event,
                thread_id=str(revision.thread_id),
                run_id=self._runs.get((revision.thread_id, event.invocation_id)),
                model=self._models.get((event.invocation_id, event.author)),
            )
            is_strict = self._on_conflict == "raise"
            with _adk_errors:
                is_new = await engine.sessions.append_to_thread(
                    revision.thread_id,
                    row,
                    expected_version=revision.version if is_strict else None,
                    expected_sequence=revision.sequence if is_strict else None,
                    session=(session.app_name, session.user_id, session.id),
                )
            if is_new or all(known.id != event.id for known in session.events):
                _advance(session, event, revision, row)
        if on_stored := self._listeners.get((revision.thread_id, event.invocation_id)):
            await on_stored(event)
        return event

    async def _find_revision(self, engine: Engine, session: Session) -> Revision:
        """Return the revision of an object without one (rebuilt from JSON), which is current if its last event is."""
        head = await engine._database.fetch_row("adk_read_head", *_key(session.app_name, session.user_id, session.id))
        if head is None:
            raise SessionNotFoundError(f"Session {session.id} not found.")
        last_event_id = session.events[-1].id if session.events else None
        if self._on_conflict == "raise" and last_event_id != head["last_event_id"]:
            raise _stale()
        return Revision(head["thread_id"], head["version"], head["last_sequence"])

    # Extensions

    async def list_sessions_page(
        self, *, app_name: str, user_id: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[ListedSession]:
        """Return a page of sessions with their titles, newest activity first; `next_cursor` selects the next page."""
        engine = await self.engine()
        page = await engine.sessions.store.list(app_name, user_id, limit=limit, cursor=cursor)
        return Page(
            items=[ListedSession(_empty_session(item), item.title) for item in page.items], next_cursor=page.next_cursor
        )

    async def fork_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        at_event_id: str | None = None,
        new_session_id: str | None = None,
    ) -> Session:
        """Create a session with the same history, up to and including an event, or all of it."""
        engine = await self.engine()
        source = await self._stored(engine, app_name, user_id, session_id)
        with _adk_errors:
            fork = await engine.sessions.fork(
                source,
                at_sequence=await _sequence_of(engine, source, at_event_id) if at_event_id else None,
                session_id=_clean(new_session_id) or None,
            )
        forked = await self.get_session(app_name=app_name, user_id=user_id, session_id=fork.id)
        if forked is None:
            raise SessionNotFoundError(f"Session {fork.id} was deleted while it was being forked.")
        return forked

    async def delete_state_keys(self, *, app_name: str, user_id: str, session_id: str, keys: Iterable[str]) -> None:
        """Delete keys from the state, in the scope of their prefix, with an event in the session."""
        engine = await self.engine()
        source = await self._stored(engine, app_name, user_id, session_id)
        await engine.sessions.update(source, dict.fromkeys(keys, DELETE))

    async def set_title(self, *, app_name: str, user_id: str, session_id: str, title: str) -> None:
        """Set the title of a session; an empty one removes it."""
        engine = await self.engine()
        await engine.sessions.change(await self._stored(engine, app_name, user_id, session_id), title=title)

    async def prune_sessions(self, *, app_name: str, older_than: timedelta) -> int:
        """Delete the sessions of an app without a write for that long; return how many."""
        engine = await self.engine()
        removed: int = await engine._database.fetch_value(
            "adk_prune_sessions", check_text("app_name", app_name), older_than
        )
        return removed

    def attach_run(
        self,
        thread_id: UUID,
        invocation_id: str,
        run_id: str,
        *,
        on_stored: Callable[[Event], Awaitable[None]] | None = None,
    ) -> None:
        """Store the following events of an invocation as events of a run; see `EngineStreamPlugin`.

        `on_stored` is called for each of them, after it was stored.
        """
        self._runs[thread_id, invocation_id] = run_id
        if on_stored is not None:
            self._listeners[thread_id, invocation_id] = on_stored

    def note_model(self, invocation_id: str, author: str, model: str) -> None:
        """Name the model that an agent calls: not every model reports its name with the tokens that it used."""
        self._models[invocation_id, author] = model

    def forget_models(self, invocation_id: str) -> None:
        """Forget the models of an invocation that has ended."""
        for key in [key for key in self._models if key[0] == invocation_id]:
            del self._models[key]

    def detach_run(self, thread_id: UUID, invocation_id: str) -> None:
        """Stop assigning the events of an invocation to its run."""
        self._runs.pop((thread_id, invocation_id), None)
        self._listeners.pop((thread_id, invocation_id), None)

    async def _stored(self, engine: Engine, app_name: str, user_id: str, session_id: str) -> models.Session:
        session = await engine.sessions.store.get(*_key(app_name, user_id, session_id))
        if session is None:
            raise SessionNotFoundError(f"Session {session_id} not found.")
        return session


def _clean(session_id: str | None) -> str:
    return (session_id or "").strip()


def _key(app_name: str, user_id: str, session_id: str) -> SessionKey:
    return (
        check_text("app_name", app_name),
        check_text("user_id", user_id),
        check_text("session_id", _clean(session_id)),
    )


def _empty_session(stored: models.Session) -> Session:
    return make_session(
        (stored.app_name, stored.user_id, stored.id),
        Revision(thread_uuid(stored.thread_id), stored.version, stored.last_sequence),
        state=stored.state,
        last_update_time=stored.updated_at.timestamp() if stored.updated_at else 0.0,
    )


def _advance(session: Session, event: Event, revision: Revision, row: models.Event) -> None:
    """Apply to the objects what the commit did to the database."""
    delta = event.actions.state_delta
    has_temp = False
    for key, value in delta.items():
        has_temp = has_temp or key.startswith("temp:")
        if is_delete(value):
            session.state.pop(key, None)
        else:
            session.state[key] = value
    if has_temp:
        event.actions.state_delta = without_temp(delta)
    session.events.append(event)
    session.last_update_time = event.timestamp
    Revision(
        revision.thread_id, max(revision.version, row.version or 0), max(revision.sequence, row.sequence_num or 0)
    ).put_on(session)


async def _sequence_of(engine: Engine, session: models.Session, event_id: str) -> int | None:
    event = await engine.sessions.log.find(UUID(session.thread_id), event_id)
    if event is None:
        raise NotFoundError(f"There is no event {event_id} in session {session.id}.")
    return event.sequence_num


def _stale() -> StaleSessionError:
    return StaleSessionError(
        "The session has been modified in storage since it was loaded. "
        'Reload it before appending more events, or use on_conflict="rebase".'
    )


class _AdkErrors:
    """A context that turns errors of the engine into ADK's. A class, because every append enters it."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, errors.ConcurrencyConflictError):
            raise _stale() from error
        if isinstance(error, errors.AlreadyExistsError | errors.DuplicateEventError):
            raise AlreadyExistsError(str(error)) from error
        if isinstance(error, errors.NotFoundError):
            raise SessionNotFoundError(str(error)) from error


_adk_errors = _AdkErrors()
