"""Rows of the view `run_rows` as `Run` objects, the documents of a run, and the cursor of a list of runs."""

from __future__ import annotations

import base64
import binascii
import json
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from cognizes.engine.database.documents import check_depth, dump_json, load_json, load_jsonb, text_bytes, unescape_text
from cognizes.engine.errors import InvalidInputError, LimitExceededError
from cognizes.engine.models import Run, RunStatus, RunWait
from cognizes.engine.telemetry import ActiveSpan, agent_attributes, span


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


def make_cursor(run: Run) -> str:
    position = [run.created_at.isoformat(), run.thread_id, run.id]
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode()


def read_cursor(cursor: str) -> tuple[datetime, UUID, str]:
    """Return the position of a cursor: creation time, thread and id of a run."""
    try:
        created_at, thread_id, run_id = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        return datetime.fromisoformat(created_at), UUID(thread_id), str(run_id)
    except (ValueError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise InvalidInputError(
            f"invalid cursor {cursor[:80]!r}; use next_cursor of the previous page, or none"
        ) from error


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
