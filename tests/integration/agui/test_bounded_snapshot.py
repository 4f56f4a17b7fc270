"""Connecting to a long thread costs what connecting to a short one does; older messages are read page by page."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from cognizes.engine import Engine, Event, Session
from cognizes.engine.agui.observation import started
from cognizes.engine.agui.snapshot import OLDER_MESSAGES, History, read_history
from tests.engine_parts import database_of, observer_of
from tests.integration.agui.test_observation import QUESTION, append
from tests.unittests.agui.conftest import call, response, said
from tests.unittests.agui.legality import assert_legal


@pytest.fixture
async def session(engine: Engine) -> Session:
    return await engine.sessions.create("app", "user", state={"kept": 1})


async def fill(engine: Engine, session: Session, turns: int) -> None:
    """Append turns of five events: a question, a tool call, its result, an answer, a state update."""
    thread = UUID(session.thread_id)
    for turn in range(turns):
        asked = {"parts": [said(f"question {turn}")], "role": "user", "adk": {"timestamp": 1.0}}
        event = Event("", session.thread_id, "i", "user", "user_message", asked)
        await engine.sessions.append_to_thread(thread, event, expected_version=None)
        await append(engine, session, "r", call(f"c{turn}"))
        await append(engine, session, "r", response(f"c{turn}", {"turn": turn}))
        await append(engine, session, "r", said(f"answer {turn}"))
        update = Event("", session.thread_id, "", "system", "state_update", {}, {"state_delta": {"turn": turn}})
        await engine.sessions.append_to_thread(thread, update, expected_version=None)


async def connect(engine: Engine, session: Session) -> list[dict[str, Any]]:
    frames = observer_of(engine).observe_thread(UUID(session.thread_id), started(session.id, "connect"))
    return [frame.model_dump(by_alias=True, mode="json") async for _, frame in frames]


async def rows_read(engine: Engine, session: Session) -> int:
    """Connect, and return how many rows of `events` PostgreSQL read for it."""

    async def fetched() -> int:
        pool = database_of(engine).pool
        async with pool.acquire() as one, pool.acquire() as other:
            # All connections of the pool: a backend publishes its own statistics only.
            for connection in (other, one):
                await connection.execute("SELECT pg_stat_force_next_flush()")
            count: int = await one.fetchval(
                "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables WHERE relname = 'events'"
            )
        return count

    before = await fetched()
    frames = await connect(engine, session)
    assert_legal(frames)
    return await fetched() - before


async def test_the_rows_read_do_not_grow_with_the_thread(database_url: str) -> None:
    async with Engine.open(database_url, pool_size=2) as engine:
        counts = []
        for turns in (80, 320):
            session = await engine.sessions.create("app", "user")
            await fill(engine, session, turns)
            counts.append(await rows_read(engine, session))
    assert counts[1] <= counts[0] + 5, counts
    assert 128 <= counts[1] < 400, counts


async def test_a_long_thread_says_where_older_messages_begin(engine: Engine, session: Session) -> None:
    await fill(engine, session, 80)
    frames = await connect(engine, session)
    assert_legal(frames)
    assert [frame["type"] for frame in frames] == [
        "RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "CUSTOM", "RUN_FINISHED"
    ]  # fmt: skip
    assert frames[1]["snapshot"] == {"kept": 1, "turn": 79}
    assert frames[2]["messages"][-1]["content"] == "answer 79"
    assert (frames[3]["name"], list(frames[3]["value"])) == (OLDER_MESSAGES, ["before"])


async def test_a_short_thread_has_no_older_messages(engine: Engine, session: Session) -> None:
    await fill(engine, session, 3)
    assert [frame["type"] for frame in await connect(engine, session)] == [
        "RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "RUN_FINISHED"
    ]  # fmt: skip


async def pages(engine: Engine, session: Session) -> list[History]:
    """Return all pages, the newest first."""
    found = [await read_history(engine.sessions.log, UUID(session.thread_id))]
    while (before := found[-1].older_before) is not None:
        found.append(await read_history(engine.sessions.log, UUID(session.thread_id), up_to=before - 1))
    return found


async def test_pages_together_are_the_whole_thread_and_keep_results_with_their_calls(
    engine: Engine, session: Session
) -> None:
    await fill(engine, session, 110)
    found = await pages(engine, session)
    assert len(found) > 1
    for page in found:
        calls = [one["id"] for message in page.snapshot.messages for one in message.get("toolCalls") or ()]
        results = [message["toolCallId"] for message in page.snapshot.messages if message["role"] == "tool"]
        assert calls == results
    texts = [
        message["content"]
        for page in reversed(found)
        for message in page.snapshot.messages
        if message["role"] in ("user", "assistant") and message.get("content")
    ]
    assert texts == [text for turn in range(110) for text in (f"question {turn}", f"answer {turn}")]


async def test_a_question_asked_before_the_oldest_event_of_the_snapshot_is_open(
    engine: Engine, session: Session
) -> None:
    run = await engine.runs.begin_leased(session, run_id="asking")
    await append(engine, session, run.id, QUESTION, adk={"long_running_tool_ids": ["q1"]})
    await engine.runs.wait(run, kind="human", correlation_key="q1")
    for number in range(300):
        update = Event("", session.thread_id, "", "other", "state_update", {}, {"state_delta": {"n": number}})
        await engine.sessions.append_to_thread(UUID(session.thread_id), update, expected_version=None)
    await append(engine, session, "other", said("unrelated"))
    frames = await connect(engine, session)
    assert [interrupt["id"] for interrupt in frames[-1]["outcome"]["interrupts"]] == ["q1"]


async def test_a_call_of_a_client_tool_before_the_oldest_event_of_the_snapshot_waits(
    engine: Engine, session: Session
) -> None:
    thread = UUID(session.thread_id)
    await fill(engine, session, 1)
    for name in ("waiting", "answered"):
        act = {"tool_call_id": name, "tool_name": "pick", "tool_input": {"of": name}, "client_tool": True}
        act |= {"parent_message_id": "calls"}
        await engine.sessions.append_to_thread(thread, Event("", session.thread_id, "i", "agent", "act", act))
    result = {"tool_call_id": "answered", "observation": "blue", "is_error": False}
    await engine.sessions.append_to_thread(thread, Event("", session.thread_id, "i", "user", "observe", result))
    for number in range(150):
        await append(engine, session, "other", said(f"unrelated {number}"))
    frames = await connect(engine, session)
    assert_legal(frames)
    assert frames[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["waiting"]}
    calls, answer = frames[2]["messages"][:2]
    assert [call["id"] for call in calls["toolCalls"]] == ["waiting", "answered"]
    assert calls["toolCalls"][0]["function"] == {"name": "pick", "arguments": '{"of":"waiting"}'}
    assert (answer["toolCallId"], answer["content"]) == ("answered", '"blue"')
    text = Event("", session.thread_id, "i", "user", "user_message", {"text": "never mind"})
    await engine.sessions.append_to_thread(thread, text)
    assert "outcome" not in (await connect(engine, session))[-1]


async def test_messages_before_many_state_updates_are_found(engine: Engine, session: Session) -> None:
    await fill(engine, session, 1)
    for number in range(300):
        update = Event("", session.thread_id, "", "other", "state_update", {}, {"state_delta": {"n": number}})
        await engine.sessions.append_to_thread(UUID(session.thread_id), update, expected_version=None)
    history = await read_history(engine.sessions.log, UUID(session.thread_id))
    assert [message["role"] for message in history.snapshot.messages] == ["user", "assistant", "tool", "assistant"]
