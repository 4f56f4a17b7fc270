"""What a run can wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from cognizes.engine.errors import InvalidInputError
from cognizes.engine.models import JsonObject
from cognizes.engine.pulse.events import check_keys, check_text


class WaitKind(StrEnum):
    """Who ends a wait: a webhook, a human or another program by a signal; the clock; or the user by a message."""

    WEBHOOK = "webhook"
    HUMAN = "human"
    TIMER = "timer"
    SIGNAL = "signal"
    MESSAGE = "message"


class SignalOutcome(StrEnum):
    """What became of a signal: it woke the run, it is kept for a wait to come, or one of its key came before."""

    RESUMED = "resumed"
    KEPT = "kept"
    DUPLICATE = "duplicate"


class RunSuspended(BaseException):
    """The run waits; its handler ends here and is called again when the wait is over."""


@dataclass(frozen=True)
class Wait:
    """A wait that was checked: it can be stored."""

    kind: WaitKind
    correlation_key: str
    reason: str | None
    expires_at: datetime | None
    timeout_node: str | None
    cursor_node: str | None
    plan_decision_id: str | None
    payload_results: JsonObject

    def to_event(self, run_id: str) -> JsonObject:
        """What the thread is told."""
        return {
            "run_id": run_id,
            "status": "waiting",
            "wait_kind": self.kind,
            "correlation_key": self.correlation_key,
            "reason": self.reason,
            "expires_at": self.expires_at.isoformat() if self.expires_at else None,
        }


def check_wait(
    *,
    kind: str,
    correlation_key: str,
    reason: str | None = None,
    expires_at: datetime | None = None,
    timeout_node: str | None = None,
    cursor_node: str | None = None,
    plan_decision_id: str | None = None,
    payload_results: Mapping[str, Any] | None = None,
) -> Wait:
    """Refuses a wait that could never end, or that cannot be stored."""
    if kind not in list(WaitKind):
        raise InvalidInputError(f"{kind!r} is no kind of wait; there is {', '.join(WaitKind)}")
    if not check_text("correlation_key", correlation_key):
        raise InvalidInputError("correlation_key is empty; name what the run waits for")
    if expires_at is not None and expires_at.tzinfo is None:
        raise InvalidInputError("expires_at has no time zone; use an aware datetime")
    if kind == WaitKind.TIMER and expires_at is None:
        raise InvalidInputError("a timer needs expires_at: the moment at which it fires")
    if timeout_node is not None and expires_at is None:
        raise InvalidInputError("timeout_node needs expires_at: the moment from which it is taken")
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
