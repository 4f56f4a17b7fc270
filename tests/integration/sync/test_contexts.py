"""Metadata, messages and the model's input, over REST and in Python."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from cognizes.engine import Engine, InvalidInputError, Session
from cognizes.engine.sync.contexts import estimate_tokens
from tests.engine_parts import database_of
from tests.unittests.agui.conftest import adk, call, response, said


async def append(engine: Engine, session: Session, kind: str, author: str = "agent", **more: Any) -> int:
    event = await engine.sessions.append(session, author=author, kind=kind, **more)
    return event.sequence_num or 0


async def test_metadata_has_the_fields_of_the_seed(engine: Engine, session: Session, client: httpx.AsyncClient) -> None:
    await append(engine, session, "user_message", "user", text="hi")
    for path in (f"/contexts/{session.thread_id}/metadata", f"/v1/contexts/{session.id}/metadata"):
        found = (await client.get(path)).json()
        seed = {
            "id": session.thread_id, "current_state": "ProcessingUserMessage", "active_branch_name": "main",
            "message_count": 1, "model_id": "gpt-4", "mode": None, "system_prompt_id": None, "workspace_path": None,
        }  # fmt: skip
        assert seed.items() <= found.items()
        assert (found["last_sequence"], found["session_id"], found["title"]) == (1, "my session", None)
    assert (await client.get("/contexts/unknown/metadata")).status_code == 404


async def test_the_state_follows_from_events_runs_and_streams(engine: Engine, session: Session) -> None:
    async def state() -> str:
        return await engine.contexts.state(session.thread_id)

    assert await state() == "Idle"
    await append(engine, session, "user_message", "user", text="hi")
    assert await state() == "ProcessingUserMessage"
    async with engine.runs.start(session) as run:
        assert await state() == "PreparingLLMRequest"
        called = await run.call_tool("search", {})
        assert await state() == "ExecutingTool"
        await run.finish_tool(called, 1)
        assert await state() == "ProcessingToolResults"
        async with engine.stream_message(session, run_id=run.id) as message:
            assert await state() == "AwaitingLLMResponse"
            await message.write("hello")
            assert await state() == "StreamingLLMResponse"
        assert await state() == "ProcessingLLMResponse"
    assert await state() == "Idle"
    with pytest.raises(RuntimeError):
        async with engine.runs.start(session):
            raise RuntimeError("no")
    assert await state() == "Failed"


async def test_the_state_of_a_long_run_is_found(engine: Engine, session: Session) -> None:
    """More events than one page of the newest ones, none of which shows that a run continues."""
    async with engine.runs.start(session) as run:
        await asyncio.gather(*(
            append(engine, session, "work_plan", content={"step": number}, run_id=run.id) for number in range(100)
        ))  # fmt: skip
        await append(engine, session, "assistant_message", text="so far", run_id=run.id)
        assert await engine.contexts.state(session.thread_id) == "ProcessingLLMResponse"
        # A question in between: nothing before it is read, and the run continues.
        await append(engine, session, "user_message", "user", text="and?")
        await asyncio.gather(*(append(engine, session, "work_plan", run_id=run.id) for _ in range(70)))
        await append(engine, session, "user_message", "user", text="and?")
        await append(engine, session, "assistant_message", text="wait", run_id=run.id)
        assert await engine.contexts.state(session.thread_id) == "ProcessingLLMResponse"


async def test_messages_are_counted_once(engine: Engine, session: Session) -> None:
    thread = session.thread_id
    await asyncio.gather(*(append(engine, session, "user_message", "user", text="x") for _ in range(600)))
    await asyncio.gather(*(append(engine, session, "work_plan") for _ in range(100)))
    assert (await engine.contexts.metadata(thread)).message_count == 600
    saved = await database_of(engine).pool.fetchrow("SELECT sequence_num, messages FROM message_counts")
    assert (saved["sequence_num"], saved["messages"]) == (700, 600)
    await append(engine, session, "user_message", "user", text="x")
    assert (await engine.contexts.metadata(thread)).message_count == 601
    assert await database_of(engine).pool.fetchval("SELECT count(*) FROM message_counts") == 1
    # A count that read only a few rows relies on a stored count.
    counted = await database_of(engine).pool.fetchval(
        "SELECT counted FROM count_messages_to($1, 701)", session.thread_id
    )
    assert counted == 1


async def test_messages_by_id_and_by_branch(engine: Engine, session: Session, client: httpx.AsyncClient) -> None:
    path = f"/contexts/{session.thread_id}/messages"
    for number in range(5):
        content = {"message_id": f"m{number}"}
        await append(engine, session, "user_message", "user", text=f"text {number}", content=content)
    found = (await client.get(path, params={"ids": "m3,m1,unknown,m3"})).json()
    assert (found["requested_count"], found["found_count"]) == (3, 2)
    first = {
        "id": "m3", "role": "user", "content": [{"type": "text", "text": "text 3"}], "tool_calls": None,
        "tool_result": None, "message_type": "text",
    }  # fmt: skip
    assert first.items() <= found["messages"][0].items()
    assert [message["id"] for message in found["messages"]] == ["m3", "m1"]

    page = (await client.get(path, params={"branch": "main", "offset": 1, "limit": 2})).json()
    assert [message["id"] for message in page["messages"]] == ["m1", "m2"]
    assert (page["branch"], page["total"], page["offset"]) == ("main", 5, 1)
    assert (await client.get(path, params={"offset": 99})).json()["messages"] == []


async def test_messages_with_parts_tool_calls_and_results(
    engine: Engine, session: Session, client: httpx.AsyncClient
) -> None:
    parts = [{"type": "text", "text": "look: "}, {"type": "image", "url": "a.png"}]
    await client.post(f"/contexts/{session.thread_id}/messages", json={"role": "user", "content": parts})
    for number, event in enumerate(
        (adk(said("I look."), call("c1", q=1)), adk(response("c1", {"n": 1}), said("seen"), author="user"))
    ):
        event.id, event.thread_id, event.run_id = f"adk-{number}", session.thread_id, None
        await engine.sessions.append_event(session, event)
    await append(engine, session, "observe", content={"tool_call_id": "c2", "observation": "text", "is_error": True})
    asked, looked, answered, seen = (await client.get(f"/contexts/{session.thread_id}/messages")).json()["messages"]
    assert asked["content"] == parts
    assert looked["content"] == [{"type": "text", "text": "I look."}]
    assert looked["tool_calls"] == [{"id": "c1", "name": "search", "arguments": {"q": 1}}]
    assert (looked["message_type"], answered["message_type"]) == ("tool_call", "tool_result")
    assert answered["tool_result"] == {
        "tool_call_id": "c1", "tool_name": "search", "content": {"n": 1}, "is_error": False,
    }  # fmt: skip
    assert seen["tool_result"]["is_error"] is True


async def test_calls_without_a_text_are_messages_before_their_results(
    engine: Engine, session: Session, client: httpx.AsyncClient
) -> None:
    """Of the engine's own calls, of `tool_call` and `tool_result` over REST, and of ADK events that only call."""
    path = f"/contexts/{session.thread_id}/messages"
    await append(engine, session, "user_message", "user", text="look")
    async with engine.runs.start(session) as run:
        called = await run.call_tool("search", {"q": 1})
        await run.finish_tool(called, {"n": [1, 2]})
    for kind, content in (
        ("tool_call", {"tool_call_id": "c2", "name": "add", "args": {"a": 1}}),
        ("tool_result", {"tool_call_id": "c2", "output": "three"}),
    ):
        body = {"author": "agent", "event_type": kind, "content": content}
        assert (await client.post(f"/api/sessions/{session.thread_id}/events", json=body)).status_code == 201
    turn = (("act", adk(call("c3", q=2))), ("observe", adk(response("c3", {"n": 3}), author="user")))
    for kind, event in turn:
        event.id, event.event_type, event.thread_id, event.run_id = f"adk-{kind}", kind, session.thread_id, None
        await engine.sessions.append_event(session, event)

    page = (await client.get(path, params={"branch": "main"})).json()
    asked, *rest = page["messages"]
    assert (asked["message_type"], page["total"], page["has_more"]) == ("text", 7, False)
    assert [(message["role"], message["message_type"]) for message in rest] == [
        ("assistant", "tool_call"), ("tool", "tool_result"),
    ] * 3  # fmt: skip
    own, added, searched = (message["tool_calls"] for message in rest[::2])
    assert own == [{"id": called, "name": "search", "arguments": {"q": 1}}]
    assert added == [{"id": "c2", "name": "add", "arguments": {"a": 1}}]
    assert searched == [{"id": "c3", "name": "search", "arguments": {"q": 2}}]
    results = [message["tool_result"] for message in rest[1::2]]
    assert [(result["tool_call_id"], result["tool_name"], result["content"]) for result in results] == [
        (called, "search", {"n": [1, 2]}), ("c2", "add", "three"), ("c3", "search", {"n": 3}),
    ]  # fmt: skip
    assert all(message["content"] == [] for message in rest[::2])
    assert (await client.get(f"/contexts/{session.thread_id}/metadata")).json()["message_count"] == 7

    ids = [message["id"] for message in page["messages"]]
    found = (await client.get(path, params={"ids": ",".join(reversed(ids))})).json()
    assert [message["id"] for message in found["messages"]] == ids[::-1]
    assert found["messages"][5] == rest[0]
    for offset in range(7):
        one = (await client.get(path, params={"offset": offset, "limit": 1})).json()
        assert [message["id"] for message in one["messages"]] == [ids[offset]]
        assert (one["has_more"], one["has_earlier"]) == (offset < 6, offset > 0)


async def test_a_message_that_is_streamed_is_listed_without_its_content(
    engine: Engine, session: Session, client: httpx.AsyncClient
) -> None:
    path = f"/contexts/{session.thread_id}/messages"
    await append(engine, session, "user_message", "user", text="hi")
    async with engine.stream_message(session, message_id="m") as message:
        await message.write("hel")
        await message.write("lo")
        for params in ({}, {"ids": "m"}):
            last = (await client.get(path, params=params)).json()["messages"][-1]
            assert (last["id"], last["status"], last["content"]) == ("m", "streaming", [])
    last = (await client.get(path)).json()["messages"][-1]
    assert (last["status"], last["final_sequence"]) == ("completed", 2)
    assert last["content"] == [{"type": "text", "text": "hello"}]


async def test_seed_002_a_thousand_tokens_leave_five_rows(engine: Engine, session: Session) -> None:
    await append(engine, session, "user_message", "user", text="write a lot")
    await append(engine, session, "thought", content={"thought": "so much to say"})
    await append(engine, session, "act", content={"tool_call_id": "c", "tool_name": "search", "tool_input": {}})
    await append(engine, session, "observe", content={"tool_call_id": "c", "observation": "found"})
    async with engine.stream_message(session) as message:
        for number in range(1000):
            await message.write(f"token {number} ")
    rows = await database_of(engine).pool.fetch("SELECT event_type FROM events ORDER BY sequence_num")
    assert [row["event_type"] for row in rows] == ["user_message", "thought", "act", "observe", "assistant_message"]
    items = (await engine.timeline.read(session.thread_id)).items
    assert items[-1]["content"] == "".join(f"token {number} " for number in range(1000))
    assert items[-1]["id"] == message.message_id


BAD_INPUT = [
    ("messages?ids=" + ",".join(f"m{number}" for number in range(10_000)), 422),
    ("messages?offset=-1", 422),
    ("messages?limit=0", 422),
    ("messages?limit=1001", 422),
    ("messages?branch=nowhere", 404),
    ("llm-context?max_tokens=0", 422),
    ("llm-context?branch=nowhere", 404),
    ("messages/unknown/streaming-chunks", 404),
    ("messages/m/streaming-chunks?from_sequence=-1", 422),
    ("messages/m/streaming-chunks?from_sequence=x", 422),
    (f"messages/m/streaming-chunks?from_sequence={10**30}", 422),
    ("messages/m/streaming-chunks?to=-1", 422),
    ("messages/m/streaming-chunks?limit=0", 422),
    ("messages/m/streaming-chunks?wait=-1", 422),
    ("messages/m/streaming-chunks?wait=1000", 422),
]


async def test_bad_input_is_a_clear_4xx(engine: Engine, session: Session, client: httpx.AsyncClient) -> None:
    await append(engine, session, "user_message", "user", text="hi", content={"message_id": "m"})
    for query, status in BAD_INPUT:
        answer = await client.get(f"/contexts/{session.thread_id}/{query}")
        assert (answer.status_code, bool(answer.json()["detail"])) == (status, True), query


async def test_a_message_of_another_context_is_not_found(
    engine: Engine, session: Session, client: httpx.AsyncClient
) -> None:
    foreign = await engine.sessions.create("shop", "bob")
    await append(engine, foreign, "user_message", "user", text="secret", content={"message_id": "m"})
    path = f"/contexts/{session.thread_id}/messages"
    assert (await client.get(f"{path}/m/streaming-chunks")).status_code == 404
    assert (await client.get(path, params={"ids": "m"})).json()["found_count"] == 0
    answer = await client.post(f"{path}/m/chunks", json={"first_sequence": 1, "deltas": ["x"]})
    assert answer.status_code == 404
    for end in ("complete", "abort"):
        assert (await client.post(f"{path}/m/{end}")).status_code == 404


async def test_bad_input_in_python(engine: Engine, session: Session) -> None:
    with pytest.raises(InvalidInputError):
        await engine.contexts.messages_by_id(session.thread_id, ["x"] * 201)
    with pytest.raises(InvalidInputError):
        await engine.contexts.messages(session.thread_id, offset=-1)


class TestLlmContext:
    """The input of a model: the newest that fit, calls and results together."""

    async def read(self, engine: Engine, session: Session, max_tokens: int = 10_000) -> list[dict[str, Any]]:
        context = await engine.contexts.llm_context(session.thread_id, max_tokens=max_tokens)
        assert context.estimated_tokens <= max_tokens
        return context.messages

    async def test_messages_calls_and_results(self, engine: Engine, session: Session) -> None:
        await append(engine, session, "system_message", "system", text="be brief")
        await append(engine, session, "user_message", "user", text="find it")
        async with engine.runs.start(session) as run:
            await run.think("not for the model")
            calls = [await run.call_tool("search", {"n": number}) for number in range(2)]
            for called in calls:
                await run.finish_tool(called, {"found": called})
        await append(engine, session, "assistant_message", text="there")
        system, user, assistant, first, second, answer = await self.read(engine, session)
        assert [message["role"] for message in (system, user, answer)] == ["system", "user", "assistant"]
        assert [made["id"] for made in assistant["tool_calls"]] == calls
        assert assistant["tool_calls"][0]["function"] == {"name": "search", "arguments": '{"n":0}'}
        assert [first["tool_call_id"], second["tool_call_id"]] == calls

    async def test_only_the_newest_that_fit(self, engine: Engine, session: Session, client: httpx.AsyncClient) -> None:
        await asyncio.gather(*(
            append(engine, session, "user_message", "user", text=f"{number:04}" * 10) for number in range(300)
        ))  # fmt: skip
        answer = (await client.get(f"/contexts/{session.thread_id}/llm-context", params={"max_tokens": 140})).json()
        assert [message["content"][:4] for message in answer["messages"]] == [f"{n:04}" for n in range(290, 300)]
        assert (answer["estimated_tokens"], answer["is_truncated"]) == (140, True)
        whole = await self.read(engine, session)
        assert len(whole) == 300

    async def test_a_call_and_its_result_stay_or_go_together(self, engine: Engine, session: Session) -> None:
        content = {"tool_call_id": "c", "tool_name": "search", "tool_input": {"q": "x" * 400}}
        await append(engine, session, "act", content=content)
        await append(engine, session, "observe", content={"tool_call_id": "c", "observation": "short"})
        await append(engine, session, "assistant_message", text="done")
        assert [message["role"] for message in await self.read(engine, session, 60)] == ["assistant"]
        assert [message["role"] for message in await self.read(engine, session, 1000)] == [
            "assistant", "tool", "assistant",
        ]  # fmt: skip

    async def test_calls_without_results_and_results_without_calls_are_omitted(
        self, engine: Engine, session: Session
    ) -> None:
        await append(engine, session, "observe", content={"tool_call_id": "lost", "observation": "x"})
        await append(engine, session, "act", content={"tool_call_id": "open", "tool_name": "search"})
        await append(engine, session, "user_message", "user", text="later")
        assert await self.read(engine, session) == [{"role": "user", "content": "later"}]

    async def test_adk_events_and_only_the_active_branch(self, engine: Engine, session: Session) -> None:
        for number, event in enumerate(
            (adk(said("hi"), author="user"), adk(said("I look."), call("c1")), adk(response("c1", {"n": 1})))
        ):
            event.id, event.thread_id, event.run_id = f"adk-{number}", session.thread_id, None
            await engine.sessions.append_event(session, event)
        await engine.branches.create(session.thread_id, "other", at_sequence=1)
        assert [message["role"] for message in await self.read(engine, session)] == ["user", "assistant", "tool"]
        await engine.branches.switch(session.thread_id, "other")
        assert await self.read(engine, session) == [{"role": "user", "content": "hi"}]

    def test_tokens_are_estimated_by_script(self) -> None:
        assert estimate_tokens("abcdefgh") == 2
        assert estimate_tokens("你好") == 2
        assert estimate_tokens("") == 0
