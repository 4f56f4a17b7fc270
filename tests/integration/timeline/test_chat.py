"""Seed 002's own check: talk over several turns, look at the rows, read the timeline."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from cognizes.engine import Engine
from cognizes.engine.access import Permission
from cognizes.engine.api.main import create_app
from cognizes.engine.pulse.session_store import thread_uuid
from tests.engine_parts import database_of
from tests.integration.access.conftest import Guarded
from tests.integration.timeline.agents import ANSWER

CYCLE = ["user_message", "thought", "tool_call", "tool_result", "assistant_message"]
AGENT = "tests.integration.timeline.agents:talker"


@pytest.fixture
async def http(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(engine=engine, agents=[AGENT])
    await app.state.agents.start()
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=60) as opened:
        yield opened
    await app.state.agents.close()


async def new_context(http: httpx.AsyncClient, app: str = "talker") -> str:
    answer = await http.post("/contexts", json={"app_name": app, "user_id": "ada"})
    assert answer.status_code == 201, answer.text
    context: str = answer.json()["id"]
    return context


async def test_seed_002_several_turns_by_chat(engine: Engine, http: httpx.AsyncClient) -> None:
    context = await new_context(http)
    for number, prefix in enumerate(("", "/v1"), 1):
        answer = await http.post(f"{prefix}/conversations/{context}/chat", json={"message": f"第{number}轮"})
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert (body["conversationId"], body["status"], body["error"]) == (context, "completed", None)
        assert [item["type"] for item in body["timeline"]] == CYCLE * number
        assert body["timeline"][-5]["content"] == f"第{number}轮"
        assert body["timeline"][-1]["content"] == ANSWER
        assert (await engine.runs.get(context, body["runId"])).status == "completed"
    read = (await http.get(f"/conversations/{context}/messages")).json()
    assert read == {name: body[name] for name in read}


async def test_seed_002_a_hosted_run_of_a_thousand_tokens_leaves_five_rows(
    engine: Engine, http: httpx.AsyncClient
) -> None:
    context = await new_context(http)
    assert (await http.post(f"/conversations/{context}/chat", json={"message": "talk"})).status_code == 200
    rows = await database_of(engine).pool.fetch(
        "SELECT event_type FROM events WHERE thread_id = $1 ORDER BY sequence_num", thread_uuid(context)
    )
    kinds = [row["event_type"] for row in rows]
    assert [kind for kind in kinds if not kind.startswith("run_")] == [
        "user_message", "thought", "act", "observe", "assistant_message",
    ]  # fmt: skip
    assert [kind for kind in kinds if kind.startswith("run_")] == ["run_started", "run_finished"]


async def test_a_run_that_fails_is_reported(http: httpx.AsyncClient) -> None:
    context = await new_context(http)
    body = (await http.post(f"/conversations/{context}/chat", json={"message": "fail"})).json()
    assert (body["status"], "the model is broken" in body["error"]) == ("failed", True)
    assert [item["type"] for item in body["timeline"]] == ["user_message"]


async def test_chats_that_cannot_be_answered(engine: Engine, http: httpx.AsyncClient) -> None:
    context = await new_context(http)
    stranger = await new_context(http, "an app without an agent")
    cases: list[tuple[str, Any, int]] = [
        (context, {}, 422), (context, {"message": ""}, 422), (context, {"message": ["x"]}, 422),
        (stranger, {"message": "hi"}, 404), ("nowhere", {"message": "hi"}, 404),
    ]  # fmt: skip
    for name, body, status in cases:
        answer = await http.post(f"/conversations/{name}/chat", json=body)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    session = await engine.sessions.store.get_thread(context)
    await engine.runs.begin_leased(session, run_id="another", handler="of another server", input={})
    answer = await http.post(f"/conversations/{context}/chat", json={"message": "hi"})
    assert (answer.status_code, "another" in answer.json()["detail"]) == (409, True)


async def test_only_the_caller_that_may_write_to_a_conversation_chats(database_url: str) -> None:
    async with Engine.open(database_url, auth="required") as engine:
        guarded = Guarded(engine)
        guarded.app = create_app(engine=engine, agents=[AGENT])
        guarded.transport = httpx.ASGITransport(app=guarded.app, raise_app_exceptions=False)
        await guarded.app.state.agents.start()
        ada = await guarded.key("talker", user_id="ada")
        reader = await guarded.key("talker", user_id="ada", permissions=(Permission.READ,))
        eve, stranger = await guarded.key("talker", user_id="eve"), await guarded.key("other")
        async with guarded.client(ada) as client:
            context = await new_context(client)
        answers = {}
        for key in (reader, eve, stranger, ada):
            async with guarded.client(key) as client:
                answer = await client.post(f"/conversations/{context}/chat", json={"message": "hi"})
                answers[key] = answer.status_code
        assert [answers[key] for key in (reader, eve, stranger, ada)] == [403, 404, 404, 200]
        await guarded.app.state.agents.close()
