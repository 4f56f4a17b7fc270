"""The usage that each framework reports is counted, per run and model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest
from ag_ui.core import BaseEvent, RunAgentInput, RunFinishedEvent
from ag_ui.core import TokenUsage as AguiUsage
from agents import Agent as OpenAiAgent
from agents import function_tool
from agents.testing import ScriptedModel as OpenAiModel
from agents.usage import Usage as OpenAiUsage
from google.adk.agents import LlmAgent
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import types
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph
from openai.types.responses import ResponseFunctionToolCall
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.test import TestModel

from cognizes.engine import Engine
from cognizes.engine.adapters.adk import EngineStreamPlugin, OpenSessionService
from cognizes.engine.adapters.loading import host as host_object
from cognizes.engine.hosting import AgentHost, RunContext
from cognizes.engine.models import RunStatus, TokenUsage
from cognizes.engine.usage import UsageTotals
from tests.integration.hosting.test_frameworks import answer, weather
from tests.integration.hosting.test_recording import hosting, say, text, turn

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


async def used_by(engine: Engine, agent: Any, *says: str) -> UsageTotals:
    """Host an agent under the name `generic`, take turns on one thread, and return the usage of the thread."""
    host = AgentHost(engine, [host_object(agent, engine, path="x:generic")])
    thread = str(uuid4())
    for said in says:
        await turn(host, said, thread_id=thread)
    await host.close(seconds=0)
    totals = await engine.usage.of_app("generic")
    session = await engine.sessions.get("generic", "ada", thread)
    assert session is not None
    runs = await engine.runs.list(session.thread_id)
    of_runs = [await engine.usage.of_run(run.thread_id, run.id) for run in runs]
    assert sum(one.total_tokens for one in of_runs) == totals.total_tokens, "every call belongs to a run"
    return totals


class Gemini(BaseLlm):
    """Streams a fragment, then the whole with its usage. It names no version, as some models of ADK."""

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncIterator[LlmResponse]:  # type: ignore[override]
        content = types.Content(role="model", parts=[types.Part(text="hello")])
        counts = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=100,
            candidates_token_count=20,
            thoughts_token_count=5,
            cached_content_token_count=40,
            tool_use_prompt_token_count=3,
        )
        if stream:
            yield LlmResponse(content=content, partial=True, usage_metadata=counts)
        yield LlmResponse(content=content, usage_metadata=counts)


def check_gemini(totals: UsageTotals, calls: int) -> None:
    (found,) = totals.models
    assert (found.model, found.calls) == ("gemini-test", calls)
    assert (found.input_tokens, found.output_tokens) == (103 * calls, 25 * calls)
    assert (found.cached_tokens, found.reasoning_tokens) == (40 * calls, 5 * calls)


async def test_a_hosted_adk_agent(engine: Engine) -> None:
    agent = LlmAgent(name="generic", model=Gemini(model="gemini-test"))
    check_gemini(await used_by(engine, agent, "hi", "again"), 2)


async def test_the_runner_of_adk_with_our_session_service(engine: Engine, database_url: str) -> None:
    service = OpenSessionService(database_url)
    await service.create_session(app_name="shop", user_id="ada", session_id="s")
    agent = LlmAgent(name="clerk", model=Gemini(model="gemini-test"))
    runner = Runner(app_name="shop", agent=agent, session_service=service, plugins=[EngineStreamPlugin()])
    said = types.Content(role="user", parts=[types.Part(text="hi")])
    _ = [event async for event in runner.run_async(user_id="ada", session_id="s", new_message=said)]
    check_gemini(await engine.usage.of_app("shop"), 1)
    # An event that is sent again, as after a lost answer, counts once.
    session = await service.get_session(app_name="shop", user_id="ada", session_id="s")
    assert session is not None
    counts = types.GenerateContentResponseUsageMetadata(prompt_token_count=8, candidates_token_count=2)
    event = Event(id="e", author="clerk", content=said, usage_metadata=counts, model_version="gemini-named")
    for _ in range(2):
        await service.append_event(session, event.model_copy(deep=True))
    named = [one for one in (await engine.usage.of_app("shop")).models if one.model == "gemini-named"]
    assert [(one.calls, one.total_tokens) for one in named] == [(1, 10)]
    await runner.close()
    await service.close()


class LangChainModel(BaseChatModel):
    """Reports its input with the first chunk and its output with the last, as Anthropic's models do."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError("it only streams")

    def _stream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        first = {"input_tokens": 50, "output_tokens": 0, "total_tokens": 50, "input_token_details": {"cache_read": 30}}
        last = {"input_tokens": 0, "output_tokens": 7, "total_tokens": 7, "output_token_details": {"reasoning": 2}}
        yield ChatGenerationChunk(message=AIMessageChunk(content="hel", usage_metadata=first))
        metadata = {"model_name": "claude-test"}
        yield ChatGenerationChunk(
            message=AIMessageChunk(content="lo", usage_metadata=last, response_metadata=metadata, chunk_position="last")
        )


async def test_a_langgraph_graph(engine: Engine) -> None:
    model = LangChainModel()

    async def call(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("call", call)
    builder.add_edge(START, "call")
    builder.add_edge("call", END)
    (found,) = (await used_by(engine, builder.compile(name="generic"), "hi", "again")).models
    assert (found.model, found.calls, found.input_tokens, found.output_tokens) == ("claude-test", 2, 100, 14)
    assert (found.cached_tokens, found.reasoning_tokens) == (60, 4)


async def test_an_openai_agent(engine: Engine) -> None:
    call = ResponseFunctionToolCall(type="function_call", call_id="c1", name="weather", arguments='{"city": "Rome"}')
    counts = OpenAiUsage(
        requests=1,
        input_tokens=30,
        output_tokens=6,
        total_tokens=36,
        input_tokens_details=InputTokensDetails(cached_tokens=10, cache_write_tokens=3),
        output_tokens_details=OutputTokensDetails(reasoning_tokens=4),
    )
    model = OpenAiModel([[call], [answer("It is sunny.")]], default_usage=counts)
    agent = OpenAiAgent(name="generic", model=model, tools=[function_tool(weather)])
    totals = await used_by(engine, agent, "Weather?")
    assert (totals.calls, totals.input_tokens, totals.output_tokens) == (2, 60, 12)
    assert sum(one.cached_tokens for one in totals.models) == 20
    assert sum(one.cache_write_tokens for one in totals.models) == 6
    assert sum(one.reasoning_tokens for one in totals.models) == 8


async def test_a_pydantic_ai_agent(engine: Engine) -> None:
    agent = PydanticAgent(TestModel(), name="generic")
    agent.tool_plain(weather)
    (found,) = (await used_by(engine, agent, "Weather?")).models
    assert found.model == "test"
    assert found.input_tokens > 0
    assert found.output_tokens > 0


async def test_a_pydantic_ai_run_that_fails_or_is_cancelled_keeps_the_tokens_of_its_model_calls(engine: Engine) -> None:
    waiting = asyncio.Event()

    async def fail() -> str:
        raise RuntimeError("the tool is away")

    async def wait() -> str:
        waiting.set()
        await asyncio.Event().wait()
        return ""

    for tool, ends in ((fail, RunStatus.FAILED), (wait, RunStatus.CANCELLED)):
        agent = PydanticAgent(TestModel(), name="generic")
        agent.tool_plain(tool)
        host = AgentHost(engine, [host_object(agent, engine, path="x:generic")])
        run = await say(host, "Weather?", thread_id=str(uuid4()))
        if tool is wait:
            await waiting.wait()
            await host.cancel("generic", "ada", run.key[2])
        await run.wait()
        assert (await engine.runs.get(run.thread_id, run.run_id)).status is ends
        (found,) = (await engine.usage.of_run(run.thread_id, run.run_id)).models
        assert (found.model, found.calls) == ("test", 1)
        assert found.input_tokens > 0
        await host.close(seconds=0)


async def test_usage_that_an_agent_records_is_not_counted_again_at_its_end(engine: Engine) -> None:
    async def agent(run_input: RunAgentInput, context: RunContext) -> AsyncIterator[BaseEvent]:
        for frame in text("m", "hi"):
            yield frame
        await context.record_usage(TokenUsage("a", input_tokens=4), usage_id="call-1")
        counts = [AguiUsage(model="a", input_tokens=4)]
        yield RunFinishedEvent(thread_id=run_input.thread_id, run_id=run_input.run_id, usage=counts)

    async with hosting(engine, agent) as host:  # type: ignore[arg-type]
        await turn(host, "hello", thread_id=str(uuid4()))
    assert (await engine.usage.of_app("generic")).total_tokens == 4


async def test_usage_that_an_agent_reported_before_it_failed_is_counted(engine: Engine) -> None:
    async def agent(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        counts = [AguiUsage(model="a", input_tokens=4)]
        yield RunFinishedEvent(thread_id=run_input.thread_id, run_id=run_input.run_id, usage=counts)
        raise RuntimeError("late")

    async with hosting(engine, agent) as host:
        await turn(host, "hello", thread_id=str(uuid4()))
    assert (await engine.usage.of_app("generic")).total_tokens == 4


async def test_any_agent_reports_usage_when_its_run_finishes(engine: Engine) -> None:
    async def agent(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        for frame in text("m", "hi"):
            yield frame
        counts = [AguiUsage(model="a", input_tokens=4, output_tokens=2), AguiUsage(provider="p", input_tokens=1)]
        yield RunFinishedEvent(thread_id=run_input.thread_id, run_id=run_input.run_id, usage=counts)

    thread = str(uuid4())
    async with hosting(engine, agent) as host:
        frames = await turn(host, "hello", thread_id=thread)
    assert isinstance(frames[-1], RunFinishedEvent)
    assert frames[-1].usage is not None
    totals = await engine.usage.of_app("generic")
    assert [(one.model, one.input_tokens, one.output_tokens) for one in totals.models] == [("a", 4, 2), ("p", 1, 0)]
