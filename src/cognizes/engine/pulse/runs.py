"""Runs: one execution of an agent on a thread, from its start to its end.

A run's row changes in the same transaction as the event that says so. Which moves are legal is written once, in the
SQL function `run_transition_allowed`; an illegal one is an `IllegalTransitionError` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import asyncpg

from cognizes.engine.concurrency import retry_while_unavailable
from cognizes.engine.database import Database
from cognizes.engine.database.documents import (
    dump_json,
    dump_jsonb,
    escape_text,
    load_json,
    load_jsonb,
    unescape_text,
)
from cognizes.engine.errors import ConflictError, InvalidInputError, NotFoundError, SetupError
from cognizes.engine.models import JsonObject, Run, RunStatus, RunWait, Session, new_id
from cognizes.engine.pulse.events import check_name
from cognizes.engine.pulse.fencing import attempt_at
from cognizes.engine.pulse.session_store import SessionStore, thread_uuid

_Answer = TypeVar("_Answer")

EVENT_OF_STATUS = {
    RunStatus.PENDING: "run_created",
    RunStatus.RUNNING: "run_started",
    RunStatus.WAITING: "run_waiting",
    RunStatus.COMPLETED: "run_finished",
    RunStatus.FAILED: "run_failed",
    RunStatus.CANCELLED: "run_cancelled",
}


class Runs:
    """Creates, moves and reads runs.

    Every write is sent again while PostgreSQL is unavailable, for `retry_seconds`, like an append. A write is marked by
    the id of its event, so one whose answer was lost counts once.
    """

    def __init__(self, database: Database, sessions: SessionStore, *, retry_seconds: float) -> None:
        self._database = database
        self._sessions = sessions
        self._retry_seconds = retry_seconds
        self.write_message: Callable[..., Any] | None = None
        """Opens a streamed message; the engine sets it, because streams are built on this layer."""

    async def create(self, session: Session, *, run_id: str | None = None, running: bool = False) -> Run:
        """A pending run, or one that is running at once."""
        return await self._create(session, run_id, RunStatus.RUNNING if running else RunStatus.PENDING)

    async def begin(self, thread_id: str | UUID, run_id: str) -> Run:
        """From pending to running."""
        return await self._change(thread_id, run_id, RunStatus.RUNNING)

    async def finish(self, thread_id: str | UUID, run_id: str, *, event_id: str | None = None) -> Run:
        """From running to completed. Whoever may ask again, because an answer was lost, names the event: it counts
        once."""
        return await self._change(thread_id, run_id, RunStatus.COMPLETED, event_id=event_id)

    async def fail(self, thread_id: str | UUID, run_id: str, *, error: str, event_id: str | None = None) -> Run:
        """To failed, with the reason."""
        return await self._change(thread_id, run_id, RunStatus.FAILED, error=error, event_id=event_id)

    async def cancel(self, thread_id: str | UUID, run_id: str, *, event_id: str | None = None) -> Run:
        """To cancelled."""
        return await self._change(thread_id, run_id, RunStatus.CANCELLED, event_id=event_id)

    async def get(self, thread_id: str | UUID, run_id: str) -> Run:
        """One run of a thread."""
        row = await self._database.fetch_row("read_run", thread_uuid(thread_id), run_id)
        if row is None:
            raise NotFoundError(f"there is no run {run_id} in thread {thread_id}")
        return run_from_row(row)

    async def list(self, thread_id: str | UUID, *, limit: int = 100) -> list[Run]:
        """The runs of a thread, newest first."""
        return [run_from_row(row) for row in await self._database.fetch("list_runs", thread_uuid(thread_id), limit)]

    async def think(self, thread_id: str | UUID, run_id: str, thought: str) -> None:
        """Adds a thinking step."""
        entry = {"thought": thought, "at": _now()}
        await self._progress(thread_id, run_id, "thought", entry, {"thought": thought})

    async def call_tool(self, thread_id: str | UUID, run_id: str, name: str, arguments: Any) -> str:
        """Adds a tool call; its id is for `finish_tool`."""
        call_id = str(new_id())
        entry = {"id": call_id, "tool_name": name, "input": arguments, "at": _now()}
        content = {"tool_call_id": call_id, "tool_name": name, "tool_input": arguments}
        await self._progress(thread_id, run_id, "act", entry, content)
        return call_id

    async def finish_tool(
        self, thread_id: str | UUID, run_id: str, call_id: str, output: Any, *, is_error: bool = False
    ) -> None:
        """Adds a tool's result to its call."""
        entry = {"id": call_id, "output": output, "is_error": is_error, "finished_at": _now()}
        content = {"tool_call_id": call_id, "observation": output, "is_error": is_error}
        await self._progress(thread_id, run_id, "observe", entry, content)

    async def _create(self, session: Session, run_id: str | None, status: RunStatus) -> Run:
        thread_id = await self._sessions.find_thread(session)
        run_id = check_name("run_id", run_id) if run_id else str(new_id())
        content = dump_json({"run_id": run_id, "status": status})
        event_id = str(new_id())
        await self._write_once(
            thread_id, event_id, "create_run", thread_id, run_id, status, event_id, EVENT_OF_STATUS[status], content
        )
        return await self._get_changed(thread_id, run_id)

    async def _change(
        self,
        thread_id: str | UUID,
        run_id: str,
        status: RunStatus,
        *,
        error: str | None = None,
        event_id: str | None = None,
    ) -> Run:
        content: JsonObject = {"run_id": run_id, "status": status}
        if error is not None:
            content["error"] = error
        thread = thread_uuid(thread_id)
        event_id = event_id or str(new_id())
        await self._write_once(
            thread,
            event_id,
            "change_run",
            thread,
            run_id,
            status,
            escape_text(error) if error is not None else None,
            event_id,
            EVENT_OF_STATUS[status],
            dump_json(content),
            attempt_at(thread, run_id),
        )
        return await self._get_changed(thread_id, run_id)

    async def _get_changed(self, thread_id: str | UUID, run_id: str) -> Run:
        """Read a run after a write, for as long as the write itself would be retried: what it did is known."""
        return await self.until_available(lambda: self.get(thread_id, run_id))

    async def _write_once(self, thread_id: UUID, event_id: str, query: str, *arguments: Any) -> Any:
        """Send a write until PostgreSQL answers; return the answer, or None when an earlier answer was lost."""
        return await self._once(thread_id, event_id, lambda: self._database.fetch_value(query, *arguments))

    async def _once(self, thread_id: UUID, event_id: str, write: Callable[[], Awaitable[_Answer]]) -> _Answer | None:
        """A write that is refused although its event is stored was made before, and only the answer was lost."""
        try:
            return await self.until_available(write)
        except (ConflictError, InvalidInputError):
            if await self.until_available(lambda: self._database.fetch_row("read_event", thread_id, event_id)) is None:
                raise
            return None

    async def until_available(self, attempt: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Call an idempotent operation again while PostgreSQL is unavailable, for the time that an append gets."""
        return await retry_while_unavailable(attempt, seconds=self._retry_seconds)

    async def _progress(
        self, thread_id: str | UUID, run_id: str, kind: str, entry: JsonObject, content: JsonObject
    ) -> None:
        thread = thread_uuid(thread_id)
        event_id = str(new_id())
        await self._write_once(
            thread,
            event_id,
            "record_run_progress",
            thread,
            run_id,
            kind,
            dump_jsonb(entry),
            event_id,
            dump_json(content),
            attempt_at(thread, run_id),
        )


class RunHandle:
    """A running run, for the code that executes it."""

    def __init__(self, runs: Runs, thread_id: UUID, run_id: str) -> None:
        self._runs = runs
        self.thread_id = thread_id
        self.id = run_id

    def message(self, role: str = "assistant", *, message_id: str | None = None, author: str | None = None) -> Any:
        """A message of this run, to be entered with `async with` and written token by token."""
        if self._runs.write_message is None:
            raise SetupError("messages are streamed by an engine; open one with Engine.open()")
        return self._runs.write_message(
            self.thread_id, role=role, message_id=message_id, author=author, run_id=self.id, invocation_id=self.id
        )

    async def think(self, thought: str) -> None:
        """Adds a thinking step."""
        await self._runs.think(self.thread_id, self.id, thought)

    async def call_tool(self, name: str, arguments: Any) -> str:
        """Adds a tool call; its id is for `finish_tool`."""
        return await self._runs.call_tool(self.thread_id, self.id, name, arguments)

    async def finish_tool(self, call_id: str, output: Any, *, is_error: bool = False) -> None:
        """Adds a tool's result to its call."""
        await self._runs.finish_tool(self.thread_id, self.id, call_id, output, is_error=is_error)


def _now() -> str:
    return datetime.now(UTC).isoformat()


def run_from_row(row: asyncpg.Record) -> Run:
    """A run as it is stored."""
    return Run(
        id=row["id"],
        thread_id=str(row["thread_id"]),
        app_name=row["app_name"],
        status=RunStatus(row["status"]),
        thinking_steps=load_jsonb(row["thinking_steps"]),
        tool_calls=load_jsonb(row["tool_calls"]),
        error=unescape_text(row["error"]) if row["error"] is not None else None,
        created_at=row["created_at"],
        started_at=row["started_at"],
        completed_at=row["completed_at"],
        handler=row["handler"],
        input=_document(row["input"]),
        result=_document(row["result"]),
        worker_id=row["worker_id"],
        attempt=row["attempt"],
        failures=row["failures"],
        max_attempts=row["max_attempts"],
        available_at=row["available_at"],
        lease_expires_at=row["lease_expires_at"],
        last_wait=_wait(row),
        resumption_context=_document(row["resumption_context"]),
    )


def _document(text: str | None) -> Any:
    return load_json(text) if text is not None else None


def _wait(row: asyncpg.Record) -> RunWait | None:
    if row["wait_key"] is None:
        return None
    return RunWait(
        kind=row["wait_kind"],
        correlation_key=row["wait_key"],
        reason=unescape_text(row["wait_reason"]) if row["wait_reason"] is not None else None,
        expires_at=row["wait_expires_at"],
        timeout_node=row["wait_timeout_node"],
    )
