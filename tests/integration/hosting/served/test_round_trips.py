"""A run of a hosted agent begins in one round trip to PostgreSQL; agents of ADK read their session before it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from ag_ui.core import (
    BaseEvent,
    ResumeEntry,
    RunAgentInput,
    RunStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    UserMessage,
)

from cognizes.engine import Engine, RunStatus, Session
from cognizes.engine.adapters.agui import AguiAgent, source_of
from cognizes.engine.adapters.loading import load_agents
from cognizes.engine.errors import ConflictError, DatabaseUnavailableError, InvalidInputError, OpenInterruptsError
from cognizes.engine.hosting import AgentHost, Turn
from cognizes.engine.hosting.agent import handler_of
from cognizes.engine.hosting.host import BegunRun, begin_hosted
from tests.counting_proxy import CountingProxy
from tests.engine_parts import database_of
from tests.integration.adapters.adk.test_round_trips import counted


def say(text: str, thread_id: str, **more: Any) -> RunAgentInput:
    fields: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwarded_props": {}, **more}
    messages = [UserMessage(id=str(uuid4()), content=text)] if text else []
    return RunAgentInput(**{"thread_id": thread_id, "run_id": str(uuid4()), "messages": messages} | fields)


ADK = [["adk_read_session", "start_hosted_run"]] * 3
GENERIC = [["start_hosted_run"]] * 3


async def echo(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
    yield TextMessageStartEvent(message_id="m", role="assistant")
    yield TextMessageContentEvent(message_id="m", delta=f"{len(run_input.messages)} messages")
    yield TextMessageEndEvent(message_id="m")


async def first_frames(
    host: AgentHost, proxy: CountingProxy, agent: str, turns: int, *, thread: str
) -> list[list[str]]:
    """Return the statements before the first frame of each turn on a thread."""
    executed = []
    for _ in range(turns):
        while proxy.taken():
            # The episode of the run before is written in the background.
            await asyncio.sleep(0.2)
        run = await host.run(agent, "ada", say("hi", thread))
        # The task of the run has not started: no await lies between its creation and here.
        executed.append(proxy.taken())
        assert isinstance(run.log.frames[0], RunStartedEvent)
        await run.wait()
    return executed


async def test_the_first_frame_of_an_adk_agent_takes_two_round_trips(database_url: str) -> None:
    thread = str(uuid4())
    async with counted(database_url) as (service, proxy):
        host = AgentHost(await service.engine(), load_agents([], await service.engine()))
        assert await first_frames(host, proxy, "demo", 3, thread=thread) == ADK
        await host.close(seconds=0)


def generic_host(engine: Engine) -> AgentHost:
    source = source_of(echo)
    assert source is not None
    return AgentHost(engine, [AguiAgent(source, name="echo", engine=engine)])


async def test_the_first_frame_of_any_other_agent_takes_one_round_trip(database_url: str) -> None:
    thread = str(uuid4())
    async with counted(database_url) as (service, proxy):
        host = generic_host(await service.engine())
        assert await first_frames(host, proxy, "echo", 3, thread=thread) == GENERIC
        await host.close(seconds=0)


async def test_a_thread_that_another_server_used_is_read_once(database_url: str) -> None:
    thread = str(uuid4())
    async with counted(database_url) as (service, proxy):
        engine = await service.engine()
        first, second = generic_host(engine), generic_host(engine)
        await first_frames(first, proxy, "echo", 1, thread=thread)
        cold = ["start_hosted_run", "read_shown_events", "start_hosted_run"]
        assert await first_frames(second, proxy, "echo", 2, thread=thread) == [cold, ["start_hosted_run"]]
        # The first server has an old copy of the conversation.
        assert await first_frames(first, proxy, "echo", 1, thread=thread) == [cold]
        messages = (await engine.sessions.messages(await stored_session(engine, thread)))[-1]
        assert messages.content == "7 messages"
        await first.close(seconds=0)
        await second.close(seconds=0)


async def stored_session(engine: Engine, thread: str) -> Session:
    session = await engine.sessions.get("echo", "ada", thread)
    assert session is not None
    return session


async def test_a_deleted_thread_begins_again(engine: Engine) -> None:
    thread = str(uuid4())
    host = generic_host(engine)
    for _ in range(2):
        run = await host.run("echo", "ada", say("hi", thread))
        await run.wait()
        session = await stored_session(engine, thread)
        assert (await engine.sessions.messages(session))[-1].content == "1 messages"
        await engine.sessions.delete(session)
    await host.close(seconds=0)


async def test_an_input_with_nothing_to_answer_creates_no_thread(engine: Engine) -> None:
    thread = str(uuid4())
    host = generic_host(engine)
    with pytest.raises(InvalidInputError, match="nothing to answer"):
        await host.run("echo", "ada", say("", thread))
    assert await engine.sessions.get("echo", "ada", thread) is None
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


async def begin(engine: Engine, session: Session, run_id: str, **more: Any) -> BegunRun:
    turn = Turn(UUID(session.thread_id))
    begun = await begin_hosted(engine, (session.app_name, session.user_id, session.id), turn, run_id=run_id, **more)
    assert isinstance(begun, BegunRun)
    return begun


async def test_a_begin_that_is_sent_twice_begins_one_run(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to the first one is lost: the run, its thread and its message exist once."""
    thread = str(uuid4())
    database = database_of(engine)
    fetch_row, sent = database.fetch_row, []

    async def lose_first(query: str, *arguments: Any) -> Any:
        row = await fetch_row(query, *arguments)
        if query == "start_hosted_run":
            sent.append(row)
            if len(sent) == 1:
                raise DatabaseUnavailableError("the answer was lost")
        return row

    monkeypatch.setattr(database, "fetch_row", lose_first)
    host = generic_host(engine)
    run = await host.run("echo", "ada", say("hi", thread))
    await run.wait()
    assert len(sent) == 2
    kinds = [event.event_type for event in await engine.sessions.events(await stored_session(engine, thread))]
    assert kinds == ["run_started", "user_message", "assistant_message", "run_finished"]
    await host.close(seconds=0)


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
    begun = await begin(engine, session, name, answered=answered, withdraws=withdraws)
    assert (await engine.runs.get(session.thread_id, "asking")).status == status
    assert begun.run.status == RunStatus.RUNNING
    # A client that answers may send the id of the run that asked.
    assert (begun.run.id == "next") if not answered else (begun.run.id != "asking")
    assert begun.session.last_sequence == begun.sequence == len(await engine.sessions.events(session))


async def test_an_input_without_an_answer_to_a_waiting_run_is_refused(engine: Engine) -> None:
    session = await engine.sessions.create("demo", "ada")
    asking = await engine.runs.begin_leased(session, run_id="asking", handler="agui/demo")
    await engine.runs.wait(asking, kind="human", correlation_key="q1,q2", reason="Sure?")
    with pytest.raises(OpenInterruptsError, match=r"asking waits for the answer to q1, q2 \(Sure\?\)") as refused:
        await begin(engine, session, "next")
    assert (refused.value.run_id, refused.value.interrupts) == ("asking", ["q1", "q2"])
    assert [run.status for run in await engine.runs.list(session.thread_id)] == [RunStatus.WAITING]


async def test_an_answer_to_a_cancelled_run_is_refused(engine: Engine) -> None:
    session = await engine.sessions.create("demo", "ada")
    asking = await engine.runs.begin_leased(session, run_id="asking", handler="agui/demo")
    await engine.runs.wait(asking, kind="human", correlation_key="q1")
    await engine.runs.cancel(session.thread_id, "asking")
    with pytest.raises(ConflictError, match="asking, which asked, was cancelled"):
        await begin(engine, session, "next", answered=["q1"])


async def test_a_run_that_a_server_continues_next_is_busy(engine: Engine) -> None:
    # The server of these tests hosts the agent `demo`, and would continue the run.
    session = await engine.sessions.create("hosted elsewhere", "ada")
    released = (await begin(engine, session, "released")).run
    await engine.runs.release(released)
    with pytest.raises(ConflictError, match="run released executes on this thread"):
        await begin(engine, session, "next")
    claimed = await engine.runs.claim_one(session.thread_id, released.id)
    await engine.runs.wait(claimed, kind="webhook", correlation_key="paid")
    with pytest.raises(ConflictError, match=r"run released waits for a webhook \(paid\), which no input can end"):
        await begin(engine, session, "next")


async def test_the_message_of_a_run_whose_server_stops_at_once_is_stored(engine: Engine) -> None:
    thread = str(uuid4())
    source = source_of(echo)
    assert source is not None
    agent = AguiAgent(source, name="echo", engine=engine)
    run_input = say("remember me", thread)
    turn = await agent.read_turn(run_input, "ada", is_end_user=True)
    begun = await begin_hosted(engine, ("echo", "ada", thread), turn, run_id=run_input.run_id, input={})
    assert isinstance(begun, BegunRun)
    # No task of this run executes: its server is dead.
    assert [message.content for message in await engine.sessions.messages(begun.session)] == ["remember me"]


async def test_two_messages_of_one_id_are_refused(engine: Engine) -> None:
    thread = str(uuid4())
    host = generic_host(engine)
    message = UserMessage(id="same", content="hi")
    with pytest.raises(InvalidInputError, match="two messages of the input have one id"):
        await host.run("echo", "ada", say("", thread, messages=[message, message]))
    await host.close(seconds=0)
