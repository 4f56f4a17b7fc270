"""Events of a run: each is delivered once, wherever connections are cut."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from cognizes.client import (
    FeedRewoundError,
    InvalidAnswerError,
    MessageEnded,
    MessageStarted,
    OtherEvent,
    RunEnded,
    RunEvent,
    RunStarted,
    RunWaiting,
    StateChanged,
    TextDelta,
    ToolCalled,
    ToolReturned,
)
from cognizes.client.run_events import RunEventReader

Frame = tuple[dict[str, Any], int | None]

RUN: list[Frame] = [
    ({"type": "RUN_STARTED"}, 2),
    ({"type": "REASONING_START", "messageId": "r"}, None),
    ({"type": "REASONING_MESSAGE_START", "messageId": "r"}, None),
    ({"type": "REASONING_MESSAGE_CONTENT", "messageId": "r", "delta": "Look it up."}, None),
    ({"type": "REASONING_MESSAGE_END", "messageId": "r"}, None),
    ({"type": "REASONING_END", "messageId": "r"}, 3),
    ({"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "look_up"}, None),
    ({"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": '{"q":'}, None),
    ({"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "1}"}, None),
    ({"type": "TOOL_CALL_END", "toolCallId": "c"}, 4),
    ({"type": "TOOL_CALL_RESULT", "toolCallId": "c", "content": "42"}, 5),
    ({"type": "CUSTOM", "name": "heartbeat"}, None),
    ({"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"}, None),
    ({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "It is "}, None),
    ({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "forty-two."}, None),
    ({"type": "TEXT_MESSAGE_END", "messageId": "m"}, None),
    ({"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/n", "value": 42}]}, 6),
    ({"type": "CUSTOM", "name": "run_waiting", "value": {"correlation_key": "k"}}, 7),
    ({"type": "CUSTOM", "name": "own_kind", "value": [1]}, 8),
    ({"type": "RUN_FINISHED", "status": "failed", "error": "no luck"}, 9),
]
EVENTS: list[RunEvent] = [
    RunStarted(2),
    MessageStarted(None, "r", "thought"),
    TextDelta(None, "r", "Look it up.", True, "thought"),
    MessageEnded(None, "r"),
    ToolCalled(4, "c", "look_up", '{"q":1}'),
    ToolReturned(5, "c", "42"),
    MessageStarted(None, "m", "assistant"),
    TextDelta(None, "m", "It is forty-two.", False),
    MessageEnded(None, "m"),
    StateChanged(6, [{"op": "add", "path": "/n", "value": 42}]),
    RunWaiting(7, {"correlation_key": "k"}),
    OtherEvent(8, "own_kind", [1]),
    RunEnded(9, "failed", "no luck"),
]


def send(reader: RunEventReader, frames: list[Frame]) -> list[RunEvent]:
    """Read frames as a connection delivers them: a frame without an id has that of the frame before it."""
    events: list[RunEvent] = []
    last = ""
    for frame, number in frames:
        last = last if number is None else str(number)
        events += reader.read(json.dumps(frame), last)
    return events


def resumed_after(sequence: int) -> list[Frame]:
    """What the server sends to a client that has the events up to one: all frames of the others."""
    numbers = [number or 0 for _, number in RUN]
    done = max((index for index, number in enumerate(numbers) if number and number <= sequence), default=-1)
    return RUN[done + 1 :]


def joined(events: list[RunEvent]) -> list[RunEvent]:
    """Events with the deltas of a message joined."""
    found: list[RunEvent] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta) and last.message_id == event.message_id:
            found[-1] = replace(event, sequence_num=None, text=last.text + event.text)
        else:
            found.append(event)
    return found


def test_one_connection() -> None:
    reader = RunEventReader()
    assert joined(send(reader, RUN)) == EVENTS
    assert reader.last_sequence == 9


@pytest.mark.parametrize("second", range(0, len(RUN) + 1, 3))
@pytest.mark.parametrize("first", range(len(RUN) + 1))
def test_each_event_is_delivered_once_wherever_two_connections_are_cut(first: int, second: int) -> None:
    reader = RunEventReader()
    events = send(reader, RUN[:first])
    reader.reattach()
    events += send(reader, resumed_after(reader.last_sequence)[:second])
    reader.reattach()
    events += send(reader, resumed_after(reader.last_sequence))
    assert joined(events) == EVENTS


def test_a_message_that_was_stored_shorter_than_it_was_streamed_ends() -> None:
    reader = RunEventReader()
    start = {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"}
    send(reader, [(start, None), ({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "too much"}, None)])
    reader.reattach()
    stored = {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "too"}
    rest = send(reader, [(start, None), (stored, None), ({"type": "TEXT_MESSAGE_END", "messageId": "m"}, 1)])
    assert rest == [MessageEnded(1, "m")]


def test_a_feed_that_lost_events_is_an_error() -> None:
    with pytest.raises(FeedRewoundError, match="reload"):
        send(RunEventReader(), [({"type": "RUN_ERROR", "code": "FEED_REWOUND", "message": "events are lost"}, None)])


@pytest.mark.parametrize("text", ["nonsense", "[]"])
def test_a_frame_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(InvalidAnswerError):
        list(RunEventReader().read(text, ""))


def test_text_has_the_role_of_its_message_also_on_the_next_connection() -> None:
    asked: list[Frame] = [
        ({"type": "TEXT_MESSAGE_START", "messageId": "u", "role": "user"}, None),
        ({"type": "TEXT_MESSAGE_CONTENT", "messageId": "u", "delta": "What"}, None),
    ]
    reader = RunEventReader()
    events = send(reader, asked)
    reader.reattach()
    events += send(reader, [*asked, ({"type": "TEXT_MESSAGE_CONTENT", "messageId": "u", "delta": " is it?"}, None)])
    assert [(event.text, event.role) for event in events if isinstance(event, TextDelta)] == [
        ("What", "user"),
        (" is it?", "user"),
    ]
