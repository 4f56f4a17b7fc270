"""The REST for producers: everything a conversation needs, from any language."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from cognizes.engine import Engine, Session
from tests.engine_parts import database_of

pytestmark = pytest.mark.pgbouncer


async def post(client: httpx.AsyncClient, path: str, status: int = 200, **body: Any) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture
async def context(client: httpx.AsyncClient) -> str:
    created = await post(client, "/contexts", 201, app_name="shop", user_id="ada", model_id="gpt-4", mode="code")
    return f"/contexts/{created['id']}"


async def test_a_whole_turn(client: httpx.AsyncClient, engine: Engine) -> None:
    created = await post(
        client, "/v1/contexts", 201, app_name="shop", user_id="ada", session_id="s", title="First", model_id="gpt-4",
        mode="code", system_prompt_id="p", workspace_path="/w",
    )  # fmt: skip
    described = {"title": "First", "model_id": "gpt-4", "mode": "code", "system_prompt_id": "p", "workspace_path": "/w"}
    assert (described | {"session_id": "s", "current_state": "Idle", "message_count": 0}).items() <= created.items()
    path = f"/contexts/{created['id']}/messages"
    asked = await post(client, path, 201, role="user", content="hi")
    assert asked["sequence_num"] == 1
    opened = await post(client, f"{path}/stream", 201, role="assistant")
    message = f"{path}/{opened['message_id']}"
    assert await post(client, f"{message}/chunks", first_sequence=1, deltas=["Hel", "lo"]) == {"current_sequence": 2}
    assert await post(client, f"{message}/chunks", first_sequence=3, deltas=["!"]) == {"current_sequence": 3}
    assert await post(client, f"{message}/complete", finish_reason="stop") == {"final_sequence": 3}
    page = (await client.get(path)).json()
    assert [(found["role"], found["content"][0]["text"]) for found in page["messages"]] == [
        ("user", "hi"), ("assistant", "Hello!"),
    ]  # fmt: skip
    metadata = (await client.get(f"/contexts/{created['id']}/metadata")).json()
    assert (metadata["current_state"], metadata["message_count"]) == ("Idle", 2)
    taken = await client.post("/contexts", json={"app_name": "shop", "user_id": "ada", "session_id": "s"})
    assert taken.status_code == 409


async def test_a_resent_message_is_stored_once(client: httpx.AsyncClient, context: str, engine: Engine) -> None:
    body = {"role": "user", "content": "hi", "message_id": "m"}
    first = await post(client, f"{context}/messages", 201, **body)
    assert await post(client, f"{context}/messages", 201, **body) == first
    await post(client, f"{context}/messages", 409, **(body | {"content": "other"}))
    assert await database_of(engine).pool.fetchval("SELECT count(*) FROM messages") == 1


async def test_roles_and_parts(client: httpx.AsyncClient, context: str) -> None:
    for role in ("system", "user", "assistant", "tool"):
        await post(client, f"{context}/messages", 201, role=role, content=[{"type": "text", "text": role}])
    messages = (await client.get(f"{context}/messages")).json()["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool"]
    for bad in ({"role": "unknown", "content": "x"}, {"role": "user"}, {"role": "user", "content": [{"type": "image"}]},
                {"role": "user", "content": "x", "message_id": "m" * 201}, {"role": "user", "content": 1}):  # fmt: skip
        await post(client, f"{context}/messages", 422, **bad)


async def test_resending_chunks_changes_nothing_and_a_gap_is_a_conflict(
    client: httpx.AsyncClient, context: str
) -> None:
    await post(client, f"{context}/messages/stream", 201, message_id="m")
    chunks = f"{context}/messages/m/chunks"
    await post(client, chunks, first_sequence=1, deltas=["a", "b"])
    assert await post(client, chunks, first_sequence=1, deltas=["a", "b"]) == {"current_sequence": 2}
    assert await post(client, chunks, first_sequence=2, deltas=["b", "c"]) == {"current_sequence": 3}
    gap = await post(client, chunks, 409, first_sequence=9, deltas=["z"])
    assert "send from 4 on" in gap["detail"]
    await post(client, chunks, 422, first_sequence=0, deltas=["z"])
    await post(client, chunks, 422, first_sequence=1, deltas="z")
    assert await post(client, f"{context}/messages/m/complete") == {"final_sequence": 3}
    assert await post(client, f"{context}/messages/m/complete") == {"final_sequence": 3}
    await post(client, chunks, 409, first_sequence=4, deltas=["late"])
    assert (await client.get(f"{context}/messages/m/streaming-chunks")).json()["current_sequence"] == 3


async def test_the_second_of_two_producers_is_refused(client: httpx.AsyncClient, context: str) -> None:
    await post(client, f"{context}/messages/stream", 201, message_id="m")
    await post(client, f"{context}/messages/stream", 409, message_id="m")
    answers = await asyncio.gather(*(
        client.post(f"{context}/messages/m/chunks", json={"first_sequence": 1, "deltas": [f"producer {number}"]})
        for number in range(5)
    ))  # fmt: skip
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409, 409]
    winner = next(number for number, answer in enumerate(answers) if answer.status_code == 200)
    await post(client, f"{context}/messages/m/complete")
    message = (await client.get(f"{context}/messages", params={"ids": "m"})).json()["messages"][0]
    assert message["content"][0]["text"] == f"producer {winner}"


async def test_a_message_of_a_writer_in_python_is_not_for_others(
    engine: Engine, session: Session, client: httpx.AsyncClient
) -> None:
    path = f"/contexts/{session.thread_id}/messages/m"
    async with engine.stream_message(session, message_id="m") as message:
        await message.write("mine")
        await post(client, f"{path}/chunks", 409, first_sequence=1, deltas=["yours"])
        await post(client, f"{path}/complete", 409)


async def test_aborting_keeps_the_text(client: httpx.AsyncClient, context: str) -> None:
    await post(client, f"{context}/messages/stream", 201, message_id="m")
    await post(client, f"{context}/messages/m/chunks", first_sequence=1, deltas=["Hel"])
    assert await post(client, f"{context}/messages/m/abort") == {"final_sequence": 1}
    message = (await client.get(f"{context}/messages", params={"ids": "m"})).json()["messages"][0]
    assert (message["status"], message["content"][0]["text"]) == ("interrupted", "Hel")
    timeline = (await client.get(f"{context.replace('contexts', 'conversations')}/messages")).json()["timeline"]
    assert (timeline[-1]["content"], timeline[-1]["interrupted"]) == ("Hel", True)
    refused = await post(client, f"{context}/messages/m/complete", 409)
    assert "aborted or cancelled" in refused["detail"]


async def test_approvals(client: httpx.AsyncClient, context: str) -> None:
    path = f"{context}/tool-approvals"
    asked = await post(client, path, 201, tool_name="delete", tool_input={"path": "x"}, approval_id="a")
    assert (asked["approval_id"], asked["approved"]) == ("a", None)
    await post(client, path, 201, tool_name="delete", tool_input={"path": "x"}, approval_id="a")
    waiting = (await client.get(path)).json()["approvals"]
    assert [approval["tool_input"] for approval in waiting] == [{"path": "x"}]
    assert (await client.get(f"{context}/metadata")).json()["current_state"] == "AwaitingToolApproval"
    await post(client, f"{path}/unknown", 404, approved=True)
    assert (await post(client, f"{path}/a", approved=True, reason="fine"))["approved"] is True
    await post(client, f"{path}/a", approved=True, reason="fine")
    await post(client, f"{path}/a", 409, approved=False)
    assert (await client.get(path)).json()["approvals"] == []
    assert (await client.get(f"{context}/metadata")).json()["current_state"] == "ExecutingTool"


async def test_an_answer_resumes_the_run_that_waits_for_it(
    engine: Engine, client: httpx.AsyncClient, context: str
) -> None:
    session = await engine.sessions.store.get_thread(context.rpartition("/")[2])
    run = await engine.runs.begin_leased(session, handler="agent")
    path = f"{context}/tool-approvals"
    await post(client, path, 201, tool_name="delete", run_id=run.id, approval_id="a")
    await engine.runs.wait(run, kind="human", correlation_key="a")
    assert (await client.get(f"{context}/metadata")).json()["current_state"] == "AwaitingToolApproval"
    assert (await engine.runs.get(run.thread_id, run.id)).status == "waiting"
    await post(client, f"{path}/a", approved=True)
    assert (await engine.runs.get(run.thread_id, run.id)).status == "pending"


async def test_an_approval_that_is_not_open(client: httpx.AsyncClient, context: str) -> None:
    await post(client, f"{context}/tool-approvals", 201, tool_name="delete", approval_id="a")
    await post(client, f"{context}/messages", 201, role="user", content="never mind")
    await post(client, f"{context}/tool-approvals/a", 409, approved=True)


async def test_cancelling_ends_runs_and_streams(engine: Engine, client: httpx.AsyncClient, context: str) -> None:
    await post(client, f"{context}/cancel", 409)
    thread = context.rpartition("/")[2]
    session = await engine.sessions.store.get_thread(thread)
    run = await engine.runs.create(session, running=True)
    await post(client, f"{context}/messages/stream", 201, message_id="m", run_id=run.id)
    await post(client, f"{context}/messages/m/chunks", first_sequence=1, deltas=["Hel"])
    assert await post(client, f"{context}/cancel") == {"current_state": "Idle", "run_ids": [run.id]}
    assert (await engine.runs.get(thread, run.id)).status == "cancelled"
    message = (await client.get(f"{context}/messages", params={"ids": "m"})).json()["messages"][0]
    assert message["status"] == "interrupted"
    kinds = [event.event_type for event in await engine.sessions.events(session)]
    assert kinds == ["run_started", "cancel_requested", "run_cancelled", "assistant_message"]
    await post(client, f"{context}/messages", 201, role="user", content="left without an answer")
    assert (await post(client, f"{context}/cancel"))["current_state"] == "Idle"


async def test_messages_are_refused_while_a_run_is_being_cancelled(
    engine: Engine, client: httpx.AsyncClient, context: str
) -> None:
    """The state machine, as a caller meets it."""
    session = await engine.sessions.store.get_thread(context.rpartition("/")[2])
    run = await engine.runs.create(session, running=True)
    await engine.sessions.append(session, author="user", kind="cancel_requested")
    refused = await post(client, f"{context}/messages", 409, role="user", content="and another thing")
    assert "Cancelling" in refused["detail"]
    await engine.runs.cancel(session.thread_id, run.id)
    await post(client, f"{context}/messages", 201, role="user", content="and another thing")


async def test_an_unknown_context_is_a_404(client: httpx.AsyncClient) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "messages": {"role": "user", "content": "x"}, "messages/stream": {}, "messages/m/complete": {},
        "messages/m/chunks": {"first_sequence": 1, "deltas": []}, "messages/m/abort": {}, "cancel": {},
        "tool-approvals": {"tool_name": "x"}, "tool-approvals/a": {"approved": True}, "branches": {"name": "x"},
    }  # fmt: skip
    for path, body in bodies.items():
        await post(client, f"/contexts/unknown/{path}", 404, **body)
