"""Requests that are served without FastAPI's layers are answered as FastAPI answers them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import FastAPI

from cognizes.engine.access import ANONYMOUS
from cognizes.engine.api.authorization import begin_call
from cognizes.engine.api.main import create_app
from cognizes.engine.api.middleware import DirectRoutes

THREAD = "01a1ecef-aea0-7a5c-868a-27232a0a754d"


@pytest.fixture(scope="module")
def application() -> FastAPI:
    return create_app()


@pytest.fixture(scope="module")
def direct(application: FastAPI) -> DirectRoutes:
    return DirectRoutes(application)


def scope(method: str, path: str, **more: Any) -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "headers": [], "query_string": b"", **more}


@pytest.mark.parametrize(
    ("method", "path", "template", "arguments"),
    [
        ("GET", f"/api/sessions/{THREAD}", "/api/sessions/{thread_id}", {"thread_id": THREAD}),
        ("POST", "/api/sessions", "/api/sessions", {}),
        ("POST", f"/api/sessions/{THREAD}/events", "/api/sessions/{thread_id}/events", {"thread_id": THREAD}),
        # A literal segment that was declared after the parameter, and an id with slashes.
        ("DELETE", "/memory/long-term/entry", "/memory/long-term/entry", {}),
        ("POST", "/api/runs/a/b/cancel", "/api/runs/{run_id:path}/cancel", {"run_id": "a/b"}),
    ],
)
def test_finds_the_route_that_fastapi_finds(
    direct: DirectRoutes, method: str, path: str, template: str, arguments: dict[str, str]
) -> None:
    request = scope(method, path)
    found = direct.find(request)
    assert found is not None
    assert found.route.path == template
    assert request["path_params"] == arguments
    assert request["endpoint"] is found.route.endpoint


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nothing"),
        ("GET", ""),
        ("PUT", f"/api/sessions/{THREAD}"),
        ("GET", f"/api/sessions/{THREAD}/"),
        ("GET", "/monitor/app.js"),
        # It takes a header, which only FastAPI reads.
        ("GET", "/events"),
    ],
)
def test_leaves_other_requests_to_fastapi(direct: DirectRoutes, method: str, path: str) -> None:
    assert direct.find(scope(method, path)) is None


def test_leaves_overridden_dependencies_to_fastapi(application: FastAPI, direct: DirectRoutes) -> None:
    application.dependency_overrides[str] = str
    try:
        assert direct.find(scope("GET", "/health")) is None
    finally:
        application.dependency_overrides.clear()
    assert direct.find(scope("GET", "/health")) is not None


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (b"application/json", b'{"app_name": "shop"}'),
        (b"application/json", b'{"app_name": "shop", "user_id": "ada", "unknown": 1}'),
        (b"application/json", b"not json"),
        (b"application/json", b'{"app_name": "\\ud800", "user_id": "ada"}'),
        (b"application/json", b"null"),
        (b"application/json", b""),
        (b"text/plain", b'{"app_name": "shop", "user_id": "ada"}'),
    ],
)
async def test_an_invalid_body_reaches_fastapi_whole(application: FastAPI, content_type: bytes, body: bytes) -> None:
    routes = DirectRoutes(application)
    request = scope("POST", "/api/sessions", app=_WithoutChecks())
    request["headers"] = [(b"content-type", content_type)]
    begin_call(request).principal = ANONYMOUS
    parts = [body[:3], body[3:]]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Any) -> None:
        raise AssertionError(f"answered with {message}")

    route = routes.find(request)
    assert route is not None
    again = await routes.serve(route, request, receive, send)
    assert again is not None
    message = await again()
    assert message["body"] == body
    assert not message["more_body"]


class _WithoutChecks:
    """An application whose authorizer lets every request through, and whose engine is never called."""

    def __init__(self) -> None:
        self.state = self
        self.authorizer = self
        self.engine = json

    async def authorize(self, _: object) -> None:
        return None
