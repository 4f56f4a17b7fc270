"""Reads messages chunk by chunk: those of this process, those of others while they grow, and finished ones."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from uuid import UUID

from cognizes.engine.errors import ConflictError, DatabaseUnavailableError, NotFoundError, PoolTimeoutError
from cognizes.engine.streams.delta_log import DeltaLog
from cognizes.engine.streams.delta_stream import Chunk, ChunkPage, DeltaStream, StreamHead, StreamKey, StreamStatus
from cognizes.engine.streams.finished_messages import FinishedMessages
from cognizes.engine.streams.followed_streams import FollowedStreams
from cognizes.engine.streams.live_message import LiveMessage, head_of
from cognizes.engine.streams.stream_hub import SWEEP_SECONDS, StreamHub
from cognizes.engine.streams.stream_rows import StreamRows

_MAX_PAGE = 10_000
_SEGMENTS_PER_TRIP = 100


class StreamReader:
    """A chunk has the same number and the same content wherever and whenever it is read."""

    def __init__(self, rows: StreamRows, backend: DeltaStream, live: Mapping[StreamKey, LiveMessage]) -> None:
        self._rows = rows
        self._backend = backend
        self._live = live
        self._finished = FinishedMessages(rows)

    async def read(self, key: StreamKey, *, after: int, up_to: int | None, limit: int) -> ChunkPage:
        """What is there behind a chunk now; `NotFoundError` when there is no such message."""
        limit = min(limit, _MAX_PAGE)
        if (live := self._live.get(key)) is not None:
            return _page(live.log, after=after, up_to=up_to, limit=limit)
        row = await self._rows.find(key)
        if row is None or row.status is not StreamStatus.STREAMING:
            # Without a row nothing is taken from what is remembered: the thread may have been deleted.
            message = await (self._finished.read(key) if row is None else self._finished.find(key))
            if message is None:
                raise NotFoundError(f"there is no message {key.message_id[:80]!r} in thread {key.thread_id}")
            return message.page(after=after, up_to=up_to, limit=limit)
        log, is_all = await self._read_log(key, after=after, limit=limit)
        head = log.last_sequence if is_all else (await self._backend.heads([key])).get(key, 0)
        chunks = log.chunks(after=after, limit=limit, up_to=up_to)
        last = chunks[-1].sequence if chunks else after
        has_more = bool(chunks) and last < (head if up_to is None else min(head, up_to))
        return ChunkPage(chunks, head, has_more, StreamStatus.STREAMING)

    async def wait(
        self,
        key: StreamKey,
        hub: StreamHub,
        followed: FollowedStreams,
        *,
        after: int,
        up_to: int | None,
        limit: int,
        seconds: float,
    ) -> ChunkPage:
        """The same; an open stream that has nothing more is waited for, and so is a backend that is away."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        limit = min(limit, _MAX_PAGE)
        with hub.expecting(key) as moved:
            while True:
                moved.clear()
                left = deadline - loop.time()
                try:
                    page = followed.peek(key, after=after, up_to=up_to, limit=limit) if left > 0 else None
                    if page is None:
                        page = await self.read(key, after=after, up_to=up_to, limit=limit)
                        if left > 0 and page.status is StreamStatus.STREAMING and key not in self._live:
                            followed.follow(key, after=page.chunks[-1].sequence if page.chunks else after)
                    has_it_all = up_to is not None and page.current_sequence >= up_to
                    if page.chunks or page.status is not StreamStatus.STREAMING or has_it_all or left <= 0:
                        return page
                except (DatabaseUnavailableError, PoolTimeoutError):
                    if left <= 0:
                        raise
                try:
                    async with asyncio.timeout(min(left, SWEEP_SECONDS)):
                        await moved.wait()
                except TimeoutError:
                    continue

    async def look(self, thread_ids: list[UUID], ended_within: float) -> list[StreamHead]:
        """The heads of what is streamed in these threads, and of what ended there within so many seconds."""
        rows = await self._rows.list_streams(thread_ids, ended_within=ended_within)
        foreign = [row.key for row in rows if row.status is StreamStatus.STREAMING and row.key not in self._live]
        written = await self._backend.heads(foreign) if foreign else {}
        heads = []
        for row in rows:
            live = self._live.get(row.key)
            if row.status is not StreamStatus.STREAMING:
                heads.append(head_of(row, row.final_sequence or 0))
            else:
                heads.append(live.head if live is not None else head_of(row, written.get(row.key, 0)))
        return heads

    async def count_known(self, key: StreamKey, first_sequence: int, deltas: list[str], *, has_ended: bool) -> int:
        """How many of some deltas are there already, as they are; `ConflictError` when one is not what is there."""
        known: list[Chunk] = []
        while len(known) < len(deltas):
            after = first_sequence - 1 + len(known)
            page = await self.read(key, after=after, up_to=None, limit=_MAX_PAGE)
            known += page.chunks
            if not page.has_more:
                break
        known = known[: len(deltas)]
        for chunk, delta in zip(known, deltas, strict=False):
            if chunk.delta != delta:
                raise ConflictError(
                    f"chunk {chunk.sequence} is there already, with another content; another producer wrote it"
                )
        if has_ended and len(known) < len(deltas):
            raise ConflictError(f"the message {key.message_id[:80]!r} is finished; open a new one")
        return len(known)

    async def _read_log(self, key: StreamKey, *, after: int, limit: int) -> tuple[DeltaLog, bool]:
        """What the backend has behind a chunk, as far as it has no gap, and whether that tells how far it reaches."""
        log = DeltaLog(base=after)
        while True:
            segments = (await self._backend.read([(key, log.last_sequence)], limit=_SEGMENTS_PER_TRIP))[key]
            for segment in segments:
                if segment.first_sequence > log.last_sequence + 1:
                    return log, False
                log.extend(segment)
            if len(segments) < _SEGMENTS_PER_TRIP:
                return log, log.last_sequence > after
            if log.last_sequence - after >= limit:
                return log, False


def _page(log: DeltaLog, *, after: int, up_to: int | None, limit: int) -> ChunkPage:
    chunks = log.chunks(after=after, limit=limit, up_to=up_to)
    last = chunks[-1].sequence if chunks else after
    wanted = log.last_sequence if up_to is None else min(log.last_sequence, up_to)
    return ChunkPage(chunks, log.last_sequence, last < wanted, StreamStatus.STREAMING)
