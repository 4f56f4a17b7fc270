"""The interface of the backends that carry the chunks of open streams between processes.

`message_streams` in PostgreSQL records which streams are open and how the others ended, with every backend. A backend
carries chunks and nothing else. A lost notification costs latency, never data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cognizes.engine.streams.chunks import Segment, StreamKey


@dataclass(frozen=True)
class SegmentWrite:
    key: StreamKey
    app_name: str
    segment: Segment


@dataclass(frozen=True)
class RefusedWrites:
    """The streams whose segments a backend did not accept.

    `incomplete` streams lack the preceding chunks, because the backend lost them: the producer writes them again from
    the first chunk. `frozen` streams are being ended by another process: the producer keeps its chunks and retries.
    """

    incomplete: set[StreamKey] = field(default_factory=set)
    frozen: set[StreamKey] = field(default_factory=set)


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
