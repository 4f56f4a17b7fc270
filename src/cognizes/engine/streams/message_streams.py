"""`engine.streams`: messages that are written chunk by chunk and read from any process while they grow.

- A chunk that was written is read by this process at once and by others within about 20 ms; all see the same chunks
  under the same numbers, while the message grows and ever after.
- Completing a message stores it and its event in one transaction; from then on the stored body is the only source.
- A producer that died leaves an interrupted message with what it had flushed, within seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from cognizes.engine.database import Database
from cognizes.engine.errors import (
    ConflictError,
    DatabaseUnavailableError,
    EngineError,
    InvalidInputError,
    NotFoundError,
    PoolTimeoutError,
)
from cognizes.engine.models import Session, new_id
from cognizes.engine.pulse.event_log import check_name, check_text
from cognizes.engine.pulse.pg_notify_listener import PgNotifyListener
from cognizes.engine.pulse.session_store import SessionStore, thread_uuid
from cognizes.engine.settings import Settings
from cognizes.engine.streams.delta_log import DeltaLog
from cognizes.engine.streams.delta_stream import (
    Chunk,
    ChunkPage,
    DeltaStream,
    Movement,
    Segment,
    StreamHead,
    StreamKey,
    StreamStatus,
)
from cognizes.engine.streams.finished_messages import FinishedMessages, fit_lengths
from cognizes.engine.streams.flusher import Flusher
from cognizes.engine.streams.followed_streams import FollowedStreams
from cognizes.engine.streams.live_message import LiveMessage, head_of
from cognizes.engine.streams.message_writer import MessageWriter
from cognizes.engine.streams.postgres_deltas import CHANNEL, PostgresDeltas, parse_movements
from cognizes.engine.streams.stream_hub import SWEEP_SECONDS, StreamHub, StreamWatch
from cognizes.engine.streams.stream_rows import ROLES, EndAnswer, Ending, StreamRow, StreamRows

logger = logging.getLogger(__name__)

_MAX_PAGE = 10_000
_MAX_SEQUENCE = 2**63 - 1
_SEGMENTS_PER_TRIP = 100
_SILENT_PER_LOOK = 20
_RETRY_SECONDS = 0.5
_LAST_WORDS_SECONDS = 5.0


class MessageStreams:
    """Writes, reads and watches streams."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        listener: PgNotifyListener,
        sessions: SessionStore,
        backend: DeltaStream,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._sessions = sessions
        self.backend = backend
        self._rows = StreamRows(database, settings, checks_chunks=isinstance(backend, PostgresDeltas))
        self._finished = FinishedMessages(self._rows)
        self._hub = StreamHub(self._look, self._is_followed)
        self._followed = FollowedStreams(backend, self._rows.find_open, self._hub.wake)
        self.flusher = Flusher(self.backend, buffer_bytes=settings.stream_buffer_bytes, patience=settings.retry_seconds)
        self._owner = uuid4()
        self._live: dict[StreamKey, LiveMessage] = {}
        self._quiet_until = 0.0
        self._keeper: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to flush, to hear of others' streams and to look after leases."""
        self._listener.tap(CHANNEL, self._on_doorbell)
        self._listener.on_reconnect(self._hub.sweep)
        await self.backend.start(self._hub.on_moved)
        self.flusher.start()
        self._followed.start()
        self._hub.start()
        self._keeper = asyncio.create_task(self._keep_forever(), name="stream-leases")

    async def close(self) -> None:
        """Ends: messages that are still being written are stored as interrupted."""
        for live in list(self._live.values()):
            try:
                async with asyncio.timeout(_LAST_WORDS_SECONDS):
                    await self.abort_live(live)
            except (EngineError, TimeoutError) as error:
                logger.warning("a message could not be ended and will be when its lease is over: %s", error)
        for task in (self._keeper, self._tidying):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        self._keeper = self._tidying = None
        await self.flusher.close()
        await self._hub.close()
        await self._followed.close()
        await self.backend.close()

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
            author=author or role,
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
        live = LiveMessage(row, app_name, self._settings.max_event_bytes)
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
        return await self._end_live(live, StreamStatus.COMPLETED, finish_reason=finish_reason)

    async def abort_live(self, live: LiveMessage) -> int:
        """Stores what was written of a message of this process."""
        return await self._end_live(live, StreamStatus.INTERRUPTED)

    async def settle_live(self, live: LiveMessage) -> int:
        """Ends the stream of a message of this process that is stored already."""
        return await self._end_live(live, StreamStatus.COMPLETED, settles=True)

    async def _end_live(
        self, live: LiveMessage, status: StreamStatus, *, finish_reason: str | None = None, settles: bool = False
    ) -> int:
        live.is_closing = True
        try:
            ending = Ending(
                status, live.log.last_sequence, live.log.text, live.log.lengths, _check_reason(finish_reason)
            )
            if settles:
                ending = await self._fit(live.row.key, ending)
            return await self._end(live.row, ending, owner=self._owner, settles=settles)
        except (ConflictError, NotFoundError):
            self._live.pop(live.row.key, None)
            raise
        except BaseException:
            # It is still ours: the caller may try again, or write on.
            live.is_closing = live.row.key not in self._live
            # Nothing of it was flushed meanwhile.
            self.flusher.touch(live)
            raise

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
            known = await self._compare(key, first_sequence, deltas, has_ended=answer == "ended")
            if known == len(deltas):
                return max(current, first_sequence + known - 1)
            first_sequence, deltas = first_sequence + known, deltas[known:]

    async def complete(self, thread_id: str | UUID, message_id: str, *, finish_reason: str | None = None) -> int:
        """Stores the message and its event; returns its last chunk's number. Again answers the same."""
        return await self._end_open(
            StreamKey(thread_uuid(thread_id), message_id), StreamStatus.COMPLETED, _check_reason(finish_reason)
        )

    async def abort(self, thread_id: str | UUID, message_id: str) -> int:
        """Stores what there is of the message as interrupted; of one that ended before, answers how far it reached."""
        return await self._end_open(StreamKey(thread_uuid(thread_id), message_id), StreamStatus.INTERRUPTED, None)

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
        limit = min(limit, _MAX_PAGE)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        with self._hub.expecting(key) as moved:
            while True:
                moved.clear()
                left = deadline - loop.time()
                try:
                    page = self._followed.peek(key, after=after, up_to=up_to, limit=limit) if left > 0 else None
                    if page is None:
                        page = await self._read_now(key, after=after, up_to=up_to, limit=limit)
                        if left > 0 and page.status is StreamStatus.STREAMING and key not in self._live:
                            self._followed.follow(key, after=page.chunks[-1].sequence if page.chunks else after)
                    has_it_all = up_to is not None and page.current_sequence >= up_to
                    if page.chunks or page.status is not StreamStatus.STREAMING or has_it_all or left <= 0:
                        return page
                except (DatabaseUnavailableError, PoolTimeoutError):
                    # Whoever has time waits for the backend, too.
                    if left <= 0:
                        raise
                try:
                    async with asyncio.timeout(min(left, SWEEP_SECONDS)):
                        await moved.wait()
                except TimeoutError:
                    continue

    async def heads(self, thread_ids: Iterable[str | UUID]) -> list[StreamHead]:
        """What is being streamed in these threads now."""
        found = await self._look([thread_uuid(thread_id) for thread_id in thread_ids], 0.0)
        return [head for head in found if head.status is StreamStatus.STREAMING]

    def watch(self, *thread_ids: str | UUID) -> StreamWatch:
        """Heads of what is streamed in these threads, as they move: `async with streams.watch(id) as watch`."""
        return StreamWatch(self._hub, [thread_uuid(thread_id) for thread_id in thread_ids])

    async def _read_now(self, key: StreamKey, *, after: int, up_to: int | None, limit: int) -> ChunkPage:
        if (live := self._live.get(key)) is not None:
            return _page(live.log, after=after, up_to=up_to, limit=limit)
        row = await self._rows.find(key)
        if row is None or row.status is not StreamStatus.STREAMING:
            # Without a row nothing is taken from what is remembered: the thread may have been deleted.
            message = await (self._finished.read(key) if row is None else self._finished.find(key))
            if message is None:
                raise NotFoundError(f"there is no message {key.message_id[:80]!r} in thread {key.thread_id}")
            return message.page(after=after, up_to=up_to, limit=limit)
        log, is_all = await self._read_log(key, after=after, limit=limit)
        head = log.last_sequence if is_all else (await self.backend.heads([key])).get(key, 0)
        chunks = log.chunks(after=after, limit=limit, up_to=up_to)
        last = chunks[-1].sequence if chunks else after
        has_more = bool(chunks) and last < (head if up_to is None else min(head, up_to))
        return ChunkPage(chunks, head, has_more, StreamStatus.STREAMING)

    async def _read_log(self, key: StreamKey, *, after: int, limit: int) -> tuple[DeltaLog, bool]:
        """What the backend has behind a chunk, as far as it has no gap, and whether that tells how far it reaches."""
        log = DeltaLog(base=after)
        while True:
            segments = (await self.backend.read([(key, log.last_sequence)], limit=_SEGMENTS_PER_TRIP))[key]
            for segment in segments:
                if segment.first_sequence > log.last_sequence + 1:
                    return log, False
                log.extend(segment)
            if len(segments) < _SEGMENTS_PER_TRIP:
                return log, log.last_sequence > after
            if log.last_sequence - after >= limit:
                return log, False

    async def _look(self, thread_ids: list[UUID], ended_within: float) -> list[StreamHead]:
        rows = await self._rows.list_streams(thread_ids, ended_within=ended_within)
        foreign = [row.key for row in rows if row.status is StreamStatus.STREAMING and row.key not in self._live]
        written = await self.backend.heads(foreign) if foreign else {}
        heads = []
        for row in rows:
            live = self._live.get(row.key)
            if row.status is not StreamStatus.STREAMING:
                heads.append(head_of(row, row.final_sequence or 0))
            else:
                heads.append(live.head if live is not None else head_of(row, written.get(row.key, 0)))
        return heads

    async def _compare(self, key: StreamKey, first_sequence: int, deltas: list[str], *, has_ended: bool) -> int:
        """How many of some deltas are there already, as they are; `ConflictError` when one is not what is there."""
        known: list[Chunk] = []
        while len(known) < len(deltas):
            after = first_sequence - 1 + len(known)
            page = await self._read_now(key, after=after, up_to=None, limit=_MAX_PAGE)
            known += page.chunks
            if not page.has_more:
                break
        known = known[: len(deltas)]
        for chunk, delta in zip(known, deltas, strict=False):
            if chunk.delta != delta:
                raise ConflictError(
                    f"chunk {chunk.sequence} is there already, with another content; another producer wrote it"
                )
        if has_ended and len(known) < len(deltas):
            raise ConflictError(f"the message {key.message_id[:80]!r} is finished; open a new one")
        return len(known)

    # Ending

    async def _end_open(self, key: StreamKey, status: StreamStatus, finish_reason: str | None) -> int:
        row = await self._rows.find(key)
        if row is None:
            raise NotFoundError(f"there is no stream of the message {key.message_id[:80]!r}; open one first")
        if row.owner is not None:
            raise ConflictError(f"another producer writes the message {key.message_id[:80]!r}; it ends it, too")
        if row.status is StreamStatus.STREAMING:
            await self.backend.seal(key)
        return await self._end(row, await self._ending(key, status, finish_reason), owner=None)

    async def _ending(self, key: StreamKey, status: StreamStatus, finish_reason: str | None = None) -> Ending:
        """What the backend has of a stream. Of one that lost its beginning, what there is, under its own numbers."""
        log = DeltaLog()
        while True:
            segments = (await self.backend.read([(key, log.last_sequence)], limit=_SEGMENTS_PER_TRIP))[key]
            for segment in segments:
                while segment.first_sequence > log.last_sequence + 1:
                    log.append("")
                log.extend(segment)
            if len(segments) < _SEGMENTS_PER_TRIP:
                return Ending(status, log.last_sequence, log.text, log.lengths, finish_reason)

    async def _end(
        self,
        row: StreamRow,
        ending: Ending,
        *,
        owner: UUID | None = None,
        only_expired: bool = False,
        settles: bool = False,
    ) -> int:
        """Ends a stream and tells everybody; `ConflictError` when it had ended in another way."""
        while True:
            answer = await self._rows.end(row, ending, owner=owner, only_expired=only_expired, settles=settles)
            match answer.answer:
                case "moved":
                    ending = await self._ending(row.key, ending.status, ending.finish_reason)
                case "stored":
                    # Its producer died right after it was stored, unless this is the producer, who knows better.
                    status = ending.status if row.owner == self._owner else StreamStatus.COMPLETED
                    ending, settles = await self._fit(row.key, replace(ending, status=status)), True
                case _:
                    break
        return self._after_end(row, ending, answer)

    def _after_end(self, row: StreamRow, ending: Ending, answer: EndAnswer) -> int:
        name = repr(row.key.message_id[:80])
        if answer.answer == "missing":
            raise NotFoundError(f"there is no stream of the message {name}; its thread was deleted, or never had it")
        if answer.answer == "lost":
            raise ConflictError(f"another producer writes the message {name}")
        if answer.answer == "alive":
            return 0
        assert answer.status is not None  # noqa: S101 - an ended stream has both
        assert answer.final_sequence is not None  # noqa: S101
        live = self._live.pop(row.key, None)
        if live is not None:
            live.is_closing = True
        self._hub.tell(head_of(row, answer.final_sequence, answer.status))
        if ending.status is StreamStatus.COMPLETED and answer.status is StreamStatus.INTERRUPTED:
            raise ConflictError(f"the message {name} was stored as interrupted: its producer was silent for too long")
        return answer.final_sequence

    async def _fit(self, key: StreamKey, ending: Ending) -> Ending:
        """The ending of a stream whose message somebody else stored."""
        body = await self._rows.read_body(key)
        if body is None:
            # Its event said nothing after all.
            return Ending(StreamStatus.INTERRUPTED, 0, "", b"")
        count, lengths = fit_lengths(ending.lengths, streamed=ending.text, stored=body.text)
        return Ending(ending.status, count, body.text, lengths)

    # Leases

    async def _keep_forever(self) -> None:
        loop = asyncio.get_running_loop()
        every = self._settings.stream_lease_seconds / 3
        while True:
            pause = every
            try:
                await self._say_alive()
                # Ending others' messages may take long, and our leases do not wait for it.
                if self._tidying is None or self._tidying.done():
                    self._tidying = asyncio.create_task(self._tidy_or_log(), name="stream-silence")
            except EngineError as error:
                # Whoever could not reach the database does not know whether others could.
                self._give_others_time()
                logger.warning("the leases of streams could not be looked after and will be: %s", error)
                pause = min(every, _RETRY_SECONDS)
            woken_at = loop.time() + pause
            await asyncio.sleep(pause)
            if loop.time() - woken_at > every:
                # This process stood still; so may have the whole machine, and the others with it.
                self._give_others_time()

    def _give_others_time(self) -> None:
        """Nobody is taken for silent until all had the time to say that they are alive."""
        self._quiet_until = asyncio.get_running_loop().time() + self._settings.stream_lease_seconds

    async def keep(self) -> None:
        """Says that this process is alive, fills what the backend lost, and ends the streams of silent processes."""
        await self._say_alive()
        await self._tidy()

    async def _say_alive(self) -> None:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        if self._live:
            await self._extend_leases()
        if loop.time() - began_at > self._settings.stream_lease_seconds / 3:
            self._give_others_time()

    async def _tidy(self) -> None:
        """Ends what nobody writes any more, here or elsewhere. One that cannot be ended stands in nobody's way."""
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        for live in [live for live in self._live.values() if live.is_abandoned]:
            try:
                await self.abort_live(live)
            except (DatabaseUnavailableError, PoolTimeoutError):
                raise
            except EngineError as error:
                logger.warning("a message that nobody writes any more could not be ended: %s", error)
        if loop.time() - began_at > self._settings.stream_lease_seconds / 3:
            self._give_others_time()
        if loop.time() >= self._quiet_until:
            await self.interrupt_silent()

    async def _tidy_or_log(self) -> None:
        try:
            await self._tidy()
        except EngineError as error:
            self._give_others_time()
            logger.warning("streams that nobody writes any more could not be ended and will be: %s", error)
        except Exception:
            logger.exception("streams that nobody writes any more could not be ended and will be")

    async def _extend_leases(self) -> None:
        before = dict(self._live)
        flushed = {key: live.flushed for key, live in before.items() if live.flushed}
        still_ours = await self._rows.extend(self._owner, list(before))
        for key, message in before.items():
            if key not in still_ours and self._live.get(key) is message and not message.is_closing:
                message.is_lost = True
                del self._live[key]
        written = await self.backend.heads(list(flushed)) if flushed else {}
        lost = [key for key, sequence in flushed.items() if written.get(key, 0) < sequence]
        self.flusher.rewrite(live for key in lost if (live := self._live.get(key)) is not None)

    async def interrupt_silent(self, *, grace: float | None = None) -> int:
        """Stores the messages of producers that fell silent as interrupted; returns how many.

        `grace`: after a restart of PostgreSQL the living get so many seconds, a lease, to say that they are.
        """
        grace = self._settings.stream_lease_seconds if grace is None else grace
        ended = 0
        for row in await self._rows.list_silent(grace=grace, limit=_SILENT_PER_LOOK):
            if row.key in self._live:
                continue
            try:
                await self._end(row, await self._ending(row.key, StreamStatus.INTERRUPTED), only_expired=True)
                ended += 1
            except (DatabaseUnavailableError, PoolTimeoutError):
                raise
            except EngineError as error:
                logger.warning("the stream of a silent producer could not be ended: %s", error)
        return ended

    async def interrupt_run(self, thread_id: UUID, run_id: str) -> None:
        """Stores what a run was saying as interrupted: whoever executed it is gone, or must not write any more."""
        for row in await self._rows.list_streams([thread_id]):
            if row.run_id == run_id and row.status is StreamStatus.STREAMING:
                ending = await self._ending(row.key, StreamStatus.INTERRUPTED)
                try:
                    await self._end(row, ending, owner=row.owner)
                except (NotFoundError, ConflictError) as error:
                    logger.debug("a stream of run %s ended by itself: %s", run_id, error)

    def _is_followed(self, movement: Movement) -> bool:
        return self._followed.take(movement)

    def _on_doorbell(self, payload: str) -> None:
        self._hub.on_moved(parse_movements(payload))


def _page(log: DeltaLog, *, after: int, up_to: int | None, limit: int) -> ChunkPage:
    chunks = log.chunks(after=after, limit=limit, up_to=up_to)
    last = chunks[-1].sequence if chunks else after
    wanted = log.last_sequence if up_to is None else min(log.last_sequence, up_to)
    return ChunkPage(chunks, log.last_sequence, last < wanted, StreamStatus.STREAMING)


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
