"""Hosted graphs that continue after a crash at each place of a step, and messages that LangGraph does not stream."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from ag_ui.core import BaseEvent, RunAgentInput, UserMessage
from langgraph.graph import START, MessagesState, StateGraph

from cognizes.engine import Engine
from cognizes.engine.adapters.langgraph.hosting import host_graph
from cognizes.engine.hosting import RunContext
from cognizes.engine.hosting.turns import ThreadTurn
from cognizes.engine.pulse.sessions import RunFence, fenced_by

executed: list[str] = []


def _node(name: str) -> Any:
    async def node(_: MessagesState) -> dict[str, Any]:
        executed.append(name)
        return {"messages": [("ai", f"from {name}")]}

    return node


def _graph() -> Any:
    builder = StateGraph(MessagesState)
    for name in ("first", "second"):
        builder.add_node(name, _node(name))
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile(name="graph")


def text(frames: list[BaseEvent]) -> str:
    return "|".join(getattr(frame, "delta", "") for frame in frames if frame.type == "TEXT_MESSAGE_CONTENT")


@pytest.mark.parametrize(
    ("stored", "expected", "again"),
    [
        (3, "", []),  # everything
        (2, "from second", []),  # the writes of `second`, but not its checkpoint
        (1, "from first|from second", ["second"]),  # the writes of `first`, but not its checkpoint
    ],
)
async def test_a_graph_continues_where_its_stored_writes_end(
    engine: Engine, database_url: str, stored: int, expected: str, again: list[str]
) -> None:
    agent = host_graph(_graph(), name="graph", engine=engine)
    session = await engine.sessions.create("graph", "ada")
    await engine.runs.enqueue(session, "work")
    (run,) = await engine.runs.claim(["work"])
    fence = RunFence(UUID(session.thread_id), run.id, run.attempt)
    message = UserMessage(id=str(uuid4()), content="hello")
    context = RunContext(engine, run, session, fence, ThreadTurn(fence.thread_id, new_messages=[message]))
    run_input = RunAgentInput(
        thread_id=session.id, run_id=run.id, state={}, messages=[message], tools=[], context=[], forwarded_props={}
    )
    executed.clear()
    with fenced_by(fence):
        first = [frame async for frame in agent.run(run_input, context)]
        assert (text(first), executed) == ("from first|from second", ["first", "second"])
        connection = await asyncpg.connect(database_url)
        # The checkpoints of the input, the start and the two nodes, in the order of their ids.
        await connection.execute(
            "DELETE FROM graph_checkpoints WHERE checkpoint_id NOT IN "
            "(SELECT checkpoint_id FROM graph_checkpoints ORDER BY checkpoint_id LIMIT $1)",
            stored + 1,
        )
        await connection.close()
        executed.clear()
        second = [frame async for frame in agent.run(run_input, context)]
    assert (text(second), executed) == (expected, again)
