"""Items of a run that overlap: a client that reloads has them in the order of one that stayed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from ag_ui.core import (
    ActivitySnapshotEvent,
    AssistantMessage,
    BaseEvent,
    MessagesSnapshotEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    RunAgentInput,
    TextMessageContentEvent,
    TextMessageEndEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from cognizes.engine import Engine
from cognizes.engine.adapters.langgraph.hosting import host_graph
from cognizes.engine.agui.snapshot import Snapshot
from cognizes.engine.hosting import AgentHost
from tests.integration.hosting.test_recording import hosting, say, scripted, stored, text, turn


def said(message_id: str, delta: str) -> BaseEvent:
    return TextMessageContentEvent(message_id=message_id, delta=delta)


def end(message_id: str) -> BaseEvent:
    return TextMessageEndEvent(message_id=message_id)


def thought(message_id: str) -> BaseEvent:
    return ReasoningMessageContentEvent(message_id=message_id, delta="think")


def begun(call_id: str, parent: str | None = None) -> BaseEvent:
    return ToolCallStartEvent(tool_call_id=call_id, tool_call_name="look_up", parent_message_id=parent)


def fragments(call_id: str, *deltas: str) -> list[BaseEvent]:
    return [ToolCallArgsEvent(tool_call_id=call_id, delta=delta) for delta in deltas]


def ended(call_id: str) -> BaseEvent:
    return ToolCallEndEvent(tool_call_id=call_id)


def result(call_id: str) -> BaseEvent:
    return ToolCallResultEvent(message_id=f"result of {call_id}", tool_call_id=call_id, content="found")


OVERLAPPING: dict[str, list[BaseEvent]] = {
    "two texts": [said("a", "x"), said("b", "y"), said("a", "z"), end("b"), end("a")],
    "three texts": [said("a", "x"), said("b", "y"), said("c", "z"), end("c"), end("b"), end("a")],
    "a call in a text": [said("a", "x"), begun("c"), ended("c"), result("c"), said("a", "y"), end("a")],
    "a call of a text": [said("a", "x"), begun("c", "a"), ended("c"), result("c"), said("a", "y"), end("a")],
    "a call of a text and another text": [
        said("a", "x"), *text("b", "y"), begun("c", "a"), ended("c"), result("c"), end("a"),
    ],
    "a thought around a text": [thought("t"), *text("a", "x"), ReasoningMessageEndEvent(message_id="t")],
    "a thought without an end": [thought("t"), *text("a", "x")],
    "two calls": [
        begun("c1"), begun("c2"), *fragments("c1", "{"), *fragments("c2", "{}"), *fragments("c1", "}"), ended("c2"),
        ended("c1"), result("c2"), result("c1"),
    ],
    "two calls of a text": [
        *text("a", "x"), begun("c1", "a"), begun("c2", "a"), ended("c2"), ended("c1"), result("c2"), result("c1"),
    ],
    "an activity in a text": [
        said("a", "x"), ActivitySnapshotEvent(message_id="plan", activity_type="PLAN", content={"step": 1}), end("a"),
    ],
    "a snapshot in a text": [
        said("a", "x"), MessagesSnapshotEvent(messages=[AssistantMessage(id="s", content="snap")]), end("a"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("events", OVERLAPPING.values(), ids=OVERLAPPING)
async def test_overlapping_items_keep_the_order_in_which_they_began(engine: Engine, events: list[BaseEvent]) -> None:
    thread = str(uuid4())
    async with hosting(engine, scripted(*events)) as host:
        live = Snapshot().fold(await turn(host, "go", thread_id=thread))
    assert live.messages == (await stored(engine, thread)).messages


async def test_a_cancelled_run_keeps_the_order_of_what_it_left_open(engine: Engine) -> None:
    async def agent(_: RunAgentInput) -> AsyncIterator[BaseEvent]:
        for event in [said("a", "first"), thought("t"), *text("b", "second")]:
            yield event
        await asyncio.Event().wait()

    thread = str(uuid4())
    async with hosting(engine, agent) as host:
        run = await say(host, "go", thread_id=thread)
        frames: list[BaseEvent] = []
        async for _, frame in host.watch(run):
            frames.append(frame)
            if isinstance(frame, TextMessageEndEvent) and frame.message_id == "b":
                run.cancel()
    messages = (await stored(engine, thread)).messages
    assert [message["content"] for message in messages] == ["go", "first", "think", "second"]
    assert Snapshot().fold(frames).messages == messages


async def test_parallel_nodes_of_a_graph_keep_the_order_in_which_they_began(engine: Engine) -> None:
    may_end = asyncio.Event()

    def node(answer: str, first: asyncio.Event, *, waits: bool) -> object:
        async def speak(_: MessagesState) -> dict[str, list[AIMessage]]:
            if not waits:
                await first.wait()
            parts = []
            async for part in GenericFakeChatModel(messages=iter([AIMessage(answer)])).astream("go"):
                parts.append(part.text)
                first.set()
                if waits:
                    await may_end.wait()
            if not waits:
                may_end.set()
            return {"messages": []}

        return speak

    has_begun = asyncio.Event()
    builder = StateGraph(MessagesState)
    builder.add_node("slow", node("the slow one", has_begun, waits=True))  # type: ignore[call-overload]
    builder.add_node("quick", node("the quick one", has_begun, waits=False))  # type: ignore[call-overload]
    builder.add_edge(START, "slow")
    builder.add_edge(START, "quick")
    host = AgentHost(engine, [host_graph(builder.compile(), name="generic", engine=engine)])
    thread = str(uuid4())
    live = Snapshot().fold(await turn(host, "go", thread_id=thread))
    await host.close(seconds=0)
    messages = (await stored(engine, thread)).messages
    assert [message["content"] for message in messages] == ["go", "the slow one", "the quick one"]
    assert live.messages == messages
