"""Doorbells for those who wait for runs: a notification says that looking now is worth it, and never more than that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from cognizes.engine.pulse.pg_notify_listener import DEFAULT_CHANNEL, PgNotifyListener

CLAIMABLE = ('"run_created"', '"run_signalled"', '"run_released"', '"run_retried"')
"""A run may have become claimable."""
TAKEN_AWAY = ('"run_cancelled"', '"run_released"', '"run_resumed"', '"run_failed"')
"""A run may not be its worker's any more."""
MOVED = (*CLAIMABLE, *TAKEN_AWAY)
"""A waiting run may wait no longer."""
USER_SPOKE = ('"user_message"', '"author" : "user"')
"""A wait for a message may be over."""


class RunDoorbell:
    """Rings for kinds of events, whichever process wrote them. Whoever hears it reads the truth from the database."""

    def __init__(self, listener: PgNotifyListener) -> None:
        self._bells: dict[asyncio.Event, tuple[str, ...]] = {}
        listener.tap(DEFAULT_CHANNEL, self._on_notification)
        listener.on_reconnect(self._ring_all)

    @contextmanager
    def listen(self, *kinds: str) -> Iterator[asyncio.Event]:
        """An event that is set when one of these kinds was notified; the listener clears it."""
        bell = asyncio.Event()
        self._bells[bell] = kinds
        try:
            yield bell
        finally:
            del self._bells[bell]

    def _on_notification(self, text: str) -> None:
        for bell, kinds in self._bells.items():
            if not bell.is_set() and any(kind in text for kind in kinds):
                bell.set()

    async def _ring_all(self) -> None:
        for bell in self._bells:
            bell.set()


async def rings(bell: asyncio.Event, *, seconds: float) -> bool:
    """Waits for the bell, but not longer than that; whether it rang."""
    try:
        async with asyncio.timeout(seconds):
            await bell.wait()
    except TimeoutError:
        return False
    bell.clear()
    return True
