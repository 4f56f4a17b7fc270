"""What the code of an agent gets as `RunContext`: state, messages, memory and the end of its run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from ag_ui.core import BaseEvent, RunAgentInput, StateSnapshotEvent, TextMessageChunkEvent

from cognizes.engine import Engine
from cognizes.engine.adapters.loading import host as host_object
from cognizes.engine.hosting import AgentHost, RunContext
from tests.integration.hosting.test_recording import hosting, say


def noted(given: object) -> BaseEvent:
    return TextMessageChunkEvent(message_id="m", delta=type(given).__name__)


async def second(run_input: RunAgentInput, ctx: RunContext) -> AsyncIterator[BaseEvent]:
    yield noted(ctx)


async def optional(run_input: RunAgentInput, context: RunContext | None = None) -> AsyncIterator[BaseEvent]:
    yield noted(context)


async def without_type(run_input, context=None):  # type: ignore[no-untyped-def]
    yield noted(context)


async def by_name(run_input: RunAgentInput, *, verbose: bool = False, context: Any) -> AsyncIterator[BaseEvent]:
    yield noted(context)


async def another_type(run_input: RunAgentInput, context: dict[str, Any] | None = None) -> AsyncIterator[BaseEvent]:
    yield noted(context)


async def only_input(context: RunAgentInput) -> AsyncIterator[BaseEvent]:
    yield noted(context)


class Object:
    async def run(self, run_input: RunAgentInput, context: object = None) -> AsyncIterator[BaseEvent]:
        yield noted(context)


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        (second, "RunContext"),
        (optional, "RunContext"),
        (without_type, "RunContext"),
        (by_name, "RunContext"),
        (Object(), "RunContext"),
        (another_type, "NoneType"),
        (only_input, "RunAgentInput"),
    ],
)
async def test_a_parameter_called_context_gets_the_context(engine: Engine, agent: object, expected: str) -> None:
    hosted = host_object(agent, engine, path="x:generic")
    hosted.name = "generic"  # type: ignore[misc]
    host = AgentHost(engine, [hosted])
    run = await say(host, "go", thread_id=str(uuid4()))
    await run.wait()
    [_, answer] = await engine.sessions.messages(run.context.session)
    assert answer.content == expected
    await host.close(seconds=0)


async def test_the_context_has_the_state_and_the_messages_as_they_are_stored_now(engine: Engine) -> None:
    seen: list[object] = []

    async def agent(_: RunAgentInput, context: RunContext) -> AsyncIterator[BaseEvent]:
        seen.append(dict(context.state))
        yield StateSnapshotEvent(snapshot={**context.state, "count": 1, "temp:x": 1})
        yield TextMessageChunkEvent(message_id="m", delta="first")
        yield StateSnapshotEvent(snapshot={**context.state, "count": 2})
        seen.append(dict(context.state))
        seen.append([(message.role, message.content) for message in await context.messages()])

    thread = str(uuid4())
    state = {"theirs": 0, "user:lang": "en", "app:limit": 5}
    await engine.sessions.create("generic", "ada", session_id=thread, state=state)
    async with hosting(engine, agent) as host:  # type: ignore[arg-type]
        await (await say(host, "go", thread_id=thread)).wait()
    assert seen == [state, state | {"count": 2}, [("user", "go"), ("assistant", "first")]]


async def test_the_context_has_the_memory_of_the_user(engine: Engine) -> None:
    found: list[list[str]] = []

    async def agent(_: RunAgentInput, context: RunContext) -> AsyncIterator[BaseEvent]:
        session = context.session
        # Only messages: the episode of the first run may be written at any time.
        hits = await context.memory.recall("refund", app=session.app_name, user=session.user_id, kinds=["turn"])
        found.append([hit.text for hit in hits])
        await context.memory.remember_session(session)
        yield TextMessageChunkEvent(message_id="m", delta="noted")

    async with hosting(engine, agent) as host:  # type: ignore[arg-type]
        for said in ("My refund is late.", "Where is it?"):
            await (await say(host, said, thread_id=str(uuid4()))).wait()
    assert found == [[], ["My refund is late."]]


async def test_a_task_of_the_agent_sees_that_the_run_stops(engine: Engine) -> None:
    """The task of the agent itself is cancelled; code that runs beside it watches `stopping`."""
    seen: list[bool] = []
    has_begun, tasks = asyncio.Event(), set()

    async def watch(stopping: asyncio.Event) -> None:
        seen.append(stopping.is_set())
        has_begun.set()
        await stopping.wait()
        seen.append(stopping.is_set())

    async def agent(_: RunAgentInput, context: RunContext) -> AsyncIterator[BaseEvent]:
        tasks.add(asyncio.create_task(watch(context.stopping)))
        yield TextMessageChunkEvent(message_id="m", delta="begun")
        await asyncio.Event().wait()

    async with hosting(engine, agent) as host:  # type: ignore[arg-type]
        run = await say(host, "go", thread_id=str(uuid4()))
        await has_begun.wait()
        assert await host.cancel("generic", "ada", run.key[2])
        await asyncio.wait_for(asyncio.gather(*tasks), timeout=30)
    assert seen == [False, True]
