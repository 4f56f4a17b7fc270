"""What a stream of token deltas is made of, and what a backend that carries them promises.

A message is streamed as chunks 1, 2, 3 … without a gap. Chunks travel in segments: what one flush of the producing
process carried. Which streams are open, and what became of them, is written in PostgreSQL whatever the backend is; a
backend carries the chunks of open streams between processes and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Protocol
from uuid import UUID

THOUGHT = "thought"
"""The role of a stream that is no message: what a model thinks."""
_LONG = 255


@dataclass(frozen=True)
class Chunk:
    """One delta of a message. Numbers begin at 1 and have no gaps."""

    sequence: int
    delta: str


class StreamStatus(StrEnum):
    """Where a stream stands; an ended one never changes again."""

    STREAMING = "streaming"
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class StreamHead:
    """How far a message has come."""

    thread_id: str
    message_id: str
    role: str
    author: str
    run_id: str | None
    status: StreamStatus
    current_sequence: int


@dataclass(frozen=True)
class ChunkPage:
    """Some chunks of a message, in order and without a gap. `has_more`: more of what was asked for is there now.

    `current_sequence` of an ended message below a chunk that the reader has: its producer and the backend were lost
    before that chunk was stored. The stored message is shorter, and the reader must read it again from the start.
    """

    chunks: list[Chunk]
    current_sequence: int
    has_more: bool
    status: StreamStatus


@dataclass(frozen=True)
class StreamKey:
    """Names a stream."""

    thread_id: UUID
    message_id: str

    @cached_property
    def address(self) -> StreamAddress:
        """The same in a bounded number of bytes, as doorbells carry it."""
        digest = hashlib.md5(self.message_id.encode(), usedforsecurity=False).hexdigest()
        return self.thread_id, digest


StreamAddress = tuple[UUID, str]


@dataclass(frozen=True)
class Segment:
    """Chunks that follow each other, as one text and the length of each."""

    first_sequence: int
    text: str
    lengths: bytes
    count: int

    @classmethod
    def of(cls, first_sequence: int, deltas: Sequence[str]) -> Segment:
        """The segment of some deltas."""
        return cls(first_sequence, "".join(deltas), pack_lengths([len(delta) for delta in deltas]), len(deltas))

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + self.count - 1

    def chunks(self, *, after: int = 0) -> list[Chunk]:
        """Its chunks behind a number."""
        return cut(self.text, unpack_lengths(self.lengths), first_sequence=self.first_sequence, after=after)


def cut(text: str, lengths: Sequence[int], *, first_sequence: int = 1, after: int = 0) -> list[Chunk]:
    """A text as the chunks it was streamed in, those behind a number."""
    chunks = []
    start = 0
    for sequence, length in enumerate(lengths, first_sequence):
        if sequence > after:
            chunks.append(Chunk(sequence, text[start : start + length]))
        start += length
    return chunks


def pack_lengths(lengths: Sequence[int]) -> bytes:
    """Lengths in one byte each; one that needs more is 255 and then four bytes."""
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
    """Undoes `pack_lengths`."""
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


@dataclass(frozen=True)
class Write:
    """A segment on its way to the backend."""

    key: StreamKey
    app_name: str
    segment: Segment


@dataclass(frozen=True)
class Refused:
    """What a backend did not take in of some writes.

    Streams that lack what came before: the backend lost it, and it must be written again from the first chunk on. And
    streams that somebody is ending right now: whoever writes keeps what it has and tries again.
    """

    lacking: set[StreamKey] = field(default_factory=set)
    sealed: set[StreamKey] = field(default_factory=set)


@dataclass(frozen=True)
class Movement:
    """What a doorbell says: a stream reached a chunk, or ended there."""

    address: StreamAddress
    sequence: int
    status: StreamStatus


OnMoved = Callable[[Iterable[Movement]], None]


class DeltaStream(Protocol):
    """Carries the chunks of open streams between processes. A doorbell that gets lost costs latency, never data."""

    async def start(self, on_moved: OnMoved) -> None:
        """Begins; what moves in other processes is told from now on."""
        ...

    async def close(self) -> None:
        """Stops."""
        ...

    async def ping(self) -> None:
        """Whether chunks can travel; `StreamUnavailableError` and what is wrong when they cannot."""
        ...

    async def write(self, writes: Sequence[Write]) -> Refused:
        """Writes segments of many streams in one trip, and rings. Writing one again is harmless."""
        ...

    async def append(self, key: StreamKey, app_name: str, segment: Segment) -> tuple[str, int]:
        """Appends to a stream that no process owns: `appended`, `known` (it begins before the end), `gap`, `ended`,
        `owned` or `missing`, and how far the stream reaches."""
        ...

    async def read(self, asked: Sequence[tuple[StreamKey, int]], *, limit: int) -> dict[StreamKey, list[Segment]]:
        """The segments behind a chunk, for many streams in one trip, each in order, at most `limit` of each."""
        ...

    async def heads(self, keys: Sequence[StreamKey]) -> dict[StreamKey, int]:
        """How far each stream was written; 0 for nothing."""
        ...

    async def seal(self, key: StreamKey) -> None:
        """Nothing more is written: the message is about to be stored. Who dies meanwhile leaves a seal that melts."""
        ...

    async def unseal(self, key: StreamKey) -> None:
        """It was not stored: its producer is alive."""
        ...
