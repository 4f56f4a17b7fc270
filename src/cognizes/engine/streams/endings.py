"""Ending streams: the text becomes a stored message exactly once, also when several processes end the stream.

Nothing may be written to a stream while it is being ended. In PostgreSQL the lock of the stream's row and a second look
at the chunks ensure that, in other backends a freeze. So the stored message contains every chunk that was written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from uuid import UUID

from cognizes.engine.concurrency import Sweeper, retry_while_unavailable
from cognizes.engine.errors import (
    ConflictError,
    DatabaseUnavailableError,
    EngineError,
    LeaseLostError,
    NotFoundError,
    PoolTimeoutError,
    StreamUnavailableError,
)
from cognizes.engine.models import JsonObject
from cognizes.engine.pulse.events import check_text
from cognizes.engine.streams.backend import ChunkBackend
from cognizes.engine.streams.chunks import CALL, THOUGHT, DeltaLog, StreamKey, StreamRow, StreamStatus, fit_lengths
from cognizes.engine.streams.stream_rows import EndAnswer, Ending, StreamRows
from cognizes.engine.streams.writer import Flusher, LiveMessage
from cognizes.engine.supervision import SupervisedLoop

logger = logging.getLogger(__name__)

_SEGMENTS_PER_READ = 100
_EXPIRED_PER_ROUND = 20


class StreamEndings:
    """Ends streams of this process (`live`, from which it removes them), of producers over REST, and expired ones."""

    def __init__(
        self,
        rows: StreamRows,
        backend: ChunkBackend,
        flusher: Flusher,
        live: dict[StreamKey, LiveMessage],
        *,
        owner: UUID,
        changed: Callable[[UUID], None],
    ) -> None:
        self._rows = rows
        self._backend = backend
        self._flusher = flusher
        self._live = live
        self._owner = owner
        self._changed = changed

    async def complete(
        self, live: LiveMessage, *, finish_reason: str | None = None, content: JsonObject | None = None
    ) -> int:
        reason = check_reason(finish_reason)
        return await self._end_live(live, StreamStatus.COMPLETED, finish_reason=reason, content=content)

    async def abort(self, live: LiveMessage, *, content: JsonObject | None = None) -> int:
        """Store the text so far of a message of this process as interrupted."""
        return await self._end_live(live, StreamStatus.INTERRUPTED, content=content)

    async def mark_stored(self, live: LiveMessage) -> int:
        """End the stream of a message of this process that another component stored."""
        return await self._end_live(live, StreamStatus.COMPLETED, is_stored=True)

    async def _end_live(
        self,
        live: LiveMessage,
        status: StreamStatus,
        *,
        finish_reason: str | None = None,
        content: JsonObject | None = None,
        is_stored: bool = False,
    ) -> int:
        live.is_closing = True
        live.closing_since = asyncio.get_running_loop().time()
        try:
            ending = Ending(status, live.log.last_sequence, live.log.text, live.log.lengths, finish_reason, content)
            if is_stored:
                ending = await self._fit(live.row, ending)
            return await self._end(live.row, ending, owner=self._owner, is_stored=is_stored)
        except (ConflictError, NotFoundError) as error:
            self._live.pop(live.row.key, None)
            # An attempt that lost its run still owns the stream: another process stores the text that is flushed.
            live.is_lost = not isinstance(error, LeaseLostError)
            raise
        except BaseException:
            # This process still owns it: the caller may retry or write on.
            live.is_closing = live.row.key not in self._live
            # Nothing of it was flushed while it was closing.
            self._flusher.schedule(live)
            raise

    async def end_open(self, key: StreamKey, status: StreamStatus, *, finish_reason: str | None = None) -> int:
        """End a stream without an owning process."""
        row = await self._rows.find(key)
        if row is None:
            raise NotFoundError(f"there is no stream of the message {key.message_id[:80]!r}; open one first")
        if row.owner is not None:
            raise ConflictError(f"another producer writes the message {key.message_id[:80]!r} and ends it")
        return await self._end(row, await self.read_ending(row, status, finish_reason), owner=None)

    async def end_expired(self, row: StreamRow) -> None:
        """End a stream whose lease expired; do nothing if the lease was extended again."""
        await self._end(row, await self.read_ending(row, StreamStatus.INTERRUPTED), only_expired=True)

    async def end_run(self, thread_id: UUID, run_id: str) -> None:
        """Store the open messages of a run as interrupted: its executor is gone or must not write any more."""
        rows = await self._rows.list_open([thread_id])
        # Reasoning is stored before the message that follows it.
        for row in sorted(rows, key=lambda row: row.role != THOUGHT):
            if row.run_id == run_id:
                try:
                    if (live := self._live.get(row.key)) is not None:
                        # Readers of this process received all of it, flushed or not.
                        await self.abort(live)
                        continue
                    ending = await self.read_ending(row, StreamStatus.INTERRUPTED)
                    await self._end(row, ending, owner=row.owner)
                except (NotFoundError, ConflictError) as error:
                    logger.debug("a stream of run %s has ended: %s", run_id, error)

    async def read_ending(self, row: StreamRow, status: StreamStatus, finish_reason: str | None = None) -> Ending:
        """Freeze a stream and return what the backend has of it."""
        if row.status is StreamStatus.STREAMING:
            await self._backend.freeze(row.key)
        return await self._read(row.key, status, finish_reason)

    async def _read(self, key: StreamKey, status: StreamStatus, finish_reason: str | None) -> Ending:
        """Read all chunks; of a stream that lost its beginning, the existing ones under their own sequences."""
        log = DeltaLog()
        while True:
            segments = (await self._backend.read([(key, log.last_sequence)], limit=_SEGMENTS_PER_READ))[key]
            for segment in segments:
                while segment.first_sequence > log.last_sequence + 1:
                    log.append("")
                log.extend(segment)
            if len(segments) < _SEGMENTS_PER_READ:
                return Ending(status, log.last_sequence, log.text, log.lengths, finish_reason)

    async def _end(
        self,
        row: StreamRow,
        ending: Ending,
        *,
        owner: UUID | None = None,
        only_expired: bool = False,
        is_stored: bool = False,
    ) -> int:
        """End a stream; `ConflictError` if it had ended in another way."""
        # While PostgreSQL was unavailable another process may have written more: the backend may have lost the freeze.
        is_own = row.key in self._live
        refresh = None if is_own else partial(self.read_ending, row, ending.status, ending.finish_reason)
        while True:
            answer = await self._rows.end(
                row,
                ending,
                owner=owner,
                only_expired=only_expired,
                is_stored=is_stored,
                refresh=None if is_stored else refresh,
            )
            match answer.answer:
                case "moved":
                    ending = await self._read(row.key, ending.status, ending.finish_reason)
                case "stored":
                    # Its producer died after storing it, unless this process is the producer and knows the status.
                    status = ending.status if row.owner == self._owner else StreamStatus.COMPLETED
                    ending, is_stored = await self._fit(row, replace(ending, status=status)), True
                case "alive" | "lost":
                    await self._unfreeze(row.key)
                    break
                case _:
                    break
        return self._after_end(row, ending, answer)

    async def _unfreeze(self, key: StreamKey) -> None:
        """Let the producer write on: now, or when the freeze has expired."""
        try:
            await self._backend.unfreeze(key)
        except StreamUnavailableError as error:
            _log_frozen(key, error)

    async def reopen(self, row: StreamRow) -> None:
        """Let the new owner of a stream that was opened again write: now, or when the freeze has expired."""
        try:
            await self._backend.reopen(row.key, row.owner)
        except StreamUnavailableError as error:
            _log_frozen(row.key, error)

    def _after_end(self, row: StreamRow, ending: Ending, answer: EndAnswer) -> int:
        name = repr(row.key.message_id[:80])
        if answer.answer == "missing":
            raise NotFoundError(f"there is no stream of the message {name}; its thread was deleted, or never had it")
        if answer.answer == "lost":
            raise ConflictError(f"another producer writes the message {name}")
        if answer.answer == "alive":
            return 0
        assert answer.status is not None  # noqa: S101 - an ended stream has both
        assert answer.final_sequence is not None  # noqa: S101
        live = self._live.pop(row.key, None)
        if live is not None:
            live.is_closing = live.has_ended = True
        self._changed(row.key.thread_id)
        if ending.status is StreamStatus.COMPLETED and answer.status is StreamStatus.INTERRUPTED:
            raise ConflictError(
                f"the message {name} was stored as interrupted: it was aborted or cancelled, or the lease of its "
                "producer expired"
            )
        return answer.final_sequence

    async def _fit(self, row: StreamRow, ending: Ending) -> Ending:
        """Return the ending of a stream whose message another component stored."""
        if row.role == CALL:
            # The arguments are a part of the stored event.
            return Ending(StreamStatus.COMPLETED, ending.final_sequence, "", b"")
        body = await self._rows.read_body(row.key)
        if body is None:
            # The stored event has no text.
            return Ending(StreamStatus.INTERRUPTED, 0, "", b"")
        count, lengths = fit_lengths(ending.lengths, streamed=ending.text, stored=body.text)
        return Ending(ending.status, count, body.text, lengths)


class StreamLeases:
    """Extends the leases of this process's messages (`live`), and ends streams whose lease expired.

    A process that was suspended, or could not reach the database, ends no expired stream until all others had a lease's
    time to extend theirs: the whole machine may have been suspended.
    """

    def __init__(
        self,
        rows: StreamRows,
        backend: ChunkBackend,
        flusher: Flusher,
        endings: StreamEndings,
        live: dict[StreamKey, LiveMessage],
        *,
        owner: UUID,
        seconds: float,
    ) -> None:
        self._rows = rows
        self._backend = backend
        self._flusher = flusher
        self._endings = endings
        self._live = live
        self._owner = owner
        self.seconds = seconds
        self._wait_until = 0.0
        self._extended_at: float | None = None
        self._jobs: list[SupervisedLoop] = []

    def start(self, sweeper: Sweeper) -> None:
        every = self.seconds / 3
        # After a failover or a restart of PostgreSQL, producers need time to extend their leases: a process that starts
        # then cannot know whether they expired because their producers are gone.
        self._defer_expiry()
        self._jobs = [
            sweeper.start("stream-leases", self._extend_job, seconds=every),
            # A job of its own: ending streams may take long, and leases must not wait for it.
            sweeper.start("stream-expiry", self._expiry_job, seconds=every),
        ]

    async def close(self) -> None:
        """Stop; leases that are still held expire."""
        for job in self._jobs:
            await job.stop()
        self._jobs = []

    async def extend(self) -> None:
        """Extend the leases of this process, and write again what the backend lost."""
        began_at = asyncio.get_running_loop().time()
        if self._live:
            before = dict(self._live)
            flushed = {key: live.flushed for key, live in before.items() if live.flushed}
            try:
                await self._extend_leases(before)
            finally:
                # Also while PostgreSQL is unavailable: if this process dies, others read its text from the backend.
                await self._refill(flushed)
        self._was_slow(began_at)

    async def end_unowned(self) -> None:
        """End abandoned messages of this process and expired streams; one that fails does not stop the others."""
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        for live in [live for live in self._live.values() if live.is_abandoned]:
            try:
                await self._endings.abort(live)
            except (DatabaseUnavailableError, PoolTimeoutError):
                raise
            except EngineError as error:
                logger.warning("the abandoned message %.80r is not ended yet: %s", live.row.key.message_id, error)
        self._was_slow(began_at)
        if loop.time() >= self._wait_until:
            await self.interrupt_expired()

    async def interrupt_expired(self, *, grace: float | None = None) -> int:
        """Store the messages of expired streams as interrupted; return how many.

        `grace`: for so many seconds, by default a lease, after a restart of PostgreSQL no stream counts as expired.
        """
        began_at = asyncio.get_running_loop().time()
        expired = await self._rows.list_expired(
            grace=self.seconds if grace is None else grace, limit=_EXPIRED_PER_ROUND
        )
        if self._was_slow(began_at):
            # The machine may have been suspended while the query ran, and leases expired with it.
            return 0
        ended = 0
        for row in expired:
            if row.key in self._live:
                continue
            try:
                await self._endings.end_expired(row)
                ended += 1
            except (DatabaseUnavailableError, PoolTimeoutError):
                raise
            except EngineError as error:
                logger.warning("the expired stream of message %.80r is not ended yet: %s", row.key.message_id, error)
        return ended

    async def _extend_job(self) -> None:
        loop = asyncio.get_running_loop()
        every = self.seconds / 3
        if self._extended_at is not None:
            self._was_slow(self._extended_at + every)
        try:
            await retry_while_unavailable(
                self.extend, seconds=every, errors=(DatabaseUnavailableError, PoolTimeoutError)
            )
        except EngineError:
            self._defer_expiry()
            raise
        finally:
            self._extended_at = loop.time()

    async def _expiry_job(self) -> None:
        try:
            await self.end_unowned()
        except EngineError:
            # A process that cannot reach the database does not know whether others can.
            self._defer_expiry()
            raise

    def _defer_expiry(self) -> None:
        self._wait_until = asyncio.get_running_loop().time() + self.seconds

    def _was_slow(self, since: float) -> bool:
        """Return whether a short operation took so long that other processes may have been suspended as well."""
        is_slow = asyncio.get_running_loop().time() - since > self.seconds / 3
        if is_slow:
            self._defer_expiry()
        return is_slow

    async def _extend_leases(self, before: dict[StreamKey, LiveMessage]) -> None:
        try:
            await self._extend_together(before)
        except (DatabaseUnavailableError, PoolTimeoutError):
            raise
        except EngineError as error:
            # One stream that PostgreSQL refuses must not cost the others their leases.
            logger.warning("%d leases of streams are extended one by one: %s", len(before), error)
            for key, message in before.items():
                try:
                    await self._extend_together({key: message})
                except (DatabaseUnavailableError, PoolTimeoutError):
                    raise
                except EngineError as refusal:
                    logger.warning("the lease of message %.80r is not extended: %s", key.message_id, refusal)

    async def _extend_together(self, before: dict[StreamKey, LiveMessage]) -> None:
        sent_at = asyncio.get_running_loop().time()
        still_ours = await self._rows.extend_leases(self._owner, list(before))
        for key, message in before.items():
            if key in still_ours:
                message.leased_until = sent_at + self.seconds
                if message.awaits_lease:
                    self._flusher.schedule(message)
            elif self._live.get(key) is message and not message.is_closing:
                message.is_lost = True
                del self._live[key]

    async def _refill(self, flushed: dict[StreamKey, int]) -> None:
        written = await self._backend.heads(list(flushed)) if flushed else {}
        lost: Iterable[StreamKey] = (key for key, sequence in flushed.items() if written.get(key, 0) < sequence)
        self._flusher.rewrite([live for key in lost if (live := self._live.get(key)) is not None])


def _log_frozen(key: StreamKey, error: StreamUnavailableError) -> None:
    logger.debug("the stream of message %.80r stays frozen until the freeze expires: %s", key.message_id, error)


def check_reason(finish_reason: str | None) -> str | None:
    return None if finish_reason is None else check_text("finish_reason", finish_reason)
