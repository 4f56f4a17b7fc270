"""The three stores of seed 004, and episodes of runs."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime
from typing import Any

import pytest

from cognizes.engine import ConflictError, Engine, InvalidInputError, NotFoundError
from cognizes.engine.memory.episodic import EndedRun, EpisodicEntry
from cognizes.engine.memory.long_term import LongTermKey
from cognizes.engine.memory.records import MemoryScope
from cognizes.engine.memory.working import WorkingMemory
from tests.engine_parts import database_of

ADA = MemoryScope("shop", "ada")
ODD: list[Any] = [
    None,
    True,
    0,
    -0.0,
    1e300,
    2**70,
    "",
    "nul \x00, surrogate \ud800, escape \ue000",
    [],
    {},
    {"$float": "NaN", "b": {"$delete": True}, "a": [1, {"": None}]},
    {"z": 1, "a": "\u4f60\u597d"},
    float("inf"),
]


class TestScope:
    def test_the_agent_is_called_like_the_app_unless_it_has_a_name(self) -> None:
        assert ADA.agent_id == "shop"
        assert MemoryScope("shop", "ada", "clerk").agent_id == "clerk"

    @pytest.mark.parametrize("names", [("", "u"), ("a", " "), ("a", "x" * 1001), ("a\x00", "u"), ("a", "u", "\ud800")])
    def test_names_that_cannot_be_keys_are_refused(self, names: tuple[str, ...]) -> None:
        with pytest.raises(InvalidInputError):
            MemoryScope(*names)


class TestWorkingMemory:
    async def test_what_is_saved_is_loaded(self, engine: Engine) -> None:
        memory = WorkingMemory(
            agent_id="shop",
            session_id="s-1",
            messages=[{"role": "user", "content": "hi\x00"}],
            variables={"cart": ["tea"], "x": 1e300},
            tool_calls=[{"tool_name": "search", "input": {"q": 1}, "output": None, "at": "2026-01-01T00:00:00+00:00"}],
            scratchpad={"plan": ["a", "b"]},
            last_checkpoint={"sequence_num": 3, "version": 2},
        )
        saved = await engine.memory.working.save(ADA, memory)
        assert await engine.memory.working.load(ADA, "s-1") == saved
        assert saved.updated_at is not None
        assert WorkingMemory.from_json(saved.to_json()) == saved

    async def test_another_agent_user_app_or_session_has_its_own(self, engine: Engine) -> None:
        await engine.memory.working.save(ADA, WorkingMemory("shop", "s-1", scratchpad="mine"))
        for scope in (MemoryScope("shop", "bob"), MemoryScope("bank", "ada", "shop"), MemoryScope("shop", "ada", "x")):
            assert await engine.memory.working.load(scope, "s-1") is None
        assert await engine.memory.working.load(ADA, "s-2") is None

    async def test_the_scratchpad_alone_can_be_written(self, engine: Engine) -> None:
        await engine.memory.working.write_scratchpad(ADA, "s-1", "first")
        loaded = await engine.memory.working.load(ADA, "s-1")
        assert loaded is not None
        assert loaded.scratchpad == "first"
        await engine.memory.working.save(ADA, WorkingMemory("shop", "s-1", variables={"a": 1}))
        await engine.memory.working.write_scratchpad(ADA, "s-1", None)
        loaded = await engine.memory.working.load(ADA, "s-1")
        assert loaded is not None
        assert (loaded.scratchpad, loaded.variables) == (None, {"a": 1})

    async def test_it_is_deleted_with_its_session(self, engine: Engine) -> None:
        session = await engine.sessions.create("shop", "ada")
        await engine.memory.working.save(ADA, WorkingMemory("shop", session.id))
        await engine.memory.working.save(ADA, WorkingMemory("shop", "no-such-session"))
        await engine.sessions.delete(session)
        assert await engine.memory.working.load(ADA, session.id) is None
        assert await engine.memory.working.delete(ADA, "no-such-session")
        assert not await engine.memory.working.delete(ADA, "no-such-session")

    def test_an_invalid_working_memory_is_refused(self) -> None:
        with pytest.raises(InvalidInputError, match="working memory"):
            WorkingMemory.from_json({"agent_id": "a"})


class TestLongTermMemory:
    async def test_any_json_comes_back_as_it_was(self, engine: Engine) -> None:
        for value in ODD:
            await engine.memory.long_term.set(ADA, "facts", "k", value)
            found = await engine.memory.long_term.get(ADA, "facts", "k")
            assert found is not None
            assert found.value == value
            assert type(found.value) is type(value)
            if isinstance(value, float) and value == 0:
                assert math.copysign(1, found.value) < 0

    async def test_the_newest_write_wins_and_keys_of_other_namespaces_stay(self, engine: Engine) -> None:
        store = engine.memory.long_term
        await store.set(ADA, "a", "k", 1)
        await store.set(ADA, "b", "k", 2)
        second = await store.set(ADA, "a", "k", 3)
        assert [(e.namespace, e.value) for e in await store.list_by_agent(ADA)] == [("a", 3), ("b", 2)]
        assert await store.list_by_agent(ADA, "a") == [second]
        assert await store.list_by_agent(ADA, limit=1) == [second]
        assert await store.delete(ADA, "a", "k")
        assert not await store.delete(ADA, "a", "k")
        assert await store.get(ADA, "a", "k") is None
        assert [e.value for e in await store.list_by_agent(ADA)] == [2]

    async def test_other_owners_do_not_see_it(self, engine: Engine) -> None:
        await engine.memory.long_term.set(ADA, "", "k", 1)
        for scope in (MemoryScope("shop", "bob"), MemoryScope("bank", "ada", "shop"), MemoryScope("shop", "ada", "x")):
            assert await engine.memory.long_term.get(scope, "", "k") is None
            assert await engine.memory.long_term.list_by_agent(scope) == []
            assert not await engine.memory.long_term.delete(scope, "", "k")

    async def test_long_names_are_keys_like_any_other(self, engine: Engine) -> None:
        name = "n" * 100_000
        await engine.memory.long_term.set(ADA, name, name, "v")
        found = await engine.memory.long_term.get(ADA, name, name)
        assert found is not None
        assert (found.namespace, found.key, found.value) == (name, name, "v")

    async def test_concurrent_writers_of_one_key_leave_one_value(self, engine: Engine) -> None:
        await asyncio.gather(*(engine.memory.long_term.set(ADA, "", "k", n) for n in range(20)))
        (entry,) = await engine.memory.long_term.list_by_agent(ADA)
        assert entry.value in range(20)
        assert await database_of(engine).pool.fetchval("SELECT memories FROM memory_scopes") == 1

    async def test_many_keys_come_in_the_order_asked_for(self, engine: Engine) -> None:
        for key in ("a", "b", "c"):
            await engine.memory.long_term.set(ADA, "", key, key)
        wanted = [LongTermKey("", "c"), LongTermKey("", "gone"), LongTermKey("", "a")]
        assert [entry.key for entry in await engine.memory.long_term.get_many(ADA, wanted)] == ["c", "a"]

    async def test_a_key_without_a_name_and_a_list_without_items_are_refused(self, engine: Engine) -> None:
        with pytest.raises(InvalidInputError):
            await engine.memory.long_term.set(ADA, "", "", 1)
        with pytest.raises(InvalidInputError):
            await engine.memory.long_term.list_by_agent(ADA, limit=0)
        with pytest.raises(InvalidInputError):
            await engine.memory.long_term.set(ADA, "", "k", object())


class TestEpisodicMemory:
    async def test_newest_first_by_agent_and_by_session(self, engine: Engine) -> None:
        store = engine.memory.episodic
        first = await store.append(EpisodicEntry(ADA, "one", session_id="s-1", payload={"z": 1, "a": "\x00"}))
        second = await store.append(EpisodicEntry(ADA, "two", session_id="s-2", run_id="r"))
        third = await store.append(EpisodicEntry(ADA, "three \x00"))
        await store.append(EpisodicEntry(MemoryScope("shop", "bob"), "other"))
        assert await store.list_by_agent(ADA) == [third, second, first]
        assert await store.list_by_agent(ADA, limit=2) == [third, second]
        assert await store.list_by_session(ADA, "s-1") == [first]
        assert EpisodicEntry.from_json(second.to_json()) == second

    async def test_one_id_is_kept_once_as_it_was_first(self, engine: Engine) -> None:
        first = await engine.memory.episodic.append(EpisodicEntry(ADA, "one", id="e"))
        assert await engine.memory.episodic.append(EpisodicEntry(ADA, "another", id="e")) == first
        assert await engine.memory.episodic.list_by_agent(ADA) == [first]
        other = MemoryScope("shop", "bob")
        await engine.memory.episodic.append(EpisodicEntry(other, "bob's", id="e"))
        assert [entry.summary for entry in await engine.memory.episodic.list_by_agent(other)] == ["bob's"]

    async def test_deleting(self, engine: Engine) -> None:
        entry = await engine.memory.episodic.append(EpisodicEntry(ADA, "one", created_at=datetime.now(UTC)))
        assert not await engine.memory.episodic.delete(MemoryScope("shop", "bob"), entry.id)
        assert await engine.memory.episodic.delete(ADA, entry.id)
        assert not await engine.memory.episodic.delete(ADA, entry.id)
        assert await database_of(engine).pool.fetchval("SELECT count(*) FROM memories") == 0


async def ended_run(engine: Engine, *answers: str, error: str | None = None) -> tuple[str, str]:
    session = await engine.sessions.create("shop", "ada")
    await engine.sessions.append(session, author="user", kind="user_message", text="where is my order?")
    run = await engine.runs.create(session, running=True)
    for answer in answers:
        await engine.sessions.append(session, author="agent", kind="assistant_message", text=answer, run_id=run.id)
    if error is None:
        await engine.runs.finish(run.thread_id, run.id)
    else:
        await engine.runs.fail(run.thread_id, run.id, error=error)
    return run.thread_id, run.id


class TestEpisodesOfRuns:
    async def test_the_first_lines_of_the_final_answer(self, engine: Engine) -> None:
        thread_id, run_id = await ended_run(engine, "let me look", "On its way.\n\nIt left\non Monday.\nBye.")
        entry = await engine.memory.remember_run(thread_id, run_id)
        assert entry.summary == "On its way.\nIt left\non Monday."
        assert (entry.run_id, entry.payload["question"], entry.payload["status"]) == (
            run_id,
            "where is my order?",
            "completed",
        )
        assert await engine.memory.episodic.list_by_session(ADA, entry.session_id or "") == [entry]

    async def test_a_run_has_one_episode(self, engine: Engine) -> None:
        thread_id, run_id = await ended_run(engine, "yes")
        entries = await asyncio.gather(*(engine.memory.remember_run(thread_id, run_id) for _ in range(5)))
        assert len({entry.id for entry in entries}) == 1
        assert len(await engine.memory.episodic.list_by_agent(ADA)) == 1

    async def test_a_summariser_replaces_the_first_lines(self, engine: Engine) -> None:
        async def summarise(run: EndedRun) -> str:
            return f"{run.status}: {run.answer}"

        engine.memory.episodic.summariser = summarise
        assert (await engine.memory.remember_run(*await ended_run(engine, "yes"))).summary == "completed: yes"

    async def test_a_failed_run_says_why_and_one_without_an_answer_is_empty(self, engine: Engine) -> None:
        entry = await engine.memory.remember_run(*await ended_run(engine, "half", error="boom"))
        assert entry.summary == "failed: boom\nhalf"
        assert (await engine.memory.remember_run(*await ended_run(engine))).summary == ""

    async def test_a_long_answer_is_cut(self, engine: Engine) -> None:
        entry = await engine.memory.remember_run(*await ended_run(engine, "word " * 1000))
        assert len(entry.summary) <= 500
        assert entry.summary.endswith("…")

    async def test_the_episode_of_a_retried_run_describes_its_last_end(self, engine: Engine) -> None:
        session = await engine.sessions.create("shop", "ada")
        run = await engine.runs.enqueue(session, "work")
        with pytest.raises(ConflictError, match="pending"):
            await engine.memory.remember_run(run.thread_id, run.id)
        (first,) = await engine.runs.claim(["work"])
        await engine.runs.remember(await engine.runs.fail(first, error="boom"))
        assert [entry.summary for entry in await engine.memory.episodic.list_by_agent(ADA)] == ["failed: boom"]
        await engine.runs.retry(run.thread_id, run.id)
        (second,) = await engine.runs.claim(["work"])
        await engine.sessions.append(session, author="a", kind="assistant_message", text="done", run_id=run.id)
        await engine.runs.remember(await engine.runs.finish(second))
        assert [entry.summary for entry in await engine.memory.episodic.list_by_agent(ADA)] == ["done"]
        hits = await engine.memory.recall("boom", app="shop", user="ada")
        assert not any("boom" in hit.text for hit in hits)

    async def test_an_unknown_run(self, engine: Engine) -> None:
        session = await engine.sessions.create("shop", "ada")
        with pytest.raises(NotFoundError):
            await engine.memory.remember_run(session.thread_id, "no-such-run")


async def test_writing_and_forgetting_at_once_never_deadlocks(engine: Engine) -> None:
    """Every function that writes a user's memories takes its locks in one order."""

    async def write(number: int) -> None:
        for _ in range(5):
            await engine.memory.long_term.set(ADA, "", str(number % 3), f"tea {number}")

    async def forget() -> None:
        for _ in range(5):
            for record in await engine.memory.list("shop", "ada"):
                await engine.memory.forget("shop", "ada", record.id)

    await asyncio.gather(*(write(number) for number in range(6)), forget(), forget())
    row = await database_of(engine).pool.fetchrow("SELECT memories, total_length FROM memory_scopes")
    assert row is not None
    assert row["memories"] == await database_of(engine).pool.fetchval("SELECT count(*) FROM memories")
    assert row["memories"] == await database_of(engine).pool.fetchval("SELECT count(*) FROM agent_long_term_memory")
