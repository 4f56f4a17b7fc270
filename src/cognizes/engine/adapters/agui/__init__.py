"""Any source of AG-UI events as a hosted agent; the host keeps the history of its threads."""

from cognizes.engine.adapters.agui.agent import AguiAgent, EventSource, source_of

__all__ = ["AguiAgent", "EventSource", "source_of"]
