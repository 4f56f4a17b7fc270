"""Branches without copying."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import pytest

from cognizes.engine import ConflictError, Engine, InvalidInputError, NotFoundError, Session
from cognizes.engine.pulse.session_store import thread_uuid
from tests.engine_parts import database_of


async def say(engine: Engine, session: Session, text: str, **more: Any) -> int:
    """A user's message by a writer that holds no session object: a switch changes the state behind its back."""
    fresh = await engine.sessions.store.get_thread(session.thread_id)
    event = await engine.sessions.append(fresh, author="user", kind="user_message", text=text, **more)
    return event.sequence_num or 0


async def texts(engine: Engine, session: Session, branch: str | None = None) -> list[str]:
    page = await engine.contexts.messages(session.thread_id, branch=branch)
    shown = await engine.timeline.read(session.thread_id, branch=branch)
    found = [message.content[0]["text"] for message in page.messages]
    assert [item["content"] for item in shown.items] == found
    assert page.total == len(found)
    return found


async def test_a_branch_shows_the_past_up_to_the_fork_and_its_own(engine: Engine, session: Session) -> None:
    one = await say(engine, session, "one")
    await say(engine, session, "two")
    branch = await engine.branches.create(session.thread_id, "other", at_sequence=one)
    assert (branch.parent, branch.forked_at, branch.is_active) == ("main", one, False)
    assert await texts(engine, session, "other") == ["one"]
    assert (await engine.contexts.metadata(session.thread_id)).active_branch_name == "main"

    assert (await engine.branches.switch(session.thread_id, "other")).is_active
    await say(engine, session, "three")
    await engine.branches.switch(session.thread_id, "main")
    await say(engine, session, "four")
    assert await texts(engine, session, "main") == ["one", "two", "four"] == await texts(engine, session)
    assert await texts(engine, session, "other") == ["one", "three"]
    await engine.branches.switch(session.thread_id, "other")
    await say(engine, session, "five")
    assert await texts(engine, session) == ["one", "three", "five"]
    metadata = await engine.contexts.metadata(session.thread_id)
    assert (metadata.active_branch_name, metadata.message_count) == ("other", 3)


async def test_nothing_is_copied(engine: Engine, session: Session) -> None:
    for number in range(20):
        await say(engine, session, str(number))
    before = await database_of(engine).pool.fetchval("SELECT count(*) FROM messages")
    await engine.branches.create(session.thread_id, "other")
    await engine.branches.switch(session.thread_id, "other")
    assert await database_of(engine).pool.fetchval("SELECT count(*) FROM messages") == before
    rows = await database_of(engine).pool.fetch("SELECT event_type FROM events ORDER BY sequence_num DESC LIMIT 2")
    assert [row["event_type"] for row in rows] == ["branch_switched", "branch_created"]


async def test_branches_of_branches(engine: Engine, session: Session) -> None:
    await say(engine, session, "main 1")
    await engine.branches.create(session.thread_id, "a")
    await engine.branches.switch(session.thread_id, "a")
    first = await say(engine, session, "a 1")
    await say(engine, session, "a 2")
    # An event of `a`: the new branch is a child of `a`, also when another one is active.
    await engine.branches.switch(session.thread_id, "main")
    await say(engine, session, "main 2")
    child = await engine.branches.create(session.thread_id, "b", at_sequence=first)
    assert child.parent == "a"
    await engine.branches.switch(session.thread_id, "b")
    await say(engine, session, "b 1")
    assert await texts(engine, session, "b") == ["main 1", "a 1", "b 1"]
    assert await texts(engine, session, "a") == ["main 1", "a 1", "a 2"]
    empty = await engine.branches.create(session.thread_id, "empty", at_sequence=0)
    assert (empty.parent, await texts(engine, session, "empty")) == ("main", [])


async def test_switching_restores_the_state_of_the_session(engine: Engine, session: Session) -> None:
    thread = session.thread_id
    await say(engine, session, "x", state={"n": 1, "gone": True, "user:lang": "en"})
    fork = await say(engine, session, "y", state={"n": 2, "only_main": 1.0})
    await engine.branches.create(thread, "other", at_sequence=fork - 1)
    await engine.branches.switch(thread, "other")
    state = (await engine.sessions.store.get_thread(thread)).state
    assert state == {"n": 1, "gone": True, "user:lang": "en"}
    await say(engine, session, "z", state={"n": 10, "user:lang": "fr"})
    assert (await engine.branches.state(thread, "main")).state == {
        "n": 2, "gone": True, "only_main": 1.0, "user:lang": "en",
    }  # fmt: skip
    assert (await engine.branches.state(thread)).state["n"] == 10
    await engine.branches.switch(thread, "main")
    # What is the user's is of no branch.
    state = (await engine.sessions.store.get_thread(thread)).state
    assert state == {"n": 2, "gone": True, "only_main": 1.0, "user:lang": "fr"}
    assert (await engine.branches.state(thread, "other")).state["n"] == 10


async def test_switching_while_others_change_the_state(engine: Engine, session: Session) -> None:
    thread = session.thread_id
    await say(engine, session, "x", state={"n": 0})
    await engine.branches.create(thread, "other")

    async def write(number: int) -> None:
        own = await engine.sessions.store.get_thread(thread)
        await engine.sessions.update(own, lambda state: {f"key {number}": number})

    async def switch() -> None:
        for name in ("other", "main"):
            await engine.branches.switch(thread, name)

    await asyncio.gather(switch(), *(write(number) for number in range(20)))
    # Every write is on the branch that was active when it was committed; together they are all there.
    found: dict[str, Any] = {}
    for name in ("other", "main"):
        found |= (await engine.branches.state(thread, name)).state
    assert {f"key {number}" for number in range(20)} <= set(found)
    active = await engine.branches.state(thread)
    assert active.state == (await engine.sessions.store.get_thread(thread)).state


async def test_switching_is_refused_while_a_run_or_a_stream_is_active(engine: Engine, session: Session) -> None:
    thread = session.thread_id
    await say(engine, session, "x")
    await engine.branches.create(thread, "other")
    async with engine.runs.start(session):
        with pytest.raises(ConflictError, match="run"):
            await engine.branches.switch(thread, "other")
    async with engine.stream_message(session) as message:
        await message.write("hello")
        with pytest.raises(ConflictError, match="streamed"):
            await engine.branches.switch(thread, "other")
    assert (await engine.branches.switch(thread, "other")).is_active
    assert await texts(engine, session) == ["x"]
    assert await texts(engine, session, "main") == ["x", "hello"]


async def test_deleting(engine: Engine, session: Session) -> None:
    thread = session.thread_id
    await say(engine, session, "x")
    await engine.branches.create(thread, "a")
    await engine.branches.switch(thread, "a")
    lost = await say(engine, session, "on a")
    await engine.branches.create(thread, "child")
    with pytest.raises(ConflictError, match="active"):
        await engine.branches.delete(thread, "a")
    await engine.branches.switch(thread, "main")
    with pytest.raises(ConflictError, match="child"):
        await engine.branches.delete(thread, "a")
    with pytest.raises(ConflictError, match="main"):
        await engine.branches.delete(thread, "main")
    await engine.branches.delete(thread, "child")
    await engine.branches.delete(thread, "a")
    assert [branch.name for branch in await engine.branches.list(thread)] == ["main"]
    assert await texts(engine, session) == ["x"]
    with pytest.raises(NotFoundError):
        await engine.contexts.messages(thread, branch="a")
    with pytest.raises(NotFoundError, match="deleted"):
        await engine.branches.create(thread, "again", at_sequence=lost)
    # A new branch of the old name has nothing of the old one.
    await engine.branches.create(thread, "a")
    assert await texts(engine, session, "a") == ["x"]


async def test_a_fork_of_the_session_has_its_branches(engine: Engine, session: Session) -> None:
    await say(engine, session, "x")
    await engine.branches.create(session.thread_id, "a")
    await engine.branches.switch(session.thread_id, "a")
    await say(engine, session, "on a")
    fork = await engine.sessions.fork(await engine.sessions.store.get_thread(session.thread_id))
    assert await texts(engine, fork) == ["x", "on a"]
    assert await texts(engine, fork, "main") == ["x"]
    await engine.branches.switch(fork.thread_id, "main")
    assert (await engine.branches.get(session.thread_id)).name == "a"


async def test_branches_are_nested_up_to_a_depth(engine: Engine, session: Session) -> None:
    await say(engine, session, "one")
    for depth in range(100):
        await engine.branches.create(session.thread_id, f"level {depth}")
        await engine.branches.switch(session.thread_id, f"level {depth}")
    last = await say(engine, session, "two")
    with pytest.raises(ConflictError, match="nested 100 deep"):
        await engine.branches.create(session.thread_id, "one more")
    assert await texts(engine, session) == ["one", "two"]
    # Nothing was written, and branches of earlier events can still be made.
    session = await engine.sessions.store.get_thread(session.thread_id)
    assert session.last_sequence == last
    branch = await engine.branches.create(session.thread_id, "of main", at_sequence=1)
    assert (branch.parent, branch.forked_at, branch.tip_sequence) == ("main", 1, 1)


async def test_the_tip_of_a_branch_is_the_newest_event_that_it_shows(engine: Engine, session: Session) -> None:
    dice = random.Random(7)
    names = ["main"]
    for number in range(40):
        last = await say(engine, session, str(number))
        match dice.randrange(4):
            case 0:
                names.append(f"branch {number}")
                await engine.branches.create(session.thread_id, names[-1], at_sequence=dice.randrange(last))
            case 1:
                await engine.branches.switch(session.thread_id, dice.choice(names))
    listed = await engine.branches.list(session.thread_id)
    assert sorted(branch.name for branch in listed) == sorted(names)
    end = (await engine.sessions.store.get_thread(session.thread_id)).last_sequence
    for branch in listed:
        shown = await database_of(engine).pool.fetchval(
            "SELECT max(last_sequence) FROM branch_path($1, $2)", thread_uuid(session.thread_id), branch.name
        )
        assert branch.tip_sequence == min(shown, end), branch


async def test_bad_input(engine: Engine, session: Session) -> None:
    thread = session.thread_id
    await say(engine, session, "x")
    await engine.branches.create(thread, "a")
    for name in ("a", "main"):
        with pytest.raises(ConflictError):
            await engine.branches.create(thread, name)
    for name in ("", " ", "x" * 201, "\x00"):
        with pytest.raises(InvalidInputError):
            await engine.branches.create(thread, name)
    with pytest.raises(InvalidInputError):
        await engine.branches.create(thread, "b", at_sequence=-1)
    with pytest.raises(NotFoundError):
        await engine.branches.create(thread, "b", at_sequence=99)
    for call in (engine.branches.switch, engine.branches.delete, engine.branches.state):
        with pytest.raises(NotFoundError):
            await call(thread, "nowhere")
    with pytest.raises(NotFoundError):
        await engine.branches.list("00000000-0000-7000-8000-000000000000")


async def test_over_http(engine: Engine, session: Session, client: httpx.AsyncClient) -> None:
    path = f"/contexts/{session.thread_id}/branches"
    at = await say(engine, session, "x", state={"n": 1})
    created = await client.post(path, json={"name": "a/b", "at_sequence": at})
    assert (created.status_code, created.json()["forked_at"]) == (201, at)
    assert (await client.post(path, json={"name": "a/b"})).status_code == 409
    assert (await client.put(f"{path}/active", json={"name": "a/b"})).json()["is_active"] is True
    listed = (await client.get(f"/v1{path}")).json()["branches"]
    assert [(branch["name"], branch["is_active"]) for branch in listed] == [("main", False), ("a/b", True)]
    assert (await client.get(f"{path}/main/state")).json()["state"] == {"n": 1}
    assert (await client.put(f"{path}/active", json={"name": "nowhere"})).status_code == 404
    assert (await client.put(f"{path}/active", json={"name": "main"})).status_code == 200
    assert (await client.delete(f"{path}/a/b")).status_code == 204
    assert (await client.delete(f"{path}/a/b")).status_code == 404
    assert (await client.delete(f"{path}/main")).status_code == 409
