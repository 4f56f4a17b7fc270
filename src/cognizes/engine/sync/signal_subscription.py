"""`engine.signals`: subscriptions to the signals of contexts.

A subscription coalesces: of a message that grew a hundred times between two reads, it returns the newest sequence once.
Signals that cannot be merged are kept up to a limit. Beyond it the oldest are dropped, and the `sequence_num` of the
heartbeat shows the reader that it missed signals.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterable
from types import TracebackType
from typing import Self
from uuid import UUID

from cognizes.engine.concurrency import WakeUp, retry_while_unavailable
from cognizes.engine.database import Database
from cognizes.engine.errors import DatabaseUnavailableError, FeedRewoundError, NotFoundError, PoolTimeoutError
from cognizes.engine.feed import Feed
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.sync.contexts import Contexts
from cognizes.engine.sync.signals import ContextSignals, Signal, SignalType

logger = logging.getLogger(__name__)

_QUEUED = 1000


class Signals:
    def __init__(self, database: Database, feed: Feed, contexts: Contexts) -> None:
        self._database = database
        self._feed = feed
        self._contexts = contexts

    def follow(self, thread_ids: Iterable[str | UUID] = (), *, stays_open: bool = False) -> SignalSubscription:
        """Return a subscription to some contexts, to be entered with `async with` and iterated over."""
        return SignalSubscription(
            self._database,
            self._feed,
            self._contexts,
            [thread_uuid(thread_id) for thread_id in thread_ids],
            stays_open=stays_open,
        )


class SignalSubscription:
    """The signals of some contexts, which may change while it is open.

    Unless it stays open, it ends when all its contexts are deleted.
    """

    def __init__(
        self, database: Database, feed: Feed, contexts: Contexts, thread_ids: list[UUID], *, stays_open: bool
    ) -> None:
        self._database = database
        self._feed = feed
        self._contexts = contexts
        self._first = thread_ids
        self._stays_open = stays_open
        self._followed: dict[UUID, ContextSignals] = {}
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._queue: dict[Hashable, Signal] = {}
        self._number = 0
        self._changed = WakeUp()
        self._is_running = False
        self._is_closed = False

    async def __aenter__(self) -> Self:
        for thread_id in self._first:
            await self.add(thread_id)
        self._is_running = True
        for thread_id in self._followed:
            self._start(thread_id)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def positions(self) -> dict[UUID, int]:
        """The last event of each context whose signals are in the queue or were taken."""
        return {thread_id: context.position for thread_id, context in self._followed.items()}

    @property
    def thread_ids(self) -> list[UUID]:
        return list(self._followed)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def add(self, thread_id: str | UUID, *, after: int | None = None) -> None:
        """Follow a context too, after an event or from now on; `NotFoundError` if there is none."""
        thread = thread_uuid(thread_id)
        if thread in self._followed:
            return
        context = ContextSignals(self._database, self._feed, self._contexts, thread, self._put)
        await context.open(after)
        if self._is_closed or thread in self._followed:
            return
        self._followed[thread] = context
        if self._is_running:
            self._start(thread)

    async def remove(self, thread_id: str | UUID) -> None:
        thread = thread_uuid(thread_id)
        self._followed.pop(thread, None)
        if (task := self._tasks.pop(thread, None)) is not None:
            task.cancel()
            await asyncio.wait([task])
        self._drop_queued(thread)

    async def close(self) -> None:
        self._is_closed = True
        for thread_id in list(self._tasks):
            await self.remove(thread_id)
        self._changed.notify()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Signal:
        while not self._queue:
            await self._wait()
        return self._queue.pop(next(iter(self._queue)))

    async def take(self) -> list[Signal]:
        """Wait for the first signal and return all in the queue; return none if the subscription has ended."""
        try:
            while not self._queue:
                await self._wait()
        except StopAsyncIteration:
            return []
        taken, self._queue = list(self._queue.values()), {}
        return taken

    def heartbeats(self) -> list[Signal]:
        """Return one heartbeat for each context, with its newest sequence."""
        return [context.heartbeat() for context in self._followed.values()]

    async def _wait(self) -> None:
        if self._is_closed or not (self._followed or self._stays_open):
            raise StopAsyncIteration
        await self._changed.wait(self._changed.version)

    def _put(self, signal: Signal) -> None:
        message = (signal.context_id, signal.fields.get("message_id"))
        if signal.type in (SignalType.CONTENT_DELTA, SignalType.MESSAGE_COMPLETED):
            # Moved to the end, so that positions in the queue never decrease.
            self._queue.pop(message, None)
        if signal.type is SignalType.CONTENT_DELTA:
            self._queue[message] = signal
        else:
            self._number += 1
            self._queue[self._number] = signal
        while len(self._queue) > _QUEUED:
            del self._queue[next(iter(self._queue))]
        self._changed.notify()

    def _drop_queued(self, thread: UUID) -> None:
        name = str(thread)
        self._queue = {key: signal for key, signal in self._queue.items() if signal.context_id != name}

    def _start(self, thread_id: UUID) -> None:
        task = asyncio.create_task(self._follow(thread_id), name="signals")
        self._tasks[thread_id] = task
        task.add_done_callback(lambda done: self._end(thread_id, done))

    async def _follow(self, thread_id: UUID) -> None:
        """Follow a context until it is deleted. If the database lost events, begin again and tell the reader so."""
        while True:
            try:
                await self._followed[thread_id].run()
                return
            except FeedRewoundError as error:
                logger.warning("%s", error)
            self._drop_queued(thread_id)
            context = ContextSignals(self._database, self._feed, self._contexts, thread_id, self._put, is_restart=True)
            try:
                await retry_while_unavailable(
                    lambda: context.open(None),  # noqa: B023 - called in this round only
                    errors=(DatabaseUnavailableError, PoolTimeoutError),
                )
            except NotFoundError:
                return
            self._followed[thread_id] = context

    def _end(self, thread_id: UUID, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the signals of context %s failed", thread_id, exc_info=error)
        if self._tasks.get(thread_id) is task:
            del self._followed[thread_id], self._tasks[thread_id]
        self._changed.notify()
