"""Streams of other processes that somebody here waits for: read once for all who wait.

Whoever follows a message would ask the backend each time a doorbell rings. Here one task asks for all followed streams
together and keeps what came, so that twenty followers cost one trip. How a stream ended is never taken from here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from cognizes.engine.errors import EngineError
from cognizes.engine.streams.delta_log import DeltaLog
from cognizes.engine.streams.delta_stream import (
    ChunkPage,
    DeltaStream,
    Movement,
    StreamAddress,
    StreamKey,
    StreamStatus,
)
from cognizes.engine.supervision import SupervisedLoop, Supervisor

logger = logging.getLogger(__name__)

_SWEEP_SECONDS = 1.5
_LONGEST_PAUSE = 0.5
_TRUSTED_SECONDS = 5.0
_KEPT_SECONDS = 10.0
_SEGMENTS_PER_TRIP = 100
_MOST_KEPT = 10_000


FindOpen = Callable[[Sequence[StreamKey]], Awaitable[set[StreamKey]]]


@dataclass(eq=False)
class _Followed:
    key: StreamKey
    log: DeltaLog
    checked_at: float
    used_at: float = field(default=0.0)


class FollowedStreams:
    """What followers of this process have in common."""

    def __init__(
        self,
        backend: DeltaStream,
        find_open: FindOpen,
        wake: Callable[[StreamAddress], None],
        *,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._backend = backend
        self._supervisor = supervisor or Supervisor()
        self._find_open = find_open
        self._wake = wake
        self._followed: dict[StreamAddress, _Followed] = {}
        self._rung: set[StreamAddress] = set()
        self._bell = asyncio.Event()
        self._loops: list[SupervisedLoop] = []

    def start(self) -> None:
        """Begins to read for those who wait."""
        self._loops = [
            self._supervisor.start("followed-streams", self._read_round, longest_pause=_LONGEST_PAUSE),
            self._supervisor.start("followed-sweep", self._sweep_round, longest_pause=_SWEEP_SECONDS),
        ]

    async def close(self) -> None:
        """Stops."""
        for loop in self._loops:
            await loop.stop()
        self._loops = []

    def follow(self, key: StreamKey, *, after: int) -> None:
        """An open stream was read up to a chunk, and somebody waits for more."""
        now = asyncio.get_running_loop().time()
        known = self._followed.get(key.address)
        if known is None:
            self._drop_unused(now)
            if len(self._followed) < _MOST_KEPT:
                self._followed[key.address] = _Followed(key, DeltaLog(base=after), now, now)
                # What was written since it was read rang before anybody listened.
                self._ring(key.address)
        else:
            known.checked_at = known.used_at = now

    def peek(self, key: StreamKey, *, after: int, up_to: int | None, limit: int) -> ChunkPage | None:
        """What is known here of an open stream; None when the backend must be asked."""
        known = self._followed.get(key.address)
        now = asyncio.get_running_loop().time()
        if known is None or after < known.log.base or now - known.checked_at > _TRUSTED_SECONDS:
            return None
        known.used_at = now
        head = known.log.last_sequence
        chunks = known.log.chunks(after=after, limit=limit, up_to=up_to)
        last = chunks[-1].sequence if chunks else after
        wanted = head if up_to is None else min(head, up_to)
        return ChunkPage(chunks, max(head, after), last < wanted, StreamStatus.STREAMING)

    def take(self, movement: Movement) -> bool:
        """A doorbell rang; True when those who wait are woken by what is read, not by the bell."""
        known = self._followed.get(movement.address)
        if known is None:
            return False
        if movement.status is not StreamStatus.STREAMING:
            del self._followed[movement.address]
            return False
        if movement.sequence > known.log.last_sequence:
            self._ring(movement.address)
        return True

    def _ring(self, address: StreamAddress) -> None:
        self._rung.add(address)
        self._bell.set()

    def _drop_unused(self, now: float) -> None:
        for address, known in list(self._followed.items()):
            if now - known.used_at > _KEPT_SECONDS:
                del self._followed[address]

    async def _read_round(self) -> None:
        await self._bell.wait()
        self._bell.clear()
        rung, self._rung = self._rung, set()
        followed = [known for address in rung if (known := self._followed.get(address)) is not None]
        try:
            await self._read(followed)
        except EngineError as error:
            # Who waits asks by itself when this goes on for too long.
            logger.debug("followed streams could not be read: %s", error)

    async def _sweep_round(self) -> None:
        await asyncio.sleep(_SWEEP_SECONDS)
        try:
            await self._sweep()
        except EngineError as error:
            logger.debug("followed streams could not be looked at: %s", error)

    async def _sweep(self) -> None:
        """Whatever the doorbell said: which are still open, and what is new in them, with one query each for all."""
        now = asyncio.get_running_loop().time()
        self._drop_unused(now)
        followed = dict(self._followed)
        if not followed:
            return
        are_open = await self._find_open([known.key for known in followed.values()])
        for address, known in followed.items():
            if known.key in are_open:
                known.checked_at = now
                self._ring(address)
            else:
                self._followed.pop(address, None)
                self._wake(address)

    async def _read(self, followed: list[_Followed]) -> None:
        if not followed:
            return
        asked = [(known.key, known.log.last_sequence) for known in followed]
        found = await self._backend.read(asked, limit=_SEGMENTS_PER_TRIP)
        for known in followed:
            segments = found[known.key]
            for segment in segments:
                if segment.first_sequence > known.log.last_sequence + 1:
                    # The backend lost something: those who wait find out what is there now.
                    self._followed.pop(known.key.address, None)
                    break
                known.log.extend(segment)
            if len(segments) == _SEGMENTS_PER_TRIP:
                self._ring(known.key.address)
            if segments:
                self._wake(known.key.address)
