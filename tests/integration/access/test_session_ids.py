"""Contexts named by their session id: found among what the caller may see, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from cognizes.engine import Engine
from tests.asgi_streams import AsgiStream
from tests.integration.access.conftest import Guarded


async def create(client: httpx.AsyncClient, app: str, user: str, session_id: str) -> str:
    """A session under an id of the caller's; its thread id."""
    body = {"app_name": app, "user_id": user, "session_id": session_id}
    answer = await client.post("/api/sessions", json=body)
    assert answer.status_code == 201, answer.text
    thread_id: str = answer.json()["thread_id"]
    return thread_id


async def found_as(client: httpx.AsyncClient, name: str) -> tuple[int, str | None]:
    """The status, and which thread a context is."""
    answer = await client.get(f"/contexts/{name}/metadata")
    return answer.status_code, answer.json().get("id")


async def test_each_caller_finds_its_own_session_of_a_name_that_others_have_too(guarded: Guarded) -> None:
    keys = {
        ("a", "ada"): await guarded.key("a", user_id="ada"),
        ("a", "bob"): await guarded.key("a", user_id="bob"),
        ("b", "ada"): await guarded.key("b"),
    }
    for (app, user), key in keys.items():
        async with guarded.client(key) as client:
            assert (await found_as(client, "chat"))[0] == 404
            thread = await create(client, app, user, "chat")
            assert await found_as(client, "chat") == (200, thread)
            said = await client.post("/contexts/chat/messages", json={"role": "user", "content": "hi"})
            assert said.status_code == 201, said.text
            assert (await client.get("/conversations/chat/messages")).json()["conversationId"] == thread
    async with guarded.client(await guarded.key("a")) as both:
        assert (await found_as(both, "chat"))[0] == 409
    async with guarded.client(await guarded.key("c")) as stranger:
        assert (await found_as(stranger, "chat"))[0] == 404


async def test_a_session_called_like_a_foreign_thread_opens_nothing_of_it(guarded: Guarded) -> None:
    async with (
        guarded.client(await guarded.key("a")) as owner,
        guarded.client(await guarded.key("b")) as thief,
    ):
        theirs = await create(owner, "a", "ada", "private")
        own = await create(thief, "b", "eve", theirs)
        assert await found_as(thief, theirs) == (200, own)
        assert await found_as(owner, theirs) == (200, theirs)
        for path in (
            f"/api/sessions/{theirs}",
            f"/api/sessions/{theirs}/events",
            f"/api/debug/threads/{theirs}/export",
        ):
            assert (await thief.get(path)).status_code == 404, path
        assert (await thief.delete(f"/api/sessions/{theirs}")).status_code == 404


@pytest.mark.parametrize("bound_to", ["a user", "another app"])
async def test_streams_do_not_tell_that_others_have_a_session(guarded: Guarded, bound_to: str) -> None:
    async with guarded.client(await guarded.key("a")) as owner:
        thread = await create(owner, "a", "ada", "private")
    key = await guarded.key("a", user_id="eve") if bound_to == "a user" else await guarded.key("b")
    headers = {"authorization": f"Bearer {key}"}
    async with guarded.client(key) as client:
        answers = []
        for name in ("private", "nothing"):
            answer = await client.get("/events", params={"contexts": name})
            answers.append((answer.status_code, answer.json()["detail"].replace(name, "…")))
            assert thread not in answer.text
        assert answers[0] == answers[1]
        assert answers[0][0] == 404
    async with AsgiStream(guarded.app, "/ws/signals", websocket=True, **headers) as socket:
        details = []
        for name in ("private", "nothing"):
            socket.send_json({"type": "subscribe", "contexts": [name]})
            answer = await _next_json(socket)
            assert answer["type"] == "error"
            details.append(answer["detail"].replace(name, "…"))
        assert details[0] == details[1]


async def test_a_websocket_follows_its_callers_session_of_a_name_that_others_have_too(guarded: Guarded) -> None:
    async with guarded.client(await guarded.key("a")) as other:
        await create(other, "a", "ada", "chat")
    key = await guarded.key("b")
    async with guarded.client(key) as client:
        thread = await create(client, "b", "ada", "chat")
    async with AsgiStream(guarded.app, "/ws/signals", websocket=True, authorization=f"Bearer {key}") as socket:
        socket.send_json({"type": "subscribe", "contexts": ["chat"]})
        while (answer := await _next_json(socket))["type"] != "subscribed":
            assert answer["type"] != "error", answer
        assert answer["contexts"] == [thread]


async def test_too_many_contexts_are_refused_before_any_is_looked_for(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine.open(database_url, auth="required", max_contexts_per_connection=3) as engine:
        guarded = Guarded(engine)
        key = await guarded.key("a")
        looked_for: list[str] = []

        async def find(name: str, **_: Any) -> None:
            looked_for.append(name)

        monkeypatch.setattr(engine.sessions.store, "find_context", find)
        async with AsgiStream(guarded.app, "/ws/signals", websocket=True, authorization=f"Bearer {key}") as socket:
            for kind in ("subscribe", "unsubscribe"):
                socket.send_json({"type": kind, "contexts": [str(number) for number in range(4)]})
                answer = await _next_json(socket)
                assert "COGNIZES_MAX_CONTEXTS_PER_CONNECTION" in answer["detail"]
        assert looked_for == []


async def _next_json(socket: AsgiStream) -> dict[str, Any]:
    piece = await socket.next()
    assert piece is not None
    answer: dict[str, Any] = json.loads(piece)
    return answer
