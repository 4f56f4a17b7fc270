"""The default backend: an UNLOGGED table and NOTIFY."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from cognizes.engine.database import Database
from cognizes.engine.database.documents import escape_text, unescape_text
from cognizes.engine.streams.backend import OnNotification, RefusedWrites, SegmentWrite
from cognizes.engine.streams.chunks import Segment, StreamKey, format_notifications, pack_lengths


class PostgresBackend:
    """Chunks in `message_chunks`. A crash of PostgreSQL truncates the table; living producers write it again.

    Its notifications arrive on `stream_moved`, on which streams of every backend announce their start and their end.
    """

    def __init__(self, database: Database, *, idle_seconds: float) -> None:
        self._database = database
        self._idle = timedelta(seconds=idle_seconds)

    async def start(self, on_notification: OnNotification) -> None:
        """Do nothing: the engine's listener receives the notifications."""

    async def close(self) -> None:
        """Do nothing: the engine closes the database."""

    async def ping(self) -> None:
        """Do nothing: `/health` checks the database itself."""

    async def write(self, writes: Sequence[SegmentWrite]) -> RefusedWrites:
        """Write with one statement for all streams and one notification."""
        heads = {write.key.address: write.segment.last_sequence for write in writes}
        segments = [write.segment for write in writes]
        rows = await self._database.fetch(
            "flush_chunks",
            [write.key.thread_id for write in writes],
            [write.key.message_id for write in writes],
            [write.app_name for write in writes],
            [segment.first_sequence for segment in segments],
            [segment.last_sequence for segment in segments],
            [escape_text(segment.text) for segment in segments],
            [segment.lengths for segment in segments],
            list(format_notifications(heads.items())),
        )
        return RefusedWrites(incomplete={writes[row["place"] - 1].key for row in rows})

    async def append(self, key: StreamKey, segment: Segment) -> tuple[str, int]:
        """Append under the lock of the stream's row."""
        row = await self._database.fetch_row(
            "append_chunks",
            key.thread_id,
            key.message_id,
            segment.first_sequence,
            segment.last_sequence,
            escape_text(segment.text),
            segment.lengths,
            self._idle,
        )
        assert row is not None  # noqa: S101 - the function always returns a row
        return row["status"], row["current_sequence"] or 0

    async def read(self, asked: Sequence[tuple[StreamKey, int]], *, limit: int) -> dict[StreamKey, list[Segment]]:
        """Read with one query for all streams."""
        found: dict[StreamKey, list[Segment]] = {key: [] for key, _ in asked}
        threads, ids = [key.thread_id for key, _ in asked], [key.message_id for key, _ in asked]
        for row in await self._database.fetch("read_chunks", threads, ids, [after for _, after in asked], limit):
            text = unescape_text(row["delta"])
            lengths = row["lengths"] if row["lengths"] is not None else pack_lengths([len(text)])
            first = row["first_sequence"] or row["sequence"]
            segment = Segment(first, text, lengths, row["sequence"] - first + 1)
            found[asked[row["place"] - 1][0]].append(segment)
        for segments in found.values():
            # A segment flushed just after a crash may lie within one that was then written again from the start.
            segments.sort(key=lambda segment: segment.first_sequence)
        return found

    async def heads(self, keys: Sequence[StreamKey]) -> dict[StreamKey, int]:
        """Read with one query for all streams."""
        if not keys:
            return {}
        rows = await self._database.fetch(
            "read_chunk_heads", [key.thread_id for key in keys], [key.message_id for key in keys]
        )
        return {keys[row["place"] - 1]: row["sequence"] or 0 for row in rows}

    async def freeze(self, key: StreamKey) -> None:
        """Do nothing: `end_stream` locks the stream's row and checks the chunks again."""

    async def unfreeze(self, key: StreamKey) -> None:
        """Do nothing: there is no freeze."""
