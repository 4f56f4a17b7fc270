"""Turns over AG-UI: what clients hold in the end is what the database holds."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import httpx
import pytest

from cognizes.engine import Engine
from cognizes.engine.agui.snapshot import read_history
from cognizes.engine.models import Run, RunStatus, Session
from cognizes.engine.pulse.session_store import thread_uuid
from tests.integration.agui.client import AgentClient, kinds, read_frames, text_of
from tests.integration.agui.gates import Gate
from tests.integration.hosting.served.agents import HELD_AT
from tests.integration.runs.conditions import until_status
from tests.unittests.agui.legality import assert_legal


async def stored_session(engine: Engine, client: AgentClient) -> Session:
    session = await engine.sessions.get(client.agent, client.user, client.thread_id)
    assert session is not None
    return session


async def assert_as_stored(engine: Engine, client: AgentClient) -> None:
    """Messages by the stored events, texts by the stored messages, and the state."""
    session = await stored_session(engine, client)
    history = await read_history(engine.sessions.log, thread_uuid(session.thread_id))
    assert client.view.messages == history.snapshot.messages
    rows = await engine.sessions.messages(session)
    said = {row.id: row.content for row in rows if row.role in ("user", "assistant")}
    seen = {
        message["id"]: message["content"]
        for message in client.view.messages
        if message["role"] in ("user", "assistant") and message.get("content")
    }
    assert seen == said
    assert client.view.state == session.state


async def test_a_turn_with_thoughts_tools_and_state(http: httpx.AsyncClient, engine: Engine) -> None:
    client = AgentClient(http, "demo")
    frames = await client.run("Hello there", run_id="r1")
    assert kinds(frames) == [
        "RUN_STARTED", "STATE_SNAPSHOT", "REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END", "REASONING_END", "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END",
        "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT", "STATE_DELTA", "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED",
    ]  # fmt: skip
    assert [message["content"] for message in frames[0]["input"]["messages"]] == ["Hello there"]
    assert client.view.state["turns"] == 1
    assert client.view.state["app:messages"] >= 1
    assert client.view.state["user:topics"] == ["Hello there"]
    await assert_as_stored(engine, client)
    session = await stored_session(engine, client)
    run = await engine.runs.get(session.thread_id, "r1")
    assert run.status == RunStatus.COMPLETED
    assert [call["tool_name"] for call in run.tool_calls] == ["read_clock", "note_topic"]
    assert len(run.thinking_steps) == 1
    assert {event.run_id for event in await engine.sessions.events(session)} == {"r1"}


async def test_three_turns(http: httpx.AsyncClient, engine: Engine) -> None:
    client = AgentClient(http, "demo")
    for number, text in enumerate(["one", "two", "three"], 1):
        frames = await client.run(text)
        assert frames[1]["snapshot"].get("turns", 0) == number - 1
        await assert_as_stored(engine, client)
    assert client.view.state["user:topics"] == ["one", "two", "three"]
    assert [message["content"] for message in client.view.messages if message["role"] == "user"] == [
        "one", "two", "three",
    ]  # fmt: skip


async def test_sub_agents(http: httpx.AsyncClient, engine: Engine) -> None:
    client = AgentClient(http, "team")
    frames = await client.run("a poem, please")
    sent = [frame for frame in frames if frame["type"].startswith("SUBAGENT")]
    assert [(frame["type"], frame.get("name")) for frame in sent] == [
        ("SUBAGENT_STARTED", "poet"), ("SUBAGENT_FINISHED", None),
    ]  # fmt: skip
    assert len({frame["subagentRunId"] for frame in sent}) == 1
    assert text_of(frames) == "A rose is a rose."
    await assert_as_stored(engine, client)


async def test_sub_agents_are_steps_to_older_clients(http: httpx.AsyncClient) -> None:
    frames = await AgentClient(http, "team").run("a poem, please", protocolVersion=None)
    assert [(frame["type"], frame["stepName"]) for frame in frames if "stepName" in frame] == [
        ("STEP_STARTED", "poet"), ("STEP_FINISHED", "poet"),
    ]  # fmt: skip


async def test_an_exception_and_what_was_said_before_it(http: httpx.AsyncClient, engine: Engine) -> None:
    client = AgentClient(http, "failing")
    frames = await client.run("go", run_id="r1")
    assert frames[-1]["type"] == "RUN_ERROR"
    assert "the model is out of order" in frames[-1]["message"]
    session = await stored_session(engine, client)
    run = await engine.runs.get(session.thread_id, "r1")
    assert run.status == RunStatus.FAILED
    assert "the model is out of order" in (run.error or "")
    assert client.view.messages[-1]["content"] == "I was about to "
    await assert_as_stored(engine, client)
    assert (await client.run("again"))[-1]["type"] == "RUN_ERROR"


async def test_a_call_whose_arguments_break_off_is_kept(http: httpx.AsyncClient, engine: Engine) -> None:
    client = AgentClient(http, "editor")
    frames = await client.run("break")
    assert [frame["type"] for frame in frames[-2:]] == ["TOOL_CALL_END", "RUN_ERROR"]
    call = client.view.messages[-1]["toolCalls"][0]
    assert call["function"] == {"name": "write_document", "arguments": '{"document":"Once upon a time'}
    await assert_as_stored(engine, client)
    # The next turn of the model does not contain the broken call.
    assert (await client.run("write"))[-1]["type"] == "RUN_FINISHED"
    await assert_as_stored(engine, client)


async def test_an_error_that_the_model_reports(http: httpx.AsyncClient, engine: Engine) -> None:
    client = AgentClient(http, "failing")
    frames = await client.run("report", run_id="r1")
    assert (frames[-1]["type"], frames[-1]["code"]) == ("RUN_ERROR", "SAFETY")
    run = await engine.runs.get((await stored_session(engine, client)).thread_id, "r1")
    assert (run.status, run.error) == (RunStatus.FAILED, "the answer was blocked")


async def test_interrupt_and_resume(http: httpx.AsyncClient, engine: Engine) -> None:
    for confirmed in (True, False):
        client = AgentClient(http, "demo")
        frames = await client.run("delete my diary")
        (interrupt,) = frames[-1]["outcome"]["interrupts"]
        assert "TOOL_CALL_RESULT" not in kinds(frames)
        (call_id,) = [frame["toolCallId"] for frame in frames if frame["type"] == "TOOL_CALL_START"]
        assert interrupt["toolCallId"] == call_id
        # After a reload the question is still there.
        reloaded = AgentClient(http, "demo", client.thread_id)
        assert (await reloaded.connect())[-1]["outcome"]["interrupts"] == [interrupt]
        answer = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"confirmed": confirmed}}
        resumed = await client.run(resume=[answer])
        assert [frame["toolCallId"] for frame in resumed if frame["type"].startswith("TOOL_CALL")] == [call_id]
        assert ("Done: diary is deleted." in text_of(resumed)) == confirmed
        assert client.view.state.get("deleted") == (["diary"] if confirmed else None)
        await assert_as_stored(engine, client)
        assert "outcome" not in (await reloaded.connect())[-1]


async def asked(http: httpx.AsyncClient, engine: Engine) -> tuple[AgentClient, Any, Run]:
    """A client whose agent asks for a confirmation: the interrupt, and the run that waits for the answer."""
    client = AgentClient(http, "demo")
    (interrupt,) = (await client.run("delete my diary"))[-1]["outcome"]["interrupts"]
    (run,) = await engine.runs.list((await stored_session(engine, client)).thread_id)
    return client, interrupt, run


async def test_an_open_tool_approval_is_a_waiting_run_in_every_list(http: httpx.AsyncClient, engine: Engine) -> None:
    client, interrupt, run = await asked(http, engine)
    assert run.wait is not None
    assert (run.status, run.completed_at, run.lease_expires_at) == (RunStatus.WAITING, None, None)
    assert (run.wait.kind, run.wait.correlation_key, run.wait.reason) == (
        "human",
        interrupt["id"],
        interrupt["message"],
    )
    assert run.resumption_context is not None
    assert run.resumption_context["memory_snapshot"]["working_memory"]["session_id"] == client.thread_id
    by_status = {"status": "waiting", "user_id": client.user}
    for path in ("/api/runs", f"/api/sessions/{run.thread_id}/runs"):
        found = (await http.get(path, params=by_status)).json()["runs"]
        assert [(one["id"], one["status"]) for one in found] == [(run.id, "waiting")], path
    (thread,) = (await http.get("/api/debug/threads", params=by_status)).json()["threads"]
    assert (thread["thread_id"], thread["status"]) == (run.thread_id, "waiting")
    idle = (await http.get("/api/debug/threads", params={**by_status, "status": "idle"})).json()["threads"]
    assert idle == []
    context = (await http.get(f"/contexts/{run.thread_id}/metadata")).json()
    assert context["current_state"] == "AwaitingToolApproval"
    # An observer of the stored run, in the protocol's own frames, sees the interrupt and the end.
    async with http.stream("GET", f"/api/runs/{run.id}/events", params={"profile": "agui"}) as observed:
        frames = [frame async for frame in read_frames(observed)]
    assert frames[-1]["outcome"]["interrupts"] == [interrupt]


async def test_the_answer_completes_the_run_that_waited(http: httpx.AsyncClient, engine: Engine) -> None:
    client, interrupt, run = await asked(http, engine)
    answer = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"confirmed": True}}
    assert "Done: diary is deleted." in text_of(await client.run(resume=[answer]))
    runs = await engine.runs.list(run.thread_id)
    assert [one.status for one in runs] == [RunStatus.COMPLETED] * 2
    kinds_of_runs = [
        (event.event_type, event.run_id)
        for event in await engine.sessions.events(await stored_session(engine, client))
        if event.event_type.startswith("run_")
    ]
    assert kinds_of_runs == [
        ("run_started", run.id), ("run_waiting", run.id), ("run_finished", run.id),
        ("run_started", runs[0].id), ("run_finished", runs[0].id),
    ]  # fmt: skip


async def test_the_run_of_an_answer_has_the_id_of_its_input_and_both_runs_name_each_other(
    http: httpx.AsyncClient, engine: Engine
) -> None:
    for answers_as_first in (False, True):
        client, interrupt, run = await asked(http, engine)
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"confirmed": True}}]
        given = run.id if answers_as_first else f"answer-{uuid4()}"
        frames = await client.run(run_id=given, resume=resume)
        resumed = frames[0]["runId"]
        assert {frame["runId"] for frame in frames if "runId" in frame} == {resumed}
        assert (resumed == given) is not answers_as_first
        second = (await http.get(f"/api/runs/{resumed}")).json()
        assert (second["id"], second["status"]) == (resumed, "completed")
        first = (await http.get(f"/api/runs/{run.id}")).json()
        assert (first["status"], first["result"]) == ("completed", {"continued_by": resumed})
        events = await engine.sessions.events(await stored_session(engine, client))
        [began] = [event for event in events if event.event_type == "run_started" and event.run_id == resumed]
        assert began.content["continues"] == run.id
    await assert_as_stored(engine, client)


async def test_another_message_needs_the_policy_to_cancel_the_run_that_waits(
    http: httpx.AsyncClient, engine: Engine
) -> None:
    client, interrupt, run = await asked(http, engine)
    refused = await http.post("/agui/demo", json=client.input("never mind"))
    assert refused.status_code == 409
    assert (refused.json()["run_id"], refused.json()["interrupts"]) == (run.id, [interrupt["id"]])
    assert (await engine.runs.get(run.thread_id, run.id)).status == RunStatus.WAITING
    frames = await client.run("never mind", forwardedProps={"cognizes": {"onBusy": "cancel"}})
    assert "outcome" not in frames[-1]
    assert (await engine.runs.get(run.thread_id, run.id)).status == RunStatus.CANCELLED
    answer = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"confirmed": True}}
    assert (await http.post("/agui/demo", json=client.input(resume=[answer]))).status_code == 422


@pytest.mark.parametrize("way", ["agent", "run", "context"])
async def test_a_cancelled_run_withdraws_its_question(http: httpx.AsyncClient, engine: Engine, way: str) -> None:
    client, interrupt, run = await asked(http, engine)
    if way == "agent":
        assert await client.cancel()
    else:
        path = f"/api/runs/{run.id}/cancel" if way == "run" else f"/contexts/{run.thread_id}/cancel"
        assert (await http.post(path)).status_code in (200, 202)
    assert (await engine.runs.get(run.thread_id, run.id)).status == RunStatus.CANCELLED
    assert "interrupts" not in (await client.connect())[-1].get("outcome", {})
    assert (await http.get(f"/api/debug/threads/{run.thread_id}/questions")).json()["questions"] == []
    answer = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"confirmed": True}}
    assert (await http.post("/agui/demo", json=client.input(resume=[answer]))).status_code == 409
    assert "outcome" not in (await client.run("something else"))[-1]


@pytest.mark.parametrize("confirmed", [True, False])
async def test_a_signal_continues_the_run_that_waits_for_an_approval(
    http: httpx.AsyncClient, engine: Engine, confirmed: bool
) -> None:
    client, interrupt, run = await asked(http, engine)
    signal = {"correlation_key": interrupt["id"], "payload": {"confirmed": confirmed}}
    assert (await http.post(f"/api/runs/{run.id}/signal", json=signal)).json()["outcome"] == "resumed"
    done = await until_status(engine, run, RunStatus.COMPLETED, RunStatus.FAILED)
    assert (done.status, done.error, done.attempt) == (RunStatus.COMPLETED, None, 2)
    session = await stored_session(engine, client)
    assert session.state.get("deleted") == (["diary"] if confirmed else None)
    assert "outcome" not in (await client.connect())[-1]


async def test_a_signal_that_answers_nothing_fails_the_run(http: httpx.AsyncClient, engine: Engine) -> None:
    _, interrupt, run = await asked(http, engine)
    signal = {"correlation_key": interrupt["id"], "payload": "sure"}
    assert (await http.post(f"/api/runs/{run.id}/signal", json=signal)).json()["outcome"] == "resumed"
    failed = await until_status(engine, run, RunStatus.COMPLETED, RunStatus.FAILED)
    assert failed.status == RunStatus.FAILED
    assert "must say whether it is confirmed" in (failed.error or "")


async def test_a_resume_under_the_id_of_the_run_that_asked(http: httpx.AsyncClient, engine: Engine) -> None:
    """CopilotKit sends it so; the answer is a run of its own, and the call's row gets its result."""
    client = AgentClient(http, "demo")
    (interrupt,) = (await client.run("delete my diary", run_id="asked"))[-1]["outcome"]["interrupts"]
    answer = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"confirmed": True}}
    resumed = await client.run(resume=[answer], run_id="asked")
    assert "Done: diary is deleted." in text_of(resumed)
    assert resumed[0]["runId"] != "asked"
    thread_id = (await stored_session(engine, client)).thread_id
    asked = await engine.runs.get(thread_id, "asked")
    (call,) = [call for call in asked.tool_calls if call["id"] == interrupt["toolCallId"]]
    assert "diary" in str(call["output"])
    assert (await engine.runs.get(thread_id, resumed[0]["runId"])).status == RunStatus.COMPLETED


async def test_a_wrong_resume_is_refused(http: httpx.AsyncClient) -> None:
    client = AgentClient(http, "demo")
    (interrupt,) = (await client.run("delete my diary"))[-1]["outcome"]["interrupts"]
    for answer in (
        {"interruptId": "unknown", "status": "resolved", "payload": {"confirmed": True}},
        {"interruptId": interrupt["id"], "status": "resolved", "payload": "sure"},
    ):
        refused = await http.post("/agui/demo", json=client.input(resume=[answer]))
        assert refused.status_code == 422, refused.text
    cancelled = await client.run(resume=[{"interruptId": interrupt["id"], "status": "cancelled"}])
    assert "did not confirm" in text_of(cancelled)


async def test_tools_of_the_client(http: httpx.AsyncClient, engine: Engine) -> None:
    client = AgentClient(http, "painter")
    tool = {"name": "pick_colour", "description": "Asks the user.", "parameters": {"type": "object"}}
    frames = await client.run("paint", tools=[tool])
    (call_id,) = frames[-1]["outcome"]["pendingToolCallIds"]
    # After a reload the call still waits.
    reloaded = AgentClient(http, "painter", client.thread_id)
    assert (await reloaded.connect())[-1]["outcome"] == {"type": "success", "pendingToolCallIds": [call_id]}
    client.view.add({"id": "answer", "role": "tool", "toolCallId": call_id, "content": "blue"})
    frames = await client.run(tools=[tool])
    assert text_of(frames) == "You picked blue."
    again = AgentClient(http, "painter", client.thread_id)
    assert "outcome" not in (await again.connect())[-1]
    assert [message["id"] for message in again.view.messages] == [message["id"] for message in client.view.messages]


async def test_a_tab_that_missed_a_turn_takes_nothing_back(http: httpx.AsyncClient, engine: Engine) -> None:
    client = AgentClient(http, "demo")
    await client.run("one")
    late = AgentClient(http, "demo", client.thread_id)
    await late.connect()
    assert late.view.state["turns"] == 1
    await client.run("two")
    await late.run("three", state={**late.view.state, "mine": True})
    state = (await stored_session(engine, client)).state
    assert (state["turns"], state["mine"]) == (3, True)
    await late.run("four", state={**late.view.state, "mine": False})
    await late.run("five", state={**late.view.state, "mine": True})
    assert (await stored_session(engine, client)).state["mine"] is True, "a client may set a key back"


async def test_the_clients_state_is_kept(http: httpx.AsyncClient, engine: Engine) -> None:
    client = AgentClient(http, "demo")
    client.view.state = {"theme": "dark", "user:topics": ["forged"], "temp:x": 1}
    frames = await client.run("hi")
    assert frames[1]["snapshot"]["theme"] == "dark"
    assert "forged" not in frames[1]["snapshot"].get("user:topics", [])
    assert "temp:x" not in frames[1]["snapshot"]
    client.view.state = {**client.view.state, "theme": "light", "app:messages": 0}
    frames = await client.run("hi again")
    assert frames[1]["snapshot"]["theme"] == "light"
    assert client.view.state["app:messages"] >= 2
    await assert_as_stored(engine, client)


async def test_older_clients_get_what_they_know(http: httpx.AsyncClient) -> None:
    client = AgentClient(http, "slow")
    running = asyncio.create_task(client.run(Gate().text, protocolVersion=None))
    await client.until("TEXT_MESSAGE_CONTENT")
    assert await client.cancel()
    assert "outcome" not in (await running)[-1]


async def test_problems(http: httpx.AsyncClient) -> None:
    client = AgentClient(http, "demo")
    for path in ("/agui/unknown", "/agui/unknown/connect", "/agui/unknown/cancel"):
        answer = await http.post(path, json=client.input("x"))
        assert answer.status_code == 404
        assert "demo" in answer.json()["detail"]
    assert (await http.post("/agui/demo", json=client.input())).status_code == 422
    assert (await http.post("/agui/demo", json={})).status_code == 422
    await client.run("hello", run_id="r1")
    assert (await http.post("/agui/demo", json=client.input("more", run_id="r1"))).status_code == 409


async def test_the_strict_profile_of_the_runs_own_route(http: httpx.AsyncClient, engine: Engine) -> None:
    client = AgentClient(http, "demo")

    async def follow() -> list[dict[str, Any]]:
        async with http.stream("GET", "/api/runs/r-strict/events", params={"profile": "agui"}) as response:
            return [frame async for frame in read_frames(response)]

    following = asyncio.create_task(follow())
    await client.run("hello", run_id="r-strict")
    frames = await asyncio.wait_for(following, 60)
    assert_legal(frames)
    late = await follow()
    assert [frame["type"] for frame in late] == [frame["type"] for frame in frames]
    observer = AgentClient(http, "demo", client.thread_id)
    observer.fold(late)
    assert observer.view.messages == client.view.messages
    assert observer.view.state == client.view.state


async def test_the_monitor_profile_shows_an_adk_run_word_by_word(http: httpx.AsyncClient) -> None:
    """While the model is held in the middle of its answer, the seed's route has the words so far, one frame each."""
    client, gate = AgentClient(http, "slow"), Gate()
    followed: list[dict[str, Any]] = []

    async def follow() -> None:
        async with http.stream("GET", "/api/runs/r-monitor/events") as response:
            async for frame in read_frames(response):
                followed.append(frame)
                if frame["type"] == "RUN_FINISHED":
                    return

    def words() -> list[str]:
        return [frame["delta"] for frame in followed if frame.get("delta") and frame["messageId"] != said["id"]]

    body = client.input(gate.text, run_id="r-monitor")
    said = body["messages"][-1]
    following = asyncio.create_task(follow())
    running = asyncio.create_task(client.follow("/agui/slow", body))
    async with asyncio.timeout(60):
        while len(words()) < HELD_AT:
            await asyncio.sleep(0.01)
    assert not running.done()
    gate.open()
    frames = await running
    await asyncio.wait_for(following, 60)
    assert words() == [frame["delta"] for frame in frames if frame["type"] == "TEXT_MESSAGE_CONTENT"]
    (answer,) = {frame["messageId"] for frame in frames if frame["type"] == "TEXT_MESSAGE_START"}
    shown = [frame["type"] for frame in followed if frame.get("messageId") == answer]
    assert shown == ["TEXT_MESSAGE_START", *["TEXT_MESSAGE_CONTENT"] * len(words()), "TEXT_MESSAGE_END"]
    assert [frame["type"] for frame in followed[:5]] == [
        "CUSTOM", "RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
    ]  # fmt: skip
