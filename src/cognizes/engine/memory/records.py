"""Memories as recall and lists return them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import asyncpg

from cognizes.engine.database.documents import dump_jsonb, load_json, load_jsonb, unescape_text
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.models import JsonObject
from cognizes.engine.pulse.events import check_text

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
    names = [
        {"session_id": check_text("session_id", one.session_id), "event_id": check_text("event_id", one.event_id)}
        for one in sources
    ]
    return dump_jsonb(names) if names else None


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
