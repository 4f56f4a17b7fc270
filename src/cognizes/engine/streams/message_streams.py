"""`engine.streams`: messages that are written chunk by chunk and read from any process while they grow.

- A chunk that was written is read by this process at once and by others within about 20 ms; all see the same chunks
  under the same numbers, while the message grows and ever after.
- Completing a message stores it and its event in one transaction; from then on the stored body is the only source.
- A producer that died leaves an interrupted message with what it had flushed, within seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID, uuid4

from cognizes.engine.database import Database
from cognizes.engine.errors import ConflictError, EngineError, InvalidInputError, NotFoundError
from cognizes.engine.models import Session, new_id
from cognizes.engine.pulse.events import check_name, check_text
from cognizes.engine.pulse.pg_notify_listener import PgNotifyListener
from cognizes.engine.pulse.session_store import SessionStore, thread_uuid
from cognizes.engine.settings import Settings
from cognizes.engine.streams.delta_stream import (
    THOUGHT,
    ChunkPage,
    DeltaStream,
    Movement,
    Segment,
    StreamHead,
    StreamKey,
    StreamStatus,
)
from cognizes.engine.streams.flusher import Flusher
from cognizes.engine.streams.followed_streams import FollowedStreams
from cognizes.engine.streams.live_message import LiveMessage, head_of
from cognizes.engine.streams.message_writer import MessageWriter
from cognizes.engine.streams.postgres_deltas import CHANNEL, PostgresDeltas, parse_movements
from cognizes.engine.streams.stream_endings import StreamEndings
from cognizes.engine.streams.stream_hub import StreamHub, StreamWatch
from cognizes.engine.streams.stream_leases import StreamLeases
from cognizes.engine.streams.stream_reader import StreamReader
from cognizes.engine.streams.stream_rows import ROLES, StreamRow, StreamRows
from cognizes.engine.supervision import Supervisor

logger = logging.getLogger(__name__)

_MAX_SEQUENCE = 2**63 - 1
_LAST_WORDS_SECONDS = 5.0
_LAST_FLUSH_SECONDS = 2.0


class MessageStreams:
    """Writes, reads and watches streams."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        listener: PgNotifyListener,
        sessions: SessionStore,
        backend: DeltaStream,
        *,
        supervisor: Supervisor | None = None,
    ) -> None:
        supervisor = supervisor or Supervisor()
        self._settings = settings
        self._listener = listener
        self._sessions = sessions
        self.backend = backend
        self._owner = uuid4()
        self._live: dict[StreamKey, LiveMessage] = {}
        self._rows = StreamRows(database, settings, checks_chunks=isinstance(backend, PostgresDeltas))
        self._reader = StreamReader(self._rows, backend, self._live)
        self._hub = StreamHub(self._reader.look, self._is_followed, supervisor=supervisor)
        self._followed = FollowedStreams(backend, self._rows.find_open, self._hub.wake, supervisor=supervisor)
        self.flusher = Flusher(
            backend,
            buffer_bytes=settings.stream_buffer_bytes,
            patience=settings.retry_seconds,
            supervisor=supervisor,
        )
        self.endings = StreamEndings(self._rows, backend, self._hub, self.flusher, self._live, owner=self._owner)
        self.leases = StreamLeases(
            self._rows,
            backend,
            self.flusher,
            self.endings,
            self._live,
            owner=self._owner,
            seconds=settings.stream_lease_seconds,
            supervisor=supervisor,
        )

    async def start(self) -> None:
        """Begins to flush, to hear of others' streams and to look after leases."""
        self._listener.tap(CHANNEL, self._on_doorbell)
        self._listener.on_reconnect(self._hub.sweep)
        await self.backend.start(self._hub.on_moved)
        self.flusher.start()
        self._followed.start()
        self._hub.start()
        self.leases.start()

    async def close(self) -> None:
        """Ends: messages that are still being written are stored as interrupted, all at once and within one limit."""
        if ending := [asyncio.create_task(self._end_or_log(live)) for live in self._live.values()]:
            await asyncio.wait(ending, timeout=_LAST_WORDS_SECONDS)
            if late := [task for task in ending if not task.done()]:
                logger.warning("%d messages could not be ended in time; they will be when their leases end", len(late))
                for task in late:
                    task.cancel()
                await asyncio.wait(late)
        if self._live:
            # Another process will store these from what is in the backend.
            await self.flusher.drain(self._live.values(), seconds=_LAST_FLUSH_SECONDS)
        await self.leases.close()
        await self.flusher.close()
        await self._hub.close()
        await self._followed.close()
        await self.backend.close()

    async def _end_or_log(self, live: LiveMessage) -> None:
        try:
            await self.abort_live(live)
        except EngineError as error:
            logger.warning("a message could not be ended and will be when its lease is over: %s", error)
        except Exception:
            logger.exception("a message could not be ended and will be when its lease is over")

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
        """A message to be entered with `async with` and written; the session may be given by its thread's id."""
        return MessageWriter(
            self,
            session,
            message_id=message_id or str(new_id()),
            role=role,
            author=author or ("assistant" if role == THOUGHT else role),
            run_id=run_id,
            invocation_id=invocation_id,
        )

    async def begin(
        self,
        session: Session | str | UUID,
        message_id: str,
        *,
        role: str,
        author: str,
        run_id: str | None,
        invocation_id: str,
    ) -> LiveMessage:
        """Opens a stream that this process writes; for `MessageWriter`."""
        thread_id = await self._sessions.find_thread(session) if isinstance(session, Session) else thread_uuid(session)
        row = _new_row(StreamKey(thread_id, message_id), role, author, run_id, owner=self._owner)
        if row.key in self._live:
            raise ConflictError(f"the message {message_id[:80]!r} is being written already; choose another message_id")
        leased_until = asyncio.get_running_loop().time() + self._settings.stream_lease_seconds
        app_name = await self._rows.open(
            row.key,
            role=role,
            author=author,
            run_id=run_id,
            invocation_id=check_text("invocation_id", invocation_id),
            owner=self._owner,
        )
        if row.key in self._live:
            raise ConflictError(f"the message {message_id[:80]!r} is being written already; choose another message_id")
        live = LiveMessage(row, app_name, self._settings.max_event_bytes, leased_until=leased_until)
        self._live[row.key] = live
        self._hub.tell(live.head)
        return live

    def on_written(self, live: LiveMessage) -> None:
        """A delta was added to a message of this process."""
        self.flusher.touch(live)
        if self._hub.is_watched(live.row.key.thread_id):
            self._hub.tell(live.head)
        else:
            self._hub.wake(live.row.key.address)

    async def complete_live(self, live: LiveMessage, *, finish_reason: str | None = None) -> int:
        """Stores a message of this process."""
        return await self.endings.end_live(live, StreamStatus.COMPLETED, finish_reason=_check_reason(finish_reason))

    async def abort_live(self, live: LiveMessage) -> int:
        """Stores what was written of a message of this process."""
        return await self.endings.end_live(live, StreamStatus.INTERRUPTED)

    async def settle_live(self, live: LiveMessage) -> int:
        """Ends the stream of a message of this process that is stored already."""
        return await self.endings.end_live(live, StreamStatus.COMPLETED, settles=True)

    # Writing, by producers that hold no object

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
        """Opens a stream that any process may append to; returns the message's id. `ConflictError` when it is taken.

        A stream that nobody appends to for `stream_idle_seconds` is stored as interrupted.
        """
        key = StreamKey(thread_uuid(thread_id), message_id or str(new_id()))
        row = _new_row(key, role, author or role, run_id, owner=None)
        await self._rows.open(
            key,
            role=role,
            author=row.author,
            run_id=run_id,
            invocation_id=check_text("invocation_id", invocation_id),
            owner=None,
        )
        self._hub.tell(head_of(row, 0))
        return key.message_id

    async def append(
        self, thread_id: str | UUID, message_id: str, *, first_sequence: int, deltas: Sequence[str]
    ) -> int:
        """Appends chunks and returns how far the message reaches.

        Sending the same range again changes nothing. A gap, another content under a known number, or a stream that
        somebody else writes is a `ConflictError`. An empty delta is a chunk like any other, since producers count them.
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
            answer, current = await self.backend.append(key, "", Segment.of(first_sequence, deltas))
            match answer:
                case "appended":
                    self._hub.wake(key.address)
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
        """Stores the message and its event; returns its last chunk's number. Again answers the same."""
        return await self.endings.end_open(
            StreamKey(thread_uuid(thread_id), message_id),
            StreamStatus.COMPLETED,
            finish_reason=_check_reason(finish_reason),
        )

    async def abort(self, thread_id: str | UUID, message_id: str) -> int:
        """Stores what there is of the message as interrupted; of one that ended before, answers how far it reached."""
        return await self.endings.end_open(StreamKey(thread_uuid(thread_id), message_id), StreamStatus.INTERRUPTED)

    async def interrupt_run(self, thread_id: UUID, run_id: str) -> None:
        """Stores what a run was saying as interrupted: whoever executed it is gone, or must not write any more."""
        await self.endings.end_run(thread_id, run_id)

    # Reading

    async def read(
        self,
        thread_id: str | UUID,
        message_id: str,
        *,
        after: int = 0,
        up_to: int | None = None,
        limit: int = 1000,
        wait: float = 0.0,
    ) -> ChunkPage:
        """The chunks behind a number, of a message that is being streamed or was, or was stored whole (one chunk).

        With `wait`, an open stream that has nothing more is waited for, so many seconds. `NotFoundError` when there is
        no such message.
        """
        key = StreamKey(thread_uuid(thread_id), check_text("message_id", message_id))
        _check_number("after", after, least=0)
        _check_number("limit", limit, least=1)
        if up_to is not None:
            _check_number("up_to", up_to, least=0)
        return await self._reader.wait(
            key, self._hub, self._followed, after=after, up_to=up_to, limit=limit, seconds=wait
        )

    async def heads(self, thread_ids: Iterable[str | UUID], *, with_thoughts: bool = False) -> list[StreamHead]:
        """The messages that are being streamed in these threads now; with those that are thought if asked for."""
        found = await self._reader.look([thread_uuid(thread_id) for thread_id in thread_ids], 0.0)
        shown = [head for head in found if with_thoughts or head.role != THOUGHT]
        return [head for head in shown if head.status is StreamStatus.STREAMING]

    def watch(self, *thread_ids: str | UUID, with_thoughts: bool = False) -> StreamWatch:
        """Heads of what is streamed in these threads, as they move: `async with streams.watch(id) as watch`."""
        return StreamWatch(self._hub, [thread_uuid(thread_id) for thread_id in thread_ids], with_thoughts=with_thoughts)

    def on_thread_moved(self, callback: Callable[[UUID], None]) -> None:
        """Register a plain function that is called with the thread of every stream that moved, of any process."""
        self._hub.on_thread_moved(callback)

    def _is_followed(self, movement: Movement) -> bool:
        return self._followed.take(movement)

    def _on_doorbell(self, payload: str) -> None:
        self._hub.on_moved(parse_movements(payload))


def _new_row(key: StreamKey, role: str, author: str, run_id: str | None, *, owner: UUID | None) -> StreamRow:
    check_text("message_id", key.message_id)
    check_text("author", author)
    if run_id is not None:
        check_name("run_id", run_id)
    if role not in ROLES:
        raise InvalidInputError(f"{role!r} is not a role; there is {', '.join(ROLES)}")
    return StreamRow(key, role, author, run_id, StreamStatus.STREAMING, owner, None)


def _check_number(what: str, value: Any, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MAX_SEQUENCE:
        raise InvalidInputError(f"{what} must be a number from {least} on")


def _check_reason(finish_reason: str | None) -> str | None:
    return None if finish_reason is None else check_text("finish_reason", finish_reason)
