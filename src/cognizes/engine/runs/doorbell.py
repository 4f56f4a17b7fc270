"""Doorbells for those who wait for runs: a notification says that looking now is worth it, and never more than that."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from cognizes.engine.pulse.pg_notify_listener import DEFAULT_CHANNEL, PgNotifyListener, parse_payload

CLAIMABLE = ('"run_created"', '"run_signalled"', '"run_released"', '"run_retried"')
"""A run may have become claimable."""
TAKEN_AWAY = ('"run_cancelled"', '"run_released"', '"run_failed"')
"""A run may not be its worker's any more."""
MOVED = (*CLAIMABLE, *TAKEN_AWAY)
"""A waiting run may wait no longer."""
USER_SPOKE = ('"user_message"', '"author" : "user"')
"""A wait for a message may be over."""

_ID_IN_PAYLOAD = 200


class RunDoorbell:
    """Rings for kinds of events, whichever process wrote them. Whoever hears it reads the truth from the database."""

    def __init__(self, listener: PgNotifyListener) -> None:
        self._bells: dict[asyncio.Event, tuple[str, ...]] = {}
        self._taken_away: deque[str] = deque(maxlen=1000)
        listener.tap(DEFAULT_CHANNEL, self._on_notification)
        listener.on_reconnect(self._ring_all)

    def hang(self, *kinds: str) -> asyncio.Event:
        """An event that is set, from now on, when one of these kinds was notified; whoever hears it clears it."""
        bell = asyncio.Event()
        self._bells[bell] = kinds
        return bell

    @contextmanager
    def listen(self, *kinds: str) -> Iterator[asyncio.Event]:
        """The same for the length of a block."""
        bell = self.hang(*kinds)
        try:
            yield bell
        finally:
            del self._bells[bell]

    def was_taken_away(self, run_id: str) -> bool:
        """Whether one of the last events that took a run away named this one. It may have come before its worker knew
        that it had claimed the run."""
        return run_id[:_ID_IN_PAYLOAD] in self._taken_away

    def _on_notification(self, text: str) -> None:
        if any(kind in text for kind in TAKEN_AWAY):
            self._taken_away.append(str(parse_payload(text).get("run_id")))
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
