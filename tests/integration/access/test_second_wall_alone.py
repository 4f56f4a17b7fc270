"""The API has forgotten its own checks: whatever a caller asks for, row level security gives nothing of others."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import httpx
import pytest

from cognizes.engine.access import Principal
from cognizes.engine.api.auth import Gate
from tests.asgi_streams import AsgiStream
from tests.integration.access.test_isolation import (
    IDS,
    ROUTES,
    Listener,
    Tenants,
    _is_stream,
    _sent,
    fill,
    request_for,
    tenants,  # noqa: F401 - the fixture
)

WITHOUT_AGENTS = ("/agui", "/copilotkit/agent")


@pytest.fixture(autouse=True)
def without_the_first_wall(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """From when the tenants have furnished their apps on, everybody may ask for everything."""
    assert tenants.guarded.engine.database.has_second_wall

    async def let_in(*_: Any) -> None:
        return None

    async def find_any(gate: Gate, _: Principal, name: str) -> UUID:
        return await gate._engine.manager.sessions.find_context(name)

    monkeypatch.setattr(Gate, "_check_reach", let_in)
    monkeypatch.setattr(Gate, "check_threads", let_in)
    monkeypatch.setattr(Gate, "find_context", find_any)
    monkeypatch.setattr(Principal, "sees_app", lambda *_: True)
    monkeypatch.setattr(Principal, "sees", lambda *_: True)


def routes(*, are_streams: bool) -> Iterable[tuple[str, str, str, Any]]:
    for name, (method, path, operation) in zip(IDS, ROUTES, strict=True):
        if _is_stream(operation) is are_streams and not path.startswith(WITHOUT_AGENTS):
            yield name, method, path, operation


def heard_by(stream: AsgiStream) -> str:
    """What has come so far."""
    heard = b""
    while not stream.received.empty():
        heard += stream.received.get_nowait() or b""
    return heard.decode()


async def test_no_route_tells_or_changes_anything_of_another_tenant(tenants: Tenants) -> None:  # noqa: F811
    alpha, beta, guarded = tenants.alpha, tenants.beta, tenants.guarded
    before = await tenants.rows(alpha)
    listener = Listener(alpha)
    statuses = set()
    for key in (beta.key, beta.admin_key):
        async with guarded.client(key) as stranger:
            for name, method, path, operation in routes(are_streams=False):
                request = request_for(method, path, operation, path_of=alpha, query_of=alpha, body_of=alpha)
                answer = await stranger.request(**request)
                listener.hear(answer, request, name)
                statuses.add(answer.status_code)
    assert await tenants.rows(alpha) == before
    assert 404 in statuses


async def test_no_stream_tells_anything_of_another_tenant(tenants: Tenants) -> None:  # noqa: F811
    alpha, beta, guarded = tenants.alpha, tenants.beta, tenants.guarded
    bearer = {"authorization": f"Bearer {beta.admin_key}"}
    thread = alpha.names["thread_id"]
    async with guarded.client(alpha.key) as owner:
        for name, method, path, operation in routes(are_streams=True):
            request = request_for(method, path, operation, path_of=alpha, query_of=alpha, body_of=alpha)
            url = str(httpx.URL(request["url"], params=request["params"]))
            # Its owner follows the same: what the server knows already for one must not be told to the other.
            own = AsgiStream(guarded.app, url, authorization=f"Bearer {alpha.key}")
            async with own, AsgiStream(guarded.app, url, **bearer) as stranger:
                assert own.status == 200, name
                said = {"author": "user", "event_type": "user_message", "content": {"text": alpha.secret}}
                event = await _sent(owner, "POST", f"/api/sessions/{thread}/events", {**said, "run_id": "run-of-alpha"})
                heard = ""
                while event["id"] not in heard and alpha.secret not in heard and "sequence_num" not in heard:
                    heard += (await own.next() or b"").decode()
                assert stranger.status in (200, 404), name
                told = heard_by(stranger)
                assert alpha.secret not in told, name
                assert event["id"] not in told, name


@pytest.mark.parametrize("path", ["/ws/events/{thread_id}?after=0", "/ws/signals?contexts={thread_id}"])
async def test_websockets_tell_nothing_of_another_tenant(tenants: Tenants, path: str) -> None:  # noqa: F811
    alpha, beta, guarded = tenants.alpha, tenants.beta, tenants.guarded
    url = fill(path, alpha.names)
    own = AsgiStream(guarded.app, url, websocket=True, authorization=f"Bearer {alpha.key}")
    async with own, AsgiStream(guarded.app, url, websocket=True, authorization=f"Bearer {beta.key}") as stranger:
        assert await own.next() is not None
        if path.startswith("/ws/events"):
            assert (stranger.status, stranger.close_code) == (0, 1008)
        else:
            assert json.loads(await stranger.next() or b"")["type"] == "error"
