"""Events that were read before, so that only new ones are fetched and decoded."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from uuid import UUID

from cognizes.engine.adapters.adk.event_template import EventTemplate

SessionKey = tuple[str, str, str]
"""App name, user id, session id."""


@dataclass(frozen=True)
class CachedEvents:
    """The events of a thread up to a sequence number: all of them, or an unbroken row of the newest.

    Events never change, so what is here stays right; the thread id tells when a session was deleted and made anew.
    """

    thread_id: UUID
    last_sequence: int
    is_complete: bool
    events: tuple[EventTemplate, ...]


class SessionCache:
    """The most recently read sessions, bounded by the number of their events."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[SessionKey, CachedEvents] = OrderedDict()
        self._events = 0

    def get(self, key: SessionKey) -> CachedEvents | None:
        """What is known of a session."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: SessionKey, entry: CachedEvents) -> None:
        """Remembers a session, and forgets those not asked for longest when there are too many events."""
        known = self._entries.get(key)
        if (
            known
            and known.thread_id == entry.thread_id
            and known.is_complete
            and known.last_sequence > entry.last_sequence
        ):
            # Somebody who asked later was answered first.
            return
        self.drop(key)
        if len(entry.events) > self._size:
            # It would push out everybody else, and then itself.
            return
        self._entries[key] = entry
        self._events += len(entry.events)
        while self._events > self._size and self._entries:
            _, oldest = self._entries.popitem(last=False)
            self._events -= len(oldest.events)

    def drop(self, key: SessionKey) -> None:
        """Forgets a session."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._events -= len(entry.events)
