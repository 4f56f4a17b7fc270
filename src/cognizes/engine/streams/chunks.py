"""The data of token streams: chunks, segments, streams, notifications, and the log of an unfinished message.

A message is streamed as chunks 1, 2, 3 … without a gap. Chunks travel in segments: a segment holds what one flush of
the producing process carried.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import accumulate, chain
from uuid import UUID

MAX_PAGE = 10_000
"""The largest number of chunks of one read."""
THOUGHT = "thought"
"""The role of a stream that carries a model's reasoning and becomes no message."""
THOUGHT_SUFFIX = "/thought"
"""The id of the reasoning before a message is the message's id and this suffix."""
CALL = "call"
"""The role of a stream with the arguments of a tool call. Its first chunk is a `CallHead`, and it becomes an `act`."""
CALL_INFIX = "/call/"
"""A call that is a part of an event is streamed under the id of that event, this infix and the id of the call."""
HIDDEN_ROLES = (THOUGHT, CALL)
"""The roles of streams that become no message. Lists of messages that are being streamed omit them."""
_NOTIFICATIONS_PER_PAYLOAD = 60
"""A notification takes about 110 bytes; PostgreSQL refuses payloads of 8000."""
_LONG = 255
_PACK_CHARACTERS = 64 * 1024
_SEGMENT_CHARACTERS = 256 * 1024


@dataclass(frozen=True, slots=True)
class Chunk:
    """One delta of a message. Sequences begin at 1 and have no gaps."""

    sequence: int
    delta: str


class StreamStatus(StrEnum):
    """The status of a stream; completed and interrupted are final."""

    STREAMING = "streaming"
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class StreamHead:
    thread_id: str
    message_id: str
    role: str
    author: str
    run_id: str | None
    status: StreamStatus
    current_sequence: int


@dataclass(frozen=True)
class ChunkPage:
    """Consecutive chunks of a message. `has_more` says that more of the requested range exists now.

    If an ended message has a `current_sequence` below a chunk that the reader received, the producer and the backend
    lost that chunk before it was stored. The stored message is shorter, and the reader must read it from the start.
    """

    chunks: list[Chunk]
    current_sequence: int
    has_more: bool
    status: StreamStatus


StreamAddress = tuple[UUID, str]
"""A thread and the digest of a message id: a bounded number of bytes, as notifications carry it."""


@dataclass(frozen=True)
class StreamKey:
    thread_id: UUID
    message_id: str

    @cached_property
    def address(self) -> StreamAddress:
        digest = hashlib.md5(self.message_id.encode(errors="surrogatepass"), usedforsecurity=False).hexdigest()
        return self.thread_id, digest


@dataclass(frozen=True)
class StreamRow:
    """One row of `message_streams`. `began_after` is the head of the thread when the stream was opened."""

    key: StreamKey
    role: str
    author: str
    run_id: str | None
    status: StreamStatus = StreamStatus.STREAMING
    owner: UUID | None = None
    final_sequence: int | None = None
    began_after: int = 0

    def head(self, sequence: int, status: StreamStatus | None = None) -> StreamHead:
        return StreamHead(
            str(self.key.thread_id),
            self.key.message_id,
            self.role,
            self.author,
            self.run_id,
            status or self.status,
            sequence,
        )


@dataclass(frozen=True)
class CallHead:
    """The first chunk of a stream of arguments: which call of which tool it is, and the message that holds the call."""

    call_id: str
    tool_name: str
    parent_id: str

    def text(self) -> str:
        return json.dumps([self.call_id, self.tool_name, self.parent_id]) + "\n"

    @classmethod
    def split(cls, text: str) -> tuple[CallHead, str] | None:
        """Return the head and the arguments of a stream's text; None if the backend lost its beginning."""
        head, separator, arguments = text.partition("\n")
        if not separator:
            return None
        try:
            call_id, tool_name, parent_id = json.loads(head)
            return cls(str(call_id), str(tool_name), str(parent_id)), arguments
        except (ValueError, TypeError):
            return None


@dataclass(frozen=True)
class StreamNotification:
    """A stream opened, reached a chunk, or ended."""

    address: StreamAddress
    sequence: int
    status: StreamStatus


@dataclass(frozen=True)
class Segment:
    """Consecutive chunks, as one text and the length of each."""

    first_sequence: int
    text: str
    lengths: bytes
    count: int

    @classmethod
    def of(cls, first_sequence: int, deltas: Sequence[str]) -> Segment:
        return cls(first_sequence, "".join(deltas), pack_lengths([len(delta) for delta in deltas]), len(deltas))

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + self.count - 1

    def chunks(self, *, after: int = 0) -> list[Chunk]:
        chunks = []
        start = 0
        for sequence, length in enumerate(unpack_lengths(self.lengths), self.first_sequence):
            if sequence > after:
                chunks.append(Chunk(sequence, self.text[start : start + length]))
            start += length
        return chunks


def pack_lengths(lengths: Sequence[int]) -> bytes:
    """Encode lengths in one byte each; a longer one is 255 followed by four bytes."""
    if not lengths or max(lengths) < _LONG:
        return bytes(lengths)
    packed = bytearray()
    for length in lengths:
        if length < _LONG:
            packed.append(length)
        else:
            packed.append(_LONG)
            packed += length.to_bytes(4, "little")
    return bytes(packed)


def unpack_lengths(packed: bytes) -> Sequence[int]:
    if _LONG not in packed:
        return packed
    lengths = []
    place = 0
    while place < len(packed):
        length = packed[place]
        place += 1
        if length == _LONG:
            length = int.from_bytes(packed[place : place + 4], "little")
            place += 4
        lengths.append(length)
    return lengths


def fit_lengths(lengths: bytes, *, streamed: str, stored: str) -> tuple[int, bytes]:
    """Return the number and the lengths of chunks for a message that another component stored.

    Text that was not streamed becomes one more chunk. If the stored text differs from the streamed one, the last chunk
    takes the remainder.
    """
    known = list(unpack_lengths(lengths))
    if len(stored) > len(streamed) and stored.startswith(streamed):
        known.append(len(stored) - len(streamed))
    elif stored != streamed:
        rest = len(stored)
        for number, length in enumerate(known):
            known[number] = rest if number == len(known) - 1 else min(length, rest)
            rest -= known[number]
        if rest:
            known.append(rest)
    return len(known), pack_lengths(known)


def parse_notifications(payload: str) -> list[StreamNotification]:
    """Return the notifications in a payload; none if it is not in our format."""
    try:
        return [
            StreamNotification((UUID(thread_id), str(digest)), int(sequence), StreamStatus(status))
            for thread_id, digest, sequence, status in json.loads(payload)
        ]
    except (ValueError, TypeError, AttributeError):
        return []


def format_notifications(heads: Iterable[tuple[StreamAddress, int]]) -> Iterator[str]:
    """Yield payloads of a bounded size that announce the last sequences of open streams."""
    items = [[str(thread_id), digest, sequence, "streaming"] for (thread_id, digest), sequence in heads]
    for start in range(0, len(items), _NOTIFICATIONS_PER_PAYLOAD):
        yield json.dumps(items[start : start + _NOTIFICATIONS_PER_PAYLOAD], separators=(",", ":"))


class DeltaLog:
    """The deltas of an unfinished message, in order.

    It keeps the whole text, which is stored when the message ends. Older deltas are packed into segments, so the log
    costs little more than the text, and no operation is quadratic in it.
    """

    __slots__ = (
        "_ends",
        "_pack_deltas",
        "_packed",
        "_recent",
        "_recent_characters",
        "_segment_deltas",
        "base",
        "last_sequence",
    )

    def __init__(self, base: int = 0, *, pack_deltas: int = 1024, segment_deltas: int = 16 * 1024) -> None:
        self.base = base
        self._pack_deltas = pack_deltas
        self._segment_deltas = segment_deltas
        self.last_sequence = base
        self._packed: list[Segment] = []
        self._ends: list[int] = []
        self._recent: list[str] = []
        self._recent_characters = 0

    def append(self, delta: str) -> int:
        self._recent.append(delta)
        self._recent_characters += len(delta)
        self.last_sequence += 1
        if len(self._recent) >= self._pack_deltas or self._recent_characters >= _PACK_CHARACTERS:
            self._pack()
        return self.last_sequence

    def extend(self, segment: Segment) -> None:
        if segment.last_sequence <= self.last_sequence:
            return
        if segment.first_sequence == self.last_sequence + 1 and segment.count > self._pack_deltas // 8:
            self._pack()
            self._add(segment)
            self.last_sequence = segment.last_sequence
            return
        for chunk in segment.chunks(after=self.last_sequence):
            self.append(chunk.delta)

    def chunks(self, *, after: int, limit: int, up_to: int | None = None) -> list[Chunk]:
        found: list[Chunk] = []
        place = bisect_right(self._ends, after)
        while place < len(self._packed) and len(found) < limit:
            found += self._packed[place].chunks(after=after)
            place += 1
        if len(found) < limit and self._recent:
            first = self.last_sequence - len(self._recent) + 1
            start = max(after + 1 - first, 0)
            found += [
                Chunk(first + number, self._recent[number])
                for number in range(start, min(len(self._recent), start + limit - len(found)))
            ]
        if up_to is not None:
            found = [chunk for chunk in found if chunk.sequence <= up_to]
        return found[:limit]

    def page(self, *, after: int, limit: int, up_to: int | None = None) -> ChunkPage:
        """Return a page of a message that is still being streamed."""
        chunks = self.chunks(after=after, limit=limit, up_to=up_to)
        last = chunks[-1].sequence if chunks else after
        wanted = self.last_sequence if up_to is None else min(self.last_sequence, up_to)
        return ChunkPage(chunks, max(self.last_sequence, self.base), last < wanted, StreamStatus.STREAMING)

    def segments(self, *, after: int) -> list[Segment]:
        """Return the deltas after a sequence in segments of a bounded size."""
        segments: list[Segment] = []
        deltas: list[str] = []
        characters = 0
        first = after + 1
        for delta in self._deltas(after):
            deltas.append(delta)
            characters += len(delta)
            if len(deltas) >= self._segment_deltas or characters >= _SEGMENT_CHARACTERS:
                segments.append(Segment.of(first, deltas))
                first += len(deltas)
                deltas, characters = [], 0
        if deltas:
            segments.append(Segment.of(first, deltas))
        return segments

    @property
    def text(self) -> str:
        return "".join(chain((segment.text for segment in self._packed), self._recent))

    @property
    def lengths(self) -> bytes:
        self._pack()
        return b"".join(segment.lengths for segment in self._packed)

    def _deltas(self, after: int) -> list[str]:
        if after >= self.last_sequence - len(self._recent):
            start = after - (self.last_sequence - len(self._recent))
            return self._recent[start:]
        return [chunk.delta for chunk in self.chunks(after=after, limit=self.last_sequence - after)]

    def _pack(self) -> None:
        if self._recent:
            self._add(Segment.of(self.last_sequence - len(self._recent) + 1, self._recent))
            self._recent = []
            self._recent_characters = 0

    def _add(self, segment: Segment) -> None:
        self._packed.append(segment)
        self._ends.append(segment.last_sequence)


@dataclass(frozen=True)
class FinishedMessage:
    """A stored text and the end of each chunk in it."""

    text: str
    ends: array[int]
    status: StreamStatus

    @classmethod
    def of(cls, text: str, lengths: Sequence[int], status: StreamStatus) -> FinishedMessage:
        return cls(text, array("Q", accumulate(lengths)), status)

    @property
    def weight(self) -> int:
        """The approximate number of bytes that the message takes in memory."""
        return len(self.text) + 8 * len(self.ends)

    def page(self, *, after: int, up_to: int | None, limit: int) -> ChunkPage:
        """Return some chunks; the cost does not depend on the length of the message."""
        last = len(self.ends)
        wanted = last if up_to is None else min(last, up_to)
        stop = min(wanted, after + limit)
        chunks = [
            Chunk(number, self.text[self.ends[number - 2] if number > 1 else 0 : self.ends[number - 1]])
            for number in range(after + 1, stop + 1)
        ]
        return ChunkPage(chunks, last, has_more=stop < wanted, status=self.status)
