"""What all subscribers of one thread share: its head, recent events and open streams."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar, cast
from uuid import UUID

import asyncpg
from cachetools import FIFOCache

from cognizes.engine.concurrency import WakeUp
from cognizes.engine.errors import EngineError
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.pulse.events import event_from_row
from cognizes.engine.streams.chunks import (
    CALL_INFIX,
    THOUGHT_SUFFIX,
    Chunk,
    DeltaLog,
    StreamHead,
    StreamRow,
    StreamStatus,
)
from cognizes.engine.streams.writer import LiveMessage

_RECENT_BYTES = 1024 * 1024
_CHUNKS_PER_ITEM = 1000
_ENDS_KEPT = 256
_ENDED_KEPT = 4096
_Encoded = TypeVar("_Encoded")


class StreamView(Enum):
    """What a subscriber receives of token streams: their text, only their newest heads, or nothing."""

    TEXT = "text"
    HEADS = "heads"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Chunks:
    """New chunks of a streamed message. With `StreamView.HEADS` it has no chunks, only the newest head."""

    head: StreamHead
    chunks: tuple[Chunk, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """A stream ended. It follows the stored event of its message, if the stream left one."""

    head: StreamHead


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification that announces no stored event."""

    payload: JsonObject


FeedItem = Event | Chunks | StreamEnd | Notification


class FeedPage(list[FeedItem]):
    """The next events of all subscribers at one position, with what an encoder made of them.

    `last_sequence` is the last event that the page covers: of a page for a run, it may belong to another run. `size` is
    the JSON size of all covered events. More events do not fit into a page that `is_full`.
    """

    __slots__ = ("_encoded", "is_full", "last_sequence", "size")

    def __init__(self, items: Iterable[Event], *, last_sequence: int, size: int, is_full: bool) -> None:
        super().__init__(items)
        self.last_sequence = last_sequence
        self.size = size
        self.is_full = is_full
        self._encoded: tuple[object, object] | None = None

    def encoded(self, encode: Callable[[list[FeedItem]], _Encoded]) -> _Encoded:
        """Return what `encode` makes of the page. Subscribers that use the same function share the result."""
        if self._encoded is None or self._encoded[0] is not encode:
            self._encoded = (encode, encode(self))
        return cast(_Encoded, self._encoded[1])


class Position:
    """The position of one subscriber: the last event, the last chunk of each open stream, the last stream end."""

    __slots__ = ("chunks", "ends", "sequence")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.chunks: dict[str, int] | None = None
        self.ends = 0


class FollowedStream:
    """An open stream of a followed thread.

    A stream of this process is read from its writer's log. The log of a remote stream is filled from the backend, and
    exists only while a subscriber reads text. `stored_at` is the sequence of the message's event, once it is known.
    """

    __slots__ = ("_item", "is_local", "log", "remote_sequence", "row", "stored_at")

    def __init__(self, row: StreamRow, *, live: LiveMessage | None = None) -> None:
        self.row = row
        self.is_local = live is not None
        self.log: DeltaLog | None = live.log if live is not None else None
        self.remote_sequence = 0
        self.stored_at: int | None = None
        self._item: tuple[int, Chunks] | None = None

    @property
    def sequence(self) -> int:
        if self.log is None:
            return self.remote_sequence
        return max(self.log.last_sequence, self.remote_sequence)

    def is_same(self, row: StreamRow, live: LiveMessage | None) -> bool:
        """Return whether a row, of a message of this process or of another one, is the row of this stream."""
        if live is not None and self.is_local:
            return self.log is live.log
        known = self.row
        return (known.run_id, known.owner, known.began_after) == (row.run_id, row.owner, row.began_after)

    def is_due(self, sequence: int) -> bool:
        """Return whether chunks may be delivered to a subscriber that has all events up to a sequence."""
        return self.row.began_after <= sequence and (self.stored_at is None or self.stored_at > sequence)

    def chunks_after(self, sequence: int) -> Chunks | None:
        """Return the chunks after a sequence. Subscribers at the same position share the item."""
        log = self.log
        if log is None or log.last_sequence <= sequence or sequence < log.base:
            return None
        if self._item is not None and self._item[0] == sequence:
            item = self._item[1]
            if item.head.current_sequence == min(log.last_sequence, sequence + _CHUNKS_PER_ITEM):
                return item
        chunks = tuple(log.chunks(after=sequence, limit=_CHUNKS_PER_ITEM))
        item = Chunks(self.row.head(chunks[-1].sequence), chunks)
        self._item = (sequence, item)
        return item

    def follow_text(self, base: int) -> None:
        """Keep a log of a remote stream that begins at `base` or before."""
        if not self.is_local and (self.log is None or self.log.base > base):
            self.log = DeltaLog(base=base)


@dataclass(frozen=True, slots=True)
class FeedSizes:
    """Numbers of events: of a page of the shared reader, of a page for subscribers, and in memory.

    Pages for subscribers end at the multiples of their size, so that subscribers that are behind meet at the same
    position and share pages again. `recent` is not less than `page`: subscribers find all events of a page in memory.
    """

    page: int = 500
    subscriber_page: int = 128
    recent: int = 512


class ThreadChannel:
    """The shared state of a followed thread.

    `head` is -1 until it is read for the first time; until then the channel records the sequences of notifications in
    `notified`. `head_id` is the id of the event at the head: after a failover that lost events, another event may have
    its sequence. `wanted` holds the positions from which long-polls follow remote streams. `number` differs from the
    numbers of all other channels of the process.
    """

    __slots__ = (
        "_bytes",
        "_ended",
        "_ends",
        "_ends_dropped",
        "_recent",
        "_recent_events",
        "changed",
        "checked_at",
        "failure",
        "has_ended",
        "head",
        "head_id",
        "is_delayed",
        "kept_until",
        "needs_refresh",
        "notified",
        "number",
        "read_again_at",
        "streams",
        "subscribers",
        "thread_id",
        "tracks_ends",
        "views",
        "wanted",
    )

    def __init__(self, thread_id: UUID, *, number: int, recent_events: int) -> None:
        self.thread_id = thread_id
        self.number = number
        self._recent_events = recent_events
        self.head = -1
        self.head_id: str | None = None
        self.notified = 0
        self.changed = WakeUp()
        self.subscribers = 0
        self.views = [0, 0]
        self.streams: dict[str, FollowedStream] = {}
        self.wanted: dict[str, int] | None = None
        self.needs_refresh = False
        self.tracks_ends = False
        self.has_ended = False
        self.failure: EngineError | None = None
        self.kept_until = 0.0
        self.checked_at = 0.0
        self.read_again_at = 0.0
        self.is_delayed = False
        self._recent: deque[tuple[Event, int]] | None = None
        self._bytes = 0
        self._ended: FIFOCache[str, bool] | None = None
        self._ends: deque[tuple[int, str, StreamEnd]] | None = None
        self._ends_dropped = 0

    @property
    def is_open(self) -> bool:
        return self.head >= 0

    @property
    def reads_text(self) -> bool:
        return self.views[0] > 0

    @property
    def reads_heads(self) -> bool:
        return self.views[1] > 0

    @property
    def end_count(self) -> int:
        """The number of stream ends so far; a new subscriber begins after them."""
        return self._ends_dropped + (len(self._ends) if self._ends else 0)

    @property
    def recent_count(self) -> int:
        return len(self._recent) if self._recent else 0

    @property
    def has_streams(self) -> bool:
        """Whether a stream is open or an end is known."""
        return bool(self.streams) or self._ends is not None

    def count_view(self, view: StreamView, change: int) -> None:
        """Count a subscriber that enters (1) or leaves (-1)."""
        self.subscribers += change
        if view is not StreamView.NONE:
            self.views[view is StreamView.HEADS] += change

    def end(self, failure: EngineError | None = None) -> None:
        """End all subscriptions, with an error if there is one."""
        self.failure = failure
        self.has_ended = True
        self.changed.notify()

    # Events

    def advance(self, rows: Sequence[asyncpg.Record]) -> None:
        """Take in the events after the head, which have no gap. The newest is always kept, older ones within limits."""
        if self._recent is None:
            self._recent = deque()
        for row in rows:
            event = event_from_row(row)
            self._recent.append((event, row["bytes"]))
            self._bytes += row["bytes"]
            while len(self._recent) > self._recent_events or (self._bytes > _RECENT_BYTES and len(self._recent) > 1):
                self._bytes -= self._recent.popleft()[1]
            self.head, self.head_id = event.sequence_num or self.head, event.id
            if self.streams:
                self._mark_stored(event)
        self.changed.notify()

    def recent_after(self, sequence: int, *, limit: int) -> list[tuple[Event, int]] | None:
        """Return the events after a sequence and their sizes; None if memory does not reach back to it."""
        if not self._recent or (self._recent[0][0].sequence_num or 0) > sequence + 1:
            return None
        # Subscribers are usually near the head: count from the end of the deque.
        first = sequence + 1 - (self._recent[0][0].sequence_num or 0) - len(self._recent)
        return [self._recent[place] for place in range(first, min(first + limit, 0))]

    def _mark_stored(self, event: Event) -> None:
        given = event.content.get("message_id")
        for stream in self.streams.values():
            name = stream.row.key.message_id
            is_part = name == event.id + THOUGHT_SUFFIX or name.startswith(event.id + CALL_INFIX)
            if name in (event.id, given) or is_part:
                stream.stored_at = event.sequence_num

    # Streams

    def add_local(self, live: LiveMessage) -> None:
        self._add(live.row, live)
        self.changed.notify()

    def add_open(self, row: StreamRow, *, live: LiveMessage | None, stored_at: int | None) -> FollowedStream | None:
        """Take in an open stream as it is in the database; None if it has ended since."""
        if self.is_ended(row.key.address[1]):
            return None
        # The row may be older than a stream of this process.
        stream = self._add(row if live is None else live.row, live)
        if stream.stored_at is None:
            stream.stored_at = stored_at
        return stream

    def _add(self, row: StreamRow, live: LiveMessage | None) -> FollowedStream:
        """Return the stream of a row. A known stream of its id, if it is another one, was interrupted without text."""
        digest = row.key.address[1]
        self._forget_end(digest)
        known = self.streams.get(digest)
        if known is not None:
            if not known.is_same(row, live):
                if row.began_after < known.row.began_after:
                    return known  # The row was read before the stream was opened again.
                self._append_end(digest, row.began_after, known.row.head(0, StreamStatus.INTERRUPTED))
            elif live is None or known.is_local:
                return known
        stream = self.streams[digest] = FollowedStream(row, live=live)
        return stream

    def add_ended(self, row: StreamRow, *, last_sequence: int) -> None:
        """Take in an ended stream. Subscribers learn it after the events up to `last_sequence`."""
        digest = row.key.address[1]
        known = self.streams.pop(digest, None)
        if self._ended is None:
            self._ended = FIFOCache(_ENDED_KEPT)
        is_final = row.status is StreamStatus.COMPLETED or bool(row.final_sequence)
        if self._ended.get(digest) is is_final:
            return
        self._ended[digest] = is_final
        if known is not None or self.tracks_ends:
            self._append_end(digest, last_sequence, row.head(row.final_sequence or 0))

    def _append_end(self, digest: str, last_sequence: int, head: StreamHead) -> None:
        if self._ends is None:
            self._ends = deque()
        self._ends.append((last_sequence, digest, StreamEnd(head)))
        if len(self._ends) > _ENDS_KEPT:
            self._ends.popleft()
            self._ends_dropped += 1

    def is_ended(self, digest: str) -> bool:
        """Return whether a stream ended for good: one that was interrupted before its first chunk may open again."""
        return self._ended is not None and self._ended.get(digest, False)

    def _forget_end(self, digest: str) -> None:
        if self._ended is not None:
            self._ended.pop(digest, None)

    def stream_items(self, position: Position, view: StreamView) -> Iterator[Chunks | StreamEnd]:
        """Yield what is new of streams for a subscriber that has all events, and advance its position."""
        # The chunks of a stream that was opened again begin after the end of the former one.
        if self._ends is not None:
            yield from self._ends_after(position)
        if self.streams:
            if position.chunks is None:
                position.chunks = {}
            for digest, stream in list(self.streams.items()):
                if not stream.is_due(position.sequence):
                    continue
                delivered = position.chunks.get(digest, -1)
                if view is StreamView.HEADS:
                    if stream.sequence > delivered:
                        position.chunks[digest] = stream.sequence
                        yield Chunks(stream.row.head(stream.sequence))
                elif (item := stream.chunks_after(max(delivered, 0))) is not None:
                    position.chunks[digest] = item.head.current_sequence
                    yield item
        else:
            position.chunks = None

    def _ends_after(self, position: Position) -> Iterator[StreamEnd]:
        assert self._ends is not None  # noqa: S101 - the caller checks it
        place = max(position.ends - self._ends_dropped, 0)
        while place < len(self._ends):
            at, digest, item = self._ends[place]
            if at > position.sequence:
                break
            place += 1
            if position.chunks is not None:
                position.chunks.pop(digest, None)
            yield item
        position.ends = self._ends_dropped + place
