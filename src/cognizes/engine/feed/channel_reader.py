"""The channels of all followed threads, and the loops that read back what their notifications announce.

A notification says that a thread has a new event or a stream new chunks. The reader fetches the rows in order, with one
query for all notified threads. A periodic sweep, which also runs after each reconnection of the listener, compares the
heads of all followed threads: a lost notification costs one interval and never data.

A failover to a replica that lost commits reuses sequence numbers. So each read checks that the event before the new
ones is the one that was delivered, and the sweep after a reconnection checks the newest event of each followed thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from itertools import count
from typing import Any, Generic, TypeVar
from uuid import UUID

import asyncpg
from cachetools import LRUCache

from cognizes.engine.concurrency import SharedCalls, WakeUp, retry_while_unavailable
from cognizes.engine.database import Database
from cognizes.engine.errors import (
    DatabaseUnavailableError,
    EngineClosedError,
    EngineError,
    FeedRewoundError,
    NotFoundError,
    PoolTimeoutError,
)
from cognizes.engine.feed.thread_channel import FeedPage, FeedSizes, StreamView, ThreadChannel
from cognizes.engine.pulse.events import EventLog, EventPage
from cognizes.engine.streams.chunks import MAX_PAGE, ChunkPage, StreamKey, StreamStatus, parse_notifications
from cognizes.engine.streams.message_streams import MessageStreams
from cognizes.engine.streams.stream_rows import read_row
from cognizes.engine.streams.writer import LiveMessage
from cognizes.engine.supervision import SupervisedLoop, Supervisor
from cognizes.engine.telemetry import TELEMETRY

logger = logging.getLogger(__name__)

UNAVAILABLE = (DatabaseUnavailableError, PoolTimeoutError)
SWEEP_SLICE = 200
"""The threads or runs of one query of a sweep: thousands of rows at once would delay subscribers."""
_LARGE_EVENT = 32 * 1024
_LONGEST_PAUSE = 0.5
_SEGMENTS_PER_READ = 100
_COMMIT_SECONDS = 40.0
"""A stream's end is visible with its commit, which may come later than the time that its row names."""
_TRUSTED_SECONDS = 5.0
_KEPT_SECONDS = 10.0
_CHANNELS_KEPT = 10_000
_PAGES_BYTES = 8 * 1024 * 1024
_EVENT_OVERHEAD = 2048
"""What an event in memory takes beside its JSON."""
_FAR = 2**63
_SECONDS_PER_SUBSCRIBER = 80e-6
_LONGEST_DELAY = 0.02
"""A delivery costs time for each subscriber: a busy thread with many of them is read less often, in larger pages."""
_PageKey = tuple[int, int, str | None]
"""The number of a channel, the event before the page, and the run whose events the page has."""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class _WorkSet(Generic[_Item]):
    """Items that wait for a loop, each once."""

    __slots__ = ("_added", "_items")

    def __init__(self) -> None:
        self._items: set[_Item] = set()
        self._added = WakeUp()

    def __contains__(self, item: _Item) -> bool:
        return item in self._items

    def add(self, item: _Item) -> None:
        self._items.add(item)
        self._added.notify()

    async def take(self) -> set[_Item]:
        while not self._items:
            await self._added.wait(self._added.version)
        taken, self._items = self._items, set()
        return taken


class ChannelReader:
    """Owns the channels of followed threads and keeps them up to date."""

    def __init__(self, database: Database, streams: MessageStreams, *, sizes: FeedSizes) -> None:
        self._database = database
        self._sizes = sizes
        # What all subscribers of a thread share is read by the engine, not for the tenant that came first.
        self._shared = database.without_tenants()
        self._streams = streams
        self._log = EventLog(self._shared)
        self._numbers = count()
        self._pages: LRUCache[_PageKey, FeedPage] = LRUCache(
            _PAGES_BYTES, getsizeof=lambda page: page.size + (len(page) + 1) * _EVENT_OVERHEAD
        )
        self._page_reads = SharedCalls(joins_running=True)
        self._channels: dict[UUID, ThreadChannel] = {}
        self._due_events: _WorkSet[UUID] = _WorkSet()
        self._due_streams: _WorkSet[UUID] = _WorkSet()
        self._loops: list[SupervisedLoop] = []
        self._swept_at: float | None = None
        self._failovers = 0
        self._failovers_checked = 0
        self.is_closed = False
        self.missed_notifications = 0
        self.recovered_notifications = 0
        self._missed: set[UUID] = set()

    @property
    def channels(self) -> Mapping[UUID, ThreadChannel]:
        return self._channels

    def start(self, supervisor: Supervisor) -> None:
        self._loops = [
            supervisor.start("feed-events", self._events_round, longest_pause=_LONGEST_PAUSE),
            supervisor.start("feed-streams", self._streams_round, longest_pause=_LONGEST_PAUSE),
        ]

    async def close(self) -> None:
        self.is_closed = True
        for loop in self._loops:
            await loop.stop()
        self._loops = []
        for channel in self._channels.values():
            channel.end()
        self._channels.clear()

    # Channels and pages for subscribers

    def enter(self, thread_id: UUID, view: StreamView) -> ThreadChannel:
        """Return the channel of a thread. It records notifications from now on."""
        channel = self._channels.get(thread_id)
        if channel is None:
            channel = ThreadChannel(thread_id, number=next(self._numbers), recent_events=self._sizes.recent)
            if self.is_closed:
                channel.end()
            else:
                self._channels[thread_id] = channel
        channel.count_view(view, 1)
        return channel

    def leave(self, channel: ThreadChannel, view: StreamView, *, keep: bool = False) -> None:
        channel.count_view(view, -1)
        now = asyncio.get_running_loop().time()
        if keep and len(self._channels) <= _CHANNELS_KEPT:
            channel.kept_until = now + _KEPT_SECONDS
        if not channel.subscribers and channel.kept_until <= now:
            self._drop(channel)

    async def open_channel(self, channel: ThreadChannel, view: StreamView) -> None:
        """Check that the tenant may see the thread, and read what the channel lacks for a view."""
        if self._database.acting_apps is not None and not channel.has_ended:
            row = await self._retry(self._database.fetch_row, "read_thread_head", channel.thread_id)
            if row is None:
                raise NotFoundError(f"there is no thread {channel.thread_id}")
        lacks_ends = view is StreamView.HEADS and not channel.tracks_ends
        if (not channel.is_open or lacks_ends) and not channel.has_ended:
            await self._retry(self._refresh, [channel])
            if not channel.is_open and not self.is_closed:
                raise NotFoundError(f"there is no thread {channel.thread_id}")
        if view is StreamView.TEXT and channel.streams:
            try:
                await self._read_chunks([channel])
            except EngineError as error:
                logger.debug("thread %s: the chunks of its streams cannot be read now: %s", channel.thread_id, error)

    async def check_head(self, channel: ThreadChannel, delivered: int) -> None:
        """End the channel if the thread's head is before the channel's, and raise `FeedRewoundError` if so, or if the
        head is before what a subscriber received."""
        expected = max(delivered, channel.head)
        row = await self._retry(self._shared.fetch_row, "read_thread_head", channel.thread_id)
        if row is not None and row["last_sequence"] < expected:
            failure = rewound(channel.thread_id, expected, row["last_sequence"])
            if row["last_sequence"] < channel.head:
                self._end(channel, failure)
            raise failure

    async def find_existing_runs(self, run_ids: list[str]) -> list[str]:
        return [row["run_id"] for row in await self._shared.fetch("find_existing_runs", run_ids)]

    def find_page(self, channel: ThreadChannel, after: int, run_id: str | None) -> FeedPage | None:
        """Return the events after a sequence, of one run or of all; None if they are not in memory."""
        key = (channel.number, after, run_id)
        page = self._pages.get(key)
        if page is not None and (page.is_full or page.last_sequence == channel.head):
            return page
        if (recent := channel.recent_after(after, limit=self._page_limit(after))) is None:
            return None
        return self._keep_page(key, EventPage([event for event, _ in recent], False, sum(size for _, size in recent)))

    async def read_page(self, channel: ThreadChannel, after: int, run_id: str | None) -> FeedPage | None:
        """Read a page from the database, once for all subscribers that wait for it; None if there are no events.

        `open_channel` has checked that the tenants of these subscribers may see the thread.
        """
        key = (channel.number, after, run_id)

        async def read() -> FeedPage | None:
            limit = self._page_limit(after)
            found = await self._retry(self._log.read_page, channel.thread_id, after=after, limit=limit)
            return self._keep_page(key, found) if found.events else None

        return await self._page_reads.call(key, read)

    def _page_limit(self, after: int) -> int:
        return self._sizes.subscriber_page - after % self._sizes.subscriber_page

    def _keep_page(self, key: _PageKey, found: EventPage) -> FeedPage:
        run_id, last = key[2], found.events[-1].sequence_num or key[1]
        mine = found.events if run_id is None else [event for event in found.events if event.run_id == run_id]
        is_full = found.has_more or last % self._sizes.subscriber_page == 0
        page = FeedPage(mine, last_sequence=last, size=found.size, is_full=is_full)
        if page.size < _PAGES_BYTES // 4:
            self._pages[key] = page
        return page

    async def find_run(self, run_id: str, thread_id: UUID | None) -> asyncpg.Record | None:
        """Return the thread of a run and the sequence before its first event."""
        return await self._retry(self._database.fetch_row, "find_run", run_id, thread_id)

    async def _retry(self, read: Callable[..., Awaitable[_Result]], *arguments: Any, **named: Any) -> _Result:
        """Read, and retry while PostgreSQL is unavailable and the feed is open."""

        async def attempt() -> _Result:
            if self.is_closed:
                raise EngineClosedError("the engine is closed; open it again")
            return await read(*arguments, **named)

        return await retry_while_unavailable(attempt, errors=UNAVAILABLE)

    def _drop(self, channel: ThreadChannel) -> None:
        if self._channels.get(channel.thread_id) is channel:
            del self._channels[channel.thread_id]
            self._missed.discard(channel.thread_id)

    def _end(self, channel: ThreadChannel, failure: EngineError | None = None) -> None:
        """End a channel; the next subscriber of the thread gets a new one."""
        self._drop(channel)
        channel.end(failure)

    async def check_rewinds(self) -> None:
        """Check in the next sweep that the newest event of each thread is still stored: it may be another server."""
        self._failovers += 1

    # Notifications

    def on_event(self, thread_id: UUID, sequence: int | None) -> None:
        """Read the events of a thread up to a sequence, if the thread is followed; without a sequence, all new ones."""
        if (channel := self._channels.get(thread_id)) is None:
            return
        reached = _FAR if sequence is None else sequence
        if not channel.is_open:
            channel.notified = max(channel.notified, reached)
        elif reached > channel.head and not channel.is_delayed:
            loop = asyncio.get_running_loop()
            if loop.time() >= channel.read_again_at:
                self._due_events.add(thread_id)
            else:
                channel.is_delayed = True
                loop.call_at(channel.read_again_at, self._end_delay, channel)

    def _end_delay(self, channel: ThreadChannel) -> None:
        channel.is_delayed = False
        if self._channels.get(channel.thread_id) is channel:
            self._due_events.add(channel.thread_id)

    def on_stream_notification(self, payload: str) -> None:
        if not self._channels:
            return
        for notification in parse_notifications(payload):
            thread_id, digest = notification.address
            if (channel := self._channels.get(thread_id)) is None or channel.is_ended(digest):
                continue
            stream = channel.streams.get(digest)
            if stream is None or notification.status is not StreamStatus.STREAMING:
                channel.needs_refresh = True
            elif stream.is_local:
                continue
            elif notification.sequence > stream.remote_sequence:
                stream.remote_sequence = notification.sequence
                if channel.reads_heads:
                    channel.changed.notify()
                if stream.log is None and not channel.reads_text:
                    continue
            self._due_streams.add(thread_id)

    def on_stream_opened(self, live: LiveMessage) -> None:
        if (channel := self._channels.get(live.row.key.thread_id)) is not None and channel.is_open:
            channel.add_local(live)

    def on_stream_changed(self, thread_id: UUID) -> None:
        """Wake the subscribers of a thread: this process wrote to a stream, or ended one."""
        if (channel := self._channels.get(thread_id)) is not None:
            channel.changed.notify()

    # Reading back events

    async def _events_round(self) -> None:
        due = await self._due_events.take()
        channels = [self._channels.get(thread_id) for thread_id in due]
        try:
            await self._read_back({channel.thread_id: channel for channel in channels if channel and channel.is_open})
        except EngineError as error:
            # The sweep reads these threads again, also after any other exception.
            logger.warning("events of %d threads are not read back yet: %s", len(due), error)

    async def _read_back(self, channels: dict[UUID, ThreadChannel]) -> None:
        if not channels:
            return
        heads = [channel.head for channel in channels.values()]
        ids = [channel.head_id for channel in channels.values()]
        found = await self._shared.fetch(
            "read_events_of_threads", list(channels), heads, self._sizes.page, _LARGE_EVENT, ids
        )
        small: dict[UUID, list[asyncpg.Record]] = {}
        large: list[UUID] = []
        for row in found:
            if not row["follows"]:
                channel = channels[row["thread_id"]]
                if not channel.has_ended:
                    self._end(channel, replaced(channel.thread_id, channel.head))
                continue
            rows = small.setdefault(row["thread_id"], [])
            if row["bytes"] > _LARGE_EVENT and row["thread_id"] not in large:
                large.append(row["thread_id"])
            if row["thread_id"] not in large:
                rows.append(row)
        for thread_id, rows in small.items():
            # Advance the channel whose head was asked for: a channel opened since has a head of its own.
            if rows:
                channels[thread_id].advance(rows)
                self._set_delay(channels[thread_id])
                self._database.note_sequence(thread_id, channels[thread_id].head)
                self._note_recovered(thread_id)
            if self._channels.get(thread_id) is not channels[thread_id]:
                self._due_events.add(thread_id)
        for thread_id in large:
            await self._read_back_large(channels[thread_id])
        if len(found) == self._sizes.page:
            # The result is cut off, and may lack some threads.
            for thread_id in channels:
                self._due_events.add(thread_id)

    def _set_delay(self, channel: ThreadChannel) -> None:
        delay = min(channel.subscribers * _SECONDS_PER_SUBSCRIBER, _LONGEST_DELAY)
        channel.read_again_at = asyncio.get_running_loop().time() + delay

    async def _read_back_large(self, channel: ThreadChannel) -> None:
        page = await self._shared.fetch_page(
            "read_events",
            channel.thread_id,
            channel.head,
            limit=self._sizes.page,
            whole="read_events_at",
            owner=(channel.thread_id,),
        )
        if page.rows:
            channel.advance(page.rows)
            self._database.note_sequence(channel.thread_id, channel.head)
            self._note_recovered(channel.thread_id)
        if page.has_more:
            self._due_events.add(channel.thread_id)

    def _note_recovered(self, thread_id: UUID) -> None:
        """Count a thread whose events were read although their notification was missed."""
        if self._missed and thread_id in self._missed:
            self._missed.discard(thread_id)
            self.recovered_notifications += 1

    # Reading back streams

    async def _streams_round(self) -> None:
        due = await self._due_streams.take()
        channels = [channel for thread_id in due if (channel := self._channels.get(thread_id)) is not None]
        try:
            if stale := [channel for channel in channels if channel.needs_refresh or not channel.is_open]:
                await self._refresh(stale)
            await self._read_chunks(channels)
        except EngineError as error:
            # The sweep reads these threads again, also after any other exception.
            logger.debug("streams of %d threads are not read back yet: %s", len(due), error)
            if (counted := TELEMETRY.instruments) is not None:
                counted.stream_errors.labels("read").inc()

    async def _refresh(self, channels: Iterable[ThreadChannel]) -> None:
        """Read the heads and the streams of threads with one query, and compare them with what the channels have."""
        before = [(channel, channel.head, set(channel.streams)) for channel in channels]
        with_ended = [bool(known) or channel.reads_heads or channel.needs_refresh for channel, _, known in before]
        for channel, _, _ in before:
            channel.needs_refresh = False
        now = asyncio.get_running_loop().time()
        window = (0.0 if self._swept_at is None else now - self._swept_at) + _COMMIT_SECONDS
        ids = [channel.thread_id for channel, _, _ in before]
        checks_ids = self._failovers > self._failovers_checked
        asked = [head if checks_ids or head < 0 else None for _, head, _ in before]
        delivered = [channel.head_id for channel, _, _ in before]
        try:
            rows = await self._shared.fetch("read_feed_heads", ids, with_ended, timedelta(seconds=window), asked)
        except BaseException:
            for channel, _, _ in before:
                channel.needs_refresh = True
            raise
        found: dict[UUID, list[asyncpg.Record]] = {}
        for row in rows:
            found.setdefault(row["id"], []).append(row)
        remote: list[StreamKey] = []
        for (channel, head, known), has_ended_rows, id_then in zip(before, with_ended, delivered, strict=True):
            if self._channels.get(channel.thread_id) is not channel:
                continue  # It has no subscribers any more, or new ones with a new channel.
            of_thread = found.get(channel.thread_id)
            if of_thread is None:
                if head >= 0 or not channel.is_open:
                    self._end(channel)  # The thread was deleted, or never existed.
                continue
            last, event_id = of_thread[0]["last_sequence"], of_thread[0]["event_id"]
            if last < head:
                self._end(channel, rewound(channel.thread_id, head, last))
                continue
            if checks_ids and id_then is not None and event_id != id_then:
                self._end(channel, replaced(channel.thread_id, head))
                continue
            remote += self._take_streams(channel, of_thread, known, has_ended_rows=has_ended_rows)
            self._take_head(channel, last, event_id)
            channel.checked_at = now
        if remote:
            await self._read_heads(remote)

    def _take_head(self, channel: ThreadChannel, last: int, event_id: str | None) -> None:
        if not channel.is_open:
            channel.head, channel.head_id = last, event_id
            if channel.notified > last:
                self._due_events.add(channel.thread_id)
        elif last > channel.head and channel.thread_id not in self._due_events:
            self.missed_notifications += 1
            self._missed.add(channel.thread_id)
            self._due_events.add(channel.thread_id)

    def _take_streams(
        self, channel: ThreadChannel, rows: list[asyncpg.Record], known: set[str], *, has_ended_rows: bool
    ) -> list[StreamKey]:
        """Take in the streams of a thread; return the remote ones whose heads are wanted."""
        remote: list[StreamKey] = []
        before = (len(channel.streams), channel.end_count)
        for record in rows:
            if record["message_id"] is None:
                continue
            row = read_row(record)
            known.discard(row.key.address[1])
            if row.status is not StreamStatus.STREAMING:
                channel.add_ended(row, last_sequence=record["last_sequence"])
                continue
            stream = channel.add_open(row, live=self._streams.find_live(row.key), stored_at=record["stored_sequence"])
            if stream is not None and not stream.is_local and channel.reads_heads:
                remote.append(row.key)
        if has_ended_rows:
            for digest in known:
                channel.streams.pop(digest, None)
            channel.tracks_ends = channel.tracks_ends or channel.reads_heads
        if before != (len(channel.streams), channel.end_count):
            channel.changed.notify()
        return remote

    async def _read_heads(self, keys: list[StreamKey]) -> None:
        try:
            heads = await self._streams.backend.heads(keys)
        except UNAVAILABLE as error:
            # Stored events are delivered all the same.
            logger.debug("the heads of %d streams cannot be read now: %s", len(keys), error)
            return
        for key, sequence in heads.items():
            channel = self._channels.get(key.thread_id)
            stream = channel.streams.get(key.address[1]) if channel else None
            if channel is not None and stream is not None and sequence > stream.remote_sequence:
                stream.remote_sequence = sequence
                channel.changed.notify()

    async def _read_chunks(self, channels: Iterable[ThreadChannel]) -> None:
        """Read the new chunks of all remote streams of some threads whose text is wanted, with one call."""
        while asked := [
            (channel, stream)
            for channel in channels
            for digest, stream in channel.streams.items()
            if not stream.is_local and self._wants_text(channel, digest)
        ]:
            positions = [(stream.row.key, stream.log.last_sequence if stream.log else 0) for _, stream in asked]
            found = await self._streams.backend.read(positions, limit=_SEGMENTS_PER_READ)
            unfinished: dict[UUID, ThreadChannel] = {}
            for channel, stream in asked:
                assert stream.log is not None  # noqa: S101 - `_wants_text` makes it
                segments = found[stream.row.key]
                before = stream.log.last_sequence
                for segment in segments:
                    if segment.first_sequence > stream.log.last_sequence + 1:
                        break  # The backend lost chunks; a living producer writes them again.
                    stream.log.extend(segment)
                if stream.log.last_sequence > before:
                    channel.changed.notify()
                    if len(segments) == _SEGMENTS_PER_READ:
                        unfinished[channel.thread_id] = channel
            channels = list(unfinished.values())

    def _wants_text(self, channel: ThreadChannel, digest: str) -> bool:
        """Return whether the text of a remote stream is wanted, and give it a log if so."""
        if channel.reads_text:
            channel.streams[digest].follow_text(0)
        elif channel.wanted is not None and digest in channel.wanted:
            channel.streams[digest].follow_text(channel.wanted[digest])
        else:
            channel.streams[digest].log = None
            return False
        return True

    # Streams for long-polls

    def want_text(self, channel: ThreadChannel, key: StreamKey, after: int) -> None:
        """Follow the text of a remote stream for long-polls."""
        digest = key.address[1]
        if channel.wanted is None:
            channel.wanted = {}
        if digest not in channel.wanted:
            channel.wanted[digest] = after
            if self._channels.get(channel.thread_id) is channel:
                channel.needs_refresh = channel.needs_refresh or digest not in channel.streams
                self._due_streams.add(channel.thread_id)

    def peek(
        self, channel: ThreadChannel, key: StreamKey, *, after: int, up_to: int | None, limit: int
    ) -> ChunkPage | None:
        """Return what is in memory of a remote open stream; None if the backend must be asked."""
        stream = channel.streams.get(key.address[1])
        if stream is None or stream.is_local or stream.log is None or after < stream.log.base:
            return None
        if asyncio.get_running_loop().time() - channel.checked_at > _TRUSTED_SECONDS:
            return None
        return stream.log.page(after=after, up_to=up_to, limit=min(limit, MAX_PAGE))

    async def sweep(self) -> None:
        """Drop unused channels and compare all others with the database."""
        now = asyncio.get_running_loop().time()
        for channel in list(self._channels.values()):
            if not channel.subscribers and channel.kept_until <= now:
                self._drop(channel)
        failovers = self._failovers
        followed = [channel for channel in self._channels.values() if channel.is_open]
        for start in range(0, len(followed), SWEEP_SLICE):
            part = followed[start : start + SWEEP_SLICE]
            await self._refresh(part)
            for channel in part:
                if channel.streams and not channel.has_ended:
                    self._due_streams.add(channel.thread_id)
        self._swept_at = now
        self._failovers_checked = failovers


def rewound(thread_id: UUID, delivered: int, head: int) -> FeedRewoundError:
    return FeedRewoundError(
        f"thread {thread_id} ends at event {head}, but event {delivered} was delivered: the database lost events in a "
        "failover; reload the thread"
    )


def replaced(thread_id: UUID, sequence: int) -> FeedRewoundError:
    return FeedRewoundError(
        f"thread {thread_id} has another event {sequence} than the one that was delivered: the database lost events in "
        "a failover; reload the thread"
    )
