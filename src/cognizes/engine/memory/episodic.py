"""Episodic memory: short summaries of what happened, newest first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.documents import dump_jsonb, escape_text, load_jsonb, unescape_text
from cognizes.engine.errors import ConflictError, EngineError, InvalidInputError, NotFoundError
from cognizes.engine.memory.records import EventSource, Ingest, MemoryPage, MemoryScope, check_moment, dump_sources
from cognizes.engine.memory.words import index_words
from cognizes.engine.models import JsonObject, RunStatus, new_id
from cognizes.engine.pulse.events import check_object, check_text
from cognizes.engine.pulse.session_store import thread_uuid

_ENDS = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)
_SUMMARY_LINES = 3
_SUMMARY_SECONDS = 60.0
_SUMMARY_LENGTH = 500
_SUMMARISED_CHARACTERS = 10_000


@dataclass(frozen=True)
class EpisodicEntry:
    """An episode. `append` assigns an id if it is empty."""

    scope: MemoryScope
    summary: str
    id: str = ""
    session_id: str | None = None
    run_id: str | None = None
    payload: JsonObject = field(default_factory=dict)
    created_at: datetime | None = None

    def to_json(self) -> JsonObject:
        return {
            "id": self.id,
            "app_name": self.scope.app_name,
            "user_id": self.scope.user_id,
            "agent_id": self.scope.agent_id,
            "session_id": self.session_id,
            "run_id": self.run_id,
            "summary": self.summary,
            "payload": self.payload,
            "created_at": self.created_at.isoformat() if self.created_at else None,
        }

    @classmethod
    def from_json(cls, document: JsonObject) -> EpisodicEntry:
        try:
            return cls(
                MemoryScope.stored(document["app_name"], document["user_id"], document["agent_id"]),
                document["summary"],
                id=document["id"],
                session_id=document["session_id"],
                run_id=document["run_id"],
                payload=document["payload"],
                created_at=datetime.fromisoformat(document["created_at"]) if document["created_at"] else None,
            )
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidInputError(f"invalid episode: {error}") from error


@dataclass(frozen=True)
class EndedRun:
    thread_id: str
    run_id: str
    status: RunStatus
    error: str | None
    question: str | None
    answer: str | None
    tool_calls: list[Any]


Summariser = Callable[[EndedRun], Awaitable[str]]


class EpisodicMemoryStore:
    def __init__(self, database: Database, ingest: Ingest, *, summariser: Summariser | None = None) -> None:
        self._database = database
        self._ingest = ingest
        self.summariser = summariser
        self.summary_seconds = _SUMMARY_SECONDS

    async def append(
        self, entry: EpisodicEntry, *, text: str | None = None, sources: Sequence[EventSource] = ()
    ) -> EpisodicEntry:
        """Store an episode; return the existing one of the same id unchanged.

        Recall searches `text`, by default the summary. `sources` are the events that the episode came from.
        """
        if entry.created_at is not None:
            check_moment("created_at", entry.created_at)
        new = replace(entry, id=entry.id or str(new_id()), created_at=entry.created_at or datetime.now(UTC))
        readable = text if text is not None else new.summary
        (words,) = await index_words([readable])
        is_new = await self._database.write_value(
            "append_episode",
            *new.scope.columns,
            check_text("id", new.id),
            None if new.session_id is None else check_text("session_id", new.session_id),
            None if new.run_id is None else check_text("run_id", new.run_id),
            escape_text(new.summary),
            dump_jsonb(check_object("payload", new.payload)),
            new.created_at,
            escape_text(readable),
            words,
            self._ingest.embeds,
            dump_sources(sources),
        )
        if is_new:
            self._ingest.wake_up.notify()
            return new
        existing = await self.get(new.scope, new.id)
        return existing if existing is not None else new

    async def get(self, scope: MemoryScope, episode_id: str) -> EpisodicEntry | None:
        row = await self._database.fetch_row(
            "read_episode", scope.app_name, scope.user_id, check_text("id", episode_id)
        )
        return _entry(row) if row else None

    async def delete(self, scope: MemoryScope, episode_id: str) -> bool:
        """Delete an episode, also from recall; return whether it existed."""
        found: bool = await self._database.write_value(
            "delete_episode", scope.app_name, scope.user_id, check_text("id", episode_id)
        )
        return found

    async def list_by_agent(self, scope: MemoryScope, *, limit: int = 100) -> list[EpisodicEntry]:
        """Return the episodes of an agent with a user, newest first."""
        rows = await self._database.fetch("list_episodes_of_agent", *scope.columns, _checked(limit), 0, None)
        return [_entry(row) for row in rows]

    async def list_by_session(self, scope: MemoryScope, session_id: str, *, limit: int = 100) -> list[EpisodicEntry]:
        """Return the episodes of an agent in one session, newest first."""
        session = check_text("session_id", session_id)
        rows = await self._database.fetch("list_episodes_of_session", *scope.columns, session, _checked(limit), 0, None)
        return [_entry(row) for row in rows]

    async def read_page(
        self, scope: MemoryScope, session_id: str | None = None, *, limit: int, offset: int = 0
    ) -> MemoryPage[EpisodicEntry]:
        """Return the episodes of an agent, or of one session, after the first `offset` that fit into a page."""
        limits = _checked(limit) + 1, offset, self._database.page_bytes
        if session_id is None:
            rows = await self._database.fetch("list_episodes_of_agent", *scope.columns, *limits)
        else:
            session = check_text("session_id", session_id)
            rows = await self._database.fetch("list_episodes_of_session", *scope.columns, session, *limits)
        return MemoryPage.of(rows, limit, _entry)

    async def write_for_run(
        self, thread_id: str | UUID, run_id: str, *, agent_id: str | None = None, summary: str | None = None
    ) -> EpisodicEntry:
        """Write the episode of an ended run once and return it. Raise `ConflictError` while the run has not ended.

        The summary is the given one, the result of the summariser, or the first lines of the final answer. After a
        retry of the run, the episode describes the new end.
        """
        ended, row = await self._read_end(thread_id, run_id)
        if ended.status not in _ENDS:
            raise ConflictError(f"run {run_id} is {ended.status}; an episode can be written after it has ended")
        scope = MemoryScope(row["app_name"], row["user_id"], agent_id or "")
        episode_id = f"run/{thread_uuid(thread_id)}/{run_id}"
        if (existing := await self.get(scope, episode_id)) is not None:
            if existing.created_at == row["completed_at"]:
                return existing
            await self.delete(scope, episode_id)
        text = summary if summary is not None else await self._summarise(ended)
        entry = EpisodicEntry(
            scope,
            text,
            id=episode_id,
            session_id=row["session_id"],
            run_id=run_id,
            payload={
                "status": str(ended.status),
                "error": ended.error,
                "question": ended.question,
                "answer_sequence": row["answer_sequence"],
                "tools": [call.get("tool_name") for call in ended.tool_calls],
            },
            created_at=row["completed_at"],
        )
        events = [row[name] for name in ("question_event_id", "answer_event_id") if row[name] is not None]
        sources = [EventSource(row["session_id"], event) for event in events]
        return await self.append(
            entry, text="\n".join(part for part in (ended.question, text) if part), sources=sources
        )

    async def _read_end(self, thread_id: str | UUID, run_id: str) -> tuple[EndedRun, asyncpg.Record]:
        row = await self._database.fetch_row("read_run_end", thread_uuid(thread_id), run_id)
        if row is None:
            raise NotFoundError(f"there is no run {run_id} in thread {thread_id}")
        texts = {name: _text(row[name]) for name in ("error", "question", "answer")}
        status = RunStatus(row["status"])
        calls = load_jsonb(row["tool_calls"])
        return EndedRun(thread_id=str(thread_id), run_id=run_id, status=status, tool_calls=calls, **texts), row

    async def _summarise(self, run: EndedRun) -> str:
        if self.summariser is None:
            return first_lines(run)
        try:
            async with asyncio.timeout(self.summary_seconds):
                return await self.summariser(run)
        except Exception as error:
            raise EngineError(f"the summariser failed: {type(error).__name__}: {error}") from error


def first_lines(run: EndedRun) -> str:
    """Return the first lines of the final answer, after the error of a failed run."""
    answer = run.answer or ""
    if run.error:
        answer = f"failed: {run.error}\n{answer}"
    lines = [line.strip() for line in answer[:_SUMMARISED_CHARACTERS].splitlines() if line.strip()]
    summary = "\n".join(lines[:_SUMMARY_LINES])
    return summary if len(summary) <= _SUMMARY_LENGTH else summary[: _SUMMARY_LENGTH - 1].rstrip() + "…"


def _text(stored: str | None) -> str | None:
    return None if stored is None else unescape_text(stored)


def _checked(limit: int) -> int:
    if limit < 1:
        raise InvalidInputError(f"invalid limit {limit}; it must be at least 1")
    return limit


def _entry(row: asyncpg.Record) -> EpisodicEntry:
    return EpisodicEntry(
        MemoryScope.stored(row["app_name"], row["user_id"], row["agent_id"]),
        unescape_text(row["summary"]),
        id=row["id"],
        session_id=row["session_id"],
        run_id=row["job_id"],
        payload=load_jsonb(row["payload"]),
        created_at=row["created_at"],
    )
