"""Notifications about runs, and the sweep that repairs what a lost notification or a dead process leaves behind.

A notification is a hint to read the database, never the truth itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from cognizes.engine.concurrency import Sweeper, WakeUp
from cognizes.engine.database import Database
from cognizes.engine.database.notifications import DEFAULT_CHANNEL, PgNotifyListener, parse_payload
from cognizes.engine.models import RunStatus
from cognizes.engine.supervision import SupervisedLoop

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
