"""State as it was: the nearest snapshot and a replay of the deltas after it."""

from __future__ import annotations

from uuid import UUID

from cognizes.engine.database import Database
from cognizes.engine.database.documents import load_json, load_jsonb
from cognizes.engine.errors import InvalidInputError, NotFoundError
from cognizes.engine.models import JsonObject, PastState
from cognizes.engine.pulse.scopes import apply_delta, join_state, split_delta


class TimeTravel:
    """Answers what a thread's state was after any event, or at any version.

    The session's own keys follow from its events alone. `user:` and `app:` keys are shown as they were at that
    moment, whichever thread had written them.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def at(self, thread_id: UUID, *, sequence: int | None = None, version: int | None = None) -> PastState:
        """The state right after event number `sequence` (0: as created), or at `version`."""
        if (sequence is None) == (version is None):
            raise InvalidInputError("name either a sequence or a version")
        if (sequence if sequence is not None else version or 0) < 0:
            raise InvalidInputError("a sequence or version is not negative")
        found = await self._database.fetch_row("find_past", thread_id, sequence, version)
        if found is None:
            raise NotFoundError(f"there is no thread {thread_id}")
        if found["sequence_num"] > found["last_sequence"]:
            raise NotFoundError(f"event {sequence} has not happened yet; the thread is at {found['last_sequence']}")
        if version is not None and not 1 <= version <= found["version"]:
            raise NotFoundError(f"version {version} does not exist; the thread is at {found['version']}")
        return await self._replay(thread_id, found["sequence_num"])

    async def snapshot(self, thread_id: UUID) -> int:
        """Keeps the present state, so that a replay can start here. Returns its version."""
        version: int | None = await self._database.fetch_value("take_snapshot", thread_id)
        if version is None:
            raise NotFoundError(f"there is no thread {thread_id}")
        return version

    async def _replay(self, thread_id: UUID, sequence: int) -> PastState:
        rows = await self._database.fetch("read_past", thread_id, sequence)
        if not any(row["kind"] == "thread" for row in rows):
            raise NotFoundError(f"there is no thread {thread_id}")
        session: JsonObject = {}
        user: JsonObject = {}
        app: JsonObject = {}
        version = 1
        # The snapshot has the version of the last delta before it, so by version everything is in its order.
        for row in rows:
            match row["kind"]:
                case "snapshot":
                    session = load_jsonb(row["document"])
                    version = row["version"]
                case "delta":
                    session = apply_delta(session, split_delta(load_json(row["document"])["state_delta"]).session)
                    version = row["version"]
                case "user":
                    user = apply_delta(user, load_jsonb(row["document"]))
                case "app":
                    app = apply_delta(app, load_jsonb(row["document"]))
        return PastState(state=join_state(session, user, app), version=version, sequence_num=sequence)
