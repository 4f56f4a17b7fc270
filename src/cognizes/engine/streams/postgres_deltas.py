"""The default backend: an UNLOGGED table, and the doorbell that PostgreSQL has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from uuid import UUID

from cognizes.engine.database import Database
from cognizes.engine.database.documents import escape_text, unescape_text
from cognizes.engine.streams.delta_stream import (
    Movement,
    OnMoved,
    Refused,
    Segment,
    StreamAddress,
    StreamKey,
    StreamStatus,
    Write,
    pack_lengths,
)

CHANNEL = "stream_moved"
_MOVEMENTS_PER_PAYLOAD = 60
"""A movement takes about 110 bytes; PostgreSQL refuses payloads of 8000."""


def parse_movements(payload: str) -> list[Movement]:
    """What a doorbell says; nothing when it is not one of ours."""
    try:
        return [
            Movement((UUID(thread_id), str(digest)), int(sequence), StreamStatus(status))
            for thread_id, digest, sequence, status in json.loads(payload)
        ]
    except (ValueError, TypeError, AttributeError):
        return []


def spell_movements(moved: Iterable[tuple[StreamAddress, int]]) -> Iterator[str]:
    """Doorbells that say how far some open streams have come, each of a bounded size."""
    spelled = [[str(thread_id), digest, sequence, "streaming"] for (thread_id, digest), sequence in moved]
    for start in range(0, len(spelled), _MOVEMENTS_PER_PAYLOAD):
        yield json.dumps(spelled[start : start + _MOVEMENTS_PER_PAYLOAD], separators=(",", ":"))


class PostgresDeltas:
    """Chunks in `message_chunks`. A crash of PostgreSQL empties the table; living producers fill it again."""

    def __init__(self, database: Database, *, idle_seconds: float) -> None:
        self._database = database
        self._idle = timedelta(seconds=idle_seconds)

    async def start(self, on_moved: OnMoved) -> None:
        """Everything that moves is told by `stream_moved`, which streams of either backend ring when they open and
        end: who starts the backend hears it already."""

    async def close(self) -> None:
        """Nothing is open."""

    async def ping(self) -> None:
        """They travel through the engine's own database, which is looked at anyway."""

    async def write(self, writes: Sequence[Write]) -> Refused:
        """One statement for all streams, one notification."""
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
            list(spell_movements(heads.items())),
        )
        return Refused(lacking={writes[row["place"] - 1].key for row in rows})

    async def append(self, key: StreamKey, app_name: str, segment: Segment) -> tuple[str, int]:
        """Under the lock of the stream's row."""
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
        assert row is not None  # noqa: S101 - the function always answers
        return row["status"], row["current_sequence"] or 0

    async def read(self, asked: Sequence[tuple[StreamKey, int]], *, limit: int) -> dict[StreamKey, list[Segment]]:
        """One query for all."""
        found: dict[StreamKey, list[Segment]] = {key: [] for key, _ in asked}
        threads, ids = [key.thread_id for key, _ in asked], [key.message_id for key, _ in asked]
        for row in await self._database.fetch("read_chunks", threads, ids, [after for _, after in asked], limit):
            text = unescape_text(row["delta"])
            lengths = row["lengths"] if row["lengths"] is not None else pack_lengths([len(text)])
            first = row["first_sequence"] or row["sequence"]
            segment = Segment(first, text, lengths, row["sequence"] - first + 1)
            found[asked[row["place"] - 1][0]].append(segment)
        for segments in found.values():
            # What was flushed just after a crash may lie within what was then written again from the start.
            segments.sort(key=lambda segment: segment.first_sequence)
        return found

    async def heads(self, keys: Sequence[StreamKey]) -> dict[StreamKey, int]:
        """One query for all."""
        if not keys:
            return {}
        rows = await self._database.fetch(
            "read_chunk_heads", [key.thread_id for key in keys], [key.message_id for key in keys]
        )
        return {keys[row["place"] - 1]: row["sequence"] or 0 for row in rows}

    async def seal(self, key: StreamKey) -> None:
        """The row's lock does it: who stores the message sees what was appended before."""

    async def unseal(self, key: StreamKey) -> None:
        """There was none."""
