"""`engine.streams`: writing messages chunk by chunk, and reading them while they grow and after they ended.

- Readers of this process get a chunk at once, other processes within about 20 ms; all get the same chunks under the
  same sequences, during the stream and afterwards.
- Completing a message stores it and its event in one transaction; from then on the stored text is the only source.
- If a producer dies, its message is stored as interrupted within seconds, with what it had flushed.

`engine.feed` follows streams.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol
from uuid import UUID, uuid4

from cachetools import LRUCache

from cognizes.engine.concurrency import Sweeper
from cognizes.engine.database import Database
from cognizes.engine.errors import ConflictError, EngineError, InvalidInputError, NotFoundError, SetupError
from cognizes.engine.models import Session, new_id
from cognizes.engine.pulse.events import check_name, check_text
from cognizes.engine.pulse.session_store import SessionStore, thread_uuid
from cognizes.engine.settings import Settings
from cognizes.engine.streams.backend import ChunkBackend, PostgresBackend
from cognizes.engine.streams.chunks import (
    CALL,
    HIDDEN_ROLES,
    MAX_PAGE,
    THOUGHT,
    Chunk,
    ChunkPage,
    DeltaLog,
    FinishedMessage,
    Segment,
    StreamHead,
    StreamKey,
    StreamRow,
    StreamStatus,
    unpack_lengths,
)
from cognizes.engine.streams.endings import StreamEndings, StreamLeases, check_reason
from cognizes.engine.streams.stream_rows import ROLES, StreamRows
from cognizes.engine.streams.writer import Flusher, LiveMessage, MessageWriter
from cognizes.engine.supervision import Supervisor

logger = logging.getLogger(__name__)

_MAX_SEQUENCE = 2**63 - 1
_LAST_FLUSH_SECONDS = 2.0
_NO_LIMIT = 1 << 40
_SEGMENTS_PER_READ = 100
_CACHED_BYTES = 64 * 1024 * 1024


class StreamReader:
    """Reads chunks. A chunk has the same sequence and text wherever and whenever it is read.

    The newest finished messages stay in memory, so a long one is read once for all its pages.
    """

    def __init__(self, rows: StreamRows, backend: ChunkBackend, live: Mapping[StreamKey, LiveMessage]) -> None:
        self._rows = rows
        self._backend = backend
        self._live = live
        self._finished: LRUCache[StreamKey, FinishedMessage] = LRUCache(
            _CACHED_BYTES, getsizeof=lambda message: message.weight
        )

    async def read(self, key: StreamKey, *, after: int, up_to: int | None, limit: int) -> ChunkPage:
        """Return the chunks after a sequence that exist now; `NotFoundError` if there is no such message."""
        limit = min(limit, MAX_PAGE)
        if (live := self._live.get(key)) is not None:
            return live.log.page(after=after, up_to=up_to, limit=limit)
        row = await self._rows.find(key)
        if row is None or row.status is not StreamStatus.STREAMING:
            # Without a row the cache is not used: the thread may have been deleted.
            message = await (self._read_finished(key) if row is None else self._find_finished(key))
            if message is None:
                raise NotFoundError(f"there is no message {key.message_id[:80]!r} in thread {key.thread_id}")
            return message.page(after=after, up_to=up_to, limit=limit)
        log, is_all = await self._read_log(key, after=after, limit=limit)
        head = log.last_sequence if is_all else (await self._backend.heads([key])).get(key, 0)
        chunks = log.chunks(after=after, limit=limit, up_to=up_to)
        last = chunks[-1].sequence if chunks else after
        has_more = bool(chunks) and last < (head if up_to is None else min(head, up_to))
        return ChunkPage(chunks, head, has_more, StreamStatus.STREAMING)

    async def heads(self, thread_ids: list[UUID]) -> list[StreamHead]:
        rows = await self._rows.list_open(thread_ids)
        remote = [row.key for row in rows if row.key not in self._live]
        written = await self._backend.heads(remote) if remote else {}
        return [
            live.head if (live := self._live.get(row.key)) is not None else row.head(written.get(row.key, 0))
            for row in rows
        ]

    async def count_known(self, key: StreamKey, first_sequence: int, deltas: list[str], *, has_ended: bool) -> int:
        """Return how many of some deltas exist with the same text; `ConflictError` if one exists with another text."""
        known: list[Chunk] = []
        while len(known) < len(deltas):
            after = first_sequence - 1 + len(known)
            page = await self.read(key, after=after, up_to=None, limit=MAX_PAGE)
            known += page.chunks
            if not page.has_more:
                break
        known = known[: len(deltas)]
        for chunk, delta in zip(known, deltas, strict=False):
            if chunk.delta != delta:
                raise ConflictError(f"chunk {chunk.sequence} exists with another content; another producer wrote it")
        if has_ended and len(known) < len(deltas):
            raise ConflictError(f"the message {key.message_id[:80]!r} is finished; open a new one")
        return len(known)

    async def _read_log(self, key: StreamKey, *, after: int, limit: int) -> tuple[DeltaLog, bool]:
        """Return the chunks after a sequence up to the first gap, and whether they reach the stream's head."""
        log = DeltaLog(base=after)
        while True:
            segments = (await self._backend.read([(key, log.last_sequence)], limit=_SEGMENTS_PER_READ))[key]
            for segment in segments:
                if segment.first_sequence > log.last_sequence + 1:
                    return log, False
                log.extend(segment)
            if len(segments) < _SEGMENTS_PER_READ:
                return log, log.last_sequence > after
            if log.last_sequence - after >= limit:
                return log, False

    async def _find_finished(self, key: StreamKey) -> FinishedMessage | None:
        if (cached := self._finished.get(key)) is not None:
            return cached
        message = await self._read_finished(key)
        # A stream without text may be opened again.
        if message is not None and 0 < message.weight <= _CACHED_BYTES:
            self._finished[key] = message
        return message

    async def _read_finished(self, key: StreamKey) -> FinishedMessage | None:
        """Read a stored message; one that was not streamed has one chunk."""
        body = await self._rows.read_body(key)
        if body is None:
            return None
        lengths: Sequence[int] = [len(body.text)] if body.text else []
        if body.lengths is not None:
            lengths = unpack_lengths(body.lengths)
        return FinishedMessage.of(body.text, lengths, body.status)


def choose_backend(settings: Settings, database: Database, supervisor: Supervisor | None = None) -> ChunkBackend:
    """Return the Redis backend if a URL is set, else the PostgreSQL backend."""
    if settings.redis_url is None:
        return PostgresBackend(database, idle_seconds=settings.stream_idle_seconds)
    try:
        from cognizes.engine.streams.redis_backend import RedisBackend  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise SetupError(
            "REDIS_URL is set and redis is not installed; `pip install cognizes-engine[redis]`, or unset it"
        ) from error
    return RedisBackend(
        settings.redis_url.get_secret_value(),
        database,
        idle_seconds=settings.stream_idle_seconds,
        kept_seconds=settings.chunks_kept_hours * 3600,
        supervisor=supervisor,
    )


class StreamObserver(Protocol):
    """Receives what happens to streams. All methods are synchronous and return quickly."""

    def on_stream_opened(self, live: LiveMessage) -> None:
        """Take in a stream that this process opened."""
        ...

    def on_stream_changed(self, thread_id: UUID) -> None:
        """Take in that this process wrote to a stream of a thread, or ended one."""
        ...

    def on_stream_notification(self, payload: str) -> None:
        """Take in a notification of the backend."""
        ...


class MessageStreams:
    def __init__(
        self,
        database: Database,
        settings: Settings,
        sessions: SessionStore,
        backend: ChunkBackend,
        *,
        sweeper: Sweeper,
        supervisor: Supervisor | None = None,
    ) -> None:
        self.closing_seconds = 5.0
        """The time in which `close` ends the messages that are still being written."""
        self._settings = settings
        self._sessions = sessions
        self._sweeper = sweeper
        self.backend = backend
        self._owner = uuid4()
        self._live: dict[StreamKey, LiveMessage] = {}
        self._observer: StreamObserver | None = None
        self.rows = StreamRows(database, settings, checks_chunks=isinstance(backend, PostgresBackend))
        self._reader = StreamReader(self.rows, backend, self._live)
        self.flusher = Flusher(
            backend,
            buffer_bytes=settings.stream_buffer_bytes,
            retry_seconds=settings.retry_seconds,
            supervisor=supervisor,
        )
        self.endings = StreamEndings(
            self.rows, backend, self.flusher, self._live, owner=self._owner, changed=self._on_changed
        )
        self.leases = StreamLeases(
            self.rows,
            backend,
            self.flusher,
            self.endings,
            self._live,
            owner=self._owner,
            seconds=settings.stream_lease_seconds,
        )

    def observe(self, observer: StreamObserver) -> None:
        self._observer = observer

    @property
    def live_messages(self) -> int:
        """The number of messages that this process streams now."""
        return len(self._live)

    def find_live(self, key: StreamKey) -> LiveMessage | None:
        return self._live.get(key)

    async def start(self) -> None:
        await self.backend.start(self._on_notification)
        self.flusher.start()
        self.leases.start(self._sweeper)

    async def close(self) -> None:
        """Store the messages that are still being written as interrupted, concurrently and within one limit."""
        if ending := [asyncio.create_task(self._end_or_log(live)) for live in self._live.values()]:
            await asyncio.wait(ending, timeout=self.closing_seconds)
            if late := [task for task in ending if not task.done()]:
                logger.warning("%d messages could not be ended in time; they end when their leases expire", len(late))
                for task in late:
                    task.cancel()
                await asyncio.wait(late)
        if self._live:
            # Another process stores these from what the backend has.
            await self.flusher.drain(self._live.values(), seconds=_LAST_FLUSH_SECONDS)
        await self.leases.close()
        await self.flusher.close()
        await self.backend.close()

    async def _end_or_log(self, live: LiveMessage) -> None:
        try:
            await self.endings.abort(live)
        except Exception as error:
            known = isinstance(error, EngineError)
            logger.log(
                logging.WARNING if known else logging.ERROR,
                "the message %.80r is not ended and ends when its lease expires: %s",
                live.row.key.message_id,
                error,
                exc_info=None if known else error,
            )

    # Writing, by an object of this process

    def write_message(
        self,
        session: Session | str | UUID,
        *,
        role: str = "assistant",
        message_id: str | None = None,
        author: str | None = None,
        run_id: str | None = None,
        invocation_id: str = "",
    ) -> MessageWriter:
        """Return a message to be entered with `async with`; `session` may be the thread's id."""
        name = message_id or str(new_id())
        begin = partial(
            self._begin,
            session,
            name,
            role=role,
            author=author or ("assistant" if role in HIDDEN_ROLES else role),
            run_id=run_id,
            invocation_id=invocation_id,
        )
        return MessageWriter(name, begin, flusher=self.flusher, ender=self.endings)

    async def _begin(
        self,
        session: Session | str | UUID,
        message_id: str,
        *,
        role: str,
        author: str,
        run_id: str | None,
        invocation_id: str,
    ) -> LiveMessage:
        thread_id = await self._sessions.find_thread(session) if isinstance(session, Session) else thread_uuid(session)
        key = StreamKey(thread_id, check_text("message_id", message_id))
        self._check_free(key)
        leased_until = asyncio.get_running_loop().time() + self._settings.stream_lease_seconds
        row, app_name = await self._open(key, role, author, run_id, invocation_id=invocation_id, owner=self._owner)
        self._check_free(key)
        observer = self._observer
        changed = observer.on_stream_changed if observer is not None else self._on_changed
        # The recorder of a tool call counts its arguments, which its event does not contain as text.
        max_bytes = _NO_LIMIT if role == CALL else self._settings.max_event_bytes
        live = LiveMessage(row, app_name, max_bytes, changed, leased_until=leased_until)
        self._live[key] = live
        if observer is not None:
            observer.on_stream_opened(live)
        return live

    def _check_free(self, key: StreamKey) -> None:
        if key in self._live:
            raise ConflictError(
                f"the message {key.message_id[:80]!r} is already being written; choose another message_id"
            )

    async def _open(
        self, key: StreamKey, role: str, author: str, run_id: str | None, *, invocation_id: str, owner: UUID | None
    ) -> tuple[StreamRow, str]:
        check_text("message_id", key.message_id)
        check_text("author", author)
        check_text("invocation_id", invocation_id)
        if run_id is not None:
            check_name("run_id", run_id)
        if role not in ROLES:
            raise InvalidInputError(f"{role!r} is not a role; use one of {', '.join(ROLES)}")
        opened = await self.rows.open(
            key, role=role, author=author, run_id=run_id, invocation_id=invocation_id, owner=owner
        )
        row = StreamRow(key, role, author, run_id, owner=owner, began_after=opened.began_after)
        if opened.is_reopened:
            await self.endings.reopen(row)
        return row, opened.app_name

    # Writing, by producers without an object

    async def open(
        self,
        thread_id: str | UUID,
        *,
        message_id: str | None = None,
        role: str = "assistant",
        author: str | None = None,
        run_id: str | None = None,
        invocation_id: str = "",
    ) -> str:
        """Open a stream that any process may append to; return the message's id. `ConflictError` if it is taken.

        A stream without an append for `stream_idle_seconds` is stored as interrupted.
        """
        key = StreamKey(thread_uuid(thread_id), message_id or str(new_id()))
        await self._open(key, role, author or role, run_id, invocation_id=invocation_id, owner=None)
        return key.message_id

    async def append(
        self, thread_id: str | UUID, message_id: str, *, first_sequence: int, deltas: Sequence[str]
    ) -> int:
        """Append chunks and return the last sequence of the message.

        Sending the same range again changes nothing. A gap, another text under an existing sequence, or a stream of
        another producer is a `ConflictError`. An empty delta is a chunk, since producers count them.
        """
        key = StreamKey(thread_uuid(thread_id), check_text("message_id", message_id))
        _check_number("first_sequence", first_sequence, least=1)
        for delta in deltas:
            if not isinstance(delta, str):
                raise InvalidInputError(f"a delta must be text, not {type(delta).__name__}")
        if sum(map(len, deltas)) > self._settings.max_event_bytes:
            raise InvalidInputError("these deltas are larger than an event may be (COGNIZES_MAX_EVENT_BYTES)")
        deltas = list(deltas)
        while True:
            answer, current = await self.backend.append(key, Segment.of(first_sequence, deltas))
            match answer:
                case "appended":
                    return current
                case "missing":
                    raise NotFoundError(f"there is no stream of the message {message_id[:80]!r}; open one first")
                case "owned":
                    raise ConflictError(
                        f"another producer writes the message {message_id[:80]!r}; open one of your own"
                    )
                case "gap":
                    raise ConflictError(
                        f"chunk {first_sequence} leaves a gap: the message has {current}; send from {current + 1} on"
                    )
            known = await self._reader.count_known(key, first_sequence, deltas, has_ended=answer == "ended")
            if known == len(deltas):
                return max(current, first_sequence + known - 1)
            first_sequence, deltas = first_sequence + known, deltas[known:]

    async def complete(self, thread_id: str | UUID, message_id: str, *, finish_reason: str | None = None) -> int:
        """Store the message and its event; return its last sequence. A repeated call returns the same."""
        return await self.endings.end_open(
            StreamKey(thread_uuid(thread_id), message_id),
            StreamStatus.COMPLETED,
            finish_reason=check_reason(finish_reason),
        )

    async def abort(self, thread_id: str | UUID, message_id: str) -> int:
        """Store the text so far as interrupted and return its last sequence, also of a message that has ended."""
        return await self.endings.end_open(StreamKey(thread_uuid(thread_id), message_id), StreamStatus.INTERRUPTED)

    async def interrupt_run(self, thread_id: UUID, run_id: str) -> None:
        """Store the open messages of a run as interrupted: its executor is gone or must not write any more."""
        await self.endings.end_run(thread_id, run_id)

    # Reading

    async def read(
        self, thread_id: str | UUID, message_id: str, *, after: int = 0, up_to: int | None = None, limit: int = 1000
    ) -> ChunkPage:
        """Return the chunks after a sequence of an open or finished message; one stored whole has one chunk.

        `NotFoundError` if there is no such message. `engine.feed.read_chunks` also waits for more.
        """
        key = StreamKey(thread_uuid(thread_id), check_text("message_id", message_id))
        _check_number("after", after, least=0)
        _check_number("limit", limit, least=1)
        if up_to is not None:
            _check_number("up_to", up_to, least=0)
        return await self._reader.read(key, after=after, up_to=up_to, limit=limit)

    async def delete_chunks(self, keys: Sequence[StreamKey]) -> None:
        """Delete the chunks of streams from the backend: those of threads that are deleted."""
        await self.backend.delete(keys)

    async def heads(self, thread_ids: Iterable[str | UUID], *, with_thoughts: bool = False) -> list[StreamHead]:
        """Return the open messages of some threads, with `with_thoughts` also the models' reasoning."""
        found = await self._reader.heads([thread_uuid(thread_id) for thread_id in thread_ids])
        shown = {THOUGHT} if with_thoughts else set[str]()
        return [head for head in found if head.role not in HIDDEN_ROLES or head.role in shown]

    def _on_changed(self, thread_id: UUID) -> None:
        if self._observer is not None:
            self._observer.on_stream_changed(thread_id)

    def _on_notification(self, payload: str) -> None:
        if self._observer is not None:
            self._observer.on_stream_notification(payload)


def _check_number(what: str, value: Any, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MAX_SEQUENCE:
        raise InvalidInputError(f"{what} must be a number from {least} on")
