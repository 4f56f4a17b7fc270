"""Clients that leave at any moment, and clients that return after a long time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from ag_ui.core import BaseEvent, RunAgentInput, TextMessageChunkEvent, UserMessage
from fastapi import FastAPI

from cognizes.engine import Engine, RunStatus
from cognizes.engine.api.main import create_app
from cognizes.engine.errors import ConflictError
from tests.integration.api.test_live_routes import Call
from tests.integration.hosting.agents import scripted_host
from tests.integration.runs.conditions import until_status

ENDLESS = "tests.integration.hosting.agents:endless"


def said(text: str, thread_id: str, **more: Any) -> RunAgentInput:
    fields: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwarded_props": {}, **more}
    message = UserMessage(id=str(uuid4()), content=text)
    return RunAgentInput(thread_id=thread_id, run_id=str(uuid4()), messages=[message], **fields)


def post(app: FastAPI, path: str, body: RunAgentInput | dict[str, str]) -> Call:
    call = Call(
        app,
        {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "scheme": "http",
            "headers": [(b"content-type", b"application/json"), (b"x-user-id", b"ada")],
        },
    )  # fmt: skip
    document = body if isinstance(body, dict) else body.model_dump(mode="json", by_alias=True)
    call.say({"type": "http.request", "body": json.dumps(document).encode(), "more_body": False})
    return call


@pytest.mark.parametrize("on_busy", ["reject", "queue"])
async def test_a_client_that_leaves_before_the_stream_begins(engine: Engine, on_busy: str) -> None:
    app, thread = create_app(engine=engine, agents=[ENDLESS]), str(uuid4())
    properties = {"cognizes": {"onDisconnect": "cancel", "onBusy": on_busy}}
    async with app.router.lifespan_context(app):
        before = None
        if on_busy == "queue":
            before = post(app, "/agui/endless", said("first", thread))
            await before.until(lambda: b"TEXT_MESSAGE_CONTENT" in before.body if before else False)
        left = said("go", thread, forwarded_props=properties)
        call = post(app, "/agui/endless", left)
        call.say({"type": "http.disconnect"})
        if before is not None:
            cancelled = post(app, "/agui/endless/cancel", {"threadId": thread})
            await cancelled.end()
            assert json.loads(cancelled.body) == {"cancelled": True}
        await call.end()
        session = await engine.sessions.get("endless", "ada", thread)
        assert session is not None
        run = await engine.runs.get(session.thread_id, left.run_id)
        await until_status(engine, run, RunStatus.CANCELLED)
        # The next message is accepted at once.
        again = post(app, "/agui/endless", said("again", thread))
        await again.until(lambda: b"TEXT_MESSAGE_CONTENT" in again.body)
        again.say({"type": "http.disconnect"})


async def test_another_server_accepts_the_next_message_after_a_client_has_left(
    engine: Engine, database_url: str
) -> None:
    """The next request of a page may reach another process before the first one notices that the client has left."""
    thread, begun, may_leave = str(uuid4()), asyncio.Event(), asyncio.Event()

    async def slow(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        if run_input.messages[-1].content == "go":
            begun.set()
            await asyncio.Event().wait()
        yield TextMessageChunkEvent(message_id="m", delta="quick")

    properties = {"cognizes": {"onDisconnect": "cancel"}}
    async with (
        Engine.open(database_url) as other,
        scripted_host(engine, slow) as host,
        scripted_host(other, slow) as next_host,
    ):
        run = await host.run("slow", "ada", said("go", thread, forwarded_props=properties))

        async def follow_until_it_leaves() -> None:
            async with aclosing(host.watch(run)) as frames:
                async for _ in frames:
                    if begun.is_set():
                        break
                await may_leave.wait()

        client = asyncio.create_task(follow_until_it_leaves())
        await begun.wait()
        with other.runs.notifications.subscribe(lambda _: True):
            again = asyncio.create_task(next_host.run("slow", "ada", said("again", thread)))
            # The other server has found the thread busy before the client leaves.
            await asyncio.wait([again], timeout=0.3)
            may_leave.set()
            second = await again
        await client
        await second.wait()
        session = await engine.sessions.get("slow", "ada", thread)
        assert session is not None
        ended = [one.status for one in await engine.runs.list(session.thread_id)]
        assert sorted(ended) == [RunStatus.CANCELLED, RunStatus.COMPLETED]
        # A run that does not end with its clients refuses the message at once.
        run = await host.run("slow", "ada", said("go", thread))
        with pytest.raises(ConflictError, match=run.run_id):
            await next_host.run("slow", "ada", said("again", thread))


async def test_a_client_returns_after_the_history_of_user_state_has_expired(engine: Engine, database_url: str) -> None:
    """Its own state is compared with that of its newest message; user: and app: keys do not matter for that."""
    thread = str(uuid4())
    async with scripted_host(engine) as host:
        first = said("hi", thread)
        await (await host.run("echo", "ada", first)).wait()
        session = await engine.sessions.get("echo", "ada", thread)
        assert session is not None
        for number in range(3):
            await engine.sessions.update(session, {"user:visits": number, "count": number})
        connection = await asyncpg.connect(database_url)
        await connection.execute("SELECT fold_state_writes(interval '0', 1000)")
        await connection.close()
        more = said("and?", thread, state={"draft": "mine"})
        run = await host.run("echo", "ada", more.model_copy(update={"messages": [*first.messages, *more.messages]}))
        await run.wait()
        assert (await engine.runs.get(run.thread_id, run.run_id)).status is RunStatus.COMPLETED
        assert (await engine.sessions.store.get_thread(run.thread_id)).state["draft"] == "mine"
