"""Leases of streams: this process says that it is alive, and ends what nobody writes any more."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

from cognizes.engine.errors import DatabaseUnavailableError, EngineError, PoolTimeoutError
from cognizes.engine.streams.delta_stream import DeltaStream, StreamKey, StreamStatus
from cognizes.engine.streams.flusher import Flusher
from cognizes.engine.streams.live_message import LiveMessage
from cognizes.engine.streams.stream_endings import StreamEndings
from cognizes.engine.streams.stream_rows import StreamRows
from cognizes.engine.supervision import SupervisedLoop, Supervisor

logger = logging.getLogger(__name__)

_SILENT_PER_LOOK = 20
_RETRY_SECONDS = 0.5


class StreamLeases:
    """Keeps the leases of this process's messages (`live`), and looks after those of processes that fell silent.

    A process that was away itself, or could not reach the database, calls nobody silent before all had the time to say
    that they are alive: the whole machine may have stood still.
    """

    def __init__(
        self,
        rows: StreamRows,
        backend: DeltaStream,
        flusher: Flusher,
        endings: StreamEndings,
        live: dict[StreamKey, LiveMessage],
        *,
        owner: UUID,
        seconds: float,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._rows = rows
        self._backend = backend
        self._flusher = flusher
        self._endings = endings
        self._live = live
        self._owner = owner
        self._seconds = seconds
        self._quiet_until = 0.0
        self._supervisor = supervisor or Supervisor()
        self._loops: list[SupervisedLoop] = []
        self._due = asyncio.Event()

    def start(self) -> None:
        """Begins."""
        every = self._seconds / 3
        self._loops = [
            self._supervisor.start("stream-leases", self._keep_round, longest_pause=min(every, _RETRY_SECONDS)),
            # Ending others' messages may take long, and our leases do not wait for it.
            self._supervisor.start("stream-silence", self._tidy_round, longest_pause=every),
        ]

    async def close(self) -> None:
        """Stops; leases that are still held run out by themselves."""
        for loop in self._loops:
            await loop.stop()
        self._loops = []

    async def keep(self) -> None:
        """Says that this process is alive, fills what the backend lost, and ends the streams of silent processes."""
        await self._say_alive()
        await self._tidy()

    async def interrupt_silent(self, *, grace: float | None = None) -> int:
        """Stores the messages of producers that fell silent as interrupted; returns how many.

        `grace`: after a restart of PostgreSQL the living get so many seconds, a lease, to say that they are.
        """
        began_at = asyncio.get_running_loop().time()
        silent = await self._rows.list_silent(grace=self._seconds if grace is None else grace, limit=_SILENT_PER_LOOK)
        if self._took_long(began_at):
            # Leases may have run out while the answer was on its way, and the machine with it.
            return 0
        ended = 0
        for row in silent:
            if row.key in self._live:
                continue
            try:
                await self._endings.end_silent(row)
                ended += 1
            except (DatabaseUnavailableError, PoolTimeoutError):
                raise
            except EngineError as error:
                logger.warning("the stream of a silent producer could not be ended: %s", error)
        return ended

    async def _keep_round(self) -> None:
        loop = asyncio.get_running_loop()
        pause = self._seconds / 3
        try:
            await self._say_alive()
            self._due.set()
        except EngineError as error:
            # A process that could not reach the database does not know whether other processes could.
            self._give_others_time()
            logger.warning("the leases of streams could not be looked after and will be: %s", error)
            pause = min(pause, _RETRY_SECONDS)
        woken_at = loop.time() + pause
        await asyncio.sleep(pause)
        self._took_long(woken_at)

    def _give_others_time(self) -> None:
        self._quiet_until = asyncio.get_running_loop().time() + self._seconds

    def _took_long(self, since: float) -> bool:
        """Whether something that takes a moment took so long that others may have stood still as well."""
        is_long = asyncio.get_running_loop().time() - since > self._seconds / 3
        if is_long:
            self._give_others_time()
        return is_long

    async def _say_alive(self) -> None:
        began_at = asyncio.get_running_loop().time()
        if self._live:
            await self._extend()
        self._took_long(began_at)

    async def _extend(self) -> None:
        before = dict(self._live)
        flushed = {key: live.flushed for key, live in before.items() if live.flushed}
        try:
            await self._extend_leases(before)
        finally:
            # Also while PostgreSQL is away: should this process die, others read from the backend what it had written.
            await self._refill(flushed)

    async def _extend_leases(self, before: dict[StreamKey, LiveMessage]) -> None:
        sent_at = asyncio.get_running_loop().time()
        still_ours = await self._rows.extend(self._owner, list(before))
        for key, message in before.items():
            if key in still_ours:
                message.leased_until = sent_at + self._seconds
                if message.awaits_lease:
                    self._flusher.touch(message)
            elif self._live.get(key) is message and not message.is_closing:
                message.is_lost = True
                del self._live[key]

    async def _refill(self, flushed: dict[StreamKey, int]) -> None:
        written = await self._backend.heads(list(flushed)) if flushed else {}
        lost = [key for key, sequence in flushed.items() if written.get(key, 0) < sequence]
        self._flusher.rewrite(live for key in lost if (live := self._live.get(key)) is not None)

    async def _tidy(self) -> None:
        """Ends what nobody writes any more, here or elsewhere. One that cannot be ended stands in nobody's way."""
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        for live in [live for live in self._live.values() if live.is_abandoned]:
            try:
                await self._endings.end_live(live, StreamStatus.INTERRUPTED)
            except (DatabaseUnavailableError, PoolTimeoutError):
                raise
            except EngineError as error:
                logger.warning("a message that nobody writes any more could not be ended: %s", error)
        self._took_long(began_at)
        if loop.time() >= self._quiet_until:
            await self.interrupt_silent()

    async def _tidy_round(self) -> None:
        await self._due.wait()
        self._due.clear()
        try:
            await self._tidy()
        except EngineError as error:
            self._give_others_time()
            logger.warning("streams that nobody writes any more could not be ended and will be: %s", error)
