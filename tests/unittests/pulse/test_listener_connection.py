"""The listener's connection, without a database: who asks for what at the same time, and what a lost one leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest

from cognizes.engine.database.notifications import PgNotifyListener
from tests.unittests.pulse.listener_server import Server, new_listener


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def listener(server: Server) -> AsyncIterator[PgNotifyListener]:
    made = new_listener(server)
    await made.start()
    yield made
    await made.stop()


async def test_many_subscribers_at_once(listener: PgNotifyListener, server: Server) -> None:
    heard: list[str] = []
    names = [f"c{number}" for number in range(5)]
    await asyncio.gather(*(listener.subscribe(name, lambda channel, _: heard.append(channel)) for name in names))
    assert set(server.current.heard) == {"event_stream", *names}
    for name in names:
        server.current.say(name, "{}")
    await listener.wait_for_callbacks()
    assert sorted(heard) == names


async def test_a_subscriber_beside_the_check_of_the_connection(server: Server) -> None:
    asked = server.pause("check")
    listener = new_listener(server, check_seconds=0.001)
    await listener.start()
    await until(lambda: server.current.is_busy)
    subscribing = asyncio.create_task(listener.subscribe("mine", lambda *_: None))
    await asyncio.sleep(0)
    asked.set()
    await asyncio.wait_for(subscribing, 30)
    assert "mine" in server.current.heard
    await listener.stop()


async def test_one_leaves_while_another_comes(listener: PgNotifyListener, server: Server) -> None:
    first, second = list[str](), list[str]()
    await listener.subscribe("mine", lambda _, text: first.append(text))
    await asyncio.gather(listener.unsubscribe("mine"), listener.subscribe("mine", lambda _, text: second.append(text)))
    server.current.say("mine", "hello")
    await listener.wait_for_callbacks()
    assert (first, second) == ([], ["hello"])


async def test_one_comes_while_another_leaves_slowly(listener: PgNotifyListener, server: Server) -> None:
    heard: list[str] = []
    await listener.subscribe("mine", lambda *_: None)
    gate = server.pause("mine")
    leaving = asyncio.create_task(listener.unsubscribe("mine"))
    await until(lambda: server.current.is_busy)
    coming = asyncio.create_task(listener.subscribe("mine", lambda _, text: heard.append(text)))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(leaving, coming)
    server.current.say("mine", "hello")
    await listener.wait_for_callbacks()
    assert heard == ["hello"]


async def test_one_of_two_callbacks_leaves(listener: PgNotifyListener, server: Server) -> None:
    staying, leaving = list[str](), list[str]()

    def leave(_: str, text: str) -> None:
        leaving.append(text)

    await listener.subscribe("mine", lambda _, text: staying.append(text))
    await listener.subscribe("mine", leave)
    await listener.unsubscribe("mine", leave)
    server.current.say("mine", "hello")
    await listener.wait_for_callbacks()
    assert (staying, leaving) == (["hello"], [])


async def test_a_tap_receives_after_a_subscriber_has_left(listener: PgNotifyListener, server: Server) -> None:
    heard: list[str] = []
    listener.tap("event_stream", heard.append)
    await listener.subscribe("event_stream", lambda *_: None)
    await listener.unsubscribe("event_stream")
    server.current.say("event_stream", "{}")
    assert heard == ["{}"]


async def test_a_subscription_during_a_reconnect(listener: PgNotifyListener, server: Server) -> None:
    gate = server.pause("event_stream")
    server.current.terminate()
    await until(lambda: len(server.connections) == 2 and server.current.is_busy)
    assert not listener.is_running, "it does not hear anything yet"
    subscribing = asyncio.create_task(listener.subscribe("mine", lambda *_: None))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.wait_for(subscribing, 30)
    await until(lambda: listener.is_running)
    assert set(server.current.heard) == {"event_stream", "mine"}


async def test_who_subscribes_while_the_connection_breaks(listener: PgNotifyListener, server: Server) -> None:
    gate = server.pause("mine")
    subscribing = asyncio.create_task(listener.subscribe("mine", lambda *_: None))
    await until(lambda: server.current.is_busy)
    server.current.terminate()
    gate.set()
    await asyncio.wait_for(subscribing, 30)
    await until(lambda: listener.reconnections == 1)
    assert set(server.current.heard) == {"event_stream", "mine"}


async def test_a_connection_that_breaks_while_it_is_made(listener: PgNotifyListener, server: Server) -> None:
    gate = server.pause("event_stream")
    server.current.terminate()
    await until(lambda: len(server.connections) == 2 and server.current.is_busy)
    server.current.terminate()
    gate.set()
    await until(lambda: listener.is_running)
    assert len(server.connections) == 3
    assert set(server.current.heard) == {"event_stream"}


async def test_stopping_while_it_connects_leaves_no_connection(server: Server) -> None:
    listener = new_listener(server)
    await listener.start()
    server.pause("event_stream")
    server.current.terminate()
    await until(lambda: len(server.connections) == 2 and server.current.is_busy)
    await asyncio.wait_for(listener.stop(), 30)
    assert all(connection.has_ended for connection in server.connections)


async def test_it_survives_unexpected_errors_of_a_connection(listener: PgNotifyListener, server: Server) -> None:
    server.failures = [ValueError("odd"), asyncpg.CannotConnectNowError("starting up")]
    server.current.terminate()
    await until(lambda: listener.reconnections == 1)
    assert not server.failures
    assert listener.is_running


async def test_a_callback_that_never_returns_does_not_keep_it_from_stopping(
    listener: PgNotifyListener, server: Server
) -> None:
    async def wait_for_ever(_: object) -> None:
        await asyncio.Event().wait()

    listener.on_event("event_stream", wait_for_ever)
    server.current.say("event_stream", "{}")
    await asyncio.wait_for(listener.stop(), 30)


async def test_starting_twice_makes_one_connection(server: Server) -> None:
    listener = new_listener(server)
    await asyncio.gather(listener.start(), listener.start())
    assert len(server.connections) == 1
    await listener.stop()
