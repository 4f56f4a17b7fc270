"""Looking into a thread's state: grouped by scope, who wrote what and when, and what differs between versions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.documents import load_json, load_jsonb
from cognizes.engine.errors import NotFoundError
from cognizes.engine.models import JsonObject, PastState, is_delete
from cognizes.engine.pulse.scopes import APP, SESSION, TEMP, USER, parse_state_prefix, split_delta
from cognizes.engine.pulse.session_store import session_from_row
from cognizes.engine.pulse.time_travel import TimeTravel

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.:-]+")
_NEWEST = 2**63 - 1
_PAGE = 1000


@dataclass
class StateDebugInfo:
    """What there is to know about a thread's state."""

    thread_id: str
    current_state: JsonObject = field(default_factory=dict)
    state_history: list[JsonObject] = field(default_factory=list)
    prefix_breakdown: dict[str, JsonObject] = field(default_factory=dict)


@dataclass(frozen=True)
class StateDiff:
    """What differs between two versions of a thread."""

    added: JsonObject
    changed: dict[str, tuple[Any, Any]]
    removed: JsonObject


def group_by_prefix(state: JsonObject) -> dict[str, JsonObject]:
    """An effective state by scope, with bare keys."""
    scoped = split_delta(state)
    return {SESSION: scoped.session, USER: scoped.user, APP: scoped.app, TEMP: scoped.temp}


class StateDebugService:
    """Reads state for people: monitors, debuggers, audits."""

    def __init__(self, pool: asyncpg.Pool[Any] | Database) -> None:
        self._database = pool if isinstance(pool, Database) else Database(pool)
        self._time_travel = TimeTravel(self._database)

    async def get_debug_info(self, thread_id: str | UUID, *, limit: int = 1000) -> StateDebugInfo:
        """State, history and breakdown of a thread; empty for an unknown one."""
        info = StateDebugInfo(thread_id=str(thread_id), prefix_breakdown=group_by_prefix({}))
        try:
            key = UUID(str(thread_id))
        except ValueError:
            return info
        row = await self._database.fetch_row("read_thread", key)
        if row is not None:
            info.current_state = session_from_row(row).state
            info.state_history = await self.history(key, limit=limit)
            info.prefix_breakdown = group_by_prefix(info.current_state)
        return info

    async def history(self, thread_id: UUID, *, after_version: int = 0, limit: int = 1000) -> list[JsonObject]:
        """Every change of state by this thread, oldest first: when, what, by whom, in which run and event."""
        rows = await self._database.fetch("read_state_history", thread_id, after_version, limit)
        return [_change(row) for row in rows]

    async def key_history(
        self, thread_id: UUID, key: str, *, limit: int = 1000, for_user: str | None = None
    ) -> list[JsonObject]:
        """The newest writes to one key, oldest first. A `user:` or `app:` key shows the writes of all threads; with
        `for_user`, a write in a thread of another user has neither its thread nor its event and author."""
        scope, bare_key = parse_state_prefix(key)
        if scope in (USER, APP):
            return await self._wider_key_history(thread_id, scope, bare_key, limit=limit, for_user=for_user)
        found: list[JsonObject] = []
        # A plain key is looked for in the text by PostgreSQL; one that JSON may spell in several ways, here.
        needle = f'"{key}"' if _PLAIN_KEY.fullmatch(key) else None
        before = _NEWEST
        while len(found) < limit:
            rows = await self._database.fetch("read_key_writes", thread_id, before, needle, _PAGE)
            for row in rows:
                item = _change(row)
                if key in item["delta"]:
                    value = item["delta"][key]
                    found.append({**item, "value": None if is_delete(value) else value, "deleted": is_delete(value)})
            if len(rows) < _PAGE:
                break
            before = rows[-1]["version"]
        return found[:limit][::-1]

    async def _wider_key_history(
        self, thread_id: UUID, scope: str, key: str, *, limit: int, for_user: str | None
    ) -> list[JsonObject]:
        row = await self._database.fetch_row("read_thread", thread_id)
        if row is None:
            raise NotFoundError(f"there is no thread {thread_id}")
        owner = row["user_id"] if scope == USER else ""
        writes = await self._database.fetch("read_scope_writes", row["app_name"], scope, owner, key, limit, for_user)
        found = []
        for write in writes:
            value = load_jsonb(write["delta"])[key]
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
        return found

    async def diff(self, thread_id: UUID, from_version: int, to_version: int) -> StateDiff:
        """What changed from one version to another."""
        before = await self._time_travel.at(thread_id, version=from_version)
        after = await self._time_travel.at(thread_id, version=to_version)
        return _difference(before.state, after.state)

    async def diff_event(self, thread_id: UUID, sequence: int) -> StateDiff:
        """What one event changed. Of wider scopes, only what this event wrote and not what others did meanwhile."""
        after = (await self._time_travel.at(thread_id, sequence=sequence)).state
        before = (await self._time_travel.at(thread_id, sequence=max(sequence - 1, 0))).state
        written = await self._written_by(thread_id, sequence)
        return _difference(
            {key: value for key, value in before.items() if key in written},
            {key: value for key, value in after.items() if key in written},
        )

    async def state_at(self, thread_id: UUID, sequence: int | None = None) -> PastState:
        """The effective state after an event, or now."""
        if sequence is not None:
            return await self._time_travel.at(thread_id, sequence=sequence)
        row = await self._database.fetch_row("read_thread", thread_id)
        if row is None:
            raise NotFoundError(f"there is no thread {thread_id}")
        session = session_from_row(row)
        return PastState(state=session.state, version=session.version, sequence_num=session.last_sequence)

    async def _written_by(self, thread_id: UUID, sequence: int) -> JsonObject:
        rows = await self._database.fetch("read_events", thread_id, sequence - 1, 1)
        actions = load_json(rows[0]["actions"]) if rows and rows[0]["sequence_num"] == sequence else {}
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
