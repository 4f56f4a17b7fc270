"""Clients that leave at any moment, and clients that return after a long time."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from ag_ui.core import RunAgentInput, UserMessage
from fastapi import FastAPI

from cognizes.engine import Engine, RunStatus
from cognizes.engine.api.main import create_app
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
