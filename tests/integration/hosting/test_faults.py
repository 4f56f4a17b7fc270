"""Objects that cannot be served, and agents that misbehave: each gets a clear error, and the thread stays usable."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from ag_ui.core import (
    BaseEvent,
    CustomEvent,
    RunAgentInput,
    RunErrorEvent,
    StateSnapshotEvent,
    TextMessageContentEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from cognizes.engine import Engine
from cognizes.engine.adapters.loading import find_object, load_agents
from cognizes.engine.agui.snapshot import Snapshot
from cognizes.engine.errors import SetupError
from cognizes.engine.hosting import AgentHost
from cognizes.engine.hosting.hosted_run import STOPPED
from cognizes.engine.models import RunStatus
from tests.integration.hosting.test_recording import Script, hosting, say, stored, text, turn

TEN_MEGABYTES = "x" * 10_000_000
OWN_AGENTS = """
from ag_ui.core import TextMessageChunkEvent

class Agent:
    name = "generic"

    async def run(self, run_input):
        yield TextMessageChunkEvent(message_id="m", delta="own")

desk = Agent()
"""


def test_two_agents_with_one_name(engine: Engine) -> None:
    paths = ["tests.integration.hosting.agents:generic", "tests.integration.hosting.agents:generic"]
    with pytest.raises(SetupError, match="two agents are called 'generic'; rename one of them"):
        load_agents(paths, engine)


@pytest.mark.parametrize(
    ("package", "extra"),
    [("google.adk", "adk"), ("langgraph", "langgraph"), ("pydantic_ai", "pydantic-ai"), ("agents", "openai-agents")],
)
def test_a_missing_extra(package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"agent_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(f"import {package}\nagent = object()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for loaded in [module for module in sys.modules if module == package or module.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SetupError, match=rf"pip install 'cognizes-engine\[{extra}\]'"):
        find_object(f"{name}:agent")


async def test_a_package_that_is_named_like_the_one_of_a_framework(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The OpenAI Agents SDK is the package `agents`, a name that an application may have for its own."""
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "__init__.py").write_text(OWN_AGENTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    for loaded in {"agents", *(module for module in sys.modules if module.startswith("agents."))}:
        # Also a module that is not loaded now is restored: removed.
        monkeypatch.setitem(sys.modules, loaded, None)
        del sys.modules[loaded]
    with pytest.raises(SetupError, match=r"No module named 'agents.desk'; write it as package.module:agent"):
        load_agents(["agents.desk:desk"], engine)
    [desk] = load_agents(["agents:desk"], engine)
    host, thread = AgentHost(engine, [desk]), str(uuid4())
    await (await say(host, "hello", thread_id=thread)).wait()
    assert (await stored(engine, thread)).messages[-1]["content"] == "own"
    await host.close(seconds=0)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("tests.integration.hosting.agents:missing", "has no attribute 'missing'; write it as package.module:agent"),
        ("no_such_module:agent", "No module named 'no_such_module'; write it as package.module:agent"),
        ("tests.integration.hosting.agents:HELD_AT", "is an object of the type int, which is no agent; name an ADK"),
        ("tests.integration.hosting.agents:RunAgentInput", "is the class RunAgentInput, which is no agent; name an A"),
        (
            "tests.integration.hosting.agents:source_of",
            "is a function that is no async generator function, which is no",
        ),
        ("langgraph.graph:StateGraph", "is the class StateGraph, which is no agent"),
        (":agent", "names no module; write it as package.module:agent"),
    ],
)
def test_a_path_that_names_no_agent(engine: Engine, path: str, problem: str) -> None:
    with pytest.raises(SetupError, match=problem):
        load_agents([path], engine)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import os\nkey = os.environ['COGNIZES_NO_SUCH_KEY']", "raised KeyError: 'COGNIZES_NO_SUCH_KEY'"),
        ("raise SystemExit(3)", "raised SystemExit: 3"),
        ("def (", "raised SyntaxError: invalid syntax"),
        ("import no_such_package", "No module named 'no_such_package'; .* imports it: install its package"),
        (
            "from langgraph.graph import MessagesState, StateGraph\nagent = StateGraph(MessagesState)",
            r"is a StateGraph that is not compiled \(`.compile\(\)`\), which is no agent",
        ),
    ],
    ids=["exception", "exit", "syntax", "dependency", "uncompiled"],
)
def test_a_module_without_a_usable_agent_is_named_with_the_cause(
    engine: Engine, code: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"agent_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(f"{code}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SetupError, match=rf"'{name}:agent' .*{problem}"):
        load_agents([f"{name}:agent"], engine)


def _large(kind: str) -> list[BaseEvent]:
    call = ToolCallStartEvent(tool_call_id="c", tool_call_name="search")
    match kind:
        case "text":
            return [TextMessageContentEvent(message_id="large", delta=TEN_MEGABYTES)]
        case "text in pieces":
            return [TextMessageContentEvent(message_id="large", delta=TEN_MEGABYTES[:100_000]) for _ in range(100)]
        case "arguments":
            return [call, *(ToolCallArgsEvent(tool_call_id="c", delta=TEN_MEGABYTES[:100_000]) for _ in range(100))]
        case "result":
            return [call, ToolCallResultEvent(message_id="r", tool_call_id="c", content=TEN_MEGABYTES)]
        case "state":
            return [StateSnapshotEvent(snapshot={"large": TEN_MEGABYTES})]
        case _:
            return [CustomEvent(name="large", value=TEN_MEGABYTES)]


def yields_large(kind: str) -> Script:
    async def agent(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        for event in text("before", "said before"):
            yield event
        if run_input.messages[-1].content == "large":
            for event in _large(kind):
                yield event

    return agent


@pytest.mark.parametrize("kind", ["text", "text in pieces", "arguments", "result"])
async def test_ten_megabytes_are_stored(engine: Engine, kind: str) -> None:
    thread = str(uuid4())
    async with hosting(engine, yields_large(kind)) as host:
        live = Snapshot().fold(await turn(host, "large", thread_id=thread))
        messages = (await stored(engine, thread)).messages
        assert TEN_MEGABYTES in str(messages[-1])
        assert live.messages[-len(messages) :] == messages


@pytest.mark.parametrize("kind", ["text", "text in pieces", "arguments", "result", "state", "custom"])
async def test_more_than_a_limit_fails_the_run_and_names_the_limit(engine_urls: dict[str, str], kind: str) -> None:
    thread = str(uuid4())
    limits = {"max_event_bytes": 2_000_000, "max_state_bytes": 2_000_000}
    async with Engine.open(**engine_urls, **limits) as engine, hosting(engine, yields_large(kind)) as host:
        frames = await turn(host, "large", thread_id=thread)
        assert isinstance(frames[-1], RunErrorEvent)
        assert re.search(r"the limit is \d+ \(COGNIZES_MAX_\w+_BYTES\)", frames[-1].message)
        session = await engine.sessions.get("generic", "ada", thread)
        assert session is not None
        (run,) = await engine.runs.list(session.thread_id)
        assert (run.status, run.error) == (RunStatus.FAILED, frames[-1].message)
        assert "said before" in [message.get("content") for message in (await stored(engine, thread)).messages]
        assert not isinstance((await turn(host, "small", thread_id=thread))[-1], RunErrorEvent)


async def test_an_agent_that_never_ends_is_stopped_with_the_server(engine: Engine) -> None:
    async def agent(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        yield TextMessageStartEvent(message_id="m")
        while True:
            yield TextMessageContentEvent(message_id="m", delta="more ")
            await asyncio.sleep(0.001)

    thread = str(uuid4())
    async with hosting(engine, agent) as host:
        run = await say(host, "go", thread_id=thread)
        async for _, frame in host.watch(run):
            if isinstance(frame, TextMessageContentEvent):
                break
        await host.close(seconds=0.05)
        ended = await engine.runs.get(run.thread_id, run.run_id)
    assert (ended.status, ended.error) == (RunStatus.FAILED, STOPPED)
    assert (await stored(engine, thread)).messages[-1]["content"].startswith("more ")


@pytest.mark.parametrize("kind", ["text", "custom", "empty"])
async def test_an_agent_that_never_ends_does_not_fill_the_memory(engine_urls: dict[str, str], kind: str) -> None:
    """What clients have received until then is stored, and the thread takes the next message."""

    async def agent(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        number = 0
        while run_input.messages[-1].content == "go" or number < 1:
            number += 1
            yield TextMessageStartEvent(message_id="m" if kind == "text" else f"m{number}")
            if kind == "text" or number < 3:
                yield TextMessageContentEvent(message_id="m", delta=f"word{number} ")
            if kind == "custom":
                yield CustomEvent(name="x", value="y" * 1000)

    thread = str(uuid4())
    async with Engine.open(**engine_urls, max_run_bytes=200_000) as engine, hosting(engine, agent) as host:
        run = await say(host, "go", thread_id=thread)
        live = Snapshot()
        async for _, frame in host.watch(run):
            live.fold([frame])
        assert isinstance(frame, RunErrorEvent)
        assert re.search(
            r"the run, after \d+ events of the agent, is \d+ bytes; the limit is 200000 \(COGNIZES_MAX_RUN_BYTES\)",
            frame.message,
        )
        ended = await engine.runs.get(run.thread_id, run.run_id)
        assert (ended.status, ended.error) == (RunStatus.FAILED, frame.message)
        said = (await stored(engine, thread)).messages
        assert said == live.messages
        assert said[-1]["content"].startswith("word1 word2 ")
        assert not isinstance((await turn(host, "once", thread_id=thread))[-1], RunErrorEvent)


async def test_one_thread_id_used_by_two_agents_is_two_threads(engine: Engine) -> None:
    """The name of the agent is the app of its threads."""
    agents = load_agents(["tests.integration.hosting.agents:generic", "examples.agui.agent:parrot"], engine)
    host, thread = AgentHost(engine, agents), str(uuid4())
    await (await say(host, "hello", thread_id=thread)).wait()
    assert await engine.sessions.get("parrot", "ada", thread) is None
    run = await host.run("parrot", "ada", RunAgentInput.model_validate({
        "threadId": thread, "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {},
        "messages": [{"id": "u", "role": "user", "content": "hello parrot"}],
    }))  # fmt: skip
    await run.wait()
    session = await engine.sessions.get("parrot", "ada", thread)
    assert session is not None
    assert [message.role for message in await engine.sessions.messages(session)] == ["user", "assistant"]
    await host.close(seconds=0)
