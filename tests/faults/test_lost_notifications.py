"""A third of the notifications is lost and the listeners are killed every second: every reader ends with all events."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
from contextlib import AsyncExitStack, aclosing

import asyncpg
import pytest

from cognizes.engine import Engine, Session
from cognizes.engine.database import notifications
from cognizes.engine.database.hosts import HostConnector
from cognizes.engine.database.notifications import Notifier
from cognizes.engine.feed.feed import SWEEP_SECONDS, Feed
from tests.engine_parts import bridge_of, listener_of
from tests.listeners import kill_listeners

_THREADS = 6
_MARGIN = 5.0
"""The seconds by which a busy machine may delay a sweep."""
_KILLED_AFTER_THE_COMMIT = """
import asyncio, os, signal, sys
from cognizes.engine import Engine
from cognizes.engine.database.notifications import Notifier

Notifier.notify = lambda *_: os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with Engine.open(sys.argv[1]) as engine:
        session = await engine.sessions.get("app", "user", sys.argv[2])
        await engine.sessions.append(session, author="a", kind="message", text="committed, not notified")

asyncio.run(main())
"""


async def _follow(engine: Engine, session: Session, found: list[int]) -> None:
    async with aclosing(engine.live(session)) as events:
        async for event in events:
            found.append(event.sequence_num or 0)


async def _follow_run(engine: Engine, run_id: str, found: list[int]) -> None:
    async with aclosing(bridge_of(engine).subscribe(run_id)) as frames:
        async for frame in frames:
            if frame.sequence is not None:
                found.append(frame.sequence)


async def _kill_every_second(pool: asyncpg.Pool) -> None:
    while True:
        await kill_listeners(pool)
        await asyncio.sleep(1)


async def _write(engine: Engine, session: Session, enough: asyncio.Event) -> int:
    """Writes until it is enough; how many events there are then."""
    count = 0
    while not enough.is_set() or count % 10:
        count += 1
        await engine.sessions.append(session, author="a", kind="message", text="x", run_id=f"run-{session.id}")
        await asyncio.sleep(0.01)
    return count


def lose(monkeypatch: pytest.MonkeyPatch, *, of_ten: int = 3) -> None:
    """Drop some of ten notifications before they are sent."""
    send, count = Notifier.notify, itertools.count()

    def notify(notifier: Notifier, channel: str, payload: str) -> None:
        if next(count) * 7919 % 10 >= of_ten:
            send(notifier, channel, payload)

    monkeypatch.setattr(Notifier, "notify", notify)


async def converge(database_url: str, pool: asyncpg.Pool, *, kills: int) -> None:
    """Two engines, followers of threads and of runs on both; until each listener was killed so many times."""
    async with AsyncExitStack() as opened:
        engines = [await opened.enter_async_context(Engine.open(database_url)) for _ in range(2)]
        sessions = [await engines[0].sessions.create("app", "user") for _ in range(_THREADS)]
        found: dict[tuple[int, str, str], list[int]] = {}
        tasks: list[asyncio.Task[None]] = []
        for number, engine in enumerate(engines):
            for session in sessions:
                of_thread = found[number, "thread", session.id] = []
                of_run = found[number, "run", session.id] = []
                tasks.append(asyncio.create_task(_follow(engine, session, of_thread)))
                tasks.append(asyncio.create_task(_follow_run(engine, f"run-{session.id}", of_run)))
        killing = asyncio.create_task(_kill_every_second(pool))
        enough = asyncio.Event()
        writing = [asyncio.create_task(_write(engines[place % 2], one, enough)) for place, one in enumerate(sessions)]
        while min(listener_of(engine).reconnections for engine in engines) < kills:
            await asyncio.sleep(0.05)
        enough.set()
        counts = dict(zip((session.id for session in sessions), await asyncio.gather(*writing), strict=True))
        killing.cancel()
        while any(len(numbers) < counts[place[2]] for place, numbers in found.items()):
            assert not any(task.done() for task in tasks)
            await asyncio.sleep(0.05)
        for place, numbers in found.items():
            assert numbers == list(range(1, counts[place[2]] + 1)), place
        for task in tasks:
            task.cancel()
        await asyncio.wait([*tasks, killing])


async def test_a_third_of_the_notifications_lost_and_listeners_killed(
    database_url: str, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(monkeypatch)
    async with asyncio.timeout(150):
        await converge(database_url, pool, kills=3)


def connect_when(may_connect: asyncio.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let listeners connect only while the event is set."""
    connect = notifications.connect_directly

    async def wait_and_connect(connector: HostConnector, name: str) -> asyncpg.Connection:
        if name == notifications.LISTENER_NAME:
            await may_connect.wait()
        return await connect(connector, name)

    monkeypatch.setattr(notifications, "connect_directly", wait_and_connect)


@pytest.mark.parametrize("fault", ["3 of 10 lost", "all lost", "listener killed"])
async def test_one_sweep_replaces_what_was_lost(
    fault: str, database_url: str, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweeps at intervals do nothing here; the test runs one on each engine, and every reader has all events."""
    sweep, asked = Feed.sweep, asyncio.Event()

    async def hold(_: Feed) -> None:
        asked.set()

    monkeypatch.setattr(Feed, "sweep", hold)
    may_connect = asyncio.Event()
    may_connect.set()
    connect_when(may_connect, monkeypatch)
    if fault != "listener killed":
        lose(monkeypatch, of_ten=10 if fault == "all lost" else 3)
    async with asyncio.timeout(120), AsyncExitStack() as opened:
        engines = [await opened.enter_async_context(Engine.open(database_url)) for _ in range(2)]
        sessions = [await engines[0].sessions.create("app", "user") for _ in range(_THREADS)]
        found: list[list[int]] = []
        tasks: list[asyncio.Task[None]] = []
        for engine in engines:
            for session in sessions:
                found.append([])
                tasks.append(asyncio.create_task(_follow(engine, session, found[-1])))
            while len(engine.feed.followed_threads) < _THREADS:
                await asyncio.sleep(0.01)
        if fault == "listener killed":
            may_connect.clear()
            await kill_listeners(pool)
        for place, session in enumerate(sessions):
            for _ in range(20):
                await engines[place % 2].sessions.append(session, author="a", kind="message", text="x")
        if fault == "listener killed":
            may_connect.set()
            while min(listener_of(engine).reconnections for engine in engines) < 1:
                await asyncio.sleep(0.01)
        if fault == "all lost":
            asked.clear()
            await asked.wait()
            assert not any(found), "events arrived without a notification and without a sweep"
        for engine in engines:
            await sweep(engine.feed)
        while any(len(numbers) < 20 for numbers in found):
            assert not any(task.done() for task in tasks)
            await asyncio.sleep(0.01)
        assert all(numbers == list(range(1, 21)) for numbers in found)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_a_writer_killed_between_the_commit_and_the_notification(database_url: str, engine: Engine) -> None:
    """The event is in the log: a subscriber in another process has it one sweep after the writer's death."""
    session = await engine.sessions.create("app", "user")
    found: list[int] = []
    following = asyncio.create_task(_follow(engine, session, found))
    async with asyncio.timeout(60):
        while not engine.feed.followed_threads:
            await asyncio.sleep(0.01)
        missed = engine.feed.missed_notifications
        writer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _KILLED_AFTER_THE_COMMIT, database_url, session.id
        )
        assert await writer.wait() == -signal.SIGKILL
        async with asyncio.timeout(SWEEP_SECONDS + _MARGIN):
            while not found:
                await asyncio.sleep(SWEEP_SECONDS / 10)
    assert found == [1]
    assert engine.feed.missed_notifications == missed + 1
    following.cancel()
    await asyncio.wait([following])


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_the_same_for_a_minute(database_url: str, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    lose(monkeypatch)
    async with asyncio.timeout(800):
        await converge(database_url, pool, kills=60)
