"""Queues: limits that the runs of a name share, over all processes.

A run is in the queue that `enqueue` names, else in the queue of its handler's name. A queue without limits has no row
and costs a claim nothing. PostgreSQL applies the limits in the transaction of the claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.errors import InvalidInputError, NotFoundError
from cognizes.engine.models import JsonObject
from cognizes.engine.pulse.events import check_name

MAX_PRIORITY = 1000
_LARGEST = 1_000_000
_LONGEST = timedelta(days=366)


@dataclass(frozen=True)
class Queue:
    """The limits of a queue: `concurrency` running runs, `rate` claims per `per`; None: no limit."""

    name: str
    concurrency: int | None
    rate: int | None
    per: timedelta
    running: int
    pending: int

    def to_json(self) -> JsonObject:
        return {
            "name": self.name,
            "concurrency": self.concurrency,
            "rate": self.rate,
            "per_seconds": self.per.total_seconds(),
            "running": self.running,
            "pending": self.pending,
        }


# `list` is a method of the class below.
_Queues = list[Queue]


class Queues:
    """Sets, lists and removes limits."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: int | None = None,
        per: timedelta = timedelta(seconds=1),
    ) -> Queue:
        """Set the limits of a queue; they hold from the next claim on. A concurrency of 0 stops it.

        A `rate` is a bucket of that many tokens, refilled evenly over `per`; each claim takes one.
        """
        check_name("queue", name)
        if concurrency is None and rate is None:
            raise InvalidInputError("a queue needs a concurrency or a rate; delete it to remove its limits")
        if concurrency is not None and not 0 <= concurrency <= _LARGEST:
            raise InvalidInputError(f"the concurrency is {concurrency}; use a number from 0 to {_LARGEST}")
        if rate is not None and not 1 <= rate <= _LARGEST:
            raise InvalidInputError(f"the rate is {rate}; use a number from 1 to {_LARGEST}")
        if not timedelta(0) < per <= _LONGEST:
            raise InvalidInputError(f"the time of the rate is {per}; use at most {_LONGEST.days} days, and more than 0")
        await self._database.fetch("set_queue", name, concurrency, rate, per)
        return await self.get(name)

    async def get(self, name: str) -> Queue:
        rows = await self._database.fetch("list_queues", name)
        if not rows:
            raise _unknown(name)
        return _queue(rows[0])

    async def list(self) -> _Queues:
        """Return the queues with limits, by name."""
        return [_queue(row) for row in await self._database.fetch("list_queues", None)]

    async def delete(self, name: str) -> None:
        """Remove the limits of a queue; its runs stay."""
        if not await self._database.fetch("delete_queue", name):
            raise _unknown(name)


def check_priority(priority: int) -> int:
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidInputError(f"the priority is {priority}; use a number from {-MAX_PRIORITY} to {MAX_PRIORITY}")
    return priority


def _queue(row: asyncpg.Record) -> Queue:
    return Queue(row["name"], row["concurrency"], row["rate"], row["period"], row["running"], row["pending"])


def _unknown(name: str) -> NotFoundError:
    return NotFoundError(f"no limits are set for a queue {name[:80]!r}")
