"""Any source of AG-UI events as a hosted agent; the host keeps the history of its threads."""

from cognizes.engine.adapters.agui.agent import AguiAgent, RunFunction, source_of

__all__ = ["AguiAgent", "RunFunction", "source_of"]
