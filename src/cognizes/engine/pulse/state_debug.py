"""Inspection of a thread's state: by scope, the history of its writes, and differences between versions."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.documents import load_json, load_jsonb
from cognizes.engine.errors import NotFoundError
from cognizes.engine.models import JsonObject, PastState, is_delete
from cognizes.engine.pulse.events import APP, SESSION, TEMP, USER, parse_state_prefix, split_delta
from cognizes.engine.pulse.session_store import session_from_row
from cognizes.engine.pulse.time_travel import TimeTravel

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.:-]+")
_NEWEST = 2**63 - 1
_PAGE = 1000


@dataclass
class StateDebugInfo:
    thread_id: str
    current_state: JsonObject = field(default_factory=dict)
    state_history: list[JsonObject] = field(default_factory=list)
    prefix_breakdown: dict[str, JsonObject] = field(default_factory=dict)
    has_more: bool = False


@dataclass(frozen=True)
class StateHistoryPage:
    """A page of state changes, oldest first. `has_more` refers to the direction of paging."""

    changes: list[JsonObject]
    has_more: bool


@dataclass(frozen=True)
class StateDiff:
    added: JsonObject
    changed: dict[str, tuple[Any, Any]]
    removed: JsonObject


def group_by_prefix(state: JsonObject) -> dict[str, JsonObject]:
    scoped = split_delta(state)
    return {SESSION: scoped.session, USER: scoped.user, APP: scoped.app, TEMP: scoped.temp}


class StateDebugService:
    def __init__(self, pool: asyncpg.Pool[Any] | Database) -> None:
        self._database = pool if isinstance(pool, Database) else Database(pool)
        self._time_travel = TimeTravel(self._database)

    async def get_debug_info(
        self, thread_id: str | UUID, *, limit: int = 1000, after_version: int = 0
    ) -> StateDebugInfo:
        """Return the state of a thread and a page of its history; empty for an unknown thread."""
        info = StateDebugInfo(thread_id=str(thread_id), prefix_breakdown=group_by_prefix({}))
        try:
            key = UUID(str(thread_id))
        except ValueError:
            return info
        row = await self._database.fetch_row("read_thread", key)
        if row is not None:
            page = await self.history_page(key, after_version=after_version, limit=limit)
            info.current_state = session_from_row(row).state
            info.state_history, info.has_more = page.changes, page.has_more
            info.prefix_breakdown = group_by_prefix(info.current_state)
        return info

    async def history(self, thread_id: UUID, *, after_version: int = 0, limit: int = 1000) -> list[JsonObject]:
        return (await self.history_page(thread_id, after_version=after_version, limit=limit)).changes

    async def history_page(self, thread_id: UUID, *, after_version: int = 0, limit: int = 1000) -> StateHistoryPage:
        """Return a page of the state changes of a thread, oldest first. It also ends at `COGNIZES_PAGE_BYTES`."""
        page = await self._database.fetch_page(
            "read_state_history", thread_id, after_version, limit=limit, whole="read_events_at", owner=(thread_id,)
        )
        return StateHistoryPage([_change(row) for row in page.rows], page.has_more)

    async def iterate_history(self, thread_id: UUID, *, after_version: int = 0) -> AsyncIterator[JsonObject]:
        """Yield all state changes of a thread after a version, oldest first, with one page in memory at a time."""
        has_more = True
        while has_more:
            page = await self.history_page(thread_id, after_version=after_version)
            for change in page.changes:
                yield change
            has_more = page.has_more and bool(page.changes)
            after_version = page.changes[-1]["version"] if page.changes else after_version

    async def key_history(
        self, thread_id: UUID, key: str, *, limit: int = 1000, for_user: str | None = None
    ) -> list[JsonObject]:
        return (await self.key_history_page(thread_id, key, limit=limit, for_user=for_user)).changes

    async def key_history_page(
        self,
        thread_id: UUID,
        key: str,
        *,
        limit: int = 1000,
        before_version: int | None = None,
        for_user: str | None = None,
    ) -> StateHistoryPage:
        """Return the newest writes to a key, oldest first, at most `limit` and `COGNIZES_PAGE_BYTES`.

        For a `user:` or `app:` key they are the writes of all threads; with `for_user`, a write in a thread of another
        user has neither its thread nor its event and author.
        """
        before = _NEWEST if before_version is None else before_version
        scope, bare_key = parse_state_prefix(key)
        if scope in (USER, APP):
            return await self._wider_key_history(
                thread_id, scope, bare_key, before=before, limit=limit, for_user=for_user
            )
        found: list[JsonObject] = []
        # PostgreSQL searches the text for a plain key. Other keys have several spellings in JSON: compare them here.
        needle = f'"{key}"' if _PLAIN_KEY.fullmatch(key) else None
        room = self._database.page_bytes
        while True:
            page = await self._database.fetch_page(
                "read_key_writes",
                thread_id,
                before,
                needle,
                limit=min(limit, _PAGE),
                whole="read_events_at",
                owner=(thread_id,),
            )
            for row in page.rows:
                item = _change(row)
                if key not in item["delta"]:
                    continue
                room -= row["bytes"]
                if len(found) == limit or (found and room < 0):
                    return StateHistoryPage(found[::-1], has_more=True)
                value = item["delta"][key]
                found.append({**item, "value": None if is_delete(value) else value, "deleted": is_delete(value)})
            if not page.has_more or not page.rows:
                return StateHistoryPage(found[::-1], has_more=False)
            before = page.rows[-1]["version"]

    async def _wider_key_history(
        self, thread_id: UUID, scope: str, key: str, *, before: int, limit: int, for_user: str | None
    ) -> StateHistoryPage:
        row = await self._database.fetch_row("read_thread", thread_id)
        if row is None:
            raise NotFoundError(f"there is no thread {thread_id}")
        owner = (row["app_name"], scope, row["user_id"] if scope == USER else "", key, for_user)
        page = await self._database.fetch_page(
            "read_scope_writes", *owner, before, limit=limit, whole="read_scope_writes_at", owner=owner, key="version"
        )
        found = []
        for write in reversed(page.rows):
            value = load_jsonb(write["value"])
            found.append(
                {
                    "time": write["created_at"],
                    "value": None if is_delete(value) else value,
                    "deleted": is_delete(value),
                    "event_id": write["event_id"],
                    "thread_id": str(write["thread_id"]) if write["thread_id"] else None,
                    "sequence_num": write["sequence_num"],
                    "version": write["version"],
                    "author": write["author"],
                    "run_id": write["run_id"],
                }
            )
        return StateHistoryPage(found, page.has_more)

    async def diff(self, thread_id: UUID, from_version: int, to_version: int) -> StateDiff:
        before = await self._time_travel.at(thread_id, version=from_version)
        after = await self._time_travel.at(thread_id, version=to_version)
        return _difference(before.state, after.state)

    async def diff_event(self, thread_id: UUID, sequence: int) -> StateDiff:
        """Return the changes of one event; in wider scopes without concurrent changes of other threads."""
        after = (await self._time_travel.at(thread_id, sequence=sequence)).state
        before = (await self._time_travel.at(thread_id, sequence=max(sequence - 1, 0))).state
        written = await self._written_by(thread_id, sequence)
        return _difference(
            {key: value for key, value in before.items() if key in written},
            {key: value for key, value in after.items() if key in written},
        )

    async def state_at(self, thread_id: UUID, sequence: int | None = None) -> PastState:
        if sequence is not None:
            return await self._time_travel.at(thread_id, sequence=sequence)
        row = await self._database.fetch_row("read_thread", thread_id)
        if row is None:
            raise NotFoundError(f"there is no thread {thread_id}")
        session = session_from_row(row)
        return PastState(state=session.state, version=session.version, sequence_num=session.last_sequence)

    async def _written_by(self, thread_id: UUID, sequence: int) -> JsonObject:
        row = await self._database.fetch_row("read_events_at", thread_id, [sequence])
        actions = load_json(row["actions"]) if row is not None else {}
        delta = actions.get("state_delta")
        return delta if isinstance(delta, dict) else {}


def _change(row: asyncpg.Record) -> JsonObject:
    return {
        "time": row["created_at"],
        "delta": load_json(row["actions"])["state_delta"],
        "event_id": row["id"],
        "sequence_num": row["sequence_num"],
        "version": row["version"],
        "author": row["author"],
        "run_id": row["run_id"],
    }


def _difference(before: JsonObject, after: JsonObject) -> StateDiff:
    return StateDiff(
        added={key: value for key, value in after.items() if key not in before},
        changed={key: (before[key], value) for key, value in after.items() if key in before and before[key] != value},
        removed={key: value for key, value in before.items() if key not in after},
    )
