"""The table of kinds says what the translator does."""

from __future__ import annotations

from typing import Any

import pytest

from cognizes.engine.agui.translator import Translator
from cognizes.engine.models import Event
from cognizes.engine.pulse.events import STREAMED_KINDS
from cognizes.engine.timeline.event_kinds import KINDS, SHOWN_KINDS, is_stored

CONTRACT = (
    "user_message", "assistant_message", "thought", "act", "observe", "work_plan", "step_start", "step_end",
    "pattern_match", "skill_matched", "skill_execution_start", "skill_execution_complete", "decision_asked",
    "decision_answered", "clarification_asked", "clarification_answered", "state_update", "complete", "error",
    "cancelled", "message", "tool_call",
)  # fmt: skip
STREAMED_ONLY = ("text_start", "text_delta", "text_end", "thought_delta")

_CONTENT: dict[str, dict[str, Any]] = {
    "thought": {"thought": "hm"},
    "act": {"tool_call_id": "c", "tool_name": "search", "tool_input": {"q": 1}},
    "tool_call": {"tool_call_id": "c", "tool_name": "search", "tool_input": {"q": 1}},
    "observe": {"tool_call_id": "c", "observation": [1]},
    "tool_result": {"tool_call_id": "c", "output": [1]},
    "activity": {"message_id": "m", "activity_type": "plan", "content": {"done": 1}},
    "agui_frame": {"frame": {"type": "CUSTOM", "name": "n", "value": 1}},
    "interrupt": {"interrupts": [{"id": "i", "reason": "input"}]},
    "resume": {"answered": ["i"]},
}


def frames_of(kind: str) -> list[str]:
    translator = Translator(thread_id="t", run_id="r", state={}, with_user=True)
    event = Event(
        id="e", thread_id="t", invocation_id="", event_type=kind,
        author="user" if kind in ("user_message", "resume") else "agent",
        content=_CONTENT.get(kind, {"text": "hello"}),
        actions={"state_delta": {"n": 1}} if kind == "state_update" else {}, run_id="r", sequence_num=1,
    )  # fmt: skip
    return [str(frame.type.value) for frame in translator.translate(event)]


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS.values() if kind.is_stored])
def test_the_table_and_the_translator_agree(kind: str) -> None:
    assert tuple(frames_of(kind)) == KINDS[kind].frames


def test_every_kind_of_the_contract_is_in_the_table() -> None:
    assert all(KINDS[name].is_stored for name in CONTRACT)
    assert not any(KINDS[name].is_stored or KINDS[name].is_shown for name in STREAMED_ONLY)


def test_seed_002_persistent_and_shown_kinds() -> None:
    persistent = {
        "user_message", "thought", "act", "observe", "assistant_message", "work_plan", "step_start", "step_end",
        "pattern_match", "skill_matched", "skill_execution_start", "skill_execution_complete", "complete", "error",
    }  # fmt: skip
    assert all(is_stored(name) for name in persistent)
    shown = {"user_message", "thought", "act", "observe", "assistant_message"}
    assert shown | {"message", "tool_call", "tool_result"} == set(SHOWN_KINDS)


def test_every_streamed_kind_is_in_the_table() -> None:
    assert {kind.name for kind in KINDS.values() if not kind.is_stored} == set(STREAMED_ONLY) == STREAMED_KINDS


def test_a_kind_of_an_application_is_stored() -> None:
    assert is_stored("their_own_kind")
    assert not is_stored("text_delta")
