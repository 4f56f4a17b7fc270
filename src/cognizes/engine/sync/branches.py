"""Branches of a conversation, without copies: a name, a parent and the event of the fork.

An event belongs to the branch that was active when it was committed. Only switching records the active branch, so an
append costs nothing. A branch contains its own events and those of its ancestors up to the fork. Switching restores the
session's own state at the tip of the branch; `user:` and `app:` keys belong to no branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from cognizes.engine.database import Database
from cognizes.engine.database.documents import dump_json, dump_jsonb
from cognizes.engine.errors import ConcurrencyConflictError, ConflictError, InvalidInputError, NotFoundError
from cognizes.engine.models import DELETE, JsonObject, PastState, new_id
from cognizes.engine.pulse.events import check_name, split_delta
from cognizes.engine.pulse.session_store import SessionStore, thread_uuid
from cognizes.engine.pulse.time_travel import TimeTravel
from cognizes.engine.settings import Settings
from cognizes.engine.streams.message_streams import MessageStreams

MAIN: Final = "main"
_MAX_NAME_BYTES = 200
_ATTEMPTS = 20


@dataclass(frozen=True)
class Branch:
    """A branch. `tip_sequence` is its newest event; `main` has neither a parent nor a fork."""

    name: str
    parent: str | None
    forked_at: int | None
    tip_sequence: int
    is_active: bool
    created_at: datetime


class Branches:
    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        sessions: SessionStore,
        time_travel: TimeTravel,
        streams: MessageStreams,
    ) -> None:
        self._database = database
        self._settings = settings
        self._sessions = sessions
        self._time_travel = time_travel
        self._streams = streams

    async def list(self, thread_id: str | UUID) -> list[Branch]:
        """Return all branches, `main` first, then by age."""
        rows = await self._database.fetch("list_branches", thread_uuid(thread_id))
        if not rows:
            raise NotFoundError(f"there is no thread {thread_id}")
        return [
            Branch(
                name=row["name"],
                parent=None if row["name"] == MAIN else row["parent"],
                forked_at=row["forked_at"],
                tip_sequence=row["tip"],
                is_active=row["is_active"],
                created_at=row["created_at"],
            )
            for row in rows
        ]

    async def get(self, thread_id: str | UUID, name: str | None = None) -> Branch:
        for branch in await self.list(thread_id):
            if branch.is_active if name is None else branch.name == name:
                return branch
        raise NotFoundError(f"there is no branch {name!r} in this thread")

    async def create(self, thread_id: str | UUID, name: str, *, at_sequence: int | None = None) -> Branch:
        """Create a branch that forks after an event, by default the newest. It does not become active."""
        thread = thread_uuid(thread_id)
        if len(check_name("a branch's name", name).encode()) > _MAX_NAME_BYTES:
            raise InvalidInputError(f"the name of the branch is longer than {_MAX_NAME_BYTES} bytes; shorten it")
        if at_sequence is not None and at_sequence < 0:
            raise InvalidInputError(f"invalid at_sequence {at_sequence}; it must not be negative")
        await self._database.fetch_value("create_branch", thread, name, at_sequence, str(new_id()))
        return await self.get(thread, name)

    async def switch(self, thread_id: str | UUID, name: str) -> Branch:
        """Make a branch the active one.

        Raises `ConflictError` while a run is active or a message is streamed: it would end on another branch than it
        began on.
        """
        thread = thread_uuid(thread_id)
        for _ in range(_ATTEMPTS):
            branch = await self.get(thread, name)
            if branch.is_active:
                return branch
            if heads := await self._streams.heads([thread]):
                raise ConflictError(
                    f"the message {heads[0].message_id[:80]!r} is being streamed; wait for its end or cancel it"
                )
            if await self._switch(thread, branch):
                return await self.get(thread, name)
        raise ConcurrencyConflictError(f"the state of the session changed during all {_ATTEMPTS} attempts; try again")

    async def delete(self, thread_id: str | UUID, name: str) -> None:
        """Delete a branch. `main`, the active branch and a branch with forks cannot be deleted."""
        await self._database.fetch_value("delete_branch", thread_uuid(thread_id), name, str(new_id()))

    async def state(self, thread_id: str | UUID, name: str | None = None) -> PastState:
        thread = thread_uuid(thread_id)
        branch = await self.get(thread, name)
        return await self._time_travel.at(thread, sequence=branch.tip_sequence)

    async def _switch(self, thread: UUID, branch: Branch) -> bool:
        session = await self._sessions.get_thread(thread)
        past = await self._time_travel.at(thread, sequence=branch.tip_sequence)
        delta = _difference(split_delta(session.state).session, split_delta(past.state).session)
        row = await self._database.fetch_row(
            "switch_branch",
            thread,
            branch.name,
            str(new_id()),
            dump_json({"state_delta": delta} if delta else {}),
            dump_jsonb(delta) if delta else None,
            session.version,
            self._settings.max_state_bytes,
        )
        return row is not None and row["status"] != "conflict"


def _difference(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> JsonObject:
    # Compared as JSON text: in Python 1, 1.0 and true are equal.
    changed = {
        key: value
        for key, value in wanted.items()
        if key not in current or dump_jsonb({"": current[key]}) != dump_jsonb({"": value})
    }
    return changed | {key: DELETE for key in current if key not in wanted}
