"""The backends that carry the chunks of open streams between processes: their interface, and the default one.

`message_streams` in PostgreSQL records which streams are open and how the others ended, with every backend. A backend
carries chunks and nothing else. A lost notification costs latency, never data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from cognizes.engine.database import Database
from cognizes.engine.database.documents import escape_text, unescape_text
from cognizes.engine.streams.chunks import Segment, StreamKey, format_notifications, pack_lengths


@dataclass(frozen=True)
class SegmentWrite:
    """A segment to write. `owner` is the process that opened the stream: one that has another owner now refuses it."""

    key: StreamKey
    owner: UUID | None
    app_name: str
    segment: Segment


@dataclass(frozen=True)
class RefusedWrites:
    """The streams whose segments a backend did not accept.

    `incomplete` streams lack the preceding chunks, because the backend lost them: the producer writes them again from
    the first chunk. `frozen` streams are being ended by another process: the producer keeps its chunks and retries.
    `lost` streams ended, or another process opened them again: the producer can write them no longer.
    """

    incomplete: set[StreamKey] = field(default_factory=set)
    frozen: set[StreamKey] = field(default_factory=set)
    lost: set[StreamKey] = field(default_factory=set)


OnNotification = Callable[[str], None]
"""Takes the text of notifications; `chunks.parse_notifications` reads it."""


class ChunkBackend(Protocol):
    """Carries the chunks of open streams between processes."""

    async def start(self, on_notification: OnNotification) -> None:
        """Connect, and call back for what other processes write."""
        ...

    async def close(self) -> None: ...

    async def ping(self) -> None:
        """Raise `StreamUnavailableError` if chunks cannot be carried now."""
        ...

    async def write(self, writes: Sequence[SegmentWrite]) -> RefusedWrites:
        """Write segments of many streams in one round trip and notify. Writing a segment again changes nothing."""
        ...

    async def append(self, key: StreamKey, segment: Segment) -> tuple[str, int]:
        """Append to a stream without an owning process; return the result and the stream's last sequence.

        The result is `appended`, `known` (the segment begins before the end), `gap`, `ended`, `owned` or `missing`.
        """
        ...

    async def read(self, asked: Sequence[tuple[StreamKey, int]], *, limit: int) -> dict[StreamKey, list[Segment]]:
        """Return the segments after a chunk for many streams in one round trip, in order, at most `limit` of each."""
        ...

    async def heads(self, keys: Sequence[StreamKey]) -> dict[StreamKey, int]:
        """Return the last sequence of each stream; 0 if it has no chunks."""
        ...

    async def freeze(self, key: StreamKey) -> None:
        """Refuse writes, because the message is about to be stored. The freeze expires if its holder crashes."""
        ...

    async def unfreeze(self, key: StreamKey) -> None:
        """Accept writes again, because the message was not stored."""
        ...

    async def reopen(self, key: StreamKey, owner: UUID | None) -> None:
        """Accept writes again, from the new owner of the stream only."""
        ...

    async def delete(self, keys: Sequence[StreamKey]) -> None:
        """Delete the chunks of streams whose threads were deleted."""
        ...


class PostgresBackend:
    """Keeps chunks in the UNLOGGED table `message_chunks`.

    A crash of PostgreSQL truncates the table; living producers write their chunks again. Its
    notifications arrive on `stream_moved`, where streams of every backend announce their start and end.
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
            "write_chunks",
            [write.key.thread_id for write in writes],
            [write.key.message_id for write in writes],
            [write.owner for write in writes],
            [write.app_name for write in writes],
            [segment.first_sequence for segment in segments],
            [segment.last_sequence for segment in segments],
            [escape_text(segment.text) for segment in segments],
            [segment.lengths for segment in segments],
            list(format_notifications(heads.items())),
        )
        refused = RefusedWrites()
        for row in rows:
            (refused.lost if row["refusal"] == "lost" else refused.incomplete).add(writes[row["place"] - 1].key)
        return refused

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

    async def reopen(self, key: StreamKey, owner: UUID | None) -> None:
        """Do nothing: the row of the stream has the owner."""

    async def delete(self, keys: Sequence[StreamKey]) -> None:
        """Do nothing: deleting a thread deletes its chunks."""
