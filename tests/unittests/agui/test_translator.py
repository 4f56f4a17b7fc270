"""The table of contracts/agui.md, row by row; every stream is checked against all rules of the clients."""

from __future__ import annotations

from typing import Any

import pytest

from cognizes.engine.agui.translator import Translator
from cognizes.engine.models import DELETE_JSON, Event
from tests.unittests.agui.conftest import adk, call, dump, engine_event, kinds, make_translator, response, said, thought
from tests.unittests.agui.legality import assert_legal


def stream(*events: Event, translator: Translator | None = None) -> list[dict[str, Any]]:
    """The frames of a whole run, without RUN_STARTED, STATE_SNAPSHOT."""
    translator = translator or make_translator()
    frames = translator.start()
    for event in events:
        frames += translator.translate(event)
    frames += translator.finish()
    dumped = dump(frames)
    assert_legal(dumped)
    assert kinds(dumped)[:2] == ["RUN_STARTED", "STATE_SNAPSHOT"]
    return dumped[2:]


def test_a_run_starts_with_version_and_state() -> None:
    started, state = dump(make_translator(state={"a": 1, "temp:b": 2}).start())
    assert (started["threadId"], started["runId"], started["protocolVersion"]) == ("t", "r", "1.0")
    assert "input" not in started
    assert state["snapshot"] == {"a": 1}


def test_fragments_then_the_whole_say_the_text_once() -> None:
    frames = stream(
        adk(said("Hel"), event_id="p1", partial=True),
        adk(said("lo"), event_id="p2", partial=True),
        adk(said("Hello you"), event_id="p1"),
    )
    assert kinds(frames) == [
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END", "RUN_FINISHED",
    ]  # fmt: skip
    assert "".join(frame.get("delta", "") for frame in frames) == "Hello you"
    assert {frame["messageId"] for frame in frames if "messageId" in frame} == {"p1"}


def test_the_whole_alone_is_one_message_and_two_turns_are_two() -> None:
    frames = stream(adk(said("one"), event_id="a"), adk(said("two"), event_id="b"))
    assert [frame["messageId"] for frame in frames if frame["type"] == "TEXT_MESSAGE_START"] == ["a", "b"]


def test_several_text_parts_are_one_text() -> None:
    frames = stream(
        adk(said("one "), partial=True), adk(said("tw"), partial=True), adk(said("one "), said("two"), said("!"))
    )
    assert "".join(frame.get("delta", "") for frame in frames) == "one two!"


def test_a_rewritten_whole_is_not_said_again() -> None:
    frames = stream(adk(said("secret"), partial=True), adk(said("[redacted]")))
    assert [frame["delta"] for frame in frames if "delta" in frame] == ["secret"]


def test_thoughts_are_closed_before_text() -> None:
    frames = stream(adk(thought("hm"), partial=True), adk(said("yes"), partial=True), adk(thought("hm"), said("yes")))
    assert kinds(frames) == [
        "REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_END",
        "REASONING_END", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED",
    ]  # fmt: skip
    assert frames[0]["messageId"] != frames[5]["messageId"]


def test_a_thought_after_text_opens_again_under_the_same_id() -> None:
    frames = stream(adk(thought("a"), said("b"), thought("c"), said("d"), event_id="m"))
    assert [frame["delta"] for frame in frames if frame["type"] == "TEXT_MESSAGE_CONTENT"] == ["b", "d"]
    assert {frame["messageId"] for frame in frames if frame["type"].startswith("TEXT")} == {"m"}


def test_a_tool_call_closes_text_and_has_its_message_as_parent() -> None:
    frames = stream(
        adk(said("let me look"), event_id="m", partial=True),
        adk(said("let me look"), call("c1", q="x"), event_id="m"),
        adk(response("c1", {"hits": [1]}), event_id="o"),
    )
    assert kinds(frames) == [
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "TOOL_CALL_START", "TOOL_CALL_ARGS",
        "TOOL_CALL_END", "TOOL_CALL_RESULT", "RUN_FINISHED",
    ]  # fmt: skip
    assert frames[3]["parentMessageId"] == "m"
    assert frames[4]["delta"] == '{"q":"x"}'
    assert (frames[6]["messageId"], frames[6]["toolCallId"], frames[6]["content"]) == ("o", "c1", '{"hits":[1]}')


def test_results_of_parallel_calls_have_ids_of_their_own() -> None:
    frames = stream(adk(call("c1"), call("c2")), adk(response("c1", {}), response("c2", {}), event_id="o"))
    assert [frame["messageId"] for frame in frames if frame["type"] == "TOOL_CALL_RESULT"] == ["o", "o/1"]


def test_a_call_in_a_fragment_waits_for_the_whole() -> None:
    frames = stream(adk(call("c1"), partial=True), adk(call("c1", q=1)))
    assert kinds(frames).count("TOOL_CALL_START") == 1


def test_state_deltas_are_adds_and_removes_that_fit() -> None:
    deltas = [
        {"state_delta": {"a/b": 1, "c~d": None, "temp:x": 1}},
        {"state_delta": {"temp:only": 1}},
        {"state_delta": {"a/b": DELETE_JSON, "never": DELETE_JSON}},
    ]
    frames = stream(*(adk(event_id=str(number), actions=delta) for number, delta in enumerate(deltas)))
    assert [frame["delta"] for frame in frames if frame["type"] == "STATE_DELTA"] == [
        [{"op": "add", "path": "/a~1b", "value": 1}, {"op": "add", "path": "/c~0d", "value": None}],
        [{"op": "remove", "path": "/a~1b"}],
    ]


def subagents(frames: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(frame["type"], frame["subagentRunId"]) for frame in frames if frame["type"].startswith("SUBAGENT")]


def test_sub_agents() -> None:
    frames = stream(
        adk(call("c1", "transfer_to_agent", agent_name="poet")), adk(response("c1", {}, "transfer_to_agent")),
        adk(said("a rose"), event_id="p", author="poet"), adk(said("back"), event_id="q"),
        adk(said("a lily"), event_id="s", author="poet"),
    )  # fmt: skip
    assert subagents(frames) == [
        ("SUBAGENT_STARTED", "p/poet"), ("SUBAGENT_FINISHED", "p/poet"),
        ("SUBAGENT_STARTED", "s/poet"), ("SUBAGENT_FINISHED", "s/poet"),
    ]  # fmt: skip
    assert {frame["name"] for frame in frames if "name" in frame} == {"poet"}


def test_a_sub_agent_that_asks_is_suspended() -> None:
    frames = stream(
        adk(said("back"), event_id="a"),
        adk(call("q1", "adk_request_confirmation"), event_id="p", author="poet", long_running_tool_ids=["q1"]),
    )
    assert frames[-2]["outcome"] == {"type": "suspended"}
    assert frames[-1]["outcome"]["type"] == "interrupt"


def test_parallel_agents_speak_at_the_same_time() -> None:
    frames = stream(
        adk(said("a"), event_id="1", author="one", branch="p.one", partial=True),
        adk(said("x"), event_id="2", author="two", branch="p.two", partial=True),
        adk(said("ab"), event_id="1", author="one", branch="p.one"),
        adk(said("xy"), event_id="2", author="two", branch="p.two"),
    )
    texts: dict[str, str] = {}
    for frame in frames:
        if frame["type"] == "TEXT_MESSAGE_CONTENT":
            texts[frame["messageId"]] = texts.get(frame["messageId"], "") + frame["delta"]
    assert texts == {"1": "ab", "2": "xy"}
    assert kinds(frames).count("SUBAGENT_STARTED") == kinds(frames).count("SUBAGENT_FINISHED") == 2


def test_a_confirmation_is_an_interrupt_without_result() -> None:
    frames = stream(
        adk(call("c1", "delete", name="x")),
        adk(response("c1", {"error": "requires confirmation"}, "delete"), event_id="o",
            actions={"requested_tool_confirmations": {"c1": {"hint": "sure?"}}}),
        adk(call("q1", "adk_request_confirmation", originalFunctionCall={"id": "c1", "name": "delete", "args": {}},
                 toolConfirmation={"hint": "sure?"}), event_id="p", long_running_tool_ids=["q1"]),
    )  # fmt: skip
    assert kinds(frames) == ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "RUN_FINISHED"]
    (interrupt,) = frames[-1]["outcome"]["interrupts"]
    assert frames[-1]["outcome"]["type"] == "interrupt"
    assert (interrupt["id"], interrupt["toolCallId"], interrupt["message"]) == ("q1", "c1", "sure?")


def test_a_resumed_run_has_only_the_result_of_the_old_call() -> None:
    frames = stream(
        adk(response("q1", {"confirmed": True}, "adk_request_confirmation"), author="user"),
        adk(response("c1", {"deleted": "x"}, "delete"), event_id="o"),
    )
    assert kinds(frames) == ["TOOL_CALL_RESULT", "RUN_FINISHED"]
    assert "outcome" not in frames[-1]


def test_a_long_running_tool_has_no_result_and_is_pending() -> None:
    frames = stream(
        adk(call("c1"), long_running_tool_ids=["c1"]), adk(response("c1", {"status": "pending"}), event_id="o")
    )
    assert kinds(frames) == ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "RUN_FINISHED"]
    assert frames[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["c1"]}


def test_an_error_closes_everything_and_nothing_follows() -> None:
    translator = make_translator()
    frames = translator.start()
    for event in (
        adk(said("Hel"), author="poet", partial=True),
        adk(event_id="x", error_code="SAFETY", error_message="blocked"),
        adk(said("more"), event_id="y"),
    ):
        frames += translator.translate(event)
    frames += translator.finish()
    dumped = dump(frames)
    assert_legal(dumped)
    assert kinds(dumped)[2:] == [
        "SUBAGENT_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "SUBAGENT_ERROR",
        "RUN_ERROR",
    ]  # fmt: skip
    assert (dumped[-1]["message"], dumped[-1]["code"]) == ("blocked", "SAFETY")


def test_cancelling_closes_everything() -> None:
    translator = make_translator()
    frames = [*translator.start(), *translator.translate(adk(thought("hm"), partial=True)), *translator.cancel()]
    dumped = dump(frames)
    assert_legal(dumped)
    assert dumped[-1]["outcome"] == {"type": "cancelled"}
    assert translator.cancel() == []


def test_what_people_say_is_for_observers_only() -> None:
    event = adk(said("hi"), event_id="u", author="user")
    assert kinds(stream(event)) == ["RUN_FINISHED"]
    frames = stream(event, translator=make_translator(with_user=True))
    assert (frames[0]["role"], frames[0]["messageId"], frames[1]["delta"]) == ("user", "u", "hi")


def test_the_engines_own_events() -> None:
    frames = stream(
        engine_event("run_started"),
        engine_event("thought", thought="hm", event_id="1"),
        engine_event("act", tool_call_id="c", tool_name="f", tool_input={"a": 1}, event_id="2"),
        engine_event("observe", tool_call_id="c", observation=[1], event_id="3"),
        engine_event("message", text="hello", event_id="4"),
        engine_event("title_changed", title="x", event_id="5"),
        translator=make_translator(root_agent=None),
    )
    assert kinds(frames) == [
        "REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_END",
        "REASONING_END", "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT",
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "CUSTOM", "RUN_FINISHED",
    ]  # fmt: skip
    assert frames[9]["role"] == "assistant"


@pytest.mark.parametrize(
    ("kind", "last"),
    [("run_finished", "RUN_FINISHED"), ("run_failed", "RUN_ERROR"), ("run_cancelled", "RUN_FINISHED")],
)
def test_the_stored_end_of_a_run_ends_the_stream(kind: str, last: str) -> None:
    translator = make_translator()
    frames = dump([*translator.start(), *translator.translate(engine_event(kind, error="boom"))])
    assert_legal(frames)
    assert frames[-1]["type"] == last
    assert translator.has_ended


def test_lone_surrogates_do_not_break_a_frame() -> None:
    frames = stream(adk(said("a\ud800b"), event_id="m"))
    assert frames[1]["delta"] == "a\ufffdb"


def test_unfinished_turns_are_what_was_streamed_only() -> None:
    translator = make_translator()
    translator.translate(adk(said("half"), event_id="p", partial=True))
    (turn,) = translator.unfinished_turns()
    assert (turn.id, turn.author, turn.text) == ("p", "root", "half")
    translator.translate(adk(said("half done"), event_id="p"))
    assert translator.unfinished_turns() == []


def test_an_event_that_was_seen_is_remembered_but_its_state_is_not_changed_again() -> None:
    translator = make_translator(state={"n": 2})
    translator.recall(adk(call("c1"), long_running_tool_ids=["c1"], actions={"state_delta": {"n": 1}}))
    translator.recall(adk(call("q1", "adk_request_confirmation"), event_id="e2", long_running_tool_ids=["q1"]))
    (change,) = dump(translator.translate(adk(event_id="e3", actions={"state_delta": {"n": DELETE_JSON}})))
    assert change["delta"] == [{"op": "remove", "path": "/n"}]
    assert [interrupt.id for interrupt in translator.interrupts] == ["q1"]
    assert translator.pending == ["c1"]
