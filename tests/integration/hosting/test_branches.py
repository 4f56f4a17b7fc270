"""A hosted agent on a thread with branches gets the active branch, and may yield ids that another branch has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from ag_ui.core import (
    AssistantMessage,
    BaseEvent,
    MessagesSnapshotEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    RunAgentInput,
    RunErrorEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from cognizes.engine import Engine
from cognizes.engine.agui.snapshot import Snapshot
from tests.integration.hosting.test_recording import hosting, stored, text, turn


async def listing(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
    """Say what the conversation contains, with the same ids in every run."""
    yield ReasoningMessageContentEvent(message_id="thought", delta="I list them.")
    yield ReasoningMessageEndEvent(message_id="thought")
    yield ToolCallStartEvent(tool_call_id="call", tool_call_name="list")
    yield ToolCallResultEvent(message_id="result", tool_call_id="call", content="listed")
    said = [str(message.content) for message in run_input.messages if message.role == "user"]
    for event in text("m", ", ".join(said)):
        yield event


async def switch(engine: Engine, thread: str, *, at_sequence: int) -> None:
    """Switch a thread to a new branch that begins after an event."""
    session = await engine.sessions.get("generic", "ada", thread)
    assert session is not None
    name = f"branch-{uuid4()}"
    await engine.branches.create(session.thread_id, name, at_sequence=at_sequence)
    await engine.branches.switch(session.thread_id, name)


@pytest.mark.parametrize("server", ["the same server", "another server"])
async def test_an_agent_gets_the_conversation_of_the_active_branch(engine: Engine, server: str) -> None:
    thread = str(uuid4())
    async with hosting(engine, listing) as first, hosting(engine, listing) as second:
        await turn(first, "one", thread_id=thread)
        await turn(first, "two", thread_id=thread)
        assert (await stored(engine, thread)).messages[-1]["content"] == "one, two"
        await switch(engine, thread, at_sequence=0)
        host = first if server == "the same server" else second
        for said, answer in (("three", "three"), ("four", "three, four")):
            live = Snapshot().fold(await turn(host, said, thread_id=thread))
            kept = (await stored(engine, thread)).messages
            assert kept[-1]["content"] == answer
            assert kept[-len(live.messages) :] == live.messages


async def test_a_snapshot_brings_no_message_of_another_branch(engine: Engine) -> None:
    async def agent(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        snapshot = [AssistantMessage(id=name, content=name) for name in ("a", "b")]
        yield MessagesSnapshotEvent(messages=snapshot[: 1 if run_input.messages[-1].content == "one" else 2])

    thread = str(uuid4())
    async with hosting(engine, agent) as host:
        await turn(host, "one", thread_id=thread)
        await switch(engine, thread, at_sequence=0)
        frames = await turn(host, "two", thread_id=thread)
    assert not isinstance(frames[-1], RunErrorEvent)
    messages = (await stored(engine, thread)).messages
    assert [message["content"] for message in messages] == ["two", "b"]
    assert Snapshot().fold(frames).messages == messages
