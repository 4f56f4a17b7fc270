"""Stored ADK events are decoded by a validator without the hooks of ADK's models; the result is the same."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.events.event import Event, NodeInfo
from google.adk.events.event_actions import EventActions
from google.genai import types
from pydantic import ValidationError

from cognizes.engine.adapters.adk.events import decode_event, encode_event
from cognizes.engine.database.documents import dump_json

PARTS = [
    types.Part(text="tea \x00 \ud800"),
    types.Part(text="why", thought=True, thought_signature=b"\x00\xff"),
    types.Part(function_call=types.FunctionCall(id="1", name="brew", args={"b": 1, "a": [None, {"x": 2.5}]})),
    types.Part(function_response=types.FunctionResponse(id="1", name="brew", response={"result": "done"})),
    types.Part(inline_data=types.Blob(data=b"\x89PNG\x00", mime_type="image/png")),
    types.Part(file_data=types.FileData(file_uri="gs://bucket/a.pdf", mime_type="application/pdf")),
    types.Part(executable_code=types.ExecutableCode(code="1 + 1", language=types.Language.PYTHON)),
    types.Part(code_execution_result=types.CodeExecutionResult(outcome=types.Outcome.OUTCOME_OK, output="2")),
]
EVENTS = [
    Event(author="user", content=types.Content(role="user", parts=[part])) for part in PARTS
] + [
    Event(author="agent"),
    Event(author="agent", content=types.Content()),
    Event(author="agent", content=types.Content(role="model", parts=PARTS), branch="a.b", turn_complete=True),
    Event(author="agent", error_code="500", error_message="no", long_running_tool_ids={"1", "2"}, interrupted=True),
    Event(
        author="agent",
        actions=EventActions(
            state_delta={"a": {"b": [1, None]}, "user:x": 1.5},
            artifact_delta={"f": 2},
            transfer_to_agent="other",
            escalate=True,
        ),
        custom_metadata={"k": [1, {"z": None}]},
        node_info=NodeInfo(path="root/child"),
        usage_metadata=types.GenerateContentResponseUsageMetadata(prompt_token_count=3, total_token_count=5),
        grounding_metadata=types.GroundingMetadata(web_search_queries=["tea"]),
        finish_reason=types.FinishReason.STOP,
    ),
]  # fmt: skip


def stored(event: Event, **changed: Any) -> dict[str, Any]:
    """Return the row of an event as the database returns it."""
    row = encode_event(event, thread_id="t")
    columns = {"id": row.id, "invocation_id": row.invocation_id, "author": row.author, "event_type": row.event_type}
    return columns | {"content": dump_json(row.content), "actions": dump_json(row.actions)} | changed


@pytest.mark.parametrize("event", EVENTS)
def test_a_decoded_event_equals_the_stored_one(event: Event) -> None:
    decoded = decode_event(stored(event))
    assert type(decoded) is Event
    assert decoded == event
    assert decoded.model_dump() == event.model_dump()


def test_the_types_of_all_fields_are_validated() -> None:
    for content in ('{"adk":{"timestamp":"noon"}}', '{"adk":{"timestamp":1},"parts":[{"text":[1]}]}'):
        with pytest.raises(ValidationError):
            decode_event(stored(Event(author="a"), content=content))
    with pytest.raises(ValidationError):
        decode_event(stored(Event(author="a"), actions='{"unknown": 1}'))


def test_decoding_runs_no_constructor_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constructors and hooks in Python would take two thirds of the time."""
    row = stored(EVENTS[0])
    monkeypatch.setattr(types.Part, "__init__", lambda *_, **__: pytest.fail("the constructor was called"))
    assert decode_event(row).content is not None
