"""The hub over a log in memory, where any answer of the database can be held back: what comes at the wrong moment."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from cognizes.engine.database import Database
from cognizes.engine.errors import DatabaseUnavailableError, NotFoundError
from cognizes.engine.models import Event
from cognizes.engine.pulse import live_hub
from cognizes.engine.pulse.live_hub import LiveHub

Row = dict[str, Any]


class Held:
    """A query whose answer is there and does not come yet."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.released = asyncio.Event()


class Log:
    """Threads and events, and the queries that the hub asks."""

    acting_apps = None
    page_bytes = 1024 * 1024
    fetch_page = Database.fetch_page

    def __init__(self) -> None:
        self.threads: dict[UUID, list[Row]] = {}
        self.runs: dict[str, UUID] = {}
        self.held: dict[str, list[Held]] = {}
        self.queries = 0
        self.is_away = False
        self.pause: Callable[[], int] = int

    def create(self, count: int = 0) -> UUID:
        thread = uuid4()
        self.threads[thread] = []
        for _ in range(count):
            self.append(thread)
        return thread

    def append(self, thread: UUID, run_id: str | None = None) -> Row:
        sequence = len(self.threads[thread]) + 1
        row: Row = {
            "id": f"e{sequence}", "thread_id": thread, "invocation_id": "", "author": "a", "event_type": "message",
            "content": "{}", "actions": "{}", "created_at": datetime.now(UTC), "run_id": run_id,
            "sequence_num": sequence, "version": 1, "bytes": 4,
        }  # fmt: skip
        self.threads[thread].append(row)
        if run_id:
            self.runs[run_id] = thread
        return row

    def hold(self, query: str) -> Held:
        """The next answer to a query waits; what it says is settled before."""
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

    def _read_thread_head(self, thread: UUID) -> list[Row]:
        return [{"last_sequence": len(self.threads[thread])}] if thread in self.threads else []

    def _read_thread_heads(self, threads: list[UUID]) -> list[Row]:
        return [{"id": one, "last_sequence": len(self.threads[one])} for one in threads if one in self.threads]

    def _read_events(self, thread: UUID, after: int, limit: int, _large: int) -> list[Row]:
        return self.threads.get(thread, [])[after : after + limit]

    def _read_events_at(self, thread: UUID, sequences: list[int]) -> list[Row]:
        return [row for row in self.threads.get(thread, []) if row["sequence_num"] in sequences]

    def _read_events_of_threads(self, threads: list[UUID], heads: list[int], limit: int, large: int) -> list[Row]:
        pairs = zip(threads, heads, strict=True)
        return [row for thread, after in pairs for row in self._read_events(thread, after, limit, large)][:limit]

    def _find_run(self, run_id: str, _thread: UUID | None = None) -> list[Row]:
        thread = self.runs.get(run_id)
        if thread not in self.threads:
            return []
        numbers = [row["sequence_num"] for row in self.threads[thread] if row["run_id"] == run_id]
        return [{"thread_id": thread, "begins_after": min(numbers) - 1 if numbers else len(self.threads[thread])}]

    def _find_thread_of_run(self, run_id: str) -> list[Row]:
        return self._find_run(run_id)

    def _find_existing_runs(self, run_ids: list[str]) -> list[Row]:
        return [{"run_id": run_id} for run_id in run_ids if run_id in self.runs]


class Bell:
    """A listener that rings when it is told to."""

    def __init__(self) -> None:
        self.taps: list[Callable[[str], None]] = []

    def tap(self, _channel: str, callback: Callable[[str], None]) -> None:
        self.taps.append(callback)

    def on_reconnect(self, callback: Any) -> None:
        pass

    def ring(self, row: Row) -> None:
        payload = {"thread_id": str(row["thread_id"]), "sequence_num": row["sequence_num"], "run_id": row["run_id"]}
        self.say(payload)

    def say(self, payload: object) -> None:
        for tap in self.taps:
            tap(json.dumps(payload))


class Live:
    """A hub over a log; nothing is swept unless a test says so."""

    def __init__(self) -> None:
        self.log = Log()
        self.bell = Bell()
        self.hub = LiveHub(self.log, self.bell)  # type: ignore[arg-type]

    def append(self, thread: UUID, run_id: str | None = None, *, ring: bool = True) -> None:
        row = self.log.append(thread, run_id)
        if ring:
            self.bell.ring(row)


@asynccontextmanager
async def _running(live: Live) -> AsyncIterator[Live]:
    await live.hub.start()
    try:
        yield live
    finally:
        await live.hub.close()


@pytest.fixture
async def live(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    monkeypatch.setattr(live_hub, "_SWEEP_SECONDS", 3600.0)
    monkeypatch.setattr(live_hub, "_RETRY_SECONDS", 0.001)
    async with _running(Live()) as running:
        yield running


async def numbers(events: AsyncGenerator[Event, None], count: int = 10**9) -> list[int]:
    """The numbers of events, so many or all until the end."""
    found: list[int] = []
    async with asyncio.timeout(30), aclosing(events):
        async for event in events:
            found.append(event.sequence_num or 0)
            if len(found) == count:
                break
    return found


async def settle() -> None:
    """Lets everything go on that can."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_closing_ends_those_who_wait_for_a_run(live: Live) -> None:
    waiting = [asyncio.create_task(numbers(live.hub.follow_run("never"))) for _ in range(2)]
    await settle()
    await live.hub.close()
    assert [await task for task in waiting] == [[], []]
    assert not live.hub._awaited_runs


async def test_closing_ends_those_who_wait_for_the_database(live: Live) -> None:
    thread = live.log.create(3)
    live.log.runs["r"] = thread
    live.log.is_away = True
    waiting = [
        asyncio.create_task(numbers(live.hub.follow(thread))),
        asyncio.create_task(numbers(live.hub.follow_run("r"))),
    ]
    await settle()
    await live.hub.close()
    assert [await task for task in waiting] == [[], []]


async def test_closing_ends_those_who_wait_for_events(live: Live) -> None:
    following = asyncio.create_task(numbers(live.hub.follow(live.log.create(2))))
    await settle()
    await live.hub.close()
    assert await following == [1, 2]


async def test_following_a_closed_hub_ends_at_once(live: Live) -> None:
    thread = live.log.create(2)
    await live.hub.close()
    assert await numbers(live.hub.follow(thread)) == []
    assert await numbers(live.hub.follow_run("r")) == []


async def test_an_event_that_rings_while_the_head_is_read(live: Live) -> None:
    thread = live.log.create(5)
    held = live.log.hold("read_thread_head")
    following = asyncio.create_task(numbers(live.hub.follow(thread, after=5), 1))
    await held.reached.wait()
    live.append(thread)
    held.released.set()
    assert await following == [6]


async def test_of_two_who_await_a_run_neither_misses_it(live: Live) -> None:
    """One asks the database just before the run is there, the other is woken meanwhile and asks again."""
    thread = live.log.create()
    first = asyncio.create_task(numbers(live.hub.follow_run("r"), 1))
    await settle()
    held = live.log.hold("find_run")
    live.log.held["find_thread_of_run"] = live.log.held["find_run"]
    second = asyncio.create_task(numbers(live.hub.follow_run("r"), 1))
    await held.reached.wait()
    live.append(thread, "r")
    assert await first == [1]
    held.released.set()
    assert await second == [1]


async def test_many_who_await_runs_are_looked_for_together(live: Live) -> None:
    thread = live.log.create()
    waiting = [asyncio.create_task(numbers(live.hub.follow_run(f"r{number}"), 1)) for number in range(300)]
    await settle()
    asked = live.log.queries
    live.append(thread, "r7", ring=False)
    await live.hub.sweep()
    assert live.log.queries - asked <= 3
    assert await waiting[7] == [1]
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert not live.hub._awaited_runs
    assert not live.hub._channels


async def test_a_run_is_followed_from_its_own_first_event(live: Live) -> None:
    thread = live.log.create(1000)
    live.append(thread, "r")
    live.append(thread)
    live.append(thread, "r")
    asked = live.log.queries
    assert await numbers(live.hub.follow_run("r"), 2) == [1001, 1003]
    assert live.log.queries - asked <= 3, "the thousand before it are not read"


async def test_a_deleted_thread_stays_ended_when_a_read_back_comes_late(live: Live) -> None:
    thread = live.log.create(1)
    events = live.hub.follow(thread)
    assert (await anext(events)).sequence_num == 1
    held = live.log.hold("read_events_of_threads")
    live.append(thread)
    await held.reached.wait()
    del live.log.threads[thread]
    await live.hub.sweep()
    held.released.set()
    await settle()
    assert await numbers(events) == []


async def test_whoever_comes_to_a_deleted_thread_is_told(live: Live) -> None:
    thread = live.log.create(1)
    slow = live.hub.follow(thread)
    await anext(slow)
    del live.log.threads[thread]
    await live.hub.sweep()
    with pytest.raises(NotFoundError):
        await anext(live.hub.follow(thread))
    assert await numbers(slow) == []


async def test_a_thread_that_is_not_there_yet_is_not_ended_by_a_sweep(live: Live) -> None:
    """The sweep has looked before the thread was there, and says so after somebody has found it."""
    thread = live.log.create()
    rows = live.log.threads.pop(thread)
    other = live.log.create(1)
    watching = live.hub.follow(other)
    await anext(watching)
    opening = live.log.hold("read_thread_head")
    live.log.threads[thread] = rows
    following = asyncio.create_task(numbers(live.hub.follow(thread), 1))
    await opening.reached.wait()
    del live.log.threads[thread]
    swept = live.log.hold("read_thread_heads")
    sweeping = asyncio.create_task(live.hub.sweep())
    await swept.reached.wait()
    live.log.threads[thread] = rows
    opening.released.set()
    await settle()
    swept.released.set()
    await sweeping
    live.append(thread)
    assert await following == [1]
    await watching.aclose()


async def test_more_than_a_page_is_read_back_whole(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_hub, "_PAGE", 4)
    thread = live.log.create(1)
    followers = [asyncio.create_task(numbers(live.hub.follow(thread, after=1), 50)) for _ in range(3)]
    await settle()
    for _ in range(49):
        live.append(thread, ring=False)
    live.append(thread)  # one ring for all of them
    for following in followers:
        assert await following == list(range(2, 52))


async def test_an_unreadable_row_does_not_end_the_hub(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    bad, good = live.log.create(), live.log.create()
    one = asyncio.create_task(numbers(live.hub.follow(bad), 1))
    two = asyncio.create_task(numbers(live.hub.follow(good), 1))
    await settle()
    row = live.log.append(bad)
    row["content"] = "{"
    live.bell.ring(row)
    await settle()
    live.append(good)
    assert await two == [1]
    row["content"] = "{}"
    await live.hub.sweep()
    assert await one == [1]


async def test_notifications_that_are_no_event_are_told_to_those_who_ask(live: Live) -> None:
    told: list[object] = []
    live.bell.say({"run_id": "r", "n": 0})
    live.hub.on_unstored(told.append)
    for payload in ({"run_id": "r", "n": 1}, {"run_id": "r", "sequence_num": 4}, "text", 5):
        live.bell.say(payload)
    live.hub.off_unstored(told.append)
    live.bell.say({"run_id": "r", "n": 2})
    assert told == [{"run_id": "r", "n": 1}, {"raw": '"text"'}, {"raw": "5"}]


@pytest.mark.parametrize("seed", range(60))
async def test_any_order_of_coming_going_and_writing(seed: int, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages, slow answers, a third of the rings lost: every follower has a piece of the log without a gap, and
    whoever stays has all of it."""
    monkeypatch.setattr(live_hub, "_PAGE", 3)
    monkeypatch.setattr(live_hub, "_CATCH_UP_PAGE", 2)
    monkeypatch.setattr(live_hub, "_RECENT_EVENTS", 4)
    dice = random.Random(seed)
    live.log.pause = lambda: dice.randrange(4)
    threads = [live.log.create(dice.randrange(5)) for _ in range(2)]
    seen: list[tuple[UUID, int, list[int], asyncio.Task[None]]] = []

    async def follow(thread: UUID, after: int, found: list[int]) -> None:
        async with aclosing(live.hub.follow(thread, after=after)) as events:
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
                await live.hub.sweep()
            case _:
                live.append(dice.choice(threads), ring=dice.random() < 0.67)
        for _ in range(dice.randrange(3)):
            await asyncio.sleep(0)
    come()
    staying = [item[:3] for item in seen if not item[3].done() and not item[3].cancelling()]

    def has_all(thread: UUID, after: int, found: list[int]) -> bool:
        return found == list(range(after + 1, len(live.log.threads[thread]) + 1))

    async with asyncio.timeout(30):
        while not all(has_all(*item) for item in staying):
            await live.hub.sweep()
            await asyncio.sleep(0)
    for _, after, found, task in seen:
        assert found == list(range(after + 1, after + 1 + len(found)))
        task.cancel()
    await asyncio.wait([task for *_, task in seen])
    assert not live.hub._channels
