"""StateManager: the pure parts, and the two promises that seed 000 §5.4 measures here."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID, uuid4

import asyncpg
import pytest

from cognizes.engine.models import DELETE, new_id
from cognizes.engine.pulse.events import apply_delta, join_state, parse_state_prefix, split_delta, without_temp
from cognizes.engine.pulse.state_manager import ConcurrencyConflictError, Event, Session, StateManager


class TestStatePrefixes:
    @pytest.mark.parametrize(
        ("key", "parsed"),
        [
            ("task_progress", ("session", "task_progress")),
            ("user:preferred_language", ("user", "preferred_language")),
            ("app:max_retries", ("app", "max_retries")),
            ("temp:intermediate_result", ("temp", "intermediate_result")),
            ("user:", ("user", "")),
            ("other:key", ("session", "other:key")),
            ("User:key", ("session", "User:key")),
            ("user:app:key", ("user", "app:key")),
            ("", ("session", "")),
        ],
    )
    def test_parse(self, key: str, parsed: tuple[str, str]) -> None:
        assert parse_state_prefix(key) == parsed

    def test_split_and_join(self) -> None:
        state = {"a": 1, "user:b": 2, "app:c": 3, "temp:d": 4}
        scoped = split_delta(state)
        assert (scoped.session, scoped.user, scoped.app, scoped.temp) == ({"a": 1}, {"b": 2}, {"c": 3}, {"d": 4})
        assert join_state(scoped.session, scoped.user, scoped.app) == without_temp(state)
        assert not split_delta({"temp:d": 4}).is_stored

    def test_delta_replaces_and_deletes(self) -> None:
        state = {"a": {"x": 1}, "b": 1, "c": 1}
        changed = apply_delta(state, {"a": {"y": 2}, "b": None, "c": DELETE, "unknown": {"$delete": True}})
        assert changed == {"a": {"y": 2}, "b": None}
        assert state == {"a": {"x": 1}, "b": 1, "c": 1}


class TestDataclasses:
    def test_session_defaults(self) -> None:
        session = Session(id="s", app_name="a", user_id="u")
        assert (session.state, session.version, session.created_at, session.updated_at) == ({}, 1, None, None)

    def test_event_defaults(self) -> None:
        event = Event(id="", thread_id="t", invocation_id="i", author="agent", event_type="message")
        assert (event.content, event.actions, event.created_at) == ({}, {}, None)

    def test_conflict_carries_both_numbers(self) -> None:
        error = ConcurrencyConflictError(expected=3, actual=5)
        assert (error.expected, error.actual) == (3, 5)
        assert "3" in str(error)
        assert "5" in str(error)

    def test_new_ids_are_version_7_and_ordered_by_time(self) -> None:
        ids = [new_id() for _ in range(1000)]
        assert {value.version for value in ids} == {7}
        assert {value.variant for value in ids} == {UUID(int=ids[0].int).variant}
        assert len(set(ids)) == 1000
        milliseconds = [value.int >> 80 for value in ids]
        assert milliseconds == sorted(milliseconds)


class TestHighQPSPerformance:
    async def test_100_qps_session_creation(self, pool: asyncpg.Pool) -> None:
        """500 creations at once all succeed, each once, at 100 per second at least; `benchmarks/append.py` measures."""
        manager = StateManager(pool)
        began = time.perf_counter()
        sessions = await asyncio.gather(*(manager.create_session("app", f"user_{n}", {"n": n}) for n in range(500)))
        assert time.perf_counter() - began < 5
        assert len({session.id for session in sessions}) == 500
        rows = await pool.fetch("SELECT user_id, state::text FROM threads")
        assert {row["user_id"]: row["state"] for row in rows} == {f"user_{n}": f'{{"n": {n}}}' for n in range(500)}


class TestMultiAgentConcurrency:
    async def test_10_concurrent_writes_no_data_loss(self, pool: asyncpg.Pool) -> None:
        manager = StateManager(pool)
        created = await manager.create_session("app", "user")

        async def write(number: int) -> None:
            own = await manager.get_session("app", "user", created.id)
            assert own is not None
            await manager.update_session_state(own, {f"agent_{number}": number})

        await asyncio.gather(*(write(number) for number in range(10)))
        final = await manager.get_session("app", "user", created.id)
        assert final is not None
        assert final.state == {f"agent_{number}": number for number in range(10)}
        assert final.version == 11

    async def test_ten_writers_times_fifty_increments_are_five_hundred(self, pool: asyncpg.Pool) -> None:
        # Two managers stand for two processes: their tasks know nothing of each other.
        managers = [StateManager(pool), StateManager(pool)]
        created = await managers[0].create_session("app", "user", {"counter": 0})

        async def increment(number: int) -> None:
            manager = managers[number % 2]
            own = await manager.get_session("app", "user", created.id)
            assert own is not None
            for _ in range(50):
                await manager.update_session_state(own, lambda state: {"counter": state["counter"] + 1})

        await asyncio.gather(*(increment(number) for number in range(10)))
        final = await managers[0].get_session("app", "user", created.id)
        assert final is not None
        assert final.state == {"counter": 500}
        assert final.version == 501


async def test_unknown_sessions(pool: asyncpg.Pool) -> None:
    manager = StateManager(pool)
    assert await manager.get_session("app", "user", str(uuid4())) is None
    assert await manager.delete_session("app", "user", "unknown") is False
    assert await manager.list_sessions("app", "user") == []
