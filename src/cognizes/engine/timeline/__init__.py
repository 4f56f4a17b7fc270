"""The ordered timeline of a conversation, made of stored events."""

from cognizes.engine.timeline.event_kinds import KINDS, EventKind
from cognizes.engine.timeline.timeline import Timeline, TimelinePage

__all__ = ["KINDS", "EventKind", "Timeline", "TimelinePage"]
