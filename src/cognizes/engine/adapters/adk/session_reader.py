"""Reads sessions as ADK shows them, each in one round trip, through a cache of decoded events."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Self, cast
from uuid import UUID

import asyncpg
from cachetools import LRUCache
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session

from cognizes.engine.adapters.adk.events import EventTemplate, LazyEvents, decode_event
from cognizes.engine.concurrency import SharedCalls
from cognizes.engine.database import Database
from cognizes.engine.database.documents import load_jsonb
from cognizes.engine.models import JsonObject
from cognizes.engine.pulse.events import join_state


class Revision(NamedTuple):
    """The state of a stored session that an ADK `Session` object shows: thread, version, last event.

    It is kept in the private field that ADK's `Session` has for this purpose, so it survives `model_copy`.
    """

    thread_id: UUID
    version: int
    sequence: int

    @classmethod
    def of(cls, session: Session) -> Self | None:
        """Return the revision of an object; None when it was rebuilt from JSON or comes from another service."""
        # Not by its name: the attribute access of pydantic takes a microsecond.
        marker: object = (session.__pydantic_private__ or {}).get("_storage_update_marker")
        return marker if isinstance(marker, cls) else None

    def put_on(self, session: Session) -> None:
        session._storage_update_marker = cast(Any, self)


SessionKey = tuple[str, str, str]
"""App name, user id, session id."""


@dataclass(frozen=True)
class CachedEvents:
    """The events of a thread up to a sequence number: all of them, or the newest without a gap.

    Events never change, so cached events stay valid; the thread id shows that a session was deleted and created again.
    """

    thread_id: UUID
    last_sequence: int
    is_complete: bool
    events: tuple[EventTemplate, ...]


class SessionCache:
    """The most recently read sessions, bounded by the number of their events."""

    def __init__(self, size: int) -> None:
        # A session without events counts too, or there could be any number of them.
        self._entries: LRUCache[SessionKey, CachedEvents] = LRUCache(size, lambda entry: max(len(entry.events), 1))

    def get(self, key: SessionKey) -> CachedEvents | None:
        return self._entries.get(key)

    def put(self, key: SessionKey, entry: CachedEvents) -> None:
        """Cache a session, and drop the least recently used ones when there are too many events."""
        known = self._entries.get(key)
        if (
            known
            and known.thread_id == entry.thread_id
            and known.is_complete
            and known.last_sequence > entry.last_sequence
        ):
            # A later read finished first.
            return
        self.drop(key)
        # A session that exceeds the cache would evict all others.
        if self._entries.getsizeof(entry) <= self._entries.maxsize:
            self._entries[key] = entry

    def drop(self, key: SessionKey) -> None:
        self._entries.pop(key, None)


Rows = list[asyncpg.Record]
_set = object.__setattr__
_PAUSED_FROM = 50


class SessionReader:
    """Reads sessions through a cache of their events, and lists of sessions without events.

    What of a read can be answered from the cache is known before asking, so one query brings the head, the state and
    just the events that are missing. The cache is never trusted to be current: the head always comes from the database.
    """

    def __init__(self, cache: SessionCache) -> None:
        self._cache = cache
        self._queries = SharedCalls()

    async def read(self, database: Database, key: SessionKey, config: GetSessionConfig) -> Session | None:
        """Return a session with the events that `config` selects, oldest first; None when there is none."""
        cached = _usable(self._cache.get(key), config)
        # A cached session is complete enough for any filter: everything new is fetched and filtered here.
        after_timestamp = None if cached else config.after_timestamp
        limit = config.num_recent_events if config.after_timestamp is None or not cached else None
        last_event_may_be_missing = after_timestamp is not None or limit == 0
        query = (
            "adk_read_session",
            *key,
            cached.thread_id if cached else None,
            cached.last_sequence if cached else 0,
            after_timestamp,
            limit,
            last_event_may_be_missing,
        )
        # Writers of one session that a conflict made stale read it at the same moment.
        apps = database.acting_apps
        rows = await self._queries.call((query, apps), lambda: database.fetch(*query, apps=apps))
        if not rows:
            self._cache.drop(key)
            return None
        head, *event_rows = rows
        new = self._decode(key, head["thread_id"], event_rows)
        # For a session with branches the query returns all events: cached ones may belong to another branch.
        is_branched = head["id"] is not None
        known = cached if cached and cached.thread_id == head["thread_id"] and not is_branched else None
        # A full page: there may be events between these and the cached ones.
        is_gapless = limit is None or len(new) < limit
        templates = known.events + new if known and is_gapless else new
        if not last_event_may_be_missing and (is_gapless or known is None):
            is_complete = is_gapless and (known is None or known.is_complete)
            self._cache.put(key, CachedEvents(head["thread_id"], head["last_sequence"], is_complete, templates))
        session = make_session(
            key,
            Revision(head["thread_id"], head["version"], head["last_sequence"]),
            state=_join(load_jsonb(head["state"]), head["user_state"], head["app_state"]),
            last_update_time=_last_update_time(head, templates),
        )
        chosen = _chosen(templates, config)
        # Assigned, because validation would turn it into a plain list. Events outside the cache need no copies.
        is_shared = self._cache.get(key) is not None
        session.events = LazyEvents(chosen) if is_shared else [template.event for template in chosen]
        return session

    def _decode(self, key: SessionKey, thread_id: UUID, rows: Rows) -> tuple[EventTemplate, ...]:
        """Return the events of rows, oldest first; events that a concurrent read has decoded are not decoded again."""
        latest = self._cache.get(key)
        decoded: dict[int, EventTemplate] = {}
        if rows and latest is not None and latest.thread_id == thread_id:
            for template in reversed(latest.events):
                if template.sequence < rows[-1]["sequence_num"]:
                    break
                decoded[template.sequence] = template
        with _collection_paused(len(rows)):
            return tuple(
                decoded.get(row["sequence_num"]) or EventTemplate(decode_event(row), row["sequence_num"])
                for row in reversed(rows)
            )

    async def list(self, database: Database, app_name: str, user_id: str | None) -> list[Session]:
        """Return all sessions of a user, or of the app, by their last update, without events."""
        rows = await database.fetch("adk_list_sessions", app_name, user_id)
        shared = {row["user_id"]: row["state"] for row in rows if row["thread_id"] is None}
        threads = [row for row in rows if row["thread_id"] is not None]
        # One call: the call costs more than decoding most states.
        states = load_jsonb(f"[{','.join([row['state'] for row in threads])}]")
        sessions = [
            make_session(
                (app_name, user, session_id),
                Revision(thread_id, version, sequence),
                # Shared state is decoded for every session: sessions must not share mutable values.
                state=_join(state, shared.get(user), shared.get(None)) if shared else state,
                last_update_time=time,
            )
            for (thread_id, session_id, user, version, sequence, time, _), state in zip(threads, states, strict=True)
        ]
        return sorted(sessions, key=lambda session: (session.last_update_time, session.user_id, session.id))


def _usable(cached: CachedEvents | None, config: GetSessionConfig) -> CachedEvents | None:
    """Return the cached events if, together with newer ones, they contain what `config` selects."""
    if cached is None or cached.is_complete:
        return cached
    wanted = config.num_recent_events
    is_enough = config.after_timestamp is None and wanted is not None and len(cached.events) >= wanted
    return cached if is_enough else None


def _chosen(templates: tuple[EventTemplate, ...], config: GetSessionConfig) -> tuple[EventTemplate, ...]:
    if config.after_timestamp is not None:
        templates = tuple(template for template in templates if template.event.timestamp >= config.after_timestamp)
    if config.num_recent_events is not None:
        templates = templates[max(len(templates) - config.num_recent_events, 0) :]
    return templates


def _last_update_time(head: asyncpg.Record, templates: tuple[EventTemplate, ...]) -> float:
    if head["last_event_time"] is not None:
        time: float = head["last_event_time"]
        return time
    created_at: datetime = head["thread_created_at"]
    return templates[-1].event.timestamp if templates else created_at.timestamp()


@contextmanager
def _collection_paused(events: int) -> Iterator[None]:
    """Pause the garbage collector while many events are decoded.

    Decoding allocates some twenty containers for each event and no cycles. The collector would traverse them, and now
    and then all objects of the process, dozens of times: more than the decoding itself takes. Nothing is awaited here.
    """
    if events < _PAUSED_FROM or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_GIVEN = frozenset({"id", "app_name", "user_id", "state", "last_update_time"})


def make_session(key: SessionKey, revision: Revision, *, state: JsonObject, last_update_time: float) -> Session:
    """Return a session without events. It skips the constructor: rows of the database need no validation, which takes a
    third of the time of a listing."""
    app_name, user_id, session_id = key
    session = Session.__new__(Session)
    fields = {
        "id": session_id,
        "app_name": app_name,
        "user_id": user_id,
        "state": state,
        "events": [],
        "last_update_time": last_update_time,
    }
    _set(session, "__dict__", fields)
    _set(session, "__pydantic_fields_set__", set(_GIVEN))
    _set(session, "__pydantic_extra__", None)
    _set(session, "__pydantic_private__", {"_storage_update_marker": revision})
    return session


def _join(session: JsonObject, user: str | None, app: str | None) -> JsonObject:
    return join_state(session, load_jsonb(user) if user else {}, load_jsonb(app) if app else {})
