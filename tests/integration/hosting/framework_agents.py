"""Agents of three frameworks that look something up, say many words, and stop halfway at a gate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import uuid4

from agents import Agent as OpenAiAgent
from agents import Model, ModelResponse, function_tool
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionToolCall,
    ResponseOutputItem,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseStreamEvent,
    ResponseTextDeltaEvent,
)
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from tests.integration.agui.gates import pass_gate
from tests.integration.hosting.agents import HELD_AT, WORDS

ARGUMENTS = ('{"query"', ': "words"}')


def look_up(query: str) -> str:
    """Look something up."""
    return f"forty {query}"


async def words(said: str) -> AsyncIterator[str]:
    for number, word in enumerate(WORDS, 1):
        if number == HELD_AT:
            await pass_gate(said)
        yield word


# LangGraph


class GraphModel(BaseChatModel):
    """Calls `look_up`, then says the words."""

    @property
    def _llm_type(self) -> str:
        return "words"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError("it only streams")

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        if isinstance(messages[-1], ToolMessage):
            said = next(message.text for message in reversed(messages) if isinstance(message, HumanMessage))
            async for word in words(said):
                yield ChatGenerationChunk(message=AIMessageChunk(word))
            return
        call = {"name": "look_up", "id": f"call-{messages[-1].id}", "index": 0, "args": ""}
        for part in (call, *({"name": None, "id": None, "index": 0, "args": args} for args in ARGUMENTS)):
            yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=[part]))


async def _answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await GraphModel().ainvoke(state["messages"])]}


def _graph() -> StateGraph[MessagesState]:
    builder = StateGraph(MessagesState)
    builder.add_node("model", _answer)
    builder.add_node("tools", ToolNode([tool(look_up)]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    builder.add_edge("tools", "model")
    return builder


langgraph = _graph().compile(name="langgraph")


# Pydantic AI


async def _pydantic_model(
    messages: list[ModelMessage], info: AgentInfo
) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
    latest = messages[-1]
    if any(isinstance(part, ToolReturnPart) for part in latest.parts):
        prompts = [
            str(part.content)
            for message in messages
            if isinstance(message, ModelRequest)
            for part in message.parts
            if isinstance(part, UserPromptPart)
        ]
        async for word in words(prompts[-1]):
            yield word
        return
    yield {0: DeltaToolCall(name="look_up", tool_call_id=f"call-{uuid4()}")}
    for part in ARGUMENTS:
        yield {0: DeltaToolCall(json_args=part)}


pydantic = PydanticAgent(FunctionModel(stream_function=_pydantic_model), name="pydantic", tools=[look_up])


# OpenAI Agents SDK


class OpenAiModel(Model):
    """Calls `look_up`, then says the words."""

    async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
        raise NotImplementedError("it only streams")

    async def stream_response(  # type: ignore[override]
        self, _: str | None, given: str | list[Any], *__: Any, **___: Any
    ) -> AsyncIterator[ResponseStreamEvent]:
        items = given if isinstance(given, list) else [{"role": "user", "content": given}]
        if items[-1].get("type") == "function_call_output":
            said = next(str(item["content"]) for item in reversed(items) if item.get("role") == "user")
            begun = ResponseOutputMessage(id="m", type="message", role="assistant", status="in_progress", content=[])
            yield added(begun)
            async for word in words(said):
                yield ResponseTextDeltaEvent(
                    type="response.output_text.delta", item_id="m", output_index=0, content_index=0, delta=word,
                    sequence_number=0, logprobs=[],
                )  # fmt: skip
            part = ResponseOutputText(type="output_text", text="".join(WORDS), annotations=[])
            whole: ResponseOutputItem = begun.model_copy(update={"status": "completed", "content": [part]})
        else:
            call = ResponseFunctionToolCall(type="function_call", call_id=f"c-{uuid4()}", name="look_up", arguments="")
            yield added(call)
            for delta in ARGUMENTS:
                yield ResponseFunctionCallArgumentsDeltaEvent(
                    type="response.function_call_arguments.delta", item_id="f", output_index=0, delta=delta,
                    sequence_number=0,
                )  # fmt: skip
            whole = call.model_copy(update={"arguments": "".join(ARGUMENTS)})
        yield done(whole)
        yield completed([whole])


def added(item: ResponseOutputItem, index: int = 0) -> ResponseOutputItemAddedEvent:
    return ResponseOutputItemAddedEvent(
        type="response.output_item.added", item=item, output_index=index, sequence_number=0
    )


def done(item: ResponseOutputItem, index: int = 0) -> ResponseOutputItemDoneEvent:
    return ResponseOutputItemDoneEvent(
        type="response.output_item.done", item=item, output_index=index, sequence_number=0
    )


def completed(output: Sequence[ResponseOutputItem]) -> ResponseCompletedEvent:
    response = Response(
        id="r", created_at=0, model="words", object="response", output=list(output), tool_choice="none", tools=[],
        parallel_tool_calls=False,
    )  # fmt: skip
    return ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)


openai = OpenAiAgent(name="openai", model=OpenAiModel(), tools=[function_tool(look_up)])
