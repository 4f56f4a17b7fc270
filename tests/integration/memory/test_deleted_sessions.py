"""A session that is deleted is gone from every table, and nothing brings it back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import httpx
import pytest
from google.adk.events.event import Event as AdkEvent
from google.adk.sessions.session import Session as AdkSession
from google.genai import types

from cognizes.engine import Engine, NotFoundError, Session
from cognizes.engine.adapters.adk import OpenMemoryService, OpenSessionService
from cognizes.engine.api.main import create_app
from cognizes.engine.memory.episodic import EpisodicEntry
from cognizes.engine.memory.records import MemoryScope, Remembered
from cognizes.engine.memory.working import WorkingMemory
from tests.engine_parts import database_of

_SECRET = "zugspitze"
_ADA = MemoryScope("shop", "ada")


async def _fill(engine: Engine, session: Session) -> None:
    """Writes the secret into everything that a session has."""
    content = {"text": f"my password is {_SECRET}"}
    await engine.sessions.append(session, author="user", kind="user_message", content=content, state={"k": _SECRET})
    await engine.sessions.append(session, author="user", kind="state_update", state={"user:lang": "en", "app:v": 1})
    await engine.sessions.snapshot(session)
    await engine.branches.create(session.thread_id, f"b-{_SECRET}")
    await engine.runs.enqueue(session, "work", input={"q": _SECRET})
    (run,) = await engine.runs.claim(["work"])
    await engine.runs.wait(run, kind="human", correlation_key=_SECRET, reason=_SECRET, payload_results={"a": _SECRET})
    await engine.runs.signal(run.id, correlation_key=_SECRET, payload=_SECRET)
    (run,) = await engine.runs.claim(["work"])
    await engine.runs.finish(run, result=_SECRET)
    await engine.memory.remember_run(run.thread_id, run.id)
    async with engine.stream_message(session, message_id=f"m-{_SECRET}") as message:
        await message.write(_SECRET)
    await engine.memory.remember_session(session)
    await engine.memory.remember(_ADA, [Remembered("n", f"note of {_SECRET}", session_id=session.id)])
    await engine.memory.episodic.append(EpisodicEntry(_ADA, _SECRET, session_id=session.id))
    await engine.memory.working.save(_ADA, WorkingMemory("shop", session.id, scratchpad=_SECRET))
    other_agent = MemoryScope("shop", "ada", "helper")
    await engine.memory.working.save(other_agent, WorkingMemory("helper", session.id, scratchpad=_SECRET))
    await database_of(engine).pool.execute(
        "INSERT INTO message_chunks (thread_id, message_id, sequence, app_name, delta, first_sequence) "
        "VALUES ($1, 'open', 1, 'shop', $2, 1)",
        session.thread_id,
        _SECRET,
    )
    queue = engine.memory.queue
    assert queue is not None
    await queue.work()


async def _tables_that_hold(engine: Engine, text: str) -> list[str]:
    tables = await database_of(engine).pool.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY 1"
    )
    return [
        name
        for (name,) in tables
        if await database_of(engine).pool.fetchval(
            f'SELECT EXISTS (SELECT FROM "{name}" t WHERE t::text LIKE $1)', f"%{text}%"
        )
    ]


async def _delete_in_python(engine: Engine, session: Session) -> None:
    assert await engine.sessions.delete(session)


async def _delete_over_rest(engine: Engine, session: Session) -> None:
    transport = httpx.ASGITransport(app=create_app(engine=engine, agents=[]))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        assert (await client.delete(f"/api/sessions/{session.thread_id}")).status_code == 204


async def _delete_by_adk(engine: Engine, session: Session) -> None:
    async with OpenSessionService(str(engine.settings.url)) as service:
        await service.delete_session(app_name=session.app_name, user_id=session.user_id, session_id=session.id)


@pytest.mark.parametrize("delete", [_delete_in_python, _delete_over_rest, _delete_by_adk])
async def test_nothing_of_a_deleted_session_is_left(
    database_url: str, delete: Callable[[Engine, Session], Awaitable[None]]
) -> None:
    async with Engine.open(database_url, memory_background=False) as engine:
        session = await engine.sessions.create("shop", "ada", title=_SECRET, metadata={"m": _SECRET})
        kept = await engine.sessions.create("shop", "ada", session_id="kept")
        await _fill(engine, session)
        await engine.sessions.append(kept, author="user", kind="user_message", text="I like the matterhorn")
        await engine.memory.remember_session(kept)
        await engine.memory.episodic.append(EpisodicEntry(_ADA, "matterhorn trip", session_id="kept"))
        await engine.memory.long_term.set(_ADA, "likes", "mountain", "matterhorn")
        await engine.memory.remember(_ADA, [Remembered("note", "the matterhorn is steep")])
        filled = await _tables_that_hold(engine, _SECRET)
        assert {"agent_episodic_chunks", "agent_states", "events", "memories", "message_chunks", "messages"} < set(
            filled
        )

        await delete(engine, session)

        assert await _tables_that_hold(engine, _SECRET) == []
        assert await engine.memory.recall(_SECRET, app="shop", user="ada") == []
        found = await engine.memory.recall("matterhorn", app="shop", user="ada")
        assert {hit.memory.kind for hit in found} == {"turn", "episodic", "long_term", "note"}
        reloaded = await engine.sessions.get("shop", "ada", "kept")
        assert reloaded is not None
        assert (reloaded.state["user:lang"], reloaded.state["app:v"]) == ("en", 1)
        counted = await database_of(engine).pool.fetchrow(
            "SELECT s.memories, (SELECT count(*) FROM memories) FROM memory_scopes s WHERE user_id = 'ada'"
        )
        assert counted[0] == counted[1] == 4


async def test_nothing_of_pruned_sessions_is_left(database_url: str) -> None:
    async with (
        Engine.open(database_url, memory_background=False) as engine,
        OpenSessionService(database_url) as service,
    ):
        for user in ("ada", "bob", "eve"):
            session = await engine.sessions.create("shop", user)
            await engine.sessions.append(session, author="user", kind="user_message", text=_SECRET)
            await engine.memory.remember_session(session)
        assert await service.prune_sessions(app_name="shop", older_than=timedelta(0)) == 3
        assert await _tables_that_hold(engine, _SECRET) == []


async def test_what_was_read_before_the_deletion_is_not_stored_after_it(engine: Engine) -> None:
    session = await engine.sessions.create("shop", "ada", session_id="s")
    await engine.sessions.append(session, author="user", kind="user_message", text=_SECRET, event_id="e1")
    turns = [Remembered("e1", _SECRET, session_id="s")]
    await engine.sessions.delete(session)

    assert await engine.memory.remember_turns(_ADA, turns) == 0
    assert await engine.memory.remember(_ADA, turns) == 0
    with pytest.raises(NotFoundError, match="session s was deleted"):
        await engine.memory.episodic.append(EpisodicEntry(_ADA, _SECRET, session_id="s"))
    with pytest.raises(NotFoundError, match="session 's' was deleted"):
        await engine.memory.working.save(_ADA, WorkingMemory("shop", "s", scratchpad=_SECRET))
    with pytest.raises(NotFoundError):
        await engine.memory.working.write_scratchpad(_ADA, "s", _SECRET)
    assert await _tables_that_hold(engine, _SECRET) == []


async def test_a_session_that_is_created_again_is_remembered_but_not_its_past(engine: Engine) -> None:
    session = await engine.sessions.create("shop", "ada", session_id="s")
    await engine.sessions.append(session, author="user", kind="user_message", text=_SECRET, event_id="e1")
    await engine.sessions.delete(session)
    again = await engine.sessions.create("shop", "ada", session_id="s")
    await engine.sessions.append(again, author="user", kind="user_message", text="hello again", event_id="e2")

    assert await engine.memory.remember_turns(_ADA, [Remembered("e1", _SECRET, session_id="s")]) == 0
    assert await engine.memory.remember_session(again) == 1
    await engine.memory.episodic.append(EpisodicEntry(_ADA, "hello", session_id="s"))
    await engine.memory.working.save(_ADA, WorkingMemory("shop", "s", scratchpad="new"))
    assert await _tables_that_hold(engine, _SECRET) == []


async def test_memories_of_sessions_that_the_engine_never_had_are_stored(database_url: str) -> None:
    said = AdkEvent(author="user", id="e1", content=types.Content(role="user", parts=[types.Part(text="green tea")]))
    async with OpenMemoryService(database_url) as service:
        foreign = AdkSession(id="elsewhere", app_name="shop", user_id="ada", events=[said])
        await service.add_session_to_memory(foreign)
        found = await service.search_memory(app_name="shop", user_id="ada", query="tea")
    assert len(found.memories) == 1


@pytest.mark.parametrize("first", ["ingest", "deletion"])
async def test_a_session_deleted_while_it_is_remembered(engine: Engine, database_url: str, first: str) -> None:
    """Both wait for the lock of the user's memories, in the given order."""
    session = await engine.sessions.create("shop", "ada")
    await engine.sessions.append(session, author="user", kind="user_message", text=_SECRET)
    works = {"ingest": engine.memory.remember_session, "deletion": engine.sessions.delete}
    holder = await asyncpg.connect(database_url)
    async with holder.transaction():
        await holder.execute("SELECT pg_advisory_xact_lock(hashtextextended('memory shop' || chr(1) || 'ada', 0))")
        tasks = []
        for number, name in enumerate([first, *(works.keys() - {first})], start=1):
            tasks.append(asyncio.create_task(works[name](session)))
            async with asyncio.timeout(20):
                while (
                    await holder.fetchval(
                        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted "
                        "AND database = (SELECT oid FROM pg_database "
                        "WHERE datname = current_database())"
                    )
                    < number
                ):
                    await asyncio.sleep(0.01)
    await asyncio.gather(*tasks)
    await holder.close()
    assert await _tables_that_hold(engine, _SECRET) == []
