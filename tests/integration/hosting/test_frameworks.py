"""Hosted agents of Pydantic AI and the OpenAI Agents SDK: their messages and tool calls are legal frames and stored."""

from __future__ import annotations

from uuid import uuid4

import pytest
from ag_ui.core import ResumeEntry, RunErrorEvent, RunFinishedEvent, RunFinishedInterruptOutcome
from agents import Agent as OpenAiAgent
from agents import function_tool
from agents.testing import ScriptedModel
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import DeferredToolRequests
from pydantic_ai.models.test import TestModel

from cognizes.engine import Engine
from cognizes.engine.adapters.loading import host as host_object
from cognizes.engine.errors import OpenInterruptsError
from cognizes.engine.hosting import AgentHost
from cognizes.engine.models import RunStatus
from tests.integration.hosting.test_recording import say, stored, turn


def weather(city: str) -> str:
    """Return the weather."""
    return f"sunny in {city}"


def answer(text: str) -> ResponseOutputMessage:
    part = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[part])


async def test_an_openai_agent_keeps_its_conversation(engine: Engine) -> None:
    call = ResponseFunctionToolCall(type="function_call", call_id="c1", name="weather", arguments='{"city": "Rome"}')
    model = ScriptedModel([[call], [answer("It is sunny.")], [answer("Rome.")], RuntimeError("the model is away")])
    agent = OpenAiAgent(name="generic", model=model, tools=[function_tool(weather)])
    host = AgentHost(engine, [host_object(agent, engine, path="x:generic")])
    thread = str(uuid4())
    await turn(host, "Weather?", thread_id=thread)
    await turn(host, "Where?", thread_id=thread)
    snapshot = await stored(engine, thread)
    assert [message["role"] for message in snapshot.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    assert [message["content"] for message in snapshot.messages[2:4]] == ["sunny in Rome", "It is sunny."]
    assert len(model.calls[-1].input) == 5
    frames = await turn(host, "Again?", thread_id=thread)
    assert isinstance(frames[-1], RunErrorEvent)
    await host.close(seconds=0)


async def test_a_pydantic_ai_agent_waits_for_an_approval(engine: Engine) -> None:
    agent = PydanticAgent(TestModel(), name="generic", output_type=[str, DeferredToolRequests])
    agent.tool_plain(requires_approval=True)(weather)
    host = AgentHost(engine, [host_object(agent, engine, path="x:generic")])
    thread = str(uuid4())
    run = await say(host, "Weather?", thread_id=thread)
    frames = [frame async for _, frame in host.watch(run)]
    assert (await engine.runs.get(run.thread_id, run.run_id)).status is RunStatus.WAITING
    assert isinstance(frames[-1], RunFinishedEvent)
    assert isinstance(frames[-1].outcome, RunFinishedInterruptOutcome)
    asked = frames[-1].outcome.interrupts[0]
    with pytest.raises(OpenInterruptsError, match=asked.id):
        await say(host, "Never mind.", thread_id=thread)
    resume = [ResumeEntry(interrupt_id=asked.id, status="resolved", payload={"approved": True})]
    await turn(host, None, thread_id=thread, resume=resume)
    snapshot = await stored(engine, thread)
    assert [message["role"] for message in snapshot.messages] == ["user", "assistant", "tool", "assistant"]
    assert "sunny in" in snapshot.messages[2]["content"]
    await host.close(seconds=0)
