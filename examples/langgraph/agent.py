"""A LangGraph graph with a scripted model, no key: `cognizes serve --agent examples.langgraph.agent:weather`."""

from collections.abc import Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt


class ScriptedModel(BaseChatModel):
    """Stands for the model of a provider, which you would use here."""

    _llm_type = "scripted"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError("this model streams")

    def _stream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        for word in f"I will look up: {messages[-1].text}".split():
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))


class State(MessagesState):
    approved: bool


async def answer(state: State) -> dict[str, list[BaseMessage]]:
    return {"messages": [await ScriptedModel().ainvoke(state["messages"])]}


builder = StateGraph(State)
builder.add_node("answer", answer)
builder.add_node("approve", lambda _: {"approved": interrupt("May I call the weather service?")})
builder.add_edge(START, "answer")
builder.add_edge("answer", "approve")
builder.add_edge("approve", END)
weather = builder.compile(name="weather")  # without a checkpointer: the engine's is used
