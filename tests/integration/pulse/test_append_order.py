"""The events of a thread are appended in the order of their submission, on a real server that is made to wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cognizes.engine import Engine, Event, LimitExceededError, Session
from tests.engine_parts import url_of

MAX_STATE_BYTES = 2048


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[Engine]:
    async with Engine.open(database_url, max_state_bytes=MAX_STATE_BYTES) as opened:
        yield opened


@pytest.fixture
async def sessions(engine: Engine) -> list[Session]:
    return [await engine.sessions.create("app", "user") for _ in range(3)]


def append(engine: Engine, session: Session, event_id: str, **delta: Any) -> asyncio.Task[Event]:
    """Submit an event that has no id of its caller's choice unless it has `given` in its name."""
    event_id_of_caller = event_id if "given" in event_id else ""
    return asyncio.create_task(
        engine.sessions.append(
            session, author="a", kind="note", text=event_id, state=delta or None, event_id=event_id_of_caller
        )
    )


@asynccontextmanager
async def nothing_inserted(engine: Engine) -> AsyncIterator[None]:
    """Make every append that is sent wait in the server until the block ends."""
    async with _connected(engine) as other, other.transaction():
        await other.execute("LOCK TABLE events IN SHARE MODE")
        yield


@asynccontextmanager
async def busy_senders(engine: Engine) -> AsyncIterator[list[asyncio.Task[Event]]]:
    """Keep both senders of the batcher waiting, so that what is submitted in the block shares the next batch."""
    first, second = [await engine.sessions.create("app", "user") for _ in range(2)]
    tasks: list[asyncio.Task[Event]] = []
    async with nothing_inserted(engine):
        for number, session in enumerate((first, second), start=1):
            tasks.append(append(engine, session, "busy"))
            await _until_waiting(engine, number)
        yield tasks


@asynccontextmanager
async def locked(engine: Engine, *sessions: Session) -> AsyncIterator[None]:
    """Hold the rows of threads as another process does that appends to them."""
    async with _connected(engine) as other, other.transaction():
        ids = [UUID(session.thread_id) for session in sessions]
        await other.execute("SELECT FROM threads WHERE id = ANY ($1) FOR UPDATE", ids)
        yield


@asynccontextmanager
async def _connected(engine: Engine) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url_of(engine))
    try:
        yield connection
    finally:
        await connection.close()


async def _until_waiting(engine: Engine, count: int) -> None:
    """Return when so many statements of this database wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(60), _connected(engine) as observer:
        while await observer.fetchval(query) < count:
            await asyncio.sleep(0.005)


async def finish(*tasks: asyncio.Task[Event]) -> list[Event | BaseException]:
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)


async def stored(engine: Engine, session: Session) -> list[str]:
    return [event.content["text"] for event in await engine.sessions.events(session)]


async def test_a_repeated_event_in_a_batch_lets_no_event_of_a_locked_thread_overtake(
    engine: Engine, sessions: list[Session]
) -> None:
    thread, other, _ = sessions
    async with locked(engine, thread):
        async with busy_senders(engine) as busy:
            tasks = [
                append(engine, thread, "a"),
                append(engine, other, "given"),
                append(engine, other, "given"),
                append(engine, thread, "b"),
            ]
            await asyncio.sleep(0)
        await finish(*busy, tasks[1], tasks[2])
        assert not tasks[0].done()
        late = append(engine, thread, "c")
    await finish(*tasks, late)
    assert await stored(engine, thread) == ["a", "b", "c"]
    assert await stored(engine, other) == ["given"]


async def test_a_batch_that_is_sent_item_by_item_keeps_the_order_of_a_locked_thread(
    engine: Engine, sessions: list[Session]
) -> None:
    thread, other, third = sessions
    await engine.sessions.append(other, author="a", kind="note", state={"filled": "x" * (MAX_STATE_BYTES - 100)})
    async with locked(engine, thread):
        async with busy_senders(engine) as busy:
            bad = append(engine, other, "bad", more="x" * 200)
            tasks = [append(engine, thread, "1"), append(engine, third, "z"), append(engine, thread, "2")]
            await asyncio.sleep(0)
        outcomes = await finish(*busy, bad, tasks[1])
        assert isinstance(outcomes[2], LimitExceededError)
        late = append(engine, thread, "3")
        assert not tasks[0].done()
    await finish(*tasks, late)
    assert await stored(engine, thread) == ["1", "2", "3"]
    assert await stored(engine, third) == ["z"]


async def test_a_cancelled_caller_whose_event_is_in_flight_is_not_overtaken(
    engine: Engine, sessions: list[Session]
) -> None:
    thread = sessions[0]
    async with nothing_inserted(engine):
        first = append(engine, thread, "1")
        await _until_waiting(engine, 1)
        first.cancel()
        second = append(engine, thread, "2")
        await asyncio.wait([second], timeout=0.1)
        assert not second.done()
    await finish(first, second)
    assert first.cancelled()
    assert await stored(engine, thread) == ["1", "2"]


async def test_the_neighbours_of_a_repeated_event_are_not_stored_twice(engine: Engine, sessions: list[Session]) -> None:
    thread, other, third = sessions
    await engine.sessions.append(third, author="a", kind="note", state={"filled": "x" * (MAX_STATE_BYTES - 100)})
    async with busy_senders(engine) as busy:
        tasks = [
            append(engine, thread, "new"),
            append(engine, other, "given"),
            append(engine, other, "given"),
            append(engine, third, "bad", more="x" * 200),
        ]
        await asyncio.sleep(0)
    outcomes = await finish(*tasks, *busy)
    assert [type(outcome) for outcome in outcomes[:4]] == [Event, Event, Event, LimitExceededError]
    assert await stored(engine, thread) == ["new"]
    assert await stored(engine, other) == ["given"]


async def test_closing_waits_for_an_event_in_flight_and_for_those_behind_it(
    database_url: str, engine: Engine, sessions: list[Session]
) -> None:
    thread = sessions[0]
    closing = await Engine.open(database_url).start()
    async with nothing_inserted(engine):
        tasks = [append(closing, thread, name) for name in ("1", "2", "3")]
        await _until_waiting(engine, 1)
        closed = asyncio.create_task(closing.close())
        await asyncio.wait([closed], timeout=0.1)
        assert not closed.done()
    await asyncio.wait_for(closed, 60)
    assert [task.done() and task.exception() for task in tasks] == [None, None, None]
    assert await stored(engine, thread) == ["1", "2", "3"]


async def test_closing_waits_for_threads_that_another_process_holds(
    database_url: str, engine: Engine, sessions: list[Session]
) -> None:
    thread, other, _ = sessions
    closing = await Engine.open(database_url).start()
    async with locked(engine, thread, other):
        tasks = [append(closing, thread, "1"), append(closing, other, "2"), append(closing, thread, "3")]
        await _until_waiting(engine, 2)
        closed = asyncio.create_task(closing.close())
        await asyncio.wait([closed], timeout=0.1)
        assert not closed.done()
    await asyncio.wait_for(closed, 60)
    assert [task.done() and task.exception() for task in tasks] == [None, None, None]
    assert await stored(engine, thread) == ["1", "3"]
