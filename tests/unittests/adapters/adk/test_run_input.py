"""What a client's input means to ADK."""

from __future__ import annotations

from typing import Any

import pytest
from ag_ui.core import RunAgentInput
from google.adk.events.event import Event
from google.genai import types

from cognizes.engine.adapters.adk.run_input import read_turn
from cognizes.engine.errors import InvalidInputError


def run_input(*messages: dict[str, Any], **more: Any) -> RunAgentInput:
    return RunAgentInput.model_validate({"threadId": "t", "runId": "r", "messages": list(messages), **more})


def user(message_id: str, content: Any = "hi") -> dict[str, Any]:
    return {"id": message_id, "role": "user", "content": content}


def stored(event_id: str, *parts: types.Part, author: str = "user", long_running: set[str] | None = None) -> Event:
    role = "user" if author == "user" else "model"
    return Event(
        id=event_id,
        author=author,
        content=types.Content(role=role, parts=list(parts)),
        long_running_tool_ids=long_running,
    )


def called(call_id: str, name: str) -> types.Part:
    return types.Part(function_call=types.FunctionCall(id=call_id, name=name, args={}))


ASKED = stored("q", called("q1", "adk_request_confirmation"), author="root", long_running={"q1"})
YES = {"interruptId": "q1", "status": "resolved", "payload": {"confirmed": True}}


def test_only_what_follows_the_stored_messages_is_new() -> None:
    history = [stored("u1", types.Part(text="hi")), stored("a1", types.Part(text="yes"), author="root")]
    messages = [user("u1"), {"id": "a1", "role": "assistant", "content": "yes"}, user("u2", "and now?")]
    turn = read_turn(run_input(*messages), history)
    assert (turn.message_id, turn.earlier, [message.id for message in turn.new_messages]) == ("u2", [], ["u2"])
    assert turn.content.parts == [types.Part(text="and now?")]


def test_messages_of_a_foreign_past_are_not_the_users_turn() -> None:
    messages = [user("x1"), {"id": "x2", "role": "assistant", "content": "?"}, user("x3", "a"), user("x4", "b")]
    turn = read_turn(run_input(*messages), [])
    assert [message_id for message_id, _ in turn.earlier] == ["x3"]
    assert turn.message_id == "x4"


def test_a_question_asked_again_is_stored_again() -> None:
    turn = read_turn(run_input(user("u1")), [stored("u1", types.Part(text="hi"))])
    assert (turn.message_id, turn.new_messages) == (None, [])


def test_pictures_and_files() -> None:
    content = [
        {"type": "text", "text": "look"},
        {"type": "image", "source": {"type": "data", "value": "eHk=", "mimeType": "image/png"}},
        {"type": "document", "source": {"type": "url", "value": "https://x/y.pdf", "mimeType": "application/pdf"}},
    ]
    parts = read_turn(run_input(user("u", content)), []).content.parts or []
    assert parts[0].text == "look"
    assert parts[1].inline_data == types.Blob(data=b"xy", mime_type="image/png")
    assert parts[2].file_data == types.FileData(file_uri="https://x/y.pdf", mime_type="application/pdf")
    broken = [{"type": "image", "source": {"type": "data", "value": "???", "mimeType": "image/png"}}]
    with pytest.raises(InvalidInputError, match="base64"):
        read_turn(run_input(user("u", broken)), [])


@pytest.mark.parametrize(
    ("answer", "confirmed"),
    [
        (YES, True),
        ({**YES, "payload": False}, False),
        ({"interruptId": "q1", "status": "cancelled"}, False),
    ],
)
def test_answers_to_questions(answer: dict[str, Any], confirmed: bool) -> None:
    (part,) = read_turn(run_input(resume=[answer]), [ASKED]).content.parts or []
    assert part.function_response is not None
    assert (part.function_response.id, part.function_response.response) == ("q1", {"confirmed": confirmed})


@pytest.mark.parametrize(
    "resume",
    [
        [{**YES, "interruptId": "x"}],
        [{"interruptId": "q1", "status": "resolved"}],
        [{**YES, "payload": {"confirmed": "yes"}}],
    ],
)
def test_answers_that_cannot_be(resume: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidInputError):
        read_turn(run_input(resume=resume), [ASKED])


def test_every_open_question_must_be_answered_once() -> None:
    both = [ASKED, stored("p", called("q2", "adk_request_confirmation"), author="root", long_running={"q2"})]
    with pytest.raises(InvalidInputError, match="q2"):
        read_turn(run_input(resume=[YES]), both)
    answered = stored(
        "a", types.Part(function_response=types.FunctionResponse(id="q1", name="adk_request_confirmation", response={}))
    )
    with pytest.raises(InvalidInputError, match="q1"):
        read_turn(run_input(resume=[YES]), [ASKED, answered])
    with pytest.raises(InvalidInputError, match="q1"):
        read_turn(run_input(resume=[YES]), [ASKED, stored("u", types.Part(text="never mind"))])


def test_results_of_the_clients_tools() -> None:
    history = [stored("c", called("c1", "pick"), author="root", long_running={"c1"})]
    result = {"id": "m", "role": "tool", "toolCallId": "c1", "content": '{"colour":"blue"}'}
    turn = read_turn(run_input(result), history)
    (part,) = turn.content.parts or []
    assert part.function_response is not None
    assert (part.function_response.name, part.function_response.response) == ("pick", {"colour": "blue"})
    assert turn.message_id == "m"
    with pytest.raises(InvalidInputError, match="nothing to answer"):
        read_turn(run_input({**result, "toolCallId": "unknown"}), history)


def test_documents_that_are_too_deep_to_parse_stay_texts() -> None:
    deep = "[" * 20_000
    history = [stored("c", called("c1", "pick"), author="root", long_running={"c1"})]
    result = {"id": "m", "role": "tool", "toolCallId": "c1", "content": deep}
    (part,) = read_turn(run_input(result), history).content.parts or []
    assert part.function_response is not None
    assert part.function_response.response == {"result": deep}
    call = {"id": "c1", "type": "function", "function": {"name": "pick", "arguments": deep}}
    brought = [{"id": "a", "role": "assistant", "toolCalls": [call]}, user("u")]
    (event,) = read_turn(run_input(*brought), [], agent="root", is_end_user=False).history
    (part,) = (event.content and event.content.parts) or []
    assert part.function_call is not None
    assert part.function_call.args == {"arguments": deep}
