"""One subscriber of the feed: a position in the events and streams of a thread, and no queue.

All subscribers of a thread share its recent events and the text of its open streams. Older events are read from the
database in pages, so a slow subscriber costs one page.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime
from uuid import UUID

from cognizes.engine.concurrency import WakeUp
from cognizes.engine.errors import EngineClosedError
from cognizes.engine.feed.channel_reader import ChannelReader
from cognizes.engine.feed.thread_channel import FeedItem, Notification, Position, StreamView, ThreadChannel
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.telemetry import instruments

logger = logging.getLogger(__name__)

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
        self._since = datetime.now(UTC) if instruments() is not None else None

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
            if self._position.sequence < channel.head and not await self._take_events(channel, items):
                return None
            is_current = self._position.sequence >= channel.head
            if is_current and self._view is not StreamView.NONE:
                found = channel.stream_items(self._position, self._view)
                items += [item for item in found if self._run_id is None or item.head.run_id == self._run_id]
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

    async def _take_events(self, channel: ThreadChannel, items: list[FeedItem]) -> bool:
        """Add the next events; return False if the thread was deleted."""
        events = await self._reader.read_page(channel, self._position.sequence)
        if not events:
            await self._reader.check_head(channel, self._position.sequence)
            return False
        self._position.sequence = events[-1].sequence_num or self._position.sequence
        self._measure(events)
        items += events if self._run_id is None else [event for event in events if event.run_id == self._run_id]
        return True

    def _measure(self, events: list[Event]) -> None:
        """Observe the age of the events that are delivered live."""
        if self._since is None or (measured := instruments()) is None:
            return
        now = datetime.now(UTC)
        for event in events:
            if event.created_at is not None and event.created_at >= self._since:
                measured.feed_lag.observe(max(0.0, (now - event.created_at).total_seconds()))
