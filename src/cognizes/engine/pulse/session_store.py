"""Sessions as rows: create, read, list, change, fork, delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import lru_cache, partial
from itertools import chain
from operator import attrgetter
from typing import Any
from uuid import UUID

import asyncpg
from asyncpg.pgproto.pgproto import UUID as DriverUUID  # noqa: N811

from cognizes.engine.concurrency import retry_while_unavailable
from cognizes.engine.database import Database
from cognizes.engine.database.documents import (
    check_depth,
    decode_cursor,
    dump_json,
    dump_jsonb,
    encode_cursor,
    load_jsonb,
)
from cognizes.engine.database.tenancy import Apps
from cognizes.engine.errors import AlreadyExistsError, ConflictError, InvalidInputError, NotFoundError
from cognizes.engine.models import JsonObject, Page, PastState, Session, new_id, new_thread_id, slot_of, user_slot
from cognizes.engine.pulse.events import (
    apply_delta,
    check_keys,
    check_name,
    check_object,
    check_text,
    join_state,
    split_delta,
)
from cognizes.engine.pulse.group_commit import GroupCommit, as_columns
from cognizes.engine.settings import Settings


@dataclass(slots=True)
class _NewSession:
    thread_id: UUID
    app_name: str
    user_id: str
    session_id: str
    title: str | None
    metadata: str | None
    state: str | None
    user_delta: str | None
    app_delta: str | None
    size: int
    apps: Apps | None = None

    @property
    def tenant_key(self) -> Apps | None:
        return self.apps

    @property
    def order_key(self) -> int:
        return self.thread_id.int

    @property
    def identity(self) -> int:
        return self.thread_id.int


@dataclass(slots=True, frozen=True)
class SessionAppend:
    """Events for a session, by its name: all are stored or none. `columns` are those of the query `append_to_sessions`.

    `new_id` is the id of the thread if the session does not exist. `may_be_resent`: the events may be stored already.
    """

    session: tuple[str, str, str]
    new_id: UUID
    columns: Sequence[Sequence[str | None]]
    run_id: str | None = None
    may_be_resent: bool = False
    fence: tuple[str | None, int | None] = (None, None)
    apps: Apps | None = None
    size: int = field(init=False)

    def __post_init__(self) -> None:
        size = sum(len(value) for column in self.columns for value in column if value is not None)
        object.__setattr__(self, "size", size)

    @property
    def order_key(self) -> tuple[str, str, str]:
        return self.session

    @property
    def identity(self) -> str | None:
        return self.columns[0][0]

    @property
    def tenant_key(self) -> Apps | None:
        return self.apps


_fields = attrgetter(*(field.name for field in fields(_NewSession) if field.name not in ("size", "apps")))
_POOL_SIZE_FOR_TWO_SENDERS = 6
_Batch = list[_NewSession]
_Rows = list[asyncpg.Record | None]
_Fetch = Callable[..., Awaitable[list[asyncpg.Record]]]


def session_from_row(row: asyncpg.Record) -> Session:
    return Session(
        id=row["session_id"],
        app_name=row["app_name"],
        user_id=row["user_id"],
        state=join_state(*(load_jsonb(row[name] or "{}") for name in ("state", "user_state", "app_state"))),
        version=row["version"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        thread_id=str(row["id"]),
        last_sequence=row["last_sequence"],
        title=row["title"],
        metadata=load_jsonb(row["metadata"]),
        user_version=row["user_version"],
        app_version=row["app_version"],
    )


@lru_cache(maxsize=4096)
def thread_uuid(thread_id: str | UUID) -> UUID:
    """Return the UUID of a thread; `NotFoundError` for a text that is not a UUID."""
    if isinstance(thread_id, UUID):
        return thread_id
    try:
        # The UUID of the driver computes its text and its hash once, and is encoded faster.
        return DriverUUID(UUID(thread_id).bytes)
    except ValueError:
        raise NotFoundError(f"there is no thread {thread_id!r}; a thread id is a UUID") from None


class SessionStore:
    """Sessions in the database. Creating, and appending by name, go through group commit."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        # A small pool sends one batch at a time: readers and appends need connections too.
        senders = 2 if database.pool.get_max_size() >= _POOL_SIZE_FOR_TWO_SENDERS else 1
        self._creations: GroupCommit[_NewSession, asyncpg.Record] = GroupCommit(*[self._send] * senders)
        self._appends: GroupCommit[SessionAppend, asyncpg.Record] = GroupCommit(
            partial(self._send_appends, fetch=database.fetch_batch, wait=False),
            blocking_sender=partial(self._send_appends, fetch=database.fetch, wait=True),
        )

    async def close(self) -> None:
        """Refuse new sessions and events, and return when all submitted ones have been answered."""
        await self._creations.close()
        await self._appends.close()

    async def append(self, events: SessionAppend) -> asyncpg.Record:
        """Append events to a session, which is created if it does not exist, in a transaction shared with other tasks.

        Return the row of `append_to_sessions`. `DatabaseUnavailableError` when the events may or may not be stored.
        """
        if (apps := self._database.acting_apps) != events.apps:
            events = replace(events, apps=apps)
        return await self._appends.submit(events)

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
        """Create a session at version 1. Prefixed keys are stored in their scopes; `temp:` keys only on the object."""
        thread_id = new_thread_id(user_slot(check_name("app_name", app_name), check_name("user_id", user_id)))
        metadata = check_object("metadata", metadata if metadata is not None else {})
        delta = split_delta(check_keys("state", state if state is not None else {}))
        # DELETE has no effect on the new scopes; in wider scopes the key may exist.
        delta.session, delta.temp = apply_delta({}, delta.session), apply_delta({}, delta.temp)
        has_name = session_id is not None and check_text("session_id", session_id).strip()
        new = _NewSession(
            thread_id=thread_id,
            app_name=app_name,
            user_id=user_id,
            session_id=session_id if has_name and session_id else str(thread_id),
            title=check_text("title", title) if title else None,
            metadata=dump_jsonb(metadata) if metadata else None,
            state=dump_jsonb(delta.session) if delta.session else None,
            user_delta=dump_jsonb(delta.user) if delta.user else None,
            app_delta=dump_jsonb(delta.app) if delta.app else None,
            size=200,
            apps=self._database.acting_apps,
        )
        for text, value in (
            (new.metadata, metadata),
            (new.state, delta.session),
            (new.user_delta, delta.user),
            (new.app_delta, delta.app),
        ):
            if text is not None:
                check_depth(text, value, self._settings.max_json_depth)
                new.size += len(text)
        row = await self._creations.submit(new)
        if row["thread_id"] != thread_id:
            raise AlreadyExistsError(f"session {new.session_id!r} exists already; choose another id or get it")
        user_state, app_state = row["user_state"], row["app_state"]
        wider = load_jsonb(user_state) if user_state else {}, load_jsonb(app_state) if app_state else {}
        return Session(
            id=new.session_id,
            app_name=app_name,
            user_id=user_id,
            state=join_state(delta.session, *wider) | {f"temp:{key}": value for key, value in delta.temp.items()},
            created_at=row["created_at"],
            updated_at=row["created_at"],
            thread_id=str(thread_id),
            title=new.title,
            metadata=dict(metadata),
            user_version=row["user_version"] or 0,
            app_version=row["app_version"] or 0,
        )

    async def get(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        names = [
            check_text(name, value)
            for name, value in (("app_name", app_name), ("user_id", user_id), ("session_id", session_id))
        ]
        row = await self._database.fetch_row("read_session", *names)
        return session_from_row(row) if row else None

    async def get_thread(self, thread_id: str | UUID) -> Session:
        """Return a session by its thread id; `NotFoundError` if there is none."""
        row = await self._database.fetch_row("read_thread", thread_uuid(thread_id))
        if row is None:
            raise NotFoundError(f"there is no thread {thread_id}")
        return session_from_row(row)

    async def find_thread(self, session: Session) -> UUID:
        """Return the thread id of a session, and store it on the object; `NotFoundError` if there is none."""
        if not session.thread_id:
            found = await self._database.fetch_value("find_thread", session.app_name, session.user_id, session.id)
            if found is None:
                raise NotFoundError(f"there is no session {session.id!r} of {session.app_name!r}, {session.user_id!r}")
            session.thread_id = str(found)
        return thread_uuid(session.thread_id)

    async def find_context(
        self, context_id: str, *, app_names: Iterable[str] | None = None, user_id: str | None = None
    ) -> UUID:
        """Return a thread by its thread id, or by a session id that only one thread has; else `ConflictError`.

        With apps or a user, only their threads count: session ids of others cause no conflict.
        """
        try:
            own: UUID | None = UUID(context_id)
        except ValueError:
            own = None
        apps = None if app_names is None else sorted(app_names)
        rows = await self._database.fetch("find_context", check_text("a context's id", context_id), own, apps, user_id)
        if len(rows) == 1:
            found: UUID = rows[0]["id"]
            return found
        if rows:
            raise ConflictError(f"several sessions are called {context_id!r}; name the one you mean by its thread id")
        raise NotFoundError(f"there is no context {context_id!r}; it is a thread's id, or a session id that is unique")

    async def list(
        self,
        app_name: str,
        user_id: str | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
        with_state: bool = True,
    ) -> Page[Session]:
        """Return a page of sessions, newest activity first. It also ends at `COGNIZES_PAGE_BYTES`."""
        if limit < 1:
            raise InvalidInputError("a page has at least one item; raise the limit")
        updated_at, thread_id = decode_cursor(cursor, read_position) if cursor else (None, None)
        page = await self._database.fetch_page(
            "list_sessions",
            check_text("app_name", app_name),
            None if user_id is None else check_text("user_id", user_id),
            updated_at,
            thread_id,
            with_state,
            limit=limit,
            whole="list_sessions_at",
            owner=(with_state,),
            key="id",
        )
        sessions = [session_from_row(row) for row in page.rows]
        return Page(items=sessions, next_cursor=encode_position(page.rows[-1]) if page.has_more and sessions else None)

    async def change(
        self, thread_id: str | UUID, *, title: str | None = None, metadata: JsonObject | None = None
    ) -> Session:
        """Set the title (empty removes it) and merge metadata, with an event."""
        if title is None and metadata is None:
            raise InvalidInputError("nothing to change; give a title or metadata")
        content: JsonObject = {} if title is None else {"title": check_text("title", title)}
        content |= {} if metadata is None else {"metadata": check_object("metadata", metadata)}
        found = await self._database.fetch_value(
            "change_session",
            thread_uuid(thread_id),
            title,
            None if metadata is None else dump_jsonb(metadata),
            str(new_id()),
            dump_json(content),
        )
        if found is None:
            raise NotFoundError(f"there is no thread {thread_id}")
        return await self.get_thread(thread_id)

    async def fork(
        self, thread_id: str | UUID, *, session_id: str | None = None, past: PastState | None = None
    ) -> Session:
        """Create a session with the past of another one, up to `past` or all of it."""
        slot = slot_of(thread_uuid(thread_id))
        if slot is None:
            origin = await self.get_thread(thread_id)
            slot = user_slot(origin.app_name, origin.user_id)
        fork_id = new_thread_id(slot)
        session_state = split_delta(past.state).session if past else None
        row = await self._database.fetch_row(
            "fork_session",
            thread_uuid(thread_id),
            fork_id,
            session_id if session_id and check_text("session_id", session_id).strip() else str(fork_id),
            past.sequence_num if past else None,
            dump_jsonb(session_state) if session_state is not None else None,
            past.version if past else None,
        )
        if row is None or row["status"] == "missing":
            raise NotFoundError(f"there is no thread {thread_id}")
        if row["status"] == "exists":
            raise AlreadyExistsError(f"session {session_id!r} exists already; choose another id")
        return await self.get_thread(fork_id)

    async def delete(self, app_name: str, user_id: str, session_id: str) -> bool:
        """Delete a session with its dependent rows; return whether it existed."""
        return await self._database.fetch_value("delete_session", app_name, user_id, session_id) is not None

    async def delete_thread(self, thread_id: str | UUID) -> bool:
        return await self._database.fetch_value("delete_thread", thread_uuid(thread_id)) is not None

    async def _send(self, batch: _Batch) -> _Rows:
        columns = as_columns(map(_fields, batch))

        async def call() -> _Rows:
            return [
                *await self._database.fetch_batch(
                    "create_sessions", *columns, self._settings.max_state_bytes, apps=batch[0].apps
                )
            ]

        return await retry_while_unavailable(call, seconds=self._settings.retry_seconds)

    async def _send_appends(self, batch: Sequence[SessionAppend], *, fetch: _Fetch, wait: bool) -> _Rows:
        # One order in all processes: the transaction keeps the locks of its threads.
        places = sorted(range(len(batch)), key=lambda place: batch[place].session)
        ordered = [batch[place] for place in places]
        heads = zip(
            *(
                (*item.session, item.new_id, len(item.columns[0]), item.run_id, item.may_be_resent, *item.fence)
                for item in ordered
            ),
            strict=True,
        )
        columns = (list(chain.from_iterable(parts)) for parts in zip(*(item.columns for item in ordered), strict=True))
        rows = await fetch("append_to_sessions", *heads, *columns, wait, apps=batch[0].apps)
        answers = dict(zip(places, rows, strict=True))
        return [None if answers[place]["status"] == "busy" else answers[place] for place in range(len(batch))]


def encode_position(row: asyncpg.Record) -> str:
    """Return the cursor of the page after the thread of a row, in a list by newest activity."""
    return encode_cursor(row["updated_at"].isoformat(), str(row["id"]))


def read_position(updated_at: str, thread_id: str) -> tuple[datetime, UUID]:
    return datetime.fromisoformat(updated_at), UUID(thread_id)
