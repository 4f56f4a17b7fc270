"""Seed 003 §8.1: signals written and read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from cognizes.client.signal_pull import parse_signal
from cognizes.engine.api.routes.signals import read_positions
from cognizes.engine.sync.signals import MAX_BYTES, Signal, SignalType

MOMENT = datetime(2025, 11, 8, 12, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("state_changed", {"new_state": "StreamingLLMResponse"}),
        ("content_delta", {"message_id": "msg-uuid", "current_sequence": 7}),
        ("message_completed", {"message_id": "msg-uuid", "final_sequence": 9}),
        ("message_created", {"message_id": "msg-uuid", "role": "user"}),
        ("tool_approval", {"approval_id": "a", "status": "requested", "tool_name": "delete"}),
        ("title_updated", {}),
        ("heartbeat", {}),
    ],
)
def test_8_1_signals_are_written_and_read(kind: str, fields: dict[str, Any]) -> None:
    text = Signal(SignalType(kind), "ctx-uuid", 17, fields, MOMENT).to_text()
    assert parse_signal(text) == {
        "type": kind, "context_id": "ctx-uuid", **fields, "sequence_num": 17, "timestamp": "2025-11-08T12:00:01Z",
    }  # fmt: skip
    assert "\n" not in text


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600", "\ud800", '"', "\n"])
def test_8_1_a_signal_is_less_than_a_kilobyte_whatever_the_ids(letter: str) -> None:
    text = Signal(SignalType.CONTENT_DELTA, "c" * 36, 1, {"message_id": letter * 5000, "current_sequence": 1}).to_text()
    assert len(text.encode()) < MAX_BYTES
    assert "\n" not in text
    assert parse_signal(text)["is_cut"] is True


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"type": "other"}', "nonsense"])
def test_8_1_what_is_no_signal_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json.JSONDecodeError is one
        parse_signal(text)


def test_the_place_to_resume_is_read_from_the_last_event_id() -> None:
    assert read_positions("17", 1) == [17]
    assert read_positions("h.0", 2) == [17, 0]
    for strange in (None, "", "x", "-1", "1.2", "²", "9" * 40):
        assert read_positions(strange, 1) == [None]
    assert read_positions("17", 2) == [None, None]
    assert json.dumps(read_positions("zz.1", 2)) == "[1295, 1]"
