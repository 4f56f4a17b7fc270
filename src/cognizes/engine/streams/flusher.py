"""Takes what this process streams to where other processes can read it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from cognizes.engine.errors import DatabaseUnavailableError, EngineError
from cognizes.engine.streams.delta_stream import DeltaStream, Refused, Segment, StreamKey, Write
from cognizes.engine.streams.live_message import LiveMessage
from cognizes.engine.supervision import SupervisedLoop, Supervisor

logger = logging.getLogger(__name__)

_FLUSH_SECONDS = 0.02
_RETRY_SECONDS = 0.25
_ENDING_SECONDS = 0.25
"""A message whose end is not stored after this time is flushed: should its process die, others store all of it."""
_BATCH_CHARACTERS = 4 * 1024 * 1024


@dataclass(frozen=True)
class _Part:
    """What a trip carries of one message."""

    message: LiveMessage
    head: int
    unflushed: int
    segments: list[Segment]


class Flusher:
    """One trip for all streams of the process: at once after a quiet time, else about every 20 ms.

    While the backend is away, what was written waits here. A stream may have so much waiting and no more; then its
    producer waits, and after `patience` seconds is told why.
    """

    def __init__(
        self, backend: DeltaStream, *, buffer_bytes: int, patience: float, supervisor: Supervisor | None = None
    ) -> None:
        self._backend = backend
        self._supervisor = supervisor or Supervisor()
        self._buffer_bytes = buffer_bytes
        self._patience = patience
        self._dirty: dict[StreamKey, LiveMessage] = {}
        self._bell = asyncio.Event()
        self._progress = asyncio.Event()
        self._loop: SupervisedLoop | None = None
        self.failure: EngineError | None = None

    def start(self) -> None:
        """Begins."""
        self._loop = self._supervisor.start("stream-flusher", self._flush_round, longest_pause=_RETRY_SECONDS)

    async def close(self) -> None:
        """Stops; what was not flushed is only in this process."""
        if self._loop is not None:
            await self._loop.stop()
            self._loop = None

    def touch(self, message: LiveMessage) -> None:
        """A message has more to be flushed."""
        self._dirty[message.row.key] = message
        self._bell.set()

    def rewrite(self, messages: Iterable[LiveMessage]) -> None:
        """The backend lost these: all of them goes there again."""
        for message in messages:
            message.flushed = 0
            self.touch(message)

    def has_room(self, message: LiveMessage) -> bool:
        """Whether a producer may go on without waiting."""
        return message.unflushed <= self._buffer_bytes

    async def wait_for_room(self, message: LiveMessage) -> None:
        """Waits until the backend took enough in; raises what is wrong with it when that takes too long. Of a message
        that has ended, or is somebody else's by now, nothing is flushed any more: nobody waits for that."""
        deadline = asyncio.get_running_loop().time() + self._patience
        while not self.has_room(message) and message.is_flushed:
            progress = self._progress
            try:
                async with asyncio.timeout_at(deadline):
                    await progress.wait()
            except TimeoutError:
                if self.failure is not None:
                    raise self.failure from None
                if message.awaits_lease:
                    raise DatabaseUnavailableError(
                        "the lease of the message cannot be extended, and its chunks are held back until it is; "
                        "try again in a moment"
                    ) from None
                deadline += self._patience

    async def drain(self, messages: Iterable[LiveMessage], *, seconds: float) -> None:
        """Wait until the backend has everything that was written of these messages, at most so long."""
        waiting = list(messages)
        try:
            async with asyncio.timeout(seconds):
                while any(message.unflushed and message.is_flushed for message in waiting):
                    await self._progress.wait()
        except TimeoutError:
            logger.warning("the backend of streams did not take in the last chunks of %d messages", len(waiting))

    async def _flush_round(self) -> None:
        loop = asyncio.get_running_loop()
        await self._bell.wait()
        self._bell.clear()
        started = loop.time()
        pause = _FLUSH_SECONDS
        try:
            await self._flush()
            self.failure = None
        except EngineError as error:
            if self.failure is None:
                logger.warning("streams wait for their backend: %s", error)
            self.failure = error
            self._bell.set()
            pause = _RETRY_SECONDS
        except Exception:
            # What was not flushed is still marked; the next round flushes it.
            self._bell.set()
            raise
        await asyncio.sleep(max(0.0, pause - (loop.time() - started)))

    async def _flush(self) -> None:
        dirty, self._dirty = self._dirty, {}
        now = asyncio.get_running_loop().time()
        waiting = [message for message in dirty.values() if self._is_due(message, now)]
        if len(waiting) < len(dirty) or any(message.is_ending for message in waiting):
            self._tell_progress()
        try:
            while waiting:
                taken = self._take(waiting)
                try:
                    await self._send(taken)
                except BaseException:
                    waiting += [part.message for part in taken]
                    raise
        finally:
            for message in waiting:
                self._dirty.setdefault(message.row.key, message)

    def _is_due(self, message: LiveMessage, now: float) -> bool:
        if message.is_ending:
            # Storing it usually takes less time than this; then the flush is saved.
            if now < message.closing_since + _ENDING_SECONDS:
                self.touch(message)
                return False
        elif not message.is_flushed:
            return False
        # A backend that lost the stream lost its freeze, too. Without a lease another process may be storing the
        # message right now, and what is written from the start would be read and not be stored.
        message.awaits_lease = message.flushed == 0 and now >= message.leased_until
        return not message.awaits_lease

    @staticmethod
    def _take(waiting: list[LiveMessage]) -> list[_Part]:
        """As many messages as fit into one trip."""
        taken: list[_Part] = []
        characters = 0
        while waiting and characters < _BATCH_CHARACTERS:
            message = waiting.pop()
            segments = message.log.segments(after=message.flushed)
            characters += sum(len(segment.text) for segment in segments)
            taken.append(_Part(message, message.log.last_sequence, message.unflushed, segments))
        return taken

    async def _send(self, taken: list[_Part]) -> None:
        writes = [
            Write(part.message.row.key, part.message.app_name, segment) for part in taken for segment in part.segments
        ]
        refused = await self._backend.write(writes) if writes else Refused()
        for part in taken:
            if part.message.row.key in refused.sealed:
                # Somebody is ending it. Soon its lease says that it is ours no more, or it can be flushed again.
                self.touch(part.message)
                continue
            part.message.flushed = max(part.message.flushed, part.head)
            part.message.unflushed -= part.unflushed
        self.rewrite(part.message for part in taken if part.message.row.key in refused.lacking)
        self._tell_progress()

    def _tell_progress(self) -> None:
        # Everybody who waits has this very object; whoever waits next gets a fresh one.
        self._progress.set()
        self._progress = asyncio.Event()
