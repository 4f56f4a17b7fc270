"""Store texts for recall: split them into words, insert them in batches, and wake the embedding task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

from cognizes.engine.concurrency import WakeUp
from cognizes.engine.database import Database
from cognizes.engine.database.documents import dump_json, dump_jsonb, escape_text
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.memory.filters import MetadataValue, check_metadata, check_tags
from cognizes.engine.memory.records import EventSource, MemoryScope, check_moment, source_names
from cognizes.engine.memory.words import index_words
from cognizes.engine.pulse.events import check_text

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
