"""Arguments of tool calls reach other processes while they grow, and are kept when their run does not finish them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from ag_ui.core import (
    BaseEvent,
    MessagesSnapshotEvent,
    RunAgentInput,
    RunErrorEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallStartEvent,
    UserMessage,
)

from cognizes.engine import Engine, Event
from cognizes.engine.adapters.agui import AguiAgent, source_of
from cognizes.engine.adapters.loading import find_object
from cognizes.engine.adapters.loading import host as host_object
from cognizes.engine.agui.snapshot import Snapshot
from cognizes.engine.hosting import AgentHost, HostedAgent, HostedRun
from cognizes.engine.models import JsonObject, RunStatus
from cognizes.engine.streams.chunks import CALL, CallHead
from tests.integration.agui.gates import Gate, pass_gate
from tests.integration.hosting.agents import PIECES, writer
from tests.unittests.agui.legality import assert_legal


def agent_of(name: str, engine: Engine) -> HostedAgent:
    if name == "editor":
        return host_object(find_object("tests.integration.hosting.served.agents:editor"), engine, path="x:editor")
    source = source_of(writer)
    assert source is not None
    return AguiAgent(source, name="writer", engine=engine)


@asynccontextmanager
async def processes(database_url: str, name: str) -> AsyncIterator[tuple[AgentHost, AgentHost, Engine, Engine]]:
    """Two hosts of an agent, each with an engine of its own on one database."""
    async with Engine.open(database_url) as first, Engine.open(database_url) as second:
        hosts = [AgentHost(engine, [agent_of(name, engine)]) for engine in (first, second)]
        yield hosts[0], hosts[1], first, second
        for host in hosts:
            await host.close(seconds=0)


async def say(host: AgentHost, name: str, thread: str, said: str) -> HostedRun:
    given: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwarded_props": {}}
    messages = [UserMessage(id=str(uuid4()), content=said)]
    run_input = RunAgentInput(thread_id=thread, run_id=str(uuid4()), messages=messages, **given)
    return await host.run(name, "ada", run_input)


async def until_fragments(run: HostedRun, count: int) -> None:
    async with asyncio.timeout(30):
        async with aclosing(run.log.follow()) as frames:
            async for _, frame in frames:
                count -= isinstance(frame, ToolCallArgsEvent)
                if not count:
                    return


async def events_of(engine: Engine, run: HostedRun, kind: str) -> list[Event]:
    return [event async for event in engine.sessions.log.iterate(run.thread_id) if event.event_type == kind]


async def heads_of(engine: Engine, run: HostedRun, *, least: int) -> None:
    """Wait until another process can read so many chunks of the call."""
    async with asyncio.timeout(30):
        while True:
            rows = await engine.streams.rows.list_open([run.thread_id])
            found = await engine.streams.backend.heads([row.key for row in rows if row.role == CALL])
            if any(sequence >= least for sequence in found.values()):
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("name", ["writer", "editor"])
@pytest.mark.parametrize("is_late", [False, True])
async def test_another_process_follows_the_arguments_to_the_character(
    database_url: str, name: str, is_late: bool
) -> None:
    gate = Gate()
    async with processes(database_url, name) as (host, other, _, second):
        thread = str(uuid4())
        run = await say(host, name, thread, gate.text)
        await until_fragments(run, 3)
        if is_late:
            await heads_of(second, run, least=4)
        seen: list[BaseEvent] = []
        async with aclosing(other.connect(name, "ada", thread, run_id="x")) as frames:
            async for _, frame in frames:
                seen.append(frame)
                if any(isinstance(one, ToolCallStartEvent) for one in seen):
                    # The call is still open in the first process.
                    gate.open()
        await run.wait()
        stayed = Snapshot().fold(run.log.frames)
        attached = Snapshot().fold(seen)
        assert attached.messages == stayed.messages
        deltas = [frame.delta for frame in seen if isinstance(frame, ToolCallArgsEvent)]
        [whole] = [call["function"]["arguments"] for one in stayed.messages for call in one.get("toolCalls") or ()]
        assert deltas
        if is_late:
            [snapshot] = [frame for frame in seen if isinstance(frame, MessagesSnapshotEvent)]
            [call] = [call for one in snapshot.messages for call in getattr(one, "tool_calls", None) or ()]
            assert call.function.arguments
            assert call.function.arguments + "".join(deltas) == whole
        assert len(await events_of(second, run, "act")) == (1 if name == "writer" else 0)
        assert_legal([frame.model_dump(by_alias=True, mode="json", exclude_none=True) for frame in seen])


async def test_another_process_follows_ten_megabytes_of_arguments(database_url: str) -> None:
    gate, piece = Gate(), 'a "quoted" word, ' * 6000

    async def large(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        yield ToolCallStartEvent(tool_call_id="c1", tool_call_name="write")
        for number in range(100):
            if number == 50:
                await pass_gate(str(run_input.messages[-1].content))
            yield ToolCallArgsEvent(tool_call_id="c1", delta=piece)
        yield ToolCallEndEvent(tool_call_id="c1")

    source = source_of(large)
    assert source is not None
    async with Engine.open(database_url) as first, Engine.open(database_url) as second:
        host, other = (AgentHost(one, [AguiAgent(source, name="large", engine=one)]) for one in (first, second))
        thread = str(uuid4())
        run = await say(host, "large", thread, gate.text)
        await until_fragments(run, 50)
        await heads_of(second, run, least=51)
        attached = Snapshot()
        async with asyncio.timeout(60), aclosing(other.connect("large", "ada", thread, run_id="x")) as frames:
            async for _, frame in frames:
                attached.fold([frame])
                if isinstance(frame, ToolCallStartEvent):
                    gate.open()
        [call] = attached.messages[-1]["toolCalls"]
        assert call["function"]["arguments"] == piece * 100
        await run.wait()
        assert (await first.runs.get(run.thread_id, run.run_id)).status is RunStatus.COMPLETED
        [act] = await events_of(second, run, "act")
        assert act.content["tool_input"] == piece * 100
        for one in (host, other):
            await one.close(seconds=0)


@pytest.mark.parametrize("name", ["writer", "editor"])
async def test_a_call_that_breaks_off_is_stored_once_as_interrupted(database_url: str, name: str) -> None:
    async with processes(database_url, name) as (host, _, first, _):
        run = await say(host, name, str(uuid4()), "break")
        await run.wait()
        assert isinstance(run.log.frames[-1], RunErrorEvent)
        [act] = await events_of(first, run, "act")
        begun = "".join(PIECES[:10]) if name == "writer" else '{"document":"Once upon a time'
        assert (act.content["tool_input"], act.content["interrupted"]) == (begun, True)
        assert await first.streams.rows.list_open([run.thread_id]) == []


async def test_the_arguments_of_a_killed_process_are_kept(database_url: str) -> None:
    gate = Gate()
    async with processes(database_url, "writer") as (host, _, _, second):
        run = await say(host, "writer", str(uuid4()), gate.text)
        await until_fragments(run, 10)
        await heads_of(second, run, least=11)
        # As another process does after the lease of the first expired.
        await second.streams.interrupt_run(run.thread_id, run.run_id)
        [act] = await events_of(second, run, "act")
        assert act.content == {
            "tool_call_id": "c1", "tool_name": "write", "tool_input": "".join(PIECES[:10]), "format": "text",
            "parent_message_id": "m1", "interrupted": True,
        }  # fmt: skip
        assert (act.run_id, act.author) == (run.run_id, "writer")
        gate.open()
        await run.wait()
        assert len(await events_of(second, run, "act")) == 1


async def test_a_call_that_its_event_contains_is_not_stored_again(engine: Engine) -> None:
    """The process died after the event of ADK was stored and before the stream of the call ended."""
    session = await engine.sessions.create("app", "ada")
    for name, content in (("e1", {"adk": {}, "parts": [{"function_call": {"id": "c1"}}]}), ("e2", {"text": "I "})):
        stream = engine.stream_message(session, role=CALL, message_id=f"{name}/call/c1", run_id="r", author="agent")
        await stream.open()
        await stream.write(CallHead("c1", "write", name).text())
        await stream.write('{"a')
        given: JsonObject = content
        event = Event(name, session.thread_id, "", "agent", "assistant_message", given)
        await engine.sessions.append_to_thread(UUID(session.thread_id), event)
    await engine.streams.interrupt_run(UUID(session.thread_id), "r")
    acts = [event for event in await engine.sessions.events(session) if event.event_type == "act"]
    assert [(act.content["parent_message_id"], act.content["tool_input"]) for act in acts] == [("e2", '{"a')]
    assert await engine.streams.heads([session.thread_id], with_thoughts=True) == []


async def test_lists_of_streamed_messages_omit_calls(engine: Engine) -> None:
    session = await engine.sessions.create("app", "ada")
    async with engine.stream_message(session, role=CALL, message_id="e1") as stream:
        await stream.write(CallHead("c1", "write", "m1").text())
        assert await engine.streams.heads([session.thread_id], with_thoughts=True) == []
