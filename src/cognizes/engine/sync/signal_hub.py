"""`engine.signals`: what changes in contexts, for readers of any speed.

A reader has no queue that grows: of a message that grew a hundred times since it last looked, it is told the newest
number, once. Signals that cannot be merged are kept up to a bound; beyond it the oldest go, and the heartbeat's
`sequence_num` tells the reader that it missed something.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterable
from types import TracebackType
from typing import Self
from uuid import UUID

from cognizes.engine.database.tenancy import continue_in_task
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.sync.context_feed import ContextFeed, Sources
from cognizes.engine.sync.signals import Signal, SignalType

logger = logging.getLogger(__name__)

_WAITING = 1000


class Signals:
    """Follows contexts."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def follow(self, thread_ids: Iterable[str | UUID] = (), *, stays_open: bool = False) -> SignalSubscription:
        """A subscription to some contexts, to be entered with `async with` and iterated over."""
        return SignalSubscription(
            self._sources, [thread_uuid(thread_id) for thread_id in thread_ids], stays_open=stays_open
        )


class SignalSubscription:
    """Signals of some contexts, which may change while it is open. It follows them from when it is entered on.

    Unless it stays open, it ends when none is left that exists.
    """

    def __init__(self, sources: Sources, thread_ids: list[UUID], *, stays_open: bool) -> None:
        self._sources = sources
        self._first = thread_ids
        self._stays_open = stays_open
        self._feeds: dict[UUID, ContextFeed] = {}
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._waiting: dict[Hashable, Signal] = {}
        self._number = 0
        self._bell = asyncio.Event()
        self._is_running = False
        self._is_closed = False

    async def __aenter__(self) -> Self:
        for thread_id in self._first:
            await self.add(thread_id)
        self._is_running = True
        for thread_id in self._feeds:
            self._start(thread_id)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def positions(self) -> dict[UUID, int]:
        """Up to which event each context has been told."""
        return {thread_id: feed.position for thread_id, feed in self._feeds.items()}

    @property
    def thread_ids(self) -> list[UUID]:
        """The contexts it follows."""
        return list(self._feeds)

    @property
    def waiting(self) -> int:
        """How many signals wait to be taken."""
        return len(self._waiting)

    async def add(self, thread_id: str | UUID, *, after: int | None = None) -> None:
        """Follows a context too, from an event on or from now; `NotFoundError` when there is none."""
        thread = thread_uuid(thread_id)
        if thread in self._feeds:
            return
        feed = ContextFeed(self._sources, thread, self._put)
        await feed.open(after)
        if self._is_closed or thread in self._feeds:
            return
        self._feeds[thread] = feed
        if self._is_running:
            self._start(thread)

    async def remove(self, thread_id: str | UUID) -> None:
        """Follows a context no longer."""
        thread = thread_uuid(thread_id)
        self._feeds.pop(thread, None)
        if (task := self._tasks.pop(thread, None)) is not None:
            task.cancel()
            await asyncio.wait([task])
        name = str(thread)
        self._waiting = {key: signal for key, signal in self._waiting.items() if signal.context_id != name}

    async def close(self) -> None:
        """Ends it."""
        self._is_closed = True
        for thread_id in list(self._tasks):
            await self.remove(thread_id)
        self._bell.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Signal:
        while not self._waiting:
            await self._wait()
        return self._waiting.pop(next(iter(self._waiting)))

    async def take(self) -> list[Signal]:
        """All signals there are; waits for the first. Empty when the subscription has ended."""
        try:
            while not self._waiting:
                await self._wait()
        except StopAsyncIteration:
            return []
        taken, self._waiting = list(self._waiting.values()), {}
        return taken

    def heartbeats(self) -> list[Signal]:
        """One for each context, with how far it has come."""
        return [feed.heartbeat() for feed in self._feeds.values()]

    async def _wait(self) -> None:
        if self._is_closed or not (self._feeds or self._stays_open):
            raise StopAsyncIteration
        self._bell.clear()
        await self._bell.wait()

    def _put(self, signal: Signal) -> None:
        message = (signal.context_id, signal.fields.get("message_id"))
        if signal.type in (SignalType.CONTENT_DELTA, SignalType.MESSAGE_COMPLETED):
            # Taken out and put in anew, so that the positions of waiting signals never go back.
            self._waiting.pop(message, None)
        if signal.type is SignalType.CONTENT_DELTA:
            self._waiting[message] = signal
        else:
            self._number += 1
            self._waiting[self._number] = signal
        while len(self._waiting) > _WAITING:
            del self._waiting[next(iter(self._waiting))]
        self._bell.set()

    def _start(self, thread_id: UUID) -> None:
        feed = self._feeds[thread_id]
        task = continue_in_task(feed.run(), name="signals")
        self._tasks[thread_id] = task
        task.add_done_callback(lambda done: self._end(thread_id, feed, done))

    def _end(self, thread_id: UUID, feed: ContextFeed, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the signals of a context failed", exc_info=error)
        if self._feeds.get(thread_id) is feed:
            del self._feeds[thread_id]
            self._tasks.pop(thread_id, None)
        self._bell.set()
