"""The owner of memories, (app, user, agent), which every row and every query contains; and pages of memories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import asyncpg

from cognizes.engine.models import Session
from cognizes.engine.pulse.events import check_name

T = TypeVar("T")


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


@dataclass(frozen=True)
class MemoryScope:
    """The owner of memories. `agent_id` defaults to the name of the app."""

    app_name: str
    user_id: str
    agent_id: str = ""

    def __post_init__(self) -> None:
        check_name("app_name", self.app_name)
        check_name("user_id", self.user_id)
        if not self.agent_id:
            object.__setattr__(self, "agent_id", self.app_name)
        check_name("agent_id", self.agent_id)

    @classmethod
    def of(cls, session: Session, agent_id: str | None = None) -> MemoryScope:
        return cls(session.app_name, session.user_id, agent_id or "")

    @property
    def columns(self) -> tuple[str, str, str]:
        return self.app_name, self.user_id, self.agent_id
