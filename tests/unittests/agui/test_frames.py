"""Frames on the wire."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from ag_ui.core import (
    BaseEvent,
    CustomEvent,
    ReasoningMessageContentEvent,
    RunFinishedEvent,
    StateSnapshotEvent,
    TextMessageContentEvent,
    ToolCallArgsEvent,
)

from cognizes.engine.agui.frames import FrameEncoder, speaks_protocol_1, to_json
from tests.unittests.agui.conftest import adk, call, make_translator, said
from tests.unittests.agui.legality import assert_legal


def encode(frame: BaseEvent, *, number: int | None = None, protocol_1: bool = True) -> str:
    return FrameEncoder(protocol_1=protocol_1).encode(frame, number=number)


def payload(text: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(text.split("data: ")[1])
    return parsed


def test_framing_is_lf_with_an_id() -> None:
    text = encode(CustomEvent(name="x", value="a\r\nb", timestamp=1), number=7)
    assert text.startswith("id: 7\ndata: {")
    assert text.endswith("}\n\n")
    assert "\r" not in text
    assert text.count("\n") == 3


def test_optional_fields_are_left_out_and_required_nulls_stay() -> None:
    assert payload(encode(RunFinishedEvent(thread_id="t", run_id="r"))) == {
        "type": "RUN_FINISHED", "threadId": "t", "runId": "r",
    }  # fmt: skip
    assert payload(encode(CustomEvent(name="x", value=None)))["value"] is None


def test_values_that_are_no_json_pass() -> None:
    assert payload(encode(StateSnapshotEvent(snapshot={"n": math.nan, "s": "\ud800"})))["snapshot"] == {
        "n": None, "s": "\ufffd",
    }  # fmt: skip


def test_old_clients_get_only_the_outcome_they_know() -> None:
    cancelled = make_translator().cancel()[-1]
    assert payload(encode(cancelled))["outcome"] == {"type": "cancelled"}
    assert "outcome" not in payload(encode(cancelled, protocol_1=False))
    pending = make_translator()
    pending.translate(adk(call("c"), long_running_tool_ids=["c"]))
    assert "outcome" not in payload(encode(pending.finish()[-1], protocol_1=False))
    asking = make_translator()
    asking.translate(adk(call("q", "adk_request_confirmation")))
    assert "outcome" in payload(encode(asking.finish()[-1], protocol_1=False))


def test_old_clients_get_steps_for_sub_agents() -> None:
    translator = make_translator()
    frames = translator.start()
    for number, author in enumerate(["poet", "root", "poet"]):
        frames += translator.translate(adk(said("x"), event_id=str(number), author=author))
    frames += translator.fail("boom")
    new, old = FrameEncoder(), FrameEncoder(protocol_1=False)
    sent = [payload(old.encode(frame)) for frame in frames]
    assert [(frame["type"], frame["stepName"]) for frame in sent if "stepName" in frame] == [
        ("STEP_STARTED", "poet"), ("STEP_FINISHED", "poet"), ("STEP_STARTED", "poet"), ("STEP_FINISHED", "poet"),
    ]  # fmt: skip
    assert_legal(sent, protocol_1=False)
    assert_legal([payload(new.encode(frame)) for frame in frames])


@pytest.mark.parametrize(
    "frame",
    [
        TextMessageContentEvent(message_id="m", delta="a \ud800 b"),
        TextMessageContentEvent(message_id="m", delta="x", timestamp=5, raw_event={"n": 1}, metadata={"k": [1]}),
        TextMessageContentEvent.model_validate({"messageId": "m", "delta": "x", "custom": {"deep": True}}),
        ReasoningMessageContentEvent(message_id="m", delta="hm", subagent_run_id="s"),
        ToolCallArgsEvent(tool_call_id="c", delta='{"q":'),
    ],
)
@pytest.mark.parametrize("protocol_1", [True, False])
def test_frames_of_tokens_are_encoded_as_the_protocol_encodes_them(frame: BaseEvent, protocol_1: bool) -> None:
    expected = to_json(frame.model_dump(by_alias=True))
    assert FrameEncoder(protocol_1=protocol_1).encode(frame, number=7) == f"id: 7\ndata: {expected}\n\n"


def test_protocol_versions() -> None:
    assert [speaks_protocol_1(version) for version in ("1.0", "2.3", None, "", "0.9", "x")] == [
        True, True, False, False, False, False,
    ]  # fmt: skip
