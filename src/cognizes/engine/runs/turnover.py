"""Runs that end and runs that are claimed, on their way to the database: those of one process share a commit.

Every change of a run is an event that notifies, and PostgreSQL lets one transaction at a time flush a NOTIFY. With a
commit for each change sixteen workers would wait for each other's flush.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain, zip_longest
from typing import Any
from uuid import UUID

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.connection_pool import ReusedConnection
from cognizes.engine.database.documents import dump_json
from cognizes.engine.errors import EngineError, LeaseLostError, NotFoundError
from cognizes.engine.models import Run
from cognizes.engine.pulse.group_commit import GroupCommit
from cognizes.engine.pulse.runs import run_from_row

logger = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class Ending:
    """A run that its attempt ends, and the event that says so; documents are JSON text."""

    thread_id: UUID
    run_id: str
    attempt: int
    status: str
    result: str | None
    error: str | None
    event_id: str
    event_type: str
    content: str
    tenant_key: None = None

    @property
    def size(self) -> int:
        """Batches are bounded by the sum of it."""
        return len(self.result or "") + len(self.content)

    @property
    def order_key(self) -> Hashable:
        """The thread: its runs end in the order in which they were ended."""
        return self.thread_id.int

    @property
    def identity(self) -> Hashable:
        """Ending a run twice is two batches."""
        return self.run_id


@dataclass(slots=True, eq=False)
class Claiming:
    """Somebody who looks for up to `limit` runs. Should he leave before he has them, they are given back."""

    handlers: tuple[str, ...]
    worker_id: str
    limit: int
    claimed: list[Run] = field(default_factory=list)
    is_left: bool = False
    tenant_key: None = None
    size: int = 0

    @property
    def order_key(self) -> Hashable:
        """Nobody has to wait for another."""
        return self

    @property
    def identity(self) -> Hashable:
        """One of a kind."""
        return self


@dataclass(slots=True, frozen=True)
class Answer:
    """What became of an item: the run that was `ended`, or why not; or the runs that were `claimed`."""

    outcome: str
    runs: list[Run]


Item = Ending | Claiming


class Turnover:
    """Ends and claims runs in as few commits as there can be; a caller alone is sent at once.

    A run is ended by the attempt that holds it or not at all: that is checked under its lock, in the transaction that
    ends it. A batch waits for nobody: a run whose thread somebody else holds leaves it and waits in a lane of its own.
    """

    def __init__(
        self, database: Database, *, lease: timedelta, give_back: Callable[[Run], Coroutine[Any, Any, Any]]
    ) -> None:
        # Batches hold runs of several apps: they are the engine's work, whoever happened to begin them.
        self._database = database.without_tenants()
        self._lease = lease
        self._give_back = give_back
        self._returns: set[asyncio.Task[None]] = set()
        self._connection = ReusedConnection(self._database)
        # One batch at a time: two would only wait for each other's flush, and be half as large.
        self._groups: GroupCommit[Item, Answer] = GroupCommit(self._send, blocking_sender=self._wait)

    async def end(self, item: Ending) -> Run:
        """Ends a run. `LeaseLostError` when its attempt does not hold it any more."""
        answer = await self._groups.submit(item)
        if answer.outcome == "missing":
            raise NotFoundError(f"there is no run {item.run_id} in thread {item.thread_id}")
        (run,) = answer.runs
        if answer.outcome == "fenced":
            raise LeaseLostError(
                f"run {item.run_id} is {run.status}, at attempt {run.attempt}; attempt {item.attempt} holds it no "
                "longer and cannot write"
            )
        return run

    async def claim(self, item: Claiming) -> list[Run]:
        """Runs for a worker, those first that were due first; none when there are none."""
        try:
            return (await self._groups.submit(item)).runs
        except asyncio.CancelledError:
            item.is_left = True
            self._return(item)
            raise

    async def close(self) -> None:
        """Refuses what comes from now on, and waits until everything that was submitted has been answered."""
        await self._groups.close()
        while self._returns:
            await asyncio.wait(self._returns)
        await self._connection.close()

    async def _send(self, items: list[Item]) -> list[Answer | None]:
        endings = [item for item in items if isinstance(item, Ending)]
        groups: dict[tuple[str, ...], list[Claiming]] = defaultdict(list)
        for item in items:
            if isinstance(item, Claiming):
                groups[item.handlers].append(item)
        seats = [_seats(group) for group in groups.values()]
        claims = [
            {"handlers": handlers, "workers": [item.worker_id for item in seated]}
            for handlers, seated in zip(groups, seats, strict=True)
        ]
        rows = await self._connection.fetch("turn_over_runs", *_columns(endings), dump_json(claims), self._lease)
        answers = _answers(endings, rows)
        self._seat(seats, rows)
        return [
            Answer("claimed", item.claimed) if isinstance(item, Claiming) else answers[item.thread_id, item.run_id]
            for item in items
        ]

    async def _wait(self, items: list[Item]) -> list[Answer | None]:
        """Ends runs of one thread that somebody else holds."""
        endings = [item for item in items if isinstance(item, Ending)]
        answers = _answers(endings, await self._database.fetch("end_runs", *_columns(endings)))
        return [answers[item.thread_id, item.run_id] for item in endings]

    def _seat(self, seats: Sequence[Sequence[Claiming]], rows: Sequence[asyncpg.Record]) -> None:
        """Hands claimed runs to those who asked; what nobody waits for any more is given back."""
        waiting = [iter(seated) for seated in seats]
        for row in rows:
            if row["outcome"] == "claimed":
                next(waiting[row["place"]]).claimed.append(run_from_row(row))
        for item in dict.fromkeys(chain.from_iterable(seats)):
            if item.is_left:
                self._return(item)

    def _return(self, item: Claiming) -> None:
        for run in item.claimed:
            task = asyncio.create_task(self._give_back_one(run), name=f"give-back-{run.id}")
            self._returns.add(task)
            task.add_done_callback(self._returns.discard)
        item.claimed = []

    async def _give_back_one(self, run: Run) -> None:
        try:
            await self._give_back(run)
        except EngineError as error:
            logger.info("run %s was claimed for nobody, its lease runs out: %s", run.id, error)


def _seats(group: Sequence[Claiming]) -> list[Claiming]:
    """Who gets the first run, the second, …: in turns, so that a claim for many leaves something to the others."""
    rounds = zip_longest(*([item] * item.limit for item in group))
    return [item for turn in rounds for item in turn if item is not None]


def _columns(endings: Sequence[Ending]) -> tuple[list[Any], ...]:
    return (
        [item.thread_id for item in endings],
        [item.run_id for item in endings],
        [item.attempt for item in endings],
        [item.status for item in endings],
        [item.result for item in endings],
        [item.error for item in endings],
        [item.event_id for item in endings],
        [item.event_type for item in endings],
        [item.content for item in endings],
    )


def _answers(endings: Sequence[Ending], rows: Sequence[asyncpg.Record]) -> dict[tuple[UUID, str], Answer | None]:
    """By run; None for one that is to wait in a lane."""
    answers: dict[tuple[UUID, str], Answer | None] = {}
    for row in rows:
        if row["outcome"] != "claimed":
            item = endings[row["place"] - 1]
            runs = [run_from_row(row)] if row["id"] is not None else []
            answers[item.thread_id, item.run_id] = None if row["outcome"] == "busy" else Answer(row["outcome"], runs)
    return answers
