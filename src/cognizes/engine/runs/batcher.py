"""RunBatcher: the ends and claims of runs of one process share commits.

Each change of a run is an event that notifies, and PostgreSQL flushes one NOTIFY at a time. With a commit for each
change, sixteen workers would wait for each other's flush.
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
from cognizes.engine.database.documents import dump_json
from cognizes.engine.database.tenancy import Apps
from cognizes.engine.errors import EngineError, IllegalTransitionError, LeaseLostError, NotFoundError
from cognizes.engine.models import Run
from cognizes.engine.pulse.group_commit import GroupCommit
from cognizes.engine.runs.run_rows import run_from_row

logger = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class RunEnd:
    """The end of a run and its event; documents are JSON text. `attempt` is None for a caller that does not execute the
    run. `tenant_key` is the apps on whose behalf the run ends; None for the engine itself."""

    thread_id: UUID
    run_id: str
    attempt: int | None
    status: str
    result: str | None
    error: str | None
    event_id: str
    content: str
    tenant_key: Apps | None

    @property
    def size(self) -> int:
        """The bytes that count towards the limit of a batch."""
        return len(self.result or "") + len(self.content)

    @property
    def order_key(self) -> Hashable:
        """The thread: its runs end in the order of the calls."""
        return self.thread_id.int

    @property
    def identity(self) -> Hashable:
        """The run: two ends of it go into two batches."""
        return self.run_id


@dataclass(slots=True, eq=False)
class RunClaim:
    """A request for up to `limit` runs. If its caller is cancelled, the claimed runs are released."""

    handlers: tuple[str, ...]
    worker_id: str
    limit: int
    claimed: list[Run] = field(default_factory=list)
    is_cancelled: bool = False
    tenant_key: None = None
    size: int = 0

    @property
    def order_key(self) -> Hashable:
        """The claim itself: claims have no order."""
        return self

    @property
    def identity(self) -> Hashable:
        return self


@dataclass(slots=True, frozen=True)
class Answer:
    """The outcome of an item and its runs: see the SQL function `end_runs`; or `claimed`."""

    outcome: str
    runs: list[Run]


Item = RunEnd | RunClaim


class RunBatcher:
    """Ends and claims runs in as few commits as possible; a lone call is sent at once.

    PostgreSQL checks the fence and the transition of each run under its lock, in the transaction that ends it. A run
    whose thread another transaction has locked leaves the batch and waits alone.
    """

    def __init__(
        self, database: Database, *, lease: timedelta, release: Callable[[Run], Coroutine[Any, Any, object]]
    ) -> None:
        self._database = database
        self._lease = lease
        self._release = release
        self._releases: set[asyncio.Task[None]] = set()
        # One batch at a time: two would wait for each other's flush, and be half as large.
        self._groups: GroupCommit[Item, Answer] = GroupCommit(self._send, blocking_sender=self._send_and_wait)

    async def end(self, item: RunEnd) -> Run:
        """End a run. `LeaseLostError` when its attempt does not hold it, `IllegalTransitionError` when it cannot end
        like this."""
        answer = await self._groups.submit(item)
        if answer.outcome == "missing":
            raise NotFoundError(f"there is no run {item.run_id} in thread {item.thread_id}")
        (run,) = answer.runs
        if answer.outcome == "fenced":
            raise LeaseLostError(
                f"run {item.run_id} is {run.status}, at attempt {run.attempt}; attempt {item.attempt} holds it no "
                "longer and cannot write"
            )
        if answer.outcome == "illegal":
            raise IllegalTransitionError(f"run {item.run_id} is {run.status}; it cannot become {item.status}")
        return run

    async def claim(self, item: RunClaim) -> list[Run]:
        """Claim runs for a worker, in the order in which they became due."""
        try:
            return (await self._groups.submit(item)).runs
        except asyncio.CancelledError:
            item.is_cancelled = True
            self._release_claimed(item)
            raise

    async def close(self) -> None:
        """Refuse new items, and wait until each submitted one has its answer."""
        await self._groups.close()
        while self._releases:
            await asyncio.wait(self._releases)

    async def _send(self, items: list[Item]) -> list[Answer | None]:
        ends = [item for item in items if isinstance(item, RunEnd)]
        groups: dict[tuple[str, ...], list[RunClaim]] = defaultdict(list)
        for item in items:
            if isinstance(item, RunClaim):
                groups[item.handlers].append(item)
        assignments = [assign_in_turn(group) for group in groups.values()]
        claims = [
            {"handlers": handlers, "workers": [claim.worker_id for claim in assigned]}
            for handlers, assigned in zip(groups, assignments, strict=True)
        ]
        rows = await self._database.fetch_batch(
            "end_and_claim_runs", *_columns(ends), dump_json(claims), self._lease, apps=items[0].tenant_key
        )
        answers = _answers(ends, rows)
        self._assign(assignments, rows)
        return [
            Answer("claimed", item.claimed) if isinstance(item, RunClaim) else answers[item.thread_id, item.run_id]
            for item in items
        ]

    async def _send_and_wait(self, items: list[Item]) -> list[Answer | None]:
        """End runs of one thread that another transaction has locked."""
        ends = [item for item in items if isinstance(item, RunEnd)]
        rows = await self._database.fetch("end_runs", *_columns(ends), apps=items[0].tenant_key)
        answers = _answers(ends, rows)
        return [answers[end.thread_id, end.run_id] for end in ends]

    def _assign(self, assignments: Sequence[Sequence[RunClaim]], rows: Sequence[asyncpg.Record]) -> None:
        """Give the claimed runs to their claims; release those whose caller was cancelled."""
        open_claims = [iter(assigned) for assigned in assignments]
        for row in rows:
            if row["outcome"] == "claimed":
                next(open_claims[row["place"]]).claimed.append(run_from_row(row))
        for claim in dict.fromkeys(chain.from_iterable(assignments)):
            if claim.is_cancelled:
                self._release_claimed(claim)

    def _release_claimed(self, claim: RunClaim) -> None:
        for run in claim.claimed:
            task = asyncio.create_task(self._release_or_log(run), name=f"release-{run.id}")
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)
        claim.claimed = []

    async def _release_or_log(self, run: Run) -> None:
        try:
            await self._release(run)
        except EngineError as error:
            logger.info("run %s was claimed by a cancelled call and not released; its lease expires: %s", run.id, error)


def assign_in_turn(claims: Sequence[RunClaim]) -> list[RunClaim]:
    """Return the claim that gets the first run, the second, …: in turn, so that a large claim leaves runs to others."""
    rounds = zip_longest(*([claim] * claim.limit for claim in claims))
    return [claim for turn in rounds for claim in turn if claim is not None]


def _columns(ends: Sequence[RunEnd]) -> tuple[list[Any], ...]:
    return (
        [end.thread_id for end in ends],
        [end.run_id for end in ends],
        [end.attempt for end in ends],
        [end.status for end in ends],
        [end.result for end in ends],
        [end.error for end in ends],
        [end.event_id for end in ends],
        [end.content for end in ends],
    )


def _answers(ends: Sequence[RunEnd], rows: Sequence[asyncpg.Record]) -> dict[tuple[UUID, str], Answer | None]:
    """Return the answers by run; None for a run that another transaction has locked."""
    answers: dict[tuple[UUID, str], Answer | None] = {}
    for row in rows:
        if row["outcome"] != "claimed":
            end = ends[row["place"] - 1]
            runs = [run_from_row(row)] if row["id"] is not None else []
            answers[end.thread_id, end.run_id] = None if row["outcome"] == "busy" else Answer(row["outcome"], runs)
    return answers
