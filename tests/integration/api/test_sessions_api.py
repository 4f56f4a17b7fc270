"""The REST API for sessions, as contracts fix it."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any
from uuid import uuid4

import httpx
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cognizes.engine import Engine
from cognizes.engine.api.exchanges import HttpExchange
from cognizes.engine.api.main import create_app
from tests.engine_parts import database_of

pytestmark = pytest.mark.pgbouncer


async def new_session(client: httpx.AsyncClient, **more: Any) -> dict[str, Any]:
    answer = await client.post("/api/sessions", json={"app_name": "shop", "user_id": "ada", **more})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def append(client: httpx.AsyncClient, thread_id: str, **event: Any) -> httpx.Response:
    body = {"author": "user", "event_type": "user_message", **event}
    return await client.post(f"/api/sessions/{thread_id}/events", json=body)


def assert_problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == status
    assert body["detail"]
    assert body["request_id"] == answer.headers["x-request-id"]
    return body


async def test_create_read_change_delete(client: httpx.AsyncClient) -> None:
    created = await new_session(
        client, session_id="my session", title="First", state={"n": 1, "user:lang": "en", "app:limit": 3}
    )
    assert created["session_id"] == "my session"
    assert created["thread_id"] != "my session"
    assert created["version"] == 1
    assert created["last_sequence"] == 0
    assert created["state"] == {"n": 1, "user:lang": "en", "app:limit": 3}

    path = f"/api/sessions/{created['thread_id']}"
    assert (await client.get(path)).json() == created

    changed = (await client.patch(path, json={"title": "Second", "metadata": {"tag": 1}})).json()
    assert (changed["title"], changed["metadata"]) == ("Second", {"tag": 1})
    assert (await client.patch(path, json={"metadata": {"more": 2}})).json()["metadata"] == {"tag": 1, "more": 2}

    assert_problem(await client.patch(path, json={}), 422)
    events = (await client.get(f"{path}/events")).json()["events"]
    assert [event["event_type"] for event in events] == ["title_updated", "metadata_updated"]
    assert events[0]["content"] == {"title": "Second", "metadata": {"tag": 1}}

    assert (await client.delete(path)).status_code == 204
    assert_problem(await client.get(path), 404)
    assert_problem(await client.delete(path), 404)


async def test_a_taken_session_id_is_a_conflict(client: httpx.AsyncClient) -> None:
    await new_session(client, session_id="s")
    answer = await client.post("/api/sessions", json={"app_name": "shop", "user_id": "ada", "session_id": "s"})
    assert_problem(answer, 409)
    await new_session(client, session_id="s", user_id="bob")


async def test_sessions_are_listed_in_pages(client: httpx.AsyncClient) -> None:
    made = [(await new_session(client, session_id=f"s{n}"))["session_id"] for n in range(5)]
    await new_session(client, user_id="bob")
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(3):
        params = {"app_name": "shop", "user_id": "ada", "limit": 2, **({"cursor": cursor} if cursor else {})}
        page = (await client.get("/api/sessions", params=params)).json()
        seen += [session["session_id"] for session in page["sessions"]]
        cursor = page["next_cursor"]
    assert cursor is None
    assert seen == made[::-1]
    assert_problem(await client.get("/api/sessions", params={"app_name": "shop", "cursor": "nonsense"}), 422)


async def test_append_resend_and_conflict(client: httpx.AsyncClient, engine: Engine) -> None:
    thread = (await new_session(client))["thread_id"]
    event_id = str(uuid4())
    first = await append(client, thread, id=event_id, content={"text": "hi"}, actions={"state_delta": {"n": 1}})
    assert first.status_code == 201
    assert first.json() == {**first.json(), "id": event_id, "sequence_num": 1, "version": 2}

    again = await append(client, thread, id=event_id, content={"text": "hi"}, actions={"state_delta": {"n": 1}})
    assert (again.status_code, again.json()) == (200, first.json())
    assert_problem(await append(client, thread, id=event_id, content={"text": "other"}), 409)

    stale = assert_problem(await append(client, thread, actions={"state_delta": {"n": 2}}, expected_version=1), 409)
    assert (stale["expected"], stale["actual"]) == (1, 2)
    fine = await append(client, thread, actions={"state_delta": {"n": 2}}, expected_version=2)
    assert fine.json()["version"] == 3
    assert await database_of(engine).pool.fetchval("SELECT count(*) FROM events") == 2


async def test_null_for_an_optional_field_of_an_event_means_that_it_is_absent(client: httpx.AsyncClient) -> None:
    thread = (await new_session(client))["thread_id"]
    absent = dict.fromkeys(("id", "invocation_id", "run_id", "expected_version"))
    answer = await append(client, thread, content={"text": "hi"}, **absent)
    assert (answer.status_code, bool(answer.json()["id"])) == (201, True)
    (event,) = (await client.get(f"/api/sessions/{thread}/events")).json()["events"]
    assert (event["id"], event["invocation_id"], event["run_id"]) == (answer.json()["id"], "", None)


async def test_events_are_read_after_a_sequence_and_recent(client: httpx.AsyncClient) -> None:
    thread = (await new_session(client))["thread_id"]
    for number in range(1, 6):
        await append(client, thread, content={"text": str(number)})
    path = f"/api/sessions/{thread}/events"
    page = (await client.get(path, params={"after": 1, "limit": 2})).json()
    assert [event["content"]["text"] for event in page["events"]] == ["2", "3"]
    assert (page["last_sequence"], page["has_more"]) == (5, True)
    rest = (await client.get(path, params={"after": 3})).json()
    assert ([event["sequence_num"] for event in rest["events"]], rest["has_more"]) == ([4, 5], False)
    recent = (await client.get(path, params={"recent": 2})).json()
    assert [event["sequence_num"] for event in recent["events"]] == [4, 5]
    beyond = (await client.get(path, params={"after": 99})).json()
    assert (beyond["events"], beyond["has_more"]) == ([], False)


async def test_state_now_and_as_it_was(client: httpx.AsyncClient) -> None:
    thread = (await new_session(client, state={"n": 0}))["thread_id"]
    for number in (1, 2):
        await append(client, thread, content={"text": str(number)}, actions={"state_delta": {"n": number}})
    path = f"/api/sessions/{thread}/state"
    assert (await client.get(path)).json() == {"state": {"n": 2}, "version": 3, "sequence_num": 2}
    assert (await client.get(path, params={"sequence": 1})).json()["state"] == {"n": 1}
    assert (await client.get(path, params={"version": 1})).json() == {
        "state": {"n": 0},
        "version": 1,
        "sequence_num": 0,
    }
    assert_problem(await client.get(path, params={"sequence": 3}), 404)
    assert_problem(await client.get(path, params={"version": 9}), 404)
    assert_problem(await client.get(path, params={"sequence": -1}), 422)
    messages = (await client.get(f"/api/sessions/{thread}/messages", params={"at_sequence": 1})).json()["messages"]
    assert [message["content"] for message in messages] == ["1"]


async def test_state_is_changed_and_keys_deleted(client: httpx.AsyncClient) -> None:
    thread = (await new_session(client, state={"a": 1, "b": None}))["thread_id"]
    path = f"/api/sessions/{thread}/state"
    answer = await client.patch(path, json={"delta": {"a": {"$delete": True}, "user:x": 1}})
    assert answer.json()["version"] == 2
    assert (await client.get(path)).json()["state"] == {"b": None, "user:x": 1}
    assert_problem(await client.patch(path, json={"delta": {"a": 1}, "expected_version": 1}), 409)
    assert_problem(await client.patch(path, json={"delta": {}}), 422)


async def test_fork(client: httpx.AsyncClient) -> None:
    thread = (await new_session(client, state={"n": 0}))["thread_id"]
    for number in (1, 2):
        await append(client, thread, content={"text": str(number)}, actions={"state_delta": {"n": number}})
    fork = await client.post(f"/api/sessions/{thread}/fork", json={"at_sequence": 1})
    assert fork.status_code == 201
    assert (fork.json()["state"], fork.json()["last_sequence"], fork.json()["version"]) == ({"n": 1}, 1, 2)
    assert (await append(client, fork.json()["thread_id"])).json()["sequence_num"] == 2
    whole = (await client.post(f"/api/sessions/{thread}/fork")).json()
    assert (whole["state"], whole["last_sequence"]) == ({"n": 2}, 2)
    assert_problem(await client.post(f"/api/sessions/{thread}/fork", json={"at_sequence": 3}), 404)


async def test_runs(client: httpx.AsyncClient) -> None:
    thread = (await new_session(client))["thread_id"]
    runs = f"/api/sessions/{thread}/runs"
    run = (await client.post(runs, json={"run_id": "r1", "start": False})).json()
    assert run["status"] == "pending"
    assert_problem(await client.post(runs, json={"run_id": "r1"}), 409)
    assert_problem(await client.post(f"{runs}/r1/finish"), 409)
    assert (await client.post(f"{runs}/r1/start")).json()["status"] == "running"
    await client.post(f"{runs}/r1/thinking-steps", json={"thought": "hm"})
    call = (await client.post(f"{runs}/r1/tool-calls", json={"tool_name": "search", "input": {"q": 1}})).json()["id"]
    done = (await client.post(f"{runs}/r1/tool-calls/{call}/result", json={"output": [1]})).json()
    assert (done["tool_calls"][0]["input"], done["tool_calls"][0]["output"]) == ({"q": 1}, [1])
    assert done["thinking_steps"][0]["thought"] == "hm"
    assert_problem(await client.post(f"{runs}/r1/tool-calls/none/result", json={}), 404)
    failed = (await client.post(f"{runs}/r1/fail", json={"error": "boom"})).json()
    assert (failed["status"], failed["error"]) == ("failed", "boom")
    assert_problem(await client.post(f"{runs}/r1/cancel"), 409)
    assert_problem(await client.get(f"{runs}/unknown"), 404)
    assert [run["id"] for run in (await client.get(runs)).json()["runs"]] == ["r1"]
    events = (await client.get(f"/api/sessions/{thread}/events")).json()["events"]
    assert [event["event_type"] for event in events] == [
        "run_created", "run_started", "thought", "act", "observe", "run_failed",
    ]  # fmt: skip
    assert {event["run_id"] for event in events} == {"r1"}


async def test_debug_routes(client: httpx.AsyncClient) -> None:
    thread = (await new_session(client, state={"n": 0, "user:u": 1}))["thread_id"]
    await append(client, thread, author="planner", run_id="r", actions={"state_delta": {"n": 1, "user:u": 2}})
    path = f"/api/debug/threads/{thread}"
    info = (await client.get(f"{path}/state")).json()
    assert info["prefix_breakdown"] == {"session": {"n": 1}, "user": {"u": 2}, "app": {}, "temp": {}}
    assert (info["state_history"][0]["author"], info["state_history"][0]["run_id"]) == ("planner", "r")
    writes = (await client.get(f"{path}/keys", params={"key": "user:u"})).json()["history"]
    assert [(write["value"], write["author"]) for write in writes] == [(1, None), (2, "planner")]
    diff = (await client.get(f"{path}/diff", params={"from_version": 1, "to_version": 2})).json()
    assert diff["changed"] == {"n": [0, 1], "user:u": [1, 2]}
    assert_problem(await client.get(f"/api/debug/threads/{uuid4()}/state"), 404)


@pytest.mark.parametrize(
    "thread_id", ["unknown", "0b6a4ffb-6d9e-4f5e-9f3e-2f6f1a9b7c11", "%00", "a" * 300, "é%s'\"", "1' OR '1'='1"]
)
async def test_an_unknown_thread_is_not_found(client: httpx.AsyncClient, thread_id: str) -> None:
    path = httpx.URL("http://engine/api/sessions/").join(f"/api/sessions/{thread_id}".replace("%s", "%25s"))
    assert_problem(await client.get(path), 404)
    assert_problem(await client.post(f"{path}/events", json={"author": "u", "event_type": "message"}), 404)


DEEP = '{"a":' * 10_000 + "1" + "}" * 10_000


@pytest.mark.parametrize(
    "body",
    [
        "", "[]", "{", "nonsense", '{"author": 1}', '{"author": "u"}',
        '{"author": "u", "event_type": ""}',
        '{"author": "u", "event_type": "m", "content": []}',
        '{"author": "u", "event_type": "m", "unknown": 1}',
        '{"author": "u\\u0000", "event_type": "m"}',
        '{"author": "u", "event_type": "m", "id": "\\ud800"}',
        '{"author": "u", "event_type": "m", "actions": {"state_delta": [1]}}',
        '{"author": "u", "event_type": "m", "expected_version": -1}',
        '{"author": "u", "event_type": "m", "expected_version": 1e30}',
        f'{{"author": "u", "event_type": "m", "content": {DEEP}}}',
        f'{{"author": "u", "event_type": "m", "content": {{"a": {"[" * 500 + "]" * 500}}}}}',
    ],
)  # fmt: skip
async def test_bad_events_are_refused_and_leave_nothing(client: httpx.AsyncClient, body: str) -> None:
    thread = (await new_session(client))["thread_id"]
    answer = await client.post(
        f"/api/sessions/{thread}/events", content=body, headers={"content-type": "application/json"}
    )
    assert 400 <= answer.status_code < 500
    assert_problem(answer, answer.status_code)
    assert (await client.get(f"/api/sessions/{thread}/events")).json()["events"] == []


@pytest.mark.parametrize("value", ["\x00", "\ud800", float("nan"), float("-inf"), "\ue000", "🎈", "%s '; --", 10**30])
async def test_odd_values_are_kept(client: httpx.AsyncClient, engine: Engine, value: Any) -> None:
    thread = (await new_session(client))["thread_id"]
    body = json.dumps({"author": "u", "event_type": "message", "content": {"text": "x", "v": value},
                       "actions": {"state_delta": {"v": value}}})  # fmt: skip
    answer = await client.post(
        f"/api/sessions/{thread}/events", content=body.encode(), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 201, answer.text
    (event,) = await engine.sessions.log.read(thread)
    assert repr(event.content["v"]) == repr(value)
    assert (await client.get(f"/api/sessions/{thread}/events")).status_code == 200
    assert (await client.get(f"/api/sessions/{thread}/state")).status_code == 200
    assert repr((await engine.sessions.store.get_thread(thread)).state["v"]) == repr(value)


@pytest.mark.parametrize("session_id", ["x" * 300, "🎈" * 200, 'it\'s "quoted" %s $1', "y" * 100_000])
async def test_odd_session_ids_are_kept(client: httpx.AsyncClient, engine: Engine, session_id: str) -> None:
    created = await new_session(client, session_id=session_id)
    assert created["session_id"] == session_id
    found = await engine.sessions.get("shop", "ada", session_id)
    assert found is not None
    assert found.thread_id == created["thread_id"]


async def test_too_large_is_413_and_names_the_limit(client: httpx.AsyncClient, engine: Engine) -> None:
    thread = (await new_session(client))["thread_id"]
    limit = engine.settings.max_event_bytes
    problem = assert_problem(await append(client, thread, content={"text": "x" * limit}), 413)
    assert "COGNIZES_MAX_EVENT_BYTES" in problem["detail"]
    huge = assert_problem(await append(client, thread, content={"text": "x" * (limit + 10**6)}), 413)
    assert str(limit) in huge["detail"] or "COGNIZES_MAX_EVENT_BYTES" in huge["detail"]

    async def chunks() -> Any:
        for _ in range(40):
            yield b"x" * 10**6

    streamed = await client.post(f"/api/sessions/{thread}/events", content=chunks())
    assert_problem(streamed, 413)
    state_limit = engine.settings.max_state_bytes
    state = assert_problem(await append(client, thread, actions={"state_delta": {"k": "x" * (state_limit + 1)}}), 413)
    assert "COGNIZES_MAX_STATE_BYTES" in state["detail"]
    session = (await client.get(f"/api/sessions/{thread}")).json()
    assert (session["last_sequence"], session["version"], session["state"]) == (0, 1, {})


async def test_a_ten_megabyte_event_and_a_one_megabyte_state(client: httpx.AsyncClient) -> None:
    thread = (await new_session(client))["thread_id"]
    text = "é" * 5_000_000
    answer = await append(client, thread, content={"text": text}, actions={"state_delta": {"big": "y" * 10**6}})
    assert answer.status_code == 201
    page = (await client.get(f"/api/sessions/{thread}/events")).json()
    assert page["events"][0]["content"]["text"] == text
    assert (await append(client, thread, actions={"state_delta": {"small": 1}})).json()["version"] == 3
    state = (await client.get(f"/api/sessions/{thread}/state")).json()["state"]
    assert (len(state["big"]), state["small"]) == (10**6, 1)


async def test_concurrent_appends_over_http_are_gapless(client: httpx.AsyncClient) -> None:
    thread = (await new_session(client))["thread_id"]
    answers = await asyncio.gather(*(append(client, thread, actions={"state_delta": {f"k{n}": n}}) for n in range(100)))
    assert sorted(answer.json()["sequence_num"] for answer in answers) == list(range(1, 101))
    session = (await client.get(f"/api/sessions/{thread}")).json()
    assert (session["version"], len(session["state"])) == (101, 100)


async def test_health_version_and_docs(client: httpx.AsyncClient) -> None:
    health = await client.get("/health")
    assert health.status_code == 200
    assert health.json() == {**health.json(), "status": "ok", "listener_running": True}
    version = (await client.get("/version")).json()
    assert int(version["postgresql"].split(".")[0]) >= 16
    document = (await client.get("/openapi.json")).json()
    tags = {tag for path in document["paths"].values() for method in path.values() for tag in method["tags"]}
    assert tags >= {"server", "sessions", "runs", "live", "debug"}
    assert (await client.get("/docs")).status_code == 200


async def test_request_ids(client: httpx.AsyncClient) -> None:
    assert (await client.get("/version", headers={"x-request-id": "mine-1"})).headers["x-request-id"] == "mine-1"
    made = (await client.get("/version", headers={"x-request-id": "not sane!"})).headers["x-request-id"]
    assert made != "not sane!"
    assert_problem(await client.get("/nowhere"), 404)
    assert_problem(await client.put("/version"), 405)


async def test_middleware_of_the_embedding_application_sees_every_request(
    engine: Engine, client: httpx.AsyncClient
) -> None:
    """Also those that are served without FastAPI's layers."""

    class Marking:
        def __init__(self, app: ASGIApp, *, mark: bytes) -> None:
            self._app = app
            self._mark = mark

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            async def send_marked(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], (b"x-mark", self._mark)]
                await send(message)

            await self._app(scope, receive, send_marked)

    app = create_app(engine=engine)
    app.add_middleware(Marking, mark=b"seen")
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", headers=client.headers) as embedding:
        created = await embedding.post("/api/sessions", json={"app_name": "shop", "user_id": "ada"})
        invalid = await embedding.post("/api/sessions", json={"app_name": "shop"})
    assert [(answer.status_code, answer.headers["x-mark"]) for answer in (created, invalid)] == [
        (201, "seen"),
        (422, "seen"),
    ]


async def test_an_unexpected_error_is_500_with_the_request_id(
    client: httpx.AsyncClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise ZeroDivisionError("secret detail")

    created = await new_session(client)
    monkeypatch.setattr(engine.sessions.store, "get_thread", fail)
    answer = await client.get(f"/api/sessions/{created['thread_id']}")
    assert "secret detail" not in assert_problem(answer, 500)["detail"]


async def test_a_successful_request_leaves_nothing_to_the_garbage_collector(client: httpx.AsyncClient) -> None:
    thread_id = (await client.post("/api/sessions", json={"app_name": "shop", "user_id": "ada"})).json()["thread_id"]
    event = {"author": "user", "event_type": "note", "actions": {"state_delta": {"cart": []}}}

    async def exchange() -> None:
        assert (await client.get(f"/api/sessions/{thread_id}")).status_code == 200
        assert (await client.post(f"/api/sessions/{thread_id}/events", json=event)).status_code == 201

    await exchange()
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            await exchange()
        left = [type(one).__name__ for one in gc.get_objects() if isinstance(one, HttpExchange)]
    finally:
        gc.enable()
    assert left == []
