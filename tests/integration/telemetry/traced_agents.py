"""Agents of each framework that call the tool `weather` once and then answer; their models need no network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agents import Agent as OpenAiAgent
from agents import function_tool
from agents.testing import ScriptedModel as OpenAiModel
from agents.usage import Usage as OpenAiUsage
from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from openai.types.responses import ResponseFunctionToolCall
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.test import TestModel

from tests.integration.hosting.test_frameworks import answer, weather

_COUNTS = {"input_tokens": 11, "output_tokens": 4, "total_tokens": 15}


def openai() -> Any:
    call = ResponseFunctionToolCall(type="function_call", call_id="c1", name="weather", arguments='{"city": "Rome"}')
    counts = OpenAiUsage(requests=1, input_tokens=11, output_tokens=4, total_tokens=15)
    model = OpenAiModel([[call], [answer("It is sunny.")]], default_usage=counts)
    return OpenAiAgent(name="generic", model=model, tools=[function_tool(weather)])


def pydantic() -> Any:
    agent = PydanticAgent(TestModel(), name="generic")
    agent.tool_plain(weather)
    return agent


def langgraph() -> Any:
    call = {"name": "weather", "id": "c1", "args": {"city": "Rome"}}
    said = iter(
        [
            AIMessage("", tool_calls=[call], usage_metadata=_COUNTS, response_metadata={"model_name": "claude-test"}),
            AIMessage("sunny", usage_metadata=_COUNTS, response_metadata={"model_name": "claude-test"}),
        ]
    )
    model = GenericFakeChatModel(messages=said, disable_streaming=True)

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_node("tools", ToolNode([weather]))
    builder.add_edge(START, "ask")
    builder.add_conditional_edges("ask", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    builder.add_edge("tools", "ask")
    return builder.compile(name="generic")


class _Gemini(BaseLlm):
    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncIterator[LlmResponse]:  # type: ignore[override]
        has_result = any(part.function_response for content in llm_request.contents for part in content.parts or ())
        call = types.Part(function_call=types.FunctionCall(id="c1", name="weather", args={"city": "Rome"}))
        part = types.Part(text="sunny") if has_result else call
        counts = types.GenerateContentResponseUsageMetadata(prompt_token_count=11, candidates_token_count=4)
        yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=counts)


def adk() -> Any:
    return LlmAgent(name="generic", model=_Gemini(model="gemini-test"), tools=[weather])
