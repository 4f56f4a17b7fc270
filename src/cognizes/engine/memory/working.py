"""Working memory: the current state of an agent in one session (the AgentState of seed 004)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from cognizes.engine.database import Database
from cognizes.engine.database.documents import dump_jsonb, load_jsonb
from cognizes.engine.errors import InvalidInputError, NotFoundError
from cognizes.engine.memory.records import MemoryScope
from cognizes.engine.models import JsonObject
from cognizes.engine.pulse.events import check_text
from cognizes.engine.pulse.sessions import RunFence


@dataclass(frozen=True)
class WorkingMemory:
    """The messages, variables, tool calls and scratchpad of one session, as of `last_checkpoint`.

    `variables` are the session's own state keys; `tool_calls` are `{tool_name, input, output, at}`; `last_checkpoint`
    holds the sequence number and the version of the thread.
    """

    agent_id: str
    session_id: str
    messages: list[JsonObject] = field(default_factory=list)
    variables: JsonObject = field(default_factory=dict)
    tool_calls: list[JsonObject] = field(default_factory=list)
    scratchpad: Any = ""
    last_checkpoint: JsonObject | None = None
    updated_at: datetime | None = None

    def to_json(self) -> JsonObject:
        return asdict(self) | {"updated_at": self.updated_at.isoformat() if self.updated_at else None}

    @classmethod
    def from_json(cls, document: JsonObject) -> WorkingMemory:
        """Read the result of `to_json`; a missing field is empty."""
        try:
            updated_at = document.get("updated_at")
            known = {name: document[name] for name in cls.__dataclass_fields__ if name in document}
            return cls(**known | {"updated_at": datetime.fromisoformat(updated_at) if updated_at else None})
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(f"invalid working memory: {error}") from error


class WorkingMemoryStore:
    """Stores one working memory per agent and session in `agent_states`; deleting the session deletes it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, scope: MemoryScope, memory: WorkingMemory) -> WorkingMemory:
        """Replace the working memory of the session; return it with `updated_at`."""
        saved = replace(memory, agent_id=scope.agent_id, updated_at=datetime.now(UTC))
        is_saved = await self._database.write_value(
            "save_agent_state",
            *scope.columns,
            check_text("session_id", memory.session_id),
            dump_jsonb(saved.to_json()),
            saved.updated_at,
        )
        _check_saved(is_saved, memory.session_id)
        return saved

    async def load(self, scope: MemoryScope, session_id: str) -> WorkingMemory | None:
        document = await self._database.fetch_value(
            "read_agent_state", *scope.columns, check_text("session_id", session_id)
        )
        return WorkingMemory.from_json(load_jsonb(document)) if document is not None else None

    async def write_scratchpad(
        self, scope: MemoryScope, session_id: str, scratchpad: Any, *, fence: RunFence | None = None
    ) -> None:
        """Replace only the scratchpad. With a fence, raise unless its attempt holds the lease of the run."""
        empty = WorkingMemory(scope.agent_id, check_text("session_id", session_id), updated_at=datetime.now(UTC))
        is_saved = await self._database.write_value(
            "write_scratchpad",
            *scope.columns,
            session_id,
            dump_jsonb(replace(empty, scratchpad=scratchpad).to_json()),
            empty.updated_at,
            *((fence.thread_id, fence.run_id, fence.attempt) if fence is not None else (None, None, None)),
        )
        _check_saved(is_saved, session_id)

    async def delete(self, scope: MemoryScope, session_id: str) -> bool:
        deleted = await self._database.write_value(
            "delete_agent_state", *scope.columns, check_text("session_id", session_id)
        )
        return deleted is not None


def _check_saved(is_saved: bool | None, session_id: str) -> None:
    if not is_saved:
        raise NotFoundError(f"session {session_id[:200]!r} was deleted; nothing was stored")
