"""A run of a hosted agent begins with at most three round trips to PostgreSQL before its first frame."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from ag_ui.core import ResumeEntry, RunAgentInput, RunStartedEvent, UserMessage

from cognizes.engine import Engine, RunStatus
from cognizes.engine.adapters.loading import load_agents
from cognizes.engine.errors import ConflictError, OpenInterruptsError
from cognizes.engine.hosting import AgentHost
from cognizes.engine.hosting.agent import handler_of
from cognizes.engine.hosting.host import begin_hosted
from tests.engine_parts import database_of
from tests.integration.adapters.adk.test_round_trips import counted


def say(text: str, thread_id: str, **more: Any) -> RunAgentInput:
    fields: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwarded_props": {}, **more}
    messages = [UserMessage(id=str(uuid4()), content=text)] if text else []
    return RunAgentInput(**{"thread_id": thread_id, "run_id": str(uuid4()), "messages": messages} | fields)


async def test_the_first_frame_takes_at_most_three_round_trips(database_url: str) -> None:
    async with counted(database_url) as (service, proxy):
        host = AgentHost(await service.engine(), load_agents([], await service.engine()))
        expected = [
            ["adk_read_session", "create_sessions", "begin_hosted_run"],
            *[["adk_read_session", "begin_hosted_run"]] * 3,
        ]
        for statements in expected:
            while proxy.taken():
                # The episode of the run before is written in the background.
                await asyncio.sleep(0.2)
            run = await host.run("demo", "ada", say("hi", "t"))
            # The task of the run has not started: no await lies between its creation and here.
            assert proxy.taken() == statements
            assert isinstance(run.log.frames[0], RunStartedEvent)
            await run.wait()
        await host.close(seconds=0)


@pytest.fixture
async def host(engine: Engine) -> AgentHost:
    return AgentHost(engine, load_agents([], engine))


async def test_two_servers_cannot_begin_runs_on_one_thread(engine: Engine, host: AgentHost) -> None:
    session = await engine.sessions.create("demo", "ada", session_id="busy")
    run = await engine.runs.begin_leased(session, run_id="elsewhere", handler=handler_of("demo"))
    with pytest.raises(ConflictError, match="run elsewhere executes on this thread"):
        await host.run("demo", "ada", say("hi", "busy"))
    late = [ResumeEntry(interrupt_id="q", status="resolved", payload={"confirmed": True})]
    with pytest.raises(ConflictError, match="run elsewhere executes on this thread"):
        await host.run("demo", "ada", say("", "busy", resume=late))
    assert [one.id for one in await engine.runs.list(session.thread_id)] == [run.id]


async def test_a_begin_that_is_sent_twice_begins_one_run(engine: Engine) -> None:
    session = await engine.sessions.create("demo", "ada")
    arguments = (
        session.thread_id,
        "r1",
        "spare",
        "agui/demo",
        "{}",
        3,
        "worker",
        engine.runs.leases.duration,
        "e1",
        [],
        True,
        None,
    )
    first = await database_of(engine).fetch_row("begin_hosted_run", *arguments)
    again = await database_of(engine).fetch_row("begin_hosted_run", *arguments)
    assert first is not None
    assert again is not None
    assert (first["outcome"], again["outcome"], again["id"]) == ("begun", "begun", "r1")
    assert first["last_sequence"] == again["last_sequence"] == 1
    assert [run.id for run in await engine.runs.list(session.thread_id)] == ["r1"]


@pytest.mark.parametrize(
    ("answered", "withdraws", "status"),
    [(["q1"], False, RunStatus.COMPLETED), ([], True, RunStatus.CANCELLED)],
)
async def test_a_waiting_run_ends_with_an_answer_or_is_withdrawn(
    engine: Engine, answered: list[str], withdraws: bool, status: RunStatus
) -> None:
    session = await engine.sessions.create("demo", "ada")
    asking = await engine.runs.begin_leased(session, run_id="asking", handler="agui/demo")
    await engine.runs.wait(asking, kind="human", correlation_key="q1")
    name = "asking" if answered else "next"
    run, current = await begin_hosted(
        engine, session, run_id=name, handler="agui/demo", input={}, answered=answered, withdraws=withdraws
    )
    assert (await engine.runs.get(session.thread_id, "asking")).status == status
    assert run.status == RunStatus.RUNNING
    # A client that answers may send the id of the run that asked.
    assert (run.id == "next") if not answered else (run.id != "asking")
    assert current.last_sequence == len(await engine.sessions.events(session))


async def test_an_input_without_an_answer_to_a_waiting_run_is_refused(engine: Engine) -> None:
    session = await engine.sessions.create("demo", "ada")
    asking = await engine.runs.begin_leased(session, run_id="asking", handler="agui/demo")
    await engine.runs.wait(asking, kind="human", correlation_key="q1,q2", reason="Sure?")
    with pytest.raises(OpenInterruptsError, match=r"asking waits for the answer to q1, q2 \(Sure\?\)") as refused:
        await begin_hosted(engine, session, run_id="next", handler="agui/demo", input={}, answered=[], withdraws=False)
    assert (refused.value.run_id, refused.value.interrupts) == ("asking", ["q1", "q2"])
    assert [run.status for run in await engine.runs.list(session.thread_id)] == [RunStatus.WAITING]
    # A run of another handler on the thread has questions of its own.
    await begin_hosted(engine, session, run_id="next", handler="agui/x", input={}, answered=[], withdraws=False)


async def test_an_answer_to_a_cancelled_run_is_refused(engine: Engine) -> None:
    session = await engine.sessions.create("demo", "ada")
    asking = await engine.runs.begin_leased(session, run_id="asking", handler="agui/demo")
    await engine.runs.wait(asking, kind="human", correlation_key="q1")
    await engine.runs.cancel(session.thread_id, "asking")
    with pytest.raises(ConflictError, match="asking, which asked, was cancelled"):
        await begin_hosted(
            engine, session, run_id="next", handler="agui/demo", input={}, answered=["q1"], withdraws=False
        )
