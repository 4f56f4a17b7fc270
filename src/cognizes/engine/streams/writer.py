"""Writing messages token by token: the message in memory, its writer, and the flusher of the process."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self
from uuid import UUID

from cognizes.engine.concurrency import WakeUp
from cognizes.engine.database.documents import dump_json, text_bytes
from cognizes.engine.errors import (
    ConflictError,
    DatabaseUnavailableError,
    EngineError,
    InvalidInputError,
    LimitExceededError,
)
from cognizes.engine.models import JsonObject
from cognizes.engine.streams.backend import ChunkBackend, RefusedWrites, SegmentWrite
from cognizes.engine.streams.chunks import DeltaLog, Segment, StreamHead, StreamKey, StreamRow
from cognizes.engine.supervision import SupervisedLoop, Supervisor
from cognizes.engine.telemetry import TELEMETRY

logger = logging.getLogger(__name__)

_ENVELOPE_BYTES = 4096
"""The size of an event without its text."""
_LARGEST_ESCAPE = 8
"""More bytes than the stored JSON takes for any character: a control character has six, an escaped surrogate seven."""
_FLUSH_SECONDS = 0.02
_RETRY_SECONDS = 0.25
_ENDING_SECONDS = 0.25
"""A message that is not stored after this time is flushed: if its process dies, another one stores all of it."""
_BATCH_CHARACTERS = 4 * 1024 * 1024


@dataclass(eq=False)
class LiveMessage:
    """A message that this process writes: its deltas, the part that is flushed, and whether the process still owns it.

    `changed` is called with the thread's id after each delta. `leased_until` is a time of the event loop's clock; no
    other process ends this stream before because of its lease.
    """

    row: StreamRow
    app_name: str
    max_bytes: int
    changed: Callable[[UUID], None]
    log: DeltaLog = field(default_factory=DeltaLog)
    flushed: int = 0
    is_closing: bool = False
    is_lost: bool = False
    is_abandoned: bool = False
    unflushed: int = 0
    leased_until: float = math.inf
    awaits_lease: bool = False
    closing_since: float = 0.0
    has_ended: bool = False
    _size: int = 0
    _is_exact: bool = False

    @property
    def head(self) -> StreamHead:
        return self.row.head(self.log.last_sequence)

    @property
    def is_flushed(self) -> bool:
        """Whether its deltas go to the backend; those of a message that is being ended are about to be stored."""
        return not self.is_closing and not self.is_lost

    @property
    def is_ending(self) -> bool:
        """Whether its end was requested and is not stored yet."""
        return self.is_closing and not self.is_lost and not self.has_ended

    def add(self, delta: str) -> None:
        """Append a delta; raise if the message has ended, is lost, or becomes larger than an event may be."""
        if self.is_lost:
            raise ConflictError(
                f"the message {self.row.key.message_id[:80]!r} is no longer ours to write: its lease expired and "
                "another process stored it as interrupted; begin a new one"
            )
        if self.is_closing:
            raise ConflictError(f"the message {self.row.key.message_id[:80]!r} is finished; begin a new one")
        if not isinstance(delta, str):
            raise InvalidInputError(f"a delta must be text, not {type(delta).__name__}")
        size = self._measure(delta)
        self._size += size
        self.unflushed += text_bytes(delta)
        self.log.append(delta)
        self.changed(self.row.key.thread_id)

    def _measure(self, delta: str) -> int:
        """Return an upper bound of a delta's JSON size; in the upper half of the limit, its exact size."""
        if not self._is_exact:
            size = len(delta) * _LARGEST_ESCAPE
            if self._size + size + _ENVELOPE_BYTES <= self.max_bytes:
                return size
            self._size = _json_bytes(self.log.text)
            self._is_exact = self._size + size + _ENVELOPE_BYTES > self.max_bytes // 2
            if not self._is_exact:
                return size
        size = _json_bytes(delta)
        if self._size + size + _ENVELOPE_BYTES > self.max_bytes:
            raise LimitExceededError(
                "the message", size=self._size + size, limit=self.max_bytes, setting="COGNIZES_MAX_EVENT_BYTES"
            )
        return size


def _json_bytes(text: str) -> int:
    return text_bytes(dump_json(text)) - 2


@dataclass(frozen=True)
class _Part:
    message: LiveMessage
    head: int
    unflushed: int
    segments: list[Segment]


class Flusher:
    """Writes the deltas of all messages of the process to the backend: one round trip, at most every 20 ms.

    While the backend is unavailable, deltas stay in memory. A message with more than `buffer_bytes` unflushed blocks
    its producer, which gets the backend's error after `retry_seconds`.
    """

    def __init__(
        self, backend: ChunkBackend, *, buffer_bytes: int, retry_seconds: float, supervisor: Supervisor | None = None
    ) -> None:
        self._backend = backend
        self._supervisor = supervisor or Supervisor()
        self._buffer_bytes = buffer_bytes
        self._retry_seconds = retry_seconds
        self._dirty: dict[StreamKey, LiveMessage] = {}
        self._work = WakeUp()
        self._progress = WakeUp()
        self._loop: SupervisedLoop | None = None
        self.failure: EngineError | None = None

    @property
    def is_idle(self) -> bool:
        return not self._dirty

    def start(self) -> None:
        self._loop = self._supervisor.start("stream-flusher", self._flush_round, longest_pause=_RETRY_SECONDS)

    async def close(self) -> None:
        """Stop; unflushed deltas stay in this process."""
        if self._loop is not None:
            await self._loop.stop()
            self._loop = None

    def schedule(self, message: LiveMessage) -> None:
        self._dirty[message.row.key] = message
        self._work.notify()

    def rewrite(self, messages: Iterable[LiveMessage]) -> None:
        """Write messages that the backend lost again from the first chunk."""
        for message in messages:
            message.flushed = 0
            self.schedule(message)

    def has_room(self, message: LiveMessage) -> bool:
        """Return whether a producer may continue without waiting."""
        return message.unflushed <= self._buffer_bytes

    async def wait_for_room(self, message: LiveMessage) -> None:
        """Wait until the backend accepted enough deltas; raise its error after `retry_seconds`.

        Return at once for a message that has ended or is lost: nothing of it is flushed any more.
        """
        deadline = asyncio.get_running_loop().time() + self._retry_seconds
        while not self.has_room(message) and message.is_flushed:
            left = deadline - asyncio.get_running_loop().time()
            if left > 0 and await self._progress.wait(self._progress.version, timeout=left):
                continue
            if self.failure is not None:
                raise self.failure from None
            if message.awaits_lease:
                raise DatabaseUnavailableError(
                    "the lease of the message cannot be extended, and its chunks are held back until it is; "
                    "try again in a moment"
                ) from None
            deadline += self._retry_seconds

    async def drain(self, messages: Iterable[LiveMessage], *, seconds: float) -> None:
        """Wait at most `seconds` until the backend has all deltas of some messages."""
        waiting = list(messages)
        try:
            async with asyncio.timeout(seconds):
                while any(message.unflushed and message.is_flushed for message in waiting):
                    await self._progress.wait(self._progress.version)
        except TimeoutError:
            logger.warning("the backend of streams did not accept the last chunks of %d messages", len(waiting))

    async def _flush_round(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._dirty:
            await self._work.wait(self._work.version)
        started = loop.time()
        pause = _FLUSH_SECONDS
        try:
            await self._flush()
            self.failure = None
        except EngineError as error:
            if self.failure is None:
                logger.warning("the backend of streams is unavailable, chunks stay in memory: %s", error)
            self.failure = error
            if (counted := TELEMETRY.instruments) is not None:
                counted.stream_errors.labels("write").inc()
            pause = _RETRY_SECONDS
        await asyncio.sleep(max(0.0, pause - (loop.time() - started)))

    async def _flush(self) -> None:
        dirty, self._dirty = self._dirty, {}
        now = asyncio.get_running_loop().time()
        waiting = [message for message in dirty.values() if self._is_due(message, now)]
        if len(waiting) < len(dirty) or any(message.is_ending for message in waiting):
            self._progress.notify()
        try:
            while waiting:
                taken = self._take(waiting)
                try:
                    await self._send(taken)
                except BaseException:
                    waiting += [part.message for part in taken]
                    raise
        finally:
            for message in waiting:
                self._dirty.setdefault(message.row.key, message)

    def _is_due(self, message: LiveMessage, now: float) -> bool:
        if message.is_ending:
            # Storing usually takes less time than this and makes the flush unnecessary.
            if now < message.closing_since + _ENDING_SECONDS:
                self.schedule(message)
                return False
        elif not message.is_flushed:
            return False
        # A backend that lost the stream lost its freeze, too. Without a lease another process may be storing the
        # message, and readers would receive chunks that are not stored.
        message.awaits_lease = message.flushed == 0 and now >= message.leased_until
        return not message.awaits_lease

    @staticmethod
    def _take(waiting: list[LiveMessage]) -> list[_Part]:
        taken: list[_Part] = []
        characters = 0
        while waiting and characters < _BATCH_CHARACTERS:
            message = waiting.pop()
            segments = message.log.segments(after=message.flushed)
            characters += sum(len(segment.text) for segment in segments)
            taken.append(_Part(message, message.log.last_sequence, message.unflushed, segments))
        return taken

    async def _send(self, taken: list[_Part]) -> None:
        writes = [
            SegmentWrite(part.message.row.key, part.message.row.owner, part.message.app_name, segment)
            for part in taken
            for segment in part.segments
        ]
        refused = await self._backend.write(writes) if writes else RefusedWrites()
        for part in taken:
            if part.message.row.key in refused.frozen:
                # Another process is ending it. Either its lease shows that it is lost, or the freeze goes.
                self.schedule(part.message)
                continue
            if part.message.row.key in refused.lost:
                # If it is being ended here, PostgreSQL tells the caller whether this process ended it.
                if not part.message.is_closing:
                    part.message.is_lost = True
                continue
            part.message.flushed = max(part.message.flushed, part.head)
            part.message.unflushed -= part.unflushed
        self.rewrite(part.message for part in taken if part.message.row.key in refused.incomplete)
        self._progress.notify()


class MessageEnder(Protocol):
    """Ends messages of this process; `StreamEndings` implements it."""

    async def complete(
        self, live: LiveMessage, *, finish_reason: str | None = None, content: JsonObject | None = None
    ) -> int: ...

    async def abort(self, live: LiveMessage, *, content: JsonObject | None = None) -> int: ...

    async def mark_stored(self, live: LiveMessage) -> int: ...


class MessageWriter:
    """A message being written: `async with streams.write_message(session) as message: await message.write("tok")`.

    Leaving the block completes the message. Leaving it by an exception stores the text so far as interrupted.
    """

    def __init__(
        self, message_id: str, begin: Callable[[], Awaitable[LiveMessage]], *, flusher: Flusher, ender: MessageEnder
    ) -> None:
        self.message_id = message_id
        self._begin = begin
        self._flusher = flusher
        self._ender = ender
        self._live: LiveMessage | None = None

    async def open(self) -> Self:
        self._live = await self._begin()
        return self

    @property
    def live(self) -> LiveMessage:
        """The open message; `ConflictError` before it is opened."""
        if self._live is None:
            raise ConflictError("the message is not open; enter it with `async with`")
        return self._live

    @property
    def current_sequence(self) -> int:
        return self._live.log.last_sequence if self._live else 0

    @property
    def text(self) -> str:
        return self._live.log.text if self._live else ""

    async def write(self, text: str) -> None:
        """Append a chunk, unless it is empty. Readers of this process get it at once, others in about 20 ms."""
        live = self.live
        if not self._flusher.has_room(live):
            await self._flusher.wait_for_room(live)
        if text != "":
            live.add(text)
            self._flusher.schedule(live)

    async def complete(self, finish_reason: str | None = None, *, content: JsonObject | None = None) -> int:
        """Store the message and its event; return the number of chunks. A repeated call returns the same.

        `content` is the content of the event of a tool call, whose text is only its arguments. The event of any other
        message contains it beside the text.
        """
        return await self._ender.complete(self.live, finish_reason=finish_reason, content=content)

    async def abort(self, *, content: JsonObject | None = None) -> int:
        """Store the text so far as interrupted; store nothing if there is none."""
        return await self._ender.abort(self.live, content=content)

    async def mark_stored(self) -> int:
        """End the stream of a message that another component stored under this message's id."""
        return await self._ender.mark_stored(self.live)

    def abandon(self) -> None:
        """Let the engine end the message as interrupted, unless it has ended."""
        if self._live is not None:
            self._live.is_abandoned = True

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is None or self._live.is_closing:
            return
        try:
            if error is None:
                await self.complete()
            else:
                # Also when the task is cancelled: the text must not wait for the lease to expire.
                await asyncio.shield(self.abort())
        except EngineError as failure:
            if error is None:
                raise
            # The exception of the block is the one to raise.
            logger.warning("the message %.80r is not ended yet, the engine retries: %s", self.message_id, failure)
        finally:
            self.abandon()
