"""Seed 003 §8.1: gaps are seen, increments are merged, nothing is said twice."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cognizes.engine.sync.client import ContextCopy, MessageCopy

TOKENS = ["Hel", "lo", " ", "wor", "ld", "!"]
CHUNKS = [{"sequence": number, "delta": token} for number, token in enumerate(TOKENS, 1)]


def stored(name: str, text: str, *, status: str = "completed", final: int | None = 3) -> dict[str, Any]:
    content = [] if status == "streaming" else [{"type": "text", "text": text}]
    return {
        "id": name,
        "role": "assistant",
        "status": status,
        "content": content,
        "final_sequence": final,
        "sequence_num": 1,
    }


def test_8_1_a_gap_is_detected() -> None:
    message = MessageCopy("m")
    assert message.lacks(1)
    message.append(CHUNKS[:2])
    assert not message.lacks(2)
    assert message.lacks(5)


def test_8_1_increments_are_merged_once_and_in_order() -> None:
    message = MessageCopy("m")
    assert message.append(CHUNKS[:3]) == 3
    assert message.append(CHUNKS[1:4]) == 1
    assert message.append(CHUNKS[:2]) == 0
    assert (message.text, message.sequence) == ("Hello wor", 4)


def test_8_1_nothing_is_appended_after_a_gap() -> None:
    message = MessageCopy("m")
    message.append(CHUNKS[:1])
    assert message.append(CHUNKS[3:]) == 0
    assert (message.text, message.sequence) == ("Hel", 1)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=20))
def test_8_1_whatever_ranges_arrive_the_text_is_a_beginning_of_the_whole(ranges: list[tuple[int, int]]) -> None:
    message = MessageCopy("m")
    for start, end in ranges:
        message.append(CHUNKS[start:end])
        assert message.text == "".join(TOKENS[: message.sequence])
    message.append(CHUNKS)
    assert message.text == "Hello world!"


def test_a_whole_message_replaces_the_received_part() -> None:
    message = MessageCopy("m")
    message.append(CHUNKS[:2])
    message.replace(stored("m", "Hello world!", final=6))
    assert (message.text, message.sequence, message.is_complete) == ("Hello world!", 6, True)
    assert message.append(CHUNKS) == 0
    assert message.text == "Hello world!"


def test_a_list_replaces_what_signals_announced() -> None:
    copy = ContextCopy(branch="main")
    copy.add("m").append(CHUNKS[:2])
    copy.extend(
        [stored("u", "hi", final=None), stored("m", "Hello world!", final=6), stored("s", "", status="streaming")]
    )
    assert [(message.id, message.text) for message in copy.messages] == [("u", "hi"), ("m", "Hello world!"), ("s", "")]
    assert list(copy.unplaced) == ["s"]
    assert copy.find("s") is copy.add("s")
