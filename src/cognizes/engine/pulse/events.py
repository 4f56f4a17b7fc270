"""Events, their messages and the state they change: validation, scopes, the items to append, pages read back."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final, Self
from uuid import UUID

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.documents import (
    canonical_json,
    check_depth,
    dump_json,
    dump_jsonb,
    escape_text,
    load_json,
    load_jsonb,
    text_bytes,
    unescape_text,
)
from cognizes.engine.errors import InvalidInputError, LimitExceededError
from cognizes.engine.models import (
    DELETE,
    MAX_NAME_BYTES,
    MAX_TEXT_LENGTH,
    Event,
    JsonObject,
    Message,
    Session,
    TokenUsage,
    is_delete,
    new_id,
)
from cognizes.engine.pulse.group_commit import AppendItem
from cognizes.engine.settings import Settings

STREAMED_KINDS: Final = frozenset({"text_start", "text_delta", "text_end", "thought_delta"})
"""Kinds that `streams/` carries. They are never stored as events, so a thousand tokens become one message."""
SNAPSHOT_PREFIX: Final = "memory_snapshot/"
"""The prefix of the id of an event that restores a memory snapshot. No other event may have such an id."""
SESSION = "session"
USER = "user"
APP = "app"
TEMP = "temp"

ROLES = ("user", "assistant", "tool", "system")
_ROLE_OF_KIND = {
    "user_message": "user",
    "assistant_message": "assistant",
    "system_message": "system",
    "observe": "tool",
    "tool_result": "tool",
}
_ROLE_OF_AUTHOR = {"user": "user", "tool": "tool", "system": "system"}
_ROLE_OF_NAME = {**{role: role for role in ROLES}, "model": "assistant"}
_SCOPES = {"user": USER, "app": APP, "temp": TEMP}
_ABSENT = object()
_PAGE = 500
_END_OF_THREAD = 2**63 - 1
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

_LARGEST_COUNT = 2**53 - 1


def check_name(what: str, value: object) -> str:
    """Refuse a value that cannot be an index key: not text, blank, too long, or with NUL or lone surrogates."""
    text = check_text(what, value)
    if not text.strip():
        raise InvalidInputError(f"{what} is blank; give it a name")
    if text_bytes(text) > MAX_NAME_BYTES:
        raise InvalidInputError(f"{what} is longer than {MAX_NAME_BYTES} bytes; shorten it")
    return text


def check_text(what: str, value: object, *, longest: int = MAX_TEXT_LENGTH) -> str:
    """Refuse a value that a text column cannot store, or that is too long."""
    if not isinstance(value, str):
        raise InvalidInputError(f"{what} must be text, not {type(value).__name__}")
    if len(value) > longest:
        raise LimitExceededError(what, size=len(value), limit=longest, unit="characters")
    # Python knows whether a text is ASCII, nearly always, and finds one character faster than a pattern.
    if "\0" in value if value.isascii() else _UNSTORABLE.search(value):
        raise InvalidInputError(f"{what} holds a NUL character or a lone surrogate; remove it")
    return value


def check_object(what: str, value: object) -> JsonObject:
    if not isinstance(value, dict):
        raise InvalidInputError(f"{what} must be an object, not {type(value).__name__}")
    return value


def check_keys(what: str, value: object) -> JsonObject:
    # `dict` first: the check of an abstract class takes longer.
    if not isinstance(value, (dict, Mapping)) or not all(isinstance(key, str) for key in value):
        raise InvalidInputError(f"{what} must be an object with text keys")
    return dict(value)


def message_role(event: Event) -> str | None:
    """Return the role of a message; None for an event that is not a message.

    An author that is not a role is the name of an agent: only callers that may write for agents store one. The event
    of an end user has the author `user`.
    """
    if event.event_type == "message":
        role = event.content.get("role")
        known = _ROLE_OF_NAME.get(role) if isinstance(role, str) else None
        return known or _ROLE_OF_AUTHOR.get(event.author, "assistant")
    return _ROLE_OF_KIND.get(event.event_type)


def check_role(event: Event) -> None:
    """Refuse a `message` whose content names a role that does not exist."""
    role = event.content.get("role")
    if event.event_type != "message" or role is None or "adk" in event.content:
        return
    if not isinstance(role, str) or role not in _ROLE_OF_NAME:
        raise InvalidInputError(f"content.role {role!r:.80} does not exist; use one of {', '.join(_ROLE_OF_NAME)}")


def message_text(content: JsonObject) -> str | None:
    """Return the text of a content: `text`, `content` or `observation` as a string, or the text of its `parts`."""
    for key in ("text", "content", "observation"):
        if isinstance(value := content.get(key), str):
            return value
    parts = content.get("parts", content.get("content"))
    if not isinstance(parts, list):
        return None
    texts = [text for part in parts if isinstance(text := spoken_text(part), str)]
    return "".join(texts) if texts else None


def spoken_text(part: Any) -> Any:
    """Return the text of a part; None for a thought, which is stored in the event and not in the message."""
    return part.get("text") if isinstance(part, dict) and not part.get("thought") else None


def parse_state_prefix(key: str) -> tuple[str, str]:
    """Return the scope and the bare key: `("user", "language")` for `"user:language"`, else the session's scope."""
    prefix, colon, bare_key = key.partition(":")
    scope = _SCOPES.get(prefix) if colon else None
    return (SESSION, key) if scope is None else (scope, bare_key)


@dataclass(slots=True)
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
    for key, value in delta.items():
        if ":" not in key:
            scoped.session[key] = value
            continue
        scope, bare_key = parse_state_prefix(key)
        part: JsonObject = getattr(scoped, scope)
        part[bare_key] = value
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


def state_delta(event: Event) -> ScopedDelta:
    delta = check_object("actions", event.actions).get("state_delta")
    return split_delta(check_keys("state_delta", delta)) if delta is not None else ScopedDelta()


def append_item(
    event: Event, delta: ScopedDelta, *, thread_id: UUID, expected_version: int | None, max_bytes: int, max_depth: int
) -> AppendItem:
    """Return the item for the batcher. All checks that need no database are made here."""
    event_type = check_name("event_type", event.event_type)
    if event_type in STREAMED_KINDS:
        raise InvalidInputError(
            f"{event_type} is streamed and never stored as an event; send the text with engine.stream_message or "
            "POST /contexts/{id}/messages/stream, which store the whole message at its end"
        )
    content, actions = check_object("content", event.content), check_object("actions", event.actions)
    if delta.temp:
        actions = {**actions, "state_delta": without_temp(actions["state_delta"])}
    check_role(event)
    role = message_role(event)
    text = message_text(content) if role else None
    event_id = check_text("event id", event.id) or str(new_id())
    if event_id.startswith(SNAPSHOT_PREFIX):
        raise InvalidInputError(f"event ids that begin with {SNAPSHOT_PREFIX!r} are those of restored memory snapshots")
    item = AppendItem(
        thread_id=thread_id,
        event_id=event_id,
        run_id=check_name("run_id", event.run_id) if event.run_id else None,
        invocation_id=check_text("invocation_id", event.invocation_id),
        author=check_text("author", event.author),
        event_type=event_type,
        content=dump_json(content),
        actions=dump_json(actions),
        delta=dump_jsonb(delta.session) if delta.session else None,
        user_delta=dump_jsonb(delta.user) if delta.user else None,
        app_delta=dump_jsonb(delta.app) if delta.app else None,
        expected_version=expected_version,
        role=role if text is not None else None,
        text=escape_text(text) if text is not None else None,
        message_id=_message_id(event) or event_id,
        may_be_resent=bool(event.id),
        size=0,
        usage=dump_usage(event.usage) if event.usage is not None else None,
    )
    check_depth(item.content, content, max_depth)
    check_depth(item.actions, actions, max_depth)
    written = (item.event_id, item.invocation_id, item.author, item.content, item.actions)
    item.size = sum(map(text_bytes, written))
    if item.size > max_bytes:
        raise LimitExceededError("the event", size=item.size, limit=max_bytes, setting="COGNIZES_MAX_EVENT_BYTES")
    return item


@dataclass(frozen=True)
class EventColumns:
    """The columns of new events, one list each, in the order of the arguments of the SQL functions."""

    ids: list[str]
    authors: list[str]
    kinds: list[str]
    contents: list[str]
    roles: list[str | None]
    texts: list[str | None]
    message_ids: list[str | None]

    def arguments(self) -> tuple[list[str] | list[str | None], ...]:
        return self.ids, self.authors, self.kinds, self.contents, self.roles, self.texts, self.message_ids


def event_columns(events: Iterable[Event], settings: Settings) -> EventColumns:
    """Return the columns of events, after the checks of every append: names, depth, size."""
    nowhere, no_delta = UUID(int=0), ScopedDelta()
    items = [
        append_item(
            event,
            no_delta,
            thread_id=nowhere,
            expected_version=None,
            max_bytes=settings.max_event_bytes,
            max_depth=settings.max_json_depth,
        )
        for event in events
    ]
    return EventColumns(
        ids=[item.event_id for item in items],
        authors=[item.author for item in items],
        kinds=[item.event_type for item in items],
        contents=[item.content for item in items],
        roles=[item.role for item in items],
        texts=[item.text for item in items],
        message_ids=[item.message_id for item in items],
    )


def dump_usage(usage: TokenUsage) -> str:
    """Return usage as the SQL function `record_usage` takes it; raise `InvalidInputError` for counts that are none."""
    for name, count in vars(usage).items():
        if name == "model":
            check_name("the model of usage", count)
        elif not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _LARGEST_COUNT:
            raise InvalidInputError(f"{name} is {count!r}; a count of tokens is an integer from 0 to {_LARGEST_COUNT}")
    return dump_json(vars(usage))


def _message_id(event: Event) -> str | None:
    message_id = event.content.get("message_id")
    return check_text("message_id", message_id) if isinstance(message_id, str) and message_id else None


def event_from_row(row: asyncpg.Record) -> Event:
    return Event(
        id=row["id"],
        thread_id=str(row["thread_id"]),
        invocation_id=row["invocation_id"],
        author=row["author"],
        event_type=row["event_type"],
        content=load_json(row["content"]),
        actions=load_json(row["actions"]),
        created_at=row["created_at"],
        run_id=row["run_id"],
        sequence_num=row["sequence_num"],
        version=row["version"],
    )


@dataclass(frozen=True)
class EventPage:
    """A page of events and its size in bytes. `has_more` refers to the direction of paging."""

    events: list[Event]
    has_more: bool
    size: int


async def read_event_page(
    database: Database, query: str, thread_id: UUID, *arguments: object, limit: int, max_bytes: int | None = None
) -> EventPage:
    """Return a page of a query for events, in the order of the query, bounded by a number and by bytes."""
    page = await database.fetch_page(
        query, thread_id, *arguments, limit=limit, whole="read_events_at", owner=(thread_id,), max_bytes=max_bytes
    )
    return EventPage([event_from_row(row) for row in page.rows], page.has_more, sum(row["bytes"] for row in page.rows))


class EventLog:
    """Reads the events of a thread, in pages of at most `limit` events and `COGNIZES_PAGE_BYTES` bytes.

    A page that is not empty may be shorter than `limit`: `has_more` says whether there is more.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def page_bytes(self) -> int:
        return self._database.page_bytes

    async def read(self, thread_id: UUID, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return (await self.read_page(thread_id, after=after, limit=limit)).events

    async def read_page(self, thread_id: UUID, *, after: int = 0, limit: int = 1000) -> EventPage:
        return await read_event_page(self._database, "read_events", thread_id, after, limit=limit)

    async def iterate(self, thread_id: UUID, *, after: int = 0) -> AsyncIterator[Event]:
        """Yield all events after a sequence number, oldest first, with one page in memory at a time."""
        async for page in self.iterate_pages(thread_id, after=after):
            for event in page.events:
                yield event

    async def iterate_pages(
        self, thread_id: UUID, *, after: int = 0, only_shown: bool = False
    ) -> AsyncIterator[EventPage]:
        """Yield pages of events after a sequence number; with `only_shown` only events of the active branch."""
        query = "read_shown_events" if only_shown else "read_events"
        has_more = True
        while has_more:
            page = await read_event_page(self._database, query, thread_id, after, limit=_PAGE)
            if not page.events:
                return
            after, has_more = page.events[-1].sequence_num or 0, page.has_more
            yield page

    async def recent(self, thread_id: UUID, *, limit: int) -> list[Event]:
        return (await self.recent_page(thread_id, limit=limit)).events

    async def recent_page(
        self, thread_id: UUID, *, limit: int, before: int | None = None, only_shown: bool = False
    ) -> EventPage:
        """Return the newest `limit` events, or the newest before a sequence number, oldest first; with `only_shown`
        only events of the active branch."""
        end = _END_OF_THREAD if before is None else before
        query = "read_recent_shown_events" if only_shown else "read_recent_events"
        page = await read_event_page(self._database, query, thread_id, end, limit=limit)
        return EventPage(page.events[::-1], page.has_more, page.size)

    async def find_wait_for_person(self, thread_id: UUID) -> tuple[set[str], int] | None:
        """Return the newest question to a person that is open: the keys it waits for, and the sequence number."""
        row = await self._database.fetch_row("find_wait_for_person", thread_id)
        return (set(row["wait_key"].split(",")), row["sequence_num"]) if row else None

    async def calls_after_user(self, thread_id: UUID, *, before: int, limit: int) -> list[Event]:
        """Return the newest tool calls, results and answers between the last text of the user and a sequence number,
        oldest first."""
        page = await read_event_page(self._database, "read_calls_after_user", thread_id, before, limit=limit)
        return page.events[::-1]

    async def find_page(self, thread_id: UUID, event_ids: list[str]) -> EventPage:
        """Return events by their ids, in the order of the ids, without unknown ones."""
        return await read_event_page(self._database, "find_events", thread_id, event_ids, limit=len(event_ids) or 1)

    async def find(self, thread_id: UUID, event_id: str) -> Event | None:
        row = await self._database.fetch_row("read_event", thread_id, event_id)
        return event_from_row(row) if row else None


def same_event(item: AppendItem, stored: Event) -> bool:
    """Return whether a resent event equals the stored one; the order of keys does not matter."""
    return (
        stored.author == item.author
        and stored.event_type == item.event_type
        and stored.invocation_id == item.invocation_id
        and stored.run_id == item.run_id
        and canonical_json(stored.content) == canonical_json(load_json(item.content))
        and canonical_json(stored.actions) == canonical_json(load_json(item.actions))
    )


@dataclass(frozen=True)
class MessagePage:
    messages: list[Message]
    has_more: bool


class Messages:
    """Reads the messages of a thread, in pages of at most `limit` messages and `COGNIZES_PAGE_BYTES` bytes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(
        self, thread_id: UUID, *, after: int = 0, up_to: int | None = None, limit: int = 1000
    ) -> list[Message]:
        return (await self.read_page(thread_id, after=after, up_to=up_to, limit=limit)).messages

    async def read_page(
        self, thread_id: UUID, *, after: int = 0, up_to: int | None = None, limit: int = 1000
    ) -> MessagePage:
        """Return messages, oldest first; with `up_to` those up to that event."""
        end = _END_OF_THREAD if up_to is None else up_to
        page = await self._database.fetch_page(
            "read_messages", thread_id, after, end, limit=limit, whole="read_messages_at", owner=(thread_id,)
        )
        return MessagePage([_message(row) for row in page.rows], page.has_more)


def _message(row: asyncpg.Record) -> Message:
    return Message(
        id=row["id"],
        thread_id=str(row["thread_id"]),
        event_id=row["event_id"],
        sequence_num=row["sequence_num"],
        role=row["role"],
        content=unescape_text(row["content"]),
        metadata=load_jsonb(row["metadata"]),
        created_at=row["created_at"],
    )
