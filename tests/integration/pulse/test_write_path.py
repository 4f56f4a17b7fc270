"""The way of a write to the database: answers that get lost, an engine that closes, a pool that is small."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cognizes.engine import (
    DELETE,
    AlreadyExistsError,
    ConcurrencyConflictError,
    DatabaseUnavailableError,
    DuplicateEventError,
    Engine,
    EngineClosedError,
    Event,
    LimitExceededError,
)
from cognizes.engine.database import Database
from tests.engine_parts import database_of, url_of


def message(event_id: str = "", **delta: Any) -> Event:
    return Event(
        id=event_id,
        thread_id="",
        invocation_id="i",
        author="agent",
        event_type="message",
        content={"text": event_id or "hi"},
        actions={"state_delta": delta} if delta else {},
    )


class LostAnswers:
    """Lets statements be executed and committed, and loses the answers of the server, as often as it is asked to."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.to_lose = 0
        self.lost: list[str] = []
        self.after: Callable[[], Any] | None = None
        fetch = asyncpg.Connection.fetch

        async def lose(connection: asyncpg.Connection, query: str, *arguments: Any, **options: Any) -> Any:
            rows = await fetch(connection, query, *arguments, **options)
            if self.to_lose and ("append_event" in query or "create_sessions" in query):
                self.to_lose -= 1
                self.lost.append(query)
                if self.after is not None:
                    await self.after()
                raise ConnectionError("the answer was lost")
            return rows

        patch.setattr(asyncpg.Connection, "fetch", lose)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> LostAnswers:
    return LostAnswers(monkeypatch)


async def test_a_lone_append_whose_answer_is_lost_is_stored_once(engine: Engine, answers: LostAnswers) -> None:
    session = await engine.sessions.create("app", "user", state={"user:n": 0})
    answers.to_lose = 2
    appended = await engine.sessions.append_event(session, message(n=1, **{"user:n": 1}))
    assert len(answers.lost) == 2
    assert (session.version, session.last_sequence, session.state) == (2, 1, {"n": 1, "user:n": 1})
    (stored,) = await engine.sessions.events(session)
    assert (stored.id, stored.sequence_num, stored.created_at) == (appended.id, 1, appended.created_at)
    assert await database_of(engine).pool.fetchval("SELECT count(*) FROM state_writes WHERE scope = 'user'") == 2


async def test_a_batch_whose_answer_is_lost_is_stored_once_and_its_conflicts_stay_conflicts(
    engine: Engine, answers: LostAnswers
) -> None:
    """Ten threads in batches; in each thread one append with the right version, one with a wrong, one with none."""
    sessions = [await engine.sessions.create("app", "user") for _ in range(10)]
    answers.to_lose = 3
    outcomes = await asyncio.gather(
        *(
            engine.sessions.append_to_thread(UUID(session.thread_id), event, expected_version=version)
            for session in sessions
            for event, version in (
                (message(n=1, **{"app:n": 1}), 1),
                (message(n=2), 1),
                (message("", m=3), None),
            )
        ),
        return_exceptions=True,
    )
    assert len(answers.lost) == 3
    assert any("append_events" in query for query in answers.lost)
    for number in range(10):
        first, second, third = outcomes[3 * number : 3 * number + 3]
        assert isinstance(first, bool)
        assert isinstance(second, ConcurrencyConflictError)
        assert isinstance(third, bool)
    for session in sessions:
        stored = await engine.sessions.store.get_thread(session.thread_id)
        assert (stored.version, stored.last_sequence) == (3, 2)
        assert stored.state == {"n": 1, "m": 3, "app:n": 1}
    assert await database_of(engine).pool.fetchval("SELECT version FROM app_states") == 10


async def test_a_session_that_was_changed_in_a_batch_is_the_stored_one(engine: Engine) -> None:
    """To the microsecond: each event of a batch has a moment of its own, and a session that of its last event."""
    sessions = [await engine.sessions.create("app", "user") for _ in range(6)]
    await asyncio.gather(
        *(engine.sessions.append_event(session, message(n=number)) for number in range(2) for session in sessions)
    )
    for session in sessions:
        assert await engine.sessions.get("app", "user", session.id) == session


async def test_a_resent_event_does_not_fail_new_events_of_its_batch(engine: Engine) -> None:
    """The server refuses a batch that holds an event that is there: then, and only then, it is looked for."""
    sessions = [await engine.sessions.create("app", "user") for _ in range(6)]
    threads = [UUID(session.thread_id) for session in sessions]
    assert await engine.sessions.append_to_thread(threads[2], message("given", n=1))
    again = message("given", n=1)
    outcomes = await asyncio.gather(
        *(engine.sessions.append_to_thread(thread, message("new")) for thread in threads),
        engine.sessions.append_to_thread(threads[2], again),
        *(engine.sessions.append_to_thread(thread, message(m=1)) for thread in threads),
        engine.sessions.append_to_thread(threads[2], message("given", n=2)),
        return_exceptions=True,
    )
    assert outcomes[:-1] == [True] * 6 + [False] + [True] * 6
    assert isinstance(outcomes[-1], DuplicateEventError)
    assert (again.sequence_num, again.version) == (1, 2)
    for number, session in enumerate(sessions):
        stored = [event.id for event in await engine.sessions.events(session)]
        assert stored[: len(stored) - 1] == (["given", "new"] if number == 2 else ["new"])


async def test_a_resent_event_is_known_again_whatever_else_would_refuse_it(database_url: str) -> None:
    """The state has grown since: applied once more, the delta would be too large."""
    async with Engine.open(database_url, max_state_bytes=2048) as engine:
        session = await engine.sessions.create("app", "user")
        thread = UUID(session.thread_id)
        assert await engine.sessions.append_to_thread(thread, message("given", a="x" * 1500))
        assert await engine.sessions.append_to_thread(thread, message("", a=DELETE, b="x" * 1500))
        assert not await engine.sessions.append_to_thread(thread, message("given", a="x" * 1500))
        with pytest.raises(LimitExceededError):
            await engine.sessions.append_to_thread(thread, message("other", a="x" * 1500))


async def test_a_resend_finds_its_thread_deleted(engine: Engine, answers: LostAnswers) -> None:
    session = await engine.sessions.create("app", "user")
    answers.after = lambda: engine.sessions.delete(session)
    answers.to_lose = 1
    with pytest.raises(Exception, match="no thread"):
        await engine.sessions.append_event(session, message())


async def test_sessions_whose_creation_was_not_answered_are_there_once(engine: Engine, answers: LostAnswers) -> None:
    await engine.sessions.create("app", "user", session_id="taken", state={"mine": 1})
    answers.to_lose = 2
    outcomes = await asyncio.gather(
        *(
            engine.sessions.create("app", "user", session_id=name, state={"n": number, f"user:{name}": number})
            for number, name in enumerate(["a", "taken", "b", "c", "b"])
        ),
        return_exceptions=True,
    )
    assert len(answers.lost) == 2
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "Session", "AlreadyExistsError", "Session", "Session", "AlreadyExistsError",
    ]  # fmt: skip
    assert isinstance(outcomes[1], AlreadyExistsError)
    rows = await database_of(engine).pool.fetch("SELECT session_id, state::text FROM threads ORDER BY session_id")
    assert [(row["session_id"], row["state"]) for row in rows] == [
        ("a", '{"n": 0}'), ("b", '{"n": 2}'), ("c", '{"n": 3}'), ("taken", '{"mine": 1}'),
    ]  # fmt: skip
    assert await database_of(engine).pool.fetchval("SELECT version FROM user_states") == 3


async def test_a_closing_engine_answers_what_is_under_way_and_refuses_the_rest(database_url: str) -> None:
    async with Engine.open(database_url) as engine:
        sessions = [await engine.sessions.create("app", "user") for _ in range(5)]
        appends = [
            asyncio.create_task(engine.sessions.append_event(session, message(f"{number}")))
            for number in range(20)
            for session in sessions
        ]
        creations = [asyncio.create_task(engine.sessions.create("app", "user")) for _ in range(20)]
        await asyncio.sleep(0)
        await engine.close()
        assert all(task.done() for task in (*appends, *creations))
        assert [task.exception() for task in (*appends, *creations)] == [None] * 120
        with pytest.raises(EngineClosedError):
            await engine.sessions.append_event(sessions[0], message("late"))
        with pytest.raises(EngineClosedError):
            await engine.sessions.create("app", "user")
    async with Engine.open(database_url) as engine:
        for session in sessions:
            events = await engine.sessions.events(session)
            assert [event.id for event in events] == [f"{number}" for number in range(20)]
        assert await database_of(engine).pool.fetchval("SELECT count(*) FROM threads") == 25


async def test_an_engine_whose_server_is_away_closes_all_the_same(database_url: str) -> None:
    engine = await Engine.open(database_url, retry_seconds=0).start()
    session = await engine.sessions.create("app", "user")
    await database_of(engine).pool.close()
    appends = [asyncio.create_task(engine.sessions.append_event(session, message())) for _ in range(10)]
    await asyncio.sleep(0)
    await engine.close()
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {DatabaseUnavailableError, EngineClosedError}


@pytest.fixture
async def small_engine(database_url: str) -> AsyncIterator[Engine]:
    async with Engine.open(database_url, pool_size=2, pool_timeout=60) as opened:
        yield opened


async def test_readers_get_a_connection_of_a_small_pool_while_writers_never_pause(small_engine: Engine) -> None:
    """One connection is held, writers reuse the other one: it must go round."""
    engine = small_engine
    sessions = [await engine.sessions.create("app", "user") for _ in range(4)]
    stop = False

    async def write(number: int) -> None:
        while not stop:
            await engine.sessions.append_event(sessions[number], message())

    async with database_of(engine).connection():
        writers = [asyncio.create_task(write(number)) for number in range(4)]
        for _ in range(20):
            assert await engine.sessions.get("app", "user", sessions[0].id) is not None
        stop = True
        await asyncio.gather(*writers)


async def test_many_held_threads_leave_connections_for_others(engine: Engine) -> None:
    """Another transaction locks more threads than the pool has connections."""
    held = [await engine.sessions.create("app", "user") for _ in range(12)]
    free = await engine.sessions.create("app", "user")
    stranger = await asyncpg.connect(url_of(engine))
    try:
        async with stranger.transaction():
            await stranger.execute(
                "SELECT FROM threads WHERE id = ANY ($1) FOR UPDATE", [UUID(session.thread_id) for session in held]
            )
            waiting = [
                asyncio.create_task(engine.sessions.append_event(session, message(f"{number}")))
                for number in range(2)
                for session in held
            ]
            for _ in range(5):
                await engine.sessions.append_event(free, message())
                await engine.sessions.events(free)
            assert not any(task.done() for task in waiting)
        await asyncio.wait_for(asyncio.gather(*waiting), 60)
    finally:
        await stranger.close()
    for session in held:
        assert [event.id for event in await engine.sessions.events(session)] == ["0", "1"]


async def test_no_task_waits_for_a_free_connection(database_url: str) -> None:
    pool = await asyncpg.create_pool(database_url, min_size=1, max_size=2)
    async with pool:
        database = Database(pool)
        assert not database.waiting
        async with database.connection():
            assert not database.waiting


async def test_a_stale_fence_refuses_only_its_own_item_of_a_batch(engine: Engine) -> None:
    """The fence is checked per item, so writes of runs share batches with all others."""
    session = await engine.sessions.create("app", "user")
    thread = UUID(session.thread_id)
    run = await engine.runs.create(session)
    async with database_of(engine).connection() as connection:
        await connection.execute("UPDATE runs SET status = 'running', attempt = 3 WHERE id = $1", run.id)
    ids = ["free", "fenced", "stale", "unknown"]
    none, texts = None, ["x"] * 4
    rows = await database_of(engine).fetch(
        "append_events",
        *([thread], [1] * 4, ids, none, texts, texts, texts, ["{}"] * 4, ["{}"] * 4, none, none, none, none, none),
        *(none, none, none, False, 0, 1000, none, none, none),
        *([None, run.id, run.id, "another"], [None, 3, 2, 3], True, None),
    )
    assert [row["status"] for row in rows] == ["stored", "stored", "fenced", "fenced"]
    stored = await engine.sessions.events(session)
    assert [event.id for event in stored if event.id in ids] == ["free", "fenced"]
