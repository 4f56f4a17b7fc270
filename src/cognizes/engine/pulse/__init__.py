"""The Pulse: sessions, scoped state and events, exact under concurrency."""

from cognizes.engine.pulse.events import Overlay
from cognizes.engine.pulse.sessions import Sessions
from cognizes.engine.pulse.state_manager import StateManager

__all__ = ["Overlay", "Sessions", "StateManager"]
