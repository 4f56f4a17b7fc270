"""The run belongs to the server: leaving, coming back, watching together, stopping."""

from __future__ import annotations

import asyncio

import httpx

from cognizes.engine import Engine
from cognizes.engine.models import RunStatus
from tests.engine_parts import database_of
from tests.integration.agui.client import AgentClient, kinds, read_frames, text_of
from tests.integration.agui.gates import Gate
from tests.integration.hosting.served.agents import HELD_AT, SLOW_TEXT
from tests.integration.hosting.served.conftest import serve_agents
from tests.integration.hosting.served.test_turns import assert_as_stored, stored_session
from tests.served import Served
from tests.unittests.agui.legality import assert_legal


async def status(engine: Engine, client: AgentClient, run_id: str) -> RunStatus:
    return (await engine.runs.get((await stored_session(engine, client)).thread_id, run_id)).status


async def until_ended(engine: Engine, client: AgentClient, run_id: str, *, seconds: float = 60) -> RunStatus:
    async with asyncio.timeout(seconds):
        while (found := await status(engine, client, run_id)) in (RunStatus.RUNNING, RunStatus.PENDING):
            await asyncio.sleep(0.1)
    return found


async def until_streamed(engine: Engine, client: AgentClient, sequence: int) -> None:
    """Waits until other processes can read so many chunks of what is being said."""
    thread_id = (await stored_session(engine, client)).thread_id
    async with asyncio.timeout(60):
        while not any(head.current_sequence >= sequence for head in await engine.streams.heads([thread_id])):
            await asyncio.sleep(0.02)


async def end_lease(engine: Engine, client: AgentClient, run_id: str) -> None:
    """As if the lease had run out."""
    session = await stored_session(engine, client)
    await database_of(engine).pool.execute(
        "UPDATE runs SET lease_expires_at = now() - interval '1 s' WHERE thread_id = $1::uuid AND id = $2",
        session.thread_id, run_id,
    )  # fmt: skip


async def test_a_run_continues_without_its_client(http: httpx.AsyncClient, engine: Engine) -> None:
    client, gate = AgentClient(http, "slow"), Gate()
    await client.leave_after("TEXT_MESSAGE_CONTENT", gate.text, count=3, run_id="r1")
    gate.open()
    assert await until_ended(engine, client, "r1") == RunStatus.COMPLETED
    rows = await engine.sessions.messages(await stored_session(engine, client))
    assert [row.content for row in rows] == [gate.text, SLOW_TEXT]
    await client.connect()
    await assert_as_stored(engine, client)


async def test_connecting_in_the_middle_warm_cold_and_again(http: httpx.AsyncClient, engine: Engine) -> None:
    client, gate = AgentClient(http, "slow"), Gate()
    await client.run("first")
    left = await client.leave_after("TEXT_MESSAGE_CONTENT", gate.text, count=5, run_id="r2")
    cold = AgentClient(http, "slow", client.thread_id)
    client.seen = []  # those of the first turn
    connecting = [asyncio.create_task(client.connect()), asyncio.create_task(cold.connect())]
    for one in (client, cold):
        await one.until("TEXT_MESSAGE_START")
    gate.open()
    for frames in await asyncio.gather(*connecting):
        assert kinds(frames)[:4] == ["RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "TEXT_MESSAGE_START"]
        assert frames[0]["runId"] == "r2"
        so_far = frames[2]["messages"][-1]
        assert so_far["content"].startswith(text_of(left))
        assert so_far["content"] + text_of(frames) == SLOW_TEXT
    assert client.view.messages == cold.view.messages
    await assert_as_stored(engine, client)
    before = list(client.view.messages)
    assert kinds(await client.connect()) == ["RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert client.view.messages == before


async def test_two_connects_in_the_same_run(http: httpx.AsyncClient, engine: Engine) -> None:
    client, gate = AgentClient(http, "slow"), Gate()
    await client.leave_after("TEXT_MESSAGE_CONTENT", gate.text, count=2)
    async with http.stream("POST", "/agui/slow/connect", json=client.input()) as response:
        frames = read_frames(response)
        seen = [await anext(frames) for _ in range(4)]
    assert seen[-1]["type"] == "TEXT_MESSAGE_START"
    client.fold(seen)
    gate.open()
    await client.connect()
    await assert_as_stored(engine, client)
    assert client.view.messages[-1]["content"] == SLOW_TEXT


async def test_two_observers_see_the_same(http: httpx.AsyncClient) -> None:
    client, gate = AgentClient(http, "slow"), Gate()
    running = asyncio.create_task(client.run(gate.text))
    await client.until("TEXT_MESSAGE_CONTENT")
    others = [AgentClient(http, "slow", client.thread_id) for _ in range(2)]
    connecting = [asyncio.create_task(other.connect()) for other in others]
    for other in others:
        await other.until("TEXT_MESSAGE_START")
    gate.open()
    await asyncio.gather(running, *connecting)
    assert client.view.messages == others[0].view.messages == others[1].view.messages
    assert client.view.messages[-1]["content"] == SLOW_TEXT


async def test_a_second_run_on_the_thread_is_refused(http: httpx.AsyncClient) -> None:
    client = AgentClient(http, "slow")
    await client.leave_after("TEXT_MESSAGE_CONTENT", Gate().text, run_id="r1")
    refused = await http.post("/agui/slow", json=client.input("and another"))
    assert refused.status_code == 409
    assert "r1" in refused.json()["detail"]
    assert await client.cancel()
    assert (await client.run("now"))[-1]["type"] == "RUN_FINISHED"


async def test_cancelling_keeps_what_was_said(http: httpx.AsyncClient, engine: Engine) -> None:
    client = AgentClient(http, "slow")
    running = asyncio.create_task(client.run(Gate().text, run_id="r1"))
    await client.until("TEXT_MESSAGE_CONTENT", count=3)
    assert not await client.cancel(runId="another")
    assert sorted(await asyncio.gather(*(client.cancel(runId="r1") for _ in range(3)))) == [False, False, True]
    frames = await running
    assert frames[-1]["outcome"] == {"type": "cancelled"}
    assert await status(engine, client, "r1") == RunStatus.CANCELLED
    assert 0 < len(client.view.messages[-1]["content"]) < len(SLOW_TEXT)
    await assert_as_stored(engine, client)
    assert not await client.cancel()


async def test_an_unused_thread(http: httpx.AsyncClient) -> None:
    client = AgentClient(http, "slow")
    assert kinds(await client.connect()) == ["RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert client.view.messages == []


async def test_another_process_follows_the_run(http: httpx.AsyncClient, engine: Engine, database_url: str) -> None:
    """Chunk by chunk: what was said so far is in the snapshot, the rest follows, and nothing comes twice."""
    second = await asyncio.to_thread(serve_agents, database_url)
    try:
        client, gate = AgentClient(http, "slow"), Gate()
        await client.leave_after("TEXT_MESSAGE_CONTENT", gate.text, run_id="r1")
        async with httpx.AsyncClient(base_url=second.url, headers=http.headers, timeout=60) as elsewhere:
            refused = await elsewhere.post("/agui/slow", json=client.input("another"))
            assert refused.status_code == 409
            other = AgentClient(elsewhere, "slow", client.thread_id)
            connecting = asyncio.create_task(other.connect())
            await other.until("MESSAGES_SNAPSHOT")
            gate.open()
            frames = await connecting
        assert frames[0]["runId"] == "r1"
        snapshot = frames[2]["messages"]
        so_far = snapshot[-1]["content"] if snapshot[-1]["role"] == "assistant" else ""
        assert so_far + text_of(frames) == SLOW_TEXT
        await assert_as_stored(engine, other)
    finally:
        await asyncio.to_thread(second.stop)


async def test_stopping_the_server_ends_runs_and_tells_why(engine: Engine, database_url: str) -> None:
    server = await asyncio.to_thread(serve_agents, database_url)
    async with httpx.AsyncClient(base_url=server.url, headers={"X-User-ID": "stopped"}, timeout=60) as http:
        client = AgentClient(http, "slow")
        running = asyncio.create_task(client.run(Gate().text, run_id="r1"))
        await client.until("TEXT_MESSAGE_CONTENT", count=3)
        code, printed = await asyncio.to_thread(server.stop)
        frames = await running
    assert (frames[-1]["type"], frames[-1]["code"]) == ("RUN_ERROR", "SERVER_STOPPED")
    assert code == 0, printed
    assert "Traceback" not in printed, printed
    run = await engine.runs.get((await stored_session(engine, client)).thread_id, "r1")
    assert (run.status, "stopped" in (run.error or "")) == (RunStatus.FAILED, True)
    assert client.view.messages[-1]["content"].startswith("word0 word1")
    await assert_as_stored(engine, client)


async def test_a_killed_server_leaves_a_failed_run_and_what_it_said(
    http: httpx.AsyncClient, served: Served, engine: Engine, database_url: str
) -> None:
    """The other server finds the run orphaned, and keeps what is left of the answer."""
    server = await asyncio.to_thread(serve_agents, database_url)
    async with httpx.AsyncClient(base_url=server.url, headers=http.headers, timeout=60) as doomed:
        client = AgentClient(doomed, "slow")
        await client.leave_after("TEXT_MESSAGE_CONTENT", Gate().text, count=HELD_AT, run_id="r1")
    await until_streamed(engine, client, 2)
    await asyncio.to_thread(server.kill)
    survivor = AgentClient(http, "slow", client.thread_id)
    following = asyncio.create_task(survivor.connect())
    await survivor.until("RUN_STARTED")
    await end_lease(engine, client, "r1")
    assert await until_ended(engine, survivor, "r1") == RunStatus.FAILED
    assert_legal(await following)
    run = await engine.runs.get((await stored_session(engine, survivor)).thread_id, "r1")
    assert "stopped" in (run.error or "")
    await survivor.connect()
    assert survivor.view.messages[-1]["content"].startswith("word0 word1")
    await assert_as_stored(engine, survivor)
    assert (await survivor.run("again"))[-1]["type"] == "RUN_FINISHED"
