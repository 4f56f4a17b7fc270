"""What a client would hold after the frames, and what brings another one there."""

from __future__ import annotations

from cognizes.engine.agui.snapshot import Snapshot, fold_events
from cognizes.engine.models import Event
from tests.unittests.agui.conftest import adk, call, dump, make_translator, response, said, thought
from tests.unittests.agui.legality import assert_legal

TURN = [
    adk(said("find x"), event_id="u", author="user"),
    adk(thought("hm"), event_id="m1", partial=True),
    adk(said("look"), event_id="m2", partial=True),
    adk(thought("hm"), said("looking"), call("c1", q="x"), event_id="m1", actions={"state_delta": {"n": 1}}),
    adk(response("c1", {"hits": 2}), event_id="o1"),
    adk(said("two"), event_id="a1", partial=True),
    adk(said("two hits"), event_id="a1", actions={"state_delta": {"n": 2, "user:k": "v"}}),
]
MESSAGES = [
    {"id": "u", "role": "user", "content": "find x"},
    {"id": "m1/thought", "role": "reasoning", "content": "hm"},
    {"id": "m1", "role": "assistant", "content": "looking",
     "toolCalls": [{"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q":"x"}'}}]},
    {"id": "o1", "role": "tool", "toolCallId": "c1", "content": '{"hits":2}'},
    {"id": "a1", "role": "assistant", "content": "two hits"},
]  # fmt: skip


def folded(events: list[Event]) -> Snapshot:
    translator = make_translator(with_user=True)
    snapshot = Snapshot().fold(translator.start())
    for event in events:
        snapshot.fold(translator.translate(event))
    return snapshot


def test_a_turn_becomes_messages_and_state() -> None:
    snapshot = folded(TURN)
    assert snapshot.messages == MESSAGES
    assert snapshot.state == {"n": 2, "user:k": "v"}
    assert snapshot.open_items.start_frames() == []


def test_stored_events_alone_become_the_same_messages() -> None:
    stored = [event for event in TURN if not event.content["adk"].get("partial")]
    assert fold_events(stored).snapshot.messages == MESSAGES


def test_a_snapshot_from_the_middle_and_the_rest_end_where_the_whole_does() -> None:
    for middle in range(len(TURN) + 1):
        translator = make_translator(with_user=True)
        so_far = Snapshot().fold(translator.start())
        for event in TURN[:middle]:
            so_far.fold(translator.translate(event))
        frames = so_far.frames()
        for event in TURN[middle:]:
            frames += translator.translate(event)
        frames += translator.finish()
        started = make_translator().start()[:1]
        assert_legal(dump([*started, *frames]))
        cold = Snapshot().fold(frames)
        warm = folded(TURN[:middle]).fold(frames)
        assert cold.messages == warm.messages == MESSAGES
        assert cold.state == warm.state == {"n": 2, "user:k": "v"}


def test_a_call_without_its_parent_gets_a_message() -> None:
    translator = make_translator()
    snapshot = Snapshot().fold(translator.translate(adk(call("c1"), event_id="m")))
    assert [(message["id"], "content" in message) for message in snapshot.messages] == [("m", False)]


def test_results_stand_behind_their_call() -> None:
    snapshot = folded(
        [adk(call("c1"), event_id="m"), adk(said("later"), event_id="n"), adk(response("c1", 1), event_id="o")]
    )
    assert [message["id"] for message in snapshot.messages] == ["m", "o", "n"]


def test_open_questions_survive_the_end_of_a_run_until_they_are_answered() -> None:
    asked = adk(
        call("q1", "adk_request_confirmation", originalFunctionCall={"id": "c1", "name": "f"}, toolConfirmation={}),
        event_id="q", long_running_tool_ids=["q1"],
    )  # fmt: skip
    end = Event("e", "t", "", "system", "run_finished", {}, run_id="r")
    answered = adk(response("q1", {"confirmed": True}, "adk_request_confirmation"), event_id="a", author="user")
    assert [interrupt.id for interrupt in fold_events([asked, end]).interrupts] == ["q1"]
    assert fold_events([asked, end, answered]).interrupts == []
    assert fold_events([asked, end, adk(said("never mind"), event_id="u", author="user")]).interrupts == []


def test_a_tool_that_waits_is_remembered_until_it_is_answered_or_something_else_is_said() -> None:
    asked = adk(call("c1", "pick"), event_id="m", long_running_tool_ids=["c1"])
    end = Event("e", "t", "", "system", "run_finished", {}, run_id="r")
    other = Event("f", "t", "", "system", "state_update", {}, {"state_delta": {"n": 1}})
    answered = adk(response("c1", {"result": "blue"}, "pick"), event_id="a", author="user")
    assert fold_events([asked, end]).pending == ["c1"]
    assert fold_events([asked, end, other]).pending == ["c1"]
    assert fold_events([asked, end, answered]).pending == []
    assert fold_events([asked, end, adk(said("never mind"), event_id="u", author="user")]).pending == []


def test_a_sub_agent_at_work_is_open() -> None:
    translator = make_translator()
    snapshot = Snapshot().fold(translator.translate(adk(said("a rose"), event_id="p", author="poet", partial=True)))
    assert [frame.type.value for frame in snapshot.take_open()] == ["SUBAGENT_STARTED", "TEXT_MESSAGE_START"]
    assert snapshot.fold(translator.finish()).open_items.start_frames() == []
