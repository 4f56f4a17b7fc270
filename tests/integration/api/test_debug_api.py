"""The debug API behind the monitor."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import httpx
import pytest

from cognizes.engine import Engine
from cognizes.engine.access import Permission
from cognizes.engine.api.main import create_app
from cognizes.engine.models import Session


async def _thread(engine: Engine, app: str = "shop", user: str = "ada", **named: object) -> Session:
    return await engine.sessions.create(app, user, **named)  # type: ignore[arg-type]


async def _found(client: httpx.AsyncClient, **query: object) -> list[str]:
    answer = await client.get("/api/debug/threads", params=query)
    assert answer.status_code == 200, answer.text
    return [thread["thread_id"] for thread in answer.json()["threads"]]


async def test_threads_are_found_across_apps_newest_activity_first(client: httpx.AsyncClient, engine: Engine) -> None:
    first = await _thread(engine, title="Refund for a 100% broken lamp")
    second = await _thread(engine, app="desk", user="bob", session_id="Case_7")
    await engine.sessions.append(first, author="user", kind="user_message", text="hello there")
    assert await _found(client) == [first.thread_id, second.thread_id]
    assert await _found(client, app_name="desk") == [second.thread_id]
    assert await _found(client, app_name="shop", user_id="bob") == []
    assert await _found(client, q="REFUND") == await _found(client, q="100%") == [first.thread_id]
    assert await _found(client, q="case_7") == await _found(client, q=second.thread_id) == [second.thread_id]
    assert await _found(client, q="caseX7") == []
    assert await _found(client, ids=f"{second.thread_id},{uuid4()}") == [second.thread_id]
    answer = (await client.get("/api/debug/threads")).json()["threads"][0]
    assert (answer["last_message"], answer["last_role"], answer["status"]) == ("hello there", "user", "idle")
    assert (await client.get(f"/api/debug/threads/{first.thread_id}")).json() == answer
    assert (await client.get(f"/api/debug/threads/{uuid4()}")).status_code == 404
    assert (await client.get("/api/debug/apps")).json() == {"apps": ["desk", "shop"]}


async def test_threads_are_found_by_the_words_of_their_messages(client: httpx.AsyncClient, engine: Engine) -> None:
    lamp, chair = await _thread(engine), await _thread(engine, app="desk", user="bob")
    await engine.sessions.append(lamp, author="user", kind="user_message", text="The lamp flickers since Tuesday.")
    await engine.sessions.append(chair, author="user", kind="user_message", text="The chair wobbles.")
    while await engine.memory.message_index.work():
        pass
    assert await _found(client, q="lamps flickering") == [lamp.thread_id]
    assert await _found(client, q="chair") == await _found(client, q="chair", app_name="desk") == [chair.thread_id]
    assert await _found(client, q="lamp chair") == await _found(client, q="chair", app_name="shop") == []


async def test_messages_of_other_users_do_not_hide_those_of_a_user(client: httpx.AsyncClient, engine: Engine) -> None:
    own, others = await _thread(engine), await _thread(engine, user="bob")
    await engine.sessions.append(own, author="user", kind="user_message", text="It is a lamp that flickers at night.")
    for _ in range(501):
        await engine.sessions.append(others, author="user", kind="user_message", text="lamp")
    while await engine.memory.message_index.work():
        pass
    assert await _found(client, q="lamp", app_name="shop", user_id="ada") == [own.thread_id]
    assert await _found(client, q="lamp", user_id="bob") == [others.thread_id]


async def test_a_key_of_a_user_in_all_apps_lists_the_apps_of_that_user(database_url: str) -> None:
    async with Engine.open(database_url, auth="required") as engine:
        await _thread(engine, app="shop", user="ada")
        await _thread(engine, app="desk", user="bob")
        _, key = await engine.access.keys.create(permissions=[Permission.READ], user_id="bob")
        transport = httpx.ASGITransport(app=create_app(engine=engine, agents=[]))
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://engine", headers=headers) as client:
            assert (await client.get("/api/debug/apps")).json() == {"apps": ["desk"]}


async def test_a_key_of_one_app_finds_the_threads_of_that_app(database_url: str) -> None:
    async with Engine.open(database_url, auth="required") as engine:
        mine, theirs = await _thread(engine), await _thread(engine, app="desk")
        bobs = await _thread(engine, user="bob")
        _, key = await engine.access.keys.create(permissions=[Permission.READ], app_names=["shop"])
        _, own = await engine.access.keys.create(permissions=[Permission.READ], app_names=["shop"], user_id="ada")
        transport = httpx.ASGITransport(app=create_app(engine=engine, agents=[]))
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            client.headers["Authorization"] = f"Bearer {key}"
            ids = ",".join(thread.thread_id for thread in (mine, theirs, bobs))
            both = {mine.thread_id, bobs.thread_id}
            assert (await client.get("/api/debug/apps")).json() == {"apps": ["shop"]}
            assert set(await _found(client, app_name="shop")) == both
            assert set(await _found(client, app_name="shop", ids=ids)) == both
            assert await _found(client, app_name="shop", q=theirs.thread_id) == []
            for query in ({}, {"app_name": "desk"}, {"ids": ids}):
                assert (await client.get("/api/debug/threads", params=query)).status_code == 403
            client.headers["Authorization"] = f"Bearer {own}"
            assert await _found(client, app_name="shop", user_id="ada", ids=ids) == [mine.thread_id]
            for query in ({"app_name": "shop"}, {"app_name": "shop", "user_id": "bob"}):
                assert (await client.get("/api/debug/threads", params=query)).status_code == 403


async def test_the_events_of_the_active_branch(client: httpx.AsyncClient, engine: Engine) -> None:
    session = await _thread(engine)

    async def ranges() -> list[list[int]]:
        return list((await client.get(f"/api/debug/threads/{session.thread_id}/active-path")).json()["ranges"])

    assert await ranges() == []
    for number in range(3):
        await engine.sessions.append(session, author="user", kind="user_message", text=str(number))
    assert await ranges() == [[1, 3]]
    await engine.branches.create(session.thread_id, "other", at_sequence=1)
    assert await ranges() == [[1, 4]], "its creation is an event of main"
    await engine.branches.switch(session.thread_id, "other")
    await engine.sessions.append(session, author="user", kind="user_message", text="there")
    (first, *rest) = await ranges()
    assert first[1] == 1
    last = (await engine.sessions.events(session))[-1].sequence_num
    assert rest[-1][1] == last
    assert not any(low <= 3 <= high for low, high in [first, *rest])


async def test_threads_by_status(client: httpx.AsyncClient, engine: Engine) -> None:
    idle, running, failed, mended = [await _thread(engine) for _ in range(4)]
    await engine.runs.create(running, run_id="goes-on", running=True)
    for thread in (failed, mended):
        run = await engine.runs.create(thread, running=True)
        await engine.runs.fail(run.thread_id, run.id, error="no")
    run = await engine.runs.create(mended, running=True)
    await engine.runs.finish(run.thread_id, run.id)
    assert await _found(client, status="running") == [running.thread_id]
    assert await _found(client, status="failed") == [failed.thread_id]
    assert await _found(client, status="waiting") == []
    assert running.thread_id not in await _found(client, status="idle")
    assert idle.thread_id in await _found(client, status="idle")
    listed = (await client.get("/api/debug/threads")).json()["threads"]
    assert {item["thread_id"]: item["status"] for item in listed} == {
        idle.thread_id: "idle", running.thread_id: "running", failed.thread_id: "failed", mended.thread_id: "idle",
    }  # fmt: skip
    assert (await client.get("/api/debug/threads", params={"status": "bored"})).status_code == 422


async def test_pages_of_threads(client: httpx.AsyncClient, engine: Engine) -> None:
    threads = [(await _thread(engine)).thread_id for _ in range(5)]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    for _ in range(3):
        page = (await client.get("/api/debug/threads", params={"limit": 2, **cursor})).json()
        seen += [thread["thread_id"] for thread in page["threads"]]
        cursor = {"cursor": page["next_cursor"]}
    assert seen == threads[::-1]
    assert page["next_cursor"] is None
    assert (await client.get("/api/debug/threads", params={"cursor": "nonsense"})).status_code == 422


async def test_events_have_large_values_cut_and_are_whole_one_by_one(client: httpx.AsyncClient, engine: Engine) -> None:
    session = await _thread(engine)
    base = f"/api/debug/threads/{session.thread_id}"
    long_text = "x" * 5000
    await engine.sessions.append(session, author="user", kind="user_message", text="short")
    await engine.sessions.append(session, author="a", kind="act", content={"tool_input": {"a": long_text, "b": [1]}})
    await engine.sessions.append(session, author="a", kind="assistant_message", text="y" * 600_000)
    await engine.sessions.append(session, author="a", kind="state_update", state={"big": ["z" * 100] * 5000})
    page = (await client.get(f"{base}/events")).json()
    assert page["last_sequence"] == 4
    short, act, huge, state = page["events"]
    assert (short["content"], short["cut"]) == ({"text": "short"}, False)
    assert act["cut"]
    assert act["content"]["tool_input"] == {
        "a": {"$cut": "text", "length": 5000, "preview": "x" * 500},
        "b": [1],
    }
    assert (huge["content"]["$cut"], huge["content"]["preview"], huge["content"]["role"]) == (
        "object", "y" * 1000, "assistant",
    )  # fmt: skip
    assert state["cut"]
    assert len(json.dumps(page)) < 60_000
    assert [
        event["sequence_num"] for event in (await client.get(f"{base}/events?after=2&limit=1")).json()["events"]
    ] == [3]
    whole = (await client.get(f"{base}/events/3")).json()
    assert whole["event"]["content"]["text"] == "y" * 600_000
    assert [frame["type"] for frame in whole["frames"]] == [
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
    ]  # fmt: skip
    assert [frame["type"] for frame in whole["agui"]] == [frame["type"] for frame in whole["frames"]]
    assert (await client.get(f"{base}/events/5")).status_code == 404
    assert (await client.get(f"/api/debug/threads/{uuid4()}/events")).status_code == 404


async def test_scopes_and_values_now_and_then(client: httpx.AsyncClient, engine: Engine) -> None:
    session = await _thread(engine, state={"n": 0, "user:lang": "en"})
    base = f"/api/debug/threads/{session.thread_id}"
    await engine.sessions.update(session, {"n": 1, "app:limit": 9, "big": "b" * 9000})
    now = (await client.get(f"{base}/scopes")).json()
    assert (now["sequence_num"], now["version"]) == (1, 2)
    assert now["scopes"]["user"] == {"lang": "en"}
    assert now["scopes"]["session"]["n"] == 1
    assert now["scopes"]["session"]["big"]["$cut"] == "text"
    then = (await client.get(f"{base}/scopes?sequence=0")).json()
    assert then["scopes"] == {"session": {"n": 0}, "user": {"lang": "en"}, "app": {}, "temp": {}}
    assert (await client.get(f"{base}/value?key=big")).json()["value"] == "b" * 9000
    assert (await client.get(f"{base}/value?key=app:limit")).json()["scope"] == "app"
    assert (await client.get(f"{base}/value?key=big&sequence=0")).status_code == 404
    assert (await client.get(f"{base}/scopes?sequence=7")).status_code == 404


async def test_diff_of_an_event(client: httpx.AsyncClient, engine: Engine) -> None:
    session = await _thread(engine, state={"same": 1, "changes": 1, "goes": 1})
    other = await _thread(engine)
    await engine.sessions.append(session, author="user", kind="user_message", text="nothing")
    await engine.sessions.update(other, {"user:theirs": 1})
    await engine.sessions.update(session, {"changes": 2, "goes": {"$delete": True}, "app:comes": 3})
    base = f"/api/debug/threads/{session.thread_id}/events"
    assert (await client.get(f"{base}/1/diff")).json() == {"added": {}, "changed": {}, "removed": {}}
    assert (await client.get(f"{base}/2/diff")).json() == {
        "added": {"app:comes": 3}, "changed": {"changes": [1, 2]}, "removed": {"goes": 1},
    }  # fmt: skip


async def test_key_history_finds_a_key_behind_many_others(engine: Engine, client: httpx.AsyncClient) -> None:
    """A page of the query has at most as many rows as the answer may have."""
    session = await _thread(engine)
    await engine.sessions.update(session, {"rare": 1, "ключ": 1})
    for number in range(25):
        await engine.sessions.append(session, author="a", kind="state_update", state={"often": number})
    await engine.sessions.update(session, {"rare": 2, "ключ": 2})
    for key in ("rare", "ключ"):
        answer = await client.get(f"/api/debug/threads/{session.thread_id}/keys", params={"key": key, "limit": 10})
        assert [item["value"] for item in answer.json()["history"]] == [1, 2]


@pytest.mark.parametrize("file_format", ["json", "ndjson"])
async def test_export(client: httpx.AsyncClient, engine: Engine, file_format: str) -> None:
    session = await _thread(engine, state={"a": 1})
    texts = [f"m{number} ü" for number in range(501)]
    await asyncio.gather(
        *(engine.sessions.append(session, author="user", kind="user_message", text=text) for text in texts)
    )
    answer = await client.get(f"/api/debug/threads/{session.thread_id}/export", params={"format": file_format})
    assert f'filename="thread-{session.thread_id}.{file_format}"' in answer.headers["content-disposition"]
    if file_format == "json":
        document = answer.json()
        events, exported = document["events"], document["session"]
    else:
        lines = [json.loads(line) for line in answer.text.splitlines()]
        exported, events = lines[0]["session"], [line["event"] for line in lines[1:]]
    assert (exported["thread_id"], exported["state"]) == (session.thread_id, {"a": 1})
    assert [event["sequence_num"] for event in events] == list(range(1, 502))
    assert {event["content"]["text"] for event in events} == set(texts)


async def test_pulse(client: httpx.AsyncClient, engine: Engine) -> None:
    session = await _thread(engine)
    async for _ in engine.live(await _with_event(engine, session)):
        break
    pulse = (await client.get("/api/debug/pulse")).json()
    assert pulse["listener"]["running"] is True
    assert len(pulse["events_per_second"]) == 60
    assert (pulse["conflicts"], pulse["missed_notifications"] >= 0) == (0, True)
    assert pulse["pool"]["max"] >= pulse["pool"]["size"] >= pulse["pool"]["in_use"] >= 0
    assert pulse["clients"] == {"streams": 0, "websockets": 0}


async def _with_event(engine: Engine, session: Session) -> Session:
    await engine.sessions.append(session, author="user", kind="user_message", text="hi")
    return session


async def test_cancelling_is_written_down(client: httpx.AsyncClient, engine: Engine) -> None:
    session = await _thread(engine)
    run = await engine.runs.create(session, running=True)
    base = f"/api/debug/threads/{session.thread_id}"
    assert (await client.post(f"{base}/runs/{run.id}/cancel")).json()["status"] == "cancelled"
    events = await engine.sessions.events(session)
    assert (events[1].author, events[1].event_type) == ("monitor", "monitor_action")
    assert events[1].content == {"action": "cancel", "by": "anyone"}
    assert events[-1].event_type == "run_cancelled"
    assert (await client.post(f"{base}/runs/{run.id}/cancel")).status_code == 409
    assert (await client.post(f"{base}/runs/unknown/cancel")).status_code == 404
    assert len(await engine.sessions.events(session)) == len(events)
    assert (await client.get(f"{base}/questions")).json() == {"questions": []}


async def test_tool_approvals_are_questions_and_answers_are_written_down(
    client: httpx.AsyncClient, engine: Engine
) -> None:
    session = await _thread(engine)
    run = await engine.runs.begin_leased(session)
    base = f"/api/debug/threads/{session.thread_id}"
    await engine.approvals.ask(
        session.thread_id,
        tool_name="delete",
        tool_input={"path": "x"},
        message="Sure?",
        approval_id="a/1",
        run_id=run.id,
    )
    await engine.runs.wait(run, kind="human", correlation_key="a/1")
    (question,) = (await client.get(f"{base}/questions")).json()["questions"]
    assert question == {
        "id": "a/1", "kind": "approval", "reason": "tool_approval", "message": "Sure?",
        "metadata": {"toolName": "delete", "arguments": {"path": "x"}},
    }  # fmt: skip
    assert (await client.post(f"{base}/approvals/unknown", json={"approved": True})).status_code == 409
    assert (await client.post(f"{base}/approvals/a%2F1", json={})).status_code == 422
    assert (await client.post(f"{base}/approvals/a%2F1", json={"approved": False})).status_code == 200
    assert (await client.post(f"{base}/approvals/a%2F1", json={"approved": True})).status_code == 409
    action, answer = [
        event
        for event in await engine.sessions.events(session)
        if event.event_type in ("monitor_action", "decision_answered")
    ]
    assert (action.author, action.run_id) == ("monitor", run.id)
    assert {"action": "deny", "approval_id": "a/1"}.items() <= action.content.items()
    assert answer.content["approved"] is False
    assert (await engine.runs.get(run.thread_id, run.id)).status == "pending"
    assert (await client.get(f"{base}/questions")).json() == {"questions": []}


async def test_runs_are_found_by_wait_handler_and_user_without_documents(
    client: httpx.AsyncClient, engine: Engine
) -> None:
    ada, bob = await _thread(engine, title="A refund"), await _thread(engine, user="bob")
    await engine.runs.enqueue(bob, "pack", input={"large": "x" * 1000})
    await engine.runs.enqueue(bob, "agui/packer")
    waiting = await engine.runs.begin_leased(ada)
    await engine.runs.wait(waiting, kind="human", correlation_key="k", reason="300 EUR")

    async def found(**query: object) -> list[dict[str, object]]:
        answer = await client.get("/api/debug/runs", params=query)  # type: ignore[arg-type]
        assert answer.status_code == 200, answer.text
        return list(answer.json()["runs"])

    [run] = await found(status="waiting", wait_kind=["human", "signal"])
    assert (run["id"], run["user_id"], run["title"]) == (waiting.id, "ada", "A refund")
    wait = run["wait"]
    assert isinstance(wait, dict)
    assert (bool(wait["since"]), wait["reason"]) == (True, "300 EUR")
    assert await found(status="waiting", wait_kind="timer") == []
    assert [one["handler"] for one in await found(handler="pack")] == ["agui/packer", "pack"]
    assert [one["handler"] for one in await found(handler="agui/")] == ["agui/packer"]
    assert "input" not in (await found(user_id="bob"))[0]
    first = (await client.get("/api/debug/runs", params={"limit": 2, "with_usage": True})).json()
    assert first["runs"][0]["usage"]["calls"] == 0
    second = (await client.get("/api/debug/runs", params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert [run["id"] for run in (*first["runs"], *second["runs"])] == [run["id"] for run in await found()]
    assert second["next_cursor"] is None
    assert (await client.get("/api/debug/runs", params={"cursor": "abc"})).status_code == 422
