"""Past states: the nearest snapshot, and a replay of the deltas after it."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.documents import load_json, load_jsonb
from cognizes.engine.errors import HistoryExpiredError, InvalidInputError, NotFoundError
from cognizes.engine.models import JsonObject, PastState
from cognizes.engine.pulse.events import apply_delta, join_state, split_delta

_PAGE = 250
_LARGE = 16 * 1024
_DONE = 2**63 - 1


class TimeTravel:
    """Reads the state of a thread after any event, or at any version.

    The session's own keys follow from its events alone. `user:` and `app:` keys have the values of that time, also
    those that other threads wrote.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def at(self, thread_id: UUID, *, sequence: int | None = None, version: int | None = None) -> PastState:
        """Return the state right after event number `sequence` (0: as created), or at `version`."""
        if (sequence is None) == (version is None):
            raise InvalidInputError("give either a sequence or a version")
        if (sequence if sequence is not None else version or 0) < 0:
            raise InvalidInputError("a sequence or version is not negative")
        found = await self._database.fetch_row("find_past", thread_id, sequence, version)
        if found is None:
            raise NotFoundError(f"there is no thread {thread_id}")
        if found["sequence_num"] > found["last_sequence"]:
            raise NotFoundError(f"event {sequence} has not happened yet; the thread is at {found['last_sequence']}")
        if version is not None and not 1 <= version <= found["version"]:
            raise NotFoundError(f"version {version} does not exist; the thread is at {found['version']}")
        return await self._replay(thread_id, found["sequence_num"], ("delta", "user", "app"))

    async def session_at(self, thread_id: UUID, *, sequence: int) -> PastState:
        """Return the session's own state right after an event; its history is kept as long as the session."""
        return await self._replay(thread_id, sequence, ("delta",))

    async def snapshot(self, thread_id: UUID) -> int:
        """Store the present state as a start of replays; return its version."""
        version: int | None = await self._database.fetch_value("take_snapshot", thread_id)
        if version is None:
            raise NotFoundError(f"there is no thread {thread_id}")
        return version

    async def _replay(self, thread_id: UUID, sequence: int, kinds: Sequence[str]) -> PastState:
        """Read the past in pages, which no write changes."""
        past = _Past()
        after: dict[str, int | None] = {kind: None if kind == "delta" else 0 for kind in kinds}
        while after:
            places = (after.get(kind, _DONE) for kind in ("delta", "user", "app"))
            rows = await self._database.fetch("read_past", thread_id, sequence, *places, _PAGE, _LARGE)
            if not any(row["kind"] == "thread" for row in rows):
                raise NotFoundError(f"there is no thread {thread_id}")
            if "user" in kinds and any(row["kind"] == "expired" for row in rows):
                raise HistoryExpiredError(
                    f"the user: and app: state of thread {thread_id} at event {sequence} is no longer stored; its "
                    "history is kept for COGNIZES_STATE_HISTORY_KEPT_DAYS"
                )
            for row in rows:
                if row["kind"] == "snapshot":
                    past.apply(row, row["document"])
            for kind in list(after):
                page = [row for row in rows if row["kind"] == kind]
                await self._apply(past, thread_id, kind, page)
                if len(page) < _PAGE:
                    del after[kind]
                else:
                    after[kind] = page[-1]["key"]
        return PastState(
            state=join_state(past.session, past.user, past.app), version=past.version, sequence_num=sequence
        )

    async def _apply(self, past: _Past, thread_id: UUID, kind: str, rows: list[asyncpg.Record]) -> None:
        """Apply the rows of one kind in their order; large documents are read a few at a time."""
        place = 0
        while place < len(rows):
            batch = [rows[place]]
            size = rows[place]["bytes"]
            for row in rows[place + 1 :]:
                size += row["bytes"]
                if size > self._database.page_bytes:
                    break
                batch.append(row)
            place += len(batch)
            large = [row["key"] for row in batch if row["document"] is None]
            found = await self._database.fetch("read_past_documents", thread_id, kind, large) if large else []
            documents = {row["key"]: row["document"] for row in found}
            for row in batch:
                document = row["document"] if row["document"] is not None else documents.get(row["key"])
                if document is None:
                    raise NotFoundError(f"there is no thread {thread_id}")
                past.apply(row, document)


class _Past:
    def __init__(self) -> None:
        self.session: JsonObject = {}
        self.user: JsonObject = {}
        self.app: JsonObject = {}
        self.version = 1

    def apply(self, row: asyncpg.Record, document: str) -> None:
        match row["kind"]:
            case "snapshot":
                self.session = load_jsonb(document)
                self.version = row["version"]
            case "delta":
                self.session = apply_delta(self.session, split_delta(load_json(document)["state_delta"]).session)
                self.version = row["version"]
            case "user":
                self.user = apply_delta(self.user, load_jsonb(document))
            case "app":
                self.app = apply_delta(self.app, load_jsonb(document))
