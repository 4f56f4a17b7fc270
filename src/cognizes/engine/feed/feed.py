"""`engine.feed`: the live feed of threads. It is the only code that waits for something to happen on a thread.

A notification says that a thread has a new event or a stream new chunks. The feed reads the rows back, in order, with
one query for all notified threads. A periodic job compares the heads of all followed threads, also after each
reconnection of the listener, so a lost notification costs one interval and never data.

A subscriber is a position and has no queue. Recent events and the text of open streams are shared by all subscribers of
a thread; older events are read from the database in pages. A slow subscriber costs one page.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Generic, TypeVar
from uuid import UUID

import asyncpg

from cognizes.engine.concurrency import Sweeper, WakeUp, retry_while_unavailable
from cognizes.engine.database import Database
from cognizes.engine.database.listener import DEFAULT_CHANNEL, PgNotifyListener, parse_payload
from cognizes.engine.errors import (
    DatabaseUnavailableError,
    EngineClosedError,
    EngineError,
    FeedRewoundError,
    NotFoundError,
    PoolTimeoutError,
)
from cognizes.engine.feed.thread_channel import (
    Chunks,
    FeedItem,
    Notification,
    Position,
    StreamEnd,
    StreamView,
    ThreadChannel,
)
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.pulse.events import EventLog
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.streams.chunks import STREAM_CHANNEL, ChunkPage, StreamKey, StreamStatus, parse_notifications
from cognizes.engine.streams.message_streams import MessageStreams
from cognizes.engine.streams.reader import MAX_PAGE
from cognizes.engine.streams.stream_rows import read_row
from cognizes.engine.streams.writer import LiveMessage
from cognizes.engine.supervision import SupervisedLoop, Supervisor

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 1.5
_SWEEP_SLICE = 200
_PAGE = 500
_LARGE_EVENT = 32 * 1024
_CATCH_UP_PAGE = 64
_LONGEST_PAUSE = 0.5
_SEGMENTS_PER_READ = 100
_NOTIFICATIONS_KEPT = 64
_COMMIT_SECONDS = 40.0
"""A stream's end is visible with its commit, which may come later than the time that its row names."""
_TRUSTED_SECONDS = 5.0
_KEPT_SECONDS = 10.0
_CHANNELS_KEPT = 10_000
_FAR = 2**63
_UNAVAILABLE = (DatabaseUnavailableError, PoolTimeoutError)
_EVERYTHING = "*"

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
        """Wait for the first item; return all."""
        while not self._items:
            await self._added.wait(self._added.version)
        taken, self._items = self._items, set()
        return taken


class _Inbox:
    """A bounded queue of notifications for one subscriber; `wake` is what the subscriber waits for now."""

    __slots__ = ("_payloads", "key", "wake")

    def __init__(self, key: str) -> None:
        self.wake = WakeUp()
        self.key = key
        self._payloads: list[JsonObject] = []

    def put(self, payload: JsonObject) -> None:
        if len(self._payloads) >= _NOTIFICATIONS_KEPT:
            logger.warning("a subscriber of %s is too slow for notifications; one is dropped", self.key)
            return
        self._payloads.append(payload)
        self.wake.notify()

    def take(self) -> list[FeedItem]:
        taken: list[FeedItem] = [Notification(payload) for payload in self._payloads]
        self._payloads.clear()
        return taken


class _AwaitedRun:
    """A run that subscribers follow and that may not exist yet."""

    __slots__ = ("found", "subscribers")

    def __init__(self) -> None:
        self.found = WakeUp()
        self.subscribers = 0


class Feed:
    """Follows threads and runs for any number of subscribers."""

    def __init__(
        self,
        database: Database,
        listener: PgNotifyListener,
        streams: MessageStreams,
        *,
        sweeper: Sweeper,
        supervisor: Supervisor,
    ) -> None:
        self._database = database
        # What all subscribers of a thread share is read by the engine, not for the tenant that came first.
        self._shared = database.without_tenants()
        self._listener = listener
        self._streams = streams
        self._sweeper = sweeper
        self._supervisor = supervisor
        self._log = EventLog(database)
        self._channels: dict[UUID, ThreadChannel] = {}
        self._awaited_runs: dict[str, _AwaitedRun] = {}
        self._inboxes: dict[str, list[_Inbox]] = {}
        self._due_events: _WorkSet[UUID] = _WorkSet()
        self._due_streams: _WorkSet[UUID] = _WorkSet()
        self._loops: list[SupervisedLoop] = []
        self._swept_at: float | None = None
        self._is_closed = False
        self.missed_notifications = 0

    @property
    def followed_threads(self) -> list[UUID]:
        """The threads whose heads the feed knows because they have subscribers, or had a long-poll a moment ago."""
        return [thread_id for thread_id, channel in self._channels.items() if channel.is_open]

    @property
    def subscribers(self) -> int:
        """The number of subscriptions, those that wait for a run included."""
        waiting = sum(awaited.subscribers for awaited in self._awaited_runs.values())
        return waiting + sum(channel.subscribers for channel in self._channels.values())

    @property
    def cached_events(self) -> int:
        """The number of events in memory."""
        return sum(channel.recent_count for channel in self._channels.values())

    def open_streams(self, thread_id: UUID) -> int:
        """Return the number of open streams that the feed knows of a followed thread."""
        channel = self._channels.get(thread_id)
        return len(channel.streams) if channel else 0

    async def start(self) -> None:
        """Receive notifications and start the loops."""
        self._streams.observe(self)
        self._listener.tap(DEFAULT_CHANNEL, self.on_event_notification)
        self._listener.tap(STREAM_CHANNEL, self.on_stream_notification)
        self._loops = [
            self._supervisor.start("feed-events", self._events_round, longest_pause=_LONGEST_PAUSE),
            self._supervisor.start("feed-streams", self._streams_round, longest_pause=_LONGEST_PAUSE),
            self._sweeper.start("feed-sweep", self.sweep, seconds=SWEEP_SECONDS),
        ]

    async def close(self) -> None:
        """Stop; all subscriptions end."""
        self._is_closed = True
        for loop in self._loops:
            await loop.stop()
        self._loops = []
        for channel in self._channels.values():
            channel.end()
        self._channels.clear()
        for awaited in self._awaited_runs.values():
            awaited.found.notify()
        for inbox in [inbox for inboxes in self._inboxes.values() for inbox in inboxes]:
            inbox.wake.notify()

    # Subscribing

    def follow(
        self,
        thread_id: UUID,
        after: int = 0,
        *,
        streams: StreamView = StreamView.TEXT,
        notifications: bool = False,
    ) -> AsyncGenerator[list[FeedItem], None]:
        """Yield the feed of a thread after an event, as many items at once as exist.

        Stored events come by sequence, without gap or duplicate. Chunks of a message come after the events that precede
        its stream and before its stored event; the event contains the whole text. The first page comes at once and may
        be empty. With `notifications`, notifications that announce no stored event are included.

        The generator ends when the thread is deleted or the engine closes. It raises `NotFoundError` if the thread does
        not exist or the tenant may not see it, `FeedRewoundError` if the thread's head is before what was delivered.
        """
        return self._follow(thread_id, None, after, streams, notifications)

    def follow_run(
        self,
        run_id: str,
        after: int = 0,
        thread_id: UUID | None = None,
        *,
        streams: StreamView = StreamView.TEXT,
        notifications: bool = False,
    ) -> AsyncGenerator[list[FeedItem], None]:
        """Yield the feed of a run like `follow`; wait for a run that does not exist yet.

        With `thread_id`, follow the run of that thread.
        """
        return self._follow(thread_id, run_id, after, streams, notifications)

    async def events(self, thread_id: UUID, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield the stored events of a thread, one by one."""
        async with aclosing(self._follow(thread_id, None, after, StreamView.NONE)) as pages:
            async for page in pages:
                for item in page:
                    if isinstance(item, Event):
                        yield item

    async def events_of_run(
        self, run_id: str, after: int = 0, thread_id: UUID | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield the stored events of a run, one by one; wait for a run that does not exist yet."""
        async with aclosing(self._follow(thread_id, run_id, after, StreamView.NONE)) as pages:
            async for page in pages:
                for item in page:
                    if isinstance(item, Event):
                        yield item

    async def notifications(self, thread_name: str | None = None) -> AsyncGenerator[list[Notification], None]:
        """Yield all notifications that name a thread, or all there are: for names that are no thread's id.

        They are delivered as they arrive, and dropped if the subscriber is too slow. The first page is empty.
        """
        key = _EVERYTHING if thread_name is None else f"name {thread_name}"
        inbox = self.open_inbox(key)
        try:
            yield []
            while not self._is_closed:
                version = inbox.wake.version
                if found := inbox.take():
                    yield [item for item in found if isinstance(item, Notification)]
                else:
                    await inbox.wake.wait(version)
        finally:
            self.close_inbox(inbox)

    async def check_run_cursor(self, run_id: str, after: int, thread_id: UUID | None = None) -> None:
        """Raise `FeedRewoundError` if a cursor is after the head of the thread of an existing run."""
        run = await self._database.fetch_row("find_run", run_id, thread_id)
        if run is not None:
            await self.check_cursor(run["thread_id"], after)

    async def check_cursor(self, thread_id: UUID, after: int) -> None:
        """Raise `FeedRewoundError` if a cursor is after the head of an existing thread."""
        row = await self._database.fetch_row("read_thread_head", thread_id)
        if row is not None and row["last_sequence"] < after:
            raise _rewound(thread_id, after, row["last_sequence"])

    async def read_chunks(
        self,
        thread_id: str | UUID,
        message_id: str,
        *,
        after: int = 0,
        up_to: int | None = None,
        limit: int = 1000,
        wait: float = 0.0,
    ) -> ChunkPage:
        """Return the chunks after a sequence like `engine.streams.read`; wait up to `wait` seconds for the first one.

        While it waits, it also waits for an unavailable backend.
        """
        thread = thread_uuid(thread_id)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        if wait <= 0:
            return await self._streams.read(thread, message_id, after=after, up_to=up_to, limit=limit)
        key = StreamKey(thread, message_id)
        channel = self.enter(thread, StreamView.NONE)
        try:
            while True:
                version = channel.changed.version
                left = deadline - loop.time()
                try:
                    page = self._peek(channel, key, after=after, up_to=up_to, limit=limit) if left > 0 else None
                    if page is None:
                        page = await self._streams.read(thread, message_id, after=after, up_to=up_to, limit=limit)
                        if page.status is StreamStatus.STREAMING and self._streams.find_live(key) is None:
                            self._want_text(channel, key, page.chunks[-1].sequence if page.chunks else after)
                    has_all = up_to is not None and page.current_sequence >= up_to
                    if page.chunks or page.status is not StreamStatus.STREAMING or has_all or left <= 0:
                        return page
                except _UNAVAILABLE:
                    if left <= 0:
                        raise
                await channel.changed.wait(version, timeout=min(left, SWEEP_SECONDS))
        finally:
            # The next poll of the same message finds the log.
            keep = channel.wanted is not None and len(self._channels) <= _CHANNELS_KEPT
            self.leave(channel, StreamView.NONE, keep=keep)

    async def _follow(
        self,
        thread_id: UUID | None,
        run_id: str | None,
        after: int,
        view: StreamView,
        notifications: bool = False,
    ) -> AsyncGenerator[list[FeedItem], None]:
        # One generator for threads and runs: thousands of subscribers wait here, and each layer costs memory.
        subscription = _Subscription(self, thread_id, run_id, Position(after), view, notifications=notifications)
        try:
            while (items := await subscription.next_page()) is not None:
                yield items
        except EngineClosedError:
            return
        finally:
            subscription.close()

    # What subscriptions use

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def await_run(self, run_id: str) -> WakeUp:
        """Return the wake-up of a run that may not exist yet."""
        awaited = self._awaited_runs.setdefault(run_id, _AwaitedRun())
        awaited.subscribers += 1
        return awaited.found

    def stop_awaiting(self, run_id: str) -> None:
        awaited = self._awaited_runs[run_id]
        awaited.subscribers -= 1
        if not awaited.subscribers:
            del self._awaited_runs[run_id]

    async def find_run(self, run_id: str, thread_id: UUID | None) -> asyncpg.Record | None:
        """Return the thread of a run and the sequence before its first event."""
        return await self._retry(self._database.fetch_row, "find_run", run_id, thread_id)

    async def read_page(self, channel: ThreadChannel, after: int) -> list[Event]:
        """Return the events after a sequence, from memory or from the database."""
        if (recent := channel.recent_after(after)) is not None:
            return recent
        return await self._retry(self._log.read, channel.thread_id, after=after, limit=_CATCH_UP_PAGE)

    def enter(self, thread_id: UUID, view: StreamView) -> ThreadChannel:
        """Return the channel of a thread. It records notifications from now on."""
        channel = self._channels.get(thread_id)
        if channel is None:
            channel = ThreadChannel(thread_id)
            if self._is_closed:
                channel.end()
            else:
                self._channels[thread_id] = channel
        channel.count_view(view, 1)
        return channel

    def leave(self, channel: ThreadChannel, view: StreamView, *, keep: bool = False) -> None:
        channel.count_view(view, -1)
        now = asyncio.get_running_loop().time()
        if keep:
            channel.kept_until = now + _KEPT_SECONDS
        if not channel.subscribers and channel.kept_until <= now:
            self._drop(channel)

    def _drop(self, channel: ThreadChannel) -> None:
        if self._channels.get(channel.thread_id) is channel:
            del self._channels[channel.thread_id]

    def _end(self, channel: ThreadChannel, failure: EngineError | None = None) -> None:
        """End a channel; the next subscriber of the thread gets a new one."""
        self._drop(channel)
        channel.end(failure)

    async def open_channel(self, channel: ThreadChannel, view: StreamView) -> None:
        """Check that the tenant may see the thread, and read what the channel lacks for a view."""
        if self._database.acting_apps is not None and not channel.has_ended:
            row = await self._retry(self._database.fetch_row, "read_thread_head", channel.thread_id)
            if row is None:
                raise NotFoundError(f"there is no thread {channel.thread_id}")
        lacks_ends = view is StreamView.HEADS and not channel.tracks_ends
        if (not channel.is_open or lacks_ends) and not channel.has_ended:
            await self._retry(self._look, [channel])
            if not channel.is_open and not self._is_closed:
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
            failure = _rewound(channel.thread_id, expected, row["last_sequence"])
            if row["last_sequence"] < channel.head:
                self._end(channel, failure)
            raise failure

    async def _retry(self, read: Callable[..., Awaitable[_Result]], *arguments: Any, **named: Any) -> _Result:
        """Read, and retry while PostgreSQL is unavailable and the feed is open."""

        async def attempt() -> _Result:
            if self._is_closed:
                raise EngineClosedError("the engine is closed; open it again")
            return await read(*arguments, **named)

        return await retry_while_unavailable(attempt, errors=_UNAVAILABLE)

    # Notifications

    def open_inbox(self, key: str) -> _Inbox:
        inbox = _Inbox(key)
        self._inboxes.setdefault(key, []).append(inbox)
        return inbox

    def close_inbox(self, inbox: _Inbox) -> None:
        inboxes = self._inboxes[inbox.key]
        inboxes.remove(inbox)
        if not inboxes:
            del self._inboxes[inbox.key]

    def on_event_notification(self, text: str) -> None:
        """Take in a notification of an event, or one without an event."""
        if not self._channels and not self._awaited_runs and not self._inboxes:
            return
        payload = parse_payload(text)
        sequence = payload.get("sequence_num")
        thread_name, run_id = payload.get("thread_id"), payload.get("run_id")
        if self._inboxes:
            keys = [_EVERYTHING, f"name {thread_name}"]
            if not isinstance(sequence, int):
                keys += [f"thread {thread_name}", f"run {run_id}"]
            for key in keys:
                for inbox in self._inboxes.get(key, ()):
                    inbox.put(payload)
        if self._awaited_runs and (awaited := self._awaited_runs.get(str(run_id))) is not None:
            awaited.found.notify()
        try:
            channel = self._channels.get(UUID(str(thread_name)))
        except ValueError:
            return
        if channel is None:
            return
        reached = sequence if isinstance(sequence, int) else _FAR
        if not channel.is_open:
            channel.notified = max(channel.notified, reached)
        elif reached > channel.head:
            self._due_events.add(channel.thread_id)

    def on_stream_notification(self, payload: str) -> None:
        """Take in a notification of a stream."""
        if not self._channels:
            return
        for notification in parse_notifications(payload):
            thread_id, digest = notification.address
            if (channel := self._channels.get(thread_id)) is None or channel.is_ended(digest):
                continue
            stream = channel.streams.get(digest)
            if stream is None or notification.status is not StreamStatus.STREAMING:
                channel.needs_look = True
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
        """Take in a stream that this process opened."""
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
        found = await self._shared.fetch("read_events_of_threads", list(channels), heads, _PAGE, _LARGE_EVENT)
        small: dict[UUID, list[asyncpg.Record]] = {}
        large: list[UUID] = []
        for row in found:
            rows = small.setdefault(row["thread_id"], [])
            if row["bytes"] > _LARGE_EVENT and row["thread_id"] not in large:
                large.append(row["thread_id"])
            if row["thread_id"] not in large:
                rows.append(row)
        for thread_id, rows in small.items():
            # Advance the channel whose head was asked for: a channel opened since has a head of its own.
            if rows:
                channels[thread_id].advance(rows)
            if self._channels.get(thread_id) is not channels[thread_id]:
                self._due_events.add(thread_id)
        for thread_id in large:
            await self._read_back_large(channels[thread_id])
        if len(found) == _PAGE:
            # The result is cut off, and may lack some threads.
            for thread_id in channels:
                self._due_events.add(thread_id)

    async def _read_back_large(self, channel: ThreadChannel) -> None:
        page = await self._shared.fetch_page(
            "read_events",
            channel.thread_id,
            channel.head,
            limit=_PAGE,
            whole="read_events_at",
            owner=(channel.thread_id,),
        )
        if page.rows:
            channel.advance(page.rows)
        if page.has_more:
            self._due_events.add(channel.thread_id)

    # Reading back streams

    async def _streams_round(self) -> None:
        due = await self._due_streams.take()
        channels = [channel for thread_id in due if (channel := self._channels.get(thread_id)) is not None]
        try:
            if looked_at := [channel for channel in channels if channel.needs_look or not channel.is_open]:
                await self._look(looked_at)
            await self._read_chunks(channels)
        except EngineError as error:
            # The sweep reads these threads again, also after any other exception.
            logger.debug("streams of %d threads are not read back yet: %s", len(due), error)

    async def _look(self, channels: Iterable[ThreadChannel]) -> None:
        """Read the heads and the streams of threads with one query, and compare them with what the channels have."""
        before = [(channel, channel.head, set(channel.streams)) for channel in channels]
        with_ended = [bool(known) or channel.reads_heads or channel.needs_look for channel, _, known in before]
        for channel, _, _ in before:
            channel.needs_look = False
        now = asyncio.get_running_loop().time()
        window = (0.0 if self._swept_at is None else now - self._swept_at) + _COMMIT_SECONDS
        ids = [channel.thread_id for channel, _, _ in before]
        try:
            rows = await self._shared.fetch("read_feed_heads", ids, with_ended, timedelta(seconds=window))
        except BaseException:
            for channel, _, _ in before:
                channel.needs_look = True
            raise
        found: dict[UUID, list[asyncpg.Record]] = {}
        for row in rows:
            found.setdefault(row["id"], []).append(row)
        remote: list[StreamKey] = []
        for (channel, head, known), has_ended_rows in zip(before, with_ended, strict=True):
            if self._channels.get(channel.thread_id) is not channel:
                continue  # It has no subscribers any more, or new ones with a new channel.
            of_thread = found.get(channel.thread_id)
            if of_thread is None:
                if head >= 0 or not channel.is_open:
                    self._end(channel)  # The thread was deleted, or never existed.
                continue
            last = of_thread[0]["last_sequence"]
            if last < head:
                self._end(channel, _rewound(channel.thread_id, head, last))
                continue
            remote += self._take_streams(channel, of_thread, known, has_ended_rows=has_ended_rows)
            self._take_head(channel, last)
            channel.checked_at = now
        if remote:
            await self._read_heads(remote)

    def _take_head(self, channel: ThreadChannel, last: int) -> None:
        if not channel.is_open:
            channel.head = last
            if channel.notified > last:
                self._due_events.add(channel.thread_id)
        elif last > channel.head and channel.thread_id not in self._due_events:
            self.missed_notifications += 1
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
        except _UNAVAILABLE as error:
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

    def _want_text(self, channel: ThreadChannel, key: StreamKey, after: int) -> None:
        """Follow the text of a remote stream for long-polls."""
        digest = key.address[1]
        if channel.wanted is None:
            channel.wanted = {}
        if digest not in channel.wanted:
            channel.wanted[digest] = after
            if self._channels.get(channel.thread_id) is channel:
                channel.needs_look = channel.needs_look or digest not in channel.streams
                self._due_streams.add(channel.thread_id)

    def _peek(
        self, channel: ThreadChannel, key: StreamKey, *, after: int, up_to: int | None, limit: int
    ) -> ChunkPage | None:
        """Return what is in memory of a remote open stream; None if the backend must be asked."""
        stream = channel.streams.get(key.address[1])
        if stream is None or stream.is_local or stream.log is None or after < stream.log.base:
            return None
        if asyncio.get_running_loop().time() - channel.checked_at > _TRUSTED_SECONDS:
            return None
        return stream.log.page(after=after, up_to=up_to, limit=min(limit, MAX_PAGE))

    # The periodic job

    async def sweep(self) -> None:
        """Compare all followed threads and awaited runs with the database."""
        now = asyncio.get_running_loop().time()
        for channel in list(self._channels.values()):
            if not channel.subscribers and channel.kept_until <= now:
                self._drop(channel)
        followed = [channel for channel in self._channels.values() if channel.is_open]
        # In slices: thousands of rows at once would delay subscribers that wait for an event.
        for start in range(0, len(followed), _SWEEP_SLICE):
            looked_at = followed[start : start + _SWEEP_SLICE]
            await self._look(looked_at)
            for channel in looked_at:
                if channel.streams and not channel.has_ended:
                    self._due_streams.add(channel.thread_id)
        self._swept_at = now
        awaited = list(self._awaited_runs)
        for start in range(0, len(awaited), _SWEEP_SLICE):
            rows = await self._shared.fetch("find_existing_runs", awaited[start : start + _SWEEP_SLICE])
            for row in rows:
                if (found := self._awaited_runs.get(row["run_id"])) is not None:
                    found.found.notify()


class _Subscription:
    """One subscriber: a position, and what it waits for: a run that does not exist yet, then changes of a thread."""

    __slots__ = (
        "_awaited",
        "_channel",
        "_feed",
        "_inbox",
        "_is_first",
        "_position",
        "_run_id",
        "_seen",
        "_thread_id",
        "_view",
    )

    def __init__(
        self,
        feed: Feed,
        thread_id: UUID | None,
        run_id: str | None,
        position: Position,
        view: StreamView,
        *,
        notifications: bool,
    ) -> None:
        self._feed = feed
        self._thread_id = thread_id
        self._run_id = run_id
        self._position = position
        self._view = view
        self._channel: ThreadChannel | None = None
        self._awaited = feed.await_run(run_id) if run_id is not None else None
        self._seen = -1
        self._is_first = True
        self._inbox: _Inbox | None = None
        if notifications:
            self._inbox = feed.open_inbox(f"run {run_id}" if run_id is not None else f"thread {thread_id}")
            self._inbox.wake = self._awaited or self._inbox.wake

    async def next_page(self) -> list[FeedItem] | None:
        """Wait for the next items; return None at the end of the feed."""
        while True:
            if self._channel is None and not await self._find_channel():
                if self._feed.is_closed:
                    return None
                if (items := self._take_notifications()) or self._is_first:
                    break
                assert self._awaited is not None  # noqa: S101 - only a run is waited for
                await self._awaited.wait(self._seen)
                continue
            assert self._channel is not None  # noqa: S101 - `_find_channel` sets it
            channel = self._channel
            version = channel.changed.version
            if channel.failure is not None:
                raise channel.failure
            if channel.has_ended:
                return None
            items = self._take_notifications()
            if self._position.sequence < channel.head and not await self._take_events(channel, items):
                return None
            is_current = self._position.sequence >= channel.head
            if is_current and self._view is not StreamView.NONE:
                self._take_streams(channel, items)
            if items or self._is_first:
                break
            if is_current:
                await channel.changed.wait(version)
        self._is_first = False
        return items

    def close(self) -> None:
        if self._awaited is not None and self._run_id is not None:
            self._feed.stop_awaiting(self._run_id)
        if self._channel is not None:
            self._feed.leave(self._channel, self._view)
        if self._inbox is not None:
            self._feed.close_inbox(self._inbox)

    async def _find_channel(self) -> bool:
        """Enter the channel of the thread; return False if the run does not exist yet."""
        if self._awaited is not None and self._run_id is not None:
            if self._awaited.version <= self._seen:
                return False
            self._seen = self._awaited.version
            run = await self._feed.find_run(self._run_id, self._thread_id)
            if run is None:
                return False
            self._thread_id = run["thread_id"]
            self._position.sequence = max(self._position.sequence, run["begins_after"])
            self._feed.stop_awaiting(self._run_id)
            self._awaited = None
        assert self._thread_id is not None  # noqa: S101 - given, or found with the run
        channel = self._channel = self._feed.enter(self._thread_id, self._view)
        if self._inbox is not None:
            self._inbox.wake = channel.changed
        await self._feed.open_channel(channel, self._view)
        if self._position.sequence > channel.head and not channel.has_ended:
            await self._feed.check_head(channel, self._position.sequence)
        self._position.ends = channel.end_count
        return True

    async def _take_events(self, channel: ThreadChannel, items: list[FeedItem]) -> bool:
        """Add the next events; return False if the thread was deleted."""
        events = await self._feed.read_page(channel, self._position.sequence)
        if not events:
            await self._feed.check_head(channel, self._position.sequence)
            return False
        self._position.sequence = events[-1].sequence_num or self._position.sequence
        items += events if self._run_id is None else [event for event in events if event.run_id == self._run_id]
        return True

    def _take_streams(self, channel: ThreadChannel, items: list[FeedItem]) -> None:
        for item in channel.stream_items(self._position, self._view):
            if self._run_id is None or _run_of(item) == self._run_id:
                items.append(item)

    def _take_notifications(self) -> list[FeedItem]:
        return self._inbox.take() if self._inbox is not None else []


def _run_of(item: FeedItem) -> str | None:
    return item.head.run_id if isinstance(item, Chunks | StreamEnd) else None


def _rewound(thread_id: UUID, delivered: int, head: int) -> FeedRewoundError:
    return FeedRewoundError(
        f"thread {thread_id} ends at event {head}, but event {delivered} was delivered: the database lost events in a "
        "failover; reload the thread",
    )
