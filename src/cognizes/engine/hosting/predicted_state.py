"""Predictive state updates: clients show a key of the state while a tool's arguments still arrive.

The CUSTOM frame `PredictState` precedes the first call of a tool in a run. It names the key of the state and the
argument whose streamed text predicts it. The state itself changes when the tool writes it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID

from ag_ui.core import BaseEvent, CustomEvent, RunAgentInput, ToolCallChunkEvent, ToolCallStartEvent

from cognizes.engine.agui.frames import PREDICT_STATE, now
from cognizes.engine.hosting.agent import AgentCapabilities, HostedAgent, RunContext, Turn
from cognizes.engine.models import JsonObject, Run, Session
from cognizes.engine.runs import Resumption


@dataclass(frozen=True)
class PredictedState:
    """A key of the state that an argument of a tool predicts; without an argument, all arguments together do."""

    state_key: str
    tool: str
    argument: str | None = None

    def document(self) -> JsonObject:
        """Return the mapping in the form that AG-UI clients read."""
        mapping: JsonObject = {"state_key": self.state_key, "tool": self.tool}
        return mapping if self.argument is None else mapping | {"tool_argument": self.argument}


@dataclass(frozen=True)
class ServedAgent:
    """An agent of any framework with options for its server: `cognizes serve --agent module:served`.

    served = ServedAgent(root_agent, predicted_state=[PredictedState("draft", tool="write", argument="text")])
    """

    agent: object
    predicted_state: Sequence[PredictedState] = ()


class PredictingAgent:
    """A hosted agent whose tool calls predict state. Everything else is the agent's own."""

    def __init__(self, agent: HostedAgent, predicted_state: Sequence[PredictedState]) -> None:
        self._agent = agent
        self._by_tool: dict[str, list[JsonObject]] = {}
        for prediction in predicted_state:
            self._by_tool.setdefault(prediction.tool, []).append(prediction.document())

    @property
    def name(self) -> str:
        return self._agent.name

    @property
    def description(self) -> str:
        return self._agent.description

    @property
    def capabilities(self) -> AgentCapabilities:
        return self._agent.capabilities

    async def read_turn(
        self, run_input: RunAgentInput, user_id: str, *, is_end_user: bool, thread_id: UUID | None = None
    ) -> Turn:
        return await self._agent.read_turn(run_input, user_id, is_end_user=is_end_user, thread_id=thread_id)

    async def read_continuation(
        self, run: Run, run_input: RunAgentInput, session: Session, *, resumption: Resumption | None
    ) -> Turn | None:
        return await self._agent.read_continuation(run, run_input, session, resumption=resumption)

    async def run(self, run_input: RunAgentInput, context: RunContext) -> AsyncGenerator[BaseEvent, None]:
        """Yield the events of the agent, with a prediction before the first call of each tool that predicts state."""
        predicted: set[str] = set()
        async with aclosing(self._agent.run(run_input, context)) as frames:
            async for frame in frames:
                if isinstance(frame, ToolCallStartEvent | ToolCallChunkEvent):
                    tool = frame.tool_call_name or ""
                    if tool in self._by_tool and tool not in predicted:
                        predicted.add(tool)
                        yield CustomEvent(name=PREDICT_STATE, value=self._by_tool[tool], timestamp=now())
                yield frame

    async def close(self) -> None:
        await self._agent.close()
