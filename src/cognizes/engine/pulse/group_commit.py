"""Adaptive group commit: concurrent callers of one process share a transaction.

While one batch is on its way, arrivals queue; the next batch takes them all. A caller alone pays nothing: it sends its
own item at once. There is no timer and no waiting for company.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from cognizes.engine.errors import DatabaseUnavailableError, EngineError, PoolTimeoutError


class Sized(Protocol):
    """What a batch is bounded by."""

    @property
    def size(self) -> int: ...


Item = TypeVar("Item", bound=Sized)
Answer = TypeVar("Answer")


class GroupCommit(Generic[Item, Answer]):
    """Sends items in batches, one batch at a time, in the order of their arrival; answers each caller after the
    commit that holds its item. One item's error fails nobody else."""

    def __init__(
        self,
        send: Callable[[list[Item]], Awaitable[list[Answer]]],
        *,
        max_items: int = 256,
        max_bytes: int = 8 * 1024 * 1024,
    ) -> None:
        self._send = send
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._sending = False
        self._draining: asyncio.Task[None] | None = None

    async def submit(self, item: Item) -> Answer:
        """Sends an item with the next batch and returns its answer."""
        if self._sending:
            return await self.enqueue(item)
        self._sending = True
        try:
            (answer,) = await self._send([item])
        finally:
            self._pass_on()
        return answer

    def enqueue(self, item: Item) -> asyncio.Future[Answer]:
        """Puts an item into the queue now and returns where its answer will be."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if not self._sending:
            self._sending = True
            self._pass_on()
        return future

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way and nothing waits."""
        return not self._sending

    def move_waiting(self, belongs: Callable[[Item], bool], other: GroupCommit[Item, Answer]) -> None:
        """Lets the waiting items that `belongs` chooses wait in another queue, in their order."""
        kept: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        for pair in self._waiting:
            (other._waiting if belongs(pair[0]) else kept).append(pair)
        self._waiting = kept

    async def close(self) -> None:
        """Waits until everything that was submitted has been answered."""
        while self._draining is not None:
            await asyncio.wait([self._draining])

    def _pass_on(self) -> None:
        if self._waiting:
            self._draining = asyncio.create_task(self._drain(), name="group-commit")
        else:
            self._sending = False

    async def _drain(self) -> None:
        try:
            while batch := self._take_batch():
                await self._answer(batch)
                # Those who were just answered come back with their next item: let them join before the next batch.
                await asyncio.sleep(0)
        finally:
            self._sending = False
            self._draining = None

    def _take_batch(self) -> list[tuple[Item, asyncio.Future[Answer]]]:
        batch: list[tuple[Item, asyncio.Future[Answer]]] = []
        size = 0
        while self._waiting and len(batch) < self._max_items:
            item, future = self._waiting[0]
            if batch and size + item.size > self._max_bytes:
                break
            self._waiting.popleft()
            if future.cancelled():
                continue
            size += item.size
            batch.append((item, future))
        return batch

    async def _answer(self, batch: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._send([item for item, _ in batch])
        except (DatabaseUnavailableError, PoolTimeoutError) as error:
            for _, future in batch:
                _fail(future, error)
        except EngineError as error:
            if len(batch) == 1:
                _fail(batch[0][1], error)
                return
            # Something in the batch cannot be stored. Alone, each item meets its own fate.
            for pair in batch:
                await self._answer([pair])
        except BaseException as error:
            for _, future in batch:
                _fail(future, error)
            raise
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def _fail(future: asyncio.Future[Answer], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
