"""Seed 000 §5.1.1 to §5.1.8, step by step, against a real server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
import websockets

from cognizes.engine import Engine, Settings
from cognizes.engine.api.main import create_app
from cognizes.engine.database import EmbeddedPostgres
from tests.conftest import replace_database
from tests.database_supply import DatabaseSupply
from tests.engine_parts import database_of
from tests.listeners import kill_listeners
from tests.served import Served, serve


async def frames(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


@pytest.fixture(scope="module")
def database_url(postgres_server: EmbeddedPostgres, database_supply: DatabaseSupply) -> Iterator[str]:
    """One database for all steps."""
    name = asyncio.run(database_supply.take())
    yield replace_database(postgres_server.url, name)
    database_supply.give_back(name)


@pytest.fixture(scope="module")
def served(database_url: str) -> Iterator[Served]:
    """One server for all steps, whose heart beats every second."""
    server = serve(database_url, COGNIZES_HEARTBEAT_SECONDS="1")
    yield server
    server.kill()


@pytest.fixture
async def client(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as opened:
        yield opened


def test_5_1_1_start_up(served: Served) -> None:
    assert "✓ PgNotifyListener started" in served.printed


async def test_5_1_2_health(client: httpx.AsyncClient) -> None:
    health = (await client.get("/health")).json()
    assert (health["status"], health["listener_running"]) == ("ok", True)


async def test_5_1_3_and_4_websocket_and_test_notify(client: httpx.AsyncClient, served: Served) -> None:
    async with (
        websockets.connect(f"{served.ws_url}/ws/events/test-thread") as mine,
        websockets.connect(f"{served.ws_url}/ws/events/other-thread") as other,
        websockets.connect(f"{served.ws_url}/ws/events/*") as everything,
    ):
        sent = (await client.get("/api/test-notify")).json()
        assert sent["status"] == "sent"
        received = json.loads(await asyncio.wait_for(mine.recv(), 60))
        assert set(received) == {"channel", "payload", "received_at"}
        assert received["channel"] == "event_stream"
        assert received["payload"] == json.loads(sent["payload"])
        assert received["payload"]["thread_id"] == "test-thread"
        assert json.loads(await asyncio.wait_for(everything.recv(), 60))["payload"] == received["payload"]
        # What the other thread hears first is its own.
        await client.get("/api/test-notify", params={"thread_id": "other-thread"})
        assert json.loads(await asyncio.wait_for(other.recv(), 60))["payload"]["thread_id"] == "other-thread"


async def test_5_1_5_sse_connects_at_once(client: httpx.AsyncClient) -> None:
    before = time.time()
    async with client.stream("GET", "/api/runs/test-run/events") as response:
        first = await anext(frames(response))
        assert first == {
            "type": "CUSTOM", "runId": "test-run", "timestamp": first["timestamp"], "name": "connected",
            "message": "SSE stream for run_id=test-run",
        }  # fmt: skip
        assert before - 1 <= first["timestamp"] / 1000 <= time.time() + 1


async def test_5_1_6_test_notification_arrives_as_raw(client: httpx.AsyncClient) -> None:
    async with client.stream("GET", "/api/runs/test-run/events") as response:
        stream = frames(response)
        await anext(stream)
        sent = (await client.get("/api/test-sse-notify/test-run")).json()
        assert (sent["status"], sent["run_id"]) == ("sent", "test-run")
        frame = await asyncio.wait_for(anext(stream), 60)
        while frame.get("name") == "heartbeat":
            frame = await asyncio.wait_for(anext(stream), 60)
        assert (frame["type"], frame["runId"], frame["payload"]) == ("RAW", "test-run", json.loads(sent["payload"]))


async def test_5_1_7_headers_and_head(client: httpx.AsyncClient) -> None:
    async with client.stream("GET", "/api/runs/test-run/events") as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["x-accel-buffering"] == "no"
    assert (await client.head("/api/runs/test-run/events")).status_code == 405


async def test_5_1_8_heartbeats(client: httpx.AsyncClient) -> None:
    assert Settings().heartbeat_seconds == 30
    async with client.stream("GET", "/api/runs/test-run/events") as response:  # this server's beats every second
        stream = frames(response)
        await anext(stream)
        for _ in range(2):
            beat = await asyncio.wait_for(anext(stream), 60)
            assert beat == {"type": "CUSTOM", "runId": "test-run", "timestamp": beat["timestamp"], "name": "heartbeat"}


async def test_a_run_from_start_to_end_over_sse(client: httpx.AsyncClient, served: Served, engine: Engine) -> None:
    """The writer is another process (this one); the reader follows before the run exists."""
    session = await engine.sessions.create("app", "user")
    async with client.stream("GET", "/api/runs/r1/events") as response:
        stream = frames(response)
        await anext(stream)
        async with engine.runs.start(session, run_id="r1") as run:
            await engine.sessions.append(session, author="agent", kind="message", text="hello", run_id="r1")
            call = await run.call_tool("search", {"q": 1})
            await run.finish_tool(call, [1])
            await engine.sessions.append(session, author="a", kind="state_update", state={"n": 1}, run_id="r1")
            await engine.sessions.append(session, author="user", kind="message", text="not of this run")
        received: list[dict[str, Any]] = []
        async with asyncio.timeout(60):
            async for frame in stream:
                if frame.get("name") != "heartbeat":
                    received.append(frame)
                if frame["type"] == "RUN_FINISHED":
                    break
    assert [frame["type"] for frame in received] == [
        "RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "TOOL_CALL_START",
        "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT", "STATE_DELTA", "RUN_FINISHED",
    ]  # fmt: skip
    assert {frame["runId"] for frame in received} == {"r1"}
    assert received[2]["delta"] == "hello"
    assert received[-1]["status"] == "completed"


async def test_2_5_2_chunk_deltas_are_content_frames_on_both_routes(
    client: httpx.AsyncClient, served: Served, engine: Engine
) -> None:
    """The writer is another process (this one); each chunk is read before the next one is written."""
    session = await engine.sessions.create("app", "user")
    async with (
        client.stream("GET", "/api/runs/streamed/events") as response,
        websockets.connect(f"{served.ws_url}/ws/events/{session.thread_id}") as socket,
    ):
        over_sse, over_ws = frames(response), items(socket)
        await anext(over_sse)
        words = [f"word{number} " for number in range(20)]
        seen: list[list[dict[str, Any]]] = [[], []]
        async with engine.runs.start(session, run_id="streamed") as run:
            async with run.message("assistant", message_id="m") as message:
                for word in words:
                    await message.write(word)
                    for source, received in zip((over_sse, over_ws), seen, strict=True):
                        await _read_until(source, received, lambda frame, word=word: frame.get("delta") == word)
            await engine.sessions.append(session, author="agent", kind="message", text="whole", run_id="streamed")
        await _read_until(over_sse, seen[0], lambda frame: frame["type"] == "RUN_FINISHED")
        await _read_until(over_ws, seen[1], lambda frame: frame.get("event_type") == "run_finished")
    text = ["TEXT_MESSAGE_START", *["TEXT_MESSAGE_CONTENT"] * len(words), "TEXT_MESSAGE_END"]
    assert [frame["type"] for frame in seen[0]] == [
        "RUN_STARTED", *text, "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED",
    ]  # fmt: skip
    assert [frame.get("type") or frame["event_type"] for frame in seen[1]] == [
        "run_started", *text, "assistant_message", "message", "run_finished",
    ]  # fmt: skip
    for received in seen:
        streamed = [frame for frame in received if frame.get("messageId") == "m"]
        assert [frame["delta"] for frame in streamed if "delta" in frame] == words
        assert {frame["runId"] for frame in streamed} == {"streamed"}


async def items(socket: websockets.ClientConnection) -> AsyncIterator[dict[str, Any]]:
    async for text in socket:
        item = json.loads(text)
        assert set(item) == {"channel", "payload", "received_at"}
        assert item["channel"] == ("stream_moved" if "messageId" in item["payload"] else "event_stream")
        yield item["payload"]


async def _read_until(
    source: AsyncIterator[dict[str, Any]], received: list[dict[str, Any]], is_last: Callable[[dict[str, Any]], bool]
) -> None:
    async with asyncio.timeout(60):
        async for frame in source:
            if frame.get("name") == "heartbeat":
                continue
            received.append(frame)
            if is_last(frame):
                return


async def test_last_event_id_resumes_exactly(client: httpx.AsyncClient, engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    for number in range(1, 6):
        await engine.sessions.append(session, author="a", kind="message", text=str(number), run_id="r")
    async with client.stream("GET", "/api/runs/r/events", headers={"Last-Event-ID": "3"}) as response:
        texts: list[str] = []
        ids: list[str] = []
        async with asyncio.timeout(60):
            async for line in response.aiter_lines():
                if line.startswith("id: "):
                    ids.append(line.removeprefix("id: "))
                if line.startswith("data: ") and "delta" in (frame := json.loads(line.removeprefix("data: "))):
                    texts.append(frame["delta"])
                if ids == ["4", "5"]:
                    break
    assert texts == ["4", "5"]


async def test_websocket_of_a_thread_gets_every_event_in_order(served: Served, engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    await engine.sessions.append(session, author="a", kind="message", text="before")
    async with (
        websockets.connect(f"{served.ws_url}/ws/events/{session.thread_id}") as live,
        websockets.connect(f"{served.ws_url}/ws/events/{session.thread_id}?after=0") as whole,
    ):
        copies = [await engine.sessions.get("app", "user", session.id) for _ in range(10)]
        await asyncio.gather(
            *(engine.sessions.append(copy, author="a", kind="message", text="x")
              for _ in range(10) for copy in copies if copy)
        )  # fmt: skip
        async with asyncio.timeout(60):
            seen = [json.loads(await live.recv())["payload"]["sequence_num"] for _ in range(100)]
            all_seen = [json.loads(await whole.recv())["payload"]["sequence_num"] for _ in range(101)]
    assert seen == list(range(2, 102))
    assert all_seen == list(range(1, 102))


async def test_stopping_ends_the_streams(database_url: str) -> None:
    server = await asyncio.to_thread(serve, database_url)
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        async with client.stream("GET", "/api/runs/unknown/events") as response:
            stream = frames(response)
            await anext(stream)
            stopping = asyncio.create_task(asyncio.to_thread(server.stop))
            async with asyncio.timeout(60):
                rest = [frame async for frame in stream if frame.get("name") != "heartbeat"]
            assert rest == []
        code, printed = await stopping
    assert code == 0, printed
    assert "Traceback" not in printed, printed


async def test_test_routes_are_off_outside_development(database_url: str) -> None:
    async with Engine.open(database_url, development=False) as engine:
        transport = httpx.ASGITransport(create_app(engine=engine, agents=[]))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get("/api/test-notify")).status_code == 404
            assert (await client.get("/api/test-sse-notify/r")).status_code == 404


async def test_two_servers_and_a_killed_listener(database_url: str, served: Served, engine: Engine) -> None:
    """A client on either server sees all; with the listeners cut, both recover."""
    second = await asyncio.to_thread(serve, database_url)
    try:
        session = await engine.sessions.create("app", "user")
        url = f"/ws/events/{session.thread_id}?after=0"
        async with websockets.connect(served.ws_url + url) as one, websockets.connect(second.ws_url + url) as two:
            for number in range(30):
                await engine.sessions.append(session, author="a", kind="message", text=str(number))
                if number % 10 == 5:
                    await kill_listeners(database_of(engine).pool)
            for socket in (one, two):
                async with asyncio.timeout(60):
                    seen = [json.loads(await socket.recv())["payload"]["sequence_num"] for _ in range(30)]
                assert seen == list(range(1, 31))
    finally:
        await asyncio.to_thread(second.stop)
