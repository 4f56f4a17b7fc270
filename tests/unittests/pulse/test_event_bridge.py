"""The six mappings of seed 000, the frame on the wire, and the bridge over a bare listener."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from cognizes.engine.agui.json_patch import json_patch
from cognizes.engine.agui.monitor import frames_of
from cognizes.engine.models import DELETE, Event
from cognizes.engine.pulse.event_bridge import AgUiEvent, AgUiEventType, PulseEventBridge

NOW = datetime(2026, 1, 25, 12, 0, 0, 5000, tzinfo=UTC)


def event(kind: str, content: dict[str, Any] | None = None, **more: Any) -> Event:
    given = {"author": "agent", "run_id": "r", "sequence_num": 7, "created_at": NOW, **more}
    return Event(id="e", thread_id="t", invocation_id="i", event_type=kind, content=content or {}, **given)


def kinds(frames: list[AgUiEvent]) -> list[str]:
    return [frame.type.value for frame in frames]


def test_the_frame_on_the_wire_is_exact() -> None:
    frame = AgUiEvent(AgUiEventType.CUSTOM, "r", 5, {"name": "connected", "message": "é\n"})
    assert frame.to_sse() == (
        'data: {"type":"CUSTOM","runId":"r","timestamp":5,"name":"connected","message":"é\\n"}\n\n'
    )


def test_every_type_that_was_asked_for_is_there() -> None:
    asked = [
        "RUN_STARTED",
        "RUN_FINISHED",
        "RUN_ERROR",
        "STEP_STARTED",
        "STEP_FINISHED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "STATE_SNAPSHOT",
        "STATE_DELTA",
        "MESSAGES_SNAPSHOT",
        "RAW",
        "CUSTOM",
    ]
    assert set(asked) <= {kind.value for kind in AgUiEventType}
    assert isinstance(AgUiEventType.RAW, str)


def test_run_started() -> None:
    (frame,) = frames_of(event("run_started"))
    assert (frame.type, frame.run_id, frame.data) == ("RUN_STARTED", "r", {"threadId": "t"})
    assert frame.timestamp == 1769342400005


@pytest.mark.parametrize(
    ("kind", "status"), [("run_finished", "completed"), ("run_failed", "failed"), ("run_cancelled", "cancelled")]
)
def test_run_finished(kind: str, status: str) -> None:
    (frame,) = frames_of(event(kind, {"error": "boom"} if status == "failed" else {}))
    assert (frame.type, frame.data["status"]) == ("RUN_FINISHED", status)
    assert frame.data.get("error") == ("boom" if status == "failed" else None)


@pytest.mark.parametrize(
    ("kind", "author", "role"),
    [("message", "user", "user"), ("message", "agent", "assistant"), ("user_message", "x", "user"),
     ("assistant_message", "x", "assistant")],
)  # fmt: skip
def test_text_message(kind: str, author: str, role: str) -> None:
    start, content, end = frames_of(event(kind, {"text": "hello", "message_id": "m"}, author=author))
    assert kinds([start, content, end]) == ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"]
    assert start.data == {"messageId": "m", "role": role}
    assert content.data == {"messageId": "m", "delta": "hello"}
    assert (start.sequence, content.sequence, end.sequence) == (None, None, 7)


def test_state_delta() -> None:
    (frame,) = frames_of(event("state_update", actions={"state_delta": {"a/b": 1, "~": None, "user:x": DELETE}}))
    assert frame.type == "STATE_DELTA"
    assert frame.data["delta"] == [
        {"op": "add", "path": "/a~1b", "value": 1},
        {"op": "add", "path": "/~0", "value": None},
        {"op": "remove", "path": "/user:x"},
    ]
    assert json_patch({}) == []


def test_a_message_that_changes_state_is_both() -> None:
    frames = frames_of(event("message", {"text": "hi"}, actions={"state_delta": {"n": 1}}))
    assert kinds(frames) == ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "STATE_DELTA"]
    assert frames[-1].sequence == 7


@pytest.mark.parametrize("kind", ["act", "tool_call"])
def test_tool_call(kind: str) -> None:
    start, arguments, end = frames_of(
        event(kind, {"tool_call_id": "c", "tool_name": "search", "tool_input": {"z": 1, "a": 2}})
    )
    assert (start.type, start.data) == ("TOOL_CALL_START", {"toolCallId": "c", "toolCallName": "search"})
    assert (arguments.type, arguments.data["delta"]) == ("TOOL_CALL_ARGS", '{"z":1,"a":2}')
    assert end.type == "TOOL_CALL_END"
    (result,) = frames_of(event("observe", {"tool_call_id": "c", "observation": {"hits": 0}}))
    assert (result.type, result.data["toolCallId"], result.data["content"]) == ("TOOL_CALL_RESULT", "c", '{"hits":0}')


def test_an_unknown_kind_is_custom() -> None:
    (frame,) = frames_of(event("skill_matched", {"skill": "x"}))
    assert (frame.type, frame.data) == ("CUSTOM", {"name": "skill_matched", "value": {"skill": "x"}})


async def test_start_and_stop() -> None:
    listener = BareListener()
    bridge = PulseEventBridge(listener)
    await bridge.start()
    await bridge.start()
    assert set(listener.callbacks) == {"event_stream"}
    await bridge.stop()
    await bridge.stop()
    assert not listener.callbacks


class BareListener:
    """A listener with only `subscribe` and `unsubscribe`."""

    def __init__(self) -> None:
        self.callbacks: dict[str, Any] = {}

    async def subscribe(self, channel: str, callback: Any) -> None:
        self.callbacks[channel] = callback

    async def unsubscribe(self, channel: str) -> None:
        del self.callbacks[channel]


async def test_the_bridge_over_a_bare_listener() -> None:
    listener = BareListener()
    bridge = PulseEventBridge(listener)
    await bridge.start()
    received: list[AgUiEvent] = []

    async def hear() -> None:
        async for frame in bridge.subscribe("r"):
            received.append(frame)

    task = asyncio.create_task(hear())
    await until(lambda: bridge.subscribers)
    notify = listener.callbacks["event_stream"]
    for text in (json.dumps({"run_id": "other"}), "nonsense", "[1]", "{}", json.dumps({"run_id": "r", "n": 1})):
        notify("event_stream", text)
    await until(lambda: received)
    assert [(frame.type, frame.data) for frame in received] == [("RAW", {"payload": {"run_id": "r", "n": 1}})]
    task.cancel()
    await asyncio.wait([task])
    assert not bridge.subscribers
    assert not listener.callbacks, "without subscribers the bridge does not listen"


async def test_a_subscriber_that_does_not_read_keeps_a_bounded_queue() -> None:
    listener = BareListener()
    bridge = PulseEventBridge(listener)
    await bridge.start()
    frames = bridge.subscribe("r")
    first = asyncio.ensure_future(anext(frames))
    await until(lambda: bridge.subscribers)
    for number in range(1000):
        listener.callbacks["event_stream"]("event_stream", json.dumps({"run_id": "r", "n": number}))
    assert (await first).data["payload"]["n"] == 0
    kept = [(await anext(frames)).data["payload"]["n"] for _ in range(63)]
    assert kept == list(range(1, 64))
    listener.callbacks["event_stream"]("event_stream", json.dumps({"run_id": "r", "n": 1000}))
    assert (await anext(frames)).data["payload"]["n"] == 1000, "those between are dropped"
    await frames.aclose()


class SlowListener(BareListener):
    """Subscribes and unsubscribes when its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def subscribe(self, channel: str, callback: Any) -> None:
        await self.gate.wait()
        await super().subscribe(channel, callback)

    async def unsubscribe(self, channel: str) -> None:
        await self.gate.wait()
        await super().unsubscribe(channel)


async def follow(bridge: PulseEventBridge, received: list[AgUiEvent]) -> None:
    async for frame in bridge.subscribe("r"):
        received.append(frame)


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


async def test_a_subscriber_that_comes_while_the_last_one_leaves_receives_notifications() -> None:
    listener = SlowListener()
    bridge = PulseEventBridge(listener)
    leaving = asyncio.create_task(follow(bridge, []))
    await until(lambda: listener.callbacks)
    listener.gate.clear()
    leaving.cancel()
    await until(lambda: not bridge.subscribers)
    received: list[AgUiEvent] = []
    coming = asyncio.create_task(follow(bridge, received))
    await until(lambda: bridge.subscribers)
    listener.gate.set()
    await asyncio.wait([leaving])
    await until(lambda: listener.callbacks)
    listener.callbacks["event_stream"]("event_stream", json.dumps({"run_id": "r", "n": 1}))
    await until(lambda: received)
    coming.cancel()
    await asyncio.wait([coming])
    assert not listener.callbacks
