"""Stored events as items of the timeline, in the words of seed 002."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from cognizes.engine.models import Event
from cognizes.engine.timeline.timeline import items_of
from tests.unittests.agui.conftest import adk, call, engine_event, response, said, thought

MOMENT = datetime(2026, 1, 2, tzinfo=UTC)


def items(event: Event) -> list[dict[str, Any]]:
    event.sequence_num, event.created_at = 7, MOMENT
    return items_of(event)


def placed(**item: Any) -> dict[str, Any]:
    return {"sequenceNumber": 7, "timestamp": int(MOMENT.timestamp() * 1000), **item}


def test_the_five_items_of_the_seed() -> None:
    assert items(engine_event("user_message", content="hi", message_id="m1")) == [
        placed(id="m1", type="user_message", content="hi")
    ]
    assert items(engine_event("thought", thought="let me see")) == [
        placed(id="thought-7", type="thought", content="let me see")
    ]
    assert items(engine_event("act", tool_name="search", tool_input={"q": 1}, tool_call_id="c")) == [
        placed(id="act-7", type="tool_call", toolCallId="c", toolName="search", toolInput={"q": 1})
    ]
    seen = engine_event("observe", tool_name="search", observation="found", is_error=True, tool_call_id="c")
    assert items(seen) == [
        placed(id="observe-7", type="tool_result", toolCallId="c", toolName="search", toolOutput="found", isError=True)
    ]
    assert items(engine_event("assistant_message", content="done", message_id="m2")) == [
        placed(id="m2", type="assistant_message", content="done")
    ]


def test_a_message_without_an_id_of_its_own_has_its_type_and_sequence() -> None:
    assert items(engine_event("user_message", content="hi"))[0]["id"] == "user_message-7"
    assert items(engine_event("assistant_message", content="hi"))[0]["id"] == "assistant_message-7"
    assert items(engine_event("assistant_message", content="hi", message_id=""))[0]["id"] == "assistant_message-7"
    of_user, of_agent = (items(engine_event("message", author=author, text="hi"))[0] for author in ("user", "agent"))
    assert (of_user["id"], of_user["type"]) == ("user_message-7", "user_message")
    assert (of_agent["id"], of_agent["type"]) == ("assistant_message-7", "assistant_message")


def test_a_message_of_adk_has_the_id_it_was_streamed_with() -> None:
    assert items(adk(said("hi")))[0]["id"] == "e1"


def test_blank_thoughts_are_dropped() -> None:
    assert items(engine_event("thought", thought=" \n")) == []
    assert items(engine_event("thought")) == []


def test_messages_for_the_model_and_partial_events_have_no_item() -> None:
    assert items(engine_event("system_message", text="be brief")) == []
    assert items(engine_event("message", author="system", text="be brief")) == []
    assert items(adk(said("Hel"), partial=True)) == []


@pytest.mark.parametrize("actions", [{"end_of_agent": True}, {"agent_state": {"current_sub_agent": "clerk"}}])
def test_the_state_and_the_end_of_an_agent_of_adk_have_no_item(actions: dict[str, Any]) -> None:
    assert items(adk(actions=actions)) == []


def test_a_message_without_words_keeps_its_parts() -> None:
    image = [{"type": "image", "url": "a.png"}]
    assert items(engine_event("user_message", content=image))[0]["content"] == image
    assert items(engine_event("user_message", text=""))[0]["content"] == ""


def test_an_interrupted_message_is_marked() -> None:
    assert items(engine_event("assistant_message", text="Hel", interrupted=True))[0]["interrupted"] is True
    assert "interrupted" not in items(engine_event("assistant_message", text="Hello"))[0]


def test_an_adk_event_becomes_an_item_for_each_part_in_order() -> None:
    event = adk(
        thought("hm "),
        thought("so"),
        said("I will "),
        said("look."),
        call("c1", q=1),
        call("c2", "fetch"),
        said("Wait."),
    )
    found = items(event)
    assert [(item["id"], item["type"]) for item in found] == [
        ("thought-7", "thought"), ("e1", "assistant_message"), ("act-7", "tool_call"), ("act-7/1", "tool_call"),
        ("e1/1", "assistant_message"),
    ]  # fmt: skip
    assert (found[0]["content"], found[1]["content"], found[4]["content"]) == ("hm so", "I will look.", "Wait.")
    assert (found[2]["toolName"], found[2]["toolInput"]) == ("search", {"q": 1})


def test_adk_results_know_their_tool_and_whether_they_failed() -> None:
    good, bad = items(adk(response("c1", {"n": 1}), response("c2", {"error": "no"}, name="fetch"), author="user"))
    assert (good["toolName"], good["toolOutput"], good["isError"]) == ("search", {"n": 1}, False)
    assert (bad["toolName"], bad["isError"], bad["id"]) == ("fetch", True, "observe-7/1")


@pytest.mark.parametrize(
    ("question", "requested"),
    [
        ("adk_request_confirmation", "requested_tool_confirmations"),
        ("adk_request_credential", "requested_auth_configs"),
    ],
)
def test_a_question_is_neither_a_call_nor_a_result(question: str, requested: str) -> None:
    assert items(adk(call("q", question))) == []
    assert items(adk(response("q", {"confirmed": True}, name=question), author="user")) == []
    waiting = adk(response("c1", {"error": "confirm"}), actions={requested: {"c1": {}}})
    assert items(waiting) == []
