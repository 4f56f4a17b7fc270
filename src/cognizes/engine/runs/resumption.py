"""What a run gets back when it goes on after a wait: what ended the wait, where it was, and what it had in mind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from cognizes.engine.database import Database
from cognizes.engine.database.documents import load_json, unescape_text
from cognizes.engine.models import JsonObject, Run
from cognizes.engine.runs.waits import Wait

TIMEOUT = "timeout"
MESSAGE = "message"


@dataclass(frozen=True)
class Resolution:
    """What ended a wait: a `signal`, a `timer`, a `message`, or a `timeout`."""

    source: str
    payload: Any

    @property
    def timed_out(self) -> bool:
        """Whether nobody answered in time."""
        return self.source == TIMEOUT


@dataclass(frozen=True)
class Resumption:
    """A run goes on. `payload_results` are those it had when it began to wait, and by its correlation key the payload
    of every wait that is over. The snapshot of its memory was applied before; the episodes and the long-term values it
    used are here. `kept_keys` are the state keys that another writer changed after the snapshot was taken: they keep
    the newer value, which may contradict what the run knew."""

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


def make_context(
    *,
    payload_results: Mapping[str, Any] | None,
    plan_decision_id: str | None,
    cursor_node: str | None,
    memory_snapshot: JsonObject | None,
) -> JsonObject:
    """The resumption context as it is stored with a wait."""
    return {
        "payload_results": dict(payload_results or {}),
        "plan_decision_id": plan_decision_id,
        "cursor_node": cursor_node,
        "memory_snapshot": memory_snapshot,
    }


async def read_resolution(database: Database, thread_id: UUID, run_id: str, wait: Wait) -> Resolution | None:
    """Return what ended a wait, or the kept signal that will end it."""
    row = await database.fetch_row("read_signal", thread_id, run_id, wait.correlation_key, wait.kind)
    return Resolution(row["source"], _payload(row)) if row else None


async def read_resumption(database: Database, run: Run) -> Resumption | None:
    """What a run that was claimed goes on with; None when it has not waited yet."""
    if run.last_wait is None:
        return None
    rows = await database.fetch("read_used_signals", UUID(run.thread_id), run.id)
    ended = {row["correlation_key"]: Resolution(row["source"], _payload(row)) for row in rows}
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
    )


def _payload(row: Any) -> Any:
    payload = load_json(row["payload"])
    if row["source"] == MESSAGE:
        payload["text"] = unescape_text(payload["text"])
    return payload
