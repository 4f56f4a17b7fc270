"""The listener's connection, without a database: who asks for what at the same time, and what a lost one leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from cognizes.engine.database import listener as listener_module
from cognizes.engine.database.listener import PgNotifyListener


class Connection:
    """As asyncpg's: one statement at a time, and none when closed."""

    def __init__(self, pauses: dict[str, asyncio.Event]) -> None:
        self.heard: dict[str, Any] = {}
        self.pauses = pauses
        self.has_ended = False
        self.on_end: list[Callable[[Any], None]] = []
        self._is_busy = False

    async def add_listener(self, channel: str, callback: Any) -> None:
        await self._speak(channel)
        self.heard[channel] = callback

    async def remove_listener(self, channel: str, callback: Any) -> None:
        await self._speak(channel)
        assert self.heard.pop(channel) == callback

    async def fetchval(self, _query: str, timeout: float) -> int:
        await self._speak("check")
        return 1

    async def _speak(self, about: str) -> None:
        if self.has_ended:
            raise asyncpg.InterfaceError("connection is closed")
        if self._is_busy:
            raise asyncpg.InterfaceError("another operation is in progress")
        self._is_busy = True
        try:
            await asyncio.sleep(0)
            if about in self.pauses:
                await self.pauses[about].wait()
            if self.has_ended:
                raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        finally:
            self._is_busy = False

    def add_termination_listener(self, callback: Callable[[Any], None]) -> None:
        self.on_end.append(callback)

    def is_closed(self) -> bool:
        return self.has_ended

    async def close(self, timeout: float) -> None:
        self.terminate()

    def terminate(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            for callback in self.on_end:
                callback(self)

    def say(self, channel: str, text: str) -> None:
        if channel in self.heard:
            self.heard[channel](self, 1, channel, text)


class Server:
    """Where the listener connects to."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.pauses: dict[str, asyncio.Event] = {}

    async def connect(self, *_: object, **__: object) -> Connection:
        await asyncio.sleep(0)
        self.connections.append(Connection(self.pauses))
        return self.connections[-1]

    @property
    def current(self) -> Connection:
        return self.connections[-1]

    def pause(self, about: str) -> asyncio.Event:
        """Statements about it do not return until the event is set."""
        self.pauses[about] = asyncio.Event()
        return self.pauses[about]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setattr(listener_module.asyncpg, "connect", made.connect)
    monkeypatch.setattr(listener_module, "_FIRST_PAUSE", 0.0)
    return made


@pytest.fixture
async def listener(server: Server) -> AsyncIterator[PgNotifyListener]:
    made = PgNotifyListener("postgresql://")
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
    await asyncio.gather(*listener._workers)
    assert sorted(heard) == names


async def test_a_subscriber_beside_the_check_of_the_connection(
    listener: PgNotifyListener, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = server.pause("check")
    monkeypatch.setattr(listener_module, "_CHECK_SECONDS", 0.001)
    listener._lost.set()  # the keeper goes round once and takes the short pause up
    await until(lambda: len(server.connections) == 2 and server.current._is_busy)
    subscribing = asyncio.create_task(listener.subscribe("mine", lambda *_: None))
    await asyncio.sleep(0)
    asked.set()
    await asyncio.wait_for(subscribing, 30)
    assert "mine" in server.current.heard


async def test_one_leaves_while_another_comes(listener: PgNotifyListener, server: Server) -> None:
    first, second = list[str](), list[str]()
    await listener.subscribe("mine", lambda _, text: first.append(text))
    await asyncio.gather(listener.unsubscribe("mine"), listener.subscribe("mine", lambda _, text: second.append(text)))
    server.current.say("mine", "hello")
    await asyncio.gather(*listener._workers)
    assert (first, second) == ([], ["hello"])


async def test_one_comes_while_another_leaves_slowly(listener: PgNotifyListener, server: Server) -> None:
    heard: list[str] = []
    await listener.subscribe("mine", lambda *_: None)
    gate = server.pause("mine")
    leaving = asyncio.create_task(listener.unsubscribe("mine"))
    await until(lambda: server.current._is_busy)
    coming = asyncio.create_task(listener.subscribe("mine", lambda _, text: heard.append(text)))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(leaving, coming)
    server.current.say("mine", "hello")
    await asyncio.gather(*listener._workers)
    assert heard == ["hello"]


async def test_one_of_two_callbacks_leaves(listener: PgNotifyListener, server: Server) -> None:
    staying, leaving = list[str](), list[str]()

    def leave(_: str, text: str) -> None:
        leaving.append(text)

    await listener.subscribe("mine", lambda _, text: staying.append(text))
    await listener.subscribe("mine", leave)
    await listener.unsubscribe("mine", leave)
    server.current.say("mine", "hello")
    await asyncio.gather(*listener._workers)
    assert (staying, leaving) == (["hello"], [])


async def test_a_tap_is_not_made_deaf_by_a_subscriber_that_leaves(listener: PgNotifyListener, server: Server) -> None:
    heard: list[str] = []
    listener.tap("event_stream", heard.append)
    await listener.subscribe("event_stream", lambda *_: None)
    await listener.unsubscribe("event_stream")
    server.current.say("event_stream", "{}")
    assert heard == ["{}"]


async def test_a_subscription_during_a_reconnect(listener: PgNotifyListener, server: Server) -> None:
    gate = server.pause("event_stream")
    server.current.terminate()
    await until(lambda: len(server.connections) == 2 and server.current._is_busy)
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
    await until(lambda: server.current._is_busy)
    server.current.terminate()
    gate.set()
    await asyncio.wait_for(subscribing, 30)
    await until(lambda: listener.reconnections == 1)
    assert set(server.current.heard) == {"event_stream", "mine"}


async def test_a_connection_that_breaks_while_it_is_made(listener: PgNotifyListener, server: Server) -> None:
    gate = server.pause("event_stream")
    server.current.terminate()
    await until(lambda: len(server.connections) == 2 and server.current._is_busy)
    server.current.terminate()
    gate.set()
    await until(lambda: listener.is_running)
    assert len(server.connections) == 3
    assert set(server.current.heard) == {"event_stream"}


async def test_stopping_while_it_connects_leaves_no_connection(server: Server) -> None:
    listener = PgNotifyListener("postgresql://")
    await listener.start()
    server.pause("event_stream")
    server.current.terminate()
    await until(lambda: len(server.connections) == 2 and server.current._is_busy)
    await asyncio.wait_for(listener.stop(), 30)
    assert all(connection.has_ended for connection in server.connections)


async def test_it_survives_unexpected_errors_of_a_connection(
    listener: PgNotifyListener, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [ValueError("odd"), asyncpg.CannotConnectNowError("starting up")]
    connect = server.connect

    async def fail(*arguments: object, **named: object) -> Connection:
        if failures:
            raise failures.pop(0)
        return await connect(*arguments, **named)

    monkeypatch.setattr(listener_module.asyncpg, "connect", fail)
    server.current.terminate()
    await until(lambda: listener.reconnections == 1)
    assert not failures
    assert listener.is_running


async def test_a_callback_that_never_returns_does_not_keep_it_from_stopping(
    listener: PgNotifyListener, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "_LAST_CALLBACKS_SECONDS", 0.01)

    async def wait_for_ever(_: object) -> None:
        await asyncio.Event().wait()

    listener.on_event("event_stream", wait_for_ever)
    server.current.say("event_stream", "{}")
    await asyncio.wait_for(listener.stop(), 30)


async def test_starting_twice_makes_one_connection(server: Server) -> None:
    listener = PgNotifyListener("postgresql://")
    await asyncio.gather(listener.start(), listener.start())
    assert len(server.connections) == 1
    await listener.stop()
