"""Leases: a process says at half their time that it still executes its runs, and stops those it has lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

from cognizes.engine.database import Database
from cognizes.engine.errors import EngineError
from cognizes.engine.pulse.fencing import RunFence
from cognizes.engine.runs.doorbell import TAKEN_AWAY, RunDoorbell, rings
from cognizes.engine.supervision import SupervisedLoop, Supervisor

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


class Lease:
    """A run that this process executes. `on_lost` is called once, should it be lost."""

    def __init__(self, fence: RunFence, on_lost: Callable[[], object], *, deadline: float) -> None:
        self.fence = fence
        self.deadline = deadline
        self.is_lost = False
        self._on_lost = on_lost

    def lose(self) -> None:
        """The run is not ours any more, whoever has it."""
        if not self.is_lost:
            self.is_lost = True
            self._on_lost()


class LeaseKeeper:
    """Keeps the leases of one process.

    A lease is lost when the database says so, at a heartbeat or as soon as an event tells; and when the database did
    not answer for as long as the lease lasts, because somebody else may have the run by then.
    """

    def __init__(
        self, database: Database, doorbell: RunDoorbell, *, seconds: float, supervisor: Supervisor | None = None
    ) -> None:
        self._database = database
        self._supervisor = supervisor or Supervisor()
        self._doorbell = doorbell
        self.duration = timedelta(seconds=seconds)
        self._held: set[Lease] = set()
        self._loop: SupervisedLoop | None = None
        self._pause = seconds / 2
        self._bell = doorbell.hang(*TAKEN_AWAY)

    async def close(self) -> None:
        """Stops; leases that are still held run out by themselves."""
        if self._loop is not None:
            await self._loop.stop()
            self._loop = None

    def hold(self, fence: RunFence, on_lost: Callable[[], object] = lambda: None) -> Lease:
        """Keeps the lease of a run that was claimed a moment ago."""
        lease = Lease(fence, on_lost, deadline=self._now() + self.duration.total_seconds())
        self._held.add(lease)
        if self._doorbell.was_taken_away(fence.run_id):
            self._bell.set()
        if self._loop is None:
            self._loop = self._supervisor.start("keep-leases", self._beat_round, longest_pause=self._retry_pause)
        return lease

    def drop(self, lease: Lease) -> None:
        """The run has ended, waits, or was given back."""
        self._held.discard(lease)

    async def beat(self) -> None:
        """Extends all leases now; those that do not hold any more are lost."""
        leases = list(self._held)
        if not leases:
            return
        sent_at = self._now()
        attempts = [lease.fence.attempt for lease in leases]
        rows = await self._database.fetch(
            "extend_leases",
            [lease.fence.thread_id for lease in leases],
            [lease.fence.run_id for lease in leases],
            attempts,
            self.duration,
        )
        extended = {(row["thread_id"], row["id"], row["attempt"]) for row in rows}
        for lease, attempt in zip(leases, attempts, strict=True):
            if (lease.fence.thread_id, lease.fence.run_id, attempt) in extended:
                lease.deadline = sent_at + self.duration.total_seconds()
            elif lease in self._held and lease.fence.attempt == attempt and not lease.fence.is_letting_go:
                self._lose(lease)

    def _lose(self, lease: Lease) -> None:
        self.drop(lease)
        logger.info("run %s is not ours any more, its attempt %s ends", lease.fence.run_id, lease.fence.attempt)
        lease.lose()

    @property
    def _retry_pause(self) -> float:
        return min(self.duration.total_seconds() / 2, _RETRY_SECONDS)

    async def _beat_round(self) -> None:
        await rings(self._bell, seconds=self._pause)
        self._pause = self._retry_pause
        try:
            await self._beat_or_lose()
            self._pause = self.duration.total_seconds() / 2
        except EngineError as error:
            logger.warning("the leases of runs could not be extended and will be: %s", error)
        finally:
            self._lose_overdue()

    async def _beat_or_lose(self) -> None:
        """A beat; a database that is silent for long does not keep leases from being lost in time."""
        beating = asyncio.ensure_future(self.beat())
        try:
            while not beating.done():
                await asyncio.wait([beating], timeout=self._retry_pause)
                self._lose_overdue()
        finally:
            beating.cancel()
        await beating

    def _lose_overdue(self) -> None:
        for lease in [lease for lease in self._held if lease.deadline < self._now()]:
            self._lose(lease)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
