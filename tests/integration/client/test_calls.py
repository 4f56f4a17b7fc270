"""Calls of the client: a journey through all of them, checked with the OpenAPI document; repetition, errors, keys."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from pydantic import BaseModel

import cognizes.client
from cognizes.client import (
    DELETE,
    AuthenticationError,
    Client,
    ConflictError,
    InvalidAnswerError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    ServerError,
    ServerUnavailableError,
    TooManyRequestsError,
    models,
)
from cognizes.engine import Engine
from cognizes.engine.access import Permission
from cognizes.engine.api.main import app
from tests.engine_parts import transport_of
from tests.faults.cutting_proxy import Cut, CuttingProxy
from tests.integration.client.relay import Relay, answer
from tests.served import Served, serve

SOURCE = Path(str(cognizes.client.__file__)).parent
DOCUMENT = app.openapi()


def answer_schema(method: str, path: str) -> str:
    """The name of the schema of a route's answer."""
    responses = DOCUMENT["paths"][path][method.lower()]["responses"]
    reference: str = responses["200"]["content"]["application/json"]["schema"]["$ref"]
    return reference.rpartition("/")[2]


SCHEMAS = {
    "Session": "SessionView",
    "SessionPage": "SessionPage",
    "Appended": "Appended",
    "Event": "EventView",
    "EventPage": "EventPage",
    "State": "StateView",
    "Message": "MessageView",
    "MessagePage": "MessagePage",
    "TimelinePage": "TimelineView",
    "Attachment": "AttachmentView",
    "AttachmentPage": "AttachmentPage",
    "Wait": "WaitView",
    "Run": "RunView",
    "Step": "StepView",
    "RunDetail": "RunDetail",
    "RunPage": "FoundRuns",
    "Signalled": "Signalled",
    "AgentList": "AgentList",
    "Memory": "MemoryView",
    "MemoryPage": "Memories",
    "Hit": "HitView",
    "Hits": "Hits",
    "MessageHit": "MessageHitView",
    "MessageHits": "MessageHits",
    "ErasedRows": "Erased",
    "ContextItem": "ContextItemView",
    "PromptContext": answer_schema("POST", "/memory/context"),
    "Fact": "Fact",
    "FactSource": "EventOfFact",
    "FactVersion": "FactVersionView",
    "FactHistory": "FactHistory",
    "Stored": "Stored",
    "ModelUsage": "ModelUsageView",
    "Usage": "UsageView",
    "Schedule": "ScheduleView",
    "SchedulePage": "SchedulePage",
    "Caller": "CallerView",
}
NO_SCHEMA = {"Answer", "Agent", "Branch", "BranchList", "Approval", "ApprovalList", "NewToolCall"}
"""The base, and answers that the document describes as objects."""


def paths_of_the_client() -> set[str]:
    """All texts of the source that are paths of the API; those of Signal-Pull are built from parts."""
    found = set()
    for file in SOURCE.glob("*.py"):
        if file.stem != "signal_pull":
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match(r"/[a-z]", node.value):
                    found.add(node.value)
    return found


def test_every_path_exists() -> None:
    paths = paths_of_the_client()
    assert len(paths) > 35
    assert paths - set(DOCUMENT["paths"]) == set()


def test_every_answer_has_the_fields_of_the_document() -> None:
    declared = {name for name, kind in vars(models).items() if isinstance(kind, type) and issubclass(kind, BaseModel)}
    assert declared - {"BaseModel"} == SCHEMAS.keys() | NO_SCHEMA
    for name, schema in SCHEMAS.items():
        fields = {field.alias or name for name, field in vars(models)[name].model_fields.items()}
        assert fields == set(DOCUMENT["components"]["schemas"][schema]["properties"]), name


class Recorder(httpx.AsyncHTTPTransport):
    """Compares each request with the document: route, parameters, headers and fields of the body."""

    def __init__(self) -> None:
        super().__init__()
        self.called: set[str] = set()
        self.seen: list[str] = []
        self.templates = sorted(DOCUMENT["paths"], key=lambda path: (path.count("{"), -len(path)))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode().partition("?")[0]
        template = next(found for found in self.templates if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", found), path))
        operation = DOCUMENT["paths"][template][request.method.lower()]
        known = {item["name"] for item in operation.get("parameters", []) if item["in"] == "query"}
        assert set(request.url.params) <= known, f"{request.method} {template}"
        content = operation.get("requestBody", {}).get("content", {})
        if request.headers.get("content-type") == "application/json":
            assert "application/json" in content, f"{request.method} {template}"
        self.seen += request.headers.get_list("x-seen-sequence")
        response = await super().handle_async_request(request)
        if response.status_code < 400:
            declared = operation["responses"]
            assert str(response.status_code) in declared, f"{request.method} {template}: {response.status_code}"
            self.called.add(template)
        return response


async def test_the_journey_through_all_calls(served: Served) -> None:
    recorder = Recorder()
    async with Client(served.url, timeout=60, transport=recorder) as client:
        await go_through_sessions(client)
        await go_through_runs(client)
        await go_through_a_run_of_the_caller(client)
        await go_through_branches_and_approvals(client)
        await go_through_user_data(client)
        await go_through_memory(client)
        await go_through_schedules(client)
        assert (await client.caller()).name
        assert [agent.url for agent in await client.agents.list() if agent.name == "generic"] == ["/agui/generic"]
        run = await client.agents.start("generic", str(uuid4()), "Hello")
        assert (await client.runs.wait(run.id)).status == "completed"
        assert (await client.usage_of_run(run.id)).calls == 0
    assert paths_of_the_client() - recorder.called == set()


async def go_through_sessions(client: Client) -> None:
    sessions = client.sessions
    app_name = f"app-{uuid4()}"
    session = await sessions.create(app_name, "ada", state={"step": 0, "user:lang": "en"}, metadata={"a": 1})
    assert session.state == {"step": 0, "user:lang": "en"}
    thread = session.thread_id
    appended = await sessions.append(
        thread, "user_message", author="user", text="Hi", state={"step": 1, "gone": 1}, expected_version=session.version
    )
    assert appended.version > session.version
    with pytest.raises(ConflictError) as conflict:
        await sessions.append(thread, "note", author="user", state={"step": 2}, expected_version=session.version)
    assert (conflict.value.expected, conflict.value.actual) == (session.version, appended.version)
    again = await sessions.append(thread, "user_message", author="user", text="Hi", event_id="e1")
    assert again == await sessions.append(thread, "user_message", author="user", text="Hi", event_id="e1")
    await sessions.change_state(thread, {"gone": DELETE, "odd": "\ue000 \ud800"})
    state = await sessions.state(thread)
    assert state.state == {"step": 1, "user:lang": "en", "odd": "\ue000 \ud800"}
    assert (await sessions.state(thread, sequence=appended.sequence_num)).state["gone"] == 1
    assert (await sessions.change(thread, title="Greetings", metadata={"b": 2})).metadata == {"a": 1, "b": 2}
    for number in range(3):
        await sessions.append(thread, "assistant_message", author="agent", text=f"answer {number}")
    page = await sessions.events(thread, limit=2)
    assert page.has_more
    events = [event async for event in sessions.each_event(thread)]
    assert [event.sequence_num for event in events] == list(range(1, page.last_sequence + 1))
    texts = [message.content async for message in sessions.each_message(thread)]
    assert texts == ["Hi", "Hi", "answer 0", "answer 1", "answer 2"]
    newest = await sessions.timeline(thread, limit=2)
    assert [item["content"] for item in newest.items] == ["answer 1", "answer 2"]
    older = await sessions.timeline(thread, before=newest.first_sequence)
    assert [item["content"] for item in older.items] == ["Hi", "Hi", "answer 0"]
    fork = await sessions.fork(thread, at_sequence=1)
    assert (await sessions.get(fork.thread_id)).last_sequence == 1
    file = await sessions.attach(thread, b"\x89PNG", filename="a b.png", mime_type="image/png")
    assert [found.name for found in (await sessions.attachments(thread)).attachments] == ["a b.png"]
    assert await sessions.download(thread, file.id) == b"\x89PNG"
    found = [one.thread_id async for one in sessions.each(app_name, "ada")]
    assert sorted(found) == sorted([thread, fork.thread_id])
    assert (await client.usage(app_name, since=datetime.now(UTC) - timedelta(days=1))).total_tokens == 0
    assert (await client.usage_of_session(thread)).models == []
    await sessions.delete(fork.thread_id)
    with pytest.raises(NotFoundError):
        await sessions.get(fork.thread_id)


async def go_through_runs(client: Client) -> None:
    session = await client.sessions.create("shop", "ada")
    thread = session.thread_id
    queued = await client.runs.enqueue(thread, "mail", input={"to": "x"}, run_id="a/b c?", max_attempts=2, priority=3)
    assert (queued.status, queued.id, queued.priority) == ("pending", "a/b c?", 3)
    assert (await client.runs.get("a/b c?", thread_id=thread)).input == {"to": "x"}
    kept = await client.runs.signal("a/b c?", "key", {"ok": True}, thread_id=thread)
    assert kept.outcome == "kept"
    assert (await client.runs.cancel("a/b c?", thread_id=thread)).status == "cancelled"
    assert (await client.runs.wait("a/b c?", thread_id=thread)).has_ended
    for thread_id in (thread, None):
        name = str(uuid4())
        await client.runs.enqueue(thread, "mail", run_id=name, max_attempts=1)
        assert (await client.runs.signal(name, "k", thread_id=thread_id)).outcome == "kept"
        for step, body in (("start", None), ("fail", {"error": "no"})):
            path = "/api/sessions/{thread_id}/runs/{run_id}/" + step
            await transport_of(client).call("POST", path, thread, name, body=body)
        assert (await client.runs.retry(name, thread_id=thread_id)).status == "pending"
        assert (await client.runs.cancel(name, thread_id=thread_id)).status == "cancelled"
    assert (await client.runs.create(thread)).status == "running"
    assert len(await client.runs.of_session(thread)) == 4
    page = await client.runs.list(app_name="shop", user_id="ada", handler="mail", status=["cancelled"])
    assert "a/b c?" in [run.id for run in page.runs]


async def go_through_a_run_of_the_caller(client: Client) -> None:
    runs = client.runs
    thread = (await client.sessions.create("shop", "ada")).thread_id
    run = await runs.create(thread, lease_seconds=60)
    await runs.think(run, "The order needs a label.")
    call_id = await runs.call_tool(run, "print_label", {"order": 7})
    assert (await runs.finish_tool(run, call_id, {"printed": True})).status == "running"
    before = (await runs.get(run.id, thread_id=thread)).lease_expires_at
    after = (await runs.heartbeat(run, lease_seconds=3600)).lease_expires_at
    assert before is not None
    assert after is not None
    assert after > before
    assert (await runs.suspend(run, "human", "sign", reason="Sign it?")).is_waiting
    await runs.answer(run.id, {"signed": True}, thread_id=thread)
    second = await runs.start(run)
    assert second.resumption is not None
    assert second.resumption["payload"] == {"signed": True}
    with pytest.raises(ConflictError):
        await runs.finish(run)  # the first attempt holds the run no more
    ended = await runs.finish(second)
    assert (ended.status, ended.thinking_steps[0]["thought"]) == ("completed", "The order needs a label.")
    [stored] = ended.tool_calls
    assert (stored["tool_name"], stored["output"]) == ("print_label", {"printed": True})
    failed = await runs.fail(await runs.create(thread), "no paper")
    assert (failed.status, failed.error) == ("failed", "no paper")


async def go_through_branches_and_approvals(client: Client) -> None:
    sessions = client.sessions
    thread = (await sessions.create("shop", "ada")).thread_id
    for step in (1, 2):
        await sessions.append(thread, "user_message", author="user", text=f"step {step}", state={"step": step})
    created = await sessions.create_branch(thread, "other/way", at_sequence=1)
    assert (created.forked_at, created.is_active) == (1, False)
    assert (await sessions.switch_branch(thread, "other/way")).is_active
    assert [branch.name for branch in await sessions.branches(thread) if branch.is_active] == ["other/way"]
    assert (await sessions.branch_state(thread, "main")).state == {"step": 2}
    assert (await sessions.state(thread)).state == {"step": 1}
    await sessions.switch_branch(thread, "main")
    await sessions.delete_branch(thread, "other/way")
    assert [branch.name for branch in await sessions.branches(thread)] == ["main"]

    asked = await sessions.ask_approval(thread, "refund", {"amount": 3}, message="Refund 3?")
    assert [open_.approval_id for open_ in await sessions.approvals(thread)] == [asked.approval_id]
    answered = await sessions.answer_approval(thread, asked.approval_id, approved=False, reason="too much")
    assert answered.approved is False
    assert await sessions.approvals(thread) == []


async def go_through_user_data(client: Client) -> None:
    app_name = f"app-{uuid4()}"
    session = await client.sessions.create(app_name, "ada", title="A\u2028B")
    lines = [json.loads(line) async for line in client.export_user_data(app_name, "ada")]
    assert session.thread_id in [line["row"]["id"] for line in lines[1:] if line.get("table") == "threads"]
    found = await client.call("GET", "/contexts/{context_id}/llm-context", session.thread_id, query={"max_tokens": 9})
    assert isinstance(found, dict)
    assert found["messages"] == []
    assert (await client.erase_user_data(app_name, "ada"))["threads"] == 1
    with pytest.raises(NotFoundError):
        await client.sessions.get(session.thread_id)
    with pytest.raises(NotFoundError):
        await client.call("POST", "/api/sessions/{thread_id}/snapshots", session.thread_id)


async def go_through_memory(client: Client) -> None:
    app_name, memory = f"app-{uuid4()}", client.memory
    assert await memory.add(app_name, "ada", "Ada drinks green tea", tags=["drink"], metadata={"cups": 2}) == 1
    assert await memory.add(app_name, "ada", "Ada lives in Rome", source_id="home") == 1
    assert await memory.add(app_name, "ada", "Ada lives in Rome", source_id="home") == 0
    [hit] = await memory.recall(app_name, "ada", "green tea", tags=["drink"], metadata={"cups": {"gte": 2}})
    assert hit.text == "Ada drinks green tea"
    assert 0 < hit.score <= 1
    assert await memory.recall(app_name, "ada", "green tea", metadata={"cups": {"lt": 2}}) == []
    assert await memory.share(app_name, "The shop closes at six") == 1
    shared = await memory.recall(app_name, "bob", "When does the shop close?", visibility=["user", "app"])
    assert [found.visibility for found in shared] == ["app"]
    context = await memory.context(app_name, "ada", "Which tea?", budget_tokens=200, min_score=0.0)
    assert "green tea" in context.text
    assert 0 < context.tokens <= 200
    before = (await memory.set_fact(app_name, "ada", "city", "Rome", text="Ada lives in Rome")).updated_at
    await memory.set_fact(app_name, "ada", "city", "Oslo", text="Ada lives in Oslo")
    fact = await memory.fact(app_name, "ada", "city")
    assert fact is not None
    assert fact.value == "Oslo"
    past = await memory.fact(app_name, "ada", "city", as_of=before)
    assert past is not None
    assert past.value == "Rome"
    assert [version.value for version in await memory.fact_history(app_name, "ada", "city")] == ["Oslo", "Rome"]
    await memory.delete_fact(app_name, "ada", "city")
    assert await memory.fact(app_name, "ada", "city") is None
    kept = [found async for found in memory.each(app_name, "ada", kinds=["note"])]
    assert len(kept) == 2
    await memory.forget(app_name, "ada", kept[0].id)
    assert len((await memory.list(app_name, "ada", tags=["drink"])).memories) == 1
    with pytest.raises(NotFoundError):
        await memory.forget(app_name, "ada", kept[0].id)
    session = await client.sessions.create(app_name, "ada")
    await client.sessions.append(session.thread_id, "user_message", author="user", text="Where is my blue lamp?")
    async with asyncio.timeout(60):
        while not (found := await memory.search_messages(app_name, "blue lamp", user_id="ada", roles=["user"])):
            await asyncio.sleep(0.1)  # the index follows the messages
    assert [(hit.content, hit.session_id) for hit in found] == [("Where is my blue lamp?", session.session_id)]


async def go_through_schedules(client: Client) -> None:
    schedules = client.schedules
    daily = await schedules.create("0 8 * * MON-FRI", "report", app_name="shop", user_id="ada", input={"kind": "short"})
    every = await schedules.create(timedelta(days=300), "poll", app_name="shop", user_id="ada")
    assert every.every_seconds == timedelta(days=300).total_seconds()
    assert len((await schedules.get(daily.id, count=3)).next_times) == 3
    assert (await schedules.pause(daily.id)).paused_at is not None
    assert (await schedules.resume(daily.id)).paused_at is None
    listed = await schedules.list(app_name="shop", user_id="ada")
    assert {daily.id, every.id} <= {found.id for found in listed.schedules}
    await schedules.delete(daily.id)
    await schedules.delete(every.id)


async def test_a_read_after_an_append_names_the_event(served: Served) -> None:
    recorder = Recorder()
    async with Client(served.url, timeout=60, transport=recorder) as client:
        session = await client.sessions.create("shop", "ada")
        await client.sessions.get(session.thread_id)
        for _ in range(2):
            appended = await client.sessions.append(session.thread_id, "note", author="user")
        await client.sessions.timeline(session.thread_id)
    assert recorder.seen == [str(appended.sequence_num)]


async def test_signal_pull_of_the_client(client: Client) -> None:
    session = await client.sessions.create("shop", "ada")
    async with client.signal_pull(session.thread_id) as copy:
        await client.sessions.append(session.thread_id, "user_message", author="user", text="Hi")
        async with asyncio.timeout(60):
            found = await copy.wait_for(lambda context: [message.text for message in context.messages] == ["Hi"])
    assert found.id == session.thread_id


# Repetition


@pytest.fixture
async def cutting(served: Served) -> AsyncIterator[CuttingProxy]:
    proxy = CuttingProxy(int(served.url.rpartition(":")[2]))
    async with proxy.open():
        yield proxy


async def stop_cutting(proxy: CuttingProxy, count: int = 1) -> None:
    while sum(proxy.cuts.values()) < count:
        await asyncio.sleep(0.005)
    proxy.plan = Cut.NEVER


@pytest.mark.parametrize("plan", [Cut.IN_THE_REQUEST, Cut.BEFORE_THE_ANSWER, Cut.IN_THE_ANSWER])
async def test_a_lost_answer_of_a_write_that_counts_once(client: Client, cutting: CuttingProxy, plan: Cut) -> None:
    session = await client.sessions.create("shop", "ada")
    thread = session.thread_id
    mine = await client.runs.create(thread)
    async with Client(f"http://127.0.0.1:{cutting.port}", timeout=60) as through:
        for expected, call in enumerate(
            (
                lambda: through.sessions.append(thread, "note", author="user", state={"n": 1}),
                lambda: through.runs.enqueue(thread, "mail"),
                lambda: through.memory.add("shop", thread, "a text"),
                lambda: through.runs.finish(mine),
                lambda: through.sessions.delete(thread),
            ),
            1,
        ):
            cutting.plan = plan
            stopping = asyncio.create_task(stop_cutting(cutting, expected))
            await call()
            await stopping
            if expected == 2:
                events = [event.event_type async for event in client.sessions.each_event(thread)]
                assert events.count("note") == 1
                assert len(await client.runs.of_session(thread)) == 2
    assert len((await client.memory.list("shop", thread)).memories) == 1
    with pytest.raises(NotFoundError):
        await client.sessions.get(thread)


async def test_a_lost_answer_of_a_write_that_may_count_twice_is_an_error(client: Client, cutting: CuttingProxy) -> None:
    name = f"app-{uuid4()}"
    cutting.plan = Cut.BEFORE_THE_ANSWER
    async with Client(f"http://127.0.0.1:{cutting.port}", timeout=60) as through:
        with pytest.raises(ServerUnavailableError, match="no answer to POST /api/sessions"):
            await through.sessions.create(name, "ada")
    assert len((await client.sessions.list(name)).sessions) == 1


async def test_busy_and_unavailable_servers_are_asked_again(relay: Relay) -> None:
    busy = answer("429 Too Many Requests", "Retry-After: 0")
    gone = answer("503 Service Unavailable", "Retry-After: 0")
    async with Client(relay.url, timeout=60) as client:
        relay.answers = [busy, busy]
        session = await client.sessions.create("shop", "ada")
        relay.cut()
        relay.answers = [gone, busy, gone]
        assert (await client.sessions.get(session.thread_id)).thread_id == session.thread_id
        assert relay.answers == []


async def test_a_call_that_may_count_twice_is_not_repeated_after_503(relay: Relay) -> None:
    relay.answers = [answer("503 Service Unavailable", "Retry-After: 0", body="no server")]
    async with Client(relay.url) as client:
        with pytest.raises(ServerError, match="503 Service Unavailable: no server"):
            await client.sessions.create("shop", "ada")


async def test_the_time_of_repetition_is_limited(relay: Relay) -> None:
    relay.answers = [answer("429 Too Many Requests", "Retry-After: 30")]
    async with Client(relay.url, retry_seconds=1) as client:
        with pytest.raises(TooManyRequestsError) as caught:
            await client.caller()
        assert caught.value.retry_after == 30
    async with Client("http://127.0.0.1:1", retry_seconds=0.2) as client:
        with pytest.raises(ServerUnavailableError):
            await client.caller()


# Errors


async def test_errors_carry_status_text_and_request_id(client: Client, relay: Relay) -> None:
    with pytest.raises(InvalidInputError) as caught:
        await client.sessions.create("", "ada")
    assert caught.value.status == 422
    assert "app_name" in caught.value.detail
    assert caught.value.request_id in str(caught.value)
    assert caught.value.problem["errors"]
    relay.answers = [answer("200 OK", "Content-Type: text/html", body="<html>Welcome</html>")]
    async with Client(relay.url) as other:
        with pytest.raises(InvalidAnswerError, match="address of a Cognizes server"):
            await other.caller()
    for name in ("", ".", ".."):
        with pytest.raises(ValueError, match="cannot be a part of a path"):
            await client.sessions.delete(name)
    session = await client.sessions.create("shop", "ada")
    with pytest.raises(ValueError, match="cannot be sent as JSON"):
        await client.sessions.append(session.thread_id, "note", author="user", state={"x": float("nan")})


async def test_keys(database_url: str) -> None:
    server = await asyncio.to_thread(serve, database_url, COGNIZES_AUTH="required")
    try:
        async with Engine.open(database_url) as engine:
            _, key = await engine.access.keys.create(
                app_names=["shop"], user_id="ada", permissions=[Permission.READ, Permission.WRITE]
            )
        async with Client(server.url, api_key=key, timeout=60) as client:
            caller = await client.caller()
            assert (caller.app_names, caller.user_id) == (["shop"], "ada")
            await client.sessions.create("shop", "ada")
            with pytest.raises(PermissionDeniedError):
                await client.sessions.create("shop", "bob")
        async with Client(server.url, api_key="wrong", timeout=60) as client:
            with pytest.raises(AuthenticationError) as caught:
                await client.caller()
            assert caught.value.request_id
    finally:
        await asyncio.to_thread(server.stop)


def test_the_import_is_light() -> None:
    heavy = "{'asyncpg', 'fastapi', 'starlette', 'uvicorn', 'cognizes.engine', 'opentelemetry', 'numpy'}"
    script = f"import sys, cognizes.client; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_no_any_in_signatures() -> None:
    """The classes of Signal-Pull pass documents of the server to each other; they are older than the client."""
    exported = set(cognizes.client.__all__) - {"SignalPullClient", "ContextCopy", "MessageCopy"}
    kinds = [kind for name in exported if inspect.isclass(kind := getattr(cognizes.client, name))]
    found = []
    for kind in kinds:
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and method.__module__.startswith("cognizes.client"):
                texts = [str(note) for note in method.__annotations__.values()]
                found += [f"{kind.__name__}.{name}" for text in texts if re.search(r"\bAny\b", text)]
    assert found == []
