"""Upkeep of memories: merge duplicates, and follow a memory to the events that it came from, and back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.documents import unescape_text
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.memory.duplicates import find_duplicates
from cognizes.engine.memory.filters import KINDS
from cognizes.engine.memory.records import EventSource, MemoryRecord, memory_number, record_from_row
from cognizes.engine.memory.scope import check_user, owner
from cognizes.engine.memory.words import off_loop
from cognizes.engine.pulse.events import check_name, check_text

_COMPARED = 10_000
"""Memories that one call compares, the newest ones."""
_COMPARED_CHARACTERS = 4000
_MERGED_KINDS = ("note", "episodic")


class Upkeep:
    """Optional work on the memories of a user. None of it needs a model."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def merge_duplicates(
        self,
        app: str,
        user: str,
        *,
        agent: str | None = None,
        kinds: Sequence[str] = _MERGED_KINDS,
        similarity: float = 0.9,
        visibility: str = "user",
    ) -> int:
        """Merge equal and near texts of one agent, kind, namespace and author; return the number of merged memories.

        The oldest stays. Recall and lists leave the others out; their rows and sources are kept, and they return when
        the oldest is deleted with its session or when their text changes. `forget` deletes all of them.
        """
        if not 0 < similarity <= 1:
            raise InvalidInputError(f"invalid similarity {similarity}; it must be above 0 and at most 1")
        if unknown := set(kinds) - set(KINDS):
            raise InvalidInputError(f"unknown kind of memory {sorted(unknown)[0]!r}; kinds are {', '.join(KINDS)}")
        scope = check_name("app", app), owner(user, visibility)
        rows = await self._database.fetch(
            "read_texts_to_merge", *scope, list(kinds), agent, _COMPARED, _COMPARED_CHARACTERS
        )
        length = sum(len(row["text"]) for row in rows)
        pairs = await off_loop(length, lambda: _find_pairs(rows, similarity))
        if not pairs:
            return 0
        duplicates, kept = [one for one, _ in pairs], [other for _, other in pairs]
        merged: int = await self._database.write_value(
            "merge_memories",
            *scope,
            [row["id"] for row in duplicates],
            [row["revision"] for row in duplicates],
            [row["id"] for row in kept],
            [row["revision"] for row in kept],
        )
        return merged

    async def sources(self, app: str, user: str, memory_id: str) -> list[EventSource]:
        """Return the events that a memory and its duplicates came from."""
        rows = await self._database.fetch("read_memory_sources", app, check_user(user), memory_number(memory_id))
        return [
            EventSource(
                row["session_id"],
                row["event_id"],
                None if row["thread_id"] is None else str(row["thread_id"]),
                row["sequence_num"],
            )
            for row in rows
        ]

    async def memories_of_event(self, app: str, user: str, *, session_id: str, event_id: str) -> list[MemoryRecord]:
        """Return the memories that came from an event: the message itself, and facts and episodes."""
        names = check_text("session_id", session_id), check_text("event_id", event_id)
        rows = await self._database.fetch("list_memories_of_event", app, check_user(user), *names)
        return [record_from_row(row) for row in rows]


def _find_pairs(rows: Sequence[asyncpg.Record], similarity: float) -> list[tuple[asyncpg.Record, asyncpg.Record]]:
    groups: dict[tuple[str | None, ...], list[asyncpg.Record]] = defaultdict(list)
    for row in reversed(rows):
        groups[row["agent_id"], row["kind"], row["namespace"], row["author"]].append(row)
    return [
        (group[duplicate], group[original])
        for group in groups.values()
        for duplicate, original in find_duplicates([unescape_text(row["text"]) for row in group], similarity).items()
    ]
