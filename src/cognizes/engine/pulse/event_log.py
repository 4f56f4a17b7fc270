"""Events: from the caller's object to the database's row and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
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
    text_bytes,
)
from cognizes.engine.errors import InvalidInputError, LimitExceededError
from cognizes.engine.models import MAX_NAME_BYTES, MAX_TEXT_LENGTH, Event, JsonObject, new_id
from cognizes.engine.pulse.append_batcher import AppendItem
from cognizes.engine.pulse.messages import check_role, message_role, message_text
from cognizes.engine.pulse.scopes import ScopedDelta, split_delta, without_temp

STREAMED_KINDS: Final = frozenset({"text_start", "text_delta", "text_end", "thought_delta"})
"""Seed 002's names for what goes through `streams/`. No way in stores them, so a thousand tokens leave one message."""

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def check_name(what: str, value: object) -> str:
    """Refuses what cannot stand in an index key: not text, empty, too long, or with NUL or lone surrogates."""
    text = check_text(what, value)
    if not text.strip():
        raise InvalidInputError(f"{what} is blank; give it a name")
    if len(text.encode()) > MAX_NAME_BYTES:
        raise InvalidInputError(f"{what} is longer than {MAX_NAME_BYTES} bytes; shorten it")
    return text


def check_text(what: str, value: object, *, longest: int = MAX_TEXT_LENGTH) -> str:
    """Refuses what a text column cannot hold, and what is too long."""
    if not isinstance(value, str):
        raise InvalidInputError(f"{what} must be text, not {type(value).__name__}")
    if len(value) > longest:
        raise LimitExceededError(what, size=len(value), limit=longest, unit="characters")
    if _UNSTORABLE.search(value):
        raise InvalidInputError(f"{what} holds a NUL character or a lone surrogate; remove it")
    return value


def check_object(what: str, value: object) -> JsonObject:
    """Refuses what is not a JSON object."""
    if not isinstance(value, dict):
        raise InvalidInputError(f"{what} must be an object, not {type(value).__name__}")
    return value


def check_keys(what: str, value: object) -> JsonObject:
    """Refuses what is not an object with text keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInputError(f"{what} must be an object with text keys")
    return dict(value)


def state_delta(event: Event) -> ScopedDelta:
    """The event's state delta, taken apart by scope."""
    delta = check_object("actions", event.actions).get("state_delta")
    return split_delta(check_keys("state_delta", delta)) if delta is not None else ScopedDelta()


def append_item(
    event: Event,
    delta: ScopedDelta,
    *,
    thread_id: UUID,
    expected_version: int | None,
    max_bytes: int,
    max_depth: int,
) -> AppendItem:
    """The item for the batcher. Checks everything that can be checked without the database."""
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
    )
    check_depth(item.content, content, max_depth)
    check_depth(item.actions, actions, max_depth)
    written = (item.event_id, item.invocation_id, item.author, item.content, item.actions)
    item.size = sum(map(text_bytes, written))
    if item.size > max_bytes:
        raise LimitExceededError("the event", size=item.size, limit=max_bytes, setting="COGNIZES_MAX_EVENT_BYTES")
    return item


def _message_id(event: Event) -> str | None:
    message_id = event.content.get("message_id")
    return check_text("message_id", message_id) if isinstance(message_id, str) and message_id else None


def event_from_row(row: asyncpg.Record) -> Event:
    """An event as it was appended."""
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


class EventLog:
    """Reads the events of a thread."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, thread_id: UUID, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Oldest first, after a sequence number."""
        return [event_from_row(row) for row in await self._database.fetch("read_events", thread_id, after, limit)]

    async def read_shown(self, thread_id: UUID, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Those of the active branch, oldest first."""
        rows = await self._database.fetch("read_shown_events", thread_id, after, limit)
        return [event_from_row(row) for row in rows]

    async def recent(self, thread_id: UUID, *, limit: int) -> list[Event]:
        """The newest `limit` events, oldest first."""
        rows = await self._database.fetch("read_recent_events", thread_id, limit)
        return [event_from_row(row) for row in reversed(rows)]

    async def find(self, thread_id: UUID, event_id: str) -> Event | None:
        """One event by its id."""
        row = await self._database.fetch_row("read_event", thread_id, event_id)
        return event_from_row(row) if row else None


def same_event(item: AppendItem, stored: Event) -> bool:
    """Whether a resent event is the one that was stored, compared by value: key order does not matter."""
    return (
        stored.author == item.author
        and stored.event_type == item.event_type
        and stored.invocation_id == item.invocation_id
        and stored.run_id == item.run_id
        and canonical_json(stored.content) == canonical_json(load_json(item.content))
        and canonical_json(stored.actions) == canonical_json(load_json(item.actions))
    )
