"""Small graphs for the tests."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    answer: str


def two_nodes() -> StateGraph[State]:
    """`first`, then `second`; each adds its name to the log."""
    builder = StateGraph(State)
    builder.add_node("first", lambda _: {"log": ["first"]})
    builder.add_node("second", lambda _: {"log": ["second"]})
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", END)
    return builder


def asking() -> StateGraph[State]:
    """`ask` interrupts the graph and stores the answer."""
    builder = StateGraph(State)
    builder.add_node("prepare", lambda _: {"log": ["prepared"]})
    builder.add_node("ask", lambda state: {"answer": interrupt({"question": "go on?"}), "log": ["asked"]})
    builder.add_edge(START, "prepare")
    builder.add_edge("prepare", "ask")
    builder.add_edge("ask", END)
    return builder


def fan_out(width: int) -> StateGraph[State]:
    """`width` parallel tasks of one step."""
    builder = StateGraph(State)
    builder.add_node("part", lambda state: {"log": [state["answer"]]})
    builder.add_conditional_edges(START, lambda _: [Send("part", {"answer": str(n)}) for n in range(width)], ["part"])
    builder.add_edge("part", END)
    return builder


def _concatenate(state: list[str], writes: list[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class DeltaState(TypedDict, total=False):
    log: Annotated[list[str], DeltaChannel(_concatenate, list, snapshot_frequency=4)]
    turn: int


def with_delta_channel() -> StateGraph[DeltaState]:
    """A graph whose log is stored as deltas, with a snapshot every fourth update."""
    builder = StateGraph(DeltaState)

    def say(state: dict[str, Any]) -> dict[str, Any]:
        return {"log": [f"turn {state.get('turn')}"]}

    builder.add_node("say", say)
    builder.add_edge(START, "say")
    builder.add_edge("say", END)
    return builder
