"""The OpenAPI document: security, tags, and the errors that each operation has."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import iter_route_contexts

from cognizes.engine.access import Permission
from cognizes.engine.api.authorization import UNDECLARED, Access, Reach, declared_access
from cognizes.engine.api.responses import Problem

TAGS = {
    "sessions": "Sessions with their events, scoped state, messages, snapshots and forks.",
    "runs": "Runs: create or enqueue, record progress, wait, signal, end. A run id may be that of several threads.",
    "schedules": "Schedules: runs at times of a cron expression, or at an interval.",
    "webhooks": "Webhooks out: signed calls when a run waits for a person, fails or completes; dead letters.",
    "contexts": "Signal-Pull: a session as a context, with messages, chunks, branches and tool approvals.",
    "signals": "Signal-Pull: streams of signals that say which context changed. The change itself is pulled.",
    "conversations": "The timeline of a session, and chat with its hosted agent.",
    "memory": "Working, long-term and episodic memory, recall, and search in messages.",
    "live": "Live events of runs and threads.",
    "agents": "Hosted agents over AG-UI.",
    "mcp": "The Model Context Protocol: memory tools, and threads as resources.",
    "attachments": "Images, audio and files of messages.",
    "copilotkit": "A CopilotKit runtime.",
    "debug": "The Monitor's views and actions: search, time travel, export.",
    "usage": "Tokens and cost of model calls.",
    "user data": "All data of one user of an app: export and erasure.",
    "access": "The caller, and tickets for streams of browsers.",
    "server": "Health and version.",
}
_SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, or a token of the identity provider."},
    "api_key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "An API key."},
    "ticket": {
        "type": "apiKey",
        "in": "query",
        "name": "ticket",
        "description": "Opens one stream, once, within half a minute: `POST /api/access/tickets`.",
    },
}
_HAS_ONE = {Reach.THREAD, Reach.THREADS, Reach.RUN, Reach.AGENT, Reach.AGENTS}
"""Reaches that name something that may not exist."""
_STREAM = "text/event-stream"


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of an application; built once."""
    if app.openapi_schema is None:
        app.openapi_schema = _build(app)
    return app.openapi_schema


def _build(app: FastAPI) -> dict[str, Any]:
    built = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=[{"name": name, "description": description} for name, description in TAGS.items()],
    )
    components = built.setdefault("components", {})
    components["securitySchemes"] = _SECURITY_SCHEMES
    schemas = components.setdefault("schemas", {})
    schemas["Problem"] = Problem.model_json_schema()
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for context in iter_route_contexts(app.routes):
        for method in context.methods or ():
            operation = built["paths"].get(context.path_format, {}).get(method.lower())
            if operation is not None:
                _complete(operation, declared_access(context.endpoint) or UNDECLARED, method, str(context.path_format))
    return built


def _complete(operation: dict[str, Any], needed: Access, method: str, path: str) -> None:
    responses = operation["responses"]
    # A ticket opens a GET only.
    streams = method == "GET" and any(_STREAM in response.get("content", {}) for response in responses.values())
    operation["security"] = _security(needed, streams=streams)
    # FastAPI adds its own 422 to every operation that takes an argument.
    responses.pop(str(HTTPStatus.UNPROCESSABLE_ENTITY.value), None)
    declared = {int(status) for status in responses if int(status) >= HTTPStatus.BAD_REQUEST}
    for status in sorted(declared | _errors(operation, needed, method, path, streams=streams)):
        if "content" in responses.get(str(status), {}):
            continue
        responses[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }


def _security(needed: Access, *, streams: bool) -> list[dict[str, list[str]]]:
    if needed.reach is Reach.PUBLIC:
        return []
    names = ("bearer", "api_key", "ticket") if streams else ("bearer", "api_key")
    return [{name: []} for name in names]


def _errors(operation: dict[str, Any], needed: Access, method: str, path: str, *, streams: bool) -> set[int]:
    """Return the errors that follow from what a route takes and needs. Others are declared by the route."""
    errors = {HTTPStatus.FORBIDDEN, HTTPStatus.SERVICE_UNAVAILABLE}
    if needed.reach is not Reach.PUBLIC:
        errors |= {HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS}
    if needed.reach in _HAS_ONE:
        errors.add(HTTPStatus.NOT_FOUND)
    # A context id may be a session id, which two threads of the caller may have; a run id likewise.
    # A change conflicts with the version or the id in its body, or with the status of the run in its path.
    changes = needed.permission is not Permission.READ and method in ("POST", "PUT")
    changes &= "requestBody" in operation or "{run_id}" in path
    if "{context_id}" in path or (needed.reach is Reach.RUN and not streams) or (changes and needed.reach in _HAS_ONE):
        errors.add(HTTPStatus.CONFLICT)
    if "requestBody" in operation:
        errors |= {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE}
    if "requestBody" in operation or operation.get("parameters"):
        errors.add(HTTPStatus.UNPROCESSABLE_ENTITY)
    return {int(error) for error in errors}
