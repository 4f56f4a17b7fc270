"""Pages end at a number of bytes, say so, and lead on to all of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx
import pytest

from cognizes.engine import Engine, Session
from cognizes.engine.api.main import create_app
from cognizes.engine.memory.records import MemoryScope, Remembered
from cognizes.engine.sync.client import SignalPullClient
from tests.integration.sync.conftest import serving

_PAGE = 64 * 1024
_LARGE = "x" * 30_000
_HUGE = "y" * (2 * _PAGE)


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[Engine]:
    async with Engine.open(database_url, page_bytes=_PAGE) as opened:
        yield opened


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_app(engine=engine), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as opened:
        yield opened


@pytest.fixture
async def session(engine: Engine) -> Session:
    """Five large events, one that is larger than a page, and small ones around them."""
    made = await engine.sessions.create("app", "user")
    for number in range(10):
        text = _HUGE if number == 4 else _LARGE if number % 2 == 0 else "small"
        content = {"text": f"{number}{text}", "message_id": f"m{number}"}
        await engine.sessions.append(
            made, author="user", kind="user_message", content=content, state={"k": number, "user:k": text}
        )
    return made


async def _get(client: httpx.AsyncClient, path: str, **params: Any) -> dict[str, Any]:
    response = await client.get(path, params=params)
    assert response.status_code == 200, response.text
    # What does not fit is one item: the first of a page.
    document: dict[str, Any] = response.json()
    return document


def _size(items: list[dict[str, Any]]) -> int:
    return sum(len(str(item)) for item in items)


async def test_events_page_forward_and_backward(client: httpx.AsyncClient, session: Session) -> None:
    path = f"/api/sessions/{session.thread_id}/events"
    found: list[int] = []
    page: dict[str, Any] = {"has_more": True}
    pages = 0
    while page["has_more"]:
        page = await _get(client, path, after=found[-1] if found else 0, limit=10_000)
        assert len(page["events"]) == 1 or _size(page["events"]) < 2 * _PAGE
        assert page["has_earlier"] is bool(found)
        found += [event["sequence_num"] for event in page["events"]]
        pages += 1
    assert found == list(range(1, 11))
    assert pages > 3

    before = 2**62
    back: list[int] = []
    page = {"has_earlier": True}
    while page["has_earlier"]:
        page = await _get(client, path, before=before, recent=10_000)
        assert page["has_more"] is bool(back)
        numbers = [event["sequence_num"] for event in page["events"]]
        back, before = numbers + back, numbers[0]
    assert back == found


async def test_messages_say_that_there_are_more(client: httpx.AsyncClient, session: Session) -> None:
    path = f"/api/sessions/{session.thread_id}/messages"
    found: list[dict[str, Any]] = []
    page: dict[str, Any] = {"has_more": True}
    while page["has_more"]:
        page = await _get(client, path, after=found[-1]["sequence_num"] if found else 0)
        assert len(page["messages"]) < 6
        found += page["messages"]
    assert [message["content"][:1] for message in found] == [str(number) for number in range(10)]
    assert (await _get(client, path, limit=1))["has_more"] is True


async def test_the_messages_of_a_context_page_both_ways(client: httpx.AsyncClient, session: Session) -> None:
    path = f"/contexts/{session.thread_id}/messages"
    found: list[str] = []
    page: dict[str, Any] = {"has_more": True, "last_sequence": None}
    while page["has_more"]:
        after = {} if page["last_sequence"] is None else {"after": page["last_sequence"]}
        page = await _get(client, path, branch="main", **after)
        assert len(page["messages"]) < 6
        assert (page["has_earlier"], page["total"]) == (bool(found), 10)
        found += [message["id"] for message in page["messages"]]
    assert found == [f"m{number}" for number in range(10)]

    back: list[str] = []
    page = {"has_earlier": True, "first_sequence": 11}
    while page["has_earlier"]:
        page = await _get(client, path, before=page["first_sequence"])
        assert page["has_more"] is bool(back)
        back = [message["id"] for message in page["messages"]] + back
    assert back == found

    by_offset: list[str] = []
    page = {"has_more": True}
    while page["has_more"]:
        page = await _get(client, path, offset=len(by_offset))
        by_offset += [message["id"] for message in page["messages"]]
    assert by_offset == found
    response = await client.get(path, params={"after": 1, "before": 3})
    assert response.status_code == 422


async def test_messages_by_id_end_at_the_last_that_fits(client: httpx.AsyncClient, session: Session) -> None:
    ids = [f"m{number}" for number in (8, 0, 4, 1, 2)] + ["unknown"]
    found: list[str] = []
    has_more = True
    while has_more:
        page = await _get(client, f"/contexts/{session.thread_id}/messages", ids=",".join(ids))
        names = [message["id"] for message in page["messages"]]
        found += names
        has_more = page["has_more"]
        ids = ids[ids.index(names[-1]) + 1 :] if names else []
    assert found == ["m8", "m0", "m4", "m1", "m2"]


async def test_the_timeline_pages_both_ways(engine: Engine, session: Session) -> None:
    forward: list[str] = []
    page = await engine.timeline.read(session.thread_id, after=0)
    while True:
        assert len(page.items) < 6
        forward += [item["id"] for item in page.items]
        if not page.has_more:
            break
        page = await engine.timeline.read(session.thread_id, after=page.last_sequence)
    assert forward == [f"m{number}" for number in range(10)]
    back: list[str] = []
    page = await engine.timeline.read(session.thread_id)
    while True:
        back = [item["id"] for item in page.items] + back
        if not page.has_more:
            break
        page = await engine.timeline.read(session.thread_id, before=page.first_sequence)
    assert back == forward


async def test_large_events_that_show_nothing_do_not_end_the_timeline(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user")
    await engine.sessions.append(session, author="user", kind="user_message", text="first")
    for _ in range(4):
        await engine.sessions.append(session, author="a", kind="thought", content={"thought": " ", "more": _HUGE})
    page = await engine.timeline.read(session.thread_id)
    assert ([item["content"] for item in page.items], page.has_more) == (["first"], False)


async def test_the_input_of_a_model_ends_at_the_bytes_of_a_page(client: httpx.AsyncClient, session: Session) -> None:
    found = await _get(client, f"/contexts/{session.thread_id}/llm-context", max_tokens=10**9)
    assert [message["content"][:1] for message in found["messages"]][-2:] == ["8", "9"]
    assert found["is_truncated"]
    assert _size(found["messages"]) < 2 * _PAGE


async def test_histories_of_the_state_page(client: httpx.AsyncClient, session: Session) -> None:
    path = f"/api/debug/threads/{session.thread_id}"
    found: list[int] = []
    page: dict[str, Any] = {"has_more": True}
    while page["has_more"]:
        page = await _get(client, f"{path}/state", after_version=found[-1] if found else 0)
        found += [change["version"] for change in page["state_history"]]
    assert found == list(range(2, 12))
    for key, value in (("k", 9), ("user:k", "small")):
        versions: list[int] = []
        page = {"has_more": True}
        while page["has_more"]:
            before = {"before_version": versions[0]} if versions else {}
            page = await _get(client, f"{path}/keys", key=key, **before)
            if not versions:
                assert page["history"][-1]["value"] == value
            versions = [change["version"] for change in page["history"]] + versions
        assert len(versions) == 10
        assert versions == sorted(versions)


async def test_time_travel_replays_documents_larger_than_a_page(engine: Engine, session: Session) -> None:
    for sequence in range(11):
        past = await engine.sessions.at(session, sequence=sequence)
        text = {5: _HUGE}.get(sequence, _LARGE if sequence % 2 else "small")
        assert past.state == ({"k": sequence - 1, "user:k": text} if sequence else {})
        assert past.version == sequence + 1


async def test_sessions_with_large_states_page(engine: Engine, client: httpx.AsyncClient) -> None:
    made = [
        (await engine.sessions.create("many", "user", state={"large": _LARGE} if number else {"large": _HUGE})).id
        for number in range(6)
    ]
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await _get(client, "/api/sessions", app_name="many", include_state=True, **cursor)
        assert len(page["sessions"]) < 4
        assert all(item["state"]["large"] in (_LARGE, _HUGE) for item in page["sessions"])
        found += [item["session_id"] for item in page["sessions"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert sorted(found) == sorted(made)
    assert len((await _get(client, "/api/sessions", app_name="many"))["sessions"]) == 6


async def test_exports_and_iterators_have_all_events(
    engine: Engine, client: httpx.AsyncClient, session: Session
) -> None:
    path = f"/api/debug/threads/{session.thread_id}/export"
    exported = await _get(client, path)
    assert [event["sequence_num"] for event in exported["events"]] == list(range(1, 11))
    lines = (await client.get(path, params={"format": "ndjson"})).text.splitlines()
    assert len(lines) == 11
    assert [event.sequence_num async for event in engine.sessions.iterate_events(session)] == list(range(1, 11))
    assert [event.sequence_num async for event in engine.sessions.iterate_events(session, after=8)] == [9, 10]
    assert 0 < len(await engine.sessions.events(session)) < 10


async def test_open_approvals_are_a_page(engine: Engine, client: httpx.AsyncClient) -> None:
    session = await engine.sessions.create("app", "user")
    await engine.sessions.append(session, author="user", kind="user_message", text="go")
    for number in range(5):
        await engine.approvals.ask(
            session.thread_id, tool_name="pay", tool_input={"text": _LARGE}, approval_id=f"a{number}"
        )
    path = f"/contexts/{session.thread_id}/tool-approvals"
    answered: list[str] = []
    for _ in range(5):
        listed = [one["approval_id"] for one in next(iter((await _get(client, path)).values()))]
        assert len(listed) == min(2, 5 - len(answered))
        answered.append(listed[0])
        assert (await client.post(f"{path}/{listed[0]}", json={"approved": True})).status_code == 200
    assert answered == [f"a{number}" for number in range(5)]


async def test_a_live_reader_gets_large_events_in_order(engine: Engine, session: Session) -> None:
    """What is there, read in pages, and what is written while it reads."""
    numbers: list[int] = []
    async for event in engine.feed.events(UUID(session.thread_id), after=0):
        numbers.append(event.sequence_num or 0)
        if numbers[-1] == 10:
            for text in (_LARGE, _HUGE, "small", _HUGE, _LARGE, "small"):
                await engine.sessions.append(session, author="user", kind="user_message", text=text)
        if numbers[-1] == 16:
            break
    assert numbers == list(range(1, 17))


async def test_previews_are_complete_pages(client: httpx.AsyncClient, session: Session) -> None:
    page = await _get(client, f"/api/debug/threads/{session.thread_id}/events")
    assert [event["sequence_num"] for event in page["events"]] == list(range(1, 11))
    assert page["events"][4]["content"]["text"]["$cut"] == "text"


async def test_the_python_client_follows_pages(engine: Engine, session: Session) -> None:
    async with serving(engine) as url, SignalPullClient(url, session.thread_id) as client:
        copy = await client.wait_for(lambda copy: len(copy.messages) == 10)
        assert [message.id for message in copy.messages] == [f"m{number}" for number in range(10)]
        for number in range(10, 14):
            content = {"text": _LARGE, "message_id": f"m{number}"}
            await engine.sessions.append(session, author="user", kind="user_message", content=content)
        copy = await client.wait_for(lambda copy: sum(message.is_complete for message in copy.messages) == 14)
        assert {message.text for message in copy.messages[10:]} == {_LARGE}


@pytest.mark.parametrize(("kind", "path"), [("fact", "long-term"), ("episode", "episodic"), ("note", "")])
async def test_lists_of_memories_end_at_bytes_and_lead_on(
    engine: Engine, client: httpx.AsyncClient, kind: str, path: str
) -> None:
    owner = {"app_name": "app", "user_id": "user"}
    texts = [f"{number}{_HUGE if number == 4 else _LARGE}" for number in range(10)]
    for number, text in enumerate(texts):
        bodies: dict[str, dict[str, Any]] = {
            "fact": {"key": f"k{number}", "value": text, "text": "a fact"},
            "episode": {"id": f"e{number}", "summary": "an episode", "payload": {"text": text}},
            "note": {"memories": [{"source_id": f"n{number}", "text": "a note", "content": text}]},
        }
        send = client.put if kind == "fact" else client.post
        response = await send(f"/memory/{path}".rstrip("/"), json=owner | bodies[kind])
        assert response.status_code < 300, response.text
    found: list[Any] = []
    pages = 0
    after: dict[str, Any] = {}
    while True:
        page = await _get(client, f"/memory/{path}".rstrip("/"), **owner, limit=1000, **after)
        items = page["memories" if kind == "note" else "entries"]
        assert len(items) == 1 or _size(items) < 2 * _PAGE
        found += items
        pages += 1
        after = {"before": page["next_before"]} if kind == "note" else {"offset": len(found)}
        if not (page["next_before"] if kind == "note" else page["has_more"]):
            break
    read = [item["value"] if kind == "fact" else item.get("content") or item["payload"]["text"] for item in found]
    assert read == texts[::-1]
    assert pages > 3


async def test_hits_of_a_search_end_at_bytes(database_url: str) -> None:
    async with Engine.open(database_url, page_bytes=_PAGE, memory_background=False) as engine:
        session = await engine.sessions.create("app", "user")
        for number in range(10):
            await engine.sessions.append(session, author="user", kind="user_message", text=f"needle {number} {_LARGE}")
        while await engine.memory.message_index.work():
            pass
        scope = MemoryScope("app", "user")
        await engine.memory.remember(scope, [Remembered(f"n{i}", "needle", content=_LARGE) for i in range(10)])
        messages = await engine.memory.search_messages("needle", app="app", k=100)
        memories = await engine.memory.recall("needle", app="app", user="user", k=100)
        assert 1 <= sum(len(hit.message.content) for hit in messages) <= _PAGE
        assert len(messages) == len(memories) == 2

        large = await engine.sessions.create("app", "other")
        await engine.sessions.append(large, author="user", kind="user_message", text=f"needle {_HUGE}")
        while await engine.memory.message_index.work():
            pass
        (only,) = await engine.memory.search_messages("needle", app="app", user="other", k=100)
        assert len(only.message.content) > _PAGE


@pytest.mark.parametrize("kind", ["message", "assistant_message", "act", "observe"])
@pytest.mark.parametrize(
    "part",
    [
        {"text": 5},
        {"text": {"a": 1}},
        {"function_call": "x"},
        {"function_call": {"name": ["x"], "id": 3, "args": "y"}},
        {"function_response": ["x"]},
        {"function_response": {"name": 7, "id": {}}},
    ],
    ids=str,
)
async def test_a_part_of_a_wrong_type_stops_no_reader(
    engine: Engine, client: httpx.AsyncClient, kind: str, part: dict[str, Any]
) -> None:
    session = await engine.sessions.create("app", "user")
    body = {
        "author": "agent",
        "event_type": kind,
        "content": {"parts": [part, {"text": "said"}], "adk": {"long_running_tool_ids": 5}},
        "actions": {"requested_tool_confirmations": 5},
    }
    thread = session.thread_id
    response = await client.post(f"/api/sessions/{thread}/events", json=body)
    assert response.status_code == 201, response.text
    await engine.sessions.append(session, author="user", kind="user_message", text="later")
    for path in (
        f"/contexts/{thread}/llm-context",
        f"/contexts/{thread}/messages",
        f"/conversations/{thread}/messages",
    ):
        assert "later" in str(await _get(client, path))
    await _get(client, f"/api/debug/threads/{thread}/questions")
