"""The owner of memories, (app, user, agent), which every row and every query contains; and pages of memories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import asyncpg

from cognizes.engine.errors import InvalidInputError
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
