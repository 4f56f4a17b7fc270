"""The API has forgotten its own checks: whatever a caller asks for, row level security gives nothing of others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import httpx
import pytest

from cognizes.engine.access import Principal
from cognizes.engine.api.authorization import Authorizer
from cognizes.engine.models import Run
from cognizes.engine.runs import Runs
from tests.asgi_streams import AsgiStream
from tests.engine_parts import database_of
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
def without_checks_of_the_api(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """After the tenants have filled their apps, every caller may request everything."""
    assert database_of(tenants.guarded.engine).has_row_level_security

    async def let_in(*_: Any) -> None:
        return None

    async def find_any(_: Authorizer, __: Principal, name: str) -> UUID:
        return await tenants.guarded.engine.sessions.store.find_context(name)

    find_runs = Runs.find_all

    async def find_all_runs(runs: Runs, run_id: str, **_: Any) -> list[Run]:
        return await find_runs(runs, run_id)

    monkeypatch.setattr(Authorizer, "check_reach", let_in)
    monkeypatch.setattr(Runs, "find_all", find_all_runs)
    monkeypatch.setattr(Authorizer, "find_context", find_any)
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
    """Its owner follows the same: what the server has read for one must not be sent to the other."""
    alpha, beta, guarded = tenants.alpha, tenants.beta, tenants.guarded
    followed = set()
    for name, method, path, operation in routes(are_streams=True):
        request = request_for(method, path, operation, path_of=alpha, query_of=alpha, body_of=alpha)
        url = str(httpx.URL(request["url"], params=request["params"]))
        stranger = AsgiStream(guarded.app, url, authorization=f"Bearer {beta.admin_key}")
        async with stranger, AsgiStream(guarded.app, url, authorization=f"Bearer {alpha.key}") as own:
            assert own.status == 200, name
            await say(tenants)
            heard = b""
            while b"sequence_num" not in heard and alpha.secret.encode() not in heard:
                heard += await own.next() or b""
            # A reader of a thread is notified in this iteration of the event loop, or in the next ones.
            for _ in range(20):
                await asyncio.sleep(0)
            received = heard_by(stranger)
            if stranger.status == 200:
                # A run that it cannot see may begin tomorrow, and be its own.
                assert "connected" in received, name
                assert not [word for word in alpha.words if word in received.replace(alpha.names["run_id"], "")], name
            else:
                assert stranger.status == 404, name
            followed.add((path, stranger.status))
    assert {("/api/runs/{run_id}/events", 200), ("/contexts/{context_id}/events", 404), ("/events", 404)} <= followed


async def say(tenants: Tenants) -> None:  # noqa: F811
    """Something happens to alpha."""
    alpha = tenants.alpha
    async with tenants.guarded.client(alpha.key) as owner:
        event = {
            "author": "user",
            "event_type": "user_message",
            "content": {"text": alpha.secret},
            "run_id": alpha.names["run_id"],
        }
        await _sent(owner, "POST", f"/api/sessions/{alpha.names['thread_id']}/events", event)


async def test_websockets_tell_nothing_of_another_tenant(tenants: Tenants) -> None:  # noqa: F811
    alpha, beta, guarded = tenants.alpha, tenants.beta, tenants.guarded
    bearer = {"authorization": f"Bearer {beta.key}"}
    url = fill("/ws/events/{thread_id}?after=0", alpha.names)
    own = AsgiStream(guarded.app, url, websocket=True, authorization=f"Bearer {alpha.key}")
    async with own, AsgiStream(guarded.app, url, websocket=True, **bearer) as stranger:
        assert await own.next() is not None
        assert (stranger.status, stranger.close_code) == (0, 1008)
    url = fill("/ws/signals?contexts={thread_id}", alpha.names)
    async with AsgiStream(guarded.app, url, websocket=True, **bearer) as stranger:
        assert json.loads(await stranger.next() or b"")["type"] == "error"
