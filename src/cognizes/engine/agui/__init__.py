"""AG-UI: translates the engine's events into frames, in the strict profile and in the monitor profile."""

from cognizes.engine.agui.event_bridge import PulseEventBridge
from cognizes.engine.agui.frames import AgUiEvent, AgUiEventType, FrameEncoder
from cognizes.engine.agui.translator import Profile, Translator

__all__ = ["AgUiEvent", "AgUiEventType", "FrameEncoder", "Profile", "PulseEventBridge", "Translator"]
