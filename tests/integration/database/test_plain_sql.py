"""Statements of seed 000 §3, typed into psql: what they leave out is filled in, in order, with a notification."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cognizes.engine import Engine
from cognizes.engine.agui.monitor import frames_of
from cognizes.engine.database.embedded import binaries
from cognizes.engine.models import Session
from cognizes.engine.pulse.event_bridge import AgUiEventType
from cognizes.engine.pulse.pg_notify_listener import NotifyEvent, PgNotifyListener
from tests.engine_parts import database_of


@pytest.fixture
async def session(engine: Engine) -> Session:
    return await engine.sessions.create("shop", "ada", state={"cart": []})


async def type_into_psql(url: str, sql: str) -> str:
    """Run a script with psql, as one would type it; fail where psql reports an error."""
    psql = [str(binaries() / "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", url]
    done = await asyncio.to_thread(subprocess.run, psql, input=sql, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@asynccontextmanager
async def notifications(url: str) -> AsyncIterator[asyncio.Queue[dict[str, Any]]]:
    """The payloads on the channel of events."""
    received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def receive(event: NotifyEvent) -> None:
        received.put_nowait(event.payload)

    listener = PgNotifyListener(url)
    listener.on_event("event_stream", receive)
    await listener.start()
    try:
        yield received
    finally:
        await listener.stop()


async def sequence_numbers(engine: Engine, session: Session) -> list[int]:
    rows = await database_of(engine).pool.fetch(
        "SELECT sequence_num FROM events WHERE thread_id = $1 ORDER BY sequence_num", UUID(session.thread_id)
    )
    return [row["sequence_num"] for row in rows]


TRANSACTION = """
BEGIN;

-- 1. compare and swap
UPDATE threads
SET
  state = state || '{new_state}',
  version = version + 1
WHERE
  id = '{thread_id}' AND version = {expected_version}
RETURNING version;

-- 2. the event, which triggers the notification
INSERT INTO events (thread_id, event_type, content)
VALUES ('{thread_id}', 'state_update', '{new_state}');

COMMIT;
"""


async def test_the_transaction_of_section_3_3(engine: Engine, database_url: str, session: Session) -> None:
    sql = TRANSACTION.format(thread_id=session.thread_id, expected_version=1, new_state='{"cart": ["tea"]}')
    async with notifications(database_url) as received:
        assert await type_into_psql(database_url, sql) == "2\n"
        pulse = await asyncio.wait_for(received.get(), 60)
    assert (pulse["thread_id"], pulse["sequence_num"], pulse["event_type"]) == (session.thread_id, 1, "state_update")
    found = await engine.sessions.get("shop", "ada", session.id)
    assert found is not None
    assert (found.state, found.version) == ({"cart": ["tea"]}, 2)
    (event,) = await engine.sessions.events(found)
    assert (event.author, event.content, event.version) == ("system", {"cart": ["tea"]}, 2)
    # The event records the change: history and time travel agree with the thread.
    assert event.actions == {"state_delta": {"cart": ["tea"]}}
    assert [(await engine.sessions.at(found, sequence=number)).state for number in (0, 1)] == [
        {"cart": []},
        {"cart": ["tea"]},
    ]
    assert (await engine.sessions.at(found, version=2)).state == {"cart": ["tea"]}
    assert [frame.type for frame in frames_of(event)] == [AgUiEventType.STATE_DELTA]
    await engine.sessions.append(found, author="user", kind="user_message", text="hi", state={"paid": True})
    assert found.version == 3


async def test_a_conflict_of_section_3_3_returns_no_row(engine: Engine, database_url: str, session: Session) -> None:
    sql = TRANSACTION.format(thread_id=session.thread_id, expected_version=7, new_state="{}").split("-- 2.")[0]
    assert await type_into_psql(database_url, sql + "ROLLBACK;") == ""


async def test_an_event_that_changed_no_state_is_no_change_of_state(engine: Engine, session: Session) -> None:
    await database_of(engine).pool.execute(
        "INSERT INTO events (thread_id, event_type, content) VALUES ($1, 'state_update', '{\"cart\": [1]}')",
        UUID(session.thread_id),
    )
    assert (await engine.sessions.at(session, sequence=1)).state == {"cart": []}


async def test_a_minimal_run(engine: Engine, database_url: str, session: Session) -> None:
    async with notifications(database_url) as received:
        await type_into_psql(
            database_url,
            f"INSERT INTO runs (thread_id) VALUES ('{session.thread_id}');"
            f"INSERT INTO runs (thread_id, id, status) VALUES ('{session.thread_id}', 'typed', 'running');",
        )
        pulses = [await asyncio.wait_for(received.get(), 60) for _ in range(2)]
    assert [(pulse["event_type"], pulse["sequence_num"]) for pulse in pulses] == [
        ("run_created", 1),
        ("run_started", 2),
    ]
    assert (await engine.runs.get(session.thread_id, "typed")).status == "running"
    await engine.runs.finish(session.thread_id, "typed")
    assert await sequence_numbers(engine, session) == [1, 2, 3]


async def test_a_minimal_message(engine: Engine, database_url: str, session: Session) -> None:
    async with notifications(database_url) as received:
        await type_into_psql(
            database_url,
            f"INSERT INTO messages (thread_id, role, content) VALUES ('{session.thread_id}', 'user', 'hello'),"
            f" ('{session.thread_id}', 'assistant', 'welcome'), ('{session.thread_id}', 'tool', '42');",
        )
        pulses = [await asyncio.wait_for(received.get(), 60) for _ in range(3)]
    assert [pulse["sequence_num"] for pulse in pulses] == [1, 2, 3]
    messages = await engine.sessions.message_log.read(UUID(session.thread_id))
    assert [(item.sequence_num, item.role, item.content) for item in messages] == [
        (1, "user", "hello"),
        (2, "assistant", "welcome"),
        (3, "tool", "42"),
    ]
    events = await engine.sessions.events(session)
    assert [event.id for event in events] == [message.event_id for message in messages]
    assert [(event.author, event.event_type, event.content["text"]) for event in events] == [
        ("user", "user_message", "hello"),
        ("assistant", "assistant_message", "welcome"),
        ("tool", "message", "42"),
    ]


async def test_a_message_of_an_event(engine: Engine, session: Session) -> None:
    event = await engine.sessions.append(session, author="user", kind="note", content={"text": "hi"})
    insert = "INSERT INTO messages (thread_id, event_id, role, content) VALUES ($1, $2, 'user', 'hi')"
    await database_of(engine).pool.execute(insert, UUID(session.thread_id), event.id)
    (message,) = await engine.sessions.message_log.read(UUID(session.thread_id))
    assert (message.sequence_num, message.event_id) == (1, event.id)
    with pytest.raises(asyncpg.ForeignKeyViolationError, match="there is no event nowhere"):
        await database_of(engine).pool.execute(insert, UUID(session.thread_id), "nowhere")


async def test_a_minimal_snapshot(engine: Engine, session: Session) -> None:
    pool, thread = database_of(engine).pool, UUID(session.thread_id)
    for number in range(3):
        await engine.sessions.append(session, author="user", kind="note", state={"n": number})
    await engine.sessions.append(session, author="user", kind="note")
    await pool.execute("INSERT INTO snapshots (thread_id) VALUES ($1)", thread)
    await pool.execute("INSERT INTO snapshots (thread_id, version, state) VALUES ($1, 3, '{\"n\": 1}')", thread)
    rows = await pool.fetch(
        "SELECT version, sequence_num, app_name, state::text FROM snapshots WHERE thread_id = $1 AND version > 1"
        " ORDER BY version",
        thread,
    )
    assert [(row["version"], row["sequence_num"], row["app_name"], json.loads(row["state"])) for row in rows] == [
        (3, 2, "shop", {"n": 1}),
        (4, 4, "shop", {"cart": [], "n": 2}),
    ]
    with pytest.raises(asyncpg.CheckViolationError, match="version 9 does not exist; the thread is at 4"):
        await pool.execute("INSERT INTO snapshots (thread_id, version, state) VALUES ($1, 9, '{}')", thread)


@pytest.mark.parametrize("table", ["runs", "snapshots", "events", "messages"])
async def test_rows_of_no_thread_are_refused(engine: Engine, table: str) -> None:
    columns = {"events": ", event_type", "messages": ", role, content"}.get(table, "")
    values = {"events": ", 'note'", "messages": ", 'user', 'x'"}.get(table, "")
    with pytest.raises(asyncpg.ForeignKeyViolationError, match="there is no thread"):
        await database_of(engine).pool.execute(
            f"INSERT INTO {table} (thread_id{columns}) VALUES (gen_random_uuid(){values})"
        )


async def test_a_minimal_thread_has_a_past(engine: Engine) -> None:
    pool = database_of(engine).pool
    thread = await pool.fetchval(
        "INSERT INTO threads (app_name, user_id, state) VALUES ('shop', 'ada', '{\"n\": 1}') RETURNING id"
    )
    await pool.execute("UPDATE threads SET state = state || '{\"n\": 2}', version = version + 1 WHERE id = $1", thread)
    assert (await engine.sessions.time_travel.at(thread, sequence=0)).state == {"n": 1}


async def test_rows_typed_at_once_leave_no_gap(engine: Engine, session: Session) -> None:
    pool, thread = database_of(engine).pool, UUID(session.thread_id)
    statements = [
        "INSERT INTO events (thread_id, event_type, content) VALUES ($1, 'note', '{}')",
        "INSERT INTO runs (thread_id) VALUES ($1)",
        "INSERT INTO messages (thread_id, role, content) VALUES ($1, 'user', 'x')",
        "INSERT INTO snapshots (thread_id) VALUES ($1) ON CONFLICT DO NOTHING",
    ]
    await asyncio.gather(
        *(pool.execute(statement, thread) for statement in statements * 8),
        *(engine.sessions.append(session, author="user", kind="note", text="engine") for _ in range(8)),
    )
    assert await sequence_numbers(engine, session) == list(range(1, 33))
    assert await pool.fetchval("SELECT last_sequence FROM threads WHERE id = $1", thread) == 32


CHANGES = {
    "UPDATE": "UPDATE events SET content = '{}'",
    "DELETE": "DELETE FROM events",
    "TRUNCATE": "TRUNCATE events",
    "upsert": "INSERT INTO events (thread_id, sequence_num, app_name, event_type, version)"
    " SELECT thread_id, 1, 'shop', 'x', 1 FROM events"
    " ON CONFLICT (thread_id, sequence_num) DO UPDATE SET content = '{}'",
}


@pytest.mark.parametrize("change", CHANGES)
async def test_events_are_append_only(engine: Engine, session: Session, change: str) -> None:
    await engine.sessions.append(session, author="user", kind="user_message", text="kept")
    with pytest.raises(asyncpg.RestrictViolationError, match="events are append-only") as raised:
        await database_of(engine).pool.execute(CHANGES[change])
    assert "Deleting a thread" in str(raised.value.hint)
    assert [event.content["text"] for event in await engine.sessions.events(session)] == ["kept"]


async def test_deleting_a_thread_deletes_its_events(engine: Engine, session: Session) -> None:
    other = await engine.sessions.create("shop", "ada")
    for thread in (session, other):
        await engine.sessions.append(thread, author="user", kind="user_message", text="hi")
    await database_of(engine).pool.execute("DELETE FROM threads WHERE id = $1", UUID(session.thread_id))
    rows = await database_of(engine).pool.fetch("SELECT thread_id::text FROM events")
    assert [row["thread_id"] for row in rows] == [other.thread_id]
    assert await engine.sessions.delete(other)
    assert await database_of(engine).pool.fetchval("SELECT count(*) FROM events") == 0
