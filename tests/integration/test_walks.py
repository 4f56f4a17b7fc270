"""docs/architecture.md lists the modules that a request enters, and no other is entered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx

from cognizes.engine import Engine
from cognizes.engine.access import Permission
from tests.integration.walks import Follower, followed_server, listed_modules

POST_AGENT = "POST /agui/{agent} to the first frame"
POST_EVENT = "POST /api/sessions/{thread_id}/events with a state delta"
TOKEN = "One token, written in process A, as an SSE frame in process B"
_BATCH = "group-commit"
_STREAM_LOOPS = ("stream-flusher", "feed-streams", "event-stream")
_EVENT = {
    "author": "agent",
    "event_type": "assistant_message",
    "content": {"text": "hello"},
    "actions": {"state_delta": {"step": 1}},
}


async def _post_events(client: httpx.AsyncClient, thread_id: str, headers: dict[str, str]) -> list[str]:
    """Return the modules that the append of an event enters on a warm server."""
    path = f"/api/sessions/{thread_id}/events"
    for _ in range(3):
        (await client.post(path, json=_EVENT, headers=headers)).raise_for_status()
    follower = Follower(_BATCH)
    with follower.recording():
        response = await client.post(path, json=_EVENT, headers=headers)
    assert response.status_code == 201
    return follower.modules


async def test_an_event_without_keys_enters_the_listed_modules(engine: Engine) -> None:
    session = await engine.sessions.create("shop", "ada")
    async with followed_server(engine) as client:
        found = await _post_events(client, session.id, {})
    assert set(found) == listed_modules(POST_EVENT, "Without keys"), found


async def test_an_event_with_a_key_enters_a_few_more(database_url: str) -> None:
    async with Engine.open(database_url, auth="required") as engine:
        session = await engine.sessions.create("shop", "ada")
        _, key = await engine.access.keys.create(permissions=[Permission.READ, Permission.WRITE], app_names=["shop"])
        async with followed_server(engine) as client:
            found = await _post_events(client, session.id, {"authorization": f"Bearer {key}"})
    listed = listed_modules(POST_EVENT, "Without keys") | listed_modules(POST_EVENT, "With API keys")
    assert set(found) == listed, found


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
            for number in range(3):
                await message.write(f"warm {number}")
                await _until(lines, f"warm {number}")
            follower = Follower(*_STREAM_LOOPS)
            with follower.recording():
                with follower.following():
                    await message.write("followed")
                await _until(lines, "followed")
    assert set(follower.modules) == listed_modules(TOKEN, "With the PostgreSQL backend"), follower.modules


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

    async with followed_server(engine) as client:
        for _ in range(3):
            warm = await client.post("/agui/demo", json=body())
            assert "RUN_FINISHED" in warm.text
        # The run executes in tasks of its own, which its clients follow.
        follower = Follower(beside=("agent-", "run-", "remember-", "group-commit"))
        with follower.recording():
            async with client.stream("POST", "/agui/demo", json=body()) as response:
                async for line in response.aiter_lines():
                    if "RUN_STARTED" in line:
                        break
    listed = listed_modules(POST_AGENT, "For an agent of Google ADK")
    assert set(follower.modules) == listed, " ".join(follower.modules)
