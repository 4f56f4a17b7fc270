"""The feed over a log in memory that can hold back any response of the database: races of reads and notifications."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from cognizes.engine.concurrency import Sweeper
from cognizes.engine.database import Database
from cognizes.engine.errors import DatabaseUnavailableError, FeedRewoundError, NotFoundError
from cognizes.engine.feed import (
    Chunks,
    Feed,
    FeedItem,
    Notification,
    StreamEnd,
    StreamView,
    feed,
)
from cognizes.engine.feed.thread_channel import FeedPage, FeedSizes
from cognizes.engine.models import Event
from cognizes.engine.pulse.events import EventLog, EventPage
from cognizes.engine.streams.chunks import Segment, StreamHead, StreamKey, StreamRow, format_notifications
from cognizes.engine.streams.writer import LiveMessage
from cognizes.engine.supervision import Supervisor

Row = dict[str, Any]


class Held:
    """A query whose response is held back."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.released = asyncio.Event()


class Log:
    """Threads, events and streams, and the queries of the feed."""

    acting_apps = None
    page_bytes = 1024 * 1024
    fetch_page = Database.fetch_page

    def __init__(self) -> None:
        self.threads: dict[UUID, list[Row]] = {}
        self.runs: dict[str, UUID] = {}
        self.held: dict[str, list[Held]] = {}
        self.heads: dict[UUID, int] = {}
        self.streams: dict[UUID, list[Row]] = {}
        self.queries = 0
        self.is_away = False
        self.pause: Callable[[], int] = int

    def create(self, count: int = 0) -> UUID:
        thread = uuid4()
        self.threads[thread] = []
        for _ in range(count):
            self.append(thread)
        return thread

    def append(self, thread: UUID, run_id: str | None = None, *, event_id: str | None = None) -> Row:
        sequence = len(self.threads[thread]) + 1
        row: Row = {
            "id": event_id or f"e{sequence}", "thread_id": thread, "invocation_id": "", "author": "a",
            "event_type": "message",
            "content": "{}", "actions": "{}", "created_at": datetime.now(UTC), "run_id": run_id,
            "sequence_num": sequence, "version": 1, "bytes": 4,
        }  # fmt: skip
        self.threads[thread].append(row)
        if run_id:
            self.runs[run_id] = thread
        return row

    def hold(self, query: str) -> Held:
        """Hold back the next response to a query; its rows are read before."""
        held = Held()
        self.held.setdefault(query, []).append(held)
        return held

    async def fetch(self, query: str, *arguments: Any) -> list[Row]:
        self.queries += 1
        for _ in range(self.pause()):
            await asyncio.sleep(0)
        if self.is_away:
            raise DatabaseUnavailableError("away")
        rows = list(getattr(self, f"_{query}")(*arguments))
        if waiting := self.held.get(query):
            held = waiting.pop(0)
            held.reached.set()
            await held.released.wait()
        for _ in range(self.pause()):
            await asyncio.sleep(0)
        return rows

    async def fetch_row(self, query: str, *arguments: Any) -> Row | None:
        return next(iter(await self.fetch(query, *arguments)), None)

    async def fetch_value(self, query: str, *arguments: Any) -> Any:
        row = await self.fetch_row(query, *arguments)
        return next(iter(row.values())) if row else None

    def without_tenants(self) -> Log:
        return self

    def note_sequence(self, thread: UUID, sequence: int) -> None:
        assert len(self.threads[thread]) >= sequence

    def open_stream(self, thread: UUID, name: str, *, role: str = "assistant", run_id: str | None = None) -> StreamKey:
        key = StreamKey(thread, name)
        self.streams.setdefault(thread, []).append({
            "thread_id": thread, "message_id": name, "role": role, "author": "bot", "run_id": run_id,
            "status": "streaming", "owner": None, "final_sequence": None, "began_after": len(self.threads[thread]),
            "stored_sequence": None,
        })  # fmt: skip
        return key

    def end_stream(self, key: StreamKey, final_sequence: int, *, status: str = "completed", stores: bool = True) -> Row:
        """End a stream, with the event of its message; return the event's row or an empty one."""
        (row,) = [row for row in self.streams[key.thread_id] if row["message_id"] == key.message_id]
        row |= {"status": status, "final_sequence": final_sequence}
        return self.append(key.thread_id, row["run_id"], event_id=key.message_id) if stores else {}

    def _head(self, thread: UUID) -> int:
        return self.heads.get(thread, len(self.threads[thread]))

    def _read_thread_head(self, thread: UUID) -> list[Row]:
        return [{"last_sequence": self._head(thread)}] if thread in self.threads else []

    def _read_feed_heads(
        self, threads: list[UUID], with_ended: list[bool], _window: Any, events_at: list[int | None]
    ) -> list[Row]:
        found = []
        for thread, has_ended, event_at in zip(threads, with_ended, events_at, strict=True):
            if thread in self.threads:
                last = self._head(thread)
                at = last if event_at is not None and event_at < 0 else event_at
                head = {"id": thread, "last_sequence": last, "message_id": None, "event_id": self._id_at(thread, at)}
                streams = [
                    {**head, **row} for row in self.streams.get(thread, []) if has_ended or row["status"] == "streaming"
                ]
                found += streams or [head]
        return found

    def _read_events(self, thread: UUID, after: int, limit: int, _large: int) -> list[Row]:
        return self.threads.get(thread, [])[after : after + limit]

    def _read_events_at(self, thread: UUID, sequences: list[int]) -> list[Row]:
        return [row for row in self.threads.get(thread, []) if row["sequence_num"] in sequences]

    def _read_events_of_threads(
        self, threads: list[UUID], heads: list[int], limit: int, large: int, ids: list[str | None]
    ) -> list[Row]:
        asked = zip(threads, heads, ids, strict=True)
        return [
            {**row, "follows": event_id is None or self._id_at(thread, after) == event_id}
            for thread, after, event_id in asked
            for row in self._read_events(thread, after, limit, large)
        ][:limit]

    def _id_at(self, thread: UUID, sequence: int | None) -> str | None:
        rows = self.threads.get(thread, [])
        return rows[sequence - 1]["id"] if sequence is not None and 0 < sequence <= len(rows) else None

    def lose(self, thread: UUID, count: int) -> None:
        """Lose the newest events, as a failover to a replica that lags does; later ones get their numbers."""
        del self.threads[thread][-count:]

    def _find_run(self, run_id: str, _thread: UUID | None = None) -> list[Row]:
        thread = self.runs.get(run_id)
        if thread not in self.threads:
            return []
        numbers = [row["sequence_num"] for row in self.threads[thread] if row["run_id"] == run_id]
        return [{"thread_id": thread, "begins_after": min(numbers) - 1 if numbers else len(self.threads[thread])}]

    def _find_existing_runs(self, run_ids: list[str]) -> list[Row]:
        return [{"run_id": run_id} for run_id in run_ids if run_id in self.runs]


class Listener:
    """A listener whose notifications and reconnections the test causes."""

    def __init__(self) -> None:
        self.taps: dict[str, list[Callable[[str], None]]] = {}
        self.reconnect_callbacks: list[Callable[[], Awaitable[None]]] = []

    def on_reconnect(self, callback: Callable[[], Awaitable[None]]) -> None:
        self.reconnect_callbacks.append(callback)

    async def reconnect(self) -> None:
        for callback in self.reconnect_callbacks:
            await callback()

    def tap(self, channel: str, callback: Callable[[str], None]) -> None:
        self.taps.setdefault(channel, []).append(callback)

    def notify(self, row: Row) -> None:
        self.send({"thread_id": str(row["thread_id"]), "sequence_num": row["sequence_num"], "run_id": row["run_id"]})

    def send(self, payload: object) -> None:
        for tap in self.taps["event_stream"]:
            tap(json.dumps(payload))

    def notify_stream(self, key: StreamKey, sequence: int, *, status: str = "streaming") -> None:
        (payload,) = format_notifications([(key.address, sequence)])
        for tap in self.taps["stream_moved"]:
            tap(payload.replace('"streaming"', f'"{status}"'))


class Backend:
    """The chunks of remote streams."""

    def __init__(self) -> None:
        self.chunks: dict[StreamKey, list[str]] = {}
        self.reads = 0
        self.is_away = False

    async def read(self, asked: list[tuple[StreamKey, int]], *, limit: int) -> dict[StreamKey, list[Segment]]:
        self.reads += 1
        if self.is_away:
            raise DatabaseUnavailableError("away")
        found = {key: self.chunks.get(key, [])[after:] for key, after in asked}
        return {key: [Segment.of(after + 1, found[key])] if found[key] else [] for key, after in asked}

    async def heads(self, keys: list[StreamKey]) -> dict[StreamKey, int]:
        if self.is_away:
            raise DatabaseUnavailableError("away")
        return {key: len(self.chunks.get(key, [])) for key in keys}


class Streams:
    """The streams of this process."""

    def __init__(self) -> None:
        self.backend = Backend()
        self.live: dict[StreamKey, LiveMessage] = {}
        self.observer: Any = None

    def observe(self, observer: Any) -> None:
        self.observer = observer

    def find_live(self, key: StreamKey) -> LiveMessage | None:
        return self.live.get(key)

    def write(self, key: StreamKey, began_after: int) -> LiveMessage:
        row = StreamRow(key, "assistant", "bot", None, began_after=began_after)
        message = self.live[key] = LiveMessage(row, "app", 1 << 20, self.observer.on_stream_changed)
        self.observer.on_stream_opened(message)
        return message


class Live:
    """A feed over a log; nothing is swept unless a test calls `sweep`."""

    def __init__(self, sizes: FeedSizes | None = None) -> None:
        self.log = Log()
        self.listener = Listener()
        self.streams = Streams()
        supervisor = Supervisor()
        self.feed = Feed(
            self.log,  # type: ignore[arg-type]
            self.listener,  # type: ignore[arg-type]
            self.streams,  # type: ignore[arg-type]
            sweeper=Sweeper(supervisor),
            supervisor=supervisor,
            sizes=sizes,
        )

    def append(self, thread: UUID, run_id: str | None = None, *, notify: bool = True) -> None:
        row = self.log.append(thread, run_id)
        if notify:
            self.listener.notify(row)

    def stream(self, key: StreamKey, *deltas: str, notify: bool = True) -> None:
        """Write chunks of a remote stream."""
        chunks = self.streams.backend.chunks.setdefault(key, [])
        chunks += deltas
        if notify:
            self.listener.notify_stream(key, len(chunks))


@asynccontextmanager
async def _running(live: Live) -> AsyncIterator[Live]:
    await live.feed.start()
    try:
        yield live
    finally:
        await live.feed.close()


@pytest.fixture
async def live(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    """A running feed; a test may give its sizes as the parameter."""
    monkeypatch.setattr(feed, "SWEEP_SECONDS", 3600.0)
    async with _running(Live(getattr(request, "param", None))) as running:
        yield running


async def numbers(events: AsyncGenerator[Event, None], count: int = 10**9) -> list[int]:
    """The numbers of events, so many or all until the end."""
    found: list[int] = []
    async with asyncio.timeout(10), aclosing(events):
        async for event in events:
            found.append(event.sequence_num or 0)
            if len(found) == count:
                break
    return found


async def idle() -> None:
    """Let all tasks run that can."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_closing_ends_subscriptions_that_wait_for_a_run(live: Live) -> None:
    waiting = [asyncio.create_task(numbers(live.feed.events_of_run("never"))) for _ in range(2)]
    await idle()
    await live.feed.close()
    assert [await task for task in waiting] == [[], []]
    assert live.feed.subscribers == 0


async def test_closing_ends_subscriptions_that_wait_for_the_database(live: Live) -> None:
    thread = live.log.create(3)
    live.log.runs["r"] = thread
    live.log.is_away = True
    waiting = [
        asyncio.create_task(numbers(live.feed.events(thread))),
        asyncio.create_task(numbers(live.feed.events_of_run("r"))),
    ]
    await idle()
    await live.feed.close()
    assert [await task for task in waiting] == [[], []]


async def test_closing_ends_subscriptions_that_wait_for_events(live: Live) -> None:
    following = asyncio.create_task(numbers(live.feed.events(live.log.create(2))))
    await idle()
    await live.feed.close()
    assert await following == [1, 2]


async def test_following_a_closed_feed_ends_at_once(live: Live) -> None:
    thread = live.log.create(2)
    await live.feed.close()
    assert await numbers(live.feed.events(thread)) == []
    assert await numbers(live.feed.events_of_run("r")) == []


async def test_an_event_that_is_notified_while_the_head_is_read(live: Live) -> None:
    thread = live.log.create(5)
    held = live.log.hold("read_feed_heads")
    following = asyncio.create_task(numbers(live.feed.events(thread, after=5), 1))
    await held.reached.wait()
    live.append(thread)
    held.released.set()
    assert await following == [6]


async def test_two_subscribers_that_await_a_run_both_get_it(live: Live) -> None:
    """One queries the database just before the run exists, the other is woken in between and queries again."""
    thread = live.log.create()
    first = asyncio.create_task(numbers(live.feed.events_of_run("r"), 1))
    await idle()
    held = live.log.hold("find_run")
    second = asyncio.create_task(numbers(live.feed.events_of_run("r"), 1))
    await held.reached.wait()
    live.append(thread, "r")
    assert await first == [1]
    held.released.set()
    assert await second == [1]


async def test_awaited_runs_are_looked_up_together(live: Live) -> None:
    thread = live.log.create()
    waiting = [asyncio.create_task(numbers(live.feed.events_of_run(f"r{number}"), 1)) for number in range(300)]
    await idle()
    asked = live.log.queries
    live.append(thread, "r7", notify=False)
    await live.feed.sweep()
    assert live.log.queries - asked <= 3
    assert await waiting[7] == [1]
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert live.feed.subscribers == 0
    assert not live.feed.followed_threads


async def test_a_run_is_followed_from_its_own_first_event(live: Live) -> None:
    thread = live.log.create(1000)
    live.append(thread, "r")
    live.append(thread)
    live.append(thread, "r")
    asked = live.log.queries
    assert await numbers(live.feed.events_of_run("r"), 2) == [1001, 1003]
    assert live.log.queries - asked <= 3, "the thousand before it are not read"


async def test_a_deleted_thread_stays_ended_when_a_read_back_comes_late(live: Live) -> None:
    thread = live.log.create(1)
    events = live.feed.events(thread)
    assert (await anext(events)).sequence_num == 1
    held = live.log.hold("read_events_of_threads")
    live.append(thread)
    await held.reached.wait()
    del live.log.threads[thread]
    await live.feed.sweep()
    held.released.set()
    await idle()
    assert await numbers(events) == []


async def test_following_a_deleted_thread_raises(live: Live) -> None:
    thread = live.log.create(1)
    slow = live.feed.events(thread)
    await anext(slow)
    del live.log.threads[thread]
    await live.feed.sweep()
    with pytest.raises(NotFoundError):
        await anext(live.feed.events(thread))
    assert await numbers(slow) == []


async def test_a_thread_that_is_not_there_yet_is_not_ended_by_a_sweep(live: Live) -> None:
    """The sweep read before the thread existed, and its response comes after a subscriber found the thread."""
    thread = live.log.create()
    rows = live.log.threads.pop(thread)
    other = live.log.create(1)
    watching = live.feed.events(other)
    await anext(watching)
    opening = live.log.hold("read_feed_heads")
    live.log.threads[thread] = rows
    following = asyncio.create_task(numbers(live.feed.events(thread), 1))
    await opening.reached.wait()
    del live.log.threads[thread]
    swept = live.log.hold("read_feed_heads")
    sweeping = asyncio.create_task(live.feed.sweep())
    await swept.reached.wait()
    live.log.threads[thread] = rows
    opening.released.set()
    await idle()
    swept.released.set()
    await sweeping
    live.append(thread)
    assert await following == [1]
    await watching.aclose()


@pytest.mark.parametrize("live", [FeedSizes(page=4)], indirect=True)
async def test_more_than_a_page_is_read_back_whole(live: Live) -> None:
    thread = live.log.create(1)
    followers = [asyncio.create_task(numbers(live.feed.events(thread, after=1), 50)) for _ in range(3)]
    await idle()
    for _ in range(49):
        live.append(thread, notify=False)
    live.append(thread)  # One notification for all of them.
    for following in followers:
        assert await following == list(range(2, 52))


@pytest.mark.parametrize("live", [FeedSizes(page=100, subscriber_page=8, recent=100)], indirect=True)
async def test_subscribers_find_all_events_of_a_large_read_in_memory(live: Live) -> None:
    thread = live.log.create(1)
    followers = [asyncio.create_task(numbers(live.feed.events(thread, after=1), 90)) for _ in range(20)]
    await idle()
    before = live.log.queries
    for _ in range(89):
        live.append(thread, notify=False)
    live.append(thread)
    for following in followers:
        assert await following == list(range(2, 92))
    assert live.log.queries == before + 1


@pytest.mark.parametrize("live", [FeedSizes(page=2, subscriber_page=8, recent=2)], indirect=True)
async def test_subscribers_that_are_behind_read_the_same_pages_once(live: Live) -> None:
    """They begin at different events, and meet at the end of the first page."""
    thread = live.log.create(80)
    first = live.feed.follow(thread, after=80)
    await anext(first)
    before = live.log.queries
    followers = [asyncio.create_task(numbers(live.feed.events(thread, after=after), 80 - after)) for after in range(8)]
    for after, following in enumerate(followers):
        assert await following == list(range(after + 1, 81))
    assert live.log.queries - before == 8 + 9, "the first pages differ; the nine others are read once"
    await first.aclose()


@pytest.fixture
def page_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions of the pages that are read from the database."""
    read_page, positions = EventLog.read_page, list[int]()

    async def noted(log: EventLog, thread: UUID, *, after: int = 0, limit: int = 1000) -> EventPage:
        positions.append(after)
        return await read_page(log, thread, after=after, limit=limit)

    monkeypatch.setattr(EventLog, "read_page", noted)
    return positions


async def test_pages_that_are_too_large_for_memory_are_read_once(live: Live, page_reads: list[int]) -> None:
    thread = live.log.create(300)
    for row in live.log.threads[thread]:
        row["bytes"] = 40_000
    live.log.page_bytes = 4 << 20
    first = live.feed.follow(thread, after=300)
    await anext(first)
    held = live.log.hold("read_events")
    followers = [asyncio.create_task(numbers(live.feed.events(thread), 300)) for _ in range(15)]
    await held.reached.wait()
    followers += [asyncio.create_task(numbers(live.feed.events(thread), 300)) for _ in range(15)]
    await idle()
    held.released.set()
    for following in followers:
        assert await following == list(range(1, 301))
    assert page_reads == [0, 104, 128, 232, 256]
    await first.aclose()


async def test_a_page_that_its_size_ends_stays_in_memory(live: Live, page_reads: list[int]) -> None:
    thread = live.log.create(40)
    for row in live.log.threads[thread]:
        row["bytes"] = 40_000
    first = live.feed.follow(thread, after=40)
    await anext(first)
    for _ in range(2):
        assert await numbers(live.feed.events(thread), 40) == list(range(1, 41))
    assert page_reads == [0, 26]
    await first.aclose()


async def test_what_an_encoder_makes_of_a_page_is_shared(live: Live) -> None:
    thread = live.log.create(1)
    live.log.append(thread, "run")
    made: list[list[object]] = []

    def encode(items: list[FeedItem]) -> list[object]:
        made.append(described(items))
        return made[-1]

    of_run = [live.feed.follow_run("run", 2) for _ in range(3)]
    of_thread = [live.feed.follow(thread, after=2) for _ in range(3)]
    for pages in (*of_run, *of_thread):
        await anext(pages)
    live.log.append(thread)
    live.append(thread, "run")
    for followed, expected in ((of_run, [4]), (of_thread, [3, 4])):
        for pages in followed:
            page = await anext(pages)
            assert isinstance(page, FeedPage)
            assert page.encoded(encode) == expected
            await pages.aclose()
    assert made == [[4], [3, 4]]


async def test_an_unreadable_row_does_not_end_the_feed(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    bad, good = live.log.create(), live.log.create()
    one = asyncio.create_task(numbers(live.feed.events(bad), 1))
    two = asyncio.create_task(numbers(live.feed.events(good), 1))
    await idle()
    row = live.log.append(bad)
    row["content"] = "{"
    live.listener.notify(row)
    await idle()
    live.append(good)
    assert await two == [1]
    row["content"] = "{}"
    await live.feed.sweep()
    assert await one == [1]


async def test_notifications_without_an_event_are_delivered_to_their_run_and_thread(live: Live) -> None:
    thread = live.log.create()
    run = live.feed.follow_run("r", notifications=True)
    of_thread = live.feed.follow(thread, notifications=True)
    everything = live.feed.notifications()
    for pages in (run, of_thread, everything):
        assert await anext(pages) == []  # Registered.
    sent = [{"run_id": "r", "n": 1}, {"run_id": "r", "sequence_num": 4}, {"thread_id": str(thread), "n": 2}, "text", 5]
    for payload in sent:
        live.listener.send(payload)
    assert await anext(run) == [Notification({"run_id": "r", "n": 1})]
    assert await anext(of_thread) == [Notification({"thread_id": str(thread), "n": 2})]
    assert [item.payload for item in await anext(everything)] == [*sent[:3], {"raw": '"text"'}, {"raw": "5"}]
    for pages in (run, of_thread, everything):
        await pages.aclose()
    live.listener.send({"run_id": "r", "n": 3})
    assert live.feed.subscribers == 0


async def test_only_notifications_of_followed_threads_are_parsed(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = feed.parse_payload

    def count(text: str) -> dict[str, Any]:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(feed, "parse_payload", count)
    thread, other = live.log.create(), live.log.create()
    following = asyncio.create_task(numbers(live.feed.events(thread), 4))
    await idle()
    live.append(other)
    assert not parsed
    name = str(thread)
    for payload in (
        f'{{"thread_id":"{name}","sequence_num":1}}',
        f'{{"sequence_num" : 2, "thread_id" : "{name}"}}',
        f'{{"sequence_num": 3, "thread_id": "{name.upper()}"}}',
        f'{{"run": {{"thread_id": "{other}"}}, "author": "\\"thread_id\\": \\"", "thread_id": "{name}"}}',
    ):
        live.append(thread, notify=False)
        for tap in live.listener.taps["event_stream"]:
            tap(payload)
        await idle()
    assert await following == [1, 2, 3, 4]
    assert len(parsed) == 4


async def test_a_subscriber_that_does_not_read_keeps_a_bounded_number_of_notifications(live: Live) -> None:
    everything = live.feed.notifications()
    await anext(everything)
    for number in range(1000):
        live.listener.send({"n": number})
    assert [item.payload["n"] for item in await anext(everything)] == list(range(64))
    await everything.aclose()


async def read(pages: AsyncGenerator[list[FeedItem], None], until: Callable[[list[FeedItem]], bool]) -> list[FeedItem]:
    """Collect items until a condition holds."""
    found: list[FeedItem] = []
    async with asyncio.timeout(10):
        while not until(found):
            found += await anext(pages)
    return found


def described(items: list[FeedItem]) -> list[object]:
    """Describe items by their sequence, text or end."""
    found: list[object] = []
    for item in items:
        match item:
            case Event():
                found.append(item.sequence_num)
            case Chunks():
                found.append("".join(chunk.delta for chunk in item.chunks))
            case StreamEnd():
                found.append(item.head.status.value)
    return found


def head_of(item: FeedItem) -> StreamHead:
    assert isinstance(item, Chunks | StreamEnd)
    return item.head


@pytest.mark.parametrize("is_local", [True, False])
async def test_chunks_come_between_the_events_before_their_stream_and_their_own(live: Live, is_local: bool) -> None:
    thread = live.log.create(2)
    pages = live.feed.follow(thread)
    assert described(await anext(pages)) == [1, 2]
    live.append(thread, notify=False)  # Its notification is late.
    key = live.log.open_stream(thread, "m")
    if is_local:
        message = live.streams.write(key, 3)
        message.add("one ")
        message.add("two")
    else:
        live.stream(key, "one ", "two")
    await idle()
    live.listener.notify(live.log.threads[thread][-1])
    items = await read(pages, lambda found: "one two" in "".join(map(str, described(found))))
    assert described(items)[0] == 3
    assert "".join(map(str, described(items)[1:])) == "one two"
    live.streams.live.clear()
    row = live.log.end_stream(key, 2)
    live.listener.notify_stream(key, 2, status="completed")
    live.listener.notify(row)
    live.stream(key, "late", notify=True)
    items = await read(pages, lambda found: "completed" in described(found))
    assert described(items) == [4, "completed"]
    assert (head_of(items[-1]).message_id, head_of(items[-1]).current_sequence) == ("m", 2)
    await pages.aclose()


async def test_a_late_subscriber_receives_the_text_so_far_in_its_first_page(live: Live) -> None:
    thread = live.log.create(1)
    key = live.log.open_stream(thread, "m", run_id="r")
    live.stream(key, "one ", "two", notify=False)
    assert described(await anext(live.feed.follow(thread, 1))) == ["one two"]
    assert described(await anext(live.feed.follow(thread, 0))) == [1, "one two"]
    assert await anext(live.feed.follow(thread, 1, streams=StreamView.NONE)) == []
    (item,) = await anext(live.feed.follow(thread, 1, streams=StreamView.HEADS))
    assert (head_of(item).current_sequence, item) == (2, Chunks(head_of(item), ()))
    live.log.runs["r"] = thread
    assert described(await anext(live.feed.follow_run("r"))) == ["one two"]
    live.log.runs["other"] = thread
    assert await anext(live.feed.follow_run("other")) == []


async def test_a_message_that_is_stored_while_its_stream_is_open_sends_no_more_chunks(live: Live) -> None:
    thread = live.log.create()
    key = live.log.open_stream(thread, "m")
    live.stream(key, "all", notify=False)
    pages = live.feed.follow(thread)
    assert described(await anext(pages)) == ["all"]
    live.listener.notify(live.log.append(thread, event_id="m"))
    assert described(await anext(pages)) == [1]
    live.log.streams[thread][0]["stored_sequence"] = 1
    live.stream(key, "more")
    live.append(thread)
    assert described(await read(pages, lambda found: 2 in described(found))) == [2]
    # Also for a subscriber that comes after the event was stored.
    assert await anext(live.feed.follow(thread, 2)) == []
    await pages.aclose()


async def test_a_stream_without_an_event_ends_with_a_stream_end(live: Live) -> None:
    thread = live.log.create()
    key = live.log.open_stream(thread, "m")
    pages = live.feed.follow(thread)
    assert await anext(pages) == []
    live.log.end_stream(key, 0, status="interrupted", stores=False)
    live.listener.notify_stream(key, 0, status="interrupted")
    assert described(await anext(pages)) == ["interrupted"]
    await pages.aclose()


async def test_one_refresh_reads_the_end_of_a_stream_and_the_stream_that_was_opened_again(live: Live) -> None:
    thread = live.log.create()
    live.log.runs |= {"old": thread, "new": thread}
    key = live.log.open_stream(thread, "m", run_id="old")
    of_old, of_new = live.feed.follow_run("old"), live.feed.follow_run("new")
    for pages in (of_old, of_new):
        assert await anext(pages) == []
    live.log.streams[thread][0] |= {"run_id": "new", "owner": uuid4()}
    live.listener.notify_stream(key, 0, status="interrupted")
    live.listener.notify_stream(key, 0)
    live.stream(key, "text")
    assert described(await read(of_new, bool)) == ["text"]
    assert described(await read(of_old, bool)) == ["interrupted"]
    for pages in (of_old, of_new):
        await pages.aclose()


@pytest.mark.parametrize("is_local", [True, False])
async def test_a_stream_of_this_process_is_replaced_by_the_one_that_was_opened_again(
    live: Live, is_local: bool
) -> None:
    """Subscribers of this process received text that no other process has; they receive all of the new one."""
    thread = live.log.create()
    key = live.log.open_stream(thread, "m")
    pages = live.feed.follow(thread)
    assert await anext(pages) == []
    live.streams.write(key, 0).add("old")
    assert described(await read(pages, bool)) == ["old"]
    live.log.streams[thread][0] |= {"owner": uuid4()}
    if is_local:
        live.streams.write(key, 0).add("new")
    else:
        del live.streams.live[key]
        live.stream(key, "new", notify=False)
        await live.feed.sweep()
    assert described(await read(pages, lambda found: len(found) >= 2)) == ["interrupted", "new"]
    await pages.aclose()


async def test_a_stream_is_not_replaced_by_a_row_that_was_read_before_it_was_opened_again(live: Live) -> None:
    thread = live.log.create()
    key = live.log.open_stream(thread, "m")
    pages = live.feed.follow(thread)
    assert await anext(pages) == []
    held = live.log.hold("read_feed_heads")
    sweeping = asyncio.create_task(live.feed.sweep())
    await held.reached.wait()
    live.append(thread)
    live.log.streams[thread][0] |= {"owner": uuid4(), "began_after": 1}
    live.listener.notify_stream(key, 0, status="interrupted")
    assert described(await read(pages, lambda found: len(found) >= 2)) == [1, "interrupted"]
    held.released.set()
    await sweeping
    live.stream(key, "text")
    assert described(await read(pages, bool)) == ["text"]
    await pages.aclose()


async def test_a_stream_is_read_back_before_this_process_has_its_message(live: Live) -> None:
    thread = live.log.create()
    key = live.log.open_stream(thread, "m")
    pages = live.feed.follow(thread)
    assert await anext(pages) == []
    live.streams.write(key, 0).add("text")
    assert described(await read(pages, bool)) == ["text"]
    await live.feed.sweep()
    live.append(thread)
    assert described(await read(pages, bool)) == [1], "it has not ended"
    await pages.aclose()


async def test_the_end_of_a_stream_is_reported_if_only_its_first_end_was_read(live: Live) -> None:
    thread = live.log.create()
    heads = live.feed.follow(thread, streams=StreamView.HEADS)
    assert await anext(heads) == []
    key = live.log.open_stream(thread, "m")
    live.log.end_stream(key, 0, status="interrupted", stores=False)
    live.listener.notify_stream(key, 0, status="interrupted")
    assert described(await read(heads, bool)) == ["interrupted"]
    live.log.end_stream(key, 3, stores=False)
    live.listener.notify_stream(key, 3, status="completed")
    assert described(await read(heads, bool)) == ["completed"]
    await heads.aclose()


async def test_lost_notifications_of_streams_cost_one_sweep(live: Live) -> None:
    thread = live.log.create()
    text, heads = live.feed.follow(thread), live.feed.follow(thread, streams=StreamView.HEADS)
    for pages in (text, heads):
        assert await anext(pages) == []
    key = live.log.open_stream(thread, "m")
    live.stream(key, "a", notify=False)
    await live.feed.sweep()
    assert described(await anext(text)) == ["a"]
    assert head_of((await anext(heads))[0]).current_sequence == 1
    live.stream(key, "b", notify=False)
    await live.feed.sweep()
    assert described(await anext(text)) == ["b"]
    assert head_of((await anext(heads))[0]).current_sequence == 2
    live.log.end_stream(key, 2)
    # A stream that opens and ends between two sweeps is reported to subscribers of heads.
    short = live.log.open_stream(thread, "short")
    live.log.end_stream(short, 5)
    await live.feed.sweep()
    for pages in (text, heads):
        ended = await read(pages, lambda found: len(found) >= 4)
        assert described(ended) == [1, 2, "completed", "completed"]
        assert [head_of(item).message_id for item in ended[2:]] == ["m", "short"]
    await live.feed.sweep()
    live.append(thread)
    for pages in (text, heads):
        assert described(await anext(pages)) == [3], "an end is delivered once"
        await pages.aclose()


async def test_heads_are_coalesced_and_read_no_text(live: Live) -> None:
    thread = live.log.create()
    heads = live.feed.follow(thread, streams=StreamView.HEADS)
    await anext(heads)
    key = live.log.open_stream(thread, "m")
    live.listener.notify_stream(key, 0)
    assert head_of((await anext(heads))[0]).current_sequence == 0
    for _ in range(50):
        live.stream(key, "x")
    assert [head_of(item).current_sequence for item in await anext(heads)] == [50]
    assert live.streams.backend.reads == 0
    await heads.aclose()


async def test_twenty_subscribers_cost_one_read_of_chunks(live: Live) -> None:
    thread = live.log.create()
    key = live.log.open_stream(thread, "m")
    readers = [live.feed.follow(thread) for _ in range(20)]
    for pages in readers:
        await anext(pages)
    reads = live.streams.backend.reads
    live.stream(key, "one", "two")
    items = [await anext(pages) for pages in readers]
    assert live.streams.backend.reads == reads + 1
    assert all(described(found) == ["onetwo"] for found in items)
    assert len({id(found[0]) for found in items}) == 1, "they share the item"
    for pages in readers:
        await pages.aclose()


async def test_a_busy_thread_with_many_subscribers_is_read_in_larger_pages(live: Live) -> None:
    """Without the delay each event would be read, and sent to all subscribers, by itself."""
    thread = live.log.create()
    readers = [live.feed.follow(thread) for _ in range(200)]
    for pages in readers:
        await anext(pages)
    live.append(thread)
    assert {len(await anext(pages)) for pages in readers} == {1}
    queries = live.log.queries
    for _ in range(20):
        live.append(thread)
        await idle()
    async with asyncio.timeout(10):
        for pages in readers:
            received = 0
            while received < 20:
                received += len(await anext(pages))
            assert received == 20
    assert live.log.queries < queries + 20, "a read waits until the last delivery has paid off"
    for pages in readers:
        await pages.aclose()


async def test_a_subscriber_waits_for_the_database_and_then_follows_streams(live: Live) -> None:
    thread = live.log.create(1)
    live.log.is_away = True
    heads = live.feed.follow(thread, streams=StreamView.HEADS)
    first = asyncio.ensure_future(anext(heads))
    await idle()
    assert not first.done()
    live.log.is_away = False
    assert described(await asyncio.wait_for(first, 30)) == [1]
    key = live.log.open_stream(thread, "m")
    live.stream(key, "x")
    assert head_of((await anext(heads))[0]).message_id == "m"
    await heads.aclose()


async def test_events_are_delivered_while_the_backend_of_streams_is_unavailable(live: Live) -> None:
    thread = live.log.create(1)
    key = live.log.open_stream(thread, "m")
    live.streams.backend.is_away = True
    pages = [live.feed.follow(thread, streams=view) for view in (StreamView.TEXT, StreamView.HEADS)]
    for following in pages:
        assert described(await anext(following))[0] == 1
    live.append(thread)
    for following in pages:
        assert described(await read(following, lambda found: 2 in described(found)))[-1] == 2
    live.streams.backend.is_away = False
    live.stream(key, "back", notify=False)
    await live.feed.sweep()
    assert described(await anext(pages[0])) == ["back"]
    for following in pages:
        await following.aclose()


async def test_a_head_that_moves_backwards_ends_the_feed_with_an_error(live: Live) -> None:
    """A sweep notices it for subscribers that wait, a read for one that is behind, the cursor for one that returns."""
    thread = live.log.create(3)
    waiting = live.feed.follow(thread)
    assert described(await anext(waiting)) == [1, 2, 3]
    live.log.heads[thread] = 2
    await live.feed.sweep()
    with pytest.raises(FeedRewoundError, match="ends at event 2"):
        await anext(waiting)
    with pytest.raises(FeedRewoundError):
        await anext(live.feed.follow(thread, 3))
    with pytest.raises(FeedRewoundError):
        await live.feed.check_cursor(thread, 3)
    await live.feed.check_cursor(thread, 2)
    del live.log.heads[thread]
    behind = live.feed.follow(thread)
    live.log.threads[thread], rows = [], live.log.threads[thread]
    live.log.heads[thread] = 3
    following = asyncio.ensure_future(anext(behind))
    held = live.log.hold("read_events")
    await held.reached.wait()
    live.log.heads[thread] = 0
    held.released.set()
    with pytest.raises(FeedRewoundError):
        await following
    live.log.threads[thread] = rows
    del live.log.heads[thread]
    assert described(await anext(live.feed.follow(thread, 3))) == []


async def test_a_notified_event_that_does_not_follow_the_delivered_one_ends_the_feed(live: Live) -> None:
    """The new primary has written past the lost events before anything compared the heads."""
    thread = live.log.create(3)
    pages = live.feed.follow(thread)
    assert described(await anext(pages)) == [1, 2, 3]
    live.append(thread)
    assert described(await anext(pages)) == [4]
    live.log.lose(thread, 2)
    for number in range(3):
        live.listener.notify(live.log.append(thread, event_id=f"new {number}"))
    with pytest.raises(FeedRewoundError, match="another event 4"):
        await anext(pages)
    again = live.feed.follow(thread, 2)
    assert [item.id for item in await anext(again) if isinstance(item, Event)] == ["new 0", "new 1", "new 2"]
    await again.aclose()


async def test_after_a_reconnection_a_sweep_finds_events_that_were_replaced(live: Live) -> None:
    """The new primary has exactly as many events as were delivered, so the head alone shows nothing."""
    thread, same = live.log.create(3), live.log.create(3)
    pages, kept = live.feed.follow(thread), live.feed.follow(same)
    assert described(await anext(pages)) == described(await anext(kept)) == [1, 2, 3]
    live.log.lose(thread, 1)
    live.log.append(thread, event_id="another")
    await live.listener.reconnect()
    live.log.is_away = True
    with pytest.raises(DatabaseUnavailableError):
        await live.feed.sweep()
    live.log.is_away = False
    await live.feed.sweep()
    with pytest.raises(FeedRewoundError, match="another event 3"):
        await anext(pages)
    live.append(same)
    assert described(await anext(kept)) == [4]
    await kept.aclose()


async def test_an_event_that_is_read_back_during_a_sweep_is_no_rewind(live: Live) -> None:
    thread = live.log.create(1)
    pages = live.feed.follow(thread)
    await anext(pages)
    held = live.log.hold("read_feed_heads")
    sweeping = asyncio.create_task(live.feed.sweep())
    await held.reached.wait()
    live.append(thread)
    assert described(await anext(pages)) == [2]
    held.released.set()
    await sweeping
    live.append(thread)
    assert described(await anext(pages)) == [3]
    await pages.aclose()


@pytest.mark.parametrize("live", [FeedSizes(page=3, subscriber_page=2, recent=4)], indirect=True)
@pytest.mark.parametrize("seed", range(60))
async def test_any_order_of_subscribing_and_writing(seed: int, live: Live) -> None:
    """Small pages, slow responses, a third of the notifications lost: every subscriber has a part of the log without a
    gap, and the ones that stay have all of it."""
    dice = random.Random(seed)
    live.log.pause = lambda: dice.randrange(4)
    threads = [live.log.create(dice.randrange(5)) for _ in range(2)]
    seen: list[tuple[UUID, int, list[int], asyncio.Task[None]]] = []

    async def follow(thread: UUID, after: int, found: list[int]) -> None:
        async with aclosing(live.feed.events(thread, after=after)) as events:
            async for event in events:
                found.append(event.sequence_num or 0)
                for _ in range(dice.randrange(3)):
                    await asyncio.sleep(0)

    def come() -> None:
        thread = dice.choice(threads)
        after, found = dice.randrange(len(live.log.threads[thread]) + 1), list[int]()
        seen.append((thread, after, found, asyncio.create_task(follow(thread, after, found))))

    for _ in range(80):
        match dice.randrange(10):
            case 0 | 1:
                come()
            case 2 if seen:
                dice.choice(seen)[3].cancel()
            case 3:
                await live.feed.sweep()
            case _:
                live.append(dice.choice(threads), notify=dice.random() < 0.67)
        for _ in range(dice.randrange(3)):
            await asyncio.sleep(0)
    come()
    staying = [item[:3] for item in seen if not item[3].done() and not item[3].cancelling()]

    def has_all(thread: UUID, after: int, found: list[int]) -> bool:
        return found == list(range(after + 1, len(live.log.threads[thread]) + 1))

    async with asyncio.timeout(10):
        while not all(has_all(*item) for item in staying):
            await live.feed.sweep()
            await asyncio.sleep(0)
    for _, after, found, task in seen:
        assert found == list(range(after + 1, after + 1 + len(found)))
        task.cancel()
    await asyncio.wait([task for *_, task in seen])
    assert not live.feed.followed_threads
