"""PostgreSQL's clock is set back an hour: counters order the past, not timestamps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cognizes.engine import Engine
from cognizes.engine.models import Session


@pytest.fixture
async def clock(database_url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A connection on which `set_clock_back` works: the engine's functions find this clock before PostgreSQL's own."""
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        "CREATE TABLE clock AS SELECT interval '0' AS behind;"
        "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS"
        " 'SELECT pg_catalog.clock_timestamp() - behind FROM public.clock'"
    )
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"ALTER DATABASE {name} SET search_path = public, pg_catalog")
    yield connection
    await connection.close()


async def set_clock_back(clock: asyncpg.Connection[Any]) -> None:
    await clock.execute("UPDATE clock SET behind = behind + interval '1 hour'")


async def past(engine: Engine, session: Session, key: str, last: int) -> list[Any]:
    """The value of a key at the start of a session and after each of its events."""
    return [(await engine.sessions.at(session, sequence=number)).state.get(key) for number in range(last + 1)]


@pytest.mark.parametrize("scope", ["user", "app"])
async def test_time_travel_shows_no_value_of_the_future(
    database_url: str, clock: asyncpg.Connection[Any], scope: str
) -> None:
    key = f"{scope}:k"
    async with Engine.open(database_url) as engine:
        one = await engine.sessions.create("shop", "ada", state={key: "first"})
        await engine.sessions.append(one, author="user", kind="note", state={key: "before"})
        await engine.sessions.append(one, author="user", kind="note")
        await set_clock_back(clock)
        two = await engine.sessions.create("shop", "ada")
        await engine.sessions.append(two, author="user", kind="note")
        await engine.sessions.append(two, author="user", kind="note", state={key: "after"})
        await engine.sessions.append(one, author="user", kind="note")
        created_at = [event.created_at for event in await engine.sessions.events(one)]
        assert created_at[2] < created_at[0], "the clock was not set back"
        assert await past(engine, one, key, 3) == ["first", "before", "before", "after"]
        assert await past(engine, two, key, 2) == ["before", "before", "after"]
        fork = await engine.sessions.fork(one, at_sequence=2)
        assert await past(engine, fork, key, 2) == ["first", "before", "before"]


async def test_writes_of_one_batch_keep_their_order(database_url: str, clock: asyncpg.Connection[Any]) -> None:
    async with Engine.open(database_url) as engine:
        sessions = await asyncio.gather(
            *(engine.sessions.create("shop", "ada", state={"user:k": f"s{n}"}) for n in range(5))
        )
        await set_clock_back(clock)
        one, two = sessions[:2]
        events = await asyncio.gather(
            *(
                engine.sessions.append(session, author="user", kind="note", state={"user:k": f"{n}"})
                for n in range(4)
                for session in (one, two)
            ),
        )
        assert len(events) == 8
        rows = await clock.fetch(
            "SELECT e.thread_id, e.sequence_num, w.delta ->> 'k' AS value FROM state_writes w JOIN events e"
            " ON (e.thread_id, e.sequence_num) = (w.thread_id, w.sequence_num) ORDER BY w.version"
        )
        assert len(rows) == 8
        for row in rows:  # right after an event, its own write is the last one
            state = (await engine.sessions.time_travel.at(row["thread_id"], sequence=row["sequence_num"])).state
            assert state["user:k"] == row["value"]
        for number, session in enumerate(sessions):
            assert (await engine.sessions.at(session, sequence=0)).state["user:k"] == f"s{number}"


async def test_a_fork_has_the_branches_that_existed_at_its_event(
    database_url: str, clock: asyncpg.Connection[Any]
) -> None:
    async with Engine.open(database_url) as engine:
        session = await engine.sessions.create("shop", "ada")
        await engine.sessions.append(session, author="user", kind="user_message", text="one")
        await engine.branches.create(session.thread_id, "early")
        await engine.sessions.append(session, author="user", kind="user_message", text="two")
        last = (await engine.sessions.recent_events(session, limit=1))[-1].sequence_num
        await engine.branches.create(session.thread_id, "late")
        # The default of the column is PostgreSQL's own clock, which the fixture cannot replace.
        await clock.execute("UPDATE branches SET created_at = created_at - interval '1 hour' WHERE name = 'late'")
        fork = await engine.sessions.fork(session, at_sequence=last)
        rows = await clock.fetch("SELECT name FROM branches WHERE thread_id = $1", UUID(fork.thread_id))
        assert [row["name"] for row in rows] == ["early"]


async def test_rows_from_before_write_numbers_keep_the_order_of_their_timestamps(
    database_url: str, clock: asyncpg.Connection[Any]
) -> None:
    async with Engine.open(database_url) as engine:
        one, two = [await engine.sessions.create("shop", "ada") for _ in range(2)]
        for session, value in ((one, "1"), (two, "2"), (one, "3")):
            await engine.sessions.append(session, author="user", kind="note", state={"user:k": value})
        await clock.execute(
            "ALTER TABLE events DISABLE TRIGGER refuse_event_change; UPDATE events SET write_number = NULL;"
            "ALTER TABLE events ENABLE TRIGGER refuse_event_change;"
            "UPDATE state_writes SET write_number = NULL; UPDATE threads SET began_number = NULL"
        )
        assert await past(engine, one, "user:k", 2) == [None, "1", "3"]
        assert await past(engine, two, "user:k", 1) == [None, "2"]
        await set_clock_back(clock)
        await engine.sessions.append(two, author="user", kind="note", state={"user:k": "4"})
        await engine.sessions.append(one, author="user", kind="note")
        assert await past(engine, one, "user:k", 3) == [None, "1", "3", "4"]
        assert await past(engine, two, "user:k", 2) == [None, "2", "4"]
