"""Fifty writers on one thread, through two engines: one history, in one order, no change lost."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from cognizes.engine import ConcurrencyConflictError, Engine, Event, Session
from tests.engine_parts import database_of
from tests.faults.histories import Acknowledged, Stored, find_disorder, find_wrong_counts

WRITERS = 50


@pytest.fixture
async def engines(database_url: str) -> AsyncIterator[list[Engine]]:
    async with Engine.open(database_url) as first, Engine.open(database_url) as second:
        yield [first, second]


class Record:
    """The answers that the writers received."""

    def __init__(self, operations: int) -> None:
        self.numbers = iter(range(operations))
        self.answers: list[Acknowledged] = []
        self.winners = 0
        self.losers = 0


async def _write(engine: Engine, session: Session, record: Record) -> None:
    for number in record.numbers:
        asked_at = time.perf_counter()
        try:
            if number % 4:
                event = await _count(engine, session, number)
                record.winners += 1
            else:
                event = _event(session, number, "note")
                await engine.sessions.append_to_thread(UUID(session.thread_id), event)
        except ConcurrencyConflictError:
            record.losers += 1
            continue
        record.answers.append(
            Acknowledged(event.id, event.sequence_num or 0, event.version or 0, asked_at, time.perf_counter())
        )


async def _count(engine: Engine, session: Session, number: int) -> Event:
    """Read the state and write the next one; another writer may be faster."""
    fresh = await engine.sessions.get("a", "u", session.id)
    assert fresh is not None
    event = _event(session, number, "state_update", state_delta={"count": fresh.state.get("count", 0) + 1})
    await engine.sessions.append_event(fresh, event)
    return event


def _event(session: Session, number: int, kind: str, **actions: object) -> Event:
    return Event(f"e{number}", session.thread_id, "", "w", kind, actions=dict(actions))


@pytest.mark.parametrize(
    "operations", [2000, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(7200)])]
)
async def test_the_history_of_a_thread_is_strictly_serialisable(engines: list[Engine], operations: int) -> None:
    session = await engines[0].sessions.create("a", "u", session_id="s")
    record = Record(operations)
    await asyncio.gather(
        *(_write(engine, session, record) for engine, _ in zip(itertools.cycle(engines), range(WRITERS)))
    )
    final = await engines[0].sessions.get("a", "u", "s")
    assert final is not None
    assert record.winners > 0
    assert final.version == 1 + record.winners
    assert final.state["count"] == record.winners
    rows = await database_of(engines[0]).pool.fetch(
        "SELECT id, sequence_num, version, changes_state, actions::jsonb #>> '{state_delta,count}' AS value"
        " FROM events WHERE thread_id = $1::text::uuid ORDER BY sequence_num",
        session.thread_id,
    )
    stored = [
        Stored(row["id"], row["sequence_num"], row["version"], row["changes_state"], row["value"] and int(row["value"]))
        for row in rows
    ]
    assert len(stored) == len(record.answers) == operations - record.losers
    assert find_disorder(record.answers, stored) == []
    assert find_wrong_counts(stored) == []
