"""Adaptive group commit: concurrent callers of one process share a transaction.

While batches are on their way, arrivals queue; the next batch takes them. A caller alone is sent at once. There is no
timer and no waiting for company.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Generic, Protocol, TypeVar

from cognizes.engine.errors import DatabaseUnavailableError, EngineClosedError, PoolTimeoutError


class GroupItem(Protocol):
    """What a batch has to know of an item."""

    @property
    def size(self) -> int:
        """Batches are bounded by the sum of it."""
        ...

    @property
    def order_key(self) -> Hashable:
        """Items of one key are sent in the order of their arrival, never in two batches at once."""
        ...

    @property
    def identity(self) -> Hashable:
        """A batch holds no two items of one key and one identity: the second must find the first one stored."""
        ...

    @property
    def is_sociable(self) -> bool:
        """Whether it may share a batch with others."""
        ...

    @property
    def company(self) -> Hashable:
        """A batch holds items of one company only: those it is sent on behalf of."""
        ...


Item = TypeVar("Item", bound=GroupItem)
Answer = TypeVar("Answer")
Entry = tuple[Item, "asyncio.Future[Answer]"]
Send = Callable[[list[Item]], Awaitable["list[Answer | None]"]]


class GroupCommit(Generic[Item, Answer]):
    """Sends items in batches, as many batches at a time as there are ways, and answers each caller after the commit
    that holds its item.

    - Items of one key keep their order. A key is held from the moment its items are sent until it is known what became
      of them; a caller who leaves meanwhile changes nothing about that.
    - An item that is answered with None stands in somebody else's way. It is sent again in the `patient` way, in a
      lane of its own; later items of its key wait behind it, nobody else does.
    - One item's error fails nobody else.
    - Companies take turns: one that sends much makes no other wait for more than a batch.
    """

    def __init__(
        self,
        *ways: Send[Item, Answer],
        patient: Send[Item, Answer] | None = None,
        max_items: int = 256,
        max_bytes: int = 8 * 1024 * 1024,
    ) -> None:
        self._free_ways = list(ways)
        self._number_of_ways = len(ways)
        self._patient = patient
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._queues: dict[Hashable, deque[Entry[Item, Answer]]] = {}
        self._ready: OrderedDict[Hashable, deque[Hashable]] = OrderedDict()
        self._waiting = 0
        self._on_the_way = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def submit(self, item: Item) -> Answer:
        """Sends an item with the next batch and returns its answer."""
        if self._is_closed:
            raise EngineClosedError("the engine is closed; nothing was stored; open it again")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        key = item.order_key
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
            self._make_ready(key, item.company)
        queue.append((item, future))
        self._waiting += 1
        self._use_free_way()
        return await future

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way and nothing waits."""
        return not self._queues

    async def close(self) -> None:
        """Refuses what comes from now on, and waits until everything that was submitted has been answered."""
        self._is_closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _use_free_way(self) -> None:
        if self._ready and self._free_ways:
            self._start(self._work(self._free_ways.pop()))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        # A task of its own, not the caller's: a caller who is cancelled must not cut off what is on its way, or
        # nobody could tell whether it arrives before or after the next item of its key.
        task = asyncio.create_task(work, name="group-commit")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, way: Send[Item, Answer]) -> None:
        try:
            while batch := self._take_batch():
                await self._settle(batch, way)
                # Those who were just answered come back with their next item: let them join before the next batch.
                await asyncio.sleep(0)
        finally:
            self._free_ways.append(way)

    def _take_batch(self) -> list[Entry[Item, Answer]]:
        # A fair share: a way that took everything would leave the other ways nothing but late-comers, one by one.
        share = -(-(self._waiting + self._on_the_way) // self._number_of_ways)
        batch: list[Entry[Item, Answer]] = []
        while self._ready and not batch:
            company, ready = self._ready.popitem(last=False)
            batch = self._take_of(company, ready, min(share, self._max_items))
            if ready:
                self._ready[company] = ready
        return batch

    def _take_of(self, company: Hashable, ready: deque[Hashable], at_most: int) -> list[Entry[Item, Answer]]:
        """A batch of one company, from the keys of it that are ready."""
        batch: list[Entry[Item, Answer]] = []
        room = self._max_bytes
        while ready and len(batch) < at_most:
            key = ready[0]
            queue = self._queues[key]
            taken = self._take(queue, company, room, self._max_items - len(batch), is_first=not batch)
            if not taken and queue and queue[0][0].company == company:
                break
            ready.popleft()
            if not taken:
                self._let_go(key)
            batch += taken
            if taken and not taken[0][0].is_sociable:
                break
            room -= sum(item.size for item, _ in taken)
        return batch

    def _take(
        self, queue: deque[Entry[Item, Answer]], company: Hashable, room: int, at_most: int, *, is_first: bool
    ) -> list[Entry[Item, Answer]]:
        """The first items of a key: as many as there is room for, and one at least when nobody else is in the batch."""
        taken: list[Entry[Item, Answer]] = []
        identities: set[Hashable] = set()
        while queue and len(taken) < at_most:
            item, future = queue[0]
            if not future.cancelled():
                if item.company != company:
                    break
                is_alone = is_first and not taken
                if not is_alone and (item.size > room or not item.is_sociable or item.identity in identities):
                    break
                room -= item.size
                at_most = at_most if item.is_sociable else 1
                identities.add(item.identity)
                taken.append((item, future))
            queue.popleft()
            self._waiting -= 1
        return taken

    async def _settle(self, batch: list[Entry[Item, Answer]], way: Send[Item, Answer]) -> None:
        self._on_the_way += len(batch)
        try:
            postponed = await self._send(batch, way)
        finally:
            self._on_the_way -= len(batch)
        for key in {item.order_key for item, _ in batch}:
            if key in postponed:
                self._start(self._wait_in_lane(key, postponed[key]))
            else:
                self._let_go(key)

    def _let_go(self, key: Hashable) -> None:
        if queue := self._queues[key]:
            self._make_ready(key, queue[0][0].company)
            self._use_free_way()
        else:
            del self._queues[key]

    def _make_ready(self, key: Hashable, company: Hashable) -> None:
        ready = self._ready.get(company)
        if ready is None:
            ready = self._ready[company] = deque()
        ready.append(key)

    async def _wait_in_lane(self, key: Hashable, entries: list[Entry[Item, Answer]]) -> None:
        """Sends what stands in somebody's way, and what has come for its key meanwhile, until nothing more comes."""
        if self._patient is None:
            raise RuntimeError("an item was postponed although there is no patient way to send it")
        company = entries[0][0].company
        while entries:
            await self._send(entries, self._patient)
            await asyncio.sleep(0)
            entries = self._take(self._queues[key], company, self._max_bytes, self._max_items, is_first=True)
        self._let_go(key)

    async def _send(
        self, batch: list[Entry[Item, Answer]], way: Send[Item, Answer]
    ) -> dict[Hashable, list[Entry[Item, Answer]]]:
        """Sends a batch, answers its callers; returns, by key, those who are to wait in a lane."""
        try:
            return _hand_out(batch, await way([item for item, _ in batch]))
        except asyncio.CancelledError:
            self._give_up(batch)
            raise
        except (DatabaseUnavailableError, PoolTimeoutError) as error:
            _fail(batch, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is its caller's to hear
            if len(batch) > 1:
                # Something in the batch cannot be stored. Alone, each item meets its own fate.
                return await self._send_one_by_one(batch, way)
            _fail(batch, error)
        return {}

    async def _send_one_by_one(
        self, batch: list[Entry[Item, Answer]], way: Send[Item, Answer]
    ) -> dict[Hashable, list[Entry[Item, Answer]]]:
        postponed: dict[Hashable, list[Entry[Item, Answer]]] = {}
        for entry in batch:
            if (key := entry[0].order_key) in postponed:
                postponed[key].append(entry)
            elif not entry[1].cancelled():
                postponed |= await self._send([entry], way)
        return postponed

    def _give_up(self, batch: list[Entry[Item, Answer]]) -> None:
        """The event loop ends: whoever still waits is told so."""
        self._is_closed = True
        for _, future in [*batch, *(entry for queue in self._queues.values() for entry in queue)]:
            future.cancel()
        self._ready.clear()


def _hand_out(
    batch: list[Entry[Item, Answer]], answers: list[Answer | None]
) -> dict[Hashable, list[Entry[Item, Answer]]]:
    postponed: dict[Hashable, list[Entry[Item, Answer]]] = {}
    for entry, answer in zip(batch, answers, strict=True):
        if answer is None or entry[0].order_key in postponed:
            postponed.setdefault(entry[0].order_key, []).append(entry)
        elif not entry[1].done():
            entry[1].set_result(answer)
    return postponed


def _fail(batch: list[Entry[Item, Answer]], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
