"""Reading messages chunk by chunk: those of this process, open ones of other processes, and finished ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from cachetools import LRUCache

from cognizes.engine.errors import ConflictError, NotFoundError
from cognizes.engine.streams.backend import ChunkBackend
from cognizes.engine.streams.chunks import (
    Chunk,
    ChunkPage,
    DeltaLog,
    FinishedMessage,
    StreamHead,
    StreamKey,
    StreamStatus,
    unpack_lengths,
)
from cognizes.engine.streams.stream_rows import StreamRows
from cognizes.engine.streams.writer import LiveMessage

MAX_PAGE = 10_000
_SEGMENTS_PER_READ = 100
_CACHED_BYTES = 64 * 1024 * 1024


class StreamReader:
    """Reads chunks. A chunk has the same sequence and text wherever and whenever it is read.

    The newest finished messages stay in memory, so a long one is read once for all its pages.
    """

    def __init__(self, rows: StreamRows, backend: ChunkBackend, live: Mapping[StreamKey, LiveMessage]) -> None:
        self._rows = rows
        self._backend = backend
        self._live = live
        self._finished: LRUCache[StreamKey, FinishedMessage] = LRUCache(
            _CACHED_BYTES, getsizeof=lambda message: message.weight
        )

    async def read(self, key: StreamKey, *, after: int, up_to: int | None, limit: int) -> ChunkPage:
        """Return the chunks after a sequence that exist now; `NotFoundError` if there is no such message."""
        limit = min(limit, MAX_PAGE)
        if (live := self._live.get(key)) is not None:
            return live.log.page(after=after, up_to=up_to, limit=limit)
        row = await self._rows.find(key)
        if row is None or row.status is not StreamStatus.STREAMING:
            # Without a row the cache is not used: the thread may have been deleted.
            message = await (self._read_finished(key) if row is None else self._find_finished(key))
            if message is None:
                raise NotFoundError(f"there is no message {key.message_id[:80]!r} in thread {key.thread_id}")
            return message.page(after=after, up_to=up_to, limit=limit)
        log, is_all = await self._read_log(key, after=after, limit=limit)
        head = log.last_sequence if is_all else (await self._backend.heads([key])).get(key, 0)
        chunks = log.chunks(after=after, limit=limit, up_to=up_to)
        last = chunks[-1].sequence if chunks else after
        has_more = bool(chunks) and last < (head if up_to is None else min(head, up_to))
        return ChunkPage(chunks, head, has_more, StreamStatus.STREAMING)

    async def heads(self, thread_ids: list[UUID]) -> list[StreamHead]:
        rows = await self._rows.list_open(thread_ids)
        remote = [row.key for row in rows if row.key not in self._live]
        written = await self._backend.heads(remote) if remote else {}
        return [
            live.head if (live := self._live.get(row.key)) is not None else row.head(written.get(row.key, 0))
            for row in rows
        ]

    async def count_known(self, key: StreamKey, first_sequence: int, deltas: list[str], *, has_ended: bool) -> int:
        """Return how many of some deltas exist with the same text; `ConflictError` if one exists with another text."""
        known: list[Chunk] = []
        while len(known) < len(deltas):
            after = first_sequence - 1 + len(known)
            page = await self.read(key, after=after, up_to=None, limit=MAX_PAGE)
            known += page.chunks
            if not page.has_more:
                break
        known = known[: len(deltas)]
        for chunk, delta in zip(known, deltas, strict=False):
            if chunk.delta != delta:
                raise ConflictError(f"chunk {chunk.sequence} exists with another content; another producer wrote it")
        if has_ended and len(known) < len(deltas):
            raise ConflictError(f"the message {key.message_id[:80]!r} is finished; open a new one")
        return len(known)

    async def _read_log(self, key: StreamKey, *, after: int, limit: int) -> tuple[DeltaLog, bool]:
        """Return the chunks after a sequence up to the first gap, and whether they reach the stream's head."""
        log = DeltaLog(base=after)
        while True:
            segments = (await self._backend.read([(key, log.last_sequence)], limit=_SEGMENTS_PER_READ))[key]
            for segment in segments:
                if segment.first_sequence > log.last_sequence + 1:
                    return log, False
                log.extend(segment)
            if len(segments) < _SEGMENTS_PER_READ:
                return log, log.last_sequence > after
            if log.last_sequence - after >= limit:
                return log, False

    async def _find_finished(self, key: StreamKey) -> FinishedMessage | None:
        if (cached := self._finished.get(key)) is not None:
            return cached
        message = await self._read_finished(key)
        if message is not None and message.weight <= _CACHED_BYTES:
            self._finished[key] = message
        return message

    async def _read_finished(self, key: StreamKey) -> FinishedMessage | None:
        """Read a stored message; one that was not streamed has one chunk."""
        body = await self._rows.read_body(key)
        if body is None:
            return None
        lengths: Sequence[int] = [len(body.text)] if body.text else []
        if body.lengths is not None:
            lengths = unpack_lengths(body.lengths)
        return FinishedMessage.of(body.text, lengths, body.status)
