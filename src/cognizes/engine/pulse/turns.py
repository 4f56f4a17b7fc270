"""Taking turns: tasks that share a key go one after the other, first come, first served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class Turns:
    """A lock per key that exists only while somebody needs it."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, asyncio.Lock] = {}
        self._users: dict[Hashable, int] = {}

    def is_taken(self, key: Hashable) -> bool:
        """Whether somebody holds or awaits the key's turn."""
        return key in self._locks

    def is_awaited(self, key: Hashable) -> bool:
        """Whether somebody waits behind the one who holds the key's turn."""
        return self._users.get(key, 0) > 1

    @asynccontextmanager
    async def take(self, key: Hashable) -> AsyncIterator[None]:
        """Waits for the turn of a key, and holds it."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._users[key] = self._users.get(key, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]
