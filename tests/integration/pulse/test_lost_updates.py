"""A change that was computed from a state is stored on that state, or not at all."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from uuid import UUID

import pytest

from cognizes.engine import ConcurrencyConflictError, Engine, Event, Session
from tests.engine_parts import database_of


def message(event_id: str = "", **delta: Any) -> Event:
    return Event(
        id=event_id,
        thread_id="",
        invocation_id="i",
        author="agent",
        event_type="message",
        actions={"state_delta": delta} if delta else {},
    )


async def stored_state(engine: Engine, session: Session) -> dict[str, Any]:
    return (await engine.sessions.store.get_thread(session.thread_id)).state


async def test_a_function_that_waits_while_its_session_changes_is_asked_again(engine: Engine) -> None:
    """The object moves on under the function; the version it carries afterwards is not the one that was read."""
    session = await engine.sessions.create("app", "user", state={"n": 1})
    seen: list[int] = []

    async def double(state: dict[str, Any]) -> dict[str, Any]:
        seen.append(state["n"])
        if len(seen) == 1:
            await engine.sessions.append_event(session, message(n=10))
        return {"n": state["n"] * 2}

    await engine.sessions.update(session, double)
    assert seen == [1, 10]
    assert await stored_state(engine, session) == session.state == {"n": 20}


@pytest.mark.parametrize("key", ["n", "user:n", "app:n"])
async def test_a_function_whose_append_waits_its_turn_is_asked_again(engine: Engine, key: str) -> None:
    """Another task's append on the same object is under way: the turn comes with another version than was read."""
    session = await engine.sessions.create("app", "user", state={key: 1})
    seen: list[int] = []

    def double(state: dict[str, Any]) -> dict[str, Any]:
        seen.append(state[key])
        return {key: state[key] * 2}

    appending = asyncio.create_task(engine.sessions.append_event(session, message(**{key: 10})))
    await asyncio.sleep(0)  # it has its turn now, and cannot have its answer yet
    await engine.sessions.update(session, double)
    await appending
    assert seen == [1, 10]
    assert await stored_state(engine, session) == session.state == {key: 20}


@pytest.mark.parametrize("scope", ["user:", "app:"])
async def test_two_invocations_of_two_sessions_cannot_both_count(engine: Engine, scope: str) -> None:
    """A wider scope changes without the version of the thread: what was read of it may not hold any more."""
    key = f"{scope}n"
    one = await engine.sessions.create("app", "user", state={key: 1})
    two = await engine.sessions.create("app", "user")
    with pytest.raises(ConcurrencyConflictError):
        async with engine.sessions.invocation(one) as state:
            state[key] += 1
            async with engine.sessions.invocation(two) as other:
                other[key] += 1
    assert (await stored_state(engine, one))[key] == 2


async def test_an_invocation_knows_wider_scopes_after_its_own_writes(engine: Engine) -> None:
    """A plain append leaves it open which version of the user's state the object shows; that is no conflict."""
    session = await engine.sessions.create("app", "user", state={"user:n": 1})
    other = await engine.sessions.create("app", "user")
    await engine.sessions.append_event(session, message(**{"user:m": 1}))
    await engine.sessions.append_event(other, message(**{"user:n": 5}))
    async with engine.sessions.invocation(session) as state:
        state["user:n"] += 1
    assert (await stored_state(engine, session))["user:n"] == 6


async def test_an_invocation_notices_another_task_on_its_own_object(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user", state={"n": 1})
    with pytest.raises(ConcurrencyConflictError):
        async with engine.sessions.invocation(session) as state:
            read = state["n"]
            await engine.sessions.append_event(session, message(n=10))
            state["n"] = read + 1
    assert await stored_state(engine, session) == session.state == {"n": 10}


async def test_an_invocation_may_append_what_it_did_not_read(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user", state={"n": 1})
    async with engine.sessions.invocation(session) as state:
        state["n"] += 1
        await engine.sessions.append_event(session, message(m=1))
        assert state["m"] == 1
        state["m"] += 1
    assert await stored_state(engine, session) == session.state == {"n": 2, "m": 2}


async def test_refreshing_never_takes_an_object_back(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row was read before the append of another task, and arrives after its answer."""
    session = await engine.sessions.create("app", "user", state={"n": 1})
    read = engine.sessions.store.get_thread
    reads = 0

    async def read_late(thread_id: str | UUID) -> Session:
        nonlocal reads
        reads += 1
        old = await read(thread_id)
        if reads == 1:
            await engine.sessions.append_event(session, message(n=2))
        return old

    monkeypatch.setattr(engine.sessions.store, "get_thread", read_late)
    await engine.sessions.refresh(session)
    assert (session.version, session.state, session.last_sequence) == (2, {"n": 2}, 1)
    await engine.sessions.append_event(session, message(n=3))


def count_sessions(session: Session) -> int:
    """Return the number of objects in memory with the id of a session."""
    gc.collect()
    return sum(type(item) is Session and item.thread_id == session.thread_id for item in gc.get_objects())


async def test_catching_up_with_the_task_before_leaves_the_rest_of_the_object_alone(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user", state={"n": 0}, title="old")
    copies = [await engine.sessions.store.get_thread(session.thread_id) for _ in range(5)]
    renamed = copies[-1]
    await engine.sessions.change(renamed, title="new")
    await asyncio.gather(*(engine.sessions.update(copy, lambda state: {"n": state["n"] + 1}) for copy in copies))
    assert await stored_state(engine, session) == {"n": 5}
    assert renamed.title == "new"
    assert count_sessions(session) == 1 + len(copies)


async def test_what_the_one_before_knew_is_forgotten_when_the_last_one_fails(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user", state={"n": 0})

    def fail(_: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("no")

    good = asyncio.create_task(engine.sessions.update(session, {"n": 1}))
    bad = asyncio.create_task(engine.sessions.update(session, fail))
    await good
    with pytest.raises(ValueError, match="no"):
        await bad
    assert count_sessions(session) == 1


async def test_tasks_that_share_a_rebuilt_object_keep_the_order_of_their_calls(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of the thread has to be looked up first; the caller that is answered first there must not overtake."""
    created = await engine.sessions.create("app", "user", session_id="mine")
    rebuilt = Session(id="mine", app_name="app", user_id="user", version=created.version)
    find = database_of(engine).fetch_value
    finding = asyncio.Event()
    lookups = 0

    async def find_late(query: str, *arguments: Any) -> Any:
        nonlocal lookups
        lookups += 1
        if lookups == 1:
            await asyncio.wait_for(finding.wait(), 60)
        return await find(query, *arguments)

    monkeypatch.setattr(database_of(engine), "fetch_value", find_late)
    first = asyncio.create_task(engine.sessions.append_event(rebuilt, message("first")))
    await asyncio.sleep(0)
    second = asyncio.create_task(engine.sessions.append_event(rebuilt, message("second", n=1)))
    asyncio.get_running_loop().call_later(0.2, finding.set)
    await asyncio.gather(first, second)
    events = await engine.sessions.log.read(UUID(created.thread_id))
    assert [event.id for event in events] == ["first", "second"]


@pytest.mark.parametrize("reads", ["get", "refresh"])
async def test_tasks_that_retry_after_a_conflict_queue(engine: Engine, reads: str) -> None:
    queue = engine.sessions.retry_queue
    queue.longest_hold = queue.longest_wait = 600.0
    created = await engine.sessions.create("app", "user", state={"n": 0})
    copies = [await engine.sessions.get("app", "user", created.id) for _ in range(10)]
    attempts = 0

    async def write(session: Session | None) -> None:
        nonlocal attempts
        for _ in range(5):
            while True:
                assert session is not None
                attempts += 1
                try:
                    await engine.sessions.append_event(session, message(n=session.state["n"] + 1))
                    break
                except ConcurrencyConflictError:
                    if reads == "refresh":
                        await engine.sessions.refresh(session)
                    else:
                        session = await engine.sessions.get("app", "user", created.id)

    await asyncio.gather(*map(write, copies))
    assert await stored_state(engine, created) == {"n": 50}
    # Each of the other nine has one conflict, with the writer that was first.
    assert attempts <= 50 + 9
