"""Read runs: rows of the view `run_rows` as `Run` objects, searches and pages, the documents and the steps of a run.

A finished step is not repeated, and an interrupted one is known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from cognizes.engine.concurrency import retry_while_unavailable
from cognizes.engine.database import Database
from cognizes.engine.database.documents import (
    check_depth,
    decode_cursor,
    dump_json,
    encode_cursor,
    escape_text,
    load_json,
    load_jsonb,
    text_bytes,
    unescape_text,
)
from cognizes.engine.errors import (
    ConflictError,
    InvalidInputError,
    LimitExceededError,
    NotFoundError,
    StepInterruptedError,
)
from cognizes.engine.models import Page, Run, RunStatus, RunWait
from cognizes.engine.pulse.events import check_text
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.pulse.sessions import RunFence
from cognizes.engine.telemetry import ActiveSpan, agent_attributes, span


@dataclass(frozen=True)
class Step:
    """A step of a run: `started`, `finished` with a result, or `failed` with an error."""

    name: str
    status: str
    attempt: int
    result: Any
    error: str | None
    started_at: datetime
    finished_at: datetime | None


async def list_steps(database: Database, thread_id: UUID, run_id: str) -> list[Step]:
    """Return the steps of a run in the order in which they started."""
    return [
        Step(
            name=row["name"],
            status=row["status"],
            attempt=row["attempt"],
            result=load_json(row["result"]) if row["result"] is not None else None,
            error=unescape_text(row["error"]) if row["error"] is not None else None,
            started_at=row["started_at"],
            finished_at=row["finished_at"],
        )
        for row in await database.fetch("list_steps", thread_id, run_id)
    ]


class Steps:
    def __init__(self, database: Database, fence: RunFence, *, retry_seconds: float) -> None:
        self._database = database
        self._fence = fence
        self._retry_seconds = retry_seconds
        self._interrupted: dict[str, int] = {}

    def expect_interrupted(self, steps: Iterable[Step]) -> None:
        """Set the steps that an earlier attempt started and did not finish."""
        self._interrupted = {step.name: step.attempt for step in steps}

    async def run(
        self, name: str, work: Callable[[], Awaitable[Any]], *, if_interrupted: Callable[[int], Awaitable[Any]] | None
    ) -> Any:
        """Call `work` unless the step has finished; store and return its JSON result.

        If an earlier attempt started the step and did not finish it, `if_interrupted` is called with that attempt
        instead, if given.
        """
        if not check_text("the name of a step", name):
            raise InvalidInputError("the name of a step is empty; the name identifies the step in later attempts")
        (row,) = await self._write("begin_step", name)
        if row["status"] == "finished":
            return load_json(row["result"])
        # Read before this attempt started the step: `begin_step` may be sent twice and then finds its own row.
        interrupted_attempt = self._interrupted.get(name) if row["status"] == "started" else None
        attributes = {"cognizes.step.name": name, "cognizes.run.id": self._fence.run_id}
        try:
            with span(f"step {name}", attributes):
                if interrupted_attempt is not None and if_interrupted is not None:
                    result = await if_interrupted(interrupted_attempt)
                else:
                    result = await work()
                document = dump_json(result)
        except StepInterruptedError:
            raise
        except Exception as error:
            await self._end(name, "failed", error=escape_text(f"{type(error).__name__}: {error}"))
            raise
        await self._end(name, "finished", result=document)
        # Later attempts get the stored document, where a tuple is a list: this one gets the same.
        return load_json(document)

    async def _end(self, name: str, status: str, *, result: str | None = None, error: str | None = None) -> None:
        self._interrupted.pop(name, None)
        await self._write("end_step", name, status, result, error)

    async def _write(self, query: str, *arguments: Any) -> list[Any]:
        """Write for the attempt that holds the run, again while PostgreSQL is unavailable; both queries may repeat."""
        holder = self._fence.thread_id, self._fence.run_id, self._fence.attempt
        return await retry_while_unavailable(
            lambda: self._database.fetch(query, *holder, *arguments), seconds=self._retry_seconds
        )


# `list` is a method of the class below.
_Runs = list[Run]
_Steps = list[Step]


class RunReader:
    """Reads runs and their steps."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, thread_id: str | UUID, run_id: str) -> Run:
        row = await self._database.fetch_row("read_run", thread_uuid(thread_id), run_id)
        if row is None:
            raise NotFoundError(f"there is no run {run_id} in thread {thread_id}")
        return run_from_row(row)

    async def read_tail(self, thread_id: UUID, run_id: str) -> tuple[int, bool]:
        """Return the sequence of the last event of a run, and whether one of its streams is open."""
        row = await self._database.fetch_row("read_run_tail", thread_id, run_id)
        assert row is not None  # noqa: S101 - the query always returns a row
        return row["last_sequence"] or 0, row["is_streaming"]

    async def list(self, thread_id: str | UUID, *, limit: int = 100) -> _Runs:
        return [run_from_row(row) for row in await self._database.fetch("list_runs", thread_uuid(thread_id), limit)]

    async def find(self, run_id: str, *, thread_id: str | UUID | None = None) -> Run:
        """Return a run by its id. Ids are unique in their thread: when two threads have it, give the `thread_id`."""
        if thread_id is not None:
            return await self.get(thread_id, run_id)
        runs = await self.find_all(run_id)
        if not runs:
            raise NotFoundError(f"there is no run {run_id}")
        if len(runs) > 1:
            raise ConflictError(f"several threads have a run {run_id}; give the thread_id")
        return runs[0]

    async def find_all(
        self, run_id: str, *, app_names: Collection[str] | None = None, user_id: str | None = None
    ) -> _Runs:
        """Return the runs of an id in all threads of some apps and of a user (None: all), newest first; up to 100."""
        apps = sorted(app_names) if app_names is not None else None
        return [run_from_row(row) for row in await self._database.fetch("find_runs", run_id, apps, user_id)]

    async def search(
        self,
        *,
        status: Sequence[str] | None = None,
        app_name: str | None = None,
        user_id: str | None = None,
        handler: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Run]:
        """Return runs of all threads, newest first, a page at a time."""
        after = decode_cursor(cursor, _position) if cursor else (None, None, None)
        rows = await self._database.fetch(
            "search_runs", [*status] if status is not None else None, app_name, handler, *after, limit + 1, user_id
        )
        runs = [run_from_row(row) for row in rows[:limit]]
        return Page(items=runs, next_cursor=_cursor(runs[-1]) if len(rows) > limit else None)

    async def steps(self, thread_id: str | UUID, run_id: str) -> _Steps:
        """Return the steps of a run in the order in which they started."""
        return await list_steps(self._database, thread_uuid(thread_id), run_id)


def run_from_row(row: asyncpg.Record) -> Run:
    return Run(
        id=row["id"],
        thread_id=str(row["thread_id"]),
        app_name=row["app_name"],
        status=RunStatus(row["status"]),
        thinking_steps=load_jsonb(row["thinking_steps"]),
        tool_calls=load_jsonb(row["tool_calls"]),
        error=_text(row["error"]),
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
        queue=row["queue"] or None,
        priority=row["priority"],
        last_wait=_wait(row),
        resumption_context=_document(row["resumption_context"]),
        claimable_since=row["claimable_since"],
        traceparent=row["traceparent"],
    )


def attempt_span(run: Run, *, agent: str | None = None) -> ActiveSpan:
    """Return the span of one attempt of a run, in the trace in which the run was created."""
    name = agent or run.handler or "run"
    attributes = agent_attributes(name, conversation_id=run.thread_id, run_id=run.id, attempt=run.attempt)
    return span(f"invoke_agent {name}", attributes, parent=run.traceparent)


def _cursor(run: Run) -> str:
    return encode_cursor(run.created_at.isoformat(), run.thread_id, run.id)


def _position(created_at: str, thread_id: str, run_id: str) -> tuple[datetime, UUID, str]:
    return datetime.fromisoformat(created_at), UUID(thread_id), str(run_id)


def checked_document(what: str, value: Any, *, max_depth: int, max_bytes: int) -> str:
    """Return a value as JSON text; raise `InvalidInputError` for one that cannot be stored or exceeds a limit."""
    try:
        text = dump_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{what} cannot be stored as JSON: {error}") from error
    check_depth(text, value, max_depth)
    if (size := text_bytes(text)) > max_bytes:
        raise LimitExceededError(what, size=size, limit=max_bytes, setting="COGNIZES_MAX_EVENT_BYTES")
    return text


def _document(text: str | None) -> Any:
    return load_json(text) if text is not None else None


def _text(escaped: str | None) -> str | None:
    return unescape_text(escaped) if escaped is not None else None


def _wait(row: asyncpg.Record) -> RunWait | None:
    if row["wait_key"] is None:
        return None
    return RunWait(
        kind=row["wait_kind"],
        correlation_key=row["wait_key"],
        reason=_text(row["wait_reason"]),
        expires_at=row["wait_expires_at"],
        timeout_node=row["wait_timeout_node"],
        since=row["waiting_since"],
    )
