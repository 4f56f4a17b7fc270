"""Memory snapshots: the memory of an agent when its run begins to wait, restored when the run resumes.

Messages are entries of an immutable log: a snapshot contains copies and never removes or overwrites any, so messages
that arrived while the run waited stay. Variables (the session's own state keys) and the scratchpad are restored. When
a run resumes, a variable that another writer has changed since keeps its newer value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.documents import dump_json, dump_jsonb, load_json, load_jsonb
from cognizes.engine.errors import InvalidInputError, NotFoundError
from cognizes.engine.memory.episodic import EpisodicEntry, EpisodicMemoryStore
from cognizes.engine.memory.long_term import LongTermEntry, LongTermKey, LongTermMemoryStore
from cognizes.engine.memory.records import MemoryScope
from cognizes.engine.memory.working import WorkingMemory
from cognizes.engine.models import JsonObject, Session, new_id
from cognizes.engine.pulse.events import SNAPSHOT_PREFIX, apply_delta, split_delta
from cognizes.engine.pulse.sessions import Sessions, attempt_at

_CHANGES_PER_PAGE = 500


@dataclass(frozen=True)
class MemorySnapshot:
    """The memory of an agent at one moment. A snapshot is applied once, identified by `id`."""

    working_memory: WorkingMemory
    episodic_tail: list[EpisodicEntry] = field(default_factory=list)
    long_term_keys: list[LongTermKey] = field(default_factory=list)
    snapshot_at: datetime | None = None
    id: str = field(default_factory=lambda: str(new_id()))

    def to_json(self) -> JsonObject:
        """Return JSON data for the `resumption_context` of a run."""
        return {
            "id": self.id,
            "working_memory": self.working_memory.to_json(),
            "episodic_tail": [entry.to_json() for entry in self.episodic_tail],
            "long_term_keys": [{"namespace": key.namespace, "key": key.key} for key in self.long_term_keys],
            "snapshot_at": self.snapshot_at.isoformat() if self.snapshot_at else None,
        }

    @classmethod
    def from_json(cls, document: JsonObject) -> MemorySnapshot:
        try:
            return cls(
                working_memory=WorkingMemory.from_json(document["working_memory"]),
                episodic_tail=[EpisodicEntry.from_json(entry) for entry in document["episodic_tail"]],
                long_term_keys=[LongTermKey(key["namespace"], key["key"]) for key in document["long_term_keys"]],
                snapshot_at=datetime.fromisoformat(document["snapshot_at"]) if document["snapshot_at"] else None,
                id=document["id"],
            )
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidInputError(f"invalid memory snapshot: {error}") from error


class MemorySnapshots:
    """Takes and applies snapshots.

    A snapshot is applied in one transaction with an event whose id contains the snapshot's id: a crash leaves all of it
    or nothing, and a retry applies nothing twice.
    """

    def __init__(
        self,
        database: Database,
        sessions: Sessions,
        *,
        episodic: EpisodicMemoryStore,
        long_term: LongTermMemoryStore,
        max_state_bytes: int,
    ) -> None:
        self._database = database
        self._sessions = sessions
        self._episodic = episodic
        self._long_term = long_term
        self._max_state_bytes = max_state_bytes

    async def take(
        self,
        session: Session,
        *,
        agent_id: str | None = None,
        long_term_keys: Iterable[LongTermKey | tuple[str, str]] = (),
        messages: int = 200,
        episodes: int = 10,
    ) -> MemorySnapshot:
        """Copy the current working memory, the newest episodes, and the given long-term keys."""
        scope = MemoryScope.of(session, agent_id)
        thread_id = await self._sessions.store.find_thread(session)
        row = await self._database.fetch_row("read_working_memory", thread_id, scope.agent_id, messages)
        if row is None:
            raise NotFoundError(f"there is no thread {thread_id}")
        keys = (LongTermKey(*key) if isinstance(key, tuple) else key for key in long_term_keys)
        return MemorySnapshot(
            working_memory=_working_memory(scope, row),
            episodic_tail=await self._episodic.list_by_agent(scope, limit=episodes) if episodes else [],
            long_term_keys=list(dict.fromkeys(keys)),
            snapshot_at=datetime.now(UTC),
        )

    async def apply(self, session: Session, snapshot: MemorySnapshot, *, run_id: str | None = None) -> bool:
        """Restore variables, scratchpad and working memory with one event. Return False if that was done before.

        The session object is refreshed. Variables that the snapshot lacks are deleted; all messages stay.
        With a `run_id` the snapshot is that of a run that resumes, see `resume`.
        """
        is_applied, _ = await self._apply(session, snapshot, run_id)
        return is_applied

    async def resume(self, session: Session, snapshot: MemorySnapshot, *, run_id: str) -> list[str]:
        """Apply the snapshot of a run that resumes, once; return the variables that were not restored.

        A variable that another writer changed after the snapshot was taken keeps its newer value. The list is stored
        with the event, so each later attempt of the run gets the same list.
        """
        _, kept_keys = await self._apply(session, snapshot, run_id)
        return kept_keys

    async def kept_keys(self, thread_id: UUID, snapshot_id: str) -> list[str]:
        """Return the result of `resume`; empty if the snapshot has not been applied."""
        event = await self._sessions.log.find(thread_id, _event_id(snapshot_id))
        return list(event.content.get("kept_keys", [])) if event is not None else []

    async def preload(self, session: Session, snapshot: MemorySnapshot) -> list[LongTermEntry]:
        """Return the current facts of the snapshot's long-term keys that exist."""
        scope = MemoryScope.of(session, snapshot.working_memory.agent_id)
        return await self._long_term.get_many(scope, snapshot.long_term_keys)

    async def _apply(self, session: Session, snapshot: MemorySnapshot, run_id: str | None) -> tuple[bool, list[str]]:
        memory = snapshot.working_memory
        if memory.session_id != session.id:
            raise InvalidInputError(f"the snapshot belongs to session {memory.session_id!r}, not to {session.id!r}")
        thread_id = await self._sessions.store.find_thread(session)
        changes = _LaterChanges(self._database, thread_id, run_id, memory) if run_id is not None else None
        while True:
            variables = changes.merge(memory.variables) if changes is not None else memory.variables
            kept_keys = sorted(
                key
                for key in memory.variables.keys() | variables.keys()
                if (key in variables, variables.get(key)) != (key in memory.variables, memory.variables.get(key))
            )
            content: JsonObject = {"snapshot_id": snapshot.id, "agent_id": memory.agent_id}
            row = await self._database.write_row(
                "apply_memory_snapshot",
                thread_id,
                memory.agent_id,
                _event_id(snapshot.id),
                dump_json(content | ({"kept_keys": kept_keys} if kept_keys else {})),
                dump_jsonb(variables),
                dump_jsonb(replace(memory, variables=variables).to_json()),
                run_id,
                attempt_at(thread_id, run_id) if run_id is not None else None,
                self._max_state_bytes,
                changes.version if changes is not None else None,
            )
            assert row is not None  # noqa: S101 - the function returns one row
            if changes is None or row["status"] != "conflict":
                break
            await changes.read(up_to=row["version"])
        await self._sessions.refresh(session)
        return row["status"] == "applied", load_json(row["content"]).get("kept_keys", [])


class _LaterChanges:
    """The variables that writers other than a run have changed since its snapshot, up to a version of the state."""

    def __init__(self, database: Database, thread_id: UUID, run_id: str, memory: WorkingMemory) -> None:
        self._database = database
        self._thread_id = thread_id
        self._run_id = run_id
        self._latest: JsonObject = {}
        self._read_up_to = self.version = int((memory.last_checkpoint or {}).get("version", 0))
        self.keys: set[str] = set()

    async def read(self, *, up_to: int) -> None:
        has_more = True
        while has_more:
            page = await self._database.fetch_page(
                "read_state_history",
                self._thread_id,
                self._read_up_to,
                limit=_CHANGES_PER_PAGE,
                whole="read_events_at",
                owner=(self._thread_id,),
            )
            has_more = page.has_more
            for row in page.rows:
                delta = split_delta(load_json(row["actions"])["state_delta"]).session
                self._latest |= delta
                self._read_up_to = row["version"]
                if row["run_id"] != self._run_id:
                    self.keys |= delta.keys()
        self.version = max(up_to, self._read_up_to)

    def merge(self, variables: JsonObject) -> JsonObject:
        """Return the variables of the snapshot, with the current values of the keys that other writers have changed."""
        return apply_delta(variables, {key: self._latest[key] for key in self.keys})


def _event_id(snapshot_id: str) -> str:
    return SNAPSHOT_PREFIX + snapshot_id


def _working_memory(scope: MemoryScope, row: asyncpg.Record) -> WorkingMemory:
    return WorkingMemory(
        agent_id=scope.agent_id,
        session_id=row["session_id"],
        messages=load_json(row["messages"] or "[]"),
        variables=load_jsonb(row["state"]),
        tool_calls=load_jsonb(row["tool_calls"] or "[]"),
        scratchpad=load_jsonb(row["scratchpad"] or '""'),
        last_checkpoint={"sequence_num": row["last_sequence"], "version": row["version"]},
        updated_at=row["updated_at"],
    )
