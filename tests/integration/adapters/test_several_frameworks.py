"""What the adapters of all frameworks have in common, and one id that two of them use."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, cast
from uuid import uuid4

import pytest
from ag_ui.core import BaseEvent, RunAgentInput, TextMessageChunkEvent, UserMessage
from agents import TResponseInputItem
from google.adk.events import Event
from google.genai import types
from langgraph.graph import START, MessagesState, StateGraph
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import Conversation, ModelRequest, UserPromptPart
from pydantic_ai.models.test import TestModel

from cognizes.engine import DatabaseUnavailableError, Engine
from cognizes.engine.adapters.adk import OpenArtifactService, OpenMemoryService, OpenSessionService
from cognizes.engine.adapters.engines import EngineUser
from cognizes.engine.adapters.langgraph import OpenCheckpointSaver, OpenStore
from cognizes.engine.adapters.loading import host as host_object
from cognizes.engine.adapters.openai_agents import OpenSession
from cognizes.engine.adapters.pydantic_ai import OpenConversationStore
from cognizes.engine.hosting import AgentHost
from tests.engine_parts import database_of
from tests.integration.adapters.langgraph.graphs import two_nodes

SERVICES: list[Callable[..., EngineUser]] = [
    OpenSessionService,
    OpenMemoryService,
    OpenArtifactService,
    OpenCheckpointSaver,
    OpenStore,
    lambda *url, **settings: OpenSession("s", *url, **settings),
    OpenConversationStore,
]
USES: list[Callable[[Any], Any]] = [
    lambda service: service.list_sessions(app_name="shop"),
    lambda service: service.search_memory(app_name="shop", user_id="ada", query="x"),
    lambda service: service.list_artifact_keys(app_name="shop", user_id="ada"),
    lambda service: service.aget_tuple({"configurable": {"thread_id": "t"}}),
    lambda service: service.aget(("n",), "k"),
    lambda service: service.get_items(),
    lambda service: service.load("c"),
]
EXTRAS = {
    "adk": ("google.adk", "adk"),
    "langgraph": ("langgraph", "langgraph"),
    "openai_agents": ("agents", "openai-agents"),
    "pydantic_ai": ("pydantic_ai", "pydantic-ai"),
}


async def test_all_services_share_one_engine_and_the_last_one_closes_it(database_url: str) -> None:
    async with AsyncExitStack() as stack:
        services = [await stack.enter_async_context(make(database_url, pool_size=4)) for make in SERVICES]
        engines = await asyncio.gather(*(service.engine() for service in services))
        assert len(set(engines)) == 1
        for service, use in zip(services, USES, strict=True):
            await use(service)
        assert not database_of(engines[0]).pool.is_closing()
    assert database_of(engines[0]).pool.is_closing()


@pytest.mark.parametrize(("make", "use"), list(zip(SERVICES, USES, strict=True)))
async def test_a_service_connects_when_first_used(make: Callable[..., EngineUser], use: Callable[[Any], Any]) -> None:
    async with make("postgresql://unknown@127.0.0.1:1/none", retry_seconds=0.1) as service:
        with pytest.raises(DatabaseUnavailableError):
            await use(service)


_BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1] or name.startswith(sys.argv[1] + "."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
import importlib.util
found, importlib.util.find_spec = importlib.util.find_spec, lambda name, package=None: (
    None if name == sys.argv[1] else found(name, package))
try:
    __import__(f"cognizes.engine.adapters.{sys.argv[2]}")
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("package", EXTRAS)
def test_without_its_extra_an_adapter_names_the_command(package: str) -> None:
    module, extra = EXTRAS[package]
    run = subprocess.run([sys.executable, "-c", _BLOCKED, module, package], capture_output=True, text=True, check=True)
    assert f"pip install 'cognizes-engine[{extra}]'" in run.stdout


async def test_stores_of_other_frameworks_share_nothing_with_a_session_of_the_same_id(database_url: str) -> None:
    """Checkpoints and conversations have ids of their own, also in one app."""
    async with (
        OpenSession("42", database_url, app_name="shop", user_id="ada") as session,
        OpenCheckpointSaver(database_url, app_name="shop") as saver,
        OpenConversationStore(database_url, app_name="shop") as conversations,
    ):
        await session.add_items([cast(TResponseInputItem, {"role": "user", "content": "of the session"})])
        graph = two_nodes().compile(checkpointer=saver)
        await graph.ainvoke({"log": ["of the graph"]}, {"configurable": {"thread_id": "42"}})
        message = ModelRequest(parts=[UserPromptPart("of the conversation")])
        await conversations.save(Conversation(conversation_id="42", messages=[message]), scope="ada")

        assert [item["content"] for item in await session.get_items()] == ["of the session"]  # type: ignore[typeddict-item]
        state = await graph.aget_state({"configurable": {"thread_id": "42"}})
        assert state.values["log"][0] == "of the graph"
        engine = await session.engine()
        await engine.sessions.store.delete("shop", "ada", "42")
        assert await session.get_items() == []
        assert (await graph.aget_state({"configurable": {"thread_id": "42"}})).values == state.values
        loaded = await conversations.load("42")
        assert loaded is not None
        assert loaded.messages == [message]


async def test_a_session_of_two_frameworks_is_one_conversation(database_url: str) -> None:
    """The same app, user and session id name one thread: each framework reads what the other one stored."""
    async with (
        OpenSessionService(database_url) as service,
        OpenSession("42", database_url, app_name="shop", user_id="ada") as session,
    ):
        await session.add_items([cast(TResponseInputItem, {"role": "user", "content": "first"})])
        of_adk = await service.get_session(app_name="shop", user_id="ada", session_id="42")
        assert of_adk is not None
        assert [event.content.parts[0].text for event in of_adk.events if event.content and event.content.parts] == [
            "first"
        ]
        content = types.Content(role="model", parts=[types.Part(text="second")])
        await service.append_event(of_adk, Event(author="agent", invocation_id="i", content=content))
        assert await session.get_items() == [
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "second"},
        ]


async def test_two_hosted_agents_have_threads_of_their_own_for_one_thread_id(engine: Engine) -> None:
    async def parrot(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        said = [str(message.content) for message in run_input.messages]
        yield TextMessageChunkEvent(message_id=str(uuid4()), role="assistant", delta=" ".join(said))

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", " ".join(message.text for message in state["messages"]))]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    pydantic_agent = PydanticAgent(TestModel(custom_output_text="fixed"), name="fixed")
    agents = [host_object(found, engine, path=f"x:{name}") for name, found in
              (("parrot", parrot), ("graph", builder.compile(name="graph")), ("fixed", pydantic_agent))]  # fmt: skip
    thread = str(uuid4())
    heard = {}
    for agent in agents:
        host = AgentHost(engine, [agent])
        for text in ("one", "two"):
            message = UserMessage(id=str(uuid4()), content=text)
            run_input = RunAgentInput(
                thread_id=thread, run_id=str(uuid4()), state={}, messages=[message], tools=[], context=[],
                forwarded_props={},
            )  # fmt: skip
            run = await host.run(agent.name, "ada", run_input)
            frames = [frame async for _, frame in host.watch(run)]
            heard[agent.name] = "".join(getattr(frame, "delta", "") for frame in frames)
        await host.close(seconds=0)
    assert heard == {"parrot": "one one two", "graph": "one one two", "fixed": "fixed"}
