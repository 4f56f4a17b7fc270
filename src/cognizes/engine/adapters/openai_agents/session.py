"""OpenSession: the session of the OpenAI Agents SDK on this engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import asyncpg
from agents import SessionSettings, TResponseInputItem
from agents.memory.session_settings import coerce_session_settings, resolve_session_limit

from cognizes.engine.adapters.conversations import (
    WriteAttempt,
    check_status,
    event_of_row,
    fence_arguments,
    notify_events,
    write,
)
from cognizes.engine.adapters.engines import EngineUser, lease_engine
from cognizes.engine.adapters.openai_agents.items import (
    ITEM_KINDS,
    MARK,
    event_of_item,
    is_user_item,
    item_text,
    items_of_documents,
    items_of_event,
)
from cognizes.engine.errors import InvalidInputError, NotFoundError
from cognizes.engine.models import Event, new_id
from cognizes.engine.pulse.events import EventColumns, check_name, check_text, event_columns
from cognizes.engine.pulse.session_store import SessionAppend
from cognizes.engine.settings import Settings

_ALL = 2**62
_FURTHER_ATTEMPTS = 2
Items = list[TResponseInputItem]


@dataclass(frozen=True)
class SessionBranch:
    """A branch of a session: its messages of all kinds, and those of the user."""

    branch_id: str
    message_count: int
    user_turns: int
    is_current: bool
    created_at: datetime


@dataclass(frozen=True)
class ConversationTurn:
    """A message of the user, by its number on the branch, from 1. A branch can be created from it."""

    turn: int
    content: str
    created_at: datetime | None


class OpenSession(EngineUser):
    """A session of the OpenAI Agents SDK in PostgreSQL, embedded when no URL is given.

    - It is a thread of the engine: timeline, Monitor, Signal-Pull and live feed show its messages, tool calls and
      results. `app_name` and `user_id` say whose thread it is.
    - Items come back exactly as they were added. `add_items` stores all items or none, in one round trip.
    - `pop_item` and `clear_session` remove items from the conversation and from all views of it. The event log keeps
      them; deleting the thread deletes them.
    - What other writers stored in the thread is part of the conversation. Removing a message of another framework
      removes its whole event.
    - Branches share their past. The thread has one active branch, for all processes.
    - Connects when first used; sessions with the same settings share one engine per event loop.

    Other keyword arguments are settings of the engine (`pool_size`, `db_schema`, …).
    """

    def __init__(
        self,
        session_id: str,
        database_url: str | None = None,
        *,
        app_name: str = "openai_agents",
        user_id: str = "user",
        session_settings: SessionSettings | dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        if not check_text("session_id", session_id).strip():
            raise InvalidInputError("session_id is blank; name the conversation")
        self.session_id = session_id
        self.app_name = check_name("app_name", app_name)
        self.user_id = check_name("user_id", user_id)
        self.session_settings: SessionSettings | None = (
            SessionSettings() if session_settings is None else coerce_session_settings(session_settings)
        )
        self._lease = lease_engine("OpenSession", database_url, settings)
        self._thread_id: UUID | None = None

    @property
    def _key(self) -> tuple[str, str, str]:
        return self.app_name, self.user_id, self.session_id

    # The interface of the SDK

    async def get_items(self, limit: int | None = None, branch_id: str | None = None) -> Items:
        """Return the newest `limit` items of a branch, or all, oldest first; by default of the active branch."""
        wanted = resolve_session_limit(limit, self.session_settings)
        if wanted is not None and wanted < 0:
            raise InvalidInputError(f"invalid limit {wanted}; it must not be negative")
        if wanted == 0:
            return []
        window = _ALL if wanted is None else wanted
        while True:
            number, items = await self._read_items(window, branch_id)
            # An event of another writer may hold no item, or several.
            if wanted is None or len(items) >= wanted or number < window:
                return items if wanted is None else items[-wanted:]
            window *= 2

    async def add_items(self, items: Items) -> None:
        """Append items, all or none. The session is created with its first items."""
        if not items:
            return
        engine = await self.engine()
        columns = _columns(items, engine.settings)
        fence = fence_arguments(self._thread_id)
        events = SessionAppend(self._key, new_id(), columns.arguments(), run_id=fence[0], fence=fence)

        async def attempt(state: WriteAttempt) -> asyncpg.Record:
            return await engine.sessions.store.append(
                replace(events, may_be_resent=True) if state.is_repeated else events
            )

        row = await write(engine, attempt)
        for _ in range(_FURTHER_ATTEMPTS):
            if row["status"] != "missing":
                break
            # Deleted between the two steps of the statement: the next attempt creates it.
            row = await write(engine, attempt)
        if row["status"] == "missing":
            raise NotFoundError(f"session {self.session_id!r} was deleted concurrently; add the items again")
        check_status(row["status"])
        self._thread_id = row["thread_id"]
        notify_events(engine, columns, row, run_id=fence[0])

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the newest item of the active branch and return it; None if there is none."""
        engine = await self.engine()
        while True:
            event_id = str(new_id())
            fence = fence_arguments(self._thread_id)

            async def attempt(
                _: WriteAttempt, event_id: str = event_id, fence: tuple[str | None, int | None] = fence
            ) -> asyncpg.Record | None:
                return await engine._database.fetch_row("pop_event", *self._key, ITEM_KINDS, MARK, event_id, *fence)

            row = await write(engine, attempt)
            check_status(row["status"] if row else None)
            if row is None or row["status"] is None:
                return None
            if items := items_of_event(event_of_row(row)):
                return items[-1]

    async def clear_session(self) -> None:
        """Remove all items from all branches. The event log of the thread keeps them."""
        engine = await self.engine()
        event_id = str(new_id())
        fence = fence_arguments(self._thread_id)

        async def attempt(_: WriteAttempt) -> str | None:
            return cast("str | None", await engine._database.fetch_value("clear_session", *self._key, event_id, *fence))

        check_status(await write(engine, attempt))

    # Branches

    async def create_branch_from_turn(self, turn_number: int, branch_name: str | None = None) -> str:
        """Create a branch with the items before a message of the user, make it the active one and return its name.

        `turn_number` counts the messages of the user on the active branch from 1. `NotFoundError` if there is no such
        turn, `ConflictError` if the name is taken or a run is active.
        """
        events = await self._read(_ALL, None)
        turns = [event for event in events if any(map(is_user_item, items_of_event(event)))]
        if not 1 <= turn_number <= len(turns):
            raise NotFoundError(f"there is no turn {turn_number}; the branch has {len(turns)}")
        name = f"branch_from_turn_{turn_number}_{new_id().hex[-8:]}" if branch_name is None else branch_name
        engine = await self.engine()
        thread_id = self._known_thread()
        await engine.branches.create(thread_id, name, at_sequence=(turns[turn_number - 1].sequence_num or 1) - 1)
        await engine.branches.switch(thread_id, name)
        return name

    async def create_branch_from_content(self, search_term: str, branch_name: str | None = None) -> str:
        """Create a branch from the first message of the user that contains a text."""
        for turn in await self.get_conversation_turns():
            if search_term in turn.content:
                return await self.create_branch_from_turn(turn.turn, branch_name)
        raise NotFoundError(f"no message of the user contains {search_term!r:.200}")

    async def switch_to_branch(self, branch_id: str) -> None:
        """Make a branch the active one; `NotFoundError` if there is none, `ConflictError` while a run is active."""
        engine = await self.engine()
        await engine.branches.switch(await self._find_thread(), branch_id)

    async def delete_branch(self, branch_id: str, force: bool = False) -> None:
        """Delete a branch; with `force` also the active one, after a switch to `main`.

        `ConflictError` for `main`, and for a branch from which others fork.
        """
        engine = await self.engine()
        thread_id = await self._find_thread()
        if force and (await engine.branches.get(thread_id, branch_id)).is_active:
            await engine.branches.switch(thread_id, "main")
        await engine.branches.delete(thread_id, branch_id)

    async def list_branches(self) -> list[SessionBranch]:
        """Return all branches, `main` first; none if the session does not exist."""
        engine = await self.engine()
        if not await self._read(1, None) and self._thread_id is None:
            return []
        listed = []
        for branch in await engine.branches.list(self._known_thread()):
            items = await self._all_items(branch.name)
            listed.append(
                SessionBranch(
                    branch_id=branch.name,
                    message_count=len(items),
                    user_turns=sum(map(is_user_item, items)),
                    is_current=branch.is_active,
                    created_at=branch.created_at,
                )
            )
        return listed

    async def get_conversation_turns(self, branch_id: str | None = None) -> list[ConversationTurn]:
        """Return the messages of the user on a branch, oldest first."""
        turns: list[ConversationTurn] = []
        for event in await self._read(_ALL, branch_id):
            texts = [item_text(item.get("content")) for item in items_of_event(event) if is_user_item(item)]
            if texts:
                turns.append(ConversationTurn(len(turns) + 1, texts[0] or "", event.created_at))
        return turns

    async def _all_items(self, branch_id: str) -> Items:
        return [item for event in await self._read(_ALL, branch_id) for item in items_of_event(event)]

    async def _read(self, window: int, branch_id: str | None) -> list[Event]:
        """Return the newest events of a branch that may hold items, oldest first."""
        return [event_of_row(row) for row in await self._read_rows(window, branch_id)]

    async def _read_rows(self, window: int, branch_id: str | None) -> list[asyncpg.Record]:
        engine = await self.engine()
        rows = await engine._database.fetch("read_session_items", *self._key, branch_id, ITEM_KINDS, MARK, window)
        self._thread_id = rows[0]["thread_id"] if rows else None
        return [row for row in reversed(rows) if row["sequence_num"] is not None]

    async def _read_items(self, window: int, branch_id: str | None) -> tuple[int, Items]:
        """Return the number of the newest events of a branch that may hold items, and their items, oldest first."""
        engine = await self.engine()
        row = await engine._database.fetch_row(
            "read_session_documents", *self._key, branch_id, ITEM_KINDS, MARK, window
        )
        self._thread_id = row["thread_id"] if row else None
        return (row["number"], items_of_documents(row["documents"])) if row and row["number"] else (0, [])

    async def _find_thread(self) -> UUID:
        if self._thread_id is None:
            await self._read(1, None)
        return self._known_thread()

    def _known_thread(self) -> UUID:
        if self._thread_id is None:
            raise NotFoundError(f"there is no session {self.session_id!r} yet; add items first")
        return self._thread_id


def _columns(items: Items, settings: Settings) -> EventColumns:
    """Return the columns of the items' events; `TypeError`, as the SDK's sessions raise, for what JSON cannot hold."""
    try:
        return event_columns(map(event_of_item, items), settings)
    except InvalidInputError as error:
        if isinstance(error.__cause__, TypeError):
            raise TypeError(str(error)) from error
        raise
