"""The frames of a run that is going on, for any number of observers, each at its own pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable

from ag_ui.core import BaseEvent


class FrameLog:
    """Grows until it is closed. An observer has a place in it and no queue: a slow one costs nothing.

    The whole run is kept as long as it goes on, since whoever connects is told all of it, folded.
    """

    def __init__(self) -> None:
        self._frames: list[BaseEvent] = []
        self._moved = asyncio.Event()
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def frames(self) -> tuple[BaseEvent, ...]:
        """Everything so far."""
        return tuple(self._frames)

    def extend(self, frames: Iterable[BaseEvent]) -> None:
        """Adds frames and wakes the observers."""
        before = len(self._frames)
        self._frames.extend(frames)
        if len(self._frames) > before:
            self._wake()

    def close(self) -> None:
        """No more frames will come; observers end behind the last one."""
        self.is_closed = True
        self._wake()

    async def follow(self, after: int = 0) -> AsyncGenerator[tuple[int, BaseEvent], None]:
        """The frames after a number of them, with their numbers: those that are there, then those to come."""
        place = after
        while True:
            moved = self._moved
            while place < len(self._frames):
                place += 1
                yield place, self._frames[place - 1]
            if self.is_closed:
                return
            await moved.wait()

    def _wake(self) -> None:
        # Whoever waits has this very object; whoever waits next gets a fresh one.
        self._moved.set()
        self._moved = asyncio.Event()
