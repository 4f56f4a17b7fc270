"""Taking turns: tasks that share a key go one after the other, first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable


class Turns:
    """A turn per key that exists only while somebody needs it."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    def is_taken(self, key: Hashable) -> bool:
        """Whether somebody holds or awaits the key's turn."""
        return key in self._waiting

    def is_awaited(self, key: Hashable) -> bool:
        """Whether somebody waits behind the one who holds the key's turn."""
        return bool(self._waiting.get(key))

    def take(self, key: Hashable) -> Turn:
        """Waits for the turn of a key, and holds it for the length of a block."""
        return Turn(self._waiting, key)


class Turn:
    """One turn, as `async with` wants it: an append takes one, so it costs no more than it must."""

    __slots__ = ("_key", "_waiting")

    def __init__(self, waiting: dict[Hashable, deque[asyncio.Future[None]]], key: Hashable) -> None:
        self._waiting = waiting
        self._key = key

    async def __aenter__(self) -> None:
        queue = self._waiting.get(self._key)
        if queue is None:
            self._waiting[self._key] = deque()
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future in queue:
                queue.remove(future)
            elif not future.cancelled():
                # The turn came together with the cancellation: it belongs to the next one now.
                self._pass_on()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        queue = self._waiting[self._key]
        while queue:
            future = queue.popleft()
            if not future.done():
                future.set_result(None)
                return
        del self._waiting[self._key]
