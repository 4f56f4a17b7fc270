"""Checkers that compare what clients saw with what the database has. Each returns a list of problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Acknowledged:
    """An append that the engine acknowledged, with the times of the request and of the answer."""

    event_id: str
    sequence: int
    version: int
    asked_at: float
    answered_at: float


@dataclass(frozen=True)
class Stored:
    """An event as the database has it."""

    event_id: str
    sequence: int
    version: int
    changes_state: bool
    value: Any = None


def find_losses(acknowledged: Iterable[Acknowledged], stored: Sequence[Stored]) -> list[str]:
    """Acknowledged events that are missing or elsewhere, events stored twice, gaps in the order."""
    problems = []
    held = {event.event_id: event for event in stored}
    for answer in acknowledged:
        event = held.get(answer.event_id)
        if event is None:
            problems.append(f"{answer.event_id} was acknowledged and is lost")
        elif event.sequence != answer.sequence:
            problems.append(f"{answer.event_id} was acknowledged as {answer.sequence} and is {event.sequence}")
    problems += [f"{name} is stored {times} times" for name, times in _counts(stored).items() if times > 1]
    sequences = [event.sequence for event in stored]
    if sequences != list(range(1, len(stored) + 1)):
        problems.append(f"the order has gaps or repetitions: {sequences[:50]}…")
    return problems


def find_disorder(acknowledged: Sequence[Acknowledged], stored: Sequence[Stored]) -> list[str]:
    """Return violations of strict serialisability.

    An append that was answered before another was requested precedes it, and each change makes the next version.
    """
    problems = find_losses(acknowledged, stored)
    latest_asked: Acknowledged | None = None
    for answer in sorted(acknowledged, key=lambda answer: answer.sequence):
        if latest_asked is not None and latest_asked.asked_at > answer.answered_at:
            problems.append(
                f"{answer.event_id} was answered before {latest_asked.event_id} was asked, and stands behind"
            )
        if latest_asked is None or answer.asked_at > latest_asked.asked_at:
            latest_asked = answer
    version = 1
    for event in stored:
        version += event.changes_state
        if event.version != version:
            problems.append(f"{event.event_id} has version {event.version} instead of {version}")
    return problems


def find_wrong_counts(stored: Sequence[Stored]) -> list[str]:
    """Each change read the value before it and wrote the next: a lost update would write one value twice."""
    values = [event.value for event in stored if event.changes_state]
    expected = list(range(1, len(values) + 1))
    return [] if values == expected else [f"the counter went {values[:50]}…"]


def stored_events(page: Iterable[Mapping[str, Any]]) -> list[Stored]:
    """Events as the REST API tells them."""
    return [
        Stored(
            event["id"],
            event["sequence_num"],
            event["version"],
            bool((event.get("actions") or {}).get("state_delta")),
            ((event.get("actions") or {}).get("state_delta") or {}).get("count"),
        )
        for event in page
    ]


def _counts(stored: Sequence[Stored]) -> Counter[str]:
    return Counter(event.event_id for event in stored)
