"""Long-term memory: facts of an agent by namespace and key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.documents import check_depth, dump_jsonb, escape_text, load_jsonb, unescape_text
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.memory.records import EventSource, Ingest, MemoryPage, MemoryScope, check_moment, dump_sources
from cognizes.engine.memory.words import index_words
from cognizes.engine.models import JsonObject
from cognizes.engine.pulse.events import check_text


@dataclass(frozen=True)
class LongTermKey:
    """The name of a fact, as stored in a snapshot."""

    namespace: str
    key: str


@dataclass(frozen=True)
class LongTermEntry:
    """A fact: a JSON value, and the text that recall searches."""

    scope: MemoryScope
    namespace: str
    key: str
    value: Any
    text: str
    created_at: datetime
    updated_at: datetime

    def to_json(self) -> JsonObject:
        return {
            "agent_id": self.scope.agent_id,
            "namespace": self.namespace,
            "key": self.key,
            "value": self.value,
            "text": self.text,
            "created_at": self.created_at.isoformat(),
            "updated_at": self.updated_at.isoformat(),
        }


@dataclass(frozen=True)
class FactVersion:
    """A value of a key, the time for which it was valid, and the events that it came from.

    `valid_until` is None for the current value.
    """

    value: Any
    text: str
    valid_from: datetime
    valid_until: datetime | None
    sources: list[EventSource] = field(default_factory=list)

    def to_json(self) -> JsonObject:
        return {
            "value": self.value,
            "text": self.text,
            "valid_from": self.valid_from.isoformat(),
            "valid_until": self.valid_until.isoformat() if self.valid_until else None,
            "sources": [{"session_id": one.session_id, "event_id": one.event_id} for one in self.sources],
        }


class LongTermMemoryStore:
    """Stores facts in `agent_long_term_memory`. A key of a namespace has one current value.

    With `keeps_history` a value that a newer one replaces stays readable, as of a time.
    """

    def __init__(self, database: Database, ingest: Ingest, *, max_depth: int, keeps_history: bool = True) -> None:
        self._database = database
        self._ingest = ingest
        self._max_depth = max_depth
        self._keeps_history = keeps_history

    async def set(
        self,
        scope: MemoryScope,
        namespace: str,
        key: str,
        value: Any,
        *,
        text: str | None = None,
        at: datetime | None = None,
        sources: Sequence[EventSource] = (),
    ) -> LongTermEntry:
        """Set a key and return the current fact.

        Recall searches `text`, by default key and value; an empty text excludes the fact from recall. `at` is the time
        from which the value is valid, by default now. A value that is older than the current one does not replace it;
        it becomes a part of the history, or extends the validity of the current value if that is equal. `sources` are
        the events that the value came from; an equal value adds its own.
        """
        if at is not None:
            check_moment("at", at)
        _check(namespace, key)
        document = dump_jsonb(value)
        check_depth(document, value, self._max_depth)
        readable = text if text is not None else describe(key, value)
        (words,) = await index_words([readable])
        row = await self._database.write_row(
            "set_long_term",
            *scope.columns,
            namespace,
            key,
            document,
            escape_text(readable),
            words,
            self._ingest.embeds,
            at,
            dump_sources(sources),
            self._keeps_history,
        )
        self._ingest.wake_up.notify()
        assert row is not None  # noqa: S101 - the function returns one row
        return _entry(scope, row)

    async def get(
        self, scope: MemoryScope, namespace: str, key: str, *, as_of: datetime | None = None
    ) -> LongTermEntry | None:
        """Return the current fact of a key, or the one that was valid at a time; None if there is none."""
        _check(namespace, key)
        if as_of is None:
            row = await self._database.fetch_row("get_long_term", *scope.columns, namespace, key)
        elif as_of.tzinfo is None:
            raise InvalidInputError("as_of needs a time zone; use an aware datetime")
        else:
            row = await self._database.fetch_row("get_long_term_as_of", *scope.columns, namespace, key, as_of)
        return _entry(scope, row) if row else None

    async def history(self, scope: MemoryScope, namespace: str, key: str, *, limit: int = 100) -> list[FactVersion]:
        """Return the values of a key, newest first, the current one included."""
        _check(namespace, key)
        if limit < 1:
            raise InvalidInputError(f"invalid limit {limit}; it must be at least 1")
        rows = await self._database.fetch("list_fact_history", *scope.columns, namespace, key, limit)
        return [
            FactVersion(
                load_jsonb(row["value"]),
                unescape_text(row["text"]),
                row["valid_from"],
                row["valid_until"],
                [EventSource(**one) for one in load_jsonb(row["sources"] or "[]")],
            )
            for row in rows
        ]

    async def get_many(self, scope: MemoryScope, keys: list[LongTermKey]) -> list[LongTermEntry]:
        """Return the facts of the keys that exist, in the order of `keys`."""
        names = [key.namespace for key in keys], [key.key for key in keys]
        return [_entry(scope, row) for row in await self._database.fetch("get_many_long_term", *scope.columns, *names)]

    async def delete(self, scope: MemoryScope, namespace: str, key: str) -> bool:
        """Delete a key, also from recall; return whether it existed."""
        _check(namespace, key)
        found: bool = await self._database.write_value("delete_long_term", *scope.columns, namespace, key)
        return found

    async def list_by_agent(
        self, scope: MemoryScope, namespace: str | None = None, *, limit: int = 100
    ) -> list[LongTermEntry]:
        """Return facts, last changed first, of one namespace or of all."""
        if limit < 1:
            raise InvalidInputError(f"invalid limit {limit}; it must be at least 1")
        rows = await self._database.fetch("list_long_term", *scope.columns, namespace, limit, 0, None)
        return [_entry(scope, row) for row in rows]

    async def read_page(
        self, scope: MemoryScope, namespace: str | None = None, *, limit: int, offset: int = 0
    ) -> MemoryPage[LongTermEntry]:
        """Return the entries of `list_by_agent` after the first `offset` that fit into a page."""
        limits = limit + 1, offset, self._database.page_bytes
        rows = await self._database.fetch("list_long_term", *scope.columns, namespace, *limits)
        return MemoryPage.of(rows, limit, lambda row: _entry(scope, row))


def describe(key: str, value: Any) -> str:
    """Return the default text of a fact: key and value."""
    readable = value if isinstance(value, str) else "" if value is None else dump_jsonb(value)
    return f"{key}: {readable}" if readable else key


def _check(namespace: str, key: str) -> None:
    check_text("namespace", namespace)
    if not check_text("key", key):
        raise InvalidInputError("key is empty; give a name")


def _entry(scope: MemoryScope, row: asyncpg.Record) -> LongTermEntry:
    return LongTermEntry(
        scope,
        row["namespace"],
        row["key"],
        load_jsonb(row["value"]),
        unescape_text(row["text"]),
        row["created_at"],
        row["updated_at"],
    )
