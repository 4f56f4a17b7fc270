"""What a generic agent yields is stored; a client that stays and one that connects later hold the same."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from ag_ui.core import (
    ActivityDeltaEvent,
    ActivitySnapshotEvent,
    AssistantMessage,
    BaseEvent,
    CustomEvent,
    Interrupt,
    MessagesSnapshotEvent,
    RawEvent,
    ReasoningEncryptedValueEvent,
    ReasoningMessageChunkEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ResumeEntry,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunStartedEvent,
    StateDeltaEvent,
    StateSnapshotEvent,
    StepFinishedEvent,
    StepStartedEvent,
    SubagentFinishedEvent,
    SubagentStartedEvent,
    TextMessageChunkEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallChunkEvent,
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
from cognizes.engine.hosting import AgentCapabilities, AgentHost, HostedRun
from cognizes.engine.models import JsonObject, RunStatus
from cognizes.engine.pulse.session_store import thread_uuid
from tests.integration.runs.conditions import until_status
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
    host: AgentHost,
    said: str | None,
    *,
    thread_id: str,
    resume: Sequence[ResumeEntry] = (),
    state: JsonObject | None = None,
    **properties: str,
) -> HostedRun:
    messages = [UserMessage(id=str(uuid4()), content=said)] if said else []
    run_input = RunAgentInput(
        thread_id=thread_id, run_id=str(uuid4()), state=state or {}, messages=messages, tools=[], context=[],
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


def rare_kinds() -> list[BaseEvent | dict[str, Any]]:
    """Return the events that few agents yield: chunks, activities, snapshots, raw ones, and names before AG-UI 1.0."""
    patch = [{"op": "replace", "path": "/done", "value": 2}]
    return [
        {"type": "THINKING_START", "title": "plan"},
        {"type": "THINKING_TEXT_MESSAGE_START"},
        {"type": "THINKING_TEXT_MESSAGE_CONTENT", "delta": "Let me think."},
        {"type": "THINKING_TEXT_MESSAGE_END"},
        {"type": "THINKING_END"},
        ReasoningMessageChunkEvent(message_id="t2", delta="And "),
        ReasoningMessageChunkEvent(message_id="t2", delta="think."),
        TextMessageChunkEvent(message_id="m1", delta="One "),
        TextMessageChunkEvent(delta="message."),
        ToolCallChunkEvent(tool_call_id="c1", tool_call_name="search", parent_message_id="m1", delta='{"q":'),
        ToolCallChunkEvent(tool_call_id="c1", delta=' "rome"}'),
        {"type": "TOOL_CALL_RESULT", "messageId": "r1", "toolCallId": "c1", "content": "sunny", "role": None},
        ReasoningEncryptedValueEvent(subtype="tool-call", entity_id="c1", encrypted_value="c2VjcmV0"),
        ActivitySnapshotEvent(message_id="a1", activity_type="PLAN", content={"done": 1}),
        ActivityDeltaEvent.model_validate({"messageId": "a1", "activityType": "PLAN", "patch": patch}),
        RawEvent(event={"any": ["thing"]}, source="model"),
        SubagentStartedEvent(subagent_run_id="s1", name="helper"),
        SubagentFinishedEvent(subagent_run_id="s1"),
        StateSnapshotEvent(snapshot={"kept": 1, "dropped": 2}),
        StateSnapshotEvent(snapshot={"kept": 1}),
        MessagesSnapshotEvent(
            messages=[
                AssistantMessage(id="m1", content="rewritten"),
                AssistantMessage(id="m9", content="From a snapshot."),
            ]
        ),
    ]


@pytest.mark.parametrize("form", ["events", "dicts", "server-sent events"])
async def test_rare_kinds_of_frames_reach_every_client_and_are_stored(engine: Engine, form: str) -> None:
    """The client that stays, one that connects later and the stored thread hold the same, for any form of events."""

    async def agent(run_input: RunAgentInput) -> AsyncIterator[Any]:
        for event in rare_kinds():
            document = event if isinstance(event, dict) else FrameEncoder().dump(event)
            text = f"data: {json.dumps(document)}\r\n\r\n"
            if form == "events":
                yield event
            elif form == "dicts":
                yield document
            else:
                # A producer may cut its text anywhere.
                yield text[:20].encode()
                yield text[20:]

    thread = str(uuid4())
    async with hosting(engine, agent) as host:
        session = await engine.sessions.create("generic", "ada", session_id=thread, state={"others": 0})
        frames = await turn(host, "go", thread_id=thread)
        assert isinstance(frames[-1], RunFinishedEvent), frames[-1]
        later = [frame async for _, frame in host_frames(host, thread)]
    live, connected, kept = Snapshot().fold(frames), Snapshot().fold(later), await stored(engine, thread)
    assert live.messages == connected.messages == kept.messages
    assert live.state == connected.state == kept.state == {"others": 0, "kept": 1}
    said = [(message["role"], message.get("content")) for message in kept.messages if message["role"] != "user"]
    assert said == [
        ("reasoning", "Let me think."),
        ("reasoning", "And think."),
        ("assistant", "One message."),
        ("tool", "sunny"),
        ("activity", {"done": 2}),
        ("assistant", "From a snapshot."),
    ]
    [call] = kept.messages[3]["toolCalls"]
    assert (call["function"]["arguments"], call["encryptedValue"]) == ('{"q": "rome"}', "c2VjcmV0")
    frames_of_kind = {frame.type.value for frame in frames}
    assert {"RAW", "SUBAGENT_STARTED", "SUBAGENT_FINISHED", "ACTIVITY_DELTA"} <= frames_of_kind
    raw = [
        event.content["frame"]
        for event in await engine.sessions.events(session)
        if event.event_type == "agui_frame" and event.content["frame"]["type"] == "RAW"
    ]
    assert [frame["event"] for frame in raw] == [{"any": ["thing"]}]


async def test_a_server_sent_event_may_be_cut_within_a_character(engine: Engine) -> None:
    async def agent(run_input: RunAgentInput) -> AsyncIterator[bytes]:
        for event in text("m", "Grüße 👋"):
            sent = f"data: {json.dumps(FrameEncoder().dump(event), ensure_ascii=False)}\n\n".encode()
            for place in range(len(sent)):
                yield sent[place : place + 1]

    async with hosting(engine, agent) as host:
        live = Snapshot().fold(await turn(host, "go", thread_id=str(uuid4())))
    assert live.messages[-1]["content"] == "Grüße 👋"


def host_frames(host: AgentHost, thread: str) -> Any:
    return host.connect("generic", "ada", thread, run_id=str(uuid4()))


async def test_an_object_may_take_a_dict_and_declare_what_it_can_do(engine: Engine) -> None:
    given: list[Any] = []

    class Foreign:
        name = "generic"
        capabilities = AgentCapabilities(client_tools=False)

        async def run(self, input_data: dict[str, Any]) -> AsyncIterator[BaseEvent]:
            given.append(input_data)
            for event in text("m", "hello"):
                yield event

    hosted = host_object(Foreign(), engine, path="x:foreign")
    assert not hosted.capabilities.client_tools
    assert host_object(hosted, engine, path="x:hosted") is hosted
    host = AgentHost(engine, [hosted])
    await turn(host, "hi", thread_id=str(uuid4()))
    await host.close(seconds=0)
    [document] = given
    assert [message["content"] for message in document["messages"]] == ["hi"]
    assert {"threadId", "runId", "forwardedProps"} <= document.keys()


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


STARTED = RunStartedEvent(thread_id="t", run_id="r")
FINISHED = RunFinishedEvent(thread_id="t", run_id="r")
ASKED = RunFinishedEvent(
    thread_id="t", run_id="r", outcome=RunFinishedInterruptOutcome(interrupts=[Interrupt(id="q", reason="input")])
)


@pytest.mark.parametrize(
    ("events", "named"),
    [
        ([ToolCallArgsEvent(tool_call_id="none", delta="{}")], "TOOL_CALL_ARGS"),
        ([ToolCallResultEvent(message_id="r", tool_call_id="none", content="x")], "TOOL_CALL_RESULT"),
        ([FINISHED, *text("m", "late")], "TEXT_MESSAGE_START after RUN_FINISHED"),
        ([FINISHED, RunErrorEvent(message="the oven broke")], "RUN_ERROR after RUN_FINISHED: the oven broke"),
        ([FINISHED, FINISHED], "RUN_FINISHED after RUN_FINISHED"),
        ([FINISHED, ASKED], "RUN_FINISHED after RUN_FINISHED"),
        ([ASKED, RunErrorEvent(message="the oven broke")], "RUN_ERROR after RUN_FINISHED: the oven broke"),
        ([STARTED, FINISHED, STARTED], "RUN_STARTED after RUN_FINISHED"),
        ([STARTED, RunStartedEvent(thread_id="t", run_id="r2")], "RUN_STARTED of the run 'r2' in the run 'r'"),
        ([*text("m", "early"), STARTED], "RUN_STARTED after other events"),
        ([RunErrorEvent(message="the oven broke"), FINISHED], "the oven broke"),
        ([CustomEvent(name="large", value="x" * 2_000_000)], "COGNIZES_MAX_FRAME_BYTES"),
        ([StateDeltaEvent.model_validate({"delta": [{"op": "remove", "path": "/none"}]})], "STATE_DELTA"),
        ([TextMessageContentEvent(message_id="m", delta="x" * 20_000_000)], "COGNIZES_MAX_EVENT_BYTES"),
    ],
)
async def test_what_is_not_allowed_fails_the_run_by_name(engine: Engine, events: list[BaseEvent], named: str) -> None:
    async with hosting(engine, scripted(*events)) as host:
        run = await say(host, "go", thread_id=str(uuid4()))
        frames = [frame async for _, frame in host.watch(run)]
    assert isinstance(frames[-1], RunErrorEvent)
    assert named in frames[-1].message
    assert (await engine.runs.get(run.thread_id, run.run_id)).status is RunStatus.FAILED


async def test_an_agent_that_declares_no_interrupts_cannot_ask(engine: Engine) -> None:
    source = source_of(scripted(*text("m", "Sure?"), ASKED))
    assert source is not None
    agent = AguiAgent(source, name="generic", engine=engine, capabilities=AgentCapabilities())
    host, thread = AgentHost(engine, [agent]), str(uuid4())
    run = await say(host, "go", thread_id=thread)
    await run.wait()
    failed = await engine.runs.get(run.thread_id, run.run_id)
    assert failed.status is RunStatus.FAILED
    assert "declare AgentCapabilities(interrupts=True)" in (failed.error or "")
    assert (await stored(engine, thread)).messages[-1]["content"] == "Sure?"
    await host.close(seconds=0)


async def test_order_is_repaired_where_it_is_certain(engine: Engine) -> None:
    script = scripted(
        STARTED,
        STARTED,
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


@pytest.mark.parametrize("kind", ["calls", "texts"])
async def test_an_abandoned_agent_that_yields_more_does_not_keep_its_run(engine: Engine, kind: str) -> None:
    """Its frames arrive while the answer until then is being stored."""
    begun, release = asyncio.Event(), asyncio.Event()

    async def agent(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        for number in count():
            if kind == "calls":
                yield ToolCallStartEvent(tool_call_id=f"c{number}", tool_call_name="search")
            else:
                yield TextMessageContentEvent(message_id=f"m{number}", delta="more")
            if number == 20:
                begun.set()
            if number >= 20:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.002)
            if release.is_set():
                return

    engine.settings = engine.settings.model_copy(update={"shutdown_seconds": 0.1})
    async with hosting(engine, agent) as host:
        run = await say(host, "go", thread_id=str(uuid4()))
        await begun.wait()
        assert await host.cancel("generic", "ada", run.key[2])
        ended, open_streams = await engine.runs.get(run.thread_id, run.run_id), engine.streams.live_messages
        release.set()
        assert (ended.status, open_streams) == (RunStatus.CANCELLED, 0)
        assert run.agent_task is not None
        await asyncio.wait([run.agent_task])


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
    with pytest.raises(SetupError, match="which is no agent; name an ADK agent, Workflow or App"):
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


async def test_an_input_that_waits_blocks_no_other_input(engine: Engine) -> None:
    """While one input is queued, another one is refused at once, and a third one cancels the run and goes first."""
    thread = str(uuid4())
    async with hosting(engine, wait_for_ever) as host:
        first = await say(host, "slow", thread_id=thread)
        queued = asyncio.create_task(turn(host, "quick", thread_id=thread, onBusy="queue"))
        await asyncio.sleep(0)
        with pytest.raises(ConflictError, match=first.run_id):
            await say(host, "quick", thread_id=thread)
        second = await say(host, "slow", thread_id=thread, onBusy="cancel")
        assert (await engine.runs.get(first.thread_id, first.run_id)).status is RunStatus.CANCELLED
        assert not queued.done()
        assert await host.cancel("generic", "ada", thread, run_id=second.run_id)
        assert isinstance((await queued)[-1], RunFinishedEvent)
    said = [message["content"] for message in (await stored(engine, thread)).messages if message["role"] == "user"]
    assert said == ["slow", "slow", "quick"]


async def raise_when_cancelled() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise RuntimeError("the connection was closed") from None


async def return_when_cancelled() -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


@pytest.mark.parametrize("stop", [raise_when_cancelled, return_when_cancelled])
async def test_a_cancelled_run_is_cancelled_whatever_its_agent_does(
    engine: Engine, stop: Callable[[], Awaitable[None]]
) -> None:
    async def agent(_: RunAgentInput) -> AsyncIterator[BaseEvent]:
        for event in text("m", "begun"):
            yield event
        await stop()

    thread = str(uuid4())
    async with hosting(engine, agent) as host:
        run = await say(host, "go", thread_id=thread)
        async for _, frame in host.watch(run):
            if isinstance(frame, TextMessageEndEvent):
                break
        assert await host.cancel("generic", "ada", thread)
    ended = await engine.runs.get(run.thread_id, run.run_id)
    assert (ended.status, ended.error) == (RunStatus.CANCELLED, None)


async def test_a_cancellation_without_a_request_fails_the_run(engine: Engine) -> None:
    async def agent(_: RunAgentInput) -> AsyncIterator[BaseEvent]:
        for event in text("m", "begun"):
            yield event
        raise asyncio.CancelledError

    async with hosting(engine, agent) as host:
        run = await say(host, "go", thread_id=str(uuid4()))
        await run.wait()
    ended = await engine.runs.get(run.thread_id, run.run_id)
    assert (ended.status, ended.error) == (RunStatus.FAILED, "CancelledError: its own code cancelled it")


async def test_an_agent_cannot_end_the_process(engine: Engine) -> None:
    async def agent(_: RunAgentInput) -> AsyncIterator[BaseEvent]:
        for event in text("m", "begun"):
            yield event
        sys.exit(3)

    async with hosting(engine, agent) as host:
        frames = await turn(host, "go", thread_id=str(uuid4()))
    assert getattr(frames[-1], "message", "") == "AgentExitError: the agent called sys.exit(3)"


@pytest.mark.parametrize(("code", "message"), [("TimeoutError", "TimeoutError"), (None, "it gave no reason")])
async def test_an_error_without_a_message_gets_one(engine: Engine, code: str | None, message: str) -> None:
    async with hosting(engine, scripted(RunErrorEvent(message="", code=code))) as host:
        frames = await turn(host, "go", thread_id=str(uuid4()))
    assert getattr(frames[-1], "message", "") == f"the agent failed: {message}"


async def test_an_agent_that_never_awaits_lets_other_tasks_run(engine: Engine) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def agent(_: RunAgentInput) -> AsyncIterator[BaseEvent]:
        yield TextMessageStartEvent(message_id="m")
        yield TextMessageContentEvent(message_id="m", delta="x")
        before = turns
        for _ in range(20_000):
            yield TextMessageContentEvent(message_id="m", delta="x")
        yield TextMessageContentEvent(message_id="m", delta=f"{turns - before > 5}")

    thread = str(uuid4())
    async with hosting(engine, agent) as host:
        counting = asyncio.create_task(count())
        await (await say(host, "go", thread_id=thread)).wait()
        counting.cancel()
    assert (await stored(engine, thread)).messages[-1]["content"].endswith("xTrue")


def asking(*, question: str = "q1", expires_at: str | None = None) -> Script:
    """Return an agent that asks the same question until the answer is "enough"."""

    async def agent(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        answers = [(entry.interrupt_id, entry.payload) for entry in run_input.resume or ()]
        for event in text("m", f"{answers}") if answers else ():
            yield event
        if ("enough") not in [payload for _, payload in answers]:
            asked = [Interrupt(id=question, reason="input", message="Sure?", expires_at=expires_at)]
            yield RunFinishedEvent(thread_id="t", run_id="r", outcome=RunFinishedInterruptOutcome(interrupts=asked))

    return agent


async def asked_by(host: AgentHost, run: HostedRun) -> str:
    """Return the id of the question with which a run ends, as clients have it."""
    last = [frame async for _, frame in host.watch(run)][-1]
    assert isinstance(last, RunFinishedEvent)
    assert isinstance(last.outcome, RunFinishedInterruptOutcome)
    return last.outcome.interrupts[0].id


def resolved(question: str, payload: str) -> list[ResumeEntry]:
    return [ResumeEntry(interrupt_id=question, status="resolved", payload=payload)]


@pytest.mark.parametrize("question", ["q1", "a,b", ""])
async def test_an_agent_may_ask_the_same_question_again(engine: Engine, question: str) -> None:
    """Its ids need not be unique: clients get ids that are, the agent gets its own."""
    thread = str(uuid4())
    async with hosting(engine, asking(question=question)) as host:
        first = await asked_by(host, await say(host, "go", thread_id=thread))
        # The question of a run that is cancelled must not block the answer to the next one.
        second = await asked_by(host, await say(host, "go", thread_id=thread, onBusy="cancel"))
        third = await asked_by(host, await say(host, None, thread_id=thread, resume=resolved(second, "again")))
        assert len({first, second, third}) == 3
        assert not any("," in name for name in (first, second, third))
        await turn(host, None, thread_id=thread, resume=resolved(third, "enough"))
    said = [message["content"] for message in (await stored(engine, thread)).messages if message["role"] == "assistant"]
    assert said == [f"{[(question, 'again')]}", f"{[(question, 'enough')]}"]


async def test_signals_answer_one_question_twice(engine: Engine) -> None:
    thread = str(uuid4())
    async with hosting(engine, asking()) as host:
        host.start()
        run = await say(host, "go", thread_id=thread)
        question = await asked_by(host, run)
        for payload in ("again", "enough"):
            await engine.runs.signal(run.run_id, correlation_key=question, payload=payload, thread_id=run.thread_id)
            signalled = await engine.runs.get(run.thread_id, run.run_id)
            await until_status(engine, signalled, RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.WAITING)
            waiting = (await engine.runs.get(run.thread_id, run.run_id)).last_wait
            assert waiting is not None
            question = waiting.correlation_key
        done = await until_status(engine, signalled, RunStatus.COMPLETED, RunStatus.FAILED)
        assert (done.status, done.error) == (RunStatus.COMPLETED, None)


async def test_a_follower_of_another_process_receives_a_question_whose_id_has_a_comma(
    engine: Engine, database_url: str
) -> None:
    thread, may_ask = str(uuid4()), asyncio.Event()

    async def agent(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        await may_ask.wait()
        async for event in asking(question="a,b")(run_input):
            yield event

    async with hosting(engine, agent) as host, Engine.open(database_url) as other, hosting(other, agent) as second:
        run = await say(host, "go", thread_id=thread)
        received: list[BaseEvent] = []
        async with asyncio.timeout(60), aclosing(second.connect("generic", "ada", thread, run_id="x")) as frames:
            async for _, frame in frames:
                received.append(frame)
                may_ask.set()
        last = received[-1]
        assert isinstance(last, RunFinishedEvent)
        assert isinstance(last.outcome, RunFinishedInterruptOutcome)
        assert last.outcome.interrupts[0].id == await asked_by(host, run)


async def test_a_follower_receives_all_text_of_a_run_that_its_own_server_cancels(
    engine: Engine, database_url: str
) -> None:
    """The server that executes the run stores the rest of the text after the cancellation."""
    thread = str(uuid4())

    async def agent(_: RunAgentInput) -> AsyncIterator[BaseEvent]:
        yield TextMessageStartEvent(message_id="m")
        yield TextMessageContentEvent(message_id="m", delta="begun, ")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            yield TextMessageContentEvent(message_id="m", delta="and stopped")
            raise

    async with hosting(engine, agent) as host, Engine.open(database_url) as other, hosting(other, agent) as second:
        await say(host, "go", thread_id=thread)
        received: list[BaseEvent] = []
        async with asyncio.timeout(60), aclosing(second.connect("generic", "ada", thread, run_id="x")) as frames:
            async for _, frame in frames:
                received.append(frame)
                if isinstance(frame, TextMessageStartEvent | TextMessageContentEvent):
                    asyncio.ensure_future(second.cancel("generic", "ada", thread))  # noqa: RUF006
    assert isinstance(received[-1], RunFinishedEvent)
    assert isinstance(received[-1].outcome, RunFinishedCancelledOutcome)
    messages = (await stored(engine, thread)).messages
    assert messages[-1]["content"] == "begun, and stopped"
    assert Snapshot().fold(received).messages == messages


async def test_a_question_expires(engine: Engine) -> None:
    thread = str(uuid4())
    moment = datetime.now(UTC) + timedelta(milliseconds=100)
    async with hosting(engine, asking(expires_at=moment.isoformat())) as host:
        host.start()
        run = await say(host, "go", thread_id=thread)
        await asked_by(host, run)
        stored_run = await engine.runs.get(run.thread_id, run.run_id)
        failed = await until_status(engine, stored_run, RunStatus.FAILED)
        assert "arrived in time" in (failed.error or "")
        connected = [frame async for _, frame in host.connect("generic", "ada", thread, run_id="c")]
        assert getattr(connected[-1], "outcome", None) is None
        # The thread takes the next message.
        await asked_by(host, await say(host, "go on", thread_id=thread))


async def test_an_expiry_that_is_no_time_fails_the_run(engine: Engine) -> None:
    async with hosting(engine, asking(expires_at="tomorrow")) as host:
        frames = await turn(host, "go", thread_id=str(uuid4()))
    assert "invalid expiresAt 'tomorrow'" in getattr(frames[-1], "message", "")


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
