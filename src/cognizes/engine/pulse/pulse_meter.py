"""How fast the heart beats: events a second and how late notifications are, as this process hears them."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime

from cognizes.engine.pulse.pg_notify_listener import parse_payload

_SECONDS = 120
_SAMPLES = 512
_SAMPLE_EVERY = 0.02


@dataclass(frozen=True)
class Latency:
    """Milliseconds from an event's own time to its notification here."""

    samples: int
    p50: float | None
    p99: float | None


class PulseMeter:
    """Counts every notification, and looks into one in a while: every append of every process passes by here."""

    def __init__(self) -> None:
        self.events = 0
        self._seconds: deque[tuple[int, int]] = deque(maxlen=_SECONDS)
        self._latencies: deque[float] = deque(maxlen=_SAMPLES)
        self._next_sample = 0.0

    def heard(self, payload: str) -> None:
        """A notification came. Never raises."""
        now = time.monotonic()
        self.events += 1
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1] = (second, self._seconds[-1][1] + 1)
        else:
            self._seconds.append((second, 1))
        if now >= self._next_sample:
            self._next_sample = now + _SAMPLE_EVERY
            self._sample(payload)

    def per_second(self, seconds: int = 60) -> list[int]:
        """Events in each of the last seconds, oldest first; the second that is going on is left out."""
        counts = dict(self._seconds)
        now = int(time.monotonic())
        return [counts.get(second, 0) for second in range(now - seconds, now)]

    def latency(self) -> Latency:
        """Of the newest notifications that were looked into."""
        ordered = sorted(self._latencies)
        if not ordered:
            return Latency(0, None, None)
        return Latency(
            len(ordered), ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
        )

    def _sample(self, payload: str) -> None:
        created_at = parse_payload(payload).get("created_at")
        if not isinstance(created_at, str):
            return
        try:
            moment = datetime.fromisoformat(created_at)
            age = (datetime.now(UTC) - moment).total_seconds()
        except (ValueError, TypeError):
            return
        self._latencies.append(round(max(age, 0.0) * 1000, 2))
