"""Streams of callers with keys: tickets, whose they are, and when they end."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from cognizes.engine import Engine
from cognizes.engine.access import Permission, Principal
from tests.asgi_streams import AsgiStream
from tests.engine_parts import database_of
from tests.integration.access.conftest import READ_WRITE, Guarded, key_id, new_thread


async def start_run(client: httpx.AsyncClient, app: str = "a", user: str = "ada") -> tuple[str, str]:
    """A thread with a run; their ids."""
    thread = await new_thread(client, app, user)
    answer = await client.post(f"/api/sessions/{thread}/runs", json={"start": True})
    assert answer.status_code == 201, answer.text
    return thread, answer.json()["id"]


async def get_ticket(client: httpx.AsyncClient) -> str:
    answer = await client.post("/api/access/tickets")
    assert answer.status_code == 201, answer.text
    ticket: str = answer.json()["ticket"]
    return ticket


async def test_a_ticket_opens_one_stream(guarded: Guarded) -> None:
    async with guarded.client(await guarded.key("a")) as client:
        _, run = await start_run(client)
        ticket = await get_ticket(client)
    path = f"/api/runs/{run}/events?ticket={ticket}"
    async with AsgiStream(guarded.app, path) as stream:
        assert stream.status == 200
        assert b"connected" in (await stream.next() or b"")
    async with AsgiStream(guarded.app, path) as again:
        assert again.status == 401


async def test_a_ticket_that_waited_too_long_opens_nothing(guarded: Guarded) -> None:
    async with guarded.client(await guarded.key("a")) as client:
        _, run = await start_run(client)
        ticket = await get_ticket(client)
    await database_of(guarded.engine).pool.execute("UPDATE access_tickets SET expires_at = now() - interval '1 second'")
    async with AsgiStream(guarded.app, f"/api/runs/{run}/events?ticket={ticket}") as stream:
        assert stream.status == 401


async def test_a_ticket_of_a_revoked_key_opens_nothing(guarded: Guarded) -> None:
    key = await guarded.key("a")
    async with guarded.client(key) as client:
        _, run = await start_run(client)
        ticket = await get_ticket(client)
    await guarded.engine.access.keys.revoke(key_id(key))
    async with AsgiStream(guarded.app, f"/api/runs/{run}/events?ticket={ticket}") as stream:
        assert stream.status == 401


async def test_a_ticket_ends_when_its_key_does_although_that_was_decided_later(guarded: Guarded) -> None:
    key = await guarded.key("a")
    async with guarded.client(key) as client:
        _, run = await start_run(client)
        ticket, late = await get_ticket(client), await get_ticket(client)
    await guarded.engine.access.keys.rotate(key_id(key), grace=timedelta(hours=1))
    async with AsgiStream(guarded.app, f"/api/runs/{run}/events?ticket={ticket}") as stream:
        assert stream.status == 200
        (grant,) = guarded.engine.access.grants.of_key(key_id(key))
        assert grant.timer is not None
        assert grant.timer.when() - asyncio.get_running_loop().time() <= 3600
    await database_of(guarded.engine).pool.execute("UPDATE api_keys SET expires_at = now() - interval '1 second'")
    async with AsgiStream(guarded.app, f"/api/runs/{run}/events?ticket={late}") as stream:
        assert stream.status == 401


async def test_a_revocation_that_overtakes_a_ticket_wins(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    key = await guarded.key("a")
    async with guarded.client(key) as client:
        _, run = await start_run(client)
        ticket = await get_ticket(client)
    redeem = guarded.engine.access.tickets.redeem

    async def overtaken(text: str) -> Principal | None:
        principal = await redeem(text)
        # The key is revoked, and this process hears of it, before the answer of the database is looked at.
        await guarded.engine.access.keys.revoke(key_id(key))
        return principal

    monkeypatch.setattr(guarded.engine.access.tickets, "redeem", overtaken)
    async with AsgiStream(guarded.app, f"/api/runs/{run}/events?ticket={ticket}") as stream:
        assert stream.status == 401


async def test_a_ticket_writes_nothing(guarded: Guarded) -> None:
    async with guarded.client(await guarded.key("a")) as client:
        ticket = await get_ticket(client)
    async with guarded.client() as anonymous:
        body = {"app_name": "a", "user_id": "u"}
        assert (await anonymous.post(f"/api/sessions?ticket={ticket}", json=body)).status_code == 401


@pytest.mark.parametrize("kind", ["sse", "websocket"])
async def test_a_stream_ends_when_its_key_is_revoked(guarded: Guarded, kind: str) -> None:
    key = await guarded.key("a")
    async with guarded.client(key) as client:
        thread, run = await start_run(client)
    websocket = kind == "websocket"
    path = f"/ws/events/{thread}" if websocket else f"/api/runs/{run}/events"
    async with AsgiStream(guarded.app, path, websocket=websocket, authorization=f"Bearer {key}") as stream:
        assert stream.status == (101 if websocket else 200)
        # By SQL, as another process would: only the notification tells this one.
        await database_of(guarded.engine).pool.execute("UPDATE api_keys SET revoked_at = now()")
        await stream.end()
        assert stream.close_code == (1008 if websocket else None)


@pytest.mark.parametrize("kind", ["sse", "websocket"])
async def test_a_stream_ends_when_its_key_expires(guarded: Guarded, kind: str) -> None:
    _, key = await guarded.engine.access.keys.create(
        permissions=READ_WRITE, app_names=["a"], expires_at=datetime.now(UTC) + timedelta(days=1)
    )
    async with guarded.client(key) as client:
        thread, run = await start_run(client)
    websocket = kind == "websocket"
    path = f"/ws/events/{thread}" if websocket else f"/api/runs/{run}/events"
    async with AsgiStream(guarded.app, path, websocket=websocket, authorization=f"Bearer {key}") as stream:
        assert stream.status == (101 if websocket else 200)
        (grant,) = guarded.engine.access.grants.of_key(key_id(key))
        assert grant.timer is not None
        remaining = grant.timer.when() - asyncio.get_running_loop().time()
        assert 0 < remaining <= 24 * 3600
        # The day is over.
        grant.revoked.set()
        await stream.end()


async def test_a_stream_of_a_foreign_or_unknown_run_is_404(guarded: Guarded) -> None:
    async with guarded.client(await guarded.key("a")) as client:
        thread, run = await start_run(client)
    stranger = {"authorization": f"Bearer {await guarded.key('b')}"}
    for path in (f"/api/runs/{run}/events", "/api/runs/tomorrow/events"):
        async with AsgiStream(guarded.app, path, **stranger) as stream:
            assert stream.status == 404
    async with AsgiStream(guarded.app, f"/ws/events/{thread}", websocket=True, **stranger) as socket:
        assert (socket.status, socket.close_code) == (0, 1008)


async def test_only_administrators_of_all_apps_hear_everything(guarded: Guarded) -> None:
    admin = (Permission.ADMIN,)
    for key, heard in [
        (await guarded.key("a"), False),
        (await guarded.key("a", permissions=admin), False),
        (await guarded.key(), False),
        (await guarded.key(permissions=admin), True),
    ]:
        socket = AsgiStream(guarded.app, "/ws/events/*", websocket=True, authorization=f"Bearer {key}")
        async with socket:
            assert (socket.status == 101) is heard


@pytest.mark.parametrize(
    ("origin", "is_let_in"),
    [("http://engine", True), ("https://shop.example", True), ("http://evil.example", False), ("null", False)],
)
async def test_the_origin_of_a_websocket_is_checked(database_url: str, origin: str, is_let_in: bool) -> None:
    async with Engine.open(database_url, auth="required", cors_origins="https://shop.example") as engine:
        guarded = Guarded(engine)
        key = await guarded.key("a")
        async with guarded.client(key) as client:
            thread = await new_thread(client, "a")
        headers = {"authorization": f"Bearer {key}", "origin": origin}
        async with AsgiStream(guarded.app, f"/ws/events/{thread}", websocket=True, **headers) as socket:
            assert (socket.status == 101) is is_let_in


@pytest.mark.parametrize(
    ("origin", "is_let_in"),
    [("http://localhost:3000", True), ("http://engine", True), ("http://evil.example", False), ("null", False)],
)
async def test_without_keys_pages_of_elsewhere_are_kept_out(engine: Engine, origin: str, is_let_in: bool) -> None:
    """A page that a user visits could otherwise use the server on their machine."""
    open_to_all = Guarded(engine)
    async with open_to_all.client(Origin=origin) as page:
        answer = await page.post("/api/sessions", json={"app_name": "a", "user_id": "u"})
        assert answer.status_code == (201 if is_let_in else 403)
    async with AsgiStream(open_to_all.app, "/ws/events/x", websocket=True, origin=origin) as socket:
        assert (socket.status == 101) is is_let_in


async def test_cors_is_an_explicit_list(database_url: str) -> None:
    async with Engine.open(database_url, auth="required", cors_origins="https://shop.example") as engine:
        guarded = Guarded(engine)
        ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        async with guarded.client(await guarded.key("a")) as client:
            allowed = await client.options("/api/sessions", headers={"Origin": "https://shop.example", **ask})
            assert allowed.headers["access-control-allow-origin"] == "https://shop.example"
            refused = await client.options("/api/sessions", headers={"Origin": "https://evil.example", **ask})
            assert "access-control-allow-origin" not in refused.headers
            answer = await client.get("/api/access/me", headers={"Origin": "https://evil.example"})
            assert "access-control-allow-origin" not in answer.headers


async def test_streams_of_one_caller_are_counted(database_url: str) -> None:
    async with Engine.open(database_url, auth="required", max_streams_per_caller=2) as engine:
        guarded = Guarded(engine)
        key, other = await guarded.key("a"), await guarded.key("a")
        async with guarded.client(key) as client:
            thread, run = await start_run(client)
        mine, theirs = {"authorization": f"Bearer {key}"}, {"authorization": f"Bearer {other}"}
        sse, socket = f"/api/runs/{run}/events", f"/ws/events/{thread}"
        async with AsgiStream(guarded.app, sse, **mine) as first:
            assert first.status == 200
            async with AsgiStream(guarded.app, socket, websocket=True, **mine) as second:
                assert second.status == 101
                async with AsgiStream(guarded.app, sse, **mine) as third:
                    assert third.status == 429
                    assert int(third.headers["retry-after"]) >= 1
                async with AsgiStream(guarded.app, sse, **theirs) as another:
                    assert another.status == 200
        async with AsgiStream(guarded.app, sse, **mine) as later:
            assert later.status == 200


async def test_a_long_poll_delivers_nothing_after_a_revocation(guarded: Guarded) -> None:
    key, writer = await guarded.key("a"), await guarded.key("a")
    async with guarded.client(key) as client, guarded.client(writer) as agent:
        thread = await new_thread(client, "a")
        opened = (await agent.post(f"/contexts/{thread}/messages/stream", json={})).json()
        chunks = f"/contexts/{thread}/messages/{opened['message_id']}"
        polling = asyncio.create_task(client.get(f"{chunks}/streaming-chunks", params={"wait": 60}))
        while key_id(key) not in guarded.engine.access.grants.key_ids:
            await asyncio.sleep(0.01)
        async with AsgiStream(
            guarded.app, f"/ws/events/{thread}", websocket=True, authorization=f"Bearer {key}"
        ) as seen:
            await database_of(guarded.engine).pool.execute(
                "UPDATE api_keys SET revoked_at = now() WHERE id = $1", key_id(key)
            )
            # The stream of the same key ends: this process knows of the revocation.
            await seen.end()
        assert not polling.done()
        written = await agent.post(f"{chunks}/chunks", json={"first_sequence": 1, "deltas": ["secret"]})
        assert written.status_code < 300, written.text
        answer = await polling
        assert (answer.status_code, "secret" in answer.text) == (401, False)
        assert answer.headers["x-request-id"]


async def test_a_long_poll_continues_when_its_key_is_rotated_with_a_time_of_grace(guarded: Guarded) -> None:
    key, writer = await guarded.key("a"), await guarded.key("a")
    async with guarded.client(key) as client, guarded.client(writer) as agent:
        thread = await new_thread(client, "a")
        opened = (await agent.post(f"/contexts/{thread}/messages/stream", json={})).json()
        chunks = f"/contexts/{thread}/messages/{opened['message_id']}"
        polling = asyncio.create_task(client.get(f"{chunks}/streaming-chunks", params={"wait": 60}))
        while key_id(key) not in guarded.engine.access.grants.key_ids:
            await asyncio.sleep(0.01)
        async with AsgiStream(
            guarded.app, f"/ws/events/{thread}", websocket=True, authorization=f"Bearer {key}"
        ) as seen:
            await guarded.engine.access.keys.rotate(key_id(key), grace=timedelta(hours=1))
            await seen.end()
        # The server watches the connection of a read that takes long, and must not take the rotation for a disconnect.
        await asyncio.sleep(1)
        assert not polling.done()
        await agent.post(f"{chunks}/chunks", json={"first_sequence": 1, "deltas": ["words"]})
        answer = await polling
        assert (answer.status_code, "words" in answer.text) == (200, True)


@pytest.mark.parametrize("apps", [("a",), ()], ids=["key of the app", "key of all apps"])
async def test_an_event_of_another_thread_that_names_a_run_does_not_redirect_its_stream(
    guarded: Guarded, apps: tuple[str, ...]
) -> None:
    key = await guarded.key(*apps)
    async with guarded.client(key) as client, guarded.client(await guarded.key("a", user_id="eve")) as eve:
        thread, run = await start_run(client)
        body = {"author": "user", "event_type": "message", "run_id": run, "content": {"text": "forged"}}
        path = f"/api/sessions/{await new_thread(eve, 'a', 'eve')}/events"
        assert (await eve.post(path, json=body)).status_code == 403
        forged = await client.post(path, json=body)
        assert forged.status_code == 201, forged.text
        finished = await client.post(f"/api/sessions/{thread}/runs/{run}/finish")
        assert finished.status_code == 200, finished.text
    path = f"/api/runs/{run}/events?profile=agui"
    async with AsgiStream(guarded.app, path, authorization=f"Bearer {key}") as stream:
        frames = b"".join(await stream.end())
    assert thread.encode() in frames
    assert b"forged" not in frames
