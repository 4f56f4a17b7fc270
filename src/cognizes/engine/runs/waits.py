"""Waits of a run: what it can wait for, what ended a wait, and what the run continues with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.documents import load_json, unescape_text
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.models import JsonObject, JsonValue, Run
from cognizes.engine.pulse.events import check_keys, check_text
from cognizes.engine.telemetry import record_span


class WaitKind(StrEnum):
    """What ends a wait: a signal of a webhook, a human or another program; a time; or a message of the user."""

    WEBHOOK = "webhook"
    HUMAN = "human"
    TIMER = "timer"
    SIGNAL = "signal"
    MESSAGE = "message"


class SignalOutcome(StrEnum):
    """The outcome of a signal: it ended a wait, it is kept for a later wait, or its key was used before."""

    RESUMED = "resumed"
    KEPT = "kept"
    DUPLICATE = "duplicate"


class RunSuspended(BaseException):
    """Ends the call of a handler whose run waits; the worker calls the handler again after the wait."""


@dataclass(frozen=True)
class Wait:
    kind: WaitKind
    correlation_key: str
    reason: str | None
    expires_at: datetime | None
    timeout_node: str | None
    cursor_node: str | None
    plan_decision_id: str | None
    payload_results: JsonObject

    def to_event(self, run_id: str) -> JsonObject:
        return {
            "run_id": run_id,
            "status": "waiting",
            "wait_kind": self.kind,
            "correlation_key": self.correlation_key,
            "reason": self.reason,
            "expires_at": self.expires_at.isoformat() if self.expires_at else None,
        }

    def to_context(self, memory_snapshot: JsonObject | None) -> JsonObject:
        return {
            "payload_results": self.payload_results,
            "plan_decision_id": self.plan_decision_id,
            "cursor_node": self.cursor_node,
            "memory_snapshot": memory_snapshot,
        }


@dataclass(frozen=True)
class Resolution:
    """What ended a wait: a `signal`, a `timer`, a `message`, or a `timeout`."""

    source: str
    payload: Any
    ended_at: datetime | None = None

    @property
    def timed_out(self) -> bool:
        return self.source == "timeout"


@dataclass(frozen=True)
class Resumption:
    """What a run continues with after a wait.

    `payload_results` are those that the run stored with the wait and, by correlation key, the payloads of all its ended
    waits. The memory snapshot is applied; the episodes and the long-term values that the run had used are here.
    `kept_keys` are the state keys that another writer changed after the snapshot was taken: they keep the newer value.
    """

    kind: str
    correlation_key: str
    payload: Any
    timed_out: bool
    payload_results: JsonObject
    plan_decision_id: str | None
    cursor_node: str | None
    memory_snapshot: Any = None
    kept_keys: list[str] = field(default_factory=list)
    episodic_tail: list[Any] = field(default_factory=list)
    long_term: dict[tuple[str, str], Any] = field(default_factory=dict)
    waited_from: datetime | None = None
    waited_until: datetime | None = None

    def record_span(self, run: Run) -> None:
        """Record the span of the wait, which began in an earlier attempt."""
        if self.waited_from is None or self.waited_until is None:
            return
        record_span(
            f"wait {self.kind}",
            {
                "gen_ai.conversation.id": run.thread_id,
                "cognizes.run.id": run.id,
                "cognizes.wait.kind": self.kind,
                "cognizes.wait.timed_out": self.timed_out,
            },
            started=self.waited_from,
            ended=self.waited_until,
            parent=run.traceparent,
        )


def check_wait(
    *,
    kind: str,
    correlation_key: str,
    reason: str | None = None,
    expires_at: datetime | None = None,
    timeout_node: str | None = None,
    cursor_node: str | None = None,
    plan_decision_id: str | None = None,
    payload_results: Mapping[str, JsonValue] | None = None,
) -> Wait:
    """Return a wait; raise `InvalidInputError` for one that could never end, or that cannot be stored."""
    if kind not in list(WaitKind):
        raise InvalidInputError(f"unknown kind of wait {kind!r}; use one of {', '.join(WaitKind)}")
    if not check_text("correlation_key", correlation_key):
        raise InvalidInputError("correlation_key is empty; name what the run waits for")
    if expires_at is not None and expires_at.tzinfo is None:
        raise InvalidInputError("expires_at has no time zone; use an aware datetime")
    if kind == WaitKind.TIMER and expires_at is None:
        raise InvalidInputError("a timer needs expires_at, the time at which it fires")
    if timeout_node is not None and expires_at is None:
        raise InvalidInputError("timeout_node needs expires_at, the time after which it is taken")
    for name, value in (("timeout_node", timeout_node), ("cursor_node", cursor_node), ("plan", plan_decision_id)):
        if value is not None:
            check_text(name, value)
    return Wait(
        kind=WaitKind(kind),
        correlation_key=correlation_key,
        reason=reason,
        expires_at=expires_at,
        timeout_node=timeout_node,
        cursor_node=cursor_node,
        plan_decision_id=plan_decision_id,
        payload_results=check_keys("payload_results", payload_results or {}),
    )


async def read_resolution(database: Database, thread_id: UUID, run_id: str, wait: Wait) -> Resolution | None:
    """Return what ended a wait, or the kept signal that will end it."""
    row = await database.fetch_row("read_signal", thread_id, run_id, wait.correlation_key, wait.kind)
    return Resolution(row["source"], _payload(row)) if row else None


async def read_resumption(database: Database, run: Run) -> Resumption | None:
    """Return what a run continues with after its last wait; None when no wait of the run is over."""
    if run.last_wait is None:
        return None
    rows = await database.fetch("read_used_signals", UUID(run.thread_id), run.id)
    ended = {row["correlation_key"]: Resolution(row["source"], _payload(row), row["used_at"]) for row in rows}
    resolution = ended.get(run.last_wait.correlation_key)
    if resolution is None:
        return None
    context = run.resumption_context or {}
    return Resumption(
        kind=run.last_wait.kind,
        correlation_key=run.last_wait.correlation_key,
        payload=resolution.payload,
        timed_out=resolution.timed_out,
        payload_results={
            **(context.get("payload_results") or {}),
            **{key: item.payload for key, item in ended.items() if not item.timed_out},
        },
        plan_decision_id=context.get("plan_decision_id"),
        cursor_node=run.last_wait.timeout_node if resolution.timed_out else context.get("cursor_node"),
        memory_snapshot=context.get("memory_snapshot"),
        waited_from=run.last_wait.since,
        waited_until=resolution.ended_at,
    )


def _payload(row: asyncpg.Record) -> Any:
    payload = load_json(row["payload"])
    if row["source"] == WaitKind.MESSAGE:
        payload["text"] = unescape_text(payload["text"])
    return payload
