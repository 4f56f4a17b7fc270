"""Hosted runs that begin, wait and continue: what a server that stopped leaves to the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
from ag_ui.core import RunAgentInput, UserMessage
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.genai import types
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from cognizes.engine import Engine, RunStatus
from cognizes.engine.adapters.adk.agent import host_app
from cognizes.engine.adapters.langgraph.hosting import host_graph
from cognizes.engine.hosting import AgentHost, HostedAgent, HostedRun
from tests.integration.runs.conditions import until_status

SETTINGS: dict[str, Any] = {"run_lease_seconds": 600, "run_backoff_seconds": 0}


@pytest.fixture
async def engines(database_url: str) -> AsyncIterator[tuple[Engine, Engine]]:
    """The engines of two servers on one database."""
    async with Engine.open(database_url, **SETTINGS) as first, Engine.open(database_url, **SETTINGS) as second:
        yield first, second


def given(said: str | None, thread_id: str, **more: Any) -> RunAgentInput:
    messages = [UserMessage(id=str(uuid4()), content=said)] if said else []
    fields: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwarded_props": {}, **more}
    return RunAgentInput(thread_id=thread_id, run_id=str(uuid4()), messages=messages, **fields)


async def frames_of(host: AgentHost, run: HostedRun) -> list[Any]:
    return [frame async for _, frame in host.watch(run)]


async def ask(host: AgentHost, agent: str, thread_id: str) -> tuple[HostedRun, str]:
    """Start a run that asks; return it and the id of its question."""
    run = await host.run(agent, "ada", given("go", thread_id))
    last = (await frames_of(host, run))[-1]
    return run, last.outcome.interrupts[0].id


def answer(question: str, thread_id: str, payload: Any = "yes") -> RunAgentInput:
    return given(None, thread_id, resume=[{"interruptId": question, "status": "resolved", "payload": payload}])


class AskingGraph:
    """A graph that asks after a first step, and stops at a gate when it has the answer."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.has_answer = asyncio.Event()
        self.may_end = asyncio.Event()

    async def _prepare(self, _: MessagesState) -> dict[str, Any]:
        self.log.append("prepared")
        return {"messages": [("ai", "prepared")]}

    async def _ask(self, _: MessagesState) -> dict[str, Any]:
        given_answer = interrupt("Sure?")
        self.has_answer.set()
        await self.may_end.wait()
        self.log.append(f"answered {given_answer}")
        return {"messages": [("ai", f"you said {given_answer}")]}

    def hosted(self, engine: Engine) -> HostedAgent:
        builder = StateGraph(MessagesState)
        builder.add_node("prepare", self._prepare)
        builder.add_node("ask", self._ask)
        builder.add_edge(START, "prepare")
        builder.add_edge("prepare", "ask")
        return host_graph(builder.compile(name="asking"), name="asking", engine=engine)


@pytest.mark.parametrize("way", ["input", "signal"])
async def test_an_answer_survives_the_server_that_got_it(engines: tuple[Engine, Engine], way: str) -> None:
    first, second = engines
    graph, thread = AskingGraph(), str(uuid4())
    host = AgentHost(first, [graph.hosted(first)])
    asking, question = await ask(host, "asking", thread)
    if way == "input":
        run_id = (await host.run("asking", "ada", answer(question, thread))).run_id
    else:
        host.start()
        await first.runs.signal(asking.run_id, correlation_key=question, payload="yes", thread_id=asking.thread_id)
        run_id = asking.run_id
    await graph.has_answer.wait()
    await host.close(seconds=0)
    graph.may_end.set()
    other = AgentHost(second, [graph.hosted(second)])
    other.start()
    run = await second.runs.get(asking.thread_id, run_id)
    done = await until_status(second, run, RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.WAITING)
    assert (done.status, done.error) == (RunStatus.COMPLETED, None)
    assert graph.log == ["prepared", "answered yes"]
    await other.close(seconds=0)


class Stubborn(BaseAgent):
    """Ignores its cancellation until it is released; any other message is answered in two parts."""

    started: Any
    released: Any
    may_end: Any

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        said = ctx.user_content.parts[0].text if ctx.user_content and ctx.user_content.parts else ""
        self.started.set()
        while said == "stubborn" and not self.released.is_set():
            with suppress(asyncio.CancelledError):
                await self.released.wait()
        if said != "stubborn":
            await self.may_end.wait()
            parts = [types.Part(text="done")]
            content = types.Content(role="model", parts=parts)
            yield Event(author=self.name, invocation_id=ctx.invocation_id, content=content)


async def test_an_abandoned_invocation_of_adk_does_not_break_the_next_run(engine: Engine) -> None:
    engine.settings = engine.settings.model_copy(update={"shutdown_seconds": 0.1})
    agent = Stubborn(name="stubborn", started=asyncio.Event(), released=asyncio.Event(), may_end=asyncio.Event())
    host, thread = AgentHost(engine, [host_app(agent, name="stubborn", engine=engine)]), str(uuid4())
    old = await host.run("stubborn", "ada", given("stubborn", thread))
    await agent.started.wait()
    assert await host.cancel("stubborn", "ada", thread)
    agent.started.clear()
    new = await host.run("stubborn", "ada", given("go", thread))
    await agent.started.wait()
    agent.released.set()
    assert old.agent_task is not None
    await asyncio.wait([old.agent_task])
    agent.may_end.set()
    await new.wait()
    done = await engine.runs.get(new.thread_id, new.run_id)
    assert (done.status, done.error) == (RunStatus.COMPLETED, None)
    await host.close(seconds=0)
