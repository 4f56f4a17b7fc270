"""Agents without a framework, to be hosted by a server under test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ag_ui.core import (
    BaseEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    RunAgentInput,
    StateDeltaEvent,
    StateSnapshotEvent,
    StepFinishedEvent,
    StepStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from cognizes.engine import Engine
from cognizes.engine.adapters.agui import AguiAgent, source_of
from cognizes.engine.hosting import AgentCapabilities, AgentHost, RunContext
from tests.integration.agui.gates import pass_gate

WORDS = [f"word{number} " for number in range(40)]
HELD_AT = 20


async def generic(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
    """Think, call a tool, and say many words; at a gate it stops halfway. Every run yields the same ids."""
    said = str(run_input.messages[-1].content)
    yield StateSnapshotEvent(snapshot={**run_input.state, "words": {"said": 0}})
    yield StepStartedEvent(step_name="answer")
    yield ReasoningMessageStartEvent(message_id="thinking")
    yield ReasoningMessageContentEvent(message_id="thinking", delta="I look it up.")
    yield ReasoningMessageEndEvent(message_id="thinking")
    yield ToolCallStartEvent(tool_call_id="call", tool_call_name="look_up")
    for delta in ('{"q"', ': "words"', "}"):
        yield ToolCallArgsEvent(tool_call_id="call", delta=delta)
    yield ToolCallEndEvent(tool_call_id="call")
    yield ToolCallResultEvent(message_id="result", tool_call_id="call", content="forty words")
    yield TextMessageStartEvent(message_id="answer", role="assistant")
    for number, word in enumerate(WORDS, 1):
        if number == HELD_AT:
            await pass_gate(said)
        yield TextMessageContentEvent(message_id="answer", delta=word)
        if number % 10 == 0:
            patch = [{"op": "replace", "path": "/words/said", "value": number}]
            yield StateDeltaEvent.model_validate({"delta": patch})
    yield TextMessageEndEvent(message_id="answer")
    yield StepFinishedEvent(step_name="answer")


class Shop:
    """Takes an order, and waits for its payment."""

    name = "shop"
    capabilities = AgentCapabilities(resumes_after_crash=True, interrupts=True)

    async def run(self, _: RunAgentInput, context: RunContext) -> AsyncIterator[BaseEvent]:
        if not context.is_continuation:
            yield TextMessageStartEvent(message_id="ordered", role="assistant")
            yield TextMessageContentEvent(message_id="ordered", delta="Ordered.")
        paid = await context.wait(kind="webhook", correlation_key="payment", reason="The payment is open.")
        yield TextMessageStartEvent(message_id="paid", role="assistant")
        yield TextMessageContentEvent(message_id="paid", delta=f"Paid: {paid}.")
        yield TextMessageEndEvent(message_id="paid")


shop = Shop()
PIECES = ['{"text": "', *(f"word{number} " for number in range(20)), '"}']


async def writer(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
    """Say something, call a tool with many fragments of arguments, and stop halfway at a gate."""
    said = str(run_input.messages[-1].content)
    yield TextMessageStartEvent(message_id="m1", role="assistant")
    yield TextMessageContentEvent(message_id="m1", delta="I write.")
    yield TextMessageEndEvent(message_id="m1")
    yield ToolCallStartEvent(tool_call_id="c1", tool_call_name="write", parent_message_id="m1")
    for number, piece in enumerate(PIECES):
        if number == 10:
            await pass_gate(said)
            if "break" in said:
                raise RuntimeError("the pen broke")
            if "disorder" in said:
                yield ToolCallArgsEvent(tool_call_id="another", delta="{")
        yield ToolCallArgsEvent(tool_call_id="c1", delta=piece)
    yield ToolCallEndEvent(tool_call_id="c1")
    yield ToolCallResultEvent(message_id="r1", tool_call_id="c1", content="written")
    yield TextMessageStartEvent(message_id="m2", role="assistant")
    yield TextMessageContentEvent(message_id="m2", delta="Done.")
    yield TextMessageEndEvent(message_id="m2")


async def endless(_: RunAgentInput) -> AsyncIterator[BaseEvent]:
    """Say one word, and never end."""
    yield TextMessageStartEvent(message_id="m", role="assistant")
    yield TextMessageContentEvent(message_id="m", delta="slow")
    await asyncio.Event().wait()


async def echo(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
    """Say how many messages there are."""
    yield TextMessageStartEvent(message_id="m", role="assistant")
    yield TextMessageContentEvent(message_id="m", delta=f"{len(run_input.messages)} messages")
    yield TextMessageEndEvent(message_id="m")


@asynccontextmanager
async def scripted_host(
    engine: Engine, script: Callable[[RunAgentInput], AsyncIterator[BaseEvent]] = echo
) -> AsyncIterator[AgentHost]:
    """Yield a host of an async generator function, under its name."""
    source = source_of(script)
    assert source is not None
    host = AgentHost(engine, [AguiAgent(source, name=getattr(script, "__name__", "scripted"), engine=engine)])
    yield host
    await host.close(seconds=0)
