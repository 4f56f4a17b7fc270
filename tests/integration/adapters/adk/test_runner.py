"""The real Runner over our service: tools, transfer, state, rewind, compaction, resume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent, SequentialAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps.app import App, EventsCompactionConfig, ResumabilityConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.errors import StaleSessionError
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from cognizes.engine.adapters.adk import OpenSessionService

from .scripted_model import ScriptedModel, call

pytestmark = pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL.*:UserWarning", "ignore::DeprecationWarning")


@pytest.fixture(params=["raise", "rebase"])
def on_conflict(request: pytest.FixtureRequest) -> str:
    choice: str = request.param
    return choice


@pytest.fixture
async def service(on_conflict: Any, database_url: str) -> AsyncIterator[OpenSessionService]:
    async with OpenSessionService(database_url, on_conflict=on_conflict) as opened:
        await opened.create_session(app_name="shop", user_id="ada", session_id="s", state={"visits": 0})
        yield opened


async def say(runner: Runner, text: str | types.Part, **options: Any) -> list[Event]:
    part = types.Part(text=text) if isinstance(text, str) else text
    message = types.Content(role="user", parts=[part])
    return [event async for event in runner.run_async(user_id="ada", session_id="s", new_message=message, **options)]


async def stored(service: OpenSessionService) -> Session:
    session = await service.get_session(app_name="shop", user_id="ada", session_id="s")
    assert session is not None
    return session


def spoken(session: Session) -> list[tuple[str, str]]:
    return [
        (event.author, part.text)
        for event in session.events
        for part in (event.content.parts if event.content else [])
        if part.text
    ]


def runner_of(service: OpenSessionService, agent: Any) -> Runner:
    return Runner(app_name="shop", agent=agent, session_service=service)


def add_to_cart(item: str, tool_context: ToolContext) -> dict[str, Any]:
    """Adds an item."""
    cart = [*tool_context.state.get("cart", []), item]
    tool_context.state["cart"] = cart
    tool_context.state["temp:last"] = item
    tool_context.state["user:bought"] = len(cart)
    return {"cart": cart}


async def test_a_conversation_with_tools_and_state(service: OpenSessionService) -> None:
    model = ScriptedModel(call("add_to_cart", item="tea"), "Tea it is.", "You have tea.")
    agent = LlmAgent(name="clerk", model=model, tools=[add_to_cart], output_key="answer")
    runner = runner_of(service, agent)
    yielded = await say(runner, "tea please")
    yielded += await say(runner, "what do I have?")
    session = await stored(service)
    assert session.state == {
        "visits": 0,
        "cart": ["tea"],
        "user:bought": 1,
        "answer": "You have tea.",
    }
    assert spoken(session) == [
        ("user", "tea please"),
        ("clerk", "Tea it is."),
        ("user", "what do I have?"),
        ("clerk", "You have tea."),
    ]
    assert [event for event in session.events if event.author != "user"] == yielded
    # The model saw the history, tool call and result included.
    assert len(model.requests[-1].contents) == 5


async def test_partial_events_are_yielded_and_not_stored(service: OpenSessionService) -> None:
    runner = runner_of(service, LlmAgent(name="clerk", model=ScriptedModel("hello there")))
    yielded = await say(runner, "hi", run_config=RunConfig(streaming_mode=StreamingMode.SSE))
    assert [event.partial for event in yielded] == [True, None]
    assert spoken(await stored(service)) == [("user", "hi"), ("clerk", "hello there")]


async def test_transfer_to_a_sub_agent(service: OpenSessionService) -> None:
    expert = LlmAgent(name="expert", description="knows tea", model=ScriptedModel("Green or black?", "Black, then."))
    model = ScriptedModel(call("transfer_to_agent", agent_name="expert"))
    runner = runner_of(service, LlmAgent(name="clerk", model=model, sub_agents=[expert]))
    await say(runner, "which tea?")
    # The next turn is the expert's at once: the runner found it in the stored history.
    await say(runner, "black")
    session = await stored(service)
    assert spoken(session)[1:] == [("expert", "Green or black?"), ("user", "black"), ("expert", "Black, then.")]
    assert [event.actions.transfer_to_agent for event in session.events if event.actions.transfer_to_agent] == [
        "expert"
    ]


async def test_sequential_and_parallel_agents(service: OpenSessionService) -> None:
    first = LlmAgent(name="first", model=ScriptedModel("draft"), output_key="temp:draft")
    second = LlmAgent(
        name="second", model=(second_model := ScriptedModel("final")), instruction="Use {temp:draft}", output_key="out"
    )
    parallel = ParallelAgent(
        name="both",
        sub_agents=[
            LlmAgent(name=f"p{number}", model=ScriptedModel(str(number)), output_key=f"p{number}")
            for number in range(5)
        ],
    )
    agent = SequentialAgent(name="root", sub_agents=[first, second, parallel])
    await say(runner_of(service, agent), "go")
    session = await stored(service)
    assert session.state == {"visits": 0, "out": "final"} | {f"p{number}": str(number) for number in range(5)}
    assert "Use draft" in str(second_model.requests[0].config.system_instruction)
    assert len(session.events) == 8


async def test_rewind(service: OpenSessionService) -> None:
    model = ScriptedModel("one", call("add_to_cart", item="tea"), "two", "three")
    runner = runner_of(service, LlmAgent(name="clerk", model=model, tools=[add_to_cart]))
    await say(runner, "first")
    second = await say(runner, "second")
    await service.get_session(app_name="shop", user_id="ada", session_id="s")
    await runner.rewind_async(user_id="ada", session_id="s", rewind_before_invocation_id=second[0].invocation_id)
    session = await stored(service)
    assert session.events[-1].actions.rewind_before_invocation_id == second[0].invocation_id
    assert session.state.get("cart") is None
    await say(runner, "third")
    asked = [part.text for content in model.requests[-1].contents for part in content.parts if part.text]
    assert asked == ["first", "one", "third"]


async def test_compaction(service: OpenSessionService) -> None:
    model = ScriptedModel(*[f"answer {number}" for number in range(4)])
    app = App(
        name="shop",
        root_agent=LlmAgent(name="clerk", model=model),
        events_compaction_config=EventsCompactionConfig(
            compaction_interval=2, overlap_size=0, summarizer=LlmEventSummarizer(llm=ScriptedModel("in short", "short"))
        ),
    )
    runner = Runner(app=app, session_service=service)
    for number in range(3):
        await say(runner, f"question {number}")
    session = await stored(service)
    compactions = [event.actions.compaction for event in session.events if event.actions.compaction]
    assert [compaction.compacted_content.parts[0].text for compaction in compactions] == ["in short"]
    asked = [part.text for content in model.requests[-1].contents for part in content.parts if part.text]
    assert "question 0" not in asked
    assert any("in short" in text for text in asked)


async def test_a_paused_invocation_is_resumed_by_another_service(database_url: str) -> None:
    def ask_boss(item: str) -> None:
        """Asks the boss, who takes his time."""

    def runner_on(service: OpenSessionService, *lines: Any) -> Runner:
        agent = LlmAgent(name="clerk", model=ScriptedModel(*lines), tools=[LongRunningFunctionTool(ask_boss)])
        app = App(name="shop", root_agent=agent, resumability_config=ResumabilityConfig(is_resumable=True))
        return Runner(app=app, session_service=service)

    async with OpenSessionService(database_url) as before:
        await before.create_session(app_name="shop", user_id="ada", session_id="s")
        paused = await say(runner_on(before, call("ask_boss", item="tea")), "may I?")
    asked = paused[0].content.parts[0].function_call
    assert paused[0].long_running_tool_ids == {asked.id}

    async with OpenSessionService(database_url) as after:
        answer = types.FunctionResponse(id=asked.id, name="ask_boss", response={"result": "yes"})
        resumed = await say(runner_on(after, "You may."), types.Part(function_response=answer))
        assert resumed[-1].invocation_id == paused[0].invocation_id
        assert spoken(await stored(after)) == [("user", "may I?"), ("clerk", "You may.")]


async def test_recent_events_only(service: OpenSessionService) -> None:
    model = ScriptedModel(*[str(number) for number in range(4)])
    runner = runner_of(service, LlmAgent(name="clerk", model=model))
    config = RunConfig(get_session_config=GetSessionConfig(num_recent_events=2))
    for number in range(4):
        await say(runner, f"q{number}", run_config=config)
    asked = [part.text for content in model.requests[-1].contents for part in content.parts if part.text]
    assert asked == ["q2", "2", "q3"]
    assert len((await stored(service)).events) == 8


async def test_the_sync_runner_with_a_loop_per_call(database_url: str) -> None:
    async with OpenSessionService(database_url) as service:
        await service.create_session(app_name="shop", user_id="ada", session_id="s")
        runner = runner_of(service, LlmAgent(name="clerk", model=ScriptedModel("a", "b")))

        def run() -> list[str]:
            return [
                event.content.parts[0].text
                for text in ("x", "y")
                for event in runner.run(
                    user_id="ada",
                    session_id="s",
                    new_message=types.Content(role="user", parts=[types.Part(text=text)]),
                )
            ]

        assert await asyncio.to_thread(run) == ["a", "b"]
        assert len((await stored(service)).events) == 4


async def test_two_runs_at_once_on_one_session(service: OpenSessionService, on_conflict: str) -> None:
    runners = [runner_of(service, LlmAgent(name="clerk", model=ScriptedModel("ok", "ok"))) for _ in range(2)]
    results = await asyncio.gather(*(say(runner, "hi") for runner in runners), return_exceptions=True)
    failed = [result for result in results if isinstance(result, BaseException)]
    if on_conflict == "rebase":
        assert not failed
        assert len((await stored(service)).events) == 4
    else:
        assert [type(error) for error in failed] == [StaleSessionError]
