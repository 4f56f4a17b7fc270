"""Memory snapshots: taken from a thread, applied once, emptiness included."""

from __future__ import annotations

import asyncio
import json

import pytest

from cognizes.engine import Engine, InvalidInputError, NotFoundError, Session
from cognizes.engine.memory.episodic import EpisodicEntry
from cognizes.engine.memory.long_term import LongTermKey
from cognizes.engine.memory.records import MemoryScope
from cognizes.engine.memory.snapshot import MemorySnapshot
from cognizes.engine.memory.working import WorkingMemory

ADA = MemoryScope("shop", "ada")


async def busy_session(engine: Engine) -> Session:
    session = await engine.sessions.create("shop", "ada", session_id="s-1", state={"cart": ["tea"], "user:lang": "en"})
    await engine.sessions.append(session, author="user", kind="user_message", text="hi \x00", state={"step": 1})
    run = await engine.runs.create(session, running=True)
    call = await engine.runs.call_tool(run.thread_id, run.id, "search", {"q": "tea"})
    await engine.runs.finish_tool(run.thread_id, run.id, call, ["green", float("inf")])
    await engine.memory.working.write_scratchpad(ADA, "s-1", {"plan": "wait"})
    await engine.sessions.refresh(session)
    return session


class TestTake:
    async def test_it_shows_the_thread(self, engine: Engine) -> None:
        session = await busy_session(engine)
        episode = await engine.memory.episodic.append(EpisodicEntry(ADA, "earlier"))
        snapshot = await engine.memory.snapshots.take(session, long_term_keys=[("facts", "a"), ("facts", "a")])
        memory = snapshot.working_memory
        assert (memory.agent_id, memory.session_id) == ("shop", "s-1")
        assert memory.variables == {"cart": ["tea"], "step": 1}
        assert memory.scratchpad == {"plan": "wait"}
        assert [(message["role"], message["content"]) for message in memory.messages] == [("user", "hi \x00")]
        (call,) = memory.tool_calls
        assert call["tool_name"] == "search"
        assert (call["input"], call["output"]) == ({"q": "tea"}, ["green", float("inf")])
        assert set(call) == {"tool_name", "input", "output", "at"}
        assert memory.last_checkpoint == {"sequence_num": session.last_sequence, "version": session.version}
        assert snapshot.episodic_tail == [episode]
        assert snapshot.long_term_keys == [LongTermKey("facts", "a")]

    async def test_it_survives_json(self, engine: Engine) -> None:
        await engine.memory.episodic.append(EpisodicEntry(ADA, "earlier", payload={"a": [1]}))
        snapshot = await engine.memory.snapshots.take(await busy_session(engine), long_term_keys=[("", "k")])
        assert MemorySnapshot.from_json(json.loads(json.dumps(snapshot.to_json()))) == snapshot

    async def test_the_newest_messages_and_episodes(self, engine: Engine) -> None:
        session = await engine.sessions.create("shop", "ada")
        for number in range(5):
            await engine.sessions.append(session, author="user", kind="user_message", text=str(number))
            await engine.memory.episodic.append(EpisodicEntry(ADA, str(number)))
        snapshot = await engine.memory.snapshots.take(session, messages=2, episodes=2)
        assert [message["content"] for message in snapshot.working_memory.messages] == ["3", "4"]
        assert [entry.summary for entry in snapshot.episodic_tail] == ["4", "3"]

    async def test_a_deleted_session(self, engine: Engine) -> None:
        session = await engine.sessions.create("shop", "ada")
        await engine.sessions.delete(session)
        with pytest.raises(NotFoundError):
            await engine.memory.snapshots.take(session)

    def test_an_invalid_snapshot_is_refused(self) -> None:
        with pytest.raises(InvalidInputError, match="memory snapshot"):
            MemorySnapshot.from_json({"episodic_tail": []})
        with pytest.raises(InvalidInputError, match="working memory"):
            MemorySnapshot.from_json({"working_memory": {}})


class TestApply:
    async def test_variables_and_scratchpad_become_those_of_the_snapshot(self, engine: Engine) -> None:
        session = await busy_session(engine)
        snapshot = await engine.memory.snapshots.take(session)
        await engine.sessions.update(session, {"cart": [], "late": True, "user:lang": "de"})
        await engine.memory.working.write_scratchpad(ADA, "s-1", "other")
        assert await engine.memory.snapshots.apply(session, snapshot)
        assert session.state == {"cart": ["tea"], "step": 1, "user:lang": "de"}
        stored = await engine.sessions.get("shop", "ada", "s-1")
        assert stored == session
        assert await engine.memory.working.load(ADA, "s-1") == snapshot.working_memory
        assert (await engine.memory.snapshots.take(session)).working_memory.scratchpad == {"plan": "wait"}

    async def test_it_is_applied_once(self, engine: Engine) -> None:
        session = await busy_session(engine)
        snapshot = await engine.memory.snapshots.take(session)
        await engine.sessions.update(session, {"cart": []})
        applied = await asyncio.gather(*(engine.memory.snapshots.apply(session, snapshot) for _ in range(5)))
        assert sorted(applied) == [False] * 4 + [True]
        await engine.sessions.update(session, {"cart": ["coffee"]})
        again = MemorySnapshot.from_json(snapshot.to_json())
        assert not await engine.memory.snapshots.apply(session, again)
        assert session.state["cart"] == ["coffee"]
        events = await engine.sessions.events(session)
        assert [event.event_type for event in events].count("memory_restored") == 1

    async def test_it_restores_emptiness(self, engine: Engine) -> None:
        session = await engine.sessions.create("shop", "ada")
        snapshot = await engine.memory.snapshots.take(session)
        await engine.sessions.update(session, {"a": 1, "b": {"c": 2}})
        await engine.memory.working.write_scratchpad(ADA, session.id, "notes")
        assert await engine.memory.snapshots.apply(session, snapshot)
        assert session.state == {}
        loaded = await engine.memory.working.load(ADA, session.id)
        assert loaded is not None
        assert loaded.scratchpad == ""

    async def test_newer_messages_stay(self, engine: Engine) -> None:
        session = await busy_session(engine)
        snapshot = await engine.memory.snapshots.take(session)
        await engine.sessions.append(session, author="user", kind="user_message", text="later")
        await engine.memory.snapshots.apply(session, snapshot)
        texts = [message.content for message in await engine.sessions.messages(session)]
        assert texts == ["hi \x00", "later"]
        now = (await engine.memory.snapshots.take(session)).working_memory
        assert [message["content"] for message in now.messages] == texts

    async def test_time_travel_knows_it(self, engine: Engine) -> None:
        session = await busy_session(engine)
        snapshot = await engine.memory.snapshots.take(session)
        await engine.sessions.update(session, {"late": 1e300, "cart": None})
        before = session.last_sequence
        await engine.memory.snapshots.apply(session, snapshot)
        assert (await engine.sessions.at(session, sequence=before)).state["late"] == 1e300
        assert (await engine.sessions.at(session, sequence=session.last_sequence)).state == session.state

    async def test_an_equal_snapshot_is_applied_once_and_changes_no_version(self, engine: Engine) -> None:
        session = await busy_session(engine)
        snapshot = await engine.memory.snapshots.take(session)
        version = session.version
        assert await engine.memory.snapshots.apply(session, snapshot)
        assert not await engine.memory.snapshots.apply(session, snapshot)
        assert session.version == version

    async def test_a_snapshot_of_another_session_is_refused(self, engine: Engine) -> None:
        session, other = [await engine.sessions.create("shop", "ada") for _ in range(2)]
        snapshot = await engine.memory.snapshots.take(session)
        with pytest.raises(InvalidInputError):
            await engine.memory.snapshots.apply(other, snapshot)
        await engine.sessions.delete(session)
        with pytest.raises(NotFoundError):
            await engine.memory.snapshots.apply(session, snapshot)

    async def test_long_term_keys_are_preloaded_as_they_are_now(self, engine: Engine) -> None:
        session = await engine.sessions.create("shop", "ada")
        await engine.memory.long_term.set(ADA, "facts", "a", "old")
        snapshot = await engine.memory.snapshots.take(session, long_term_keys=[("facts", "a"), ("facts", "gone")])
        await engine.memory.long_term.set(ADA, "facts", "a", "new")
        assert [entry.value for entry in await engine.memory.snapshots.preload(session, snapshot)] == ["new"]

    async def test_agents_of_one_session_have_separate_memories(self, engine: Engine) -> None:
        session = await engine.sessions.create("shop", "ada")
        clerk = MemoryScope("shop", "ada", "clerk")
        await engine.memory.working.save(clerk, WorkingMemory("clerk", session.id, scratchpad="clerk's"))
        snapshot = await engine.memory.snapshots.take(session, agent_id="clerk")
        await engine.memory.working.write_scratchpad(ADA, session.id, "the app's")
        await engine.memory.snapshots.apply(session, snapshot)
        loaded = await engine.memory.working.load(ADA, session.id)
        assert loaded is not None
        assert loaded.scratchpad == "the app's"
