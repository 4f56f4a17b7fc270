"""Following a thread: every event once and in order, from any writer, with and without notifications."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest

from cognizes.engine import Engine, Event, NotFoundError, Session
from cognizes.engine.database.notifications import Notifier
from tests.listeners import kill_listeners


async def collect(events: AsyncIterator[Event], count: int, *, seconds: float = 60) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(seconds):
        async for event in events:
            assert event.sequence_num is not None
            found.append(event.sequence_num)
            if len(found) == count:
                break
    return found


async def until_followed(engine: Engine, session: Session) -> None:
    """Wait until the thread is followed: events written from now on arrive live."""
    async with asyncio.timeout(60):
        while not engine.feed.followed_threads:
            await asyncio.sleep(0.005)


async def write(engine: Engine, session: Session, count: int) -> None:
    for number in range(count):
        await engine.sessions.append(session, author="user", kind="message", content={"n": number})


async def test_the_past_then_the_present(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    await write(engine, session, 3)
    following = asyncio.create_task(collect(engine.live(session, after=1), 6))
    await until_followed(engine, session)
    await write(engine, session, 4)
    assert await following == [2, 3, 4, 5, 6, 7]


async def test_many_subscribers_many_writers(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    readers = [asyncio.create_task(collect(engine.live(session), 200)) for _ in range(20)]
    copies = [await engine.sessions.get("app", "user", session.id) for _ in range(10)]
    await asyncio.gather(*(write(engine, copy, 20) for copy in copies if copy))
    for reader in readers:
        assert await reader == list(range(1, 201))


async def test_another_process_and_psql(engine: Engine, database_url: str, pool: asyncpg.Pool) -> None:
    session = await engine.sessions.create("app", "user")
    async with Engine.open(database_url) as other:
        following = asyncio.create_task(collect(other.live(session), 2))
        await until_followed(other, session)
        await write(engine, session, 1)
        await pool.execute(
            "INSERT INTO events (thread_id, author, event_type) VALUES ($1, 'psql', 'message')", session.thread_id
        )
        assert await following == [1, 2]


async def test_a_lost_notification_costs_latency_never_data(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await engine.sessions.create("app", "user")
    following = asyncio.create_task(collect(engine.live(session), 5))
    await until_followed(engine, session)
    monkeypatch.setattr(Notifier, "notify", lambda *_: None)
    await write(engine, session, 5)
    assert await following == [1, 2, 3, 4, 5]
    assert engine.feed.missed_notifications > 0


async def test_a_listener_killed_again_and_again(engine: Engine, pool: asyncpg.Pool) -> None:
    session = await engine.sessions.create("app", "user")
    following = asyncio.create_task(collect(engine.live(session), 100))
    for _ in range(5):
        await write(engine, session, 20)
        await kill_listeners(pool)
    assert await following == list(range(1, 101))


async def test_a_reader_that_fell_far_behind_reads_the_rest_from_the_log(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    events = engine.live(session)
    await write(engine, session, 1)
    assert (await anext(events)).sequence_num == 1
    copies = [await engine.sessions.get("app", "user", session.id) for _ in range(20)]
    await asyncio.gather(*(write(engine, copy, 60) for copy in copies if copy))
    assert engine.feed.cached_events <= 512
    assert await collect(events, 1200) == list(range(2, 1202))


async def test_the_feed_keeps_nothing_without_subscribers(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    await write(engine, session, 1)
    events = engine.live(session)
    await anext(events)
    assert len(engine.feed.followed_threads) == 1
    await events.aclose()
    assert not engine.feed.followed_threads


async def test_closing_the_engine_ends_the_stream(database_url: str) -> None:
    engine = await Engine.open(database_url).start()
    session = await engine.sessions.create("app", "user")
    following = asyncio.create_task(collect(engine.live(session), 99))
    await until_followed(engine, session)
    await engine.close()
    assert await following == []


async def test_an_unknown_thread(engine: Engine) -> None:
    with pytest.raises(NotFoundError):
        await anext(engine.feed.events(uuid4()))


async def test_notifications_about_nothing_are_ignored(engine: Engine, pool: asyncpg.Pool) -> None:
    for payload in ("", "{}", '{"thread_id": 5}', '{"thread_id": "x"}', f'{{"thread_id": "{uuid4()}"}}'):
        await pool.execute("SELECT pg_notify('event_stream', $1)", payload)
    session = await engine.sessions.create("app", "user")
    following = asyncio.create_task(collect(engine.live(session), 1))
    await until_followed(engine, session)
    await write(engine, session, 1)
    assert await following == [1]


async def test_a_deleted_thread_ends_the_stream(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    await write(engine, session, 2)
    events = engine.live(session)
    assert [(await anext(events)).sequence_num for _ in range(2)] == [1, 2]
    await engine.sessions.delete(session)
    assert await collect(events, 99) == []


async def test_following_a_run_that_does_not_exist_yet(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    following = [asyncio.create_task(collect(engine.feed.events_of_run("later"), 2)) for _ in range(2)]
    abandoned = asyncio.create_task(collect(engine.feed.events_of_run("never"), 1))
    async with asyncio.timeout(60):
        while engine.feed.subscribers < 3:
            await asyncio.sleep(0.005)
    await write(engine, session, 1)
    async with engine.runs.start(session, run_id="later"):
        pass
    for task in following:
        assert await task == [2, 3]
    abandoned.cancel()
    await asyncio.wait([abandoned])
    assert engine.feed.subscribers == 0
