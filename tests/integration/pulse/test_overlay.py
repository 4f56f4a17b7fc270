"""The overlay: only an invocation reads its own pending writes, and its end stores them as one event."""

from __future__ import annotations

import asyncio
import signal
import sys
from uuid import UUID

import pytest

from cognizes.engine import ConcurrencyConflictError, Engine


async def test_only_the_invocation_sees_pending_writes(engine: Engine) -> None:
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
            del state["unknown"]
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


_INVOCATION = """
import asyncio, sys
from cognizes.engine import Engine

async def main(url, session_id):
    async with Engine.open(url) as engine:
        session = await engine.sessions.get("app", "user", session_id)
        async with engine.sessions.invocation(session, invocation_id="killed") as state:
            state["count"] = 100
            state["user:lang"] = "fr"
            del state["old"]
            assert dict(state) == {"count": 100, "user:lang": "fr"}, dict(state)
            print("pending", flush=True)
            await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_kill_9_in_the_middle_of_an_invocation_leaves_nothing(engine: Engine, database_url: str) -> None:
    """Seed 000 §2.6.2: a process that crashes loses its scratchpad; the database holds what it held before."""
    state = {"count": 0, "old": 1, "user:lang": "en"}
    session = await engine.sessions.create("app", "user", state=state)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _INVOCATION, database_url, session.id, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert await asyncio.wait_for(process.stdout.readline(), 60) == b"pending\n"
    finally:
        process.kill()
        assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    stored = await engine.sessions.get("app", "user", session.id)
    assert stored is not None
    assert (stored.state, stored.version) == (state, session.version)
    assert await engine.sessions.events(session) == []
    # The process left no lock: the next invocation commits.
    async with engine.sessions.invocation(stored) as overlay:
        overlay["count"] += 1
    assert stored.state == {**state, "count": 1}
    assert [event.invocation_id for event in await engine.sessions.events(stored)] != ["killed"]


async def test_an_invocation_that_changes_nothing_is_no_event(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    async with engine.sessions.invocation(session) as state:
        assert state.get("unknown") is None
    assert await engine.sessions.events(session) == []


async def test_what_was_read_may_not_hold_any_more(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user", state={"count": 0})
    with pytest.raises(ConcurrencyConflictError):
        async with engine.sessions.invocation(session) as state:
            state["count"] += 1
            other = await engine.sessions.get("app", "user", session.id)
            assert other is not None
            await engine.sessions.update(other, {"count": 7})
    assert len(await engine.sessions.log.read(UUID(session.thread_id))) == 1
