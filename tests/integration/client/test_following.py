"""Runs that are followed over cut connections and restarted servers: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import uuid4

import httpx
import pytest

from cognizes.client import (
    Client,
    ClientError,
    MessageEnded,
    NotFoundError,
    RunEnded,
    RunEvent,
    RunStarted,
    RunWaiting,
    ServerUnavailableError,
    TextDelta,
    ToolCalled,
    ToolReturned,
)
from cognizes.engine import Engine
from tests.integration.agui.gates import Gate
from tests.integration.client.conftest import serve_agents
from tests.integration.client.relay import Relay, answer
from tests.integration.hosting.agents import HELD_AT, WORDS
from tests.served import Served

TEXT = "".join(WORDS)


def text_of(events: list[RunEvent], *, is_thought: bool = False) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta) and event.is_thought is is_thought)


def numbers_of(events: list[RunEvent]) -> list[int]:
    return [event.sequence_num for event in events if event.sequence_num is not None]


async def test_a_hosted_agent_is_followed_to_its_end(client: Client) -> None:
    assert {"generic", "weather"} <= {agent.name for agent in await client.agents.list()}
    run = await client.agents.start("generic", str(uuid4()), "Hello", user_id="ada")
    events = [event async for event in client.runs.follow(run.id)]
    assert isinstance(events[0], RunStarted)
    assert text_of(events, is_thought=True) == "I look it up."
    assert [(call.name, call.arguments) for call in events if isinstance(call, ToolCalled)] == [
        ("look_up", '{"q": "words"}')
    ]
    assert [result.content for result in events if isinstance(result, ToolReturned)] == ["forty words"]
    assert text_of(events).endswith(TEXT)
    assert events[-1] == RunEnded(events[-1].sequence_num, "completed", None)
    assert numbers_of(events) == sorted(numbers_of(events))
    assert (await client.runs.wait(run.id)).status == "completed"
    # The same again for a client that comes late, from the start and from the middle.
    again = [event async for event in client.runs.follow(run.id)]
    assert (text_of(again), numbers_of(again)[-1]) == (text_of(events), numbers_of(events)[-1])
    call = next(event for event in events if isinstance(event, ToolCalled))
    rest = [event async for event in client.runs.follow(run.id, after=call.sequence_num or 0)]
    assert text_of(rest) == TEXT
    assert isinstance(rest[0], ToolReturned)


async def test_connections_are_cut_while_the_agent_answers(client: Client, relay: Relay) -> None:
    gate = Gate()
    run = await client.agents.start("generic", str(uuid4()), gate.text, user_id="ada")
    events: list[RunEvent] = []
    half = "".join(WORDS[: HELD_AT - 1])
    async with Client(relay.url, timeout=60) as follower:
        following = asyncio.create_task(collect(follower, run.id, events))
        # The agent waits for the gate.
        await until(lambda: text_of(events).endswith(half))
        for _ in range(3):
            before = relay.connections
            relay.cut()
            await until(lambda: relay.connections > before)  # noqa: B023 - awaited in the same turn
        gate.open()
        await asyncio.wait_for(following, 60)
    assert relay.connections >= 3
    assert text_of(events).count(TEXT) == 1
    assert text_of(events).count("word0 ") == 1
    assert numbers_of(events) == sorted(set(numbers_of(events)))
    assert len([event for event in events if isinstance(event, MessageEnded)]) == len(
        {event.message_id for event in events if isinstance(event, MessageEnded)}
    )
    assert isinstance(events[-1], RunEnded)


async def test_the_server_restarts_in_mid_run(database_url: str) -> None:
    first = serve_agents(database_url)
    second: Served | None = None
    relay = Relay(first.url)
    events: list[RunEvent] = []
    try:
        async with (
            relay.open() as url,
            Client(url, timeout=60) as client,
            Engine.open(database_url) as engine,
        ):
            session = await client.sessions.create("shop", "ada")
            stored = await engine.sessions.get("shop", "ada", session.session_id)
            assert stored is not None
            async with engine.runs.start(stored) as run:
                following = asyncio.create_task(collect(client, run.id, events))
                async with run.message("assistant") as message:
                    await message.write("before the restart, ")
                    await until(lambda: text_of(events) == "before the restart, ")
                    await asyncio.to_thread(first.kill)
                    await message.write("while no server runs, ")
                    second = await asyncio.to_thread(serve_agents, database_url)
                    relay.target = second.url
                    await message.write("after it.")
            await asyncio.wait_for(following, 60)
            assert text_of(events) == "before the restart, while no server runs, after it."
            assert isinstance(events[-1], RunEnded)
            assert numbers_of(events) == sorted(set(numbers_of(events)))
            assert (await client.runs.wait(run.id)).status == "completed"
    finally:
        first.close()
        if second is not None:
            second.close()


async def collect(client: Client, run_id: str, events: list[RunEvent]) -> None:
    async for event in client.runs.follow(run_id):
        events.append(event)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_an_agent_that_asks_is_answered(client: Client) -> None:
    run = await client.agents.start("weather", str(uuid4()), "Rome", user_id="ada")
    events = [event async for event in client.runs.follow(run.id, until_waiting=True)]
    assert isinstance(events[-1], RunWaiting)
    waiting = await client.runs.wait(run.id, until_waiting=True)
    assert waiting.is_waiting
    assert waiting.wait is not None
    assert waiting.wait.kind == "human"
    assert waiting.id in {found.id async for found in client.runs.each(status=["waiting"])}
    await client.runs.answer(run.id, True)
    done = await client.runs.wait(run.id, timeout=60)
    assert (done.status, done.attempt) == ("completed", 2)
    with pytest.raises(ClientError, match="waits for nothing"):
        await client.runs.answer(run.id, True)


async def test_a_run_that_does_not_exist_and_a_server_that_is_gone(client: Client, relay: Relay) -> None:
    with pytest.raises(NotFoundError) as caught:
        await anext(client.runs.follow("no-such-run"))
    assert caught.value.status == 404
    assert caught.value.request_id
    session = await client.sessions.create("shop", "ada")
    run = await client.runs.create(session.thread_id)
    async with Client(relay.url, timeout=60, retry_seconds=1) as impatient:
        following = impatient.runs.follow(run.id)
        assert isinstance(await anext(following), RunEvent)
        relay.target = "http://127.0.0.1:1"
        relay.cut()
        with pytest.raises(ServerUnavailableError, match=f"run {run.id} is lost after event"):
            async for _ in following:
                pass


async def test_a_load_balancer_without_a_server_is_waited_for(client: Client, relay: Relay) -> None:
    run = await client.agents.start("generic", str(uuid4()), "Hello", user_id="ada")
    relay.answers = [answer("503 Service Unavailable", "Retry-After: 0"), answer("502 Bad Gateway")]
    async with Client(relay.url, timeout=60) as follower:
        # The first answer is that to the read of the run, which is repeated; the second that to the stream.
        events = [event async for event in follower.runs.follow(run.id)]
    assert relay.answers == []
    assert text_of(events).endswith(TEXT)


async def test_waiting_for_a_second_question_reads_the_first_one_once(client: Client, served: Served) -> None:
    streams: list[str | None] = []
    continued = asyncio.Event()

    class Noting(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/events"):
                streams.append(request.headers.get("last-event-id"))
                if len(streams) == 2:
                    continued.set()
            return await super().handle_async_request(request)

    thread = (await client.sessions.create("shop", "ada")).thread_id
    run = await client.runs.create(thread)
    await client.runs.suspend(run, "human", "first")
    await client.runs.answer(run.id, True, thread_id=thread)
    run = await client.runs.start(run)
    async with Client(served.url, timeout=60, transport=Noting()) as watching, asyncio.timeout(60):
        asked = asyncio.create_task(watching.runs.wait(run.id, until_waiting=True))
        await continued.wait()
        await client.runs.suspend(run, "human", "second")
        wait = (await asked).wait
    assert wait is not None
    assert wait.correlation_key == "second"
    first, second = streams
    assert first is None
    assert second is not None
