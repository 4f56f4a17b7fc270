"""What clients do after a failover that lost events and reused their numbers: all of them end up with what is stored.

The loss is made in one transaction, so that no sweep sees a head that is lower: only the ids of events show it.
`tests/cluster/test_lagging_standby.py` does the same on a cluster whose standby lags.
"""

from __future__ import annotations

import json
from contextlib import aclosing

import asyncpg
import httpx
import pytest
import websockets

from cognizes.engine import Engine, FeedRewoundError, Session
from cognizes.engine.sync.client import SignalPullClient
from tests.integration.sync.conftest import kept_port, listening, serving
from tests.integration.sync.test_client import is_whole, reached, texts
from tests.listeners import kill_listeners


@pytest.fixture
async def followed(engine: Engine, session: Session) -> Session:
    """A session with three messages of a run."""
    for text in ("one", "two", "three"):
        await engine.sessions.append(session, author="user", kind="user_message", text=text, run_id="r")
    return session


async def fail_over(pool: asyncpg.Pool, session: Session, *, lost: int, then: list[str]) -> None:
    """Replace the newest events of a thread by others, as a lagging standby that is promoted does; cut the listener."""
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        head = await connection.fetchval(
            "UPDATE threads SET last_sequence = last_sequence - $2 WHERE id = $1 RETURNING last_sequence",
            session.thread_id,
            lost,
        )
        for table in ("messages", "events"):
            await connection.execute(
                f"DELETE FROM {table} WHERE thread_id = $1 AND sequence_num > $2", session.thread_id, head
            )
        await connection.execute("SET LOCAL session_replication_role = origin")
        await connection.execute("SELECT set_config('cognizes.notify', 'off', true)")
        for text in then:
            await connection.execute(
                "INSERT INTO messages (thread_id, role, content) VALUES ($1, 'user', $2)", session.thread_id, text
            )
    await kill_listeners(pool)


async def test_a_follower_ends_with_an_error_if_as_many_new_events_exist(
    engine: Engine, followed: Session, pool: asyncpg.Pool
) -> None:
    async with aclosing(engine.live(followed)) as events:
        assert [(await anext(events)).sequence_num for _ in range(3)] == [1, 2, 3]
        await fail_over(pool, followed, lost=1, then=["another"])
        with pytest.raises(FeedRewoundError, match="another event 3"):
            await anext(events)


async def test_a_follower_ends_with_an_error_if_more_new_events_exist(
    engine: Engine, followed: Session, pool: asyncpg.Pool
) -> None:
    async with aclosing(engine.live(followed)) as events:
        assert [(await anext(events)).sequence_num for _ in range(3)] == [1, 2, 3]
        await fail_over(pool, followed, lost=2, then=["a", "b", "c", "d"])
        with pytest.raises(FeedRewoundError, match="another event 3"):
            await anext(events)


async def test_frames_of_both_profiles_end_with_an_error(
    followed: Session, http: httpx.AsyncClient, pool: asyncpg.Pool
) -> None:
    for profile in ("monitor", "agui"):
        async with http.stream("GET", f"/api/runs/r/events?profile={profile}") as response:
            lines = response.aiter_lines()
            seen = [await anext(lines)]
            while not any("three" in line for line in seen):
                seen.append(await anext(lines))
            await fail_over(pool, followed, lost=1, then=["three"])
            seen += [line async for line in lines]
        last = json.loads([line for line in seen if line.startswith("data: ")][-1].removeprefix("data: "))
        assert (last["type"], last["code"]) == ("RUN_ERROR", "FEED_REWOUND")
        # The run's event is gone; the next profile needs it again.
        await pool.execute(
            "SET session_replication_role = replica; UPDATE events SET run_id = 'r'; RESET session_replication_role"
        )


async def test_signals_begin_again_and_say_that_messages_were_removed(
    followed: Session, http: httpx.AsyncClient, url: str, pool: asyncpg.Pool
) -> None:
    path = f"/contexts/{followed.thread_id}/events"
    socket_url = f"{url.replace('http', 'ws', 1)}/ws/signals?contexts={followed.thread_id}"
    async with listening(http, path) as reader, websockets.connect(socket_url) as socket:
        await reader.until("state_changed")
        await fail_over(pool, followed, lost=2, then=["another"])
        again = await reader.until("state_changed", messages_removed=True)
        assert again["sequence_num"] == 2
        assert reader.ids[-1] == "2"
        while not json.loads(await socket.recv()).get("messages_removed"):
            pass
        await pool.execute(
            "INSERT INTO messages (thread_id, role, content) VALUES ($1, 'user', 'x')", followed.thread_id
        )
        assert (await reader.until("message_created"))["sequence_num"] == 3
        while json.loads(await socket.recv())["type"] != "message_created":
            pass


@pytest.mark.parametrize("then", [[], ["another"], ["a", "b", "c", "d"]])
async def test_the_client_ends_up_with_what_is_stored(
    engine: Engine, followed: Session, url: str, pool: asyncpg.Pool, then: list[str]
) -> None:
    async with SignalPullClient(url, followed.id) as client:
        await reached(client, is_whole(3))
        await engine.sessions.append(followed, author="user", kind="user_message", text="four")
        await reached(client, lambda copy: texts(copy) == ["one", "two", "three", "four"] and is_whole(4)(copy))
        await fail_over(pool, followed, lost=2, then=then)
        await reached(client, lambda copy: texts(copy) == ["one", "two", *then])


async def test_a_client_that_was_away_ends_up_with_what_is_stored(
    engine: Engine, followed: Session, pool: asyncpg.Pool
) -> None:
    """It reconnects, with a position that exists again, to a server that did not follow the thread."""
    with kept_port() as port:
        async with serving(engine, port=port) as url:
            client = SignalPullClient(url, followed.id)
            await client.__aenter__()
            await reached(client, is_whole(3))
            await engine.sessions.append(followed, author="user", kind="user_message", text="four")
            await reached(client, lambda copy: len(copy.messages) == 4)
        await fail_over(pool, followed, lost=2, then=["a", "b", "c"])
        async with serving(engine, port=port):
            await reached(client, lambda copy: texts(copy) == ["one", "two", "a", "b", "c"])
            await client.__aexit__(None, None, None)
