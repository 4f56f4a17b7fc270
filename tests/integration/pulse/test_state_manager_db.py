"""StateManager on a real database, over a bare pool: CRUD, OCC, atomicity, order, what happens when things break."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from cognizes.engine import (
    DELETE,
    AlreadyExistsError,
    DuplicateEventError,
    LimitExceededError,
    NotFoundError,
    Settings,
)
from cognizes.engine.pulse.state_manager import ConcurrencyConflictError, Event, Session, StateManager


@pytest.fixture
async def manager(pool: asyncpg.Pool) -> StateManager:
    return StateManager(pool)


def event(**more: Any) -> Event:
    delta = more.pop("delta", None)
    given = {"id": "", "thread_id": "", "invocation_id": "i", "author": "agent", "event_type": "state_update"}
    return Event(**{**given, **more}, **({"actions": {"state_delta": delta}} if delta is not None else {}))


class TestSessionCRUD:
    async def test_create(self, manager: StateManager) -> None:
        session = await manager.create_session("app", "user", {"language": "zh-CN"})
        assert (session.app_name, session.user_id, session.state) == ("app", "user", {"language": "zh-CN"})
        assert session.version == 1
        assert UUID(session.id)
        assert session.created_at is not None

    async def test_get_equals_what_was_created(self, manager: StateManager) -> None:
        created = await manager.create_session("app", "user", {"a": [1, {"b": None}], "user:u": 1, "app:x": 2})
        assert await manager.get_session("app", "user", created.id) == created

    async def test_own_session_ids(self, manager: StateManager) -> None:
        session = await manager.create_session("app", "user", session_id="mine")
        assert session.id == "mine"
        assert UUID(session.thread_id)
        with pytest.raises(AlreadyExistsError):
            await manager.create_session("app", "user", session_id="mine")
        assert (await manager.create_session("app", "other", session_id="mine")).thread_id != session.thread_id

    async def test_a_session_of_another_user_is_not_found(self, manager: StateManager) -> None:
        session = await manager.create_session("app", "user")
        assert await manager.get_session("app", "other", session.id) is None
        assert await manager.get_session("other", "user", session.id) is None
        assert await manager.delete_session("app", "other", session.id) is False

    async def test_list_newest_activity_first(self, manager: StateManager) -> None:
        sessions = [await manager.create_session("app", "user", {"n": n}) for n in range(3)]
        await manager.create_session("app", "other")
        await manager.append_event(sessions[0], event())
        listed = await manager.list_sessions("app", "user")
        assert [session.state["n"] for session in listed] == [0, 2, 1]

    async def test_delete_takes_everything_with_it(self, manager: StateManager, pool: asyncpg.Pool) -> None:
        session = await manager.create_session("app", "user", {"a": 1})
        await manager.append_event(session, event(event_type="user_message", content={"text": "hi"}))
        assert await manager.delete_session("app", "user", session.id) is True
        assert await manager.get_session("app", "user", session.id) is None
        for table in ("threads", "events", "messages", "snapshots"):
            assert await pool.fetchval(f"SELECT count(*) FROM {table}") == 0
        with pytest.raises(NotFoundError):
            await manager.append_event(session, event())


class TestAtomicStateTransitions:
    async def test_event_and_state_together(self, manager: StateManager, pool: asyncpg.Pool) -> None:
        session = await manager.create_session("app", "user", {"counter": 0})
        appended = await manager.append_event(session, event(delta={"counter": 1}, content={"text": "up"}))
        assert (session.state, session.version, session.last_sequence) == ({"counter": 1}, 2, 1)
        assert (appended.sequence_num, appended.version) == (1, 2)
        assert appended.id
        assert appended.created_at is not None
        row = await pool.fetchrow("SELECT content::text, actions::text FROM events WHERE id = $1", appended.id)
        assert json.loads(row["content"]) == {"text": "up"}
        assert json.loads(row["actions"]) == {"state_delta": {"counter": 1}}
        assert await manager.get_session("app", "user", session.id) == session

    async def test_an_event_without_a_delta_changes_no_version(self, manager: StateManager) -> None:
        session = await manager.create_session("app", "user")
        await manager.append_event(session, event(event_type="message", content={"text": "hi"}))
        assert (session.version, session.last_sequence) == (1, 1)

    async def test_a_failed_transaction_leaves_nothing(self, manager: StateManager, pool: asyncpg.Pool) -> None:
        """Rollback: the state was merged before the event failed to insert; neither is there afterwards."""
        await pool.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE check_violation USING MESSAGE = 'refused'; END $$;"
            "CREATE TRIGGER refuse BEFORE INSERT ON events FOR EACH ROW "
            "WHEN (NEW.author = 'villain') EXECUTE FUNCTION refuse()"
        )
        session = await manager.create_session("app", "user", {"counter": 0})
        bad = event(author="villain", delta={"counter": 1, "user:seen": True, "app:seen": True, "temp:t": 1})
        with pytest.raises(Exception, match="refused"):
            await manager.append_event(session, bad)
        assert (session.state, session.version, session.last_sequence) == ({"counter": 0}, 1, 0)
        assert bad == event(author="villain", delta={"counter": 1, "user:seen": True, "app:seen": True, "temp:t": 1})
        assert await manager.get_session("app", "user", session.id) == session
        assert await pool.fetchval("SELECT count(*) FROM events") == 0

    async def test_zero_dirty_reads(self, manager: StateManager) -> None:
        """A reader never sees one half of a delta."""
        session = await manager.create_session("app", "user", {"a": 0, "b": 0, "user:c": 0})
        stop = False

        async def read() -> int:
            seen = 0
            while not stop:
                found = await manager.get_session("app", "user", session.id)
                assert found is not None
                assert found.state["a"] == found.state["b"] == found.version - 1
                seen += 1
            return seen

        reader = asyncio.create_task(read())
        for number in range(1, 101):
            await manager.append_event(session, event(delta={"a": number, "b": number, "user:c": number}))
        stop = True
        assert await reader > 0


class TestOptimisticConcurrencyControl:
    async def test_version_conflict_detection(self, manager: StateManager, pool: asyncpg.Pool) -> None:
        session = await manager.create_session("app", "user")
        await pool.execute("UPDATE threads SET version = version + 1 WHERE id = $1", UUID(session.id))
        with pytest.raises(ConcurrencyConflictError) as caught:
            await manager.append_event(session, event(delta={"key": "value"}))
        assert (caught.value.expected, caught.value.actual) == (1, 2)
        assert (session.state, session.version) == ({}, 1)

    async def test_of_many_stale_writers_one_wins(self, manager: StateManager) -> None:
        created = await manager.create_session("app", "user")
        copies = [await manager.get_session("app", "user", created.id) for _ in range(10)]
        outcomes = await asyncio.gather(
            *(manager.append_event(copy, event(delta={"winner": n})) for n, copy in enumerate(copies) if copy),
            return_exceptions=True,
        )
        winners = [outcome for outcome in outcomes if isinstance(outcome, Event)]
        losers = [outcome for outcome in outcomes if isinstance(outcome, ConcurrencyConflictError)]
        assert (len(winners), len(losers)) == (1, 9)
        assert {(loser.expected, loser.actual) for loser in losers} == {(1, 2)}
        final = await manager.get_session("app", "user", created.id)
        assert final is not None
        assert final.state == winners[0].actions["state_delta"]

    async def test_a_shared_session_object_keeps_the_order_of_calls(self, manager: StateManager) -> None:
        session = await manager.create_session("app", "user")
        events = [
            event(id=f"e{n}", delta={"last": n}) if n % 3 else event(id=f"e{n}", event_type="message")
            for n in range(60)
        ]
        await asyncio.gather(*(manager.append_event(session, item) for item in events))
        stored = await manager.sessions.log.read(UUID(session.thread_id))
        assert [item.id for item in stored] == [f"e{n}" for n in range(60)]
        assert [item.sequence_num for item in stored] == list(range(1, 61))
        assert (session.state, session.version) == ({"last": 59}, 41)

    async def test_update_gives_up_after_its_retries(self, manager: StateManager, pool: asyncpg.Pool) -> None:
        session = await manager.create_session("app", "user")

        async def meddle(_: dict[str, Any]) -> dict[str, Any]:
            await pool.execute("UPDATE threads SET version = version + 1 WHERE id = $1", UUID(session.id))
            return {"mine": 1}

        with pytest.raises(ConcurrencyConflictError):
            await manager.update_session_state(session, meddle, max_retries=3)
        assert manager.sessions.conflicts == 3

    async def test_a_function_cannot_change_the_session_behind_our_back(self, manager: StateManager) -> None:
        session = await manager.create_session("app", "user", {"list": [1]})

        def mutate(state: dict[str, Any]) -> dict[str, Any]:
            state["list"].append(2)
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await manager.update_session_state(session, mutate)
        assert session.state == {"list": [1]}


class TestScopes:
    async def test_each_scope_has_its_reach(self, manager: StateManager, pool: asyncpg.Pool) -> None:
        one = await manager.create_session("app", "ada", {"user:lang": "en", "app:limit": 1, "mine": 1, "temp:t": 1})
        await manager.append_event(one, event(delta={"user:lang": "fr", "app:limit": 2, "mine": 2, "temp:x": 9}))
        assert one.state == {"mine": 2, "user:lang": "fr", "app:limit": 2, "temp:t": 1, "temp:x": 9}
        two = await manager.create_session("app", "ada")
        assert two.state == {"user:lang": "fr", "app:limit": 2}
        assert (await manager.create_session("app", "bob")).state == {"app:limit": 2}
        assert (await manager.create_session("else", "ada")).state == {}
        stored = await pool.fetchval("SELECT string_agg(state::text, '') FROM threads")
        assert "temp" not in stored
        assert "temp" not in await pool.fetchval("SELECT string_agg(actions::text, '') FROM events")
        assert await pool.fetchval("SELECT state::text FROM user_states") == '{"lang": "fr"}'

    async def test_a_key_is_deleted_in_every_scope_and_none_is_a_value(self, manager: StateManager) -> None:
        session = await manager.create_session("app", "user", {"a": 1, "b": 1, "user:c": 1, "app:d": 1})
        await manager.append_event(
            session, event(delta={"a": None, "b": DELETE, "user:c": DELETE, "app:d": {"$delete": True}, "e": DELETE})
        )
        assert session.state == {"a": None}
        found = await manager.get_session("app", "user", session.id)
        assert found is not None
        assert found.state == {"a": None}

    async def test_values_are_replaced_not_merged(self, manager: StateManager) -> None:
        session = await manager.create_session("app", "user", {"d": {"x": 1, "y": 2}})
        await manager.append_event(session, event(delta={"d": {"x": 3}}))
        assert (await manager.get_all_state(session)) == {"d": {"x": 3}}

    async def test_concurrent_creates_lose_no_wider_state(self, manager: StateManager, pool: asyncpg.Pool) -> None:
        other = StateManager(pool)
        await asyncio.gather(
            *((manager, other)[n % 2].create_session("app", "user", {f"user:k{n}": n, f"app:k{n}": n})
              for n in range(60))
        )  # fmt: skip
        final = await manager.create_session("app", "user")
        assert final.state == {f"{scope}:k{n}": n for scope in ("user", "app") for n in range(60)}

    async def test_concurrent_wider_writes_from_two_processes(self, manager: StateManager, pool: asyncpg.Pool) -> None:
        other = StateManager(pool)
        sessions = [await manager.create_session("app", f"u{n % 3}") for n in range(12)]

        async def write(number: int) -> None:
            for step in range(10):
                await (manager, other)[number % 2].append_event(
                    sessions[number], event(delta={f"user:{number}": step, f"app:{number}": step})
                )

        await asyncio.gather(*(write(number) for number in range(12)))
        final = await manager.create_session("app", "u0")
        assert final.state == {f"app:{n}": 9 for n in range(12)} | {f"user:{n}": 9 for n in range(0, 12, 3)}
        assert await pool.fetchval("SELECT max(version) FROM state_writes WHERE scope = 'app'") == 120

    async def test_set_and_get_by_prefixed_key(self, manager: StateManager) -> None:
        session = await manager.create_session("app", "user")
        for key in ("plain", "user:u", "app:a", "temp:t"):
            await manager.set_state(session, key, {"of": key})
            assert await manager.get_state(session, key) == {"of": key}
        assert await manager.get_state(session, "unknown", 7) == 7
        stored = await manager.get_session("app", "user", session.id)
        assert stored is not None
        assert set(await manager.get_all_state(session)) - set(stored.state) == {"temp:t"}


class TestIdempotence:
    async def test_a_resend_is_stored_once_and_answers_the_same(
        self, manager: StateManager, pool: asyncpg.Pool
    ) -> None:
        session = await manager.create_session("app", "user")
        first = await manager.append_event(session, event(id="e", delta={"n": 1}, content={"b": 1, "a": 2}))
        again = await manager.append_event(session, event(id="e", delta={"n": 1}, content={"a": 2, "b": 1}))
        assert (again.sequence_num, again.version, again.created_at) == (
            first.sequence_num, first.version, first.created_at,
        )  # fmt: skip
        assert session.version == 2
        assert await pool.fetchval("SELECT count(*) FROM events") == 1

    async def test_a_client_that_lost_the_answer_catches_up_by_resending(self, manager: StateManager) -> None:
        session = await manager.create_session("app", "user")
        before = Session(**vars(session))
        await manager.append_event(session, event(id="e", delta={"n": 1}))
        await manager.append_event(before, event(id="e", delta={"n": 1}))
        assert (before.state, before.version) == ({"n": 1}, 2)
        await manager.append_event(before, event(delta={"n": 2}))

    async def test_two_events_under_one_id_are_refused_loudly(self, manager: StateManager) -> None:
        session = await manager.create_session("app", "user")
        await manager.append_event(session, event(id="e", content={"text": "one"}))
        with pytest.raises(DuplicateEventError):
            await manager.append_event(session, event(id="e", content={"text": "two"}))
        (stored,) = await manager.sessions.log.read(UUID(session.thread_id))
        assert stored.content == {"text": "one"}

    async def test_the_same_id_many_times_at_once(self, manager: StateManager, pool: asyncpg.Pool) -> None:
        session = await manager.create_session("app", "user")
        thread = UUID(session.thread_id)
        other = StateManager(pool)
        new = await asyncio.gather(
            *((manager, other)[n % 2].sessions.append_to_thread(thread, event(id=f"e{n % 5}")) for n in range(50))
        )
        assert sum(new) == 5
        stored = await manager.sessions.log.read(thread)
        assert sorted(item.id for item in stored) == [f"e{n}" for n in range(5)]
        assert [item.sequence_num for item in stored] == [1, 2, 3, 4, 5]


class TestBatches:
    async def test_one_bad_item_hurts_no_neighbour(self, pool: asyncpg.Pool) -> None:
        manager = StateManager(pool, Settings(max_state_bytes=2048))
        sessions = [await manager.create_session("app", "user") for _ in range(20)]

        def delta(number: int) -> dict[str, Any]:
            return {"k": "x" * 5000} if number == 7 else {"k": number}

        outcomes = await asyncio.gather(
            *(manager.append_event(session, event(delta=delta(n))) for n, session in enumerate(sessions)),
            return_exceptions=True,
        )
        assert [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, Event)] == [7]
        assert isinstance(outcomes[7], LimitExceededError)
        for number, session in enumerate(sessions):
            found = await manager.get_session("app", "user", session.id)
            assert found == session
            assert session.state == ({} if number == 7 else {"k": number})

    async def test_a_locked_thread_does_not_delay_other_threads(
        self, manager: StateManager, pool: asyncpg.Pool
    ) -> None:
        held, *others = [await manager.create_session("app", "user") for _ in range(6)]
        async with pool.acquire() as stranger, stranger.transaction():
            await stranger.execute("SELECT FROM threads WHERE id = $1 FOR UPDATE", UUID(held.thread_id))
            waiting = [
                asyncio.create_task(manager.sessions.append_to_thread(UUID(held.thread_id), event(id=f"e{n}")))
                for n in range(3)
            ]
            await asyncio.wait_for(
                asyncio.gather(*(manager.append_event(session, event(delta={"n": 1})) for session in others)), 60
            )
            waiting += [
                asyncio.create_task(manager.sessions.append_to_thread(UUID(held.thread_id), event(id=f"e{n}")))
                for n in range(3, 6)
            ]
            await manager.append_event(others[0], event())
            assert not any(task.done() for task in waiting)
        await asyncio.wait_for(asyncio.gather(*waiting), 60)
        stored = await manager.sessions.log.read(UUID(held.thread_id))
        assert [item.id for item in stored] == [f"e{n}" for n in range(6)]

    async def test_ten_writers_on_ten_connections(self, manager: StateManager) -> None:
        sessions = [await manager.create_session("app", f"u{n}") for n in range(100)]
        await asyncio.wait_for(
            asyncio.gather(
                *(manager.append_event(session, event(delta={"user:x": 1, "app:y": 1, "z": 1}))
                  for session in sessions)
            ),
            60,
        )  # fmt: skip
        assert {session.version for session in sessions} == {2}

    async def test_appends_survive_cut_connections(self, pool: asyncpg.Pool, database_url: str) -> None:
        """The backend is killed again and again; every acknowledged event is there once, in a gapless order."""
        manager = StateManager(pool, Settings(retry_seconds=120))
        session = await manager.create_session("app", "user")
        thread = UUID(session.thread_id)
        killer = await asyncpg.connect(database_url)
        done = False
        acknowledged = 0

        async def kill() -> None:
            while not done:
                before = acknowledged
                await killer.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                # On a slow machine, too, something gets through between two kills.
                while acknowledged == before and not done:
                    await asyncio.sleep(0.001)

        killing = asyncio.create_task(kill())
        for number in range(100):
            await manager.sessions.append_to_thread(thread, event(id=f"e{number}"))
            acknowledged += 1
        done = True
        await killing
        # On the one connection that was spared.
        stored = await killer.fetch("SELECT id, sequence_num FROM events WHERE thread_id = $1 ORDER BY 2", thread)
        await killer.close()
        assert [tuple(row) for row in stored] == [(f"e{n}", n + 1) for n in range(100)]


class TestPlainSQL:
    async def test_an_event_typed_by_hand_takes_its_place(self, manager: StateManager, pool: asyncpg.Pool) -> None:
        session = await manager.create_session("app", "user")
        await manager.append_event(session, event())
        await pool.execute(
            "INSERT INTO events (thread_id, invocation_id, author, event_type, content) "
            "VALUES ($1, $2, 'user', 'message', '{\"text\": \"typed\"}')",
            UUID(session.id),
            str(uuid4()),
        )
        await manager.append_event(session, event())
        stored = await manager.sessions.log.read(UUID(session.thread_id))
        assert [item.sequence_num for item in stored] == [1, 2, 3]
        assert stored[1].content == {"text": "typed"}

    async def test_a_thread_typed_by_hand_is_a_session(self, manager: StateManager, pool: asyncpg.Pool) -> None:
        thread = await pool.fetchval("INSERT INTO threads (app_name, user_id) VALUES ('app', 'user') RETURNING id")
        session = await manager.get_session("app", "user", str(thread))
        assert session is not None
        await manager.append_event(session, event(delta={"a": 1}))
        assert session.version == 2

    async def test_an_event_of_no_thread_is_refused(self, pool: asyncpg.Pool) -> None:
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await pool.execute("INSERT INTO events (thread_id, author, event_type) VALUES ($1, 'u', 'm')", uuid4())

    async def test_updated_at_follows(self, manager: StateManager, pool: asyncpg.Pool) -> None:
        session = await manager.create_session("app", "user")
        await pool.execute("UPDATE threads SET title = 'x' WHERE id = $1", UUID(session.id))
        found = await manager.get_session("app", "user", session.id)
        assert found is not None
        assert found.updated_at is not None
        assert session.updated_at is not None
        assert found.updated_at > session.updated_at


async def test_key_order_of_content_and_actions_is_kept(manager: StateManager) -> None:
    session = await manager.create_session("app", "user")
    arguments = {"zebra": 1, "apple": {"y": 1, "b": 2}, "10": 1, "9": 2}
    await manager.append_event(session, event(content={"args": arguments}))
    (stored,) = await manager.sessions.log.read(UUID(session.thread_id))
    assert json.dumps(stored.content) == json.dumps({"args": arguments})


async def test_a_session_rebuilt_from_its_public_fields_works(manager: StateManager) -> None:
    created = await manager.create_session("app", "user", session_id="mine")
    rebuilt = Session(id="mine", app_name="app", user_id="user", state={}, version=created.version)
    await manager.append_event(rebuilt, event(delta={"a": 1}))
    assert rebuilt.thread_id == created.thread_id
