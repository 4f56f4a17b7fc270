"""The notifier: one statement for many notifications, reconnection, bounded memory; channels of two schemas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from cognizes.engine import Engine
from cognizes.engine.database.notifications import (
    ENGINE_CHANNELS,
    MAX_WAITING,
    NOTIFIER_NAME,
    Notifier,
    PgNotifyListener,
)
from cognizes.engine.database.queries import channel_suffix
from cognizes.engine.pulse.state_manager import Event, StateManager


@asynccontextmanager
async def listening(url: str, *, schema: str = "public") -> AsyncIterator[asyncio.Queue[str]]:
    received: asyncio.Queue[str] = asyncio.Queue()
    listener = PgNotifyListener(url, schema=schema)
    listener.tap("event_stream", received.put_nowait)
    await listener.start()
    try:
        yield received
    finally:
        await listener.stop()


async def kill_notifiers(pool: asyncpg.Pool) -> None:
    await pool.fetch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = $1",
        NOTIFIER_NAME,
    )


async def test_notifications_arrive_in_order_across_a_killed_connection(database_url: str, pool: asyncpg.Pool) -> None:
    notifier = Notifier(database_url)
    await notifier.start()
    async with listening(database_url) as received, asyncio.timeout(60):
        for round_ in range(3):
            for number in range(50):
                notifier.notify("event_stream", f"{round_}-{number}")
            assert [await received.get() for _ in range(50)] == [f"{round_}-{number}" for number in range(50)]
            await kill_notifiers(pool)
    await notifier.close()
    assert notifier.dropped == 0


async def test_closing_sends_what_waits(database_url: str) -> None:
    notifier = Notifier(database_url)
    async with listening(database_url) as received, asyncio.timeout(60):
        await notifier.start()
        for number in range(2500):
            notifier.notify("event_stream", str(number))
        await notifier.close()
        assert notifier.waiting == 0
        assert [await received.get() for _ in range(2500)] == [str(number) for number in range(2500)]


async def test_memory_is_bounded_while_postgresql_is_away() -> None:
    notifier = Notifier("postgresql://127.0.0.1:1/none")
    for number in range(MAX_WAITING + 5):
        notifier.notify("event_stream", str(number))
    assert (notifier.waiting, notifier.dropped) == (MAX_WAITING, 5)


async def test_a_refused_notification_stops_no_later_one(database_url: str) -> None:
    notifier = Notifier(database_url)
    await notifier.start()
    async with listening(database_url) as received, asyncio.timeout(60):
        notifier.notify("event_stream", "x" * 8000)
        while not notifier.dropped:
            await asyncio.sleep(0.01)
        notifier.notify("event_stream", "next")
        assert await received.get() == "next"
    await notifier.close()


async def test_the_engine_sends_the_payload_of_the_trigger(
    engine: Engine, pool: asyncpg.Pool, database_url: str
) -> None:
    session = await engine.sessions.create("app", "user")
    names = {"author": 'au"thor é\n' * 30, "kind": "k" * 300, "run_id": "r" * 300}
    manager = StateManager(pool)
    async with listening(database_url) as received, asyncio.timeout(60):
        await engine.sessions.append(session, **names, event_id="e" * 300)
        after_commit = json.loads(await received.get())
        event = Event("E" * 300, session.thread_id, "", names["author"], names["kind"], run_id=names["run_id"])
        await manager.append_event(session, event)
        of_trigger = json.loads(await received.get())
    await manager.close()
    assert list(after_commit) == list(of_trigger)
    assert (after_commit["sequence_num"], of_trigger["sequence_num"]) == (1, 2)
    for name in ("thread_id", "run_id", "author", "event_type"):
        assert after_commit[name] == of_trigger[name]
    assert (after_commit["event_id"], of_trigger["event_id"]) == ("e" * 200, "E" * 200)


async def test_an_insert_after_a_quiet_append_in_one_transaction_notifies(
    engine: Engine, pool: asyncpg.Pool, database_url: str
) -> None:
    session = await engine.sessions.create("app", "user")
    async with listening(database_url) as received, asyncio.timeout(60):
        async with pool.acquire() as connection, connection.transaction():
            await connection.fetchrow(
                "SELECT append_event($1, 'quiet', NULL, '', 'a', 'b', '{}', '{}', p_notify => false)", session.thread_id
            )
            await connection.execute(
                "INSERT INTO events (thread_id, event_type) VALUES ($1, 'loud')", session.thread_id
            )
        assert json.loads(await received.get())["sequence_num"] == 2
        assert received.empty()


async def test_engines_in_two_schemas_do_not_receive_each_other(database_url: str, engine: Engine) -> None:
    async with Engine.open(database_url, db_schema="other") as other, asyncio.timeout(60):
        ours = await engine.sessions.create("app", "user")
        theirs = await other.sessions.create("app", "user")
        async with listening(database_url) as received, listening(database_url, schema="other") as received_there:
            for one, session in ((engine, ours), (other, theirs), (engine, ours), (other, theirs)):
                await one.sessions.append(session, author="a", kind="message", text="x")
            for queue, session in ((received, ours), (received_there, theirs)):
                payloads = [json.loads(await queue.get()) for _ in range(2)]
                assert {payload["thread_id"] for payload in payloads} == {session.thread_id}
                assert queue.empty()


@pytest.mark.parametrize("schema", ["other", "a" * 40, "b" * 63])
def test_channel_names_fit_into_63_bytes(schema: str) -> None:
    suffix = channel_suffix(schema)
    assert suffix.startswith("_")
    assert all(len(channel + suffix) <= 63 for channel in ENGINE_CHANNELS)
    assert channel_suffix("public") == ""
