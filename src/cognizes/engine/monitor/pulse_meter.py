"""The pulse: events per second and the latency of their notifications, as this process receives them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from cognizes.engine.database.notifications import parse_payload

_SECONDS = 120
_SAMPLES = 512
_SAMPLE_EVERY = 0.02


@dataclass(frozen=True)
class Latency:
    """Milliseconds from the time of an event to its notification in this process."""

    samples: int
    p50: float | None
    p99: float | None


class PulseMeter:
    """Counts every notification and parses a sample: it receives those of all processes."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.events = 0
        self._clock = clock
        self._seconds: deque[tuple[int, int]] = deque(maxlen=_SECONDS)
        self._latencies: deque[float] = deque(maxlen=_SAMPLES)
        self._next_sample = 0.0

    def count(self, payload: str) -> None:
        """Count a notification. Never raises."""
        now = self._clock()
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
        """Return the events of each of the last seconds, oldest first, without the current second."""
        counts = dict(self._seconds)
        now = int(self._clock())
        return [counts.get(second, 0) for second in range(now - seconds, now)]

    def latency(self) -> Latency:
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
