"""The import path of seed 000 for `cognizes.engine.agui.event_bridge`."""

from cognizes.engine.agui.event_bridge import AgUiEvent, AgUiEventType, PulseEventBridge

__all__ = ["AgUiEvent", "AgUiEventType", "PulseEventBridge"]
