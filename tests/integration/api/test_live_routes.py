"""The live routes on an engine of the test's own, without a process: health, ends, framing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import asyncpg
import httpx
import pytest
from fastapi import FastAPI

from cognizes.engine import Engine, Event
from cognizes.engine.api.main import create_app
from cognizes.engine.errors import FeedRewoundError
from tests.engine_parts import database_of, listener_of


@pytest.fixture
def app(engine: Engine) -> FastAPI:
    return create_app(engine=engine, agents=[])


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as opened:
        yield opened


class Call:
    """A request to the application, without an HTTP client: what it sends can be read while it continues."""

    def __init__(self, app: FastAPI, scope: dict[str, Any]) -> None:
        self.sent: list[dict[str, Any]] = []
        self._received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        filled = {"headers": [], "query_string": b"", "http_version": "1.1", "client": ("test", 1), **scope}
        self.task = asyncio.create_task(app(filled, self._received.get, self._send))  # type: ignore[arg-type]

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.say({"type": "http.disconnect"})

    def say(self, message: dict[str, Any]) -> None:
        self._received.put_nowait(message)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                if self.task.done():
                    self.task.result()
                    assert condition(), self.sent
                    return
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        await asyncio.wait_for(self.task, 60)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


def stream(app: FastAPI, path: str, *, query: bytes = b"", **headers: str) -> Call:
    made = Call(
        app,
        {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "scheme": "http",
            "query_string": query,
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        },
    )  # fmt: skip
    made.say({"type": "http.request", "body": b"", "more_body": False})
    return made


def websocket(app: FastAPI, path: str, *, query: bytes = b"") -> Call:
    scope = {"type": "websocket", "path": path, "raw_path": path.encode(), "scheme": "ws", "subprotocols": []}
    made = Call(app, {**scope, "query_string": query})
    made.say({"type": "websocket.connect"})
    return made


async def test_health_is_503_while_the_listener_is_down(http: httpx.AsyncClient, engine: Engine) -> None:
    await listener_of(engine).stop()
    answer = await http.get("/health")
    assert answer.status_code == 503
    assert (answer.json()["status"], answer.json()["listener_running"]) == ("unavailable", False)
    assert answer.json()["database"] == "ok"
    await listener_of(engine).start()
    answer = await http.get("/health")
    assert (answer.status_code, answer.json()["status"], answer.json()["listener_running"]) == (200, "ok", True)


@pytest.mark.parametrize("path", ["/api/runs/r/events", "/api/runs/r/events?profile=agui"])
async def test_head_is_refused(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.head(path)).status_code == 405


@pytest.mark.parametrize("query", [b"", b"profile=agui&"])
async def test_a_run_id_of_two_threads_needs_the_thread(app: FastAPI, engine: Engine, query: bytes) -> None:
    sessions = [await engine.sessions.create("app", "user") for _ in range(3)]
    for session in sessions[:2]:
        async with engine.runs.start(session, run_id="r") as run:
            await run.think(f"thought of {session.id}")
    refused = stream(app, "/api/runs/r/events", query=query)
    await refused.end()
    assert refused.sent[0]["status"] == 409
    assert b"thread_id" in refused.body
    missing = stream(app, "/api/runs/r/events", query=query + f"thread_id={sessions[2].thread_id}".encode())
    await missing.end()
    assert missing.sent[0]["status"] == 404
    for session, other in zip(sessions[:2], reversed(sessions[:2]), strict=True):
        call = stream(app, "/api/runs/r/events", query=query + f"thread_id={session.thread_id}".encode())
        await call.until(lambda: b"RUN_FINISHED" in call.body)  # noqa: B023
        call.say({"type": "http.disconnect"})
        await call.end()
        assert f"thought of {session.id}".encode() in call.body
        assert other.id.encode() not in call.body


async def test_frames_are_framed_by_line_feeds_alone(app: FastAPI, engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    await engine.sessions.append(session, author="a", kind="message", text="one\r\ntwo\rthree", run_id="r")
    for path in ("/api/runs/r/events",):
        call = stream(app, path)
        await call.until(lambda: b"id: 1\n" in call.body)  # noqa: B023
        call.say({"type": "http.disconnect"})
        await call.end()
        assert b"\r" not in call.body
        for frame in call.body.decode().strip("\n").split("\n\n"):
            assert all(line.startswith(("id: ", "data: ")) for line in frame.split("\n")), frame


async def test_a_wrong_last_event_id_is_none(app: FastAPI, engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    await engine.sessions.append(session, author="a", kind="message", text="x", run_id="r")
    for wrong in ("", "abc", "-1", "9" * 40):
        call = stream(app, "/api/runs/r/events", last_event_id=wrong)
        await call.until(lambda: b"id: 1\n" in call.body)  # noqa: B023
        call.say({"type": "http.disconnect"})
        await call.end()


async def test_open_streams_and_sockets_are_counted(app: FastAPI, engine: Engine) -> None:
    calls = [stream(app, "/api/runs/r/events"), websocket(app, "/ws/events/t")]
    for call in calls:
        await call.until(lambda: call.sent)  # noqa: B023
    assert (app.state.heartbeats.connections, app.state.connections.websockets) == (1, 1)
    calls[0].say({"type": "http.disconnect"})
    calls[1].say({"type": "websocket.disconnect", "code": 1000})
    for call in calls:
        await call.end()
    assert (app.state.heartbeats.connections, app.state.connections.websockets) == (0, 0)


async def test_the_listener_stays_subscribed_when_the_last_follower_of_a_run_leaves(
    app: FastAPI, engine: Engine
) -> None:
    """When it leaves, others still hear at once and not only by the sweep."""
    session = await engine.sessions.create("app", "user")
    call = stream(app, "/api/runs/r/events")
    await call.until(lambda: b"connected" in call.body)
    call.say({"type": "http.disconnect"})
    await call.end()
    heard = asyncio.Event()
    listener_of(engine).tap("event_stream", lambda _: heard.set())
    await engine.sessions.append(session, author="a", kind="message", text="x")
    await asyncio.wait_for(heard.wait(), 60)


async def test_streams_end_when_the_engine_closes(database_url: str) -> None:
    engine = await Engine.open(database_url).start()
    session = await engine.sessions.create("app", "user")
    await engine.sessions.append(session, author="a", kind="message", text="x", run_id="known")
    app = create_app(engine=engine, agents=[])
    calls = [
        *(stream(app, f"/api/runs/{run}/events") for run in ("known", "unknown")),
        websocket(app, f"/ws/events/{session.thread_id}"),
    ]
    await asyncio.gather(*(call.until(lambda call=call: len(call.sent) > 0) for call in calls))  # type: ignore[misc]
    await calls[0].until(lambda: b"id: 1\n" in calls[0].body)
    await engine.close()
    for call in calls:
        await call.end()
    assert calls[2].sent[-1]["type"] == "websocket.close"
    await app.state.heartbeats.close()


async def test_a_websocket_is_closed_when_its_thread_is_deleted(app: FastAPI, engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    call = websocket(app, f"/ws/events/{session.thread_id}")
    await call.until(lambda: call.sent)
    await engine.sessions.append(session, author="a", kind="message", text="x")
    await call.until(lambda: len(call.sent) == 2)
    assert json.loads(call.sent[1]["text"])["payload"]["sequence_num"] == 1
    await engine.sessions.delete(session)
    await call.end()
    assert (call.sent[-1]["type"], call.sent[-1]["code"]) == ("websocket.close", 1001)


async def test_a_websocket_that_leaves_leaves_nothing(app: FastAPI, engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    calls = [websocket(app, f"/ws/events/{name}") for name in (session.thread_id, "*", "any/text at all")]
    for call in calls:
        await call.until(lambda: call.sent)  # noqa: B023
        call.say({"type": "websocket.disconnect", "code": 1000})
        await call.end()
    assert not engine.feed.followed_threads
    assert engine.feed.subscribers == 0


async def test_a_notification_right_after_the_greeting_is_delivered(app: FastAPI, engine: Engine) -> None:
    """The subscription exists before the client reads `connected`, also for a run that does not exist."""
    call = stream(app, "/api/runs/none/events")
    await call.until(lambda: b"connected" in call.body)
    for run_id in ("other", "none"):
        await database_of(engine).fetch_value("notify", "event_stream", json.dumps({"run_id": run_id, "n": 1}))
    await call.until(lambda: b"RAW" in call.body)
    call.say({"type": "http.disconnect"})
    await call.end()
    frames = [json.loads(frame.removeprefix("data: ")) for frame in call.body.decode().strip().split("\n\n")]
    assert [frame["type"] for frame in frames] == ["CUSTOM", "RAW"]
    assert frames[1]["payload"] == {"run_id": "none", "n": 1}


async def test_a_thread_that_lost_events_ends_the_streams_with_an_error(
    app: FastAPI, engine: Engine, http: httpx.AsyncClient, pool: asyncpg.Pool
) -> None:
    """What a failover to a replica without the newest events does to the clients of a thread."""
    session = await engine.sessions.create("app", "user")
    for _ in range(3):
        await engine.sessions.append(session, author="a", kind="message", text="x", run_id="r")
    calls = [stream(app, "/api/runs/r/events"), websocket(app, f"/ws/events/{session.thread_id}")]
    await calls[0].until(lambda: b"id: 3\n" in calls[0].body)
    await calls[1].until(lambda: calls[1].sent)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute("DELETE FROM events WHERE thread_id = $1 AND sequence_num = 3", session.thread_id)
        await connection.execute("UPDATE threads SET last_sequence = 2 WHERE id = $1", session.thread_id)
    for call in calls:
        await call.end()
    assert b'"code":"FEED_REWOUND"' in calls[0].body
    assert (calls[1].sent[-1]["type"], calls[1].sent[-1]["code"]) == ("websocket.close", 4409)
    # A client that reconnects with its cursor learns it before the stream opens.
    answer = await http.get("/api/runs/r/events", headers={"Last-Event-ID": "3"})
    assert answer.status_code == 409
    assert "reload" in answer.json()["detail"]
    again = websocket(app, f"/ws/events/{session.thread_id}", query=b"after=3")
    await again.end()
    assert (again.sent[-1]["type"], again.sent[-1]["code"]) == ("websocket.close", 4409)
    with pytest.raises(FeedRewoundError):
        await anext(engine.live(session, after=3))
    assert [event.sequence_num async for event in _first(engine.live(session), 2)] == [1, 2]


async def _first(events: AsyncGenerator[Event, None], count: int) -> AsyncIterator[Event]:
    async with aclosing(events):
        for _ in range(count):
            yield await anext(events)
