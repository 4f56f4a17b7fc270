"""Finished messages, cut into the chunks they were streamed in."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from cognizes.engine.streams.delta_stream import (
    Chunk,
    ChunkPage,
    StreamKey,
    StreamStatus,
    pack_lengths,
    unpack_lengths,
)
from cognizes.engine.streams.stream_rows import StoredBody, StreamRows

_CHARACTERS_KEPT = 64 * 1024 * 1024


@dataclass(frozen=True)
class FinishedMessage:
    """A text that does not change any more, and where each of its chunks ends."""

    text: str
    ends: array[int]
    status: StreamStatus

    @classmethod
    def of(cls, text: str, lengths: Sequence[int], status: StreamStatus) -> FinishedMessage:
        return cls(text, array("Q", accumulate(lengths)), status)

    def page(self, *, after: int, up_to: int | None, limit: int) -> ChunkPage:
        """Some of its chunks; what it costs does not depend on how long the message is."""
        last = len(self.ends)
        wanted = last if up_to is None else min(last, up_to)
        stop = min(wanted, after + limit)
        chunks = [
            Chunk(number, self.text[self.ends[number - 2] if number > 1 else 0 : self.ends[number - 1]])
            for number in range(after + 1, stop + 1)
        ]
        return ChunkPage(chunks, last, has_more=stop < wanted, status=self.status)


class FinishedMessages:
    """Reads finished messages; keeps the newest few, so that a long one is not read anew for each of its pages."""

    def __init__(self, rows: StreamRows) -> None:
        self._rows = rows
        self._kept: OrderedDict[StreamKey, FinishedMessage] = OrderedDict()
        self._characters = 0

    async def find(self, key: StreamKey) -> FinishedMessage | None:
        """A message whose stream has ended."""
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return kept
        message = await self.read(key)
        if message is not None:
            self._keep(key, message)
        return message

    async def read(self, key: StreamKey) -> FinishedMessage | None:
        """A stored message; one that was never streamed has one chunk."""
        body = await self._rows.read_body(key)
        return None if body is None else FinishedMessage.of(body.text, _lengths(body), body.status)

    def _keep(self, key: StreamKey, message: FinishedMessage) -> None:
        if key in self._kept or _weight(message) > _CHARACTERS_KEPT:
            return
        self._kept[key] = message
        self._characters += _weight(message)
        while self._characters > _CHARACTERS_KEPT:
            _, dropped = self._kept.popitem(last=False)
            self._characters -= _weight(dropped)


def fit_lengths(lengths: bytes, *, streamed: str, stored: str) -> tuple[int, bytes]:
    """The lengths of the chunks of a message that somebody else stored: with the rest that was not streamed as one
    chunk more; of another text than was streamed, with the rest of it in the last chunk."""
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


def _lengths(body: StoredBody) -> Sequence[int]:
    if body.lengths is not None:
        return unpack_lengths(body.lengths)
    return [len(body.text)] if body.text else []


def _weight(message: FinishedMessage) -> int:
    return len(message.text) + 8 * len(message.ends)
