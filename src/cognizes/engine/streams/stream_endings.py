"""Ends streams: what was said becomes a stored message, all of it, once, whoever ends it.

While somebody ends a stream nothing more may be written to it: PostgreSQL sees to that by a lock and by looking at the
chunks again, other backends by a seal. So nothing that was written is missing in what is stored.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from uuid import UUID

from cognizes.engine.errors import ConflictError, NotFoundError, StreamUnavailableError
from cognizes.engine.streams.delta_log import DeltaLog
from cognizes.engine.streams.delta_stream import THOUGHT, DeltaStream, StreamKey, StreamStatus
from cognizes.engine.streams.finished_messages import fit_lengths
from cognizes.engine.streams.flusher import Flusher
from cognizes.engine.streams.live_message import LiveMessage, head_of
from cognizes.engine.streams.stream_hub import StreamHub
from cognizes.engine.streams.stream_rows import EndAnswer, Ending, StreamRow, StreamRows

logger = logging.getLogger(__name__)

_SEGMENTS_PER_TRIP = 100


class StreamEndings:
    """Ends streams of this process (`live`, which it keeps), of producers without an object, and of silent ones."""

    def __init__(
        self,
        rows: StreamRows,
        backend: DeltaStream,
        hub: StreamHub,
        flusher: Flusher,
        live: dict[StreamKey, LiveMessage],
        *,
        owner: UUID,
    ) -> None:
        self._rows = rows
        self._backend = backend
        self._hub = hub
        self._flusher = flusher
        self._live = live
        self._owner = owner

    async def end_live(
        self, live: LiveMessage, status: StreamStatus, *, finish_reason: str | None = None, settles: bool = False
    ) -> int:
        """Ends a message of this process; with `settles`, one that somebody else has stored. Again answers the same."""
        live.is_closing = True
        live.closing_since = asyncio.get_running_loop().time()
        try:
            ending = Ending(status, live.log.last_sequence, live.log.text, live.log.lengths, finish_reason)
            if settles:
                ending = await self._fit(live.row.key, ending)
            return await self._end(live.row, ending, owner=self._owner, settles=settles)
        except (ConflictError, NotFoundError):
            self._live.pop(live.row.key, None)
            raise
        except BaseException:
            # It is still ours: the caller may try again, or write on.
            live.is_closing = live.row.key not in self._live
            # Nothing of it was flushed meanwhile.
            self._flusher.touch(live)
            raise

    async def end_open(self, key: StreamKey, status: StreamStatus, *, finish_reason: str | None = None) -> int:
        """Ends a stream that no process owns."""
        row = await self._rows.find(key)
        if row is None:
            raise NotFoundError(f"there is no stream of the message {key.message_id[:80]!r}; open one first")
        if row.owner is not None:
            raise ConflictError(f"another producer writes the message {key.message_id[:80]!r}; it ends it, too")
        return await self._end(row, await self.read_ending(row, status, finish_reason), owner=None)

    async def end_silent(self, row: StreamRow) -> None:
        """Ends a stream whose lease ran out; nothing when its producer is heard of again."""
        await self._end(row, await self.read_ending(row, StreamStatus.INTERRUPTED), only_expired=True)

    async def end_run(self, thread_id: UUID, run_id: str) -> None:
        """Stores what a run was saying as interrupted: whoever executed it is gone, or must not write any more."""
        rows = await self._rows.list_streams([thread_id])
        # What was thought comes before what was said.
        for row in sorted(rows, key=lambda row: row.role != THOUGHT):
            if row.run_id == run_id and row.status is StreamStatus.STREAMING:
                try:
                    if (live := self._live.get(row.key)) is not None:
                        # Readers of this process were shown all of it, flushed or not.
                        await self.end_live(live, StreamStatus.INTERRUPTED)
                        continue
                    ending = await self.read_ending(row, StreamStatus.INTERRUPTED)
                    await self._end(row, ending, owner=row.owner)
                except (NotFoundError, ConflictError) as error:
                    logger.debug("a stream of run %s ended by itself: %s", run_id, error)

    async def read_ending(self, row: StreamRow, status: StreamStatus, finish_reason: str | None = None) -> Ending:
        """What the backend has of a stream, to which nothing more is written from now on."""
        if row.status is StreamStatus.STREAMING:
            await self._backend.seal(row.key)
        return await self._read(row.key, status, finish_reason)

    async def _read(self, key: StreamKey, status: StreamStatus, finish_reason: str | None) -> Ending:
        """Of one that lost its beginning, what there is, under its own numbers."""
        log = DeltaLog()
        while True:
            segments = (await self._backend.read([(key, log.last_sequence)], limit=_SEGMENTS_PER_TRIP))[key]
            for segment in segments:
                while segment.first_sequence > log.last_sequence + 1:
                    log.append("")
                log.extend(segment)
            if len(segments) < _SEGMENTS_PER_TRIP:
                return Ending(status, log.last_sequence, log.text, log.lengths, finish_reason)

    async def _end(
        self,
        row: StreamRow,
        ending: Ending,
        *,
        owner: UUID | None = None,
        only_expired: bool = False,
        settles: bool = False,
    ) -> int:
        """Ends a stream and tells everybody; `ConflictError` when it had ended in another way."""
        # What another process writes may have grown while PostgreSQL was away: the backend may have lost the freeze.
        is_own = row.key in self._live
        refresh = None if is_own else partial(self.read_ending, row, ending.status, ending.finish_reason)
        while True:
            answer = await self._rows.end(
                row,
                ending,
                owner=owner,
                only_expired=only_expired,
                settles=settles,
                refresh=None if settles else refresh,
            )
            match answer.answer:
                case "moved":
                    ending = await self._read(row.key, ending.status, ending.finish_reason)
                case "stored":
                    # Its producer died right after it was stored, unless this is the producer, who knows better.
                    status = ending.status if row.owner == self._owner else StreamStatus.COMPLETED
                    ending, settles = await self._fit(row.key, replace(ending, status=status)), True
                case "alive" | "lost":
                    await self._unseal(row.key)
                    break
                case _:
                    break
        return self._after_end(row, ending, answer)

    async def _unseal(self, key: StreamKey) -> None:
        """Its producer writes on: now, or when the seal has melted."""
        try:
            await self._backend.unseal(key)
        except StreamUnavailableError as error:
            logger.debug("a stream that goes on is still sealed: %s", error)

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
        self._hub.tell(head_of(row, answer.final_sequence, answer.status))
        if ending.status is StreamStatus.COMPLETED and answer.status is StreamStatus.INTERRUPTED:
            raise ConflictError(f"the message {name} was stored as interrupted: its producer was silent for too long")
        return answer.final_sequence

    async def _fit(self, key: StreamKey, ending: Ending) -> Ending:
        """The ending of a stream whose message somebody else stored."""
        body = await self._rows.read_body(key)
        if body is None:
            # Its event said nothing after all.
            return Ending(StreamStatus.INTERRUPTED, 0, "", b"")
        count, lengths = fit_lengths(ending.lengths, streamed=ending.text, stored=body.text)
        return Ending(ending.status, count, body.text, lengths)
