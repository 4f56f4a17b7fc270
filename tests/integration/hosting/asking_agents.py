"""Agents of three frameworks that ask before they forget something, and that read and change the state of the session.

The user says `forget <something>`. The tool names the mood of the client's state; LangGraph and Pydantic AI also add to
the key `forgotten`, which the OpenAI Agents SDK has no event for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from ag_ui.core import StateSnapshotEvent
from agents import Agent as OpenAiAgent
from agents import Model, ModelResponse, RunContextWrapper, function_tool
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import DeferredToolRequests, ToolReturn
from pydantic_ai import RunContext as PydanticContext
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.ui import StateDeps

from cognizes.engine.hosting import RunContext
from tests.integration.hosting.framework_agents import added, completed, done

NAMES = ("asking_graph", "asking_pydantic", "asking_openai")


def _forgot(what: str, mood: str) -> str:
    return f"I forgot {what}. You are {mood}."


def _what(said: str) -> str:
    return said.removeprefix("forget ")


# LangGraph


class _State(MessagesState, total=False):
    mood: str
    forgotten: list[str]


def _ask(state: _State) -> dict[str, Any]:
    what = _what(state["messages"][-1].text)
    if interrupt(f"Forget {what}?") != {"approved": True}:
        return {"messages": [AIMessage("I keep it.")]}
    forgotten = [*state.get("forgotten", []), what]
    return {"forgotten": forgotten, "messages": [AIMessage(_forgot(what, state.get("mood", "unknown")))]}


_builder = StateGraph(_State)
_builder.add_node("ask", _ask)
_builder.add_edge(START, "ask")
asking_graph = _builder.compile(name="asking_graph")


# Pydantic AI


class Mood(BaseModel):
    mood: str = "unknown"
    forgotten: list[str] = []


async def _pydantic_model(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        yield str(last.content)
        return
    arguments = f'{{"what": "{_what(str(getattr(last, "content", "")))}"}}'
    yield {0: DeltaToolCall(name="forget", json_args=arguments, tool_call_id=f"call-{uuid4()}")}


asking_pydantic = PydanticAgent(
    FunctionModel(stream_function=_pydantic_model),
    name="asking_pydantic",
    deps_type=StateDeps[Mood],
    output_type=[str, DeferredToolRequests],
)


@asking_pydantic.tool(requires_approval=True)
def forget(context: PydanticContext[StateDeps[Mood]], what: str) -> ToolReturn:
    """Forget something."""
    state = context.deps.state
    state.forgotten.append(what)
    return ToolReturn(_forgot(what, state.mood), metadata=[StateSnapshotEvent(snapshot=state.model_dump())])


# OpenAI Agents SDK


class _OpenAiModel(Model):
    """Calls `forget`, then says its result."""

    async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
        raise NotImplementedError("it only streams")

    async def stream_response(  # type: ignore[override]
        self, _: str | None, given: str | list[Any], *__: Any, **___: Any
    ) -> AsyncIterator[Any]:
        items = given if isinstance(given, list) else [{"role": "user", "content": given}]
        last = items[-1]
        if last.get("type") == "function_call_output":
            part = ResponseOutputText(type="output_text", text=str(last["output"]), annotations=[])
            item: Any = ResponseOutputMessage(
                id="m", type="message", role="assistant", status="completed", content=[part]
            )
        else:
            arguments = f'{{"what": "{_what(str(last["content"]))}"}}'
            item = ResponseFunctionToolCall(
                type="function_call", call_id=f"c-{uuid4()}", name="forget", arguments=arguments, id="f"
            )
        yield added(item)
        yield done(item)
        yield completed([item])


@function_tool(name_override="forget", needs_approval=True)
def _forget(context: RunContextWrapper[RunContext], what: str) -> str:
    """Forget something."""
    return _forgot(what, str(context.context.state.get("mood")))


asking_openai = OpenAiAgent(name="asking_openai", model=_OpenAiModel(), tools=[_forget])
