"""The listener's dispatch, without a database: order, bad payloads, callbacks that fail."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import pytest

from cognizes.engine.pulse.pg_notify_listener import NotifyEvent, PgNotifyListener
from tests.unittests.pulse.listener_server import Server, new_listener


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def listener(server: Server) -> AsyncIterator[PgNotifyListener]:
    made = new_listener(server)
    await made.start()
    yield made
    await made.stop()


def test_the_default_channel() -> None:
    assert PgNotifyListener("postgresql://").channels == ["event_stream"]
    assert PgNotifyListener("postgresql://", ["a", "b"]).channels == ["a", "b"]
    assert not PgNotifyListener("postgresql://").is_running


@pytest.mark.parametrize(
    ("text", "payload"),
    [
        ('{"thread_id": "t"}', {"thread_id": "t"}),
        ("not json", {"raw": "not json"}),
        ("[1]", {"raw": "[1]"}),
        ("", {"raw": ""}),
    ],
)
async def test_payloads(listener: PgNotifyListener, server: Server, text: str, payload: dict[str, object]) -> None:
    heard: list[NotifyEvent] = []

    async def hear(event: NotifyEvent) -> None:
        heard.append(event)

    listener.on_event("event_stream", hear)
    server.current.say("event_stream", text)
    await listener.wait_for_callbacks()
    assert [event.payload for event in heard] == [payload]
    assert heard[0].received_at.tzinfo is not None


async def test_only_the_channel_that_was_asked_for(listener: PgNotifyListener, server: Server) -> None:
    heard: list[str] = []
    await listener.subscribe(channel="mine", callback=lambda channel, text: heard.append(f"{channel}:{text}"))
    server.current.say("other", "1")
    server.current.say("mine", "2")
    await listener.wait_for_callbacks()
    assert heard == ["mine:2"]
    await listener.unsubscribe("mine")
    server.current.say("mine", "3")
    await listener.wait_for_callbacks()
    assert heard == ["mine:2"]
    assert listener.channels == ["event_stream"]


async def test_one_thread_in_order_other_threads_not_held_up(listener: PgNotifyListener, server: Server) -> None:
    heard: list[tuple[str, int]] = []
    gate = asyncio.Event()

    async def hear(event: NotifyEvent) -> None:
        if event.payload["thread_id"] == "slow" and event.payload["n"] == 0:
            await gate.wait()
        heard.append((event.payload["thread_id"], event.payload["n"]))

    listener.on_event("event_stream", hear)
    for number in range(3):
        server.current.say("event_stream", json.dumps({"thread_id": "slow", "n": number}))
        server.current.say("event_stream", json.dumps({"thread_id": "fast", "n": number}))
    for _ in range(10):
        await asyncio.sleep(0)
    assert heard == [("fast", 0), ("fast", 1), ("fast", 2)]
    gate.set()
    await listener.wait_for_callbacks()
    assert heard[3:] == [("slow", 0), ("slow", 1), ("slow", 2)]


async def test_a_failing_callback_does_not_affect_others(
    listener: PgNotifyListener, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[int] = []

    async def fail(_: NotifyEvent) -> None:
        raise RuntimeError("boom")

    async def hear(event: NotifyEvent) -> None:
        heard.append(event.payload["n"])

    listener.on_event("event_stream", fail)
    listener.on_event("event_stream", hear)
    with caplog.at_level(logging.ERROR):
        for number in range(2):
            server.current.say("event_stream", json.dumps({"thread_id": "t", "n": number}))
        await listener.wait_for_callbacks()
    assert heard == [0, 1]
    assert len(caplog.records) == 2
