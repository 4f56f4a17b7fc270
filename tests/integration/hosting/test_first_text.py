"""Clients receive the first text of a message before the row of its stream is committed; no text is lost by that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import asyncpg
import pytest
from ag_ui.core import (
    BaseEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    RunAgentInput,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    TextMessageContentEvent,
    ToolCallArgsEvent,
    ToolCallStartEvent,
)

from cognizes.engine import Engine
from cognizes.engine.agui.snapshot import Snapshot
from cognizes.engine.hosting import HostedRun
from tests.integration.hosting.test_recording import hosting, say, stored, text

THOUGHT: list[BaseEvent] = [
    ReasoningMessageContentEvent(message_id="m", delta="first "),
    ReasoningMessageContentEvent(message_id="m", delta="second"),
    ReasoningMessageEndEvent(message_id="m"),
]
TEXT = text("m", "first ", "second")


@asynccontextmanager
async def locked(database_url: str, run: HostedRun) -> AsyncIterator[None]:
    """Hold a lock on the thread of a run: no stream of it can be opened, and no event stored."""
    connection = await asyncpg.connect(database_url)
    async with connection.transaction():
        await connection.execute("SELECT FROM threads WHERE id = $1 FOR UPDATE", run.thread_id)
        yield
    await connection.close()


class Speaker:
    """An agent that says something when it may."""

    def __init__(self, events: list[BaseEvent]) -> None:
        self.may_begin = asyncio.Event()
        self._events = events

    async def script(self, _: RunAgentInput) -> AsyncIterator[BaseEvent]:
        await self.may_begin.wait()
        for event in self._events:
            yield event.model_copy(deep=True)


async def until_first_text(frames: list[BaseEvent], rest: AsyncIterator[tuple[int | None, BaseEvent]]) -> None:
    async with asyncio.timeout(60):
        async for _, frame in rest:
            frames.append(frame)
            if isinstance(frame, TextMessageContentEvent | ReasoningMessageContentEvent):
                return


def call_start() -> ToolCallStartEvent:
    return ToolCallStartEvent(tool_call_id="c", tool_call_name="search")


def fragment(delta: str) -> ToolCallArgsEvent:
    return ToolCallArgsEvent(tool_call_id="c", delta=delta)


def openings() -> list[str]:
    """Return the names of the tasks that open streams."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("open-")]


@pytest.mark.parametrize("events", [TEXT, THOUGHT], ids=["text", "thought"])
async def test_the_first_text_does_not_wait_for_the_row_of_its_stream(
    engine: Engine, database_url: str, events: list[BaseEvent]
) -> None:
    speaker, thread, frames = Speaker(events), str(uuid4()), list[BaseEvent]()
    async with hosting(engine, speaker.script) as host:
        run = await say(host, "go", thread_id=thread)
        async with locked(database_url, run):
            speaker.may_begin.set()
            watched = host.watch(run)
            await until_first_text(frames, watched)
            assert getattr(frames[-1], "delta", "") == "first "
        frames += [frame async for _, frame in watched]
        live = Snapshot().fold(frames)
    kept = (await stored(engine, thread)).messages
    assert kept[-1]["content"] == "first second"
    assert live.messages == kept


@pytest.mark.parametrize("events", [TEXT, THOUGHT], ids=["text", "thought"])
async def test_a_first_text_that_clients_have_is_kept_by_a_run_that_is_cancelled(
    engine: Engine, database_url: str, events: list[BaseEvent]
) -> None:
    speaker, thread, frames = Speaker(events), str(uuid4()), list[BaseEvent]()
    async with hosting(engine, speaker.script) as host:
        run = await say(host, "go", thread_id=thread)
        async with locked(database_url, run):
            speaker.may_begin.set()
            watched = host.watch(run)
            await until_first_text(frames, watched)
            assert run.cancel()
        frames += [frame async for _, frame in watched]
    assert isinstance(frames[-1], RunFinishedEvent)
    assert isinstance(frames[-1].outcome, RunFinishedCancelledOutcome)
    kept = (await stored(engine, thread)).messages
    assert kept[-1]["content"] == "first "
    assert Snapshot().fold(frames).messages == kept


async def test_the_stream_of_a_call_is_opened_also_if_the_run_is_cancelled(engine: Engine, database_url: str) -> None:
    """Its row may be committed already: the call is stored with it, and not beside it."""
    speaker, thread = Speaker([call_start(), fragment('{"q": '), fragment('"rome"')]), str(uuid4())
    async with hosting(engine, speaker.script) as host:
        run = await say(host, "go", thread_id=thread)
        assert run.agent_task is not None
        async with locked(database_url, run):
            speaker.may_begin.set()
            async for _, frame in host.watch(run):
                if isinstance(frame, ToolCallArgsEvent):
                    break
            while not openings():
                await asyncio.sleep(0.01)
            assert run.cancel()
            await asyncio.wait([run.agent_task])
            assert openings()
        await run.wait()
    [call] = (await stored(engine, thread)).messages[-1]["toolCalls"]
    assert call["function"]["arguments"] == '{"q": "rome"'
    assert engine.streams.live_messages == 0


async def test_a_long_first_text_is_stored_before_clients_have_it(engine: Engine, database_url: str) -> None:
    """It may be larger than an event may be."""
    speaker, thread = Speaker(text("m", "x" * 5000)), str(uuid4())
    async with hosting(engine, speaker.script) as host:
        run = await say(host, "go", thread_id=thread)
        async with locked(database_url, run):
            speaker.may_begin.set()
            async for _, frame in host.watch(run):
                assert not isinstance(frame, TextMessageContentEvent)
                if frame.type == "STATE_SNAPSHOT":
                    break
            assert run.cancel()
        frames = [frame async for _, frame in host.watch(run)]
    assert not [frame for frame in frames if isinstance(frame, TextMessageContentEvent)]
    assert [message["role"] for message in (await stored(engine, thread)).messages] == ["user"]
