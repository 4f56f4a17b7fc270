"""Memories as recall and lists return them, and the filters that choose them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg

from cognizes.engine.database.documents import load_json, unescape_text
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.models import JsonObject
from cognizes.engine.pulse.events import check_text

KINDS = ("long_term", "episodic", "turn", "note")


@dataclass(frozen=True)
class Filters:
    """Filters of a recall; None matches all. `since` is inclusive, `until` is exclusive."""

    agent: str | None = None
    kinds: Sequence[str] | None = None
    namespace: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        if unknown := set(self.kinds or ()) - set(KINDS):
            raise InvalidInputError(f"unknown kind of memory {sorted(unknown)[0]!r}; kinds are {', '.join(KINDS)}")
        for moment in (self.since, self.until):
            if moment is not None and moment.tzinfo is None:
                raise InvalidInputError("since and until need a time zone; use an aware datetime")

    @property
    def columns(self) -> tuple[Any, ...]:
        return (
            None if self.agent is None else check_text("agent", self.agent),
            None if self.kinds is None else list(self.kinds),
            None if self.namespace is None else check_text("namespace", self.namespace),
            self.since,
            self.until,
        )


@dataclass(frozen=True)
class MemoryRecord:
    """A stored memory. `forget` takes its `id`; `source_id` is the id given by the caller."""

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

    def to_json(self) -> JsonObject:
        return vars(self) | {"created_at": self.created_at.isoformat()}


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


def record_from_row(row: asyncpg.Record) -> MemoryRecord:
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
    )
