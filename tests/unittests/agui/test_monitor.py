"""The monitor profile of what ADK agents do: the same ids, names, arguments and texts as in the strict profile."""

from __future__ import annotations

from typing import Any

import pytest

from cognizes.engine.agui.monitor import frames_of
from cognizes.engine.agui.translator import Profile, Translator
from cognizes.engine.models import DELETE, Event
from tests.unittests.agui.conftest import adk, call, dump, engine_event, make_translator, response, said, thought


def shown(event: Event) -> list[dict[str, Any]]:
    return [{"type": frame.type.value, **frame.data} for frame in frames_of(event)]


def test_parallel_tool_calls_have_their_own_ids_names_and_arguments() -> None:
    frames = shown(adk(said("Let me look."), call("c1", "search", q="x"), call("c2", "weather", city="Oslo")))
    assert [frame["type"] for frame in frames] == [
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
        "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END",
        "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END",
    ]  # fmt: skip
    calls = [frame for frame in frames if frame["type"] == "TOOL_CALL_START"]
    assert [(frame["toolCallId"], frame["toolCallName"]) for frame in calls] == [("c1", "search"), ("c2", "weather")]
    assert [frame["delta"] for frame in frames if frame["type"] == "TOOL_CALL_ARGS"] == ['{"q":"x"}', '{"city":"Oslo"}']


def test_results_are_what_the_tools_returned() -> None:
    frames = shown(adk(response("c1", {"hits": 2}), response("c2", {"sky": "clear"}, "weather")))
    assert [(frame["type"], frame["toolCallId"], frame["content"]) for frame in frames] == [
        ("TOOL_CALL_RESULT", "c1", '{"hits":2}'),
        ("TOOL_CALL_RESULT", "c2", '{"sky":"clear"}'),
    ]


def test_a_thought_is_reasoning_and_no_text() -> None:
    frames = shown(adk(thought("hm"), said("Yes.")))
    assert [frame["type"] for frame in frames] == [
        "REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_END",
        "REASONING_END", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
    ]  # fmt: skip
    assert [frame["delta"] for frame in frames if "delta" in frame] == ["hm", "Yes."]


@pytest.mark.parametrize(
    "event",
    [
        adk(thought("hm"), said("text"), call("c1"), call("c2", "other", a=None)),
        adk(response("c1", {"n": float("nan")}), response("c2", ["x"])),
        adk(said("a question"), author="user"),
        engine_event("thought", thought="why"),
        engine_event("act", tool_call_id="c", tool_name="search", tool_input={"q": 1}),
        engine_event("observe", tool_call_id="c", observation={"hits": 0}),
        engine_event("message", "user", text="hello"),
    ],
)
def test_both_profiles_say_the_same(event: Event) -> None:
    strict = dump(make_translator(with_user=True, root_agent=event.author).translate(event))
    for frame in strict:
        frame.pop("timestamp", None)
        if "parts" not in event.content:
            frame.pop("parentMessageId", None)
    assert shown(event) == strict


def test_state_changes_come_with_every_key_also_of_what_is_removed() -> None:
    event = adk(said("done"), actions={"state_delta": {"n": 1, "gone": DELETE}})
    assert shown(event)[-1] == {
        "type": "STATE_DELTA",
        "delta": [{"op": "add", "path": "/n", "value": 1}, {"op": "remove", "path": "/gone"}],
    }
    assert [frame["type"] for frame in shown(adk(actions={"state_delta": {"n": 1}}))] == ["STATE_DELTA"]


def test_an_error_of_the_model_is_shown_and_the_stream_continues() -> None:
    translator = Translator(thread_id="", run_id="", profile=Profile.MONITOR)
    failed = frames_of(adk(event_id="e1", error_code="SAFETY", error_message="blocked"), translator)
    assert [(frame.type, frame.data) for frame in failed] == [("RUN_ERROR", {"message": "blocked", "code": "SAFETY"})]
    assert [frame.type for frame in frames_of(adk(said("again"), event_id="e2"), translator)] == [
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
    ]


def test_a_fragment_that_was_stored_is_shown_by_its_whole_event() -> None:
    assert shown(adk(said("Hel"), partial=True)) == []


def test_how_a_run_continues_is_custom() -> None:
    assert shown(engine_event("run_waiting", reason="human")) == [
        {"type": "CUSTOM", "name": "run_waiting", "value": {"reason": "human"}}
    ]


def test_the_monitor_profile_has_no_sub_agents_and_no_state() -> None:
    translator = Translator(thread_id="t", run_id="r", profile=Profile.MONITOR)
    frames = [
        *translator.stream("m1", "assistant", "planner", ["Hel"]),
        *translator.stream("m2", "assistant", "writer", ["lo"]),
        *translator.translate(adk(said("done"), author="critic", actions={"state_delta": {"n": 1}})),
    ]
    assert [frame.type.value for frame in frames] == [
        *["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT"] * 2,
        *["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"],
    ]
