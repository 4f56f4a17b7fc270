"""Memories: their owner (app, user, agent), which every row and query contains, what recall returns, and storing texts.

Storing splits texts into words, inserts them in batches and wakes the embedding task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Generic, TypeVar

import asyncpg

from cognizes.engine.concurrency import WakeUp
from cognizes.engine.database import Database
from cognizes.engine.database.documents import dump_json, dump_jsonb, escape_text, load_json, load_jsonb, unescape_text
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.memory.filters import MetadataValue, check_metadata, check_tags
from cognizes.engine.memory.words import index_words
from cognizes.engine.models import JsonObject, Session
from cognizes.engine.pulse.events import check_name, check_text

T = TypeVar("T")
_FIRST_DAY, _LAST_DAY = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)


@dataclass(frozen=True)
class MemoryPage(Generic[T]):
    """At most `COGNIZES_PAGE_BYTES` of a list, or one larger item, and whether there are more."""

    items: list[T]
    has_more: bool

    @classmethod
    def of(cls, rows: list[asyncpg.Record], limit: int, read: Callable[[asyncpg.Record], T]) -> MemoryPage[T]:
        """Make a page of the rows of a query whose limit was `limit + 1`."""
        has_more = bool(rows) and rows[0]["found"] > len(rows[:limit])
        return cls([read(row) for row in rows[:limit]], has_more)


def check_moment(what: str, moment: datetime) -> datetime:
    """Return a time that can be stored: with a time zone, and not at an end of the calendar.

    Programs use the first and the last time of the calendar for "none". asyncpg stores them as infinity, which has no
    age.
    """
    if moment.tzinfo is None:
        raise InvalidInputError(f"{what} needs a time zone; use an aware datetime")
    if not _FIRST_DAY <= moment < _LAST_DAY:
        raise InvalidInputError(f"{what} is {moment.isoformat()}, an end of the calendar; omit it if it is not known")
    return moment


VISIBILITIES = ("user", "agent", "app")
_SHARED_OWNERS = {"agent": "cognizes:agent", "app": "cognizes:app"}
"""The `user_id` of memories that all users of an agent or of an app share. No user has these ids in memory."""


@dataclass(frozen=True)
class MemoryScope:
    """The owner of memories. `agent_id` defaults to the name of the app.

    `app_wide` and `agent_wide` are scopes of memories that users share. They are made only by these two functions: a
    user with the id of a shared scope is refused.
    """

    app_name: str
    user_id: str
    agent_id: str = ""
    visibility: str = "user"

    def __post_init__(self) -> None:
        check_name("app_name", self.app_name)
        check_name("user_id", self.user_id)
        if not self.agent_id:
            object.__setattr__(self, "agent_id", self.app_name)
        check_name("agent_id", self.agent_id)
        if self.user_id != _SHARED_OWNERS.get(self.visibility, self.user_id):
            raise InvalidInputError(f"invalid visibility {self.visibility!r} of user {self.user_id!r}")
        if self.visibility == "user":
            check_user(self.user_id)

    @classmethod
    def of(cls, session: Session, agent_id: str | None = None) -> MemoryScope:
        return cls(session.app_name, session.user_id, agent_id or "")

    @classmethod
    def app_wide(cls, app_name: str) -> MemoryScope:
        """Return the scope of memories that all users and agents of an app share."""
        return cls(app_name, owner("", "app"), visibility="app")

    @classmethod
    def agent_wide(cls, app_name: str, agent_id: str = "") -> MemoryScope:
        """Return the scope of memories that all users of one agent share."""
        return cls(app_name, owner("", "agent"), agent_id, visibility="agent")

    @classmethod
    def stored(cls, app_name: str, user_id: str, agent_id: str) -> MemoryScope:
        """Return the scope of a stored row."""
        shared = {reserved: visibility for visibility, reserved in _SHARED_OWNERS.items()}
        return cls(app_name, user_id, agent_id, visibility=shared.get(user_id, "user"))

    @property
    def columns(self) -> tuple[str, str, str]:
        return self.app_name, self.user_id, self.agent_id


def check_user(user: str) -> str:
    """Return the id of a user. Raise `InvalidInputError` for the id of a shared scope."""
    if check_name("user", user) in _SHARED_OWNERS.values():
        raise InvalidInputError(f"the user id {user!r} is reserved for shared memories; use another one, or visibility")
    return user


def owner(user: str, visibility: str) -> str:
    """Return the `user_id` of the memories of a user, or of those that are visible to all users."""
    if visibility == "user":
        return check_user(user)
    try:
        return _SHARED_OWNERS[visibility]
    except KeyError:
        raise InvalidInputError(f"unknown visibility {visibility!r}; use {', '.join(VISIBILITIES)}") from None


_ID_DIGITS = 18


@dataclass(frozen=True)
class EventSource:
    """An event that a memory came from. `sequence_num` is None if the event is not stored, or was deleted."""

    session_id: str
    event_id: str
    thread_id: str | None = None
    sequence_num: int | None = None

    def to_json(self) -> JsonObject:
        return dict(vars(self))


def dump_sources(sources: Sequence[EventSource]) -> str | None:
    """Return the column `sources`; None without a source."""
    names = source_names(sources)
    return dump_jsonb(names) if names else None


def source_names(sources: Sequence[EventSource]) -> list[JsonObject]:
    return [
        {"session_id": check_text("session_id", one.session_id), "event_id": check_text("event_id", one.event_id)}
        for one in sources
    ]


@dataclass(frozen=True)
class MemoryRecord:
    """A stored memory. `forget` takes its `id`; `source_id` is the id given by the caller.

    `visibility` is "user", or "agent" or "app" for a memory that users share.
    """

    id: str
    agent_id: str
    kind: str
    namespace: str
    source_id: str
    session_id: str | None
    author: str | None
    text: str
    content: Any
    created_at: datetime
    tags: list[str] = field(default_factory=list)
    metadata: JsonObject = field(default_factory=dict)
    importance: float | None = None
    expires_at: datetime | None = None
    visibility: str = "user"

    def to_json(self) -> JsonObject:
        moments = {"created_at": self.created_at.isoformat(), "expires_at": None}
        if self.expires_at is not None:
            moments["expires_at"] = self.expires_at.isoformat()
        return vars(self) | moments


@dataclass(frozen=True)
class Hit:
    """A recalled memory, its score between 0 and 1, the parts of the score, and the reasons in words."""

    memory: MemoryRecord
    score: float
    scores: dict[str, float]
    why: str

    @property
    def text(self) -> str:
        return self.memory.text

    def to_json(self) -> JsonObject:
        return {**self.memory.to_json(), "score": self.score, "scores": self.scores, "why": self.why}


def record_from_row(row: asyncpg.Record, visibility: str = "user") -> MemoryRecord:
    return MemoryRecord(
        id=str(row["id"]),
        agent_id=row["agent_id"],
        kind=row["kind"],
        namespace=row["namespace"],
        source_id=row["source_id"],
        session_id=row["session_id"],
        author=unescape_text(row["author"]) if row["author"] is not None else None,
        text=unescape_text(row["text"]),
        content=load_json(row["content"]) if row["content"] is not None else None,
        created_at=row["created_at"],
        tags=row["tags"],
        metadata=load_jsonb(row["metadata"]),
        importance=row["importance"],
        expires_at=row["expires_at"],
        visibility=visibility,
    )


def memory_number(memory_id: str) -> int:
    if not memory_id.isascii() or not memory_id.isdigit() or len(memory_id) > _ID_DIGITS:
        raise InvalidInputError(f"invalid memory id {memory_id!r}; use an id that recall or list returned")
    return int(memory_id)


_BATCH = 500


@dataclass(frozen=True)
class Remembered:
    """A text to store for recall. `source_id` is an id of the caller and makes storing idempotent.

    `tags` and `metadata` are for filters, `sources` are the events that the text came from. `importance`, between 0 and
    1, raises the score. A memory is not recalled after `expires_at`, and deleted later. Of these an item that is stored
    again keeps what it does not give.
    """

    source_id: str
    text: str
    session_id: str | None = None
    position: int = 0
    author: str | None = None
    namespace: str = ""
    content: Any = None
    created_at: datetime | None = None
    tags: Sequence[str] = ()
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict)
    importance: float | None = None
    expires_at: datetime | None = None
    sources: Sequence[EventSource] = ()


class Ingest:
    """Stores memories; with `embeds`, queues them for embedding."""

    def __init__(self, database: Database, *, embeds: bool) -> None:
        self._database = database
        self.embeds = embeds
        self.wake_up = WakeUp()

    async def store(self, scope: MemoryScope, kind: str, items: Iterable[Remembered]) -> int:
        """Store new and changed items; return their number. Each batch is one transaction."""
        stored = 0
        remaining = iter(items)
        while batch := list(islice(remaining, _BATCH)):
            stored += await self._store_batch(scope, kind, batch)
        if stored:
            self.wake_up.notify()
        return stored

    async def _store_batch(self, scope: MemoryScope, kind: str, batch: Sequence[Remembered]) -> int:
        words = await index_words([f"{item.author} {item.text}" if item.author else item.text for item in batch])
        details = [_details(item) for item in batch]
        stored: int = await self._database.write_value(
            "store_memories",
            scope.app_name,
            scope.user_id,
            kind,
            [scope.agent_id] * len(batch),
            [check_text("namespace", item.namespace) for item in batch],
            [check_text("source_id", item.source_id) for item in batch],
            [None if item.session_id is None else check_text("session_id", item.session_id) for item in batch],
            [item.position for item in batch],
            [None if item.author is None else escape_text(item.author) for item in batch],
            [escape_text(item.text) for item in batch],
            words,
            [None if item.content is None else dump_json(item.content) for item in batch],
            [item.created_at for item in batch],
            self.embeds,
            details if any(detail is not None for detail in details) else None,
        )
        return stored


def _details(item: Remembered) -> str | None:
    """Return the attributes of the SQL type `memory_details`; None if the item has none of them."""
    if item.importance is not None and not 0 <= item.importance <= 1:
        raise InvalidInputError(f"invalid importance {item.importance}; it must be between 0 and 1")
    if item.created_at is not None:
        check_moment("created_at", item.created_at)
    if item.expires_at is not None and item.expires_at.tzinfo is None:
        raise InvalidInputError("expires_at needs a time zone; use an aware datetime")
    found = {
        "tags": check_tags(item.tags) or None,
        "metadata": check_metadata(item.metadata) or None,
        "importance": item.importance,
        "sources": source_names(item.sources) or None,
        "expires_at": None if item.expires_at is None else item.expires_at.isoformat(),
    }
    given = {name: value for name, value in found.items() if value is not None}
    return dump_jsonb(given) if given else None
