"""Graphs that a test server hosts, with a scripted model."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.store.base import BaseStore
from langgraph.types import interrupt

from tests.integration.agui.gates import pass_gate


class ScriptedModel(BaseChatModel):
    """Thinks and calls the tool when it is asked about the weather; otherwise repeats what was said."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError("it only streams")

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> Iterator[ChatGenerationChunk]:
        said = messages[-1]
        if isinstance(said, ToolMessage):
            chunks = [{"content": token} for token in ("It ", "is ", said.text, ".")]
        elif "weather" in said.text:
            call = {"name": "weather", "id": f"call-{said.id}", "index": 0, "args": ""}
            more = [{"name": None, "id": None, "index": 0, "args": part} for part in ('{"city"', ': "Rome"}')]
            chunks = [
                {"content": [{"type": "reasoning", "reasoning": "A tool knows."}]},
                {"content": "Let me look."},
                *({"content": "", "tool_call_chunks": [part]} for part in (call, *more)),
            ]
        else:
            chunks = [{"content": f"{word} "} for word in f"You said: {said.text}".split()]
        for chunk in chunks:
            yield ChatGenerationChunk(message=AIMessageChunk(**chunk))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for number, chunk in enumerate(self._stream(messages)):
            if number == 2:
                await pass_gate(messages[-1].text)
            yield chunk


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"sunny in {city}"


class State(MessagesState, total=False):
    log: Annotated[list[str], operator.add]
    approval: str


async def _model(state: State) -> dict[str, Any]:
    return {"messages": [await ScriptedModel().ainvoke(state["messages"])], "log": ["model"]}


def _assistant() -> StateGraph[State]:
    builder = StateGraph(State)
    builder.add_node("prepare", lambda _: {"log": ["prepare"]})
    builder.add_node("model", _model)
    builder.add_node("tools", ToolNode([weather]))
    builder.add_edge(START, "prepare")
    builder.add_edge("prepare", "model")
    builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    builder.add_edge("tools", "model")
    return builder


def _asker() -> StateGraph[State]:
    builder = StateGraph(State)
    builder.add_node("ask", lambda _: {"approval": interrupt("May I?")})
    builder.add_node("model", _model)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "model")
    builder.add_edge("model", END)
    return builder


async def _count(state: State, config: RunnableConfig, *, store: BaseStore) -> dict[str, Any]:
    """Count the turns of a user in all threads."""
    namespace = ("users", config["configurable"]["user_id"])
    item = await store.aget(namespace, "turns")
    turns = (item.value["count"] if item else 0) + 1
    await store.aput(namespace, "turns", {"count": turns})
    return {"messages": [AIMessage(f"turn {turns}")]}


def _counter() -> StateGraph[State]:
    builder = StateGraph(State)
    builder.add_node("count", _count)
    builder.add_edge(START, "count")
    return builder


counter = _counter().compile(name="counter")
assistant = _assistant().compile(name="assistant")
asker = _asker().compile(name="asker")
keeper = _assistant().compile(name="keeper", checkpointer=InMemorySaver())
