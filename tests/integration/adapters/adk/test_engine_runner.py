"""The adapter's own `Runner`: ADK's runner that creates sessions, records runs and streams live by default."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.workflow import START, Workflow
from google.genai import types

from cognizes.engine import Engine, RunStatus
from cognizes.engine.adapters.adk import EngineStreamPlugin, Runner

from .scripted_model import ScriptedModel

HELLO = types.Content(role="user", parts=[types.Part(text="hi")])


def _agent(*lines: str) -> LlmAgent:
    return LlmAgent(name="clerk", model=ScriptedModel(*lines))


async def _talk(runner: Runner) -> list[str]:
    streaming = RunConfig(streaming_mode=StreamingMode.SSE)
    turn = runner.run_async(user_id="ada", session_id="s1", new_message=HELLO, run_config=streaming)
    return [event.content.parts[0].text async for event in turn if event.content and not event.partial]


async def test_it_creates_the_session_records_the_run_and_stores_the_answer(database_url: str) -> None:
    async with Runner(app_name="my shop", agent=_agent("at your service"), database_url=database_url) as runner:
        assert await _talk(runner) == ["at your service"]
    async with Engine.open(database_url) as engine:
        session = await engine.sessions.get("my shop", "ada", "s1")
        assert session is not None
        (run,) = await engine.runs.list(session.thread_id)
        assert run.status is RunStatus.COMPLETED
        messages = await engine.sessions.messages(session)
        assert [message.content for message in messages] == ["hi", "at your service"]


async def test_another_engine_follows_the_turn_live(database_url: str) -> None:
    async with (
        Engine.open(database_url) as other,
        Runner(app_name="shop", agent=_agent("a longer answer"), database_url=database_url) as runner,
    ):
        session = await other.sessions.create("shop", "ada", session_id="s1")
        talking = asyncio.create_task(_talk(runner))
        kinds = []
        async with asyncio.timeout(60), aclosing(other.live(session)) as events:
            async for event in events:
                kinds.append(event.event_type)
                if event.event_type == "run_finished":
                    break
        assert await talking == ["a longer answer"]
        assert kinds == ["user_message", "run_started", "assistant_message", "run_finished"]


async def test_an_app_keeps_its_plugins_and_is_not_changed(database_url: str) -> None:
    own = EngineStreamPlugin()
    app = App(name="shop", root_agent=_agent("once"), plugins=[own])
    async with Runner(app=app, database_url=database_url) as runner:
        assert await _talk(runner) == ["once"]
        assert [plugin for plugin in runner.plugin_manager.plugins if isinstance(plugin, EngineStreamPlugin)] == [own]
    bare = App(name="shop", root_agent=_agent("twice"))
    async with Runner(app=bare, database_url=database_url) as runner:
        assert await _talk(runner) == ["twice"]
    assert bare.plugins == []
    async with Engine.open(database_url) as engine:
        session = await engine.sessions.get("shop", "ada", "s1")
        assert session is not None
        assert len(await engine.runs.list(session.thread_id)) == 2


async def test_a_workflow_is_run_as_a_node(database_url: str) -> None:
    def shout(node_input: str) -> Event:
        return Event(content=types.ModelContent(f"{node_input}!"))

    workflow = Workflow(name="shouting", edges=[(START, shout)])
    async with Runner(node=workflow, database_url=database_url) as runner:
        assert await _talk(runner) == ["hi!"]
    async with Engine.open(database_url) as engine:
        session = await engine.sessions.get("shouting", "ada", "s1")
        assert session is not None
        (run,) = await engine.runs.list(session.thread_id)
        assert run.status is RunStatus.COMPLETED


async def test_services_that_are_passed_in_are_used_and_stay_open(database_url: str) -> None:
    sessions = InMemorySessionService()
    async with Runner(
        app_name="shop", agent=_agent("yes"), database_url=database_url, session_service=sessions
    ) as runner:
        assert await _talk(runner) == ["yes"]
    assert await sessions.get_session(app_name="shop", user_id="ada", session_id="s1") is not None


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [({}, "exactly one of app, agent and node"), ({"agent": LlmAgent(name="a")}, "app_name is required")],
)
def test_missing_arguments_are_named(arguments: dict[str, object], hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        Runner(**arguments)  # type: ignore[arg-type]
