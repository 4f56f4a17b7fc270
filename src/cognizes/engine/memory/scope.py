"""Whose memory it is: (app, user, agent), on every row and in every query."""

from __future__ import annotations

from dataclasses import dataclass

from cognizes.engine.models import Session
from cognizes.engine.pulse.event_log import check_name


@dataclass(frozen=True)
class MemoryScope:
    """The owner of memories. Without an `agent_id` it is the app's one agent, called like the app."""

    app_name: str
    user_id: str
    agent_id: str = ""

    def __post_init__(self) -> None:
        check_name("app_name", self.app_name)
        check_name("user_id", self.user_id)
        if not self.agent_id:
            object.__setattr__(self, "agent_id", self.app_name)
        check_name("agent_id", self.agent_id)

    @classmethod
    def of(cls, session: Session, agent_id: str | None = None) -> MemoryScope:
        """The scope in which an agent works on a session."""
        return cls(session.app_name, session.user_id, agent_id or "")

    @property
    def columns(self) -> tuple[str, str, str]:
        """As every query wants it, first."""
        return self.app_name, self.user_id, self.agent_id
