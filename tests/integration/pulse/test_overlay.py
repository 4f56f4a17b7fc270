"""The overlay: an invocation reads its own pending writes, nobody else does, the end makes them one event."""

from __future__ import annotations

from uuid import UUID

import pytest

from cognizes.engine import ConcurrencyConflictError, Engine


async def test_reads_see_pending_writes_and_nobody_else_does(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user", state={"count": 0, "old": 1, "user:lang": "en"})
    async with engine.sessions.invocation(session, author="agent", invocation_id="i1") as state:
        state["count"] = 100
        assert state["count"] == 100
        state["count"] += 1
        del state["old"]
        state["user:lang"] = "fr"
        state["temp:scratch"] = [1]
        assert "old" not in state
        assert dict(state) == {"count": 101, "user:lang": "fr", "temp:scratch": [1]}
        assert len(state) == 3
        with pytest.raises(KeyError):
            state["old"]
        with pytest.raises(KeyError):
            del state["nobody"]
        other = await engine.sessions.get("app", "user", session.id)
        assert other is not None
        assert other.state == {"count": 0, "old": 1, "user:lang": "en"}
        assert session.state == {"count": 0, "old": 1, "user:lang": "en"}
    stored = await engine.sessions.get("app", "user", session.id)
    assert stored is not None
    assert stored.state == session.state == {"count": 101, "user:lang": "fr"}
    (event,) = await engine.sessions.events(session)
    assert (event.invocation_id, event.author) == ("i1", "agent")
    assert "temp:scratch" not in event.actions["state_delta"]


async def test_an_exception_throws_it_away(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user", state={"count": 0})
    with pytest.raises(RuntimeError):
        async with engine.sessions.invocation(session) as state:
            state["count"] = 1
            raise RuntimeError("crash")
    assert state.pending == {}
    assert session.state == {"count": 0}
    assert await engine.sessions.events(session) == []


async def test_an_invocation_that_changes_nothing_is_no_event(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    async with engine.sessions.invocation(session) as state:
        assert state.get("nobody") is None
    assert await engine.sessions.events(session) == []


async def test_what_was_read_may_not_hold_any_more(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user", state={"count": 0})
    with pytest.raises(ConcurrencyConflictError):
        async with engine.sessions.invocation(session) as state:
            state["count"] += 1
            other = await engine.sessions.get("app", "user", session.id)
            assert other is not None
            await engine.sessions.update(other, {"count": 7})
    assert len(await engine.manager.events.read(UUID(session.thread_id))) == 1
