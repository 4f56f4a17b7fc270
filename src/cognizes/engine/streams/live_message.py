"""A message that this process is writing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cognizes.engine.database.documents import dump_json, text_bytes
from cognizes.engine.errors import ConflictError, InvalidInputError, LimitExceededError
from cognizes.engine.streams.delta_log import DeltaLog
from cognizes.engine.streams.delta_stream import StreamHead, StreamStatus
from cognizes.engine.streams.stream_rows import StreamRow

_ENVELOPE_BYTES = 4096
"""What an event costs beside its text."""


@dataclass(eq=False)
class LiveMessage:
    """Its deltas, how far other processes can read them, and whether it is still ours to write."""

    row: StreamRow
    app_name: str
    max_bytes: int
    log: DeltaLog = field(default_factory=DeltaLog)
    flushed: int = 0
    is_closing: bool = False
    is_lost: bool = False
    is_abandoned: bool = False
    size: int = 0
    unflushed: int = 0
    leased_until: float = math.inf
    """By the clock of the event loop: until then no other process ends this stream because of its lease."""
    awaits_lease: bool = False
    closing_since: float = 0.0
    has_ended: bool = False

    @property
    def head(self) -> StreamHead:
        """How far it has come."""
        return head_of(self.row, self.log.last_sequence)

    @property
    def is_flushed(self) -> bool:
        """Whether what is written goes to other processes; one that is being ended is about to be stored instead."""
        return not self.is_closing and not self.is_lost

    @property
    def is_ending(self) -> bool:
        """Whether its end was asked for and is not stored yet."""
        return self.is_closing and not self.is_lost and not self.has_ended

    def add(self, delta: str) -> None:
        """Takes a delta in, or refuses it."""
        if self.is_lost:
            raise ConflictError(
                f"the message {self.row.key.message_id[:80]!r} is no longer ours to write: this process was not heard "
                "of for too long, and the message was stored as interrupted; begin a new one"
            )
        if self.is_closing:
            raise ConflictError(f"the message {self.row.key.message_id[:80]!r} is finished; begin a new one")
        if not isinstance(delta, str):
            raise InvalidInputError(f"a delta must be text, not {type(delta).__name__}")
        size = text_bytes(dump_json(delta))
        if self.size + size + _ENVELOPE_BYTES > self.max_bytes:
            raise LimitExceededError(
                "the message", size=self.size + size, limit=self.max_bytes, setting="COGNIZES_MAX_EVENT_BYTES"
            )
        self.size += size - 2
        self.unflushed += size
        self.log.append(delta)


def head_of(row: StreamRow, sequence: int, status: StreamStatus | None = None) -> StreamHead:
    """The head of a stream as its row describes it."""
    return StreamHead(
        str(row.key.thread_id), row.key.message_id, row.role, row.author, row.run_id, status or row.status, sequence
    )
