"""Tells the readers of this process that a stream moved, whichever process writes it.

A doorbell says how far a stream has come and carries no text. It is never trusted: the threads that somebody watches
are looked at from time to time, so that a lost one costs latency only. That also finds streams that began and ended
between two looks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self
from uuid import UUID

from cognizes.engine.errors import EngineError
from cognizes.engine.streams.delta_stream import THOUGHT, Movement, StreamAddress, StreamHead, StreamKey, StreamStatus
from cognizes.engine.supervision import SupervisedLoop, Supervisor

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 1.5
_MARGIN_SECONDS = 40.0
"""A stream's end is visible with its commit, which may come later than the moment that its row names."""

_ENDS_REMEMBERED = 4096
_LONGEST_PAUSE = 0.5

Look = Callable[[list[UUID], float], Awaitable[list[StreamHead]]]


class StreamWatch:
    """The streams of some threads: first those that are open, then whatever moves. Latest wins: of a message that moved
    five times since it was last asked for, the newest head is told, once. The end of a message is always told."""

    def __init__(self, hub: StreamHub, thread_ids: Iterable[UUID], *, with_thoughts: bool = False) -> None:
        self._hub = hub
        self.thread_ids = list(thread_ids)
        self._with_thoughts = with_thoughts
        self._known: dict[StreamAddress, StreamHead] = {}
        self._ended: dict[StreamAddress, None] = {}
        self._pending: dict[StreamAddress, StreamHead] = {}
        self._bell = asyncio.Event()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self._hub.join(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamHead:
        while not self._pending:
            if self._is_closed:
                raise StopAsyncIteration
            self._bell.clear()
            await self._bell.wait()
        return self._pending.pop(next(iter(self._pending)))

    def take_pending(self) -> list[StreamHead]:
        """Return the heads that moved since the last call, without waiting."""
        pending, self._pending = self._pending, {}
        return list(pending.values())

    def close(self) -> None:
        """Ends the watch; whoever iterates over it ends."""
        self._hub.leave(self)
        self._is_closed = True
        self._bell.set()

    def offer(self, address: StreamAddress, head: StreamHead) -> None:
        """Takes a head in, if it is newer than what was told."""
        if address in self._ended:
            return
        if head.role == THOUGHT and not self._with_thoughts:
            self.ignore(address)
            return
        known = self._known.get(address)
        has_ended = head.status is not StreamStatus.STREAMING
        if known is not None and not has_ended and head.current_sequence <= known.current_sequence:
            return
        if has_ended:
            self.ignore(address)
            self._known.pop(address, None)
        else:
            self._known[address] = head
        self._pending[address] = head
        self._bell.set()

    def move(self, movement: Movement) -> bool:
        """Follows a doorbell; False when it tells of a stream that nobody has described yet."""
        if movement.address in self._ended:
            return True
        known = self._known.get(movement.address)
        if known is None:
            return False
        self.offer(movement.address, replace(known, current_sequence=movement.sequence, status=movement.status))
        return True

    def ignore(self, address: StreamAddress) -> None:
        """A stream of which nothing more is told. A look may find it again, but not one that ended long ago."""
        self._ended[address] = None
        if len(self._ended) > _ENDS_REMEMBERED:
            del self._ended[next(iter(self._ended))]


class StreamHub:
    """Knows who waits for which stream, and who watches which thread."""

    def __init__(
        self, look: Look, is_followed: Callable[[Movement], bool], *, supervisor: Supervisor | None = None
    ) -> None:
        self._look = look
        self._supervisor = supervisor or Supervisor()
        self._is_followed = is_followed
        self._waiting: dict[StreamAddress, set[asyncio.Event]] = {}
        self._watches: dict[UUID, set[StreamWatch]] = {}
        self._thread_callbacks: list[Callable[[UUID], None]] = []
        self._unseen: set[UUID] = set()
        self._bell = asyncio.Event()
        self._swept_at: float | None = None
        self._loops: list[SupervisedLoop] = []

    def start(self) -> None:
        """Begins to look."""
        self._loops = [
            self._supervisor.start("stream-look", self._look_round, longest_pause=_LONGEST_PAUSE),
            self._supervisor.start("stream-sweep", self._sweep_round, longest_pause=SWEEP_SECONDS),
        ]

    async def close(self) -> None:
        """Stops; watches end."""
        for loop in self._loops:
            await loop.stop()
        self._loops = []
        for watch in {watch for watches in self._watches.values() for watch in watches}:
            watch.close()
        self._wake_all()

    def on_thread_moved(self, callback: Callable[[UUID], None]) -> None:
        """Register a plain function that is called with the thread of every stream that moved. It must be quick."""
        self._thread_callbacks.append(callback)

    @contextmanager
    def expecting(self, key: StreamKey) -> Iterator[asyncio.Event]:
        """An event that is set whenever a stream moves, or may have."""
        moved = asyncio.Event()
        waiting = self._waiting.setdefault(key.address, set())
        waiting.add(moved)
        try:
            yield moved
        finally:
            waiting.discard(moved)
            if not waiting and self._waiting.get(key.address) is waiting:
                del self._waiting[key.address]

    async def join(self, watch: StreamWatch) -> None:
        """Begins a watch: what is open now is told first, what ended before is not."""
        for thread_id in watch.thread_ids:
            self._watches.setdefault(thread_id, set()).add(watch)
        try:
            heads = await self._look(watch.thread_ids, self._window())
        except BaseException:
            # Not closed: whoever waits for PostgreSQL enters it again.
            self.leave(watch)
            raise
        for head in heads:
            address = _address(head)
            if head.status is StreamStatus.STREAMING:
                watch.offer(address, head)
            else:
                watch.ignore(address)

    def leave(self, watch: StreamWatch) -> None:
        """Forgets a watch."""
        for thread_id in watch.thread_ids:
            watches = self._watches.get(thread_id)
            if watches is not None:
                watches.discard(watch)
                if not watches:
                    del self._watches[thread_id]

    def is_watched(self, thread_id: UUID) -> bool:
        """Whether anybody wants heads of a thread."""
        return thread_id in self._watches

    def wake(self, address: StreamAddress) -> None:
        """A stream moved: whoever waits for it reads again."""
        for moved in self._waiting.get(address, ()):
            moved.set()

    def tell(self, head: StreamHead) -> None:
        """A stream of this process moved."""
        address = _address(head)
        self.wake(address)
        for watch in tuple(self._watches.get(address[0], ())):
            watch.offer(address, head)
        self._call_back(address[0])

    def on_moved(self, movements: Iterable[Movement]) -> None:
        """A doorbell rang."""
        for movement in movements:
            if not self._is_followed(movement):
                self.wake(movement.address)
            thread_id = movement.address[0]
            for watch in tuple(self._watches.get(thread_id, ())):
                if not watch.move(movement):
                    self._unseen.add(thread_id)
                    self._bell.set()
            self._call_back(thread_id)

    async def sweep(self) -> None:
        """Looks at everything that is watched or waited for, whatever the doorbell said."""
        self._wake_all()
        started = asyncio.get_running_loop().time()
        await self._look_at(list(self._watches))
        self._swept_at = started

    def _call_back(self, thread_id: UUID) -> None:
        for callback in self._thread_callbacks:
            callback(thread_id)

    def _wake_all(self) -> None:
        for address in tuple(self._waiting):
            self.wake(address)

    def _window(self) -> float:
        since = 0.0 if self._swept_at is None else asyncio.get_running_loop().time() - self._swept_at
        return since + _MARGIN_SECONDS

    async def _look_at(self, thread_ids: list[UUID]) -> None:
        if not thread_ids:
            return
        heads = await self._look(thread_ids, self._window())
        for head in heads:
            address = _address(head)
            for watch in tuple(self._watches.get(address[0], ())):
                watch.offer(address, head)
        for thread_id in {UUID(head.thread_id) for head in heads if head.status is StreamStatus.STREAMING}:
            self._call_back(thread_id)

    async def _look_round(self) -> None:
        await self._bell.wait()
        self._bell.clear()
        unseen, self._unseen = self._unseen, set()
        try:
            await self._look_at([thread_id for thread_id in unseen if thread_id in self._watches])
        except EngineError as error:
            # The sweep comes back to these threads, also after any other exception.
            logger.warning("streams could not be looked at and will be: %s", error)

    async def _sweep_round(self) -> None:
        await asyncio.sleep(SWEEP_SECONDS)
        try:
            await self.sweep()
        except EngineError as error:
            logger.warning("the watched streams could not be looked at and will be: %s", error)


def _address(head: StreamHead) -> StreamAddress:
    return StreamKey(UUID(head.thread_id), head.message_id).address
