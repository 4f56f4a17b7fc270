"""docs/architecture.md lists the modules that a request enters, and no other is entered."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import httpx

from cognizes.engine import Engine
from cognizes.engine.access import Permission
from tests.integration.walks import Follower, followed_server, listed_counts, listed_modules

POST_AGENT = "POST /agui/{agent} to the first frame"
POST_EVENT = "POST /api/sessions/{thread_id}/events with a state delta"
TOKEN = "One token, written in process A, as an SSE frame in process B"
_PRIMITIVES = {"models", "database/documents", "concurrency", "supervision", "telemetry"}
_BATCH = "group-commit"
_BESIDE = {"database/hosts", "runs/batcher"}
"""What timers enter in the tasks of a request: the pool opens a connection, the sweep of runs shares a batch."""
_STREAM_LOOPS = ("stream-flusher", "feed-streams", "event-stream")
_STAGES = {
    "streams/writer", "streams/backend", "feed/channel_reader", "feed/thread_channel", "feed/feed", "agui/monitor",
    "api/sse",
}  # fmt: skip
"""The modules of a token's path that do its steps; the others are called by several of them."""
_EVENT = {
    "author": "agent",
    "event_type": "assistant_message",
    "content": {"text": "hello"},
    "actions": {"state_delta": {"step": 1}},
}


async def _post_events(client: httpx.AsyncClient, thread_id: str, headers: dict[str, str]) -> list[Follower]:
    """Return what the append of an event enters."""

    async def post() -> None:
        response = await client.post(f"/api/sessions/{thread_id}/events", json=_EVENT, headers=headers)
        assert response.status_code == 201

    return await _follow(post, lambda: Follower(_BATCH))


async def _follow(request: Callable[[], Awaitable[None]], make: Callable[[], Follower]) -> list[Follower]:
    """Return what six requests enter, the first ones on a server that is not warm yet."""
    followers = [make() for _ in range(6)]
    for follower in followers:
        with follower.recording():
            await request()
    return followers


def _compare(followers: Sequence[Follower], request: str, heading: str, *labels: str) -> None:
    """Compare the lists of a section with the modules that warm requests enter, and their lengths with the table.

    A listed module may be missing in one of them: not each takes a connection out of the pool, for example.
    """
    path = set[str]().union(*(listed_modules(heading, label) for label in labels))
    primitives = listed_modules(heading, "Primitives")
    assert primitives <= _PRIMITIVES
    assert path.isdisjoint(_PRIMITIVES)
    counts = listed_counts(request)
    assert (len(path), len(primitives)) == (counts.path, counts.primitives)
    assert counts.path <= counts.aim
    listed = path | primitives
    entered = set[str]().union(*(follower.modules for follower in followers[3:]))
    assert entered - listed - _BESIDE == set()
    assert listed - set[str]().union(*(follower.modules for follower in followers)) == set()


async def test_an_event_without_keys_enters_the_listed_modules(engine: Engine) -> None:
    session = await engine.sessions.create("shop", "ada")
    async with followed_server(engine) as client:
        found = await _post_events(client, session.id, {})
    _compare(found, "POST of an event without keys", POST_EVENT, "Without keys")


async def test_an_event_with_a_key_enters_a_few_more(database_url: str) -> None:
    async with Engine.open(database_url, auth="required") as engine:
        session = await engine.sessions.create("shop", "ada")
        _, key = await engine.access.keys.create(permissions=[Permission.READ, Permission.WRITE], app_names=["shop"])
        async with followed_server(engine) as client:
            found = await _post_events(client, session.id, {"authorization": f"Bearer {key}"})
    _compare(found, "POST of an event with keys", POST_EVENT, "Without keys", "With API keys")


async def test_a_token_of_another_process_enters_the_listed_modules(database_url: str) -> None:
    async with Engine.open(database_url) as writing, Engine.open(database_url) as reading:
        session = await writing.sessions.create("shop", "ada")
        run = await writing.runs.create(session, run_id="r", running=True)
        async with (
            # Timers of the request must not count: only the tasks that the token passes through are followed.
            followed_server(reading, follows=False) as client,
            client.stream("GET", f"/api/runs/{run.id}/events") as response,
            writing.streams.write_message(session, run_id=run.id) as message,
        ):
            lines = response.aiter_lines()
            numbers = itertools.count()

            async def write() -> None:
                number = next(numbers)
                with Follower.following():
                    await message.write(f"token {number}")
                await _until(lines, f"token {number}")

            found = await _follow(write, lambda: Follower(*_STREAM_LOOPS))
    _compare(found, "a token, from process to process", TOKEN, "With the PostgreSQL backend")
    for follower in found[3:]:
        flushed, read, sent = map(follower.modules_in, _STREAM_LOOPS)
        # The token passes from loop to loop: the later ones do not ask the earlier ones again.
        assert flushed.isdisjoint(
            {"feed/channel_reader", "feed/thread_channel", "feed/feed", "agui/monitor", "api/sse"}
        )
        assert read.isdisjoint({"streams/writer", "feed/feed", "agui/monitor", "api/sse"})
        assert sent.isdisjoint({"streams/writer", "streams/backend", "database/connection_pool", "feed/channel_reader"})


async def _until(lines: AsyncIterator[str], text: str) -> None:
    async with asyncio.timeout(30):
        async for line in lines:
            if text in line:
                return
    raise AssertionError(f"the stream ended before {text!r}")


async def test_a_run_enters_the_listed_modules_until_its_first_frame(engine: Engine) -> None:
    thread = str(uuid4())

    def body() -> dict[str, Any]:
        message = {"id": str(uuid4()), "role": "user", "content": "hi"}
        fields: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
        return {"threadId": thread, "runId": str(uuid4()), "messages": [message], **fields}

    # The run executes in tasks of its own, which its clients follow.
    followers = [Follower(beside=("agent-", "run-", "remember-", "group-commit")) for _ in range(6)]
    async with followed_server(engine) as client:
        for follower in followers:
            async with AsyncExitStack() as stack:
                with follower.recording():
                    response = await stack.enter_async_context(client.stream("POST", "/agui/demo", json=body()))
                    lines = response.aiter_lines()
                    await _until(lines, "RUN_STARTED")
                # A response that is read to its end leaves the connection to the next request.
                assert "RUN_FINISHED" in "".join([line async for line in lines])
    _compare(followers, "POST /agui/{agent} to the first frame", POST_AGENT, "For an agent of Google ADK")
