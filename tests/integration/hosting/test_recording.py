"""What a generic agent yields is stored; a client that stays and one that connects later hold the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from ag_ui.core import (
    BaseEvent,
    CustomEvent,
    Interrupt,
    MessagesSnapshotEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ResumeEntry,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    StateDeltaEvent,
    StateSnapshotEvent,
    StepFinishedEvent,
    StepStartedEvent,
    TextMessageChunkEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    UserMessage,
)

from cognizes.engine import Engine
from cognizes.engine.adapters.agui import AguiAgent, source_of
from cognizes.engine.adapters.loading import find_object
from cognizes.engine.adapters.loading import host as host_object
from cognizes.engine.agui.frames import FrameEncoder
from cognizes.engine.agui.snapshot import Snapshot, read_history
from cognizes.engine.errors import ConflictError, InvalidInputError, SetupError
from cognizes.engine.hosting import AgentHost, HostedRun
from cognizes.engine.models import RunStatus
from cognizes.engine.pulse.session_store import thread_uuid
from tests.unittests.agui.legality import assert_legal

Script = Callable[[RunAgentInput], AsyncIterator[BaseEvent]]


def text(message_id: str, *deltas: str) -> list[BaseEvent]:
    return [
        TextMessageStartEvent(message_id=message_id, role="assistant"),
        *(TextMessageContentEvent(message_id=message_id, delta=delta) for delta in deltas),
        TextMessageEndEvent(message_id=message_id),
    ]


def scripted(*events: BaseEvent) -> Script:
    async def agent(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        for event in events:
            yield event.model_copy(deep=True)

    return agent


@asynccontextmanager
async def hosting(engine: Engine, script: Script) -> AsyncIterator[AgentHost]:
    source = source_of(script)
    assert source is not None
    host = AgentHost(engine, [AguiAgent(source, name="generic", engine=engine)])
    yield host
    await host.close(seconds=0)


async def say(
    host: AgentHost, said: str | None, *, thread_id: str, resume: Sequence[ResumeEntry] = (), **properties: str
) -> HostedRun:
    messages = [UserMessage(id=str(uuid4()), content=said)] if said else []
    run_input = RunAgentInput(
        thread_id=thread_id, run_id=str(uuid4()), state={}, messages=messages, tools=[], context=[],
        forwarded_props={"cognizes": properties}, resume=list(resume) or None,
    )  # fmt: skip
    return await host.run("generic", "ada", run_input)


async def turn(host: AgentHost, said: str | None, *, thread_id: str, **more: Any) -> list[BaseEvent]:
    run = await say(host, said, thread_id=thread_id, **more)
    frames = [frame async for _, frame in host.watch(run)]
    assert_legal([{"timestamp": 1, **FrameEncoder().dump(frame)} for frame in frames])
    return frames


async def stored(engine: Engine, thread_id: str) -> Snapshot:
    session = await engine.sessions.get("generic", "ada", thread_id)
    assert session is not None
    history = await read_history(engine.sessions.log, thread_uuid(session.thread_id))
    history.snapshot.state = session.state
    return history.snapshot


async def test_all_kinds_of_frames_are_stored(engine: Engine) -> None:
    script = scripted(
        StateSnapshotEvent(snapshot={"plan": {"steps": []}, "user:language": "en", "temp:x": 1}),
        StepStartedEvent(step_name="think"),
        *text("m1", "Let me ", "look."),
        ToolCallStartEvent(tool_call_id="c1", tool_call_name="search", parent_message_id="m1"),
        ToolCallArgsEvent(tool_call_id="c1", delta='{"q": '),
        ToolCallArgsEvent(tool_call_id="c1", delta='"rome"}'),
        ToolCallEndEvent(tool_call_id="c1"),
        ToolCallResultEvent(message_id="r1", tool_call_id="c1", content="sunny"),
        StateDeltaEvent.model_validate({"delta": [{"op": "add", "path": "/plan/steps/-", "value": "look"}]}),
        CustomEvent(name="mood", value={"good": True}),
        StepFinishedEvent(step_name="think"),
        *text("m2", "It is sunny."),
    )
    async with hosting(engine, script) as host:
        for _ in range(2):  # the second run yields the ids of the first one again
            thread = getattr(host, "thread", None) or str(uuid4())
            host.thread = thread  # type: ignore[attr-defined]
            frames = await turn(host, "weather?", thread_id=thread)
    kept = await stored(engine, thread)
    live = Snapshot().fold(frames)
    assert live.messages == kept.messages[-len(live.messages) :]
    assert kept.state == live.state
    assert kept.state["plan"] == {"steps": ["look"]}
    assert kept.state["user:language"] == "en"
    assert len({message["id"] for message in kept.messages}) == len(kept.messages) == 8
    session = await engine.sessions.get("generic", "ada", thread)
    assert session is not None
    types = [event.event_type for event in await engine.sessions.events(session)]
    assert {"act", "observe", "step_start", "step_end", "agui_frame", "state_update"} <= set(types)


async def test_the_agent_gets_the_conversation_of_the_thread(engine: Engine) -> None:
    seen: list[list[str]] = []

    async def agent(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        seen.append([f"{message.role}: {message.content}" for message in run_input.messages])
        yield TextMessageChunkEvent(message_id="m", delta=f"answer {len(seen)}")

    thread = str(uuid4())
    async with hosting(engine, agent) as host:
        await turn(host, "one", thread_id=thread)
        await turn(host, "two", thread_id=thread)
    assert seen == [["user: one"], ["user: one", "assistant: answer 1", "user: two"]]


async def test_an_exception_keeps_the_partial_answer(engine: Engine) -> None:
    async def agent(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        yield TextMessageStartEvent(message_id="m")
        yield TextMessageContentEvent(message_id="m", delta="I was about to")
        raise RuntimeError("out of order")

    thread = str(uuid4())
    async with hosting(engine, agent) as host:
        frames = await turn(host, "go", thread_id=thread)
    assert isinstance(frames[-1], RunErrorEvent)
    assert "out of order" in frames[-1].message
    assert (await stored(engine, thread)).messages[-1]["content"] == "I was about to"


@pytest.mark.parametrize(
    ("events", "named"),
    [
        ([ToolCallArgsEvent(tool_call_id="none", delta="{}")], "TOOL_CALL_ARGS"),
        ([ToolCallResultEvent(message_id="r", tool_call_id="none", content="x")], "TOOL_CALL_RESULT"),
        ([RunFinishedEvent(thread_id="t", run_id="r"), *text("m", "late")], "TEXT_MESSAGE_START"),
        ([CustomEvent(name="large", value="x" * 2_000_000)], "COGNIZES_MAX_FRAME_BYTES"),
        ([StateDeltaEvent.model_validate({"delta": [{"op": "remove", "path": "/none"}]})], "STATE_DELTA"),
        ([TextMessageContentEvent(message_id="m", delta="x" * 20_000_000)], "COGNIZES_MAX_EVENT_BYTES"),
    ],
)
async def test_what_is_not_allowed_fails_the_run_by_name(engine: Engine, events: list[BaseEvent], named: str) -> None:
    async with hosting(engine, scripted(*events)) as host:
        frames = await turn(host, "go", thread_id=str(uuid4()))
    assert isinstance(frames[-1], RunErrorEvent)
    assert named in frames[-1].message


async def test_order_is_repaired_where_it_is_certain(engine: Engine) -> None:
    script = scripted(
        TextMessageContentEvent(message_id="m", delta="no start"),
        TextMessageEndEvent(message_id="m"),
        TextMessageEndEvent(message_id="m"),
        StepStartedEvent(step_name="open"),
    )
    thread = str(uuid4())
    async with hosting(engine, script) as host:
        frames = await turn(host, "go", thread_id=thread)
    assert isinstance(frames[-1], RunFinishedEvent)
    assert (await stored(engine, thread)).messages[-1]["content"] == "no start"


async def test_items_without_content_are_dropped(engine: Engine) -> None:
    """A client that stays must not hold a message that is not stored."""
    script = scripted(
        ReasoningMessageStartEvent(message_id="r1"),
        ReasoningMessageEndEvent(message_id="r1"),
        TextMessageStartEvent(message_id="m1", role="assistant"),
        TextMessageContentEvent(message_id="m1", delta=""),
        ToolCallStartEvent(tool_call_id="c1", tool_call_name="search", parent_message_id="m1"),
        ToolCallEndEvent(tool_call_id="c1"),
        TextMessageEndEvent(message_id="m1"),
        TextMessageStartEvent(message_id="m2", role="assistant"),
    )
    thread = str(uuid4())
    async with hosting(engine, script) as host:
        live = Snapshot().fold(await turn(host, "go", thread_id=thread))
    assert [message["role"] for message in live.messages] == ["user", "assistant"]
    assert live.messages == (await stored(engine, thread)).messages


async def test_an_interrupt_waits_and_is_answered(engine: Engine) -> None:
    async def agent(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        if run_input.resume:
            for event in text("m", f"you said {run_input.resume[0].payload}"):
                yield event
            return
        asked = RunFinishedInterruptOutcome(interrupts=[Interrupt(id="q1", reason="input", message="Sure?")])
        yield RunFinishedEvent(thread_id="t", run_id="r", outcome=asked)

    thread = str(uuid4())
    async with hosting(engine, agent) as host:
        run = await say(host, "go", thread_id=thread)
        await run.wait()
        assert (await engine.runs.get(run.thread_id, run.run_id)).status is RunStatus.WAITING
        connected = [frame async for _, frame in host.connect("generic", "ada", thread, run_id="c")]
        assert isinstance(connected[-1], RunFinishedEvent)
        assert isinstance(connected[-1].outcome, RunFinishedInterruptOutcome)
        resume = [ResumeEntry(interrupt_id="q1", status="resolved", payload="yes")]
        await turn(host, None, thread_id=thread, resume=resume)
    assert (await stored(engine, thread)).messages[-1]["content"] == "you said yes"


async def test_an_agent_that_ignores_its_cancellation_is_abandoned(engine: Engine) -> None:
    release = asyncio.Event()

    async def agent(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        yield TextMessageStartEvent(message_id="m")
        yield TextMessageContentEvent(message_id="m", delta="stubborn")
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        yield TextMessageContentEvent(message_id="m", delta=" and late")

    quick = engine.settings.model_copy(update={"shutdown_seconds": 0.1})
    engine.settings = quick
    thread = str(uuid4())
    async with hosting(engine, agent) as host:
        run = await say(host, "go", thread_id=thread)
        async for _, frame in host.watch(run):
            if isinstance(frame, TextMessageContentEvent):
                break
        assert await host.cancel("generic", "ada", thread)
        assert (await engine.runs.get(run.thread_id, run.run_id)).status is RunStatus.CANCELLED
        release.set()
        assert run.agent_task is not None
        await asyncio.wait([run.agent_task])
    assert (await stored(engine, thread)).messages[-1]["content"] == "stubborn"


async def test_the_example_answers(engine: Engine) -> None:
    agent = host_object(find_object("examples.agui.agent:parrot"), engine, path="examples.agui.agent:parrot")
    assert (agent.name, agent.description) == ("parrot", parrot_description())
    host = AgentHost(engine, [agent])
    run_input = RunAgentInput(
        thread_id="t", run_id="r", messages=[UserMessage(id="u", content="hello you")], state={}, tools=[], context=[],
        forwarded_props={},
    )  # fmt: skip
    run = await host.run("parrot", "ada", run_input)
    live = Snapshot().fold([frame async for _, frame in host.watch(run)])
    await host.close(seconds=1)
    assert (live.messages[-1]["content"], live.state) == ("hello you ", {"messages": 1})


@pytest.mark.parametrize("found", [42, dict, "text", lambda run_input: None])
def test_an_object_that_is_no_agent_is_named(engine: Engine, found: object) -> None:
    with pytest.raises(SetupError, match="which is no agent; name an ADK agent or App"):
        host_object(found, engine, path="module:thing")


def parrot_description() -> str:
    return "Repeat the last message word by word, and count the messages of the thread."


async def wait_for_ever(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
    if run_input.messages[-1].content == "quick":
        for event in text("q", "quick"):
            yield event
        return
    yield TextMessageStartEvent(message_id="m")
    yield TextMessageContentEvent(message_id="m", delta="slow")
    await asyncio.Event().wait()


async def test_the_next_message_is_accepted_after_the_client_left(engine: Engine) -> None:
    thread = str(uuid4())
    async with hosting(engine, wait_for_ever) as host:
        first = await say(host, "slow", thread_id=thread, onDisconnect="cancel")
        async with aclosing(host.watch(first)) as frames:
            async for _, frame in frames:
                if isinstance(frame, TextMessageContentEvent):
                    break
        await turn(host, "quick", thread_id=thread)
        assert (await engine.runs.get(first.thread_id, first.run_id)).status is RunStatus.CANCELLED
    assert [message["content"] for message in (await stored(engine, thread)).messages] == [
        "slow", "slow", "quick", "quick",
    ]  # fmt: skip


async def test_a_busy_thread(engine: Engine) -> None:
    thread = str(uuid4())
    async with hosting(engine, wait_for_ever) as host:
        first = await say(host, "slow", thread_id=thread)
        with pytest.raises(ConflictError, match=first.run_id):
            await say(host, "quick", thread_id=thread)
        with pytest.raises(InvalidInputError, match="onBusy is reject, queue or cancel"):
            await say(host, "quick", thread_id=thread, onBusy="maybe")
        queued = asyncio.create_task(turn(host, "quick", thread_id=thread, onBusy="queue"))
        await asyncio.sleep(0)
        assert await host.cancel("generic", "ada", thread)
        assert isinstance((await queued)[-1], RunFinishedEvent)
        second = await say(host, "slow", thread_id=thread)
        await turn(host, "quick", thread_id=thread, onBusy="cancel")
        assert (await engine.runs.get(second.thread_id, second.run_id)).status is RunStatus.CANCELLED


async def test_what_an_agent_cannot_do_is_said(engine: Engine) -> None:
    async with hosting(engine, wait_for_ever) as host:
        (listed,) = host.listing()
        assert listed["limits"] == ["A run whose server is killed fails; its answer until then is kept."]
        capabilities = host.capabilities("generic").model_dump(by_alias=True)
    assert capabilities["humanInTheLoop"] == {"supported": True, "interrupts": True}
    assert capabilities["custom"]["cognizes"]["resumesAfterCrash"] is False


async def test_a_client_follows_a_run_whose_server_died_until_it_has_ended(engine: Engine, database_url: str) -> None:
    async def script(_: RunAgentInput) -> AsyncIterator[BaseEvent]:
        yield RunErrorEvent(message="this host executes nothing")

    thread = str(uuid4())
    session = await engine.sessions.create("generic", "ada", session_id=thread)
    run = await engine.runs.begin_leased(session, handler="agui/generic")
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("UPDATE runs SET lease_expires_at = now() + interval '3 s' WHERE id = $1", run.id)
        async with hosting(engine, script) as host, connection.transaction():
            # The lock keeps every sweep from releasing the run when its lease expires.
            await connection.execute("SELECT FROM runs WHERE id = $1 FOR UPDATE", run.id)
            await connection.execute("SELECT pg_sleep_until(lease_expires_at) FROM runs WHERE id = $1", run.id)
            frames: list[BaseEvent] = []
            async with asyncio.timeout(60), aclosing(host.connect("generic", "ada", thread, run_id="x")) as observed:
                async for _, frame in observed:
                    frames.append(frame)
                    if isinstance(frame, MessagesSnapshotEvent):
                        break
            assert getattr(frames[0], "run_id", None) == run.id
            assert not any(isinstance(frame, RunFinishedEvent) for frame in frames)
    finally:
        await connection.close()
