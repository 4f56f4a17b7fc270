"""Servers that are killed in mid-run, and agents that break rules, while a client of another server follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest

from cognizes.engine import Engine
from cognizes.engine.models import RunStatus
from tests.integration.agui.client import AgentClient, read_frames
from tests.integration.agui.gates import Gate
from tests.integration.hosting.agents import PIECES, WORDS
from tests.integration.hosting.served.conftest import serve_agents
from tests.integration.hosting.served.test_attaching import until_ended
from tests.integration.hosting.served.test_turns import stored_session
from tests.served import Served

AGENTS = ",".join(f"tests.integration.hosting.agents:{name}" for name in ("writer", "generic", "shop"))
PICTURE = b"\x89PNG not really" * 1000


@asynccontextmanager
async def two_servers(
    database_url: str, agents: str = AGENTS
) -> AsyncIterator[tuple[Served, httpx.AsyncClient, httpx.AsyncClient]]:
    """Two servers of the same agents, with short leases, and a client of one user on each."""
    settings = {"COGNIZES_AGENTS": agents, "COGNIZES_RUN_LEASE_SECONDS": "2", "COGNIZES_STREAM_LEASE_SECONDS": "2"}
    first, second = serve_agents(database_url, **settings), serve_agents(database_url, **settings)
    headers = {"X-User-ID": f"user-{uuid4()}"}
    try:
        async with (
            httpx.AsyncClient(base_url=first.url, timeout=60, headers=headers) as one,
            httpx.AsyncClient(base_url=second.url, timeout=60, headers=headers) as other,
        ):
            yield first, one, other
    finally:
        for server in (first, second):
            if server.process.poll() is None:
                server.kill()


@pytest.mark.parametrize(
    ("module", "agent", "kind"),
    [
        ("agents", "generic", "TEXT_MESSAGE_CONTENT"),
        ("agents", "writer", "TOOL_CALL_ARGS"),
        ("framework_agents", "pydantic", "TEXT_MESSAGE_CONTENT"),
        ("framework_agents", "openai", "TEXT_MESSAGE_CONTENT"),
    ],
)
async def test_a_killed_server_leaves_the_attachment_and_the_answer_so_far(
    database_url: str, engine: Engine, module: str, agent: str, kind: str
) -> None:
    gate = Gate()
    async with two_servers(database_url, f"tests.integration.hosting.{module}:{agent}") as (first, one, other):
        client = AgentClient(one, agent)
        follower = AgentClient(other, agent, client.thread_id)
        saved = await one.post(
            f"/agui/{agent}/threads/{client.thread_id}/attachments",
            content=PICTURE, headers={"Content-Type": "image/png"}, params={"filename": "cat.png"},
        )  # fmt: skip
        part = saved.json()["part"]
        body = client.input(run_id="killed")
        content: list[dict[str, Any]] = [{"type": "text", "text": gate.text}, part]
        body["messages"] = [{"id": str(uuid4()), "role": "user", "content": content}]
        running = asyncio.create_task(client.follow(f"/agui/{agent}", body))
        await client.until(kind, count=9)
        following = asyncio.create_task(follower.connect())
        opened = "TOOL_CALL_START" if agent == "writer" else "TEXT_MESSAGE_START"
        await follower.until(opened)
        first.kill()
        with pytest.raises((httpx.HTTPError, AssertionError)):
            await running
        frames = await following
        assert frames[-1]["type"] == "RUN_ERROR"
        assert await until_ended(engine, follower, "killed") is RunStatus.FAILED
        reloaded = AgentClient(other, agent, client.thread_id)
        await reloaded.connect()
        assert reloaded.view.messages == follower.view.messages
        if agent != "writer":
            said = reloaded.view.messages[-1]["content"]
            assert said
            assert "".join(WORDS).startswith(said)
        else:
            [call] = reloaded.view.messages[-1]["toolCalls"]
            assert call["function"]["arguments"]
            assert "".join(PIECES).startswith(call["function"]["arguments"])
        assert reloaded.view.messages[0]["content"][1] == part
        thread_id = (await stored_session(engine, follower)).thread_id
        [listed] = (await other.get(f"/api/sessions/{thread_id}/attachments")).json()["attachments"]
        path = f"/agui/{agent}/threads/{client.thread_id}/attachments/{listed['id']}"
        assert (await other.get(path)).content == PICTURE
        gate.open()
        body = reloaded.input("and now?")
        async with other.stream("POST", f"/agui/{agent}", json=body) as response:
            assert [frame["type"] async for frame in read_frames(response)][-1] == "RUN_FINISHED"


async def test_an_illegal_order_ends_the_run_for_a_client_of_another_server(database_url: str, engine: Engine) -> None:
    gate = Gate()
    async with two_servers(database_url) as (_, one, other):
        client = AgentClient(one, "writer")
        follower = AgentClient(other, "writer", client.thread_id)
        running = asyncio.create_task(client.run(f"disorder {gate.text}", run_id="illegal"))
        await client.until("TOOL_CALL_ARGS", count=9)
        following = asyncio.create_task(follower.connect())
        await follower.until("TOOL_CALL_START")
        gate.open()
        for frames in await asyncio.gather(running, following):
            assert frames[-1]["type"] == "RUN_ERROR"
            assert "no call 'another' is open" in frames[-1]["message"]
        assert follower.view.messages == client.view.messages
        assert follower.view.messages[-1]["toolCalls"][0]["function"]["arguments"] == "".join(PIECES[:10])
        assert await until_ended(engine, client, "illegal") is RunStatus.FAILED


async def test_a_run_whose_code_waits_outlives_its_server(database_url: str, engine: Engine) -> None:
    async with two_servers(database_url) as (first, one, other):
        client = AgentClient(one, "shop")
        frames = await client.run("order", run_id="order")
        first.kill()
        assert frames[-1]["outcome"]["interrupts"][0]["id"] == "payment"
        thread_id = (await stored_session(engine, client)).thread_id
        reloaded = AgentClient(other, "shop", client.thread_id)
        assert (await reloaded.connect())[-1]["outcome"] == frames[-1]["outcome"]
        # The page of people lists the run, with a form for the signal: it is no question that a person answers.
        listed = (await other.get("/api/debug/runs", params={"status": "waiting", "wait_kind": "webhook"})).json()
        [waiting] = [run["wait"] for run in listed["runs"] if run["thread_id"] == thread_id]
        assert (waiting["correlation_key"], waiting["reason"]) == ("payment", "The payment is open.")
        assert (await other.get(f"/api/debug/threads/{thread_id}/questions")).json() == {"questions": []}
        for refused in (
            reloaded.input("and now?"),
            reloaded.input(resume=[{"interruptId": "payment", "status": "resolved", "payload": "forged"}]),
        ):
            assert (await other.post("/agui/shop", json=refused)).status_code == 409
        path = f"/api/sessions/{thread_id}/runs/order/signal"
        assert (await other.post(path, json={"correlation_key": "refund"})).status_code == 409
        answer = await other.post(path, json={"correlation_key": "payment", "payload": 5})
        assert answer.json()["outcome"] == "resumed", answer.text
        assert await until_ended(engine, reloaded, "order") is RunStatus.COMPLETED
        await reloaded.connect()
        texts = [message["content"] for message in reloaded.view.messages]
        assert texts == ["order", "Ordered.", "Paid: 5."]
