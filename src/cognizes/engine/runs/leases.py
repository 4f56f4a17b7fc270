"""Leases of runs, notifications about runs, and the sweep that repairs what lost notifications or dead processes leave.

A process extends the leases of the runs that it executes at half their time, and stops the runs that it lost. A
notification is a hint to read the database; it decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from cognizes.engine.concurrency import Sweeper, WakeUp
from cognizes.engine.database import Database
from cognizes.engine.database.notifications import DEFAULT_CHANNEL, PgNotifyListener, parse_payload
from cognizes.engine.errors import EngineError
from cognizes.engine.models import RunStatus, new_id
from cognizes.engine.pulse.sessions import RunFence
from cognizes.engine.supervision import SupervisedLoop, Supervisor
from cognizes.engine.telemetry import TELEMETRY

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_REMEMBERED = 1000
_CLAIMABLE = frozenset({"run_created", "run_signalled", "run_released", "run_retried"})
_TAKEN_AWAY = frozenset({"run_cancelled", "run_released", "run_failed"})
_ID_LENGTH = 200
"""The trigger cuts longer ids in its payload."""
_SWEEP_SECONDS = 1.0
_LONGEST_GAP = timedelta(seconds=2.5)
"""After a longer time without a sweep in any process PostgreSQL was away: leases expired because of that."""
RunKey = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class RunNotification:
    """An event that was committed: its thread, its run, its type and its author. Long ids are cut."""

    thread_id: str
    run_id: str | None
    event_type: str
    author: str

    @property
    def key(self) -> RunKey:
        """The run that the event belongs to, comparable with `run_key`."""
        return self.thread_id, self.run_id

    @property
    def makes_claimable(self) -> bool:
        return self.event_type in _CLAIMABLE

    @property
    def takes_away(self) -> bool:
        return self.event_type in _TAKEN_AWAY

    @property
    def is_user_message(self) -> bool:
        return self.author == "user" or self.event_type == "user_message"


def run_key(thread_id: UUID, run_id: str) -> RunKey:
    return str(thread_id), run_id[:_ID_LENGTH]


Filter = Callable[[RunNotification], bool]


class RunNotifications:
    """Wakes subscribers when an event is committed that concerns them, in any process; all of them after a reconnection
    of the listener. Without subscribers a notification costs one function call."""

    def __init__(self, listener: PgNotifyListener) -> None:
        self._subscribers: dict[str | None, dict[WakeUp, Filter]] = {}
        listener.tap(DEFAULT_CHANNEL, self._receive)
        listener.on_reconnect(self._wake_all)

    @contextmanager
    def subscribe(self, concerns: Filter, *, thread_id: UUID | None = None) -> Iterator[WakeUp]:
        """Yield a wake-up for the events that `concerns` accepts, of one thread or of all."""
        key = str(thread_id) if thread_id is not None else None
        wake_up = WakeUp()
        self._subscribers.setdefault(key, {})[wake_up] = concerns
        try:
            yield wake_up
        finally:
            del self._subscribers[key][wake_up]
            if not self._subscribers[key]:
                del self._subscribers[key]

    def _receive(self, text: str) -> None:
        if not self._subscribers:
            return
        payload = parse_payload(text)
        thread_id, run_id = str(payload.get("thread_id")), payload.get("run_id")
        notification = RunNotification(
            thread_id, run_id, str(payload.get("event_type")), author=str(payload.get("author"))
        )
        for key in (None, thread_id):
            for wake_up, concerns in self._subscribers.get(key, {}).items():
                if concerns(notification):
                    wake_up.notify()

    async def _wake_all(self) -> None:
        for subscribers in self._subscribers.values():
            for wake_up in subscribers:
                wake_up.notify()


class RunSweep:
    """Releases runs whose lease expired and ends waits that are due, once per process and interval.

    It starts when a worker, a host or a waiting run of this process needs it. Where none does, the maintenance of the
    database does the same at longer intervals.
    """

    def __init__(self, database: Database, notifications: RunNotifications, sweeper: Sweeper) -> None:
        self._database = database
        self._notifications = notifications
        self._sweeper = sweeper
        self._loop: SupervisedLoop | None = None
        self._due = WakeUp()
        self._waiting: dict[WakeUp, tuple[UUID, str]] = {}
        self._started_with: list[Callable[[], None]] = []

    def start_with(self, start: Callable[[], None]) -> None:
        """Call `start` when the sweep starts: another job of processes that execute runs."""
        self._started_with.append(start)

    def start(self) -> None:
        """Start the periodic sweep, unless it runs."""
        if self._loop is None:
            for start in self._started_with:
                start()
            self._loop = self._sweeper.start("sweep-runs", self._round, seconds=_SWEEP_SECONDS, wake_up=self._due)

    async def close(self) -> None:
        if self._loop is not None:
            await self._loop.stop()
            self._loop = None

    @contextmanager
    def on_user_messages(self) -> Iterator[None]:
        """Sweep at once after a user's message in any thread: a run that waits for it is then claimable."""

        def concerns(notification: RunNotification) -> bool:
            if notification.is_user_message:
                self.request()
            return False

        with self._notifications.subscribe(concerns):
            yield

    def request(self) -> None:
        """Start the next round now: a wait for a message may be over."""
        self._due.notify()

    async def sweep(self, *, longest_gap: timedelta | None = None) -> int:
        """Sweep once; return how many runs changed.

        After a longer gap between two sweeps than `longest_gap`, leases that expired in it are kept for a while.
        """
        changed: int = await self._database.fetch_value("sweep_runs", longest_gap)
        return changed

    @contextmanager
    def waiting(self, thread_id: UUID, run_id: str, *, for_message: bool) -> Iterator[WakeUp]:
        """Yield a wake-up for a run of this process that waits: notified by its own events and by the sweep."""

        key = run_key(thread_id, run_id)

        def concerns(notification: RunNotification) -> bool:
            if for_message and notification.is_user_message:
                self.request()
            return notification.key == key

        with self._notifications.subscribe(concerns, thread_id=thread_id) as wake_up:
            self._waiting[wake_up] = thread_id, run_id
            self.start()
            try:
                yield wake_up
            finally:
                del self._waiting[wake_up]

    async def _round(self) -> None:
        await self.sweep(longest_gap=_LONGEST_GAP)
        waiting = dict(self._waiting)
        if not waiting:
            return
        thread_ids, run_ids = zip(*waiting.values(), strict=True)
        rows = await self._database.fetch("read_run_statuses", thread_ids, run_ids)
        still_waiting = {(row["thread_id"], row["id"]) for row in rows if row["status"] == RunStatus.WAITING}
        for wake_up, run in waiting.items():
            if run not in still_waiting:
                wake_up.notify()


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
        if (counted := TELEMETRY.instruments) is not None:
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
