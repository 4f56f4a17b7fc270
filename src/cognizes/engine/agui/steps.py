"""Sub-agents as steps: who is at work besides the root agent."""

from __future__ import annotations

from collections.abc import Iterator

from ag_ui.core import BaseEvent, StepFinishedEvent, StepStartedEvent


class Steps:
    """Opens a step when a sub-agent begins to speak, and closes it when the work goes on elsewhere.

    Agents on the same branch work one after the other, those on branches beside each other at the same time. Without a
    name of the root agent, the first agent that speaks is taken for it.
    """

    def __init__(self, root: str | None) -> None:
        self._root = root
        self._open: dict[str, str] = {}

    def enter(self, agent: str, branch: str) -> Iterator[BaseEvent]:
        """An agent is about to speak."""
        if self._root is None:
            self._root = agent
        for name, place in list(self._open.items()):
            if name != agent and _is_over(place, branch):
                del self._open[name]
                yield StepFinishedEvent(step_name=name)
        if agent != self._root and agent not in self._open:
            self._open[agent] = branch
            yield StepStartedEvent(step_name=agent)

    def close(self) -> Iterator[BaseEvent]:
        """Nobody speaks any more."""
        for name in reversed(list(self._open)):
            yield StepFinishedEvent(step_name=name)
        self._open.clear()


def _is_over(place: str, branch: str) -> bool:
    return branch in (place, "") or place.startswith(f"{branch}.")
