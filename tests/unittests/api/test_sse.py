"""A stream of events against a connection that behaves as uvicorn's does: order, ends, readers that stop reading."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Message

from cognizes.engine.api.middleware import Middleware, OpenConnections
from cognizes.engine.api.sse import EventStream, HeartbeatTimer, Source, each
from cognizes.engine.settings import Settings

FINAL = ""


class Connection:
    """One request: `receive` and `send` with uvicorn's manners, and a transport that can be cut."""

    def __init__(self) -> None:
        self.transport = self
        self.sent: list[str] = []
        self.headers: dict[str, str] = {}
        self.writable = asyncio.Event()
        self.writable.set()
        self.finished = asyncio.Event()
        self.is_complete = self.is_gone = self.is_aborted = False

    async def receive(self) -> Message:
        await self.finished.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.writable.wait()
        if self.is_gone:
            return
        if message["type"] == "http.response.start":
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        if self.is_complete:
            raise RuntimeError("sent after the response was complete")
        self.sent.append(message["body"].decode())
        if not message["more_body"]:
            self.is_complete = True
            self.finished.set()

    def bind_writer(self, _: object) -> Callable[[bytes], bool] | None:
        return None

    def leave(self) -> None:
        """The reader closes its tab."""
        self.is_gone = True
        self.finished.set()
        self.writable.set()

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.is_gone

    def set_write_buffer_limits(self, high: int) -> None:
        if self.is_gone:
            raise RuntimeError("unable to perform operation; the handler is closed")  # as uvloop does
        self.room = high

    def abort(self) -> None:
        self.is_aborted = True
        self.leave()


class DirectConnection(Connection):
    """A connection that accepts parts without waiting while its client reads."""

    def bind_writer(self, _: object) -> Callable[[bytes], bool]:
        return self.write

    def write(self, body: bytes) -> bool:
        if not self.writable.is_set() or self.is_gone:
            return False
        self.sent.append(body.decode())
        return True


class Running:
    """A stream that is being sent."""

    def __init__(
        self,
        source: Source,
        *,
        heartbeats: HeartbeatTimer | None = None,
        send_seconds: float = 3600,
        connection: Connection | None = None,
    ) -> None:
        self.heartbeats = heartbeats or HeartbeatTimer(1, tick=3600, send_seconds=send_seconds)
        self.connection = connection or Connection()
        self.stream = EventStream(source, heartbeats=self.heartbeats, heartbeat=lambda: "beat")
        self.task = asyncio.create_task(
            self.stream.run(self.connection.receive, self.connection.send, connection=self.connection)
        )

    async def settle(self) -> None:
        """Lets everything that can go on go on."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def end(self) -> list[str]:
        """What was sent, once it has ended by itself."""
        await asyncio.wait_for(self.task, 30)
        assert self.heartbeats.connections == 0
        await self.heartbeats.close()
        return self.connection.sent


async def forever(_: EventStream) -> None:
    await asyncio.Event().wait()


async def test_frames_then_the_end() -> None:
    async def source(stream: EventStream) -> None:
        await stream.put("a")
        await stream.put("b")

    running = Running(source)
    assert await running.end() == ["a", "b", FINAL]
    assert running.connection.headers["x-accel-buffering"] == "no"
    assert running.connection.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_frames_of_one_turn_are_written_together() -> None:
    async def source(stream: EventStream) -> None:
        await stream.put("a")
        await stream.put("b")
        await stream.put(b"shared")
        await stream.put("c")
        await asyncio.sleep(0.001)
        await stream.put("d")

    assert await Running(source, connection=DirectConnection()).end() == ["ab", "shared", "c", "d", FINAL]


async def test_a_slow_client_gets_everything_in_order_and_holds_up_the_source() -> None:
    put = 0

    async def source(stream: EventStream) -> None:
        nonlocal put
        for number in range(100):
            await stream.put(f"{number},")
            put += 1
            if number % 7 == 0:
                await stream.put(b"|")
            await asyncio.sleep(0)

    connection = DirectConnection()
    running = Running(source, connection=connection)
    for _ in range(3):
        await running.settle()
        connection.writable.clear()
        await running.settle()
        before = put
        await running.settle()
        assert put == before < 100, "the source waits for the client"
        connection.writable.set()
    sent = "".join(await running.end())
    assert sent == "".join(f"{number},{'|' if number % 7 == 0 else ''}" for number in range(100))


async def test_a_client_that_stops_reading_collected_frames_is_disconnected() -> None:
    async def source(stream: EventStream) -> None:
        await stream.put("a")
        await asyncio.Event().wait()

    connection = DirectConnection()
    running = Running(source, connection=connection, send_seconds=0.01)
    await asyncio.sleep(0)
    connection.writable.clear()
    await running.end()
    assert connection.is_aborted


async def test_a_source_that_fails_ends_the_response_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def source(stream: EventStream) -> None:
        await stream.put("a")
        raise ValueError("boom")

    with caplog.at_level(logging.ERROR):
        assert await Running(source).end() == ["a", FINAL]
    assert "boom" in caplog.text


async def test_a_reader_that_leaves_ends_the_source() -> None:
    closed = asyncio.Event()

    async def frames() -> AsyncGenerator[str, None]:
        try:
            yield "a"
            await asyncio.Event().wait()
        finally:
            closed.set()

    running = Running(each(frames()))
    await running.settle()
    running.connection.leave()
    assert await running.end() == ["a"]
    assert closed.is_set()


async def test_a_reader_that_leaves_before_the_stream_begins_is_no_error() -> None:
    running = Running(forever)
    running.connection.leave()
    assert await running.end() == []


async def test_the_end_of_the_timer_ends_every_response() -> None:
    running = Running(forever)
    await running.settle()
    running.heartbeats.end()
    assert await running.end() == [FINAL]


async def test_a_response_after_the_end_of_the_timer_ends_at_once() -> None:
    """Its source is cancelled before its first step; the response must be completed all the same."""
    heartbeats = HeartbeatTimer(1, tick=3600)
    heartbeats.end()
    assert await Running(forever, heartbeats=heartbeats).end() == [FINAL]


async def test_a_heartbeat_goes_out_unless_something_waits() -> None:
    running = Running(forever)
    await running.settle()
    running.stream.beat()
    await running.settle()
    assert running.connection.sent == ["beat"]
    running.connection.writable.clear()
    running.stream.offer("waits")
    await running.settle()
    running.stream.beat()
    running.connection.writable.set()
    await running.settle()
    assert running.connection.sent == ["beat", "waits"]
    running.connection.leave()
    await running.end()


async def test_nothing_follows_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async def source(stream: EventStream) -> None:
        await stream.put("a")

    running = Running(source)
    with caplog.at_level(logging.INFO):
        while not running.connection.is_complete:
            await asyncio.sleep(0)
            running.stream.beat()
        running.stream.beat()
        assert not running.stream.offer("late")
        await running.stream.put("later")
        sent = await running.end()
    assert sent[-1] == FINAL
    assert set(sent) <= {"beat", "a", FINAL}
    assert not caplog.records


async def test_offers_to_a_slow_reader_are_bounded_and_keep_their_order() -> None:
    running = Running(forever)
    await running.settle()
    running.connection.writable.clear()
    taken = [running.stream.offer(str(number)) for number in range(1000)]
    assert taken.index(False) == sum(taken) == 64
    running.connection.writable.set()
    await running.settle()
    assert running.connection.sent == [str(number) for number in range(64)]
    assert running.stream.offer("again")
    await running.settle()
    running.connection.leave()
    assert (await running.end())[-1] == "again"


@pytest.mark.parametrize("by", ["put", "offer"])
async def test_a_reader_that_stops_reading_is_cut_off(by: str) -> None:
    async def source(stream: EventStream) -> None:
        running.connection.writable.clear()
        if by == "offer":
            stream.offer("never read")
            await asyncio.Event().wait()
        await stream.put("never read")

    running = Running(source, send_seconds=0.01)
    assert await running.end() == []
    assert running.connection.is_aborted
    assert running.connection.room <= 16 * 1024, "what it may cost until then"


async def test_a_reader_is_left_where_its_connection_cannot_be_cut() -> None:
    """Under a server that shows no transport the request ends, and the server closes what it can."""
    connection = Connection()
    heartbeats = HeartbeatTimer(1, tick=3600, send_seconds=0.01)

    async def receive() -> Message:
        return await connection.receive()

    async def source(stream: EventStream) -> None:
        connection.writable.clear()
        await stream.put("never read")

    stream = EventStream(source, heartbeats=heartbeats, heartbeat=str)
    await asyncio.wait_for(stream.run(receive, connection.send), 30)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert heartbeats.connections == 0
    await heartbeats.close()


async def test_bytes_do_not_overtake_text_while_the_client_is_slow() -> None:
    """Text is collected until the end of the turn; its write waits for the client."""

    class SlowConnection(DirectConnection):
        def write(self, body: bytes) -> bool:
            return False

    async def source(stream: EventStream) -> None:
        for number in range(3):
            await stream.put(f"text {number}")
            await stream.put(f"bytes {number}".encode())

    running = Running(source, connection=SlowConnection())
    sent = "".join(await running.end())
    assert sent == "text 0bytes 0text 1bytes 1text 2bytes 2"


async def test_cancelling_the_request_itself_is_no_end_of_ours() -> None:
    running = Running(forever)
    await running.settle()
    running.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running.task
    assert running.heartbeats.connections == 0
    await running.heartbeats.close()


async def test_a_stalled_reader_does_not_keep_the_server_from_stopping() -> None:
    waits = asyncio.Event()

    async def source(stream: EventStream) -> None:
        running.connection.writable.clear()
        waits.set()
        await stream.put("never read")

    running = Running(source)
    await waits.wait()
    running.heartbeats.end()
    assert await running.end() == []
    assert running.connection.is_aborted


async def test_the_timer_beats_for_every_connection_once_per_interval() -> None:
    heartbeats = HeartbeatTimer(3, tick=0.001)
    several = [Running(forever, heartbeats=heartbeats) for _ in range(6)]
    async with asyncio.timeout(30):
        while not all(len(running.connection.sent) >= 2 for running in several):
            await asyncio.sleep(0.001)
    heartbeats.end()
    for running in several:
        await asyncio.wait_for(running.task, 30)
        assert running.connection.sent[-1] == FINAL
    await heartbeats.close()


@pytest.mark.parametrize("copies", [False, True])
async def test_the_stream_runs_when_the_layers_between_have_returned(copies: bool) -> None:
    """Also below a layer that hands on a copy of the scope."""
    connection = Connection()
    heartbeats = HeartbeatTimer(1, tick=3600)
    order: list[str] = []

    async def source(stream: EventStream) -> None:
        order.append("streams")
        await stream.put("a")

    async def application(scope: Any, receive: Any, send: Any) -> None:
        scope["fastapi_inner_astack"] = "heavy"
        response = EventStream(source, heartbeats=heartbeats, heartbeat=str)
        await response(dict(scope) if copies else scope, receive, send)
        order.append("returned")

    engine = SimpleNamespace(access=SimpleNamespace(is_required=False), settings=Settings())
    served = FastAPI()
    served.state.engine = engine
    headers = [(b"x-request-id", b"mine")]
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": headers, "app": served}
    middleware = Middleware(application, OpenConnections())
    await asyncio.wait_for(middleware(scope, connection.receive, connection.send), 30)
    assert order == ["returned", "streams"]
    assert connection.sent == ["a", FINAL]
    assert connection.headers["x-request-id"] == "mine"
    assert "fastapi_inner_astack" not in scope
    await heartbeats.close()


async def test_a_heartbeat_that_fails_does_not_stop_those_of_other_connections(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def beat(self) -> None:
            raise ValueError("cannot beat")

        def end(self) -> None:
            """Nothing to end."""

    heartbeats = HeartbeatTimer(1, tick=0.001)
    heartbeats.add(Broken())
    running = Running(forever, heartbeats=heartbeats)
    async with asyncio.timeout(30):
        while running.connection.sent.count("beat") < 3:
            await asyncio.sleep(0.001)
    assert "cannot beat" in caplog.text
    await heartbeats.close()
    await asyncio.wait_for(running.task, 30)
