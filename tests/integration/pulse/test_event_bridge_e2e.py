"""Seed 000 §5.3: from a commit or a NOTIFY in PostgreSQL through the bridge to frames, end to end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import asyncpg
import pytest

from cognizes.engine import Engine, Session
from cognizes.engine.database.notifications import Notifier
from cognizes.engine.models import Event
from cognizes.engine.pulse.event_bridge import AgUiEvent, AgUiEventType, PulseEventBridge
from cognizes.engine.pulse.pg_notify_listener import PgNotifyListener
from cognizes.engine.pulse.session_store import thread_uuid
from tests.engine_parts import bridge_of
from tests.unittests.agui.conftest import call, response, said


async def next_frame(frames: AsyncGenerator[AgUiEvent, None]) -> AgUiEvent:
    return await asyncio.wait_for(anext(frames), 60)


async def subscribed(bridge: PulseEventBridge) -> None:
    """Wait until a subscription that was begun is registered."""
    async with asyncio.timeout(60):
        while not bridge.subscribers:
            await asyncio.sleep(0.001)


@pytest.fixture
async def session(engine: Engine) -> Session:
    return await engine.sessions.create("app", "user")


class TestEventBridgeE2E:
    async def test_notify_triggers_agui_event(self, pool: asyncpg.Pool, database_url: str) -> None:
        """The bridge on a listener of its own: a NOTIFY of any client is a frame of the run that it names."""
        listener = PgNotifyListener(database_url)
        await listener.start()
        bridge = PulseEventBridge(listener)
        await bridge.start()
        async with aclosing(bridge.subscribe("r")) as frames:
            first = asyncio.ensure_future(next_frame(frames))
            await subscribed(bridge)
            for number, run_id in enumerate(["other", "r", "r"]):
                payload = json.dumps({"run_id": run_id, "number": number})
                await pool.execute("SELECT pg_notify('event_stream', $1)", payload)
            received = [await first, await next_frame(frames)]
        await bridge.stop()
        await listener.stop()
        assert [(frame.type, frame.run_id, frame.data["payload"]["number"]) for frame in received] == [
            ("RAW", "r", 1),
            ("RAW", "r", 2),
        ]

    async def test_a_listener_may_await_the_callback(self) -> None:
        """`start` asks nothing of the listener but subscribe and unsubscribe; it may await what it calls."""
        listener = AwaitingListener()
        bridge = PulseEventBridge(listener)
        await bridge.start()
        async with aclosing(bridge.subscribe("r")) as frames:
            first = asyncio.ensure_future(next_frame(frames))
            await subscribed(bridge)
            await listener.notify("event_stream", json.dumps({"run_id": "r", "n": 1}))
            assert (await first).data == {"payload": {"run_id": "r", "n": 1}}
        await bridge.stop()
        assert listener.callbacks == {}

    async def test_sse_format_output(self) -> None:
        event = AgUiEvent(AgUiEventType.RUN_STARTED, run_id="run-1", data={"threadId": "thread-1"})
        text = event.to_sse()
        assert text.startswith("data: ")
        assert text.endswith("\n\n")
        frame = json.loads(text.removeprefix("data: "))
        assert list(frame) == ["type", "runId", "timestamp", "threadId"]
        assert isinstance(frame["timestamp"], int)
        assert AgUiEvent(AgUiEventType.RAW, "r").timestamp >= event.timestamp

    async def test_event_type_mapping_completeness(self, engine: Engine, session: Session) -> None:
        """The six kinds of §2.5.2, each from its own source, written through another connection than the reader's."""
        async with reading(engine, "r") as seen:
            async with engine.runs.start(session, run_id="r") as run:
                async with run.message("assistant", message_id="m") as message:
                    for word in ("one ", "two "):
                        await message.write(word)
                        await seen.until(lambda frames, word=word: frames[-1].data.get("delta") == word)
                await engine.sessions.append(session, author="user", kind="message", text="hello", run_id="r")
                await adk_event(engine, session, said("looking"), call("c1", "search", q=1), call("c2", "weather"))
                await adk_event(engine, session, response("c1", {"hits": 1}), response("c2", {"sky": "clear"}))
                await engine.sessions.append(session, author="a", kind="state_update", state={"n": 1}, run_id="r")
            await seen.until(lambda frames: frames[-1].type == "RUN_FINISHED")
        text = ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"]
        tool = ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"]
        assert [frame.type for frame in seen.frames] == [
            "RUN_STARTED",  # runs INSERT
            "TEXT_MESSAGE_START", *["TEXT_MESSAGE_CONTENT"] * 2, "TEXT_MESSAGE_END",  # chunk deltas of the agent
            *text,  # a message of the user
            *text, *tool, *tool,  # an ADK event: text and two parallel calls
            "TOOL_CALL_RESULT", "TOOL_CALL_RESULT",
            "STATE_DELTA",  # threads UPDATE
            "RUN_FINISHED",  # runs UPDATE
        ]  # fmt: skip
        roles = [frame.data["role"] for frame in seen.frames if frame.type == "TEXT_MESSAGE_START"]
        assert roles == ["assistant", "user", "assistant"]
        calls = [frame.data for frame in seen.frames if frame.type == "TOOL_CALL_START"]
        assert [(data["toolCallId"], data["toolCallName"]) for data in calls] == [("c1", "search"), ("c2", "weather")]
        assert seen.frames[-1].data["status"] == "completed"

    async def test_gaps_of_notifications_are_detected_and_filled(
        self, engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every second notification is dropped on its way: the bridge still has each event once and in order."""
        notify = Notifier.notify
        sent: list[str] = []

        def drop_every_second(notifier: Notifier, channel: str, payload: str) -> None:
            sent.append(payload)
            if len(sent) % 2:
                notify(notifier, channel, payload)

        monkeypatch.setattr(Notifier, "notify", drop_every_second)
        async with reading(engine, "r") as seen:
            for number in range(1, 12):
                await engine.sessions.append(session, author="a", kind="message", text=str(number), run_id="r")
            await seen.until(lambda frames: sum(frame.type == "TEXT_MESSAGE_END" for frame in frames) == 11)
        assert [frame.data["delta"] for frame in seen.frames if "delta" in frame.data] == [
            str(number) for number in range(1, 12)
        ]
        assert [frame.sequence for frame in seen.frames if frame.sequence] == list(range(1, 12))
        assert len(sent) == 11

    async def test_an_event_larger_than_a_notification_arrives_whole(self, engine: Engine, session: Session) -> None:
        """PostgreSQL refuses a notification of 8000 bytes; the event itself is read back."""
        text = "é" * 100_000
        async with reading(engine, "r") as seen:
            await engine.sessions.append(session, author="a", kind="message", text=text, run_id="r")
            await seen.until(lambda frames: frames[-1].type == "TEXT_MESSAGE_END")
        assert [frame.data["delta"] for frame in seen.frames if "delta" in frame.data] == [text]


class AwaitingListener:
    """A listener that awaits its callbacks."""

    def __init__(self) -> None:
        self.callbacks: dict[str, Any] = {}

    async def subscribe(self, channel: str, callback: Any) -> None:
        self.callbacks[channel] = callback

    async def unsubscribe(self, channel: str) -> None:
        del self.callbacks[channel]

    async def notify(self, channel: str, payload: str) -> None:
        await self.callbacks[channel](channel, payload)


class Seen:
    """The frames that a subscription has received so far."""

    def __init__(self) -> None:
        self.frames: list[AgUiEvent] = []

    async def until(self, condition: Callable[[list[AgUiEvent]], bool]) -> None:
        async with asyncio.timeout(60):
            while not self.frames or not condition(self.frames):
                await asyncio.sleep(0.005)


@asynccontextmanager
async def reading(engine: Engine, run_id: str) -> AsyncIterator[Seen]:
    seen = Seen()

    async def read() -> None:
        async with aclosing(bridge_of(engine).subscribe(run_id)) as frames:
            async for frame in frames:
                seen.frames.append(frame)

    task = asyncio.create_task(read())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait([task])


async def adk_event(engine: Engine, session: Session, *parts: dict[str, Any]) -> None:
    """Append an event as the ADK adapter stores it."""
    kind = "observe" if any("function_response" in part for part in parts) else "assistant_message"
    content = {"parts": list(parts), "role": "model", "adk": {"timestamp": 1.0}}
    event = Event("", session.thread_id, "i", "root", kind, content, run_id="r")
    await engine.sessions.append_to_thread(thread_uuid(session.thread_id), event)
