"""The agents of `frameworks.py`, on both sides: their models answer with as many tokens as the message names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langgraph.graph import START, MessagesState, StateGraph
from pydantic_ai import Agent, ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel


async def tokens(text: str) -> AsyncIterator[str]:
    """Yield tokens as fast as they are taken. Each comes in a turn of the event loop, as from a network."""
    for number in range(int(text)):
        await asyncio.sleep(0)
        yield f"word{number} "


class TokenModel(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "tokens"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError("it only streams")

    async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        async for token in tokens(messages[-1].text):
            yield ChatGenerationChunk(message=AIMessageChunk(content=token))


async def answer(state: MessagesState) -> dict[str, list[BaseMessage]]:
    return {"messages": [await TokenModel().ainvoke(state["messages"])]}


builder = StateGraph(MessagesState)
builder.add_node("answer", answer)
builder.add_edge(START, "answer")
graph = builder.compile(name="writer")


async def write(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str]:
    async for token in tokens(str(messages[-1].parts[-1].content)):  # type: ignore[union-attr]
        yield token


agent = Agent(FunctionModel(stream_function=write), name="writer")
