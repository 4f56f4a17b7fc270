"""Invocations as runs: status, error, thoughts, tool calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.tools.function_tool import FunctionTool
from google.genai import types

from cognizes.engine import Run, RunStatus
from cognizes.engine.adapters.adk import EngineStreamPlugin, OpenSessionService
from cognizes.engine.adapters.adk.session_reader import Revision
from tests.integration.runs.conditions import expire_lease, until
from tests.integration.runs.lost_answers import lose_end

from .scripted_model import ScriptedModel, call

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

HELLO = types.Content(role="user", parts=[types.Part(text="hi")])


@pytest.fixture
async def service(ours: OpenSessionService) -> OpenSessionService:
    await ours.create_session(app_name="shop", user_id="ada", session_id="s")
    return ours


def runner_of(service: Any, *lines: Any, tools: Any = ()) -> Runner:
    agent = LlmAgent(name="clerk", model=ScriptedModel(*lines), tools=list(tools))
    return Runner(app_name="shop", agent=agent, session_service=service, plugins=[EngineStreamPlugin()])


async def talk(runner: Runner) -> list[Any]:
    return [event async for event in runner.run_async(user_id="ada", session_id="s", new_message=HELLO)]


async def runs(service: OpenSessionService) -> list[Run]:
    session = await service.get_session(app_name="shop", user_id="ada", session_id="s")
    assert session is not None
    revision = Revision.of(session)
    assert revision is not None
    return await (await service.engine()).runs.list(revision.thread_id)


async def kinds(service: OpenSessionService) -> list[tuple[str, str | None]]:
    engine = await service.engine()
    session = await engine.sessions.get("shop", "ada", "s")
    assert session is not None
    return [(event.event_type, event.run_id) for event in await engine.sessions.events(session)]


def weigh(item: str) -> dict[str, Any]:
    """Weighs an item."""
    if item == "air":
        raise RuntimeError("too light")
    return {"grams": 7}


async def test_a_completed_run_with_thoughts_and_tools(service: OpenSessionService) -> None:
    thinking = [types.Part(text="it needs a scale", thought=True), call("weigh", item="tea")]
    runner = runner_of(service, thinking, "7 grams", tools=[weigh])
    events = await talk(runner)
    (run,) = await runs(service)
    assert (run.id, run.status, run.error) == (events[0].invocation_id, RunStatus.COMPLETED, None)
    assert run.started_at is not None
    assert run.completed_at is not None
    assert [step["thought"] for step in run.thinking_steps] == ["it needs a scale"]
    (tool_call,) = run.tool_calls
    assert tool_call["id"] == events[0].content.parts[1].function_call.id
    assert (tool_call["tool_name"], tool_call["input"], tool_call["output"], tool_call["is_error"]) == (
        "weigh",
        {"item": "tea"},
        {"grams": 7},
        False,
    )
    # Everything is sent once: by ADK's own events, and by the two that say where the run stands.
    assert await kinds(service) == [
        ("user_message", None),
        ("run_started", run.id),
        ("act", run.id),
        ("observe", run.id),
        ("assistant_message", run.id),
        ("run_finished", run.id),
    ]


async def test_a_failed_run_has_its_error(service: OpenSessionService) -> None:
    with pytest.raises(RuntimeError, match="no model"):
        await talk(runner_of(service, RuntimeError("no model today")))
    (run,) = await runs(service)
    assert run.status is RunStatus.FAILED
    assert run.error == "RuntimeError: no model today"


async def test_a_failed_tool_is_marked(service: OpenSessionService) -> None:
    with pytest.raises(RuntimeError, match="too light"):
        await talk(runner_of(service, call("weigh", item="air"), tools=[weigh]))
    (run,) = await runs(service)
    assert run.status is RunStatus.FAILED
    assert (run.tool_calls[0]["is_error"], run.tool_calls[0]["output"]) == (True, "RuntimeError: too light")


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_run_whose_agent_asks_a_person_waits_until_the_next_invocation(
    service: OpenSessionService, is_answered: bool
) -> None:
    asking = FunctionTool(weigh, require_confirmation=True)
    runner = runner_of(service, call("weigh", item="tea"), "7 grams", "as you like", tools=[asking])
    events = await talk(runner)
    (question,) = [
        each for event in events for each in event.get_function_calls() if each.name == "adk_request_confirmation"
    ]
    (run,) = await runs(service)
    assert (run.status, run.completed_at) == (RunStatus.WAITING, None)
    assert run.wait is not None
    assert (run.wait.kind, run.wait.correlation_key) == ("human", question.id)
    engine = await service.engine()
    assert [one.id for one in (await engine.runs.search(status=["waiting"])).items] == [run.id]
    if is_answered:
        answer = types.FunctionResponse(id=question.id, name=question.name, response={"confirmed": True})
        message = types.Content(role="user", parts=[types.Part(function_response=answer)])
        answered = runner.run_async(user_id="ada", session_id="s", new_message=message)
        assert [event async for event in answered]
    else:
        await talk(runner)
    newer, older = await runs(service)
    assert older.id == run.id
    assert older.status == (RunStatus.COMPLETED if is_answered else RunStatus.CANCELLED)
    assert newer.status == RunStatus.COMPLETED


async def test_a_cancelled_run(service: OpenSessionService) -> None:
    started = asyncio.Event()

    async def wait_long() -> None:
        """Takes its time."""
        started.set()
        await asyncio.Event().wait()

    runner = runner_of(service, call("wait_long"), tools=[wait_long])
    task = asyncio.create_task(talk(runner))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    await runner.close()
    (run,) = await runs(service)
    assert run.status is RunStatus.CANCELLED
    assert run.tool_calls[0]["is_error"]


async def test_a_killed_process_leaves_no_run_that_runs_for_ever(service: OpenSessionService) -> None:
    """Its run has a lease; when it expires, any process may end the run. An agent that still lives is not disturbed."""
    is_called, go_on = asyncio.Event(), asyncio.Event()

    async def wait_long() -> str:
        """Takes its time."""
        is_called.set()
        await go_on.wait()
        return "done"

    talking = asyncio.create_task(talk(runner_of(service, call("wait_long"), "that was long", tools=[wait_long])))
    await asyncio.wait_for(is_called.wait(), 60)
    engine = await service.engine()
    (run,) = await runs(service)
    assert run.lease_expires_at is not None

    async def is_failed() -> bool:
        await expire_lease(engine, run)
        await engine.runs.expire()
        return (await runs(service))[0].status is RunStatus.FAILED

    await until(is_failed)
    go_on.set()
    assert (await talking)[-1].content.parts[0].text == "that was long"
    (run,) = await runs(service)
    assert (run.status, run.error) == (RunStatus.FAILED, "the process that executed the run went away")
    assert not engine.runs.leases.held


async def test_an_end_whose_answer_was_lost_is_stored(
    service: OpenSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = lose_end(monkeypatch)
    await talk(runner_of(service, "hello"))
    (run,) = await runs(service)
    assert (run.status, asked) == (RunStatus.COMPLETED, [run.id] * 2)


async def test_every_turn_is_a_run_and_none_makes_the_session_stale(service: OpenSessionService) -> None:
    runner = runner_of(service, "a", "b", "c")
    for _ in range(3):
        await talk(runner)
    assert [run.status for run in await runs(service)] == [RunStatus.COMPLETED] * 3
    session = await service.get_session(app_name="shop", user_id="ada", session_id="s")
    assert session is not None
    assert len(session.events) == 6


async def test_it_keeps_quiet_on_other_services() -> None:
    service = InMemorySessionService()
    await service.create_session(app_name="shop", user_id="ada", session_id="s")
    assert len(await talk(runner_of(service, call("weigh", item="tea"), "done", tools=[weigh]))) == 3
