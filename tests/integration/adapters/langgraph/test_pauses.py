"""Hosted graphs that stop: at breakpoints, for answers, after a cancellation, and with state that is no JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from ag_ui.core import (
    BaseEvent,
    CustomEvent,
    Interrupt,
    ResumeEntry,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    StateSnapshotEvent,
    UserMessage,
)
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from cognizes.engine import Engine
from cognizes.engine.adapters.langgraph.hosting import host_graph
from cognizes.engine.hosting import AgentHost, HostedAgent, HostedRun, RunContext
from cognizes.engine.hosting.turns import ThreadTurn
from cognizes.engine.models import RunStatus
from cognizes.engine.pulse.sessions import RunFence, fenced_by


class State(MessagesState, total=False):
    answer: Any
    data: Any


class Nodes:
    """Nodes that note when they run, and graphs of them in a row."""

    def __init__(self) -> None:
        self.executed: list[str] = []
        self.seen: list[list[str]] = []

    def node(self, name: str) -> Any:
        async def run(state: State) -> dict[str, Any]:
            self.executed.append(name)
            self.seen.append([message.text for message in state["messages"]])
            return {"messages": [("ai", f"from {name}")]}

        return run

    def graph(self, *names: str, **compiled: Any) -> Any:
        builder = StateGraph(State)
        for name, before in zip(names, (START, *names), strict=False):
            builder.add_node(name, self.node(name))
            builder.add_edge(before, name)
        return builder.compile(**compiled)

    def asking(self, question: Any = "May I?", **asked: Any) -> Any:
        async def ask(_: State) -> dict[str, Any]:
            self.executed.append("ask")
            return {"answer": interrupt(question, **asked)}

        builder = StateGraph(State)
        builder.add_node("prepare", self.node("prepare"))
        builder.add_node("ask", ask)
        builder.add_edge(START, "prepare")
        builder.add_edge("prepare", "ask")
        return builder.compile()


@asynccontextmanager
async def hosting(engine: Engine, graph: Any) -> AsyncIterator[AgentHost]:
    host = AgentHost(engine, [host_graph(graph, name="graph", engine=engine)])
    yield host
    await host.close(seconds=0)


async def begin(host: AgentHost, thread: str, said: str | None = None, **more: Any) -> HostedRun:
    messages = [UserMessage(id=str(uuid4()), content=said)] if said else []
    policy = {"cognizes": {"onBusy": "cancel"}} if more.pop("withdraws", False) else {}
    run_input = RunAgentInput(
        thread_id=thread, run_id=str(uuid4()), state={}, messages=messages, tools=[], context=[],
        forwarded_props=policy, **more,
    )  # fmt: skip
    return await host.run("graph", "ada", run_input)


async def turn(host: AgentHost, thread: str, said: str | None = None, **more: Any) -> list[BaseEvent]:
    run = await begin(host, thread, said, **more)
    return [frame async for _, frame in host.watch(run)]


def asked(frames: list[BaseEvent]) -> Interrupt:
    last = frames[-1]
    assert isinstance(last, RunFinishedEvent), last
    assert isinstance(last.outcome, RunFinishedInterruptOutcome), last
    [found] = last.outcome.interrupts
    return found


def answer(question: Interrupt, payload: Any = None, status: Any = "resolved") -> dict[str, Any]:
    return {"resume": [ResumeEntry(interrupt_id=question.id, status=status, payload=payload)]}


@pytest.mark.parametrize("place", [{"interrupt_before": ["second"]}, {"interrupt_after": ["first"]}])
async def test_a_graph_waits_at_a_breakpoint_and_continues_with_an_answer(engine: Engine, place: Any) -> None:
    nodes, thread = Nodes(), str(uuid4())
    async with hosting(engine, nodes.graph("first", "second", **place)) as host:
        run = await begin(host, thread, "go")
        question = asked([frame async for _, frame in host.watch(run)])
        assert (nodes.executed, question.reason, question.metadata) == (["first"], "breakpoint", {"next": ["second"]})
        assert (await engine.runs.get(run.thread_id, run.run_id)).status is RunStatus.WAITING
        frames = await turn(host, thread, **answer(question, True))
        assert nodes.executed == ["first", "second"]
        assert "from second" in [getattr(frame, "delta", "") for frame in frames]


async def test_a_declined_breakpoint_ends_the_run_and_the_next_message_begins_again(engine: Engine) -> None:
    nodes, thread = Nodes(), str(uuid4())
    async with hosting(engine, nodes.graph("first", "second", interrupt_before=["second"])) as host:
        question = asked(await turn(host, thread, "go"))
        last = (await turn(host, thread, **answer(question, status="cancelled")))[-1]
        assert isinstance(last, RunFinishedEvent)
        assert not isinstance(last.outcome, RunFinishedInterruptOutcome)
        assert nodes.executed == ["first"]
        asked(await turn(host, thread, "again"))
        assert nodes.executed == ["first", "first"]


class Attempts:
    """A session whose runs a test claims itself: an attempt that is cancelled is followed by another one."""

    def __init__(self, engine: Engine, graph: Any) -> None:
        self.engine = engine
        self.agent: HostedAgent = host_graph(graph, name="graph", engine=engine)

    async def open(self) -> Attempts:
        self.session = await self.engine.sessions.create("graph", "ada")
        return self

    async def next_run(self) -> None:
        await self.engine.runs.enqueue(self.session, "work")
        await self.next_attempt()

    async def next_attempt(self) -> None:
        (self.run,) = await self.engine.runs.claim(["work"])

    async def lose(self) -> None:
        """Let another attempt have the run, as after the death of its server."""
        await self.engine.runs.release(self.run)
        await self.next_attempt()

    async def execute(self, said: str | None = None, *, resume: list[ResumeEntry] | None = None) -> list[BaseEvent]:
        fence = RunFence(UUID(self.session.thread_id), self.run.id, self.run.attempt)
        new = [UserMessage(id=str(uuid4()), content=said)] if said else []
        context = RunContext(
            self.engine, self.run, self.session, fence,
            ThreadTurn(fence.thread_id, new_messages=new, resume=tuple(resume or ())),
        )  # fmt: skip
        run_input = RunAgentInput(
            thread_id=self.session.id, run_id=self.run.id, state={}, messages=[], tools=[], context=[],
            forwarded_props={},
        )  # fmt: skip
        with fenced_by(fence):
            return [frame async for frame in self.agent.run(run_input, context)]


async def test_an_answer_survives_a_crash_in_the_first_step_after_it(engine: Engine) -> None:
    executed: list[str] = []
    reached, is_held = asyncio.Event(), True

    async def ask(_: State) -> dict[str, Any]:
        given = interrupt("May I?")
        executed.append(f"ask: {given}")
        reached.set()
        if is_held:
            await asyncio.Event().wait()
        return {"answer": given}

    builder = StateGraph(State)
    builder.add_node("prepare", lambda _: executed.append("prepare"))
    builder.add_node("ask", ask)
    builder.add_edge(START, "prepare")
    builder.add_edge("prepare", "ask")
    attempts = await Attempts(engine, builder.compile()).open()
    await attempts.next_run()
    question = asked(await attempts.execute("hello"))
    answers = answer(question, "yes")["resume"]

    await attempts.next_run()
    first = asyncio.create_task(attempts.execute(resume=answers))
    await asyncio.wait_for(reached.wait(), 60)
    first.cancel()
    await asyncio.wait([first])
    await attempts.lose()
    is_held = False
    frames = await attempts.execute(resume=answers)
    assert executed == ["prepare", "ask: yes", "ask: yes"]
    assert not any(isinstance(frame, RunFinishedEvent) for frame in frames)
    assert [frame.snapshot for frame in frames if isinstance(frame, StateSnapshotEvent)][-1] == {"answer": "yes"}
    await attempts.lose()
    assert await attempts.execute(resume=answers) == []
    assert executed == ["prepare", "ask: yes", "ask: yes"]


async def test_a_breakpoint_is_not_passed_without_an_answer_after_a_crash(engine: Engine) -> None:
    """The server may die between the checkpoint of the breakpoint and the row of the run that waits."""
    for place in ({"interrupt_before": ["second"]}, {"interrupt_after": ["first"]}):
        nodes = Nodes()
        attempts = await Attempts(engine, nodes.graph("first", "second", **place)).open()
        await attempts.next_run()
        question = asked(await attempts.execute("go"))
        await attempts.lose()
        assert asked(await attempts.execute()) == question
        assert nodes.executed == ["first"]
        await attempts.next_run()
        await attempts.execute(resume=answer(question, True)["resume"])
        assert nodes.executed == ["first", "second"]


async def test_messages_that_the_graph_never_got_are_in_the_next_input(engine: Engine) -> None:
    """Such as the message of a run that was cancelled before its first checkpoint."""
    nodes, thread = Nodes(), str(uuid4())
    async with hosting(engine, nodes.graph("first")) as host:
        await turn(host, thread, "one")
        session = await engine.sessions.get("graph", "ada", thread)
        assert session is not None
        await engine.sessions.append(session, author="user", kind="user_message", text="two")
        await turn(host, thread, "three")
        await turn(host, thread, "four")
    assert nodes.seen[1] == ["one", "from first", "two", "three"]
    assert nodes.seen[2] == ["one", "from first", "two", "three", "from first", "four"]


async def test_a_graph_follows_the_active_branch_of_its_thread(engine: Engine) -> None:
    nodes, thread = Nodes(), str(uuid4())
    async with hosting(engine, nodes.graph("first")) as host:
        await turn(host, thread, "one")
        session = await engine.sessions.get("graph", "ada", thread)
        assert session is not None
        await turn(host, thread, "two")
        await engine.branches.create(session.thread_id, "other", at_sequence=session.last_sequence)
        await engine.branches.switch(session.thread_id, "other")
        await turn(host, thread, "three")
        await turn(host, thread, "four")
        await engine.branches.switch(session.thread_id, "main")
        await turn(host, thread, "five")
    assert nodes.seen[1:] == [
        ["one", "from first", "two"],
        ["one", "from first", "three"],
        ["one", "from first", "three", "from first", "four"],
        ["one", "from first", "two", "from first", "five"],
    ]


async def test_values_without_a_json_form_do_not_break_the_thread(engine: Engine) -> None:
    circular: list[Any] = []
    circular.append(circular)

    async def fill(_: State) -> dict[str, Any]:
        get_stream_writer()(circular)
        return {"data": b"\xff\xfe", "answer": "kept"}

    builder = StateGraph(State)
    builder.add_node("fill", fill)
    builder.add_edge(START, "fill")
    thread = str(uuid4())
    async with hosting(engine, builder.compile()) as host:
        for _ in range(2):
            frames = await turn(host, thread, "go")
            assert not isinstance(frames[-1], RunErrorEvent), frames[-1]
    assert [frame.value for frame in frames if isinstance(frame, CustomEvent)] == ["[[...]]"]
    state = [frame for frame in frames if isinstance(frame, StateSnapshotEvent)][-1].snapshot
    assert state == {"data": "__4=", "answer": "kept"}


async def test_a_cancelled_run_ends_after_the_nodes_of_its_graph(engine: Engine) -> None:
    ended: list[str] = []
    reached, may_end = asyncio.Event(), asyncio.Event()

    async def tidy(_: State) -> dict[str, Any]:
        try:
            get_stream_writer()("begun")
            await asyncio.Event().wait()
        finally:
            reached.set()
            await may_end.wait()
            ended.append("node")
        return {}

    builder = StateGraph(State)
    builder.add_node("tidy", tidy)
    builder.add_edge(START, "tidy")
    attempts = await Attempts(engine, builder.compile()).open()
    await attempts.next_run()
    fence = RunFence(UUID(attempts.session.thread_id), attempts.run.id, attempts.run.attempt)
    context = RunContext(engine, attempts.run, attempts.session, fence, ThreadTurn(fence.thread_id))
    run_input = RunAgentInput(
        thread_id=attempts.session.id, run_id=attempts.run.id, state={}, messages=[], tools=[], context=[],
        forwarded_props={},
    )  # fmt: skip
    frames = attempts.agent.run(run_input, context)
    while (await anext(frames)).type != "CUSTOM":
        pass
    closing = asyncio.create_task(frames.aclose())
    await asyncio.wait_for(reached.wait(), 60)
    may_end.set()
    await closing
    assert ended == ["node"]


async def test_a_question_keeps_its_schema_and_a_declined_one_says_so(engine: Engine) -> None:
    schema = {"type": "object", "properties": {"days": {"type": "integer"}}}
    thread = str(uuid4())
    async with hosting(engine, Nodes().asking({"text": "How long?"}, response_schema=schema)) as host:
        question = asked(await turn(host, thread, "hello"))
        assert (question.response_schema, question.metadata) == (schema, {"value": {"text": "How long?"}})
        frames = await turn(host, thread, **answer(question, status="cancelled"))
        state = [frame for frame in frames if isinstance(frame, StateSnapshotEvent)][-1].snapshot
        assert state["answer"] == {"status": "cancelled"}
