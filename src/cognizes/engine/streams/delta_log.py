"""What a process has of a message that is being streamed."""

from __future__ import annotations

from bisect import bisect_right
from itertools import chain

from cognizes.engine.streams.delta_stream import Chunk, Segment

_PACK_DELTAS = 1024
_PACK_CHARACTERS = 64 * 1024
_SEGMENT_DELTAS = 16 * 1024
_SEGMENT_CHARACTERS = 256 * 1024


class DeltaLog:
    """Deltas in order. All of the text is kept as long as the message is unfinished, because all of it will be stored;
    older deltas are packed, so that it costs little more than the text. Nothing here grows with the square of it.
    """

    def __init__(self, base: int = 0) -> None:
        self.base = base
        self.last_sequence = base
        self._packed: list[Segment] = []
        self._ends: list[int] = []
        self._recent: list[str] = []
        self._recent_characters = 0

    def append(self, delta: str) -> int:
        """Adds a delta; returns its number."""
        self._recent.append(delta)
        self._recent_characters += len(delta)
        self.last_sequence += 1
        if len(self._recent) >= _PACK_DELTAS or self._recent_characters >= _PACK_CHARACTERS:
            self._pack()
        return self.last_sequence

    def extend(self, segment: Segment) -> None:
        """Adds what of a segment is new."""
        if segment.last_sequence <= self.last_sequence:
            return
        if segment.first_sequence == self.last_sequence + 1 and segment.count > _PACK_DELTAS // 8:
            self._pack()
            self._add(segment)
            self.last_sequence = segment.last_sequence
            return
        for chunk in segment.chunks(after=self.last_sequence):
            self.append(chunk.delta)

    def chunks(self, *, after: int, limit: int, up_to: int | None = None) -> list[Chunk]:
        """The chunks behind a number, at most so many."""
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

    def segments(self, *, after: int) -> list[Segment]:
        """What came behind a number, in segments of a bounded size, to be written somewhere else."""
        segments: list[Segment] = []
        deltas: list[str] = []
        characters = 0
        first = after + 1
        for delta in self._deltas(after):
            deltas.append(delta)
            characters += len(delta)
            if len(deltas) >= _SEGMENT_DELTAS or characters >= _SEGMENT_CHARACTERS:
                segments.append(Segment.of(first, deltas))
                first += len(deltas)
                deltas, characters = [], 0
        if deltas:
            segments.append(Segment.of(first, deltas))
        return segments

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(chain((segment.text for segment in self._packed), self._recent))

    @property
    def lengths(self) -> bytes:
        """The lengths of all deltas, packed."""
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
