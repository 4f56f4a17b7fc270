"""Hosted runs that lose their server: another one continues them, or ends them; the first can write no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import pytest
from ag_ui.core import BaseEvent, RunAgentInput, UserMessage
from google.adk.apps.app import App

from cognizes.engine import Engine, Run, RunStatus
from cognizes.engine.adapters.adk.agent import AdkAgent, HostedSessionService
from cognizes.engine.adapters.loading import find_object
from cognizes.engine.hosting import AgentHost, HostedRun, RunContext
from cognizes.engine.hosting.agent import handler_of
from cognizes.engine.memory.records import MemoryScope
from tests.engine_parts import database_of
from tests.integration.agui.gates import Gate, gates_directory
from tests.integration.hosting.served.agents import SLOW_TEXT
from tests.integration.runs.conditions import expire_lease, until, until_status
from tests.integration.runs.lost_answers import lose_end

AGENTS = [f"tests.integration.hosting.served.agents:{name}" for name in ("steady", "slow")]


def _app(path: str) -> App:
    found = find_object(path)
    return found if isinstance(found, App) else App(name=found.name, root_agent=found)


class Unready(AdkAgent):
    """An agent whose run can be made to fail before its first event."""

    is_ready = True

    async def run(self, run_input: RunAgentInput, context: RunContext) -> AsyncGenerator[BaseEvent, None]:
        if not self.is_ready:
            raise ValueError("two tools of one name")
        async with aclosing(super().run(run_input, context)) as frames:
            async for frame in frames:
                yield frame


class Server:
    """What of a server hosts agents."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.service = HostedSessionService(engine)
        self.host = AgentHost(engine, [Unready(_app(path), self.service) for path in AGENTS])

    async def say(self, agent: str, text: str, *, thread_id: str, run_id: str) -> HostedRun:
        message = UserMessage(id=str(uuid4()), content=text)
        return await self.host.run(
            agent,
            "ada",
            RunAgentInput(
                thread_id=thread_id,
                run_id=run_id,
                state={},
                messages=[message],
                tools=[],
                context=[],
                forwarded_props={},
            ),
        )

    async def frames(self, run: HostedRun) -> list[Any]:
        return [frame async for _, frame in self.host.watch(run)]


@pytest.fixture
async def servers(database_url: str) -> AsyncIterator[tuple[Server, Server]]:
    """Two of them on one database; only the second looks after runs that were lost."""
    settings: dict[str, Any] = {"run_lease_seconds": 600, "run_backoff_seconds": 0}
    async with Engine.open(database_url, **settings) as first, Engine.open(database_url, **settings) as second:
        pair = Server(first), Server(second)
        pair[1].host.start()
        yield pair
        for server in pair:
            await server.host.close(seconds=0)


async def until_said(engine: Engine, run: HostedRun, chunks: int) -> None:
    async def look() -> bool:
        return any(head.current_sequence >= chunks for head in await engine.streams.heads([str(run.thread_id)]))

    await until(look)


async def stored(engine: Engine, run: HostedRun) -> Run:
    return await engine.runs.get(run.thread_id, run.run_id)


async def is_over(run: HostedRun) -> bool:
    return run.task is not None and run.task.done()


async def lose(engine: Engine, run: HostedRun, first: Server) -> None:
    """The first server is silent for too long, as if it had been killed or paused."""
    await expire_lease(engine, await stored(engine, run))


async def stop(engine: Engine, run: HostedRun, first: Server) -> None:
    """The first server stops without waiting."""
    await first.host.close(seconds=0)


@pytest.mark.parametrize("end", [lose, stop])
async def test_a_run_that_can_be_resumed_continues_elsewhere(
    servers: tuple[Server, Server], end: Callable[[Engine, HostedRun, Server], Awaitable[None]]
) -> None:
    """By its invocation: the tool that was called is not called again, and the answer comes whole, once."""
    first, second = servers
    gate = Gate()
    run = await first.say("steady", gate.text, thread_id=str(uuid4()), run_id="r1")
    assert (await stored(first.engine, run)).handler == handler_of("steady")
    await until_said(first.engine, run, 2)
    await end(second.engine, run, first)

    async def is_adopted() -> bool:
        return (await stored(second.engine, run)).attempt == 2

    await until(is_adopted)
    await until(lambda: is_over(run))
    gate.open()
    done = await until_status(second.engine, await stored(second.engine, run), RunStatus.COMPLETED, RunStatus.FAILED)
    assert (done.status, done.error) == (RunStatus.COMPLETED, None)
    assert (gates_directory() / f"{gate.name}.calls").read_text() == "called\n"
    session = await second.engine.sessions.store.get_thread(run.thread_id)
    said = [
        message.content for message in await second.engine.sessions.messages(session) if message.role == "assistant"
    ]
    assert said.count("I noted it, and am done.") == 1
    assert said[-1] == "I noted it, and am done."

    async def episodes() -> list[Any]:
        return await second.engine.memory.episodic.list_by_session(MemoryScope.of(session), session.id)

    assert [episode.run_id for episode in await until(episodes)] == ["r1"]
    ends = [event.event_type for event in await second.engine.sessions.events(session) if event.run_id == "r1"]
    assert ends.count("run_finished") == 1


@pytest.mark.parametrize(("agent", "status"), [("steady", RunStatus.COMPLETED), ("slow", RunStatus.FAILED)])
async def test_an_input_survives_a_server_that_dies_before_adk_stores_it(
    servers: tuple[Server, Server], agent: str, status: RunStatus
) -> None:
    first, second = servers
    gate = Gate()
    gate.open()
    run = await first.say(agent, gate.text, thread_id=str(uuid4()), run_id="r1")
    # The agent's task has not begun: no await lies between its creation and here.
    run.lose()
    await expire_lease(second.engine, await stored(second.engine, run))
    done = await until_status(second.engine, await stored(second.engine, run), RunStatus.COMPLETED, RunStatus.FAILED)
    assert done.status is status
    session = await second.engine.sessions.store.get_thread(run.thread_id)
    said = [one.content for one in await second.engine.sessions.messages(session) if one.role == "user"]
    assert said == [gate.text]


async def test_a_server_that_was_paused_continues_its_own_run(servers: tuple[Server, Server]) -> None:
    """A restarted server finds its own run with an expired lease: it resumes the run like any other."""
    _, only = servers
    gate = Gate()
    run = await only.say("steady", gate.text, thread_id=str(uuid4()), run_id="r1")
    await until_said(only.engine, run, 2)
    await lose(only.engine, run, only)

    async def is_claimed_again() -> bool:
        return (await stored(only.engine, run)).attempt == 2

    await until(is_claimed_again)
    await until(lambda: is_over(run))
    gate.open()
    done = await until_status(only.engine, await stored(only.engine, run), RunStatus.COMPLETED, RunStatus.FAILED)
    assert (done.status, done.error, done.attempt) == (RunStatus.COMPLETED, None, 2)
    assert (gates_directory() / f"{gate.name}.calls").read_text() == "called\n"


async def test_a_run_that_cannot_be_resumed_fails_and_what_it_said_is_kept(servers: tuple[Server, Server]) -> None:
    first, second = servers
    run = await first.say("slow", Gate().text, thread_id=str(uuid4()), run_id="r1")
    following = asyncio.create_task(first.frames(run))
    await until_said(first.engine, run, 2)
    await lose(second.engine, run, first)
    failed = await until_status(second.engine, await stored(second.engine, run), RunStatus.FAILED)
    assert "stopped" in (failed.error or "")
    # The first server, which was only slow, gets an error; its observers too.
    assert (await following)[-1].type == "RUN_ERROR"
    session = await second.engine.sessions.store.get_thread(run.thread_id)
    partial = (await second.engine.sessions.messages(session))[-1].content
    assert partial.startswith("word0")
    assert await stored(second.engine, run) == failed
    again = await second.say("slow", "and now", thread_id=session.id, run_id="r2")
    assert (await second.frames(again))[-1].type == "RUN_FINISHED"


async def test_runs_of_other_workers_are_left_alone(servers: tuple[Server, Server]) -> None:
    """Pending, leased, or by hand: only runs of served agents are looked after."""
    first, second = servers
    session = await first.engine.sessions.create("slow", "ada")
    await first.engine.runs.enqueue(session, "unknown", run_id="pending")
    await first.engine.runs.create(session, run_id="by hand", running=True)
    released = await first.engine.runs.enqueue(session, "other", run_id="released")
    (claimed,) = await first.engine.runs.claim(["other"])
    await first.engine.runs.release(claimed)
    orphan = await first.engine.runs.enqueue(session, handler_of("slow"), run_id="orphan")
    # The orphan is the youngest: when it has been looked after, all others have been looked at.
    await until_status(second.engine, orphan, RunStatus.FAILED)
    status = {run.id: run.status for run in await second.engine.runs.list(session.thread_id)}
    assert status == {"pending": "pending", "by hand": "running", released.id: "pending", "orphan": "failed"}


async def test_a_run_is_cancelled_wherever_it_is(servers: tuple[Server, Server]) -> None:
    first, second = servers
    for run_id, by in (("r1", "row"), ("r2", "agent")):
        run = await first.say("slow", Gate().text, thread_id=f"t-{run_id}", run_id=run_id)
        following = asyncio.create_task(first.frames(run))
        await until_said(first.engine, run, 2)
        if by == "row":
            await second.engine.runs.cancel(run.thread_id, run_id)
        else:
            assert not await second.host.cancel("slow", "ada", f"t-{run_id}", run_id="another")
            assert await second.host.cancel("slow", "ada", f"t-{run_id}", run_id=run_id)
        last = (await following)[-1]
        assert (last.type, last.outcome.type) == ("RUN_FINISHED", "cancelled")
        assert (await stored(second.engine, run)).status == RunStatus.CANCELLED


async def test_a_run_that_cannot_be_continued_does_not_stop_the_recovery(servers: tuple[Server, Server]) -> None:
    first, second = servers
    session = await first.engine.sessions.create("steady", "ada")
    unfit = await first.engine.runs.enqueue(session, "later", run_id="unfit", input="not what a client sends")
    await first.engine.sessions.append(
        session, author="user", kind="user_message", text="hi", run_id="unfit", invocation_id="i1"
    )
    await database_of(first.engine).pool.execute(
        "UPDATE runs SET handler = $1 WHERE thread_id = $2::uuid AND id = 'unfit'",
        handler_of("steady"),
        session.thread_id,
    )
    failed = await until_status(second.engine, unfit, RunStatus.FAILED)
    assert "cannot continue it" in (failed.error or "")
    orphan = await first.engine.runs.enqueue(session, handler_of("steady"), run_id="orphan")
    await until_status(second.engine, orphan, RunStatus.FAILED)


async def test_a_run_is_cancelled_before_its_first_step(servers: tuple[Server, Server]) -> None:
    first, _ = servers
    run = await first.say("slow", Gate().text, thread_id="t-at-once", run_id="r1")
    assert await first.host.cancel("slow", "ada", "t-at-once")
    assert (await stored(first.engine, run)).status == RunStatus.CANCELLED
    again = await first.say("slow", "and now", thread_id="t-at-once", run_id="r2")
    assert (await first.frames(again))[-1].type == "RUN_FINISHED"


async def test_an_agent_that_cannot_be_made_ready_fails_its_run(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = servers

    with monkeypatch.context() as patch:
        patch.setattr(Unready, "is_ready", False)
        run = await first.say("slow", "hi", thread_id="t-unready", run_id="r1")
        assert (await first.frames(run))[-1].type == "RUN_ERROR"
    assert (await stored(first.engine, run)).status == RunStatus.FAILED
    again = await first.say("slow", "and now", thread_id="t-unready", run_id="r2")
    assert (await first.frames(again))[-1].type == "RUN_FINISHED"


async def test_an_end_whose_answer_was_lost_is_no_conflict(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = servers
    asked = lose_end(monkeypatch)
    run = await first.say("slow", "hi", thread_id="t-lost-answer", run_id="r1")
    assert (await first.frames(run))[-1].type == "RUN_FINISHED"
    done = await stored(first.engine, run)
    assert (done.status, asked) == (RunStatus.COMPLETED, [run.run_id] * 2)


async def test_a_run_that_is_cancelled_while_its_answer_is_stored_stays_cancelled(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole answer is there under the id of its beginning: nothing is in the way of the end."""
    first, second = servers
    is_stored = asyncio.Event()
    append = first.service.append_event

    async def append_slowly(session: Any, event: Any) -> Any:
        answer = await append(session, event)
        if event.author == "slow" and not event.partial:
            is_stored.set()
            await asyncio.Event().wait()
        return answer

    monkeypatch.setattr(first.service, "append_event", append_slowly)
    run = await first.say("slow", "hi", thread_id="t-whole", run_id="r1")
    await asyncio.wait_for(is_stored.wait(), 60)
    assert await first.host.cancel("slow", "ada", "t-whole")
    assert (await stored(second.engine, run)).status == RunStatus.CANCELLED
    session = await second.engine.sessions.store.get_thread(run.thread_id)
    said = [message.content for message in await second.engine.sessions.messages(session)]
    assert said == ["hi", SLOW_TEXT]
