"""What a run asks of people, as AG-UI interrupts."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ag_ui.core import Interrupt

from cognizes.engine.models import Event, JsonObject
from cognizes.engine.timeline.event_reading import REQUEST_PREFIX, Question

CONFIRMATION = f"{REQUEST_PREFIX}confirmation"

_CONFIRMATION_ANSWER: JsonObject = {
    "type": "object",
    "properties": {"confirmed": {"type": "boolean"}, "payload": {}},
    "required": ["confirmed"],
}


def wait_key_of(interrupt_ids: Iterable[str]) -> str:
    """The correlation key with which a run waits for the answers to its interrupts."""
    return ",".join(sorted(interrupt_ids))


def waits_for(event: Event, interrupt_ids: Collection[str]) -> bool:
    """Whether an event says that its run waits for the answer to one of these interrupts."""
    if event.event_type != "run_waiting":
        return False
    return not set(str(event.content.get("correlation_key")).split(",")).isdisjoint(interrupt_ids)


def interrupt_of(question: Question) -> Interrupt:
    """The interrupt of a question; the next input's `resume` answers it by its id."""
    if question.name != CONFIRMATION:
        return Interrupt(id=question.id, reason=question.name.removeprefix(REQUEST_PREFIX), metadata=question.arguments)
    call = question.arguments.get("originalFunctionCall") or {}
    confirmation = question.arguments.get("toolConfirmation") or {}
    return Interrupt(
        id=question.id,
        reason="confirmation",
        message=confirmation.get("hint") or f"May {call.get('name')} be called?",
        tool_call_id=call.get("id"),
        response_schema=_CONFIRMATION_ANSWER,
        metadata={"toolName": call.get("name"), "arguments": call.get("args") or {}},
    )
