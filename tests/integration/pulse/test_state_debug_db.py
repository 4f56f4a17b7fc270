"""Who wrote what, when, and in which run."""

from __future__ import annotations

from uuid import UUID, uuid4

import asyncpg
import pytest

from cognizes.engine import DELETE, Engine, NotFoundError
from cognizes.engine.pulse.state_debug import StateDebugService
from tests.engine_parts import debug_of


async def test_an_unknown_thread_is_empty(pool: asyncpg.Pool) -> None:
    service = StateDebugService(pool)
    for unknown in (str(uuid4()), "not-a-uuid"):
        info = await service.get_debug_info(unknown)
        assert (info.thread_id, info.current_state, info.state_history) == (unknown, {}, [])
        assert info.prefix_breakdown == {"session": {}, "user": {}, "app": {}, "temp": {}}


async def test_state_history_and_breakdown(engine: Engine, pool: asyncpg.Pool) -> None:
    session = await engine.sessions.create("app", "user", state={"n": 0, "user:lang": "en"})
    await engine.sessions.append(session, author="user", kind="user_message", text="no state")
    for number in (1, 2):
        await engine.sessions.append(
            session, author=f"agent{number}", kind="state_update", run_id=f"r{number}",
            state={"n": number, "app:limit": number},
        )  # fmt: skip
    info = await StateDebugService(pool).get_debug_info(session.thread_id)
    assert info.current_state == {"n": 2, "user:lang": "en", "app:limit": 2}
    assert info.prefix_breakdown == {"session": {"n": 2}, "user": {"lang": "en"}, "app": {"limit": 2}, "temp": {}}
    assert [
        (item["delta"], item["author"], item["run_id"], item["version"], item["sequence_num"])
        for item in info.state_history
    ] == [({"n": 1, "app:limit": 1}, "agent1", "r1", 2, 2), ({"n": 2, "app:limit": 2}, "agent2", "r2", 3, 3)]
    assert info.state_history[0]["time"] <= info.state_history[1]["time"]


async def test_key_history_follows_a_wider_key_through_all_threads(engine: Engine) -> None:
    one = await engine.sessions.create("app", "ada", state={"user:k": 0, "k": 0})
    two = await engine.sessions.create("app", "ada")
    stranger = await engine.sessions.create("app", "bob", state={"user:k": 99})
    await engine.sessions.append(two, author="two", kind="state_update", state={"user:k": 1, "k": 7})
    await engine.sessions.append(one, author="one", kind="state_update", state={"user:k": DELETE, "k": 1})
    await engine.sessions.append(one, author="one", kind="state_update", state={"k": DELETE})
    history = await debug_of(engine).key_history(UUID(one.thread_id), "user:k")
    assert [(item["value"], item["deleted"], item["author"]) for item in history] == [
        (0, False, None), (1, False, "two"), (None, True, "one"),
    ]  # fmt: skip
    assert history[1]["thread_id"] == two.thread_id
    own = await debug_of(engine).key_history(UUID(one.thread_id), "k")
    assert [(item["value"], item["deleted"]) for item in own] == [(1, False), (None, True)]
    assert [item["value"] for item in await debug_of(engine).key_history(UUID(stranger.thread_id), "user:k")] == [99]
    with pytest.raises(NotFoundError):
        await debug_of(engine).key_history(uuid4(), "user:k")


async def test_diff_between_versions(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user", state={"same": 1, "changes": 1, "goes": 1})
    await engine.sessions.update(session, {"changes": 2, "goes": DELETE, "comes": 3})
    diff = await debug_of(engine).diff(UUID(session.thread_id), 1, 2)
    assert (diff.added, diff.changed, diff.removed) == ({"comes": 3}, {"changes": (1, 2)}, {"goes": 1})
    back = await debug_of(engine).diff(UUID(session.thread_id), 2, 1)
    assert (back.added, back.removed) == ({"goes": 1}, {"comes": 3})
