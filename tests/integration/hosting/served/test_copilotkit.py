"""The routes that CopilotKit's client and inspector call."""

from __future__ import annotations

import asyncio

import httpx

from cognizes.engine import Engine
from tests.integration.agui.client import AgentClient
from tests.integration.agui.gates import Gate
from tests.integration.hosting.served.test_turns import assert_as_stored


async def test_info(http: httpx.AsyncClient) -> None:
    info = (await http.get("/copilotkit/info")).json()
    assert set(info["agents"]) == {
        "demo",
        "slow",
        "failing",
        "team",
        "painter",
        "steady",
        "generic",
        "editor",
        "mirror",
    }
    assert (info["mode"], info["threadEndpoints"]["list"], info["threadEndpoints"]["inspect"]) == ("sse", True, True)


async def test_run_connect_stop(http: httpx.AsyncClient, engine: Engine) -> None:
    client = AgentClient(http, "demo")
    # What @copilotkit/core 1.75 sends: no protocol version, it pins @ag-ui/client 0.0.59.
    await client.run("hello", path="/copilotkit/agent/demo/run", protocolVersion=None)
    await client.connect(path="/copilotkit/agent/demo/connect", protocolVersion=None)
    await assert_as_stored(engine, client)
    slow = AgentClient(http, "slow")
    running = asyncio.create_task(slow.run(Gate().text, run_id="r1", path="/copilotkit/agent/slow/run"))
    await slow.until("TEXT_MESSAGE_CONTENT")
    stop = f"/copilotkit/agent/slow/stop/{slow.thread_id}"
    assert (await http.post(stop, json={"runId": "another"})).json()["stopped"] is False
    assert (await http.post(stop)).json()["stopped"] is True
    assert (await running)[-1]["outcome"] == {"type": "cancelled"}


async def test_a_thread_id_that_cannot_be_stored_is_refused_before_the_stream(http: httpx.AsyncClient) -> None:
    for path in ("/copilotkit/agent/demo/connect", "/agui/demo/connect"):
        answer = await http.post(path, json={"threadId": "a\0b"})
        assert (answer.status_code, answer.json()["status"]) == (422, 422), answer.text


async def test_threads(http: httpx.AsyncClient) -> None:
    client = AgentClient(http, "demo")
    await client.run("hello")
    for query in ("", "?agentId=demo"):
        (thread,) = (await http.get(f"/copilotkit/threads{query}")).json()["threads"]
        assert (thread["id"], thread["agentId"], thread["archived"]) == (client.thread_id, "demo", False)
    base = f"/copilotkit/threads/{client.thread_id}"
    messages = (await http.get(f"{base}/messages")).json()["messages"]
    assert [message["id"] for message in messages] == [message["id"] for message in client.view.messages]
    assert [call["name"] for call in messages[2]["toolCalls"]] == ["read_clock", "note_topic"]
    assert (await http.get(f"{base}/state")).json()["state"] == client.view.state
    events = (await http.get(f"{base}/events")).json()["events"]
    assert (events[0]["type"], events[-1]["type"]) == ("RUN_STARTED", "RUN_FINISHED")
    assert (await http.get("/copilotkit/threads/unknown/messages")).status_code == 404


async def test_a_thread_id_of_two_agents_is_the_thread_with_the_latest_activity(http: httpx.AsyncClient) -> None:
    first = AgentClient(http, "demo")
    second = AgentClient(http, "mirror", first.thread_id)
    for client in (first, second, first):
        await client.run("hello")
        messages = (await http.get(f"/copilotkit/threads/{first.thread_id}/messages")).json()["messages"]
        assert [message["id"] for message in messages] == [message["id"] for message in client.view.messages]


async def test_messages_page_backwards_for_both_kinds_of_clients(http: httpx.AsyncClient) -> None:
    client = AgentClient(http, "demo")
    await client.run("Hello")
    paths = [f"/agui/demo/threads/{client.thread_id}/messages", f"/copilotkit/threads/{client.thread_id}/messages"]
    for path in paths:
        newest = (await http.get(path)).json()
        assert [message["id"] for message in newest["messages"]] == [message["id"] for message in client.view.messages]
        assert (newest["hasMore"], newest["before"]) == (False, None)
        assert (await http.get(path, params={"before": 1})).json()["messages"] == []
        assert (await http.get(path, params={"before": 0})).status_code == 422
    assert (await http.get("/agui/demo/threads/nowhere/messages")).status_code == 404
