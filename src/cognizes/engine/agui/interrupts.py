"""What a run asks of people, as AG-UI interrupts."""

from __future__ import annotations

from ag_ui.core import Interrupt

from cognizes.engine.models import JsonObject
from cognizes.engine.timeline.event_reading import REQUEST_PREFIX, Question

CONFIRMATION = f"{REQUEST_PREFIX}confirmation"

_CONFIRMATION_ANSWER: JsonObject = {
    "type": "object",
    "properties": {"confirmed": {"type": "boolean"}, "payload": {}},
    "required": ["confirmed"],
}


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
