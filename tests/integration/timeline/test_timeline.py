"""Seed 002: one timeline, from stored events alone."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from cognizes.engine import Engine, InvalidInputError, NotFoundError, Session
from tests.unittests.agui.conftest import adk, call, said


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
    rows = await engine.database.pool.fetch("SELECT event_type, count(*) FROM events GROUP BY event_type")
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
        await engine.manager.append_event(session, several)
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


async def test_streamed_and_unknown_kinds_appended_by_hand_are_kept_and_not_shown(
    engine: Engine, session: Session
) -> None:
    for kind in ("text_delta", "somebody's own"):
        await engine.sessions.append(session, author="agent", kind=kind, text="x")
    await engine.sessions.append(session, author="agent", kind="assistant_message", text="whole")
    assert [item["content"] for item in await whole(engine, session)] == ["whole"]
    stored = await engine.sessions.events(session)
    assert [event.event_type for event in stored] == ["text_delta", "somebody's own", "assistant_message"]


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
    ("/conversations/nobody/messages", 404),
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
