"""Which state of a stored session an ADK `Session` object shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from uuid import UUID

from google.adk.sessions.session import Session

from cognizes.engine.errors import NotFoundError
from cognizes.engine.pulse.session_store import thread_uuid


@dataclass(frozen=True)
class Revision:
    """A thread, its version and the last event that was seen of it. No timestamp is ever compared.

    It is kept in the private field that ADK's `Session` has for this purpose, so it survives `model_copy`.
    """

    thread_id: UUID
    version: int
    sequence: int

    @classmethod
    def of(cls, session: Session) -> Self | None:
        """The revision an object carries; None when it was rebuilt from JSON or by hand, or is another service's."""
        try:
            thread_id, version, sequence = (session._storage_update_marker or "").split("/")
            return cls(thread_uuid(thread_id), int(version), int(sequence))
        except (ValueError, NotFoundError):
            return None

    def put_on(self, session: Session) -> None:
        """Lets an object carry this revision."""
        session._storage_update_marker = marker_of(self.thread_id, self.version, self.sequence)


def marker_of(thread_id: UUID | str, version: int, sequence: int) -> str:
    """What an object carries."""
    return f"{thread_id}/{version}/{sequence}"
