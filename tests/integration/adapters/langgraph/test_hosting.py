"""Hosted graphs: what their streams become in AG-UI, interrupts, and runs that lose their server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import httpx
import pytest

from cognizes.engine.database import EmbeddedPostgres
from tests.conftest import replace_database
from tests.database_supply import DatabaseSupply
from tests.integration.agui.client import AgentClient, kinds, text_of
from tests.integration.agui.gates import DIRECTORY, Gate, gates_directory
from tests.served import Served, serve

AGENTS = ",".join(
    [
        *(
            f"tests.integration.adapters.langgraph.agents:{name}"
            for name in ("assistant", "asker", "keeper", "counter")
        ),
        "examples.langgraph.agent:weather",
    ]
)


def serve_graphs(database_url: str, **settings: str) -> Served:
    return serve(
        database_url, COGNIZES_AGENTS=AGENTS, COGNIZES_SHUTDOWN_SECONDS="0.3", **{DIRECTORY: str(gates_directory())},
        **settings,
    )  # fmt: skip


@pytest.fixture(scope="module")
def graphs_url(postgres_server: EmbeddedPostgres, database_supply: DatabaseSupply) -> Iterator[str]:
    name = asyncio.run(database_supply.take())
    yield replace_database(postgres_server.url, name)
    database_supply.give_back(name)


@pytest.fixture(scope="module")
def served(graphs_url: str) -> Iterator[Served]:
    server = serve_graphs(graphs_url)
    yield server
    if server.process.poll() is None:
        server.kill()


@pytest.fixture
async def http(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served.url, timeout=60, headers={"X-User-ID": f"user-{uuid4()}"}) as opened:
        yield opened


async def test_a_turn_streams_thoughts_texts_tool_calls_results_steps_and_state(http: httpx.AsyncClient) -> None:
    client = AgentClient(http, "assistant")
    frames = await client.run("the weather?")
    assert text_of(frames) == "Let me look.It is sunny in Rome."
    arguments = [frame["delta"] for frame in frames if frame["type"] == "TOOL_CALL_ARGS"]
    assert (len(arguments), "".join(arguments)) == (2, '{"city": "Rome"}')
    assert [frame["content"] for frame in frames if frame["type"] == "TOOL_CALL_RESULT"] == ["sunny in Rome"]
    assert (
        "".join(frame["delta"] for frame in frames if frame["type"] == "REASONING_MESSAGE_CONTENT") == "A tool knows."
    )
    steps = [frame["stepName"] for frame in frames if frame["type"] == "STEP_STARTED"]
    assert steps == ["prepare", "model", "tools", "model"]
    assert client.view.state["log"] == ["prepare", "model", "model"]
    assert kinds(frames)[-1] == "RUN_FINISHED"


async def test_the_graph_keeps_the_conversation_and_a_reload_shows_it(http: httpx.AsyncClient) -> None:
    client = AgentClient(http, "assistant")
    await client.run("one")
    await client.run("two")
    assert client.view.state["log"] == ["prepare", "model"] * 2
    reloaded = AgentClient(http, "assistant", client.thread_id)
    await reloaded.connect()
    assert [message["content"] for message in reloaded.view.messages] == [
        "one", "You said: one ", "two", "You said: two ",
    ]  # fmt: skip
    assert reloaded.view.messages == client.view.messages
    assert reloaded.view.state == client.view.state


async def test_a_client_that_attaches_in_mid_run_sees_every_character(http: httpx.AsyncClient) -> None:
    gate = Gate()
    first = AgentClient(http, "assistant")
    second = AgentClient(http, "assistant", first.thread_id)
    running = asyncio.create_task(first.run(gate.text))
    await first.until("TEXT_MESSAGE_CONTENT")
    attached = asyncio.create_task(second.connect())
    await second.until("TEXT_MESSAGE_START")
    gate.open()
    await asyncio.gather(running, attached)
    assert second.view.messages == first.view.messages


async def test_an_interrupt_waits_for_the_answer_and_continues_the_run(http: httpx.AsyncClient) -> None:
    client = AgentClient(http, "asker")
    frames = await client.run("hello")
    [question] = frames[-1]["outcome"]["interrupts"]
    assert question["message"] == "May I?"
    refused = await http.post("/agui/asker", json=client.input("never mind"))
    assert (refused.status_code, refused.json()["interrupts"]) == (409, [question["id"]])
    answered = await client.run(resume=[{"interruptId": question["id"], "status": "resolved", "payload": "you may"}])
    assert text_of(answered) == "You said: hello "
    assert client.view.state["approval"] == "you may"
    await client.run("hello again")
    withdrawn = await client.run("something else", forwardedProps={"cognizes": {"onBusy": "cancel"}})
    assert [asked["message"] for asked in withdrawn[-1]["outcome"]["interrupts"]] == ["May I?"]


async def test_a_graph_without_a_store_shares_ours_between_the_threads_of_a_user(http: httpx.AsyncClient) -> None:
    for turn in (1, 2):
        assert text_of(await AgentClient(http, "counter").run("hello")) == f"turn {turn}"
    http.headers["X-User-ID"] = f"user-{uuid4()}"
    assert text_of(await AgentClient(http, "counter").run("hello")) == "turn 1"


async def test_an_own_checkpointer_is_kept_and_said(http: httpx.AsyncClient) -> None:
    listed = {agent["name"]: agent for agent in (await http.get("/agui")).json()["agents"]}
    assert "InMemorySaver" in listed["keeper"]["description"]
    assert "PostgreSQL" in listed["assistant"]["description"]
    client = AgentClient(http, "keeper")
    await client.run("one")
    assert text_of(await client.run("two")) == "You said: two "


async def test_another_server_continues_from_the_last_checkpoint_after_kill_9(graphs_url: str) -> None:
    gate, settings = Gate(), {"COGNIZES_RUN_LEASE_SECONDS": "2", "COGNIZES_STREAM_LEASE_SECONDS": "2"}
    first = serve_graphs(graphs_url, **settings)
    headers = {"X-User-ID": f"user-{uuid4()}"}
    async with httpx.AsyncClient(base_url=first.url, timeout=60, headers=headers) as http:
        client = AgentClient(http, "assistant")
        await client.leave_after("TEXT_MESSAGE_CONTENT", gate.text)
        first.kill()
    second = serve_graphs(graphs_url, **settings)
    try:
        gate.open()
        async with httpx.AsyncClient(base_url=second.url, timeout=60, headers=headers) as http:
            later = AgentClient(http, "assistant", client.thread_id)
            async with asyncio.timeout(60):
                # Until the lease of the first server expires there is nothing to follow.
                while later.view.messages[-1:] == [] or later.view.messages[-1]["content"] != f"You said: {gate.text} ":
                    await later.connect()
                    await asyncio.sleep(0.1)
            # `prepare` was stored in a checkpoint and did not run again.
            assert later.view.state["log"] == ["prepare", "model"]
            assert text_of(await later.run("and now?")) == "You said: and now? "
    finally:
        second.kill()


async def test_the_example_streams_asks_and_stores_the_answer(http: httpx.AsyncClient) -> None:
    client = AgentClient(http, "weather")
    frames = await client.run("Rome")
    assert text_of(frames) == "I will look up: Rome "
    [question] = frames[-1]["outcome"]["interrupts"]
    await client.run(resume=[{"interruptId": question["id"], "status": "resolved", "payload": True}])
    assert client.view.state["approved"] is True
