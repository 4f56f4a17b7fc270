"""Sub-agents: who is at work besides the root agent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ag_ui.core import (
    BaseEvent,
    SubagentErrorEvent,
    SubagentFinishedEvent,
    SubagentFinishedSuspendedOutcome,
    SubagentStartedEvent,
)


@dataclass(frozen=True)
class _Work:
    """What an agent does from when it begins to speak until the work goes on elsewhere."""

    id: str
    branch: str


class Subagents:
    """Tells when a sub-agent begins to speak, and when the work goes on elsewhere.

    Agents on the same branch work one after the other, those on branches beside each other at the same time. Without a
    name of the root agent, the first agent that speaks is taken for it. An agent that comes back does new work: the
    protocol wants another id for it, so ids come from the events it begins with.
    """

    def __init__(self, root: str | None) -> None:
        self._root = root
        self._open: dict[str, _Work] = {}

    def enter(self, agent: str, branch: str, *, event_id: str) -> Iterator[BaseEvent]:
        """An agent is about to speak, in the event of this id."""
        if self._root is None:
            self._root = agent
        for name, work in list(self._open.items()):
            if name != agent and _is_over(work.branch, branch):
                del self._open[name]
                yield SubagentFinishedEvent(subagent_run_id=work.id)
        if agent != self._root and agent not in self._open:
            self._open[agent] = _Work(f"{event_id}/{agent}", branch)
            yield SubagentStartedEvent(subagent_run_id=self._open[agent].id, name=agent)

    def close(self, *, error: str | None = None, is_waiting: bool = False) -> Iterator[BaseEvent]:
        """Nobody speaks any more: the run is over, has failed, or waits for somebody."""
        for work in reversed(self._open.values()):
            if error is not None:
                yield SubagentErrorEvent(subagent_run_id=work.id, message=error)
            else:
                outcome = SubagentFinishedSuspendedOutcome() if is_waiting else None
                yield SubagentFinishedEvent(subagent_run_id=work.id, outcome=outcome)
        self._open.clear()


def _is_over(place: str, branch: str) -> bool:
    return branch in (place, "") or place.startswith(f"{branch}.")
