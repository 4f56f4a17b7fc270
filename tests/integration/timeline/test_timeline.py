"""Seed 002: one timeline, from stored events alone."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from cognizes.engine import Engine, InvalidInputError, NotFoundError, Session
from cognizes.engine.models import Event
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.timeline.event_kinds import KINDS
from tests.engine_parts import database_of
from tests.unittests.agui.conftest import adk, call, said

pytestmark = pytest.mark.pgbouncer


@pytest.fixture
async def session(engine: Engine) -> Session:
    return await engine.sessions.create("shop", "ada", session_id="my session")


async def turn(engine: Engine, session: Session, number: int) -> None:
    """One turn as an agent leaves it: think, call, see, answer, and what no screen shows in between."""
    append = engine.sessions.append
    await append(session, author="user", kind="user_message", text=f"question {number}")
    async with engine.runs.start(session) as run:
        await run.think(f"thought {number}")
        await append(session, author="agent", kind="work_plan", content={"steps": 2}, run_id=run.id)
        called = await run.call_tool("search", {"n": number})
        await append(session, author="agent", kind="state_update", state={"n": number}, run_id=run.id)
        await run.finish_tool(called, {"found": number})
        await append(session, author="agent", kind="assistant_message", text=f"answer {number}", run_id=run.id)


async def whole(engine: Engine, session: Session) -> list[dict[str, Any]]:
    return (await engine.timeline.read(session.thread_id, limit=10_000)).items


async def test_seed_002_multi_turn_order_and_the_think_tool_result_cycle(engine: Engine, session: Session) -> None:
    for number in range(3):
        await turn(engine, session, number)
    items = await whole(engine, session)
    cycle = ["user_message", "thought", "tool_call", "tool_result", "assistant_message"]
    assert [item["type"] for item in items] == cycle * 3
    assert [item["content"] for item in items if "content" in item] == [
        f"{word} {number}" for number in range(3) for word in ("question", "thought", "answer")
    ]
    numbers = [item["sequenceNumber"] for item in items]
    assert numbers == sorted(numbers)
    assert len({item["id"] for item in items}) == len(items)
    # The result of the engine's own calls does not repeat the tool's name: the call has it.
    assert {item["toolName"] for item in items if "toolName" in item} == {"search"}


async def test_seed_002_rows_by_type_have_no_deltas(engine: Engine, session: Session) -> None:
    for number in range(2):
        await turn(engine, session, number)
    rows = await database_of(engine).pool.fetch("SELECT event_type, count(*) FROM events GROUP BY event_type")
    counts = {row["event_type"]: row["count"] for row in rows}
    assert all(counts[kind] == 2 for kind in ("user_message", "thought", "act", "observe", "assistant_message"))
    assert not any(kind.startswith("text_") for kind in counts)


async def test_the_result_of_a_call_on_an_earlier_page_knows_its_tool(engine: Engine, session: Session) -> None:
    async with engine.runs.start(session) as run:
        called = await run.call_tool("search", {})
        await run.finish_tool(called, "found")
    (item,) = (await engine.timeline.read(session.thread_id, limit=1)).items
    assert (item["type"], item["toolName"], item["toolOutput"]) == ("tool_result", "search", "found")


async def test_paging_both_ways_shows_every_item_once(engine: Engine, session: Session) -> None:
    for number in range(2):
        await turn(engine, session, number)
        several = adk(said("one"), call(f"c{number}"), said("two"), event_id=f"adk-{number}")
        several.thread_id, several.run_id = session.thread_id, None
        await engine.sessions.append_event(session, several)
        await engine.sessions.append(session, author="agent", kind="thought", content={"thought": " "})
    items = await whole(engine, session)
    assert len(items) == 16
    for limit in (1, 2, 3, 7, 100):
        await check_paging(engine, session, items, limit)


async def check_paging(engine: Engine, session: Session, items: list[dict[str, Any]], limit: int) -> None:
    backwards: list[dict[str, Any]] = []
    page = await engine.timeline.read(session.thread_id, limit=limit)
    backwards = page.items
    while page.has_more:
        page = await engine.timeline.read(session.thread_id, limit=limit, before=page.first_sequence)
        assert 0 < len(page.items) <= max(limit, 3)
        backwards = page.items + backwards
    assert backwards == items

    forwards: list[dict[str, Any]] = []
    page = await engine.timeline.read(session.thread_id, limit=limit, after=0)
    forwards += page.items
    while page.has_more:
        page = await engine.timeline.read(session.thread_id, limit=limit, after=page.last_sequence)
        forwards += page.items
    assert forwards == items


async def test_between_two_events(engine: Engine, session: Session) -> None:
    for number in range(10):
        await engine.sessions.append(session, author="user", kind="user_message", text=str(number))
    page = await engine.timeline.read(session.thread_id, after=2, before=7, limit=3)
    assert ([item["sequenceNumber"] for item in page.items], page.has_more) == ([3, 4, 5], True)
    page = await engine.timeline.read(session.thread_id, after=5, before=7, limit=3)
    assert ([item["sequenceNumber"] for item in page.items], page.has_more) == ([6], False)


SEED_STORED = (
    "user_message", "thought", "act", "observe", "assistant_message", "work_plan", "step_start", "step_end",
    "pattern_match", "skill_matched", "skill_execution_start", "skill_execution_complete", "complete", "error",
)  # fmt: skip
SEED_STREAMED = ("text_start", "text_delta", "text_end")


async def stored_kinds(engine: Engine, session: Session) -> list[str]:
    rows = await database_of(engine).pool.fetch(
        "SELECT event_type FROM events WHERE thread_id = $1 ORDER BY sequence_num", thread_uuid(session.thread_id)
    )
    return [row["event_type"] for row in rows]


async def append_over_rest(client: httpx.AsyncClient, session: Session, kind: str) -> None:
    body = {"author": "agent", "event_type": kind, "content": {"text": "x"}}
    answer = await client.post(f"/api/sessions/{session.thread_id}/events", json=body)
    if answer.status_code == 422:
        raise InvalidInputError(answer.json()["detail"])
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("way", ["rest", "sessions", "state_manager", "thread", "run"])
async def test_seed_002_kinds_are_stored_or_refused_as_the_table_says(
    engine: Engine, session: Session, client: httpx.AsyncClient, way: str
) -> None:
    async def append(kind: str, run_id: str | None = None) -> None:
        event = Event("", session.thread_id, "", "agent", kind, {"text": "x"}, run_id=run_id)
        match way:
            case "rest":
                await append_over_rest(client, session, kind)
            case "sessions" | "run":
                await engine.sessions.append(session, author="agent", kind=kind, text="x", run_id=run_id)
            case "state_manager":
                await engine.sessions.append_event(session, event)
            case "thread":
                await engine.sessions.append_to_thread(thread_uuid(session.thread_id), event)

    async def append_all(run_id: str | None = None) -> None:
        for kind in (*SEED_STORED, "an application's own"):
            await append(kind, run_id)
        for kind in [*SEED_STREAMED, *(kind.name for kind in KINDS.values() if not kind.is_stored)]:
            with pytest.raises(InvalidInputError, match=r"engine\.stream_message"):
                await append(kind, run_id)

    if way == "run":
        async with engine.runs.start(session) as run:
            await append_all(run.id)
    else:
        await append_all()
    kinds = [kind for kind in await stored_kinds(engine, session) if not kind.startswith("run_")]
    assert kinds == [*SEED_STORED, "an application's own"]


async def test_an_unknown_kind_is_stored_and_not_shown(engine: Engine, session: Session) -> None:
    await engine.sessions.append(session, author="agent", kind="an application's own", text="x")
    await engine.sessions.append(session, author="agent", kind="assistant_message", text="whole")
    assert [item["content"] for item in await whole(engine, session)] == ["whole"]
    assert await stored_kinds(engine, session) == ["an application's own", "assistant_message"]


async def test_seed_002_a_run_of_a_thousand_tokens_leaves_five_rows_and_its_own_two(
    engine: Engine, session: Session
) -> None:
    conversation = ["user_message", "thought", "act", "observe", "assistant_message"]
    for tokens in (1, 1000):
        before = len(await stored_kinds(engine, session))
        await engine.sessions.append(session, author="user", kind="user_message", text="write")
        async with engine.runs.start(session) as run:
            await run.think("so much to say")
            called = await run.call_tool("search", {})
            await run.finish_tool(called, "found")
            async with run.message() as message:
                for number in range(tokens):
                    await message.write(f"token {number} ")
        kinds = (await stored_kinds(engine, session))[before:]
        assert [kind for kind in kinds if not kind.startswith("run_")] == conversation
        # Whatever it says, a run adds that it began and that it ended.
        assert [kind for kind in kinds if kind.startswith("run_")] == ["run_started", "run_finished"]
    items = (await whole(engine, session))[-5:]
    cycle = ["user_message", "thought", "tool_call", "tool_result", "assistant_message"]
    assert [item["type"] for item in items] == cycle
    assert items[-1]["content"] == "".join(f"token {number} " for number in range(1000))


async def test_over_http(engine: Engine, session: Session, client: httpx.AsyncClient) -> None:
    await turn(engine, session, 0)
    for prefix in ("", "/v1"):
        for name in (session.thread_id, session.id):
            answer = await client.get(f"{prefix}/conversations/{name}/messages", params={"limit": 2})
            assert answer.status_code == 200, answer.text
            body = answer.json()
            assert body["conversationId"] == session.thread_id
            assert [item["type"] for item in body["timeline"]] == ["tool_result", "assistant_message"]
            assert (body["total"], body["hasMore"]) == (2, True)
            assert body["firstSequence"] == body["timeline"][0]["sequenceNumber"]
            assert body["lastSequence"] == body["timeline"][1]["sequenceNumber"]
    rest = await client.get(
        f"/conversations/{session.thread_id}/messages", params={"before": body["firstSequence"], "limit": 9}
    )
    assert [item["type"] for item in rest.json()["timeline"]] == ["user_message", "thought", "tool_call"]
    assert rest.json()["hasMore"] is False


async def test_an_empty_conversation(session: Session, client: httpx.AsyncClient) -> None:
    assert (await client.get(f"/conversations/{session.thread_id}/messages")).json() == {
        "conversationId": session.thread_id, "timeline": [], "total": 0, "hasMore": False,
        "firstSequence": None, "lastSequence": None,
    }  # fmt: skip


BAD_INPUT = [
    ("/conversations/unknown/messages", 404),
    ("/conversations/00000000-0000-7000-8000-000000000000/messages", 404),
    ("/conversations/my session/messages?limit=0", 422),
    ("/conversations/my session/messages?limit=10001", 422),
    ("/conversations/my session/messages?before=-1", 422),
    ("/conversations/my session/messages?after=x", 422),
    (f"/conversations/my session/messages?after={2**70}", 422),
    ("/conversations/my session/messages?branch=nowhere", 404),
]


@pytest.mark.usefixtures("session")
async def test_bad_input(client: httpx.AsyncClient) -> None:
    for path, status in BAD_INPUT:
        answer = await client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), path


async def test_a_session_id_that_two_sessions_have_is_a_conflict(
    engine: Engine, session: Session, client: httpx.AsyncClient
) -> None:
    await engine.sessions.create("shop", "bob", session_id=session.id)
    assert (await client.get(f"/conversations/{session.id}/messages")).status_code == 409
    assert (await client.get(f"/conversations/{session.thread_id}/messages")).status_code == 200


async def test_bad_input_in_python(engine: Engine, session: Session) -> None:
    with pytest.raises(NotFoundError):
        await engine.timeline.read("00000000-0000-7000-8000-000000000000")
    with pytest.raises(InvalidInputError):
        await engine.timeline.read(session.thread_id, limit=0)
    with pytest.raises(InvalidInputError):
        await engine.timeline.read(session.thread_id, before=-1)
