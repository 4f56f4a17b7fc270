"""Agents of three frameworks that are offered the tools of a client, look the sky up, and paint with `pick_colour`.

Each model calls the tool `pick_colour` only if it is offered, together with `look_up` if the user says "and look".
It says what the client picked, or the last text of the user if there is no result of the client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import uuid4

from agents import Agent as OpenAiAgent
from agents import Model, ModelResponse, function_tool
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from tests.integration.hosting.framework_agents import added, completed, done

PICK, ARGUMENTS = "pick_colour", '{"of":"the sky"}'


def look_up(query: str) -> str:
    """Look something up."""
    return f"the {query} is wide"


def _calls(said: str, offered: Sequence[str]) -> list[tuple[str, str]]:
    """Return the calls of the model as names and arguments."""
    if PICK not in offered or "paint" not in said:
        return []
    if "twice" in said:
        return [(PICK, ARGUMENTS), (PICK, ARGUMENTS)]
    return [("look_up", '{"query":"sky"}'), (PICK, ARGUMENTS)] if "and look" in said else [(PICK, ARGUMENTS)]


def _answer(said: str, picked: str | None) -> str:
    return f"You said: {said}" if picked is None else f"You picked {picked}."


# LangGraph


class GraphModel(BaseChatModel):
    """Refuses a call without a result, as the models of providers do."""

    tools: Sequence[Any] = ()

    @property
    def _llm_type(self) -> str:
        return "painter"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> GraphModel:  # type: ignore[override]
        return GraphModel(tools=[convert_to_openai_tool(one)["function"] for one in tools])

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError("it only streams")

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        called = [call["id"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
        results = [message.tool_call_id for message in messages if isinstance(message, ToolMessage)]
        if sorted(called) != sorted(results):
            raise ValueError(f"the calls {called} have the results {results}")
        said = next(message.text for message in reversed(messages) if isinstance(message, HumanMessage))
        last = messages[-1]
        offered = [one["name"] for one in self.tools]
        if isinstance(last, HumanMessage) and (calls := _calls(said, offered)):
            for index, (name, arguments) in enumerate(calls):
                part = {"name": name, "id": f"call-{uuid4()}", "index": index, "args": arguments}
                yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=[part]))
            return
        yield ChatGenerationChunk(
            message=AIMessageChunk(_answer(said, last.text if isinstance(last, ToolMessage) else None))
        )


class State(MessagesState, total=False):
    tools: list[Any]


class CopilotState(MessagesState, total=False):
    copilotkit: dict[str, Any]


def _graph(schema: type[Any], offered: Any) -> Any:
    async def model(state: Any) -> dict[str, Any]:
        bound = GraphModel().bind_tools([look_up, *offered(state)])
        return {"messages": [await bound.ainvoke(state["messages"])]}

    def follow(state: Any) -> Any:
        """Execute the graph's own calls; the client executes its own after the end of the run."""
        own = [call for call in state["messages"][-1].tool_calls if call["name"] == "look_up"]
        return [Send("tools", [call]) for call in own] or END

    def follow_tools(state: Any) -> str:
        last = next(message for message in reversed(state["messages"]) if isinstance(message, AIMessage))
        return END if any(call["name"] == PICK for call in last.tool_calls) else "model"

    builder = StateGraph(schema)
    builder.add_node("model", model)
    builder.add_node("tools", ToolNode([tool(look_up)]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", follow, ["tools", END])
    builder.add_conditional_edges("tools", follow_tools, ["model", END])
    return builder


painting_graph = _graph(State, lambda state: state.get("tools") or []).compile(name="painting_graph")
copilot_graph = _graph(CopilotState, lambda state: state.get("copilotkit", {}).get("actions") or []).compile(
    name="copilot_graph"
)


# Pydantic AI


async def _pydantic_model(
    messages: list[ModelMessage], info: AgentInfo
) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    said = next(str(part.content) for part in reversed(parts) if isinstance(part, UserPromptPart))
    offered = [definition.name for definition in info.function_tools]
    is_asked = isinstance(messages[-1].parts[-1], UserPromptPart)
    picked = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart) and part.tool_name == PICK]
    if is_asked and (calls := _calls(said, offered)):
        for index, (name, arguments) in enumerate(calls):
            yield {index: DeltaToolCall(name=name, json_args=arguments, tool_call_id=f"call-{uuid4()}")}
        return
    yield _answer(said, str(picked[-1].content) if picked and not is_asked else None)


painting_pydantic = PydanticAgent(
    FunctionModel(stream_function=_pydantic_model), name="painting_pydantic", tools=[look_up]
)


# OpenAI Agents SDK


class OpenAiModel(Model):
    """Refuses a call without a result, as the Responses API does."""

    async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
        raise NotImplementedError("it only streams")

    async def stream_response(  # type: ignore[override]
        self, _: str | None, given: str | list[Any], settings: Any, tools: list[Any], *__: Any, **___: Any
    ) -> AsyncIterator[Any]:
        items = given if isinstance(given, list) else [{"role": "user", "content": given}]
        called = {item["call_id"]: item["name"] for item in items if item.get("type") == "function_call"}
        outputs = {item["call_id"]: item["output"] for item in items if item.get("type") == "function_call_output"}
        if called.keys() != outputs.keys():
            raise ValueError(f"the calls {list(called)} have the results {list(outputs)}")
        said = next(str(item["content"]) for item in reversed(items) if item.get("role") == "user")
        last = items[-1]
        if last.get("role") == "user" and (calls := _calls(said, [one.name for one in tools])):
            output: list[Any] = [
                ResponseFunctionToolCall(
                    type="function_call", call_id=f"c-{uuid4()}", name=name, arguments=arguments, id=f"f-{index}"
                )
                for index, (name, arguments) in enumerate(calls)
            ]
        else:
            picked = [outputs[one] for one, name in called.items() if name == PICK] if "call_id" in last else []
            text = _answer(said, str(picked[-1]) if picked else None)
            part = ResponseOutputText(type="output_text", text=text, annotations=[])
            output = [
                ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[part])
            ]
        for index, item in enumerate(output):
            yield added(item, index)
            yield done(item, index)
        yield completed(output)


painting_openai = OpenAiAgent(name="painting_openai", model=OpenAiModel(), tools=[function_tool(look_up)])

NAMES = ("painting_graph", "copilot_graph", "painting_pydantic", "painting_openai")
