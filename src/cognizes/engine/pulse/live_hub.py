"""Reading live: a doorbell says that a thread moved, the rows are read back, and the doorbell is never trusted.

A notification only says *thread T reached event N*. The hub reads the rows after what it delivered last, in order, with
one query for all threads that rang. It also looks at all subscribed threads from time to time, and after every
reconnection of the listener, so that a lost notification costs latency and never data.

A subscriber has no queue. It has a place in the log, and the hub tells it how far the log reaches by now; recent events
are shared between all subscribers of a thread, older ones are read from the database. A slow reader costs no more than
the page it is reading.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar
from uuid import UUID

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.errors import DatabaseUnavailableError, EngineError, NotFoundError, PoolTimeoutError
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.pulse.events import EventLog, event_from_row
from cognizes.engine.pulse.pg_notify_listener import DEFAULT_CHANNEL, PgNotifyListener, parse_payload
from cognizes.engine.supervision import SupervisedLoop, Supervisor

logger = logging.getLogger(__name__)

_SWEEP_SECONDS = 1.5
_SWEEP_SLICE = 200
_RECENT_EVENTS = 256
_RECENT_BYTES = 1024 * 1024
_PAGE = 500
_LARGE_EVENT = 32 * 1024
_CATCH_UP_PAGE = 64
_RETRY_SECONDS = 0.2
_FAR = 2**63

Result = TypeVar("Result")


class _Doorbell:
    """Wakes everybody who waits; whoever waits afterwards waits for the next ring."""

    __slots__ = ("_rung",)

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    @property
    def next_ring(self) -> asyncio.Event:
        """Take it before looking whether there is anything new: a ring in between is not missed then."""
        return self._rung

    def ring(self) -> None:
        """Wakes all."""
        self._rung.set()
        self._rung = asyncio.Event()


class _Channel:
    """What the hub knows of one subscribed thread. Until its head was read once, it only notes how far it rang."""

    __slots__ = (
        "_bytes",
        "_sizes",
        "has_ended",
        "head",
        "is_streaming",
        "moved",
        "rang",
        "recent",
        "stream_moves",
        "subscribers",
    )

    def __init__(self) -> None:
        self.head = -1
        self.is_streaming = False
        self.stream_moves = 0
        self.rang = 0
        self.recent: deque[Event] = deque()
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self.moved = _Doorbell()
        self.subscribers = 0
        self.has_ended = False

    @property
    def is_open(self) -> bool:
        """Whether it is known how far the thread has come."""
        return self.head >= 0

    def advance(self, rows: list[asyncpg.Record]) -> None:
        """Takes in the events after the head, which follow each other without a gap. The newest is always remembered,
        older ones within a number and a size."""
        for row in rows:
            self.recent.append(event_from_row(row))
            self._sizes.append(row["bytes"])
            self._bytes += row["bytes"]
            while len(self.recent) > _RECENT_EVENTS or (self._bytes > _RECENT_BYTES and len(self.recent) > 1):
                self.recent.popleft()
                self._bytes -= self._sizes.popleft()
        self.head = self.recent[-1].sequence_num or self.head
        self.moved.ring()

    def move_streams(self, *, is_streaming: bool) -> None:
        """Notes that a token stream of the thread moved, or whether one is open by now."""
        self.is_streaming = is_streaming
        self.stream_moves += 1
        self.moved.ring()

    def end(self) -> None:
        """Lets all subscriptions end."""
        self.has_ended = True
        self.moved.ring()

    def recent_after(self, sequence: int) -> list[Event] | None:
        """The events after a sequence number, or None when they are too old to be remembered."""
        if not self.recent or (self.recent[0].sequence_num or 0) > sequence + 1:
            return None
        return [event for event in self.recent if (event.sequence_num or 0) > sequence]


class _AwaitedRun:
    """A run that somebody wants to follow and that nobody has seen yet."""

    def __init__(self) -> None:
        self.seen = _Doorbell()
        self.waiting = 0


class LiveHub:
    """Follows threads for any number of subscribers: in order, without gaps, whoever wrote the events."""

    def __init__(self, database: Database, listener: PgNotifyListener, *, supervisor: Supervisor | None = None) -> None:
        self._database = database
        self._supervisor = supervisor or Supervisor()
        self._listener = listener
        self._log = EventLog(database)
        self._channels: dict[UUID, _Channel] = {}
        self._awaited_runs: dict[str, _AwaitedRun] = {}
        self._unstored: list[Callable[[JsonObject], None]] = []
        self._rung: set[UUID] = set()
        self._bell = asyncio.Event()
        self._loops: list[SupervisedLoop] = []
        self._is_closed = False
        self.healed = 0

    async def start(self) -> None:
        """Begins to follow."""
        self._listener.tap(DEFAULT_CHANNEL, self._on_notification)
        self._listener.on_reconnect(self.sweep)
        self._loops = [
            self._supervisor.start("live-read-back", self._read_back_round, longest_pause=_RETRY_SECONDS),
            self._supervisor.start("live-sweep", self._sweep_round, longest_pause=_SWEEP_SECONDS),
        ]

    async def close(self) -> None:
        """Stops; subscriptions end, those that wait for a run or for PostgreSQL too."""
        self._is_closed = True
        for loop in self._loops:
            await loop.stop()
        self._loops = []
        for thread_id in list(self._channels):
            self._end(thread_id)
        for awaited in self._awaited_runs.values():
            awaited.seen.ring()

    def on_unstored(self, callback: Callable[[JsonObject], None]) -> None:
        """Registers a plain function for notifications that are no stored event. It must be quick."""
        self._unstored.append(callback)

    def off_unstored(self, callback: Callable[[JsonObject], None]) -> None:
        """Forgets such a function."""
        self._unstored.remove(callback)

    async def follow(self, thread_id: UUID, *, after: int = 0) -> AsyncGenerator[Event, None]:
        """All events of a thread after a sequence number: those that are there, then those to come.

        It ends when the thread is deleted or the hub closes.
        """
        async with aclosing(self.follow_pages(thread_id, after=after)) as pages:
            async for events in pages:
                for event in events:
                    yield event

    async def follow_pages(self, thread_id: UUID, *, after: int = 0) -> AsyncGenerator[list[Event], None]:
        """The same, as many at once as are there."""
        channel = self._enter(thread_id)
        try:
            await self._open(thread_id, channel)
            cursor = after
            while not channel.has_ended:
                moved = channel.moved.next_ring
                if cursor >= channel.head:
                    await moved.wait()
                    continue
                events = await self._page(thread_id, channel, cursor)
                if not events:
                    return
                cursor = events[-1].sequence_num or cursor
                yield events
        finally:
            self._leave(thread_id, channel)

    async def follow_with_streams(self, thread_id: UUID, *, after: int = 0) -> AsyncGenerator[list[Event], None]:
        """Yield the pages of `follow_pages`, and an empty page at the start and whenever a token stream of the thread
        may have moved."""
        channel = self._enter(thread_id)
        try:
            await self._open(thread_id, channel)
            cursor, seen = after, -1
            while not channel.has_ended:
                moved = channel.moved.next_ring
                if cursor < channel.head:
                    events = await self._page(thread_id, channel, cursor)
                    if not events:
                        return
                    cursor = events[-1].sequence_num or cursor
                    seen = channel.stream_moves
                    yield events
                elif seen != channel.stream_moves:
                    seen = channel.stream_moves
                    yield []
                else:
                    await moved.wait()
        finally:
            self._leave(thread_id, channel)

    async def _page(self, thread_id: UUID, channel: _Channel, after: int) -> list[Event]:
        """Return the next events of a thread; none when the thread was deleted or the hub closed."""
        if (recent := channel.recent_after(after)) is not None:
            return recent
        return await self.until_available(self._log.read, thread_id, after=after, limit=_CATCH_UP_PAGE, otherwise=[])

    def is_streaming(self, thread_id: UUID) -> bool:
        """Return whether a message is being streamed in a followed thread, as far as the hub knows."""
        channel = self._channels.get(thread_id)
        return channel is not None and channel.is_streaming

    def on_stream_moved(self, thread_id: UUID) -> None:
        """Wake the subscribers of `follow_with_streams`: a token stream of the thread moved."""
        if (channel := self._channels.get(thread_id)) is not None:
            channel.move_streams(is_streaming=True)

    async def follow_run(
        self, run_id: str, *, after: int = 0, thread_id: UUID | None = None
    ) -> AsyncGenerator[Event, None]:
        """All events of a run, also of one that does not exist yet; with a thread, of the run that it has there."""
        async with aclosing(self.follow_run_pages(run_id, after=after, thread_id=thread_id)) as pages:
            async for events in pages:
                for event in events:
                    yield event

    async def follow_run_pages(
        self, run_id: str, *, after: int = 0, thread_id: UUID | None = None
    ) -> AsyncGenerator[list[Event], None]:
        """The same, as many at once as are there."""
        run = await self.find_run(run_id, thread_id)
        if run is None:
            return
        async with aclosing(self.follow_pages(run["thread_id"], after=max(after, run["begins_after"]))) as pages:
            async for events in pages:
                if found := [event for event in events if event.run_id == run_id]:
                    yield found

    async def sweep(self) -> None:
        """Looks how far every subscribed thread has come and whether awaited runs are there, whatever the doorbell
        said."""
        looked_at = [(thread_id, channel) for thread_id, channel in self._channels.items() if channel.is_open]
        # By slices: thousands of rows at once would hold up those who wait for an event meanwhile.
        for start in range(0, len(looked_at), _SWEEP_SLICE):
            await self._look_at(dict(looked_at[start : start + _SWEEP_SLICE]))
        awaited = list(self._awaited_runs)
        for start in range(0, len(awaited), _SWEEP_SLICE):
            await self._look_for(awaited[start : start + _SWEEP_SLICE])

    async def _look_at(self, looked_at: dict[UUID, _Channel]) -> None:
        rows = await self._database.fetch("read_thread_heads", list(looked_at))
        heads = {row["id"]: row["last_sequence"] for row in rows}
        streaming = {row["id"] for row in rows if row.get("is_streaming")}
        for thread_id, channel in looked_at.items():
            if self._channels.get(thread_id) is not channel:
                continue  # nobody follows it any more, or somebody anew
            if thread_id not in heads:
                self._end(thread_id)  # the thread was deleted
            elif heads[thread_id] > channel.head and thread_id not in self._rung:
                self.healed += 1
                self._ring(thread_id)
            if channel.is_streaming != (thread_id in streaming):
                channel.move_streams(is_streaming=thread_id in streaming)

    async def _look_for(self, run_ids: list[str]) -> None:
        for row in await self._database.fetch("find_existing_runs", run_ids):
            if (awaited := self._awaited_runs.get(row["run_id"])) is not None:
                awaited.seen.ring()

    async def find_run(self, run_id: str, thread_id: UUID | None) -> asyncpg.Record | None:
        """The thread and the beginning of a run, once there is one; None when the hub was closed before."""
        awaited = self._awaited_runs.setdefault(run_id, _AwaitedRun())
        awaited.waiting += 1
        try:
            while not self._is_closed:
                seen = awaited.seen.next_ring
                found = await self.until_available(
                    self._database.fetch_row, "find_run", run_id, thread_id, otherwise=None
                )
                if found is not None:
                    return found
                if not self._is_closed:
                    await seen.wait()
            return None
        finally:
            awaited.waiting -= 1
            if not awaited.waiting:
                del self._awaited_runs[run_id]

    def _enter(self, thread_id: UUID) -> _Channel:
        """The channel of a thread. From now on it notes what rings, so that nothing is missed while it is opened."""
        channel = self._channels.get(thread_id)
        if channel is None:
            channel = self._channels[thread_id] = _Channel()
        channel.subscribers += 1
        channel.has_ended = channel.has_ended or self._is_closed
        return channel

    async def _open(self, thread_id: UUID, channel: _Channel) -> None:
        # A tenant asks even where somebody else has opened the channel: it may not see what others see.
        must_ask = self._database.acting_apps is not None
        while (must_ask or not channel.is_open) and not channel.has_ended:
            row = await self.until_available(self._database.fetch_row, "read_thread_head", thread_id, otherwise=None)
            if row is None and not self._is_closed:
                raise NotFoundError(f"there is no thread {thread_id}")
            must_ask = False
            # Somebody else may have opened it while the database answered.
            if row is not None and not channel.is_open:
                channel.head = row["last_sequence"]
                if row.get("is_streaming"):
                    channel.move_streams(is_streaming=True)
                if channel.rang > channel.head:
                    self._ring(thread_id)

    def _leave(self, thread_id: UUID, channel: _Channel) -> None:
        channel.subscribers -= 1
        if not channel.subscribers and self._channels.get(thread_id) is channel:
            del self._channels[thread_id]

    def _end(self, thread_id: UUID) -> None:
        """Whoever comes to the thread from now on looks at it anew."""
        self._channels.pop(thread_id).end()

    def _on_notification(self, text: str) -> None:
        if not self._channels and not self._awaited_runs and not self._unstored:
            return
        payload = parse_payload(text)
        sequence = payload.get("sequence_num")
        if not isinstance(sequence, int):
            for callback in self._unstored:
                callback(payload)
        if (awaited := self._awaited_runs.get(str(payload.get("run_id")))) is not None:
            awaited.seen.ring()
        try:
            thread_id = UUID(payload.get("thread_id", ""))
        except (ValueError, TypeError, AttributeError):
            return
        if (channel := self._channels.get(thread_id)) is None:
            return
        reached = sequence if isinstance(sequence, int) else _FAR
        if not channel.is_open:
            channel.rang = max(channel.rang, reached)
        elif reached > channel.head:
            self._ring(thread_id)

    def _ring(self, thread_id: UUID) -> None:
        self._rung.add(thread_id)
        self._bell.set()

    async def _read_back_round(self) -> None:
        await self._bell.wait()
        self._bell.clear()
        rung, self._rung = self._rung, set()
        known = ((thread_id, self._channels.get(thread_id)) for thread_id in rung)
        try:
            await self._read_back({place: channel for place, channel in known if channel and channel.is_open})
        except EngineError as error:
            # The sweep comes back to these threads, also after any other exception.
            logger.warning("events could not be read back and will be: %s", error)

    async def _read_back(self, channels: dict[UUID, _Channel]) -> None:
        if not channels:
            return
        heads = [channel.head for channel in channels.values()]
        found = await self._database.fetch("read_events_of_threads", list(channels), heads, _PAGE, _LARGE_EVENT)
        small: dict[UUID, list[asyncpg.Record]] = {}
        large: list[UUID] = []
        for row in found:
            rows = small.setdefault(row["thread_id"], [])
            if row["bytes"] > _LARGE_EVENT and row["thread_id"] not in large:
                large.append(row["thread_id"])
            if row["thread_id"] not in large:
                rows.append(row)
        for thread_id, rows in small.items():
            # To the very channel whose head was asked for: another one that was opened meanwhile has a head of its own.
            if rows:
                channels[thread_id].advance(rows)
            if self._channels.get(thread_id) is not channels[thread_id]:
                self._ring(thread_id)
        for thread_id in large:
            await self._read_back_large(thread_id, channels[thread_id])
        if len(found) == _PAGE:
            # The answer was cut, and not every thread had its turn.
            for thread_id in channels:
                self._ring(thread_id)

    async def _read_back_large(self, thread_id: UUID, channel: _Channel) -> None:
        """Reads a page of a thread whose next event is large."""
        page = await self._database.fetch_page(
            "read_events", thread_id, channel.head, limit=_PAGE, whole="read_events_at", owner=(thread_id,)
        )
        if page.rows:
            channel.advance(page.rows)
        if page.has_more:
            self._ring(thread_id)

    async def _sweep_round(self) -> None:
        await asyncio.sleep(_SWEEP_SECONDS)
        try:
            await self.sweep()
        except EngineError as error:
            logger.warning("the subscribed threads could not be looked at and will be: %s", error)

    async def until_available(
        self, read: Callable[..., Awaitable[Result]], *arguments: Any, otherwise: Result, **named: Any
    ) -> Result:
        """Reads, and reads again while PostgreSQL is away: a subscription outlives a restart, but not the hub."""
        while not self._is_closed:
            try:
                return await read(*arguments, **named)
            except (DatabaseUnavailableError, PoolTimeoutError) as error:
                logger.debug("a subscription waits for PostgreSQL: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
        return otherwise
