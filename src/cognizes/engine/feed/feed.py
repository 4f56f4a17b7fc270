"""`engine.feed`: the live feed of threads. It is the only code that waits for something to happen on a thread.

A subscriber is a position in the events and streams of a thread, and no queue. All subscribers of a thread share its
recent events, the text of its open streams, and the pages that they read at the same position.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from uuid import UUID

from cognizes.engine.concurrency import Sweeper, WakeUp
from cognizes.engine.database import Database
from cognizes.engine.database.notifications import DEFAULT_CHANNEL, STREAM_CHANNEL, PgNotifyListener, parse_payload
from cognizes.engine.errors import EngineClosedError
from cognizes.engine.feed.channel_reader import SWEEP_SLICE, UNAVAILABLE, ChannelReader, rewound
from cognizes.engine.feed.thread_channel import (
    FeedItem,
    FeedPage,
    FeedSizes,
    Notification,
    Position,
    StreamView,
    ThreadChannel,
)
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.streams.chunks import ChunkPage, StreamKey, StreamStatus
from cognizes.engine.streams.message_streams import MessageStreams
from cognizes.engine.supervision import SupervisedLoop, Supervisor
from cognizes.engine.telemetry import TELEMETRY

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 1.5
_EVERYTHING = "*"
_THREAD_ID = re.compile(r'"thread_id"\s*:\s*"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"')
_NOTIFICATIONS_KEPT = 64


class Inbox:
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


class Inboxes:
    """The inboxes of all subscribers, by key: `thread <id>`, `run <id>`, `name <thread name>` or `*` for everything."""

    def __init__(self) -> None:
        self._inboxes: dict[str, list[Inbox]] = {}

    def __bool__(self) -> bool:
        return bool(self._inboxes)

    def open(self, key: str) -> Inbox:
        inbox = Inbox(key)
        self._inboxes.setdefault(key, []).append(inbox)
        return inbox

    def close(self, inbox: Inbox) -> None:
        inboxes = self._inboxes[inbox.key]
        inboxes.remove(inbox)
        if not inboxes:
            del self._inboxes[inbox.key]

    def put(self, key: str, payload: JsonObject) -> None:
        for inbox in self._inboxes.get(key, ()):
            inbox.put(payload)

    def wake_all(self) -> None:
        for inbox in [inbox for inboxes in self._inboxes.values() for inbox in inboxes]:
            inbox.wake.notify()


class AwaitedRuns:
    """The runs that subscribers follow and that may not exist yet."""

    def __init__(self) -> None:
        self._found: dict[str, WakeUp] = {}
        self._subscribers: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    @property
    def subscribers(self) -> int:
        return self._subscribers.total()

    def add(self, run_id: str) -> WakeUp:
        self._subscribers[run_id] += 1
        return self._found.setdefault(run_id, WakeUp())

    def remove(self, run_id: str) -> None:
        self._subscribers[run_id] -= 1
        if not self._subscribers[run_id]:
            del self._found[run_id], self._subscribers[run_id]

    def notify(self, run_id: str) -> None:
        if (found := self._found.get(run_id)) is not None:
            found.notify()


class Subscription:
    """One subscriber: a position, and what it waits for: a run that does not exist yet, then changes of a thread."""

    __slots__ = (
        "_awaited",
        "_channel",
        "_inbox",
        "_inboxes",
        "_is_first",
        "_position",
        "_reader",
        "_run_id",
        "_runs",
        "_seen",
        "_since",
        "_thread_id",
        "_view",
    )

    def __init__(
        self,
        reader: ChannelReader,
        runs: AwaitedRuns,
        inboxes: Inboxes,
        *,
        thread_id: UUID | None,
        run_id: str | None,
        after: int,
        view: StreamView,
    ) -> None:
        self._reader = reader
        self._runs = runs
        self._inboxes = inboxes
        self._thread_id = thread_id
        self._run_id = run_id
        self._position = Position(after)
        self._view = view
        self._channel: ThreadChannel | None = None
        self._awaited: WakeUp | None = None
        self._seen = -1
        self._is_first = True
        self._inbox: Inbox | None = None
        # Events from before are history: their age says nothing about the feed.
        self._since = datetime.now(UTC) if TELEMETRY.instruments is not None else None

    async def pages(self, *, notifications: bool = False) -> AsyncGenerator[list[FeedItem], None]:
        """Yield the feed page by page; `Feed.follow` describes it."""
        # One generator for threads and runs: thousands of subscribers wait here, and each layer costs memory.
        if self._run_id is not None:
            self._awaited = self._runs.add(self._run_id)
        if notifications:
            key = f"run {self._run_id}" if self._run_id is not None else f"thread {self._thread_id}"
            self._inbox = self._inboxes.open(key)
            self._inbox.wake = self._awaited or self._inbox.wake
        try:
            while (items := await self._next_page()) is not None:
                yield items
        except EngineClosedError:
            return
        finally:
            self._close()

    async def _next_page(self) -> list[FeedItem] | None:
        """Wait for the next items; return None at the end of the feed."""
        while True:
            if self._channel is None and not await self._find_channel():
                if self._reader.is_closed:
                    return None
                items = self._inbox.take() if self._inbox is not None else []
                if items or self._is_first:
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
            items = self._inbox.take() if self._inbox is not None else []
            if self._position.sequence < channel.head:
                page = await self._read_events(channel)
                if page is None:
                    return None
                items = [*items, *page] if items else page
            is_current = self._position.sequence >= channel.head
            if is_current and self._view is not StreamView.NONE and channel.has_streams:
                found = channel.stream_items(self._position, self._view)
                if mine := [item for item in found if self._run_id is None or item.head.run_id == self._run_id]:
                    items = [*items, *mine]  # a new list: the page is shared
            if items or self._is_first:
                break
            if is_current:
                await channel.changed.wait(version)
        self._is_first = False
        return items

    def _close(self) -> None:
        if self._awaited is not None and self._run_id is not None:
            self._runs.remove(self._run_id)
        if self._channel is not None:
            self._reader.leave(self._channel, self._view)
        if self._inbox is not None:
            self._inboxes.close(self._inbox)

    async def _find_channel(self) -> bool:
        """Enter the channel of the thread; return False if the run does not exist yet."""
        if self._awaited is not None and self._run_id is not None:
            if self._awaited.version <= self._seen:
                return False
            self._seen = self._awaited.version
            run = await self._reader.find_run(self._run_id, self._thread_id)
            if run is None:
                return False
            self._thread_id = run["thread_id"]
            self._position.sequence = max(self._position.sequence, run["begins_after"])
            self._runs.remove(self._run_id)
            self._awaited = None
        assert self._thread_id is not None  # noqa: S101 - given, or found with the run
        channel = self._channel = self._reader.enter(self._thread_id, self._view)
        if self._inbox is not None:
            self._inbox.wake = channel.changed
        await self._reader.open_channel(channel, self._view)
        if self._position.sequence > channel.head and not channel.has_ended:
            await self._reader.check_head(channel, self._position.sequence)
        self._position.ends = channel.end_count
        return True

    async def _read_events(self, channel: ThreadChannel) -> FeedPage | None:
        """Return the next events; None if the thread was deleted."""
        after = self._position.sequence
        page = self._reader.find_page(channel, after, self._run_id)
        if page is None:
            page = await self._reader.read_page(channel, after, self._run_id)
        if page is None:
            await self._reader.check_head(channel, after)
            return None
        self._position.sequence = page.last_sequence
        self._measure(page)
        return page

    def _measure(self, page: FeedPage) -> None:
        """Observe the age of the events that are delivered live."""
        if self._since is None or (measured := TELEMETRY.instruments) is None:
            return
        now = datetime.now(UTC)
        for event in page:
            if isinstance(event, Event) and event.created_at is not None and event.created_at >= self._since:
                measured.feed_lag.observe(max(0.0, (now - event.created_at).total_seconds()))


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
        sizes: FeedSizes | None = None,
    ) -> None:
        self._database = database
        self._listener = listener
        self._streams = streams
        self._sweeper = sweeper
        self._supervisor = supervisor
        self._reader = ChannelReader(database, streams, sizes=sizes or FeedSizes())
        self._runs = AwaitedRuns()
        self._inboxes = Inboxes()
        self._sweeping: SupervisedLoop | None = None

    @property
    def followed_threads(self) -> list[UUID]:
        """The threads whose heads the feed knows because they have subscribers, or had a long-poll a moment ago."""
        return [thread_id for thread_id, channel in self._reader.channels.items() if channel.is_open]

    @property
    def subscribers(self) -> int:
        """The number of subscriptions, those that wait for a run included."""
        return self._runs.subscribers + sum(channel.subscribers for channel in self._reader.channels.values())

    @property
    def cached_events(self) -> int:
        return sum(channel.recent_count for channel in self._reader.channels.values())

    @property
    def missed_notifications(self) -> int:
        """The number of times that a sweep found events without a notification."""
        return self._reader.missed_notifications

    @property
    def recovered_notifications(self) -> int:
        """The number of times that such events were then read."""
        return self._reader.recovered_notifications

    def open_streams(self, thread_id: UUID) -> int:
        """Return the number of open streams that the feed knows of a followed thread."""
        channel = self._reader.channels.get(thread_id)
        return len(channel.streams) if channel else 0

    async def start(self) -> None:
        self._streams.observe(self._reader)
        self._listener.tap(DEFAULT_CHANNEL, self.on_event_notification)
        self._listener.on_reconnect(self._reader.check_rewinds)
        self._listener.tap(STREAM_CHANNEL, self._reader.on_stream_notification)
        self._reader.start(self._supervisor)
        self._sweeping = self._sweeper.start("feed-sweep", self.sweep, seconds=SWEEP_SECONDS)

    async def close(self) -> None:
        if self._sweeping is not None:
            await self._sweeping.stop()
            self._sweeping = None
        await self._reader.close()
        for run_id in self._runs:
            self._runs.notify(run_id)
        self._inboxes.wake_all()

    def follow(
        self, thread_id: UUID, after: int = 0, *, streams: StreamView = StreamView.TEXT, notifications: bool = False
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

    def events(self, thread_id: UUID, after: int = 0) -> AsyncGenerator[Event, None]:
        return _stored_events(self._follow(thread_id, None, after, StreamView.NONE))

    def events_of_run(self, run_id: str, after: int = 0, thread_id: UUID | None = None) -> AsyncGenerator[Event, None]:
        """Yield the stored events of a run, one by one; wait for a run that does not exist yet."""
        return _stored_events(self._follow(thread_id, run_id, after, StreamView.NONE))

    async def notifications(self, thread_name: str | None = None) -> AsyncGenerator[list[Notification], None]:
        """Yield all notifications that name a thread, or all there are: for names that are no thread's id.

        They are delivered as they arrive, and dropped if the subscriber is too slow. The first page is empty.
        """
        key = _EVERYTHING if thread_name is None else f"name {thread_name}"
        inbox = self._inboxes.open(key)
        try:
            yield []
            while not self._reader.is_closed:
                version = inbox.wake.version
                if found := inbox.take():
                    yield [item for item in found if isinstance(item, Notification)]
                else:
                    await inbox.wake.wait(version)
        finally:
            self._inboxes.close(inbox)

    async def check_run_cursor(self, run_id: str, after: int, thread_id: UUID | None = None) -> None:
        """Raise `FeedRewoundError` if a cursor is after the head of the thread of an existing run."""
        run = await self._database.fetch_row("find_run", run_id, thread_id)
        if run is not None:
            await self.check_cursor(run["thread_id"], after)

    async def check_cursor(self, thread_id: UUID, after: int) -> None:
        """Raise `FeedRewoundError` if a cursor is after the head of an existing thread."""
        row = await self._database.fetch_row("read_thread_head", thread_id)
        if row is not None and row["last_sequence"] < after:
            raise rewound(thread_id, after, row["last_sequence"])

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
        channel = self._reader.enter(thread, StreamView.NONE)
        try:
            while True:
                version = channel.changed.version
                left = deadline - loop.time()
                try:
                    page = self._reader.peek(channel, key, after=after, up_to=up_to, limit=limit) if left > 0 else None
                    if page is None:
                        page = await self._streams.read(thread, message_id, after=after, up_to=up_to, limit=limit)
                        if page.status is StreamStatus.STREAMING and self._streams.find_live(key) is None:
                            self._reader.want_text(channel, key, page.chunks[-1].sequence if page.chunks else after)
                    has_all = up_to is not None and page.current_sequence >= up_to
                    if page.chunks or page.status is not StreamStatus.STREAMING or has_all or left <= 0:
                        return page
                except UNAVAILABLE:
                    if left <= 0:
                        raise
                await channel.changed.wait(version, timeout=min(left, SWEEP_SECONDS))
        finally:
            # The next poll of the same message finds the log.
            self._reader.leave(channel, StreamView.NONE, keep=channel.wanted is not None)

    def on_event_notification(self, text: str) -> None:
        """Take in a notification of an event, or one without an event."""
        if not self._runs and not self._inboxes:
            if not self._reader.channels:
                return
            # Nearly all notifications of a server are about threads that this process does not follow.
            named = _THREAD_ID.findall(text)
            if named and not any(UUID(name) in self._reader.channels for name in named):
                return
        payload = parse_payload(text)
        sequence = payload.get("sequence_num")
        thread_name, run_id = payload.get("thread_id"), payload.get("run_id")
        if self._inboxes:
            keys = [_EVERYTHING, f"name {thread_name}"]
            if not isinstance(sequence, int):
                keys += [f"thread {thread_name}", f"run {run_id}"]
            for key in keys:
                self._inboxes.put(key, payload)
        self._runs.notify(str(run_id))
        try:
            thread_id = UUID(str(thread_name))
        except ValueError:
            return
        self._reader.on_event(thread_id, sequence if isinstance(sequence, int) else None)

    async def sweep(self) -> None:
        """Compare all followed threads and awaited runs with the database."""
        await self._reader.sweep()
        awaited = list(self._runs)
        for start in range(0, len(awaited), SWEEP_SLICE):
            for run_id in await self._reader.find_existing_runs(awaited[start : start + SWEEP_SLICE]):
                self._runs.notify(run_id)

    def _follow(
        self, thread_id: UUID | None, run_id: str | None, after: int, view: StreamView, notifications: bool = False
    ) -> AsyncGenerator[list[FeedItem], None]:
        subscription = Subscription(
            self._reader, self._runs, self._inboxes, thread_id=thread_id, run_id=run_id, after=after, view=view
        )
        return subscription.pages(notifications=notifications)


async def _stored_events(pages: AsyncGenerator[list[FeedItem], None]) -> AsyncGenerator[Event, None]:
    async with aclosing(pages):
        async for page in pages:
            for item in page:
                if isinstance(item, Event):
                    yield item
