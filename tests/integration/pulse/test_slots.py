"""The slot in a thread id: the same in Python and in SQL, kept by forks, absent from ids of other origin."""

from __future__ import annotations

import time
from uuid import UUID, uuid4

import asyncpg
from hypothesis import given
from hypothesis import strategies as st

from cognizes.engine import Engine
from cognizes.engine.models import SLOTS, new_id, new_thread_id, slot_of, user_slot

_NAMES = [("app", "user"), ("ap", "puser"), ("", ""), ("ümlaut 🙂", "日本"), ("a:1", "1:a"), ("x" * 250, "y" * 250)]


@given(slot=st.integers(0, SLOTS - 1))
def test_an_id_carries_its_slot_and_its_time(slot: int) -> None:
    before = time.time_ns() // 1_000_000
    made = new_thread_id(slot)
    assert (made.version, made.variant, slot_of(made)) == (8, new_id().variant, slot)
    assert before <= made.int >> 80 <= time.time_ns() // 1_000_000


def test_ids_of_one_slot_and_millisecond_differ() -> None:
    assert len({new_thread_id(7) for _ in range(10_000)}) == 10_000


def test_other_ids_carry_no_slot() -> None:
    assert slot_of(new_id()) is None
    assert slot_of(uuid4()) is None


async def test_python_and_sql_compute_the_same(pool: asyncpg.Pool, engine: Engine) -> None:
    for app_name, user_id in _NAMES:
        slot = user_slot(app_name, user_id)
        assert await pool.fetchval("SELECT user_slot($1, $2)", app_name, user_id) == slot
        thread_id = new_thread_id(slot)
        assert await pool.fetchval("SELECT slot_of($1)", thread_id) == slot
    assert user_slot("app", "user") != user_slot("ap", "puser")
    assert await pool.fetchval("SELECT slot_of($1)", new_id()) is None
    assert {await pool.fetchval("SELECT slot_of($1)", new_thread_id(slot)) for slot in (0, 1, 63, 64, 1023)} == {
        *(0, 1, 63, 64, 1023)
    }


async def test_sessions_and_forks_have_the_slot_of_their_user(engine: Engine, pool: asyncpg.Pool) -> None:
    session = await engine.sessions.create("shop", "ada")
    fork = await engine.sessions.fork(session)
    assert slot_of(UUID(session.thread_id)) == slot_of(UUID(fork.thread_id)) == user_slot("shop", "ada")
    old = new_id()
    await pool.execute("INSERT INTO threads (id, app_name, user_id) VALUES ($1, 'shop', 'bob')", old)
    inserted = await engine.sessions.store.get_thread(old)
    fork = await engine.sessions.fork(inserted)
    assert slot_of(UUID(fork.thread_id)) == user_slot("shop", "bob")
