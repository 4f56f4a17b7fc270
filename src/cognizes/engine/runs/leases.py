"""Leases: a process extends the leases of the runs that it executes at half their time, and stops the runs it lost."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta

from cognizes.engine.concurrency import WakeUp
from cognizes.engine.database import Database
from cognizes.engine.errors import EngineError
from cognizes.engine.models import new_id
from cognizes.engine.pulse.sessions import RunFence
from cognizes.engine.runs.notifications import RunKey, RunNotification, RunNotifications, run_key
from cognizes.engine.supervision import SupervisedLoop, Supervisor
from cognizes.engine.telemetry import instruments

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_REMEMBERED = 1000


def new_worker_id() -> str:
    """Return a unique name for a process that executes runs: host, process id and a random part."""
    return f"{socket.gethostname()}/{os.getpid()}/{new_id().hex[-8:]}"


class Lease:
    """The lease of a run that this process executes. `on_lost` is called once if the lease is lost.

    `is_overdue`: it is lost because PostgreSQL did not answer for as long as it lasts; the run may still be this one's.
    """

    def __init__(self, fence: RunFence, on_lost: Callable[[], object], *, deadline: float) -> None:
        self.fence = fence
        self.deadline = deadline
        self.is_lost = False
        self.is_overdue = False
        self._on_lost = on_lost

    def lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._on_lost()


class LeaseKeeper:
    """Extends the leases of one process.

    A lease is lost when PostgreSQL says so, at an extension or after a notification that the run was taken away. It is
    also lost when PostgreSQL does not answer for as long as the lease lasts: another process may hold the run by then.
    """

    def __init__(
        self, database: Database, notifications: RunNotifications, *, seconds: float, supervisor: Supervisor
    ) -> None:
        self.duration = timedelta(seconds=seconds)
        self._database = database
        self._notifications = notifications
        self._supervisor = supervisor
        self._held: set[Lease] = set()
        self._taken_away: deque[RunKey] = deque(maxlen=_REMEMBERED)
        self._loop: SupervisedLoop | None = None
        self._subscription = ExitStack()
        self._wake_up = WakeUp()
        self._seen = 0
        self._pause = seconds / 2

    @property
    def held(self) -> list[RunFence]:
        return [lease.fence for lease in self._held]

    def start(self) -> None:
        """Receive notifications and extend leases, from before the first claim on."""
        if self._loop is None:
            self._wake_up = self._subscription.enter_context(self._notifications.subscribe(self._concerns))
            self._seen = self._wake_up.version
            self._loop = self._supervisor.start("extend-run-leases", self._round, longest_pause=self._retry_pause)

    async def close(self) -> None:
        """Stop; leases that are still held expire."""
        self._subscription.close()
        if self._loop is not None:
            await self._loop.stop()
            self._loop = None

    def hold(self, fence: RunFence, on_lost: Callable[[], object] = lambda: None) -> Lease:
        """Extend the lease of a run that was claimed a moment ago, until `drop`."""
        self.start()
        lease = Lease(fence, on_lost, deadline=self._now() + self.duration.total_seconds())
        self._held.add(lease)
        # The notification may arrive before the answer to the claim.
        if run_key(fence.thread_id, fence.run_id) in self._taken_away:
            self._wake_up.notify()
        return lease

    def drop(self, lease: Lease) -> None:
        """Stop extending the lease of a run that has ended, waits, or was released."""
        self._held.discard(lease)

    async def extend(self) -> None:
        """Extend all leases now; those that PostgreSQL does not extend are lost."""
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
            elif lease not in self._held or lease.fence.attempt != attempt:
                continue
            elif lease.fence.is_releasing:
                # The code of the run may hold it again in a moment, or may have ended it.
                self._pause = self._retry_pause
            else:
                self._lose(lease)

    def _concerns(self, notification: RunNotification) -> bool:
        if not notification.takes_away:
            return False
        self._taken_away.append(notification.key)
        return any(run_key(fence.thread_id, fence.run_id) == notification.key for fence in self.held)

    def _lose(self, lease: Lease) -> None:
        self.drop(lease)
        if (counted := instruments()) is not None:
            counted.leases_lost.inc()
        logger.info("the lease of run %s is lost; its attempt %s stops", lease.fence.run_id, lease.fence.attempt)
        lease.lose()

    @property
    def _retry_pause(self) -> float:
        return min(self.duration.total_seconds() / 2, _RETRY_SECONDS)

    async def _round(self) -> None:
        await self._wake_up.wait(self._seen, timeout=self._pause)
        self._seen = self._wake_up.version
        self._pause = self.duration.total_seconds() / 2
        try:
            await self._extend_or_lose()
        except EngineError as error:
            self._pause = self._retry_pause
            logger.warning("the leases of %s runs could not be extended; retrying: %s", len(self._held), error)
        except BaseException:
            self._pause = self._retry_pause
            raise
        finally:
            self._lose_overdue()

    async def _extend_or_lose(self) -> None:
        """Extend the leases; while PostgreSQL does not answer, lose those whose time is over."""
        extending = asyncio.ensure_future(self.extend())
        try:
            while not extending.done():
                await asyncio.wait([extending], timeout=self._retry_pause)
                self._lose_overdue()
        finally:
            extending.cancel()
        await extending

    def _lose_overdue(self) -> None:
        for lease in [lease for lease in self._held if lease.deadline < self._now()]:
            lease.is_overdue = True
            self._lose(lease)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
