"""The OpenAPI document: each operation once, with a tag, security, and the errors that it has."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.routing import iter_route_contexts

from cognizes.engine.api.authorization import Reach, declared_access
from cognizes.engine.api.main import app
from cognizes.engine.api.openapi import TAGS

DOCUMENT = app.openapi()
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}
PROBLEM = {"$ref": "#/components/schemas/Problem"}


def errors_of(operation: dict[str, Any]) -> set[int]:
    return {int(status) for status in operation["responses"] if int(status) >= 400}


def test_no_operation_is_documented_twice() -> None:
    documented: dict[Any, list[str]] = {}
    for context in iter_route_contexts(app.routes):
        for method in context.methods or ():
            if f"{method} {context.path_format}" in OPERATIONS:
                documented.setdefault(context.endpoint, []).append(f"{method} {context.path_format}")
    assert len(documented) > 90
    assert [paths for paths in documented.values() if len(paths) > 1] == []


def test_aliases_are_served_and_not_documented() -> None:
    served = {context.path_format for context in iter_route_contexts(app.routes)}
    assert {"/v1/contexts/{context_id}/messages", "/v1/events", "/api/memory/recall"} <= served
    assert not [path for path in DOCUMENT["paths"] if path.startswith(("/v1", "/api/memory"))]
    run = "/api/sessions/{thread_id}/runs/{run_id}"
    aliases = {run, *(f"{run}/{action}" for action in ("cancel", "retry", "wait", "signal", "usage"))}
    assert aliases <= served
    assert aliases.isdisjoint(DOCUMENT["paths"])


def test_development_routes_are_not_documented() -> None:
    assert not [path for path in DOCUMENT["paths"] if "test-" in path]


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_has_a_tag_security_and_errors(name: str) -> None:
    operation = OPERATIONS[name]
    assert len(operation["tags"]) == 1
    assert operation["tags"][0] in TAGS
    assert operation["summary"]
    assert "security" in operation
    errors = errors_of(operation)
    assert 403 in errors
    for status in errors:
        content = operation["responses"][str(status)]["content"]
        is_problem = content == {"application/problem+json": {"schema": PROBLEM}}
        # MCP answers what the protocol says: errors of JSON-RPC.
        is_refusal = name == "POST /mcp" and status in {400, 403, 406, 422}
        assert is_problem or is_refusal or (name, status) == ("GET /health", 503)


def test_tags_have_descriptions() -> None:
    assert {tag["name"]: tag["description"] for tag in DOCUMENT["tags"]} == TAGS
    assert {tag for operation in OPERATIONS.values() for tag in operation["tags"]} == set(TAGS)


def test_only_public_operations_need_no_credential() -> None:
    assert set(DOCUMENT["components"]["securitySchemes"]) == {"bearer", "api_key", "ticket"}
    reaches = {
        f"{method} {context.path_format}": declared.reach
        for context in iter_route_contexts(app.routes)
        if (declared := declared_access(context.endpoint)) is not None
        for method in context.methods or ()
    }
    for name, operation in OPERATIONS.items():
        assert (operation["security"] == []) is (reaches[name] is Reach.PUBLIC), name
        accepts_ticket = {"ticket": []} in operation["security"]
        is_stream = "text/event-stream" in operation["responses"].get("200", {}).get("content", {})
        # A ticket opens a stream that a browser requests, which is a GET.
        assert accepts_ticket is (is_stream and name.startswith("GET ")), name


# The form of these answers belongs to the Monitor, to CopilotKit and to MCP.
_OTHERS = ("/api/debug/", "/copilotkit/", "/mcp")


@pytest.mark.parametrize("name", [name for name in sorted(OPERATIONS) if not name.split(" ")[1].startswith(_OTHERS)])
def test_answers_have_a_schema(name: str) -> None:
    for status, response in OPERATIONS[name]["responses"].items():
        if status.startswith("2") and "application/json" in (content := response.get("content", {})):
            schema = content["application/json"]["schema"]
            assert schema.keys() & {"$ref", "anyOf"} or schema.get("items", {}).keys() & {"$ref", "anyOf"}, schema


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GET /version", {403, 503}),
        ("GET /api/sessions", {401, 403, 422, 429, 503}),
        ("GET /api/sessions/{thread_id}", {401, 403, 404, 422, 429, 503}),
        ("POST /api/sessions", {400, 401, 403, 408, 409, 413, 422, 429, 503}),
        ("POST /api/sessions/{thread_id}/events", {400, 401, 403, 404, 408, 409, 413, 422, 429, 503}),
        ("DELETE /api/sessions/{thread_id}", {401, 403, 404, 422, 429, 503}),
        ("GET /memory/long-term/entry", {401, 403, 404, 422, 429, 503}),
    ],
)
def test_an_operation_has_only_its_own_errors(name: str, expected: set[int]) -> None:
    assert errors_of(OPERATIONS[name]) == expected


def test_events_have_typed_content_and_actions() -> None:
    for model in ("NewEvent", "EventView"):
        fields = DOCUMENT["components"]["schemas"][model]["properties"]
        kinds = {option["title"]: option for option in fields["content"]["anyOf"]}
        assert kinds["TextContent"]["properties"]["text"]["type"] == "string"
        assert set(kinds) == {"TextContent", "PartsContent", "OtherContent"}
        assert all(option["additionalProperties"] for option in kinds.values())
        assert fields["actions"]["properties"]["state_delta"]["type"] == "object"


def test_no_schema_of_the_framework_is_left() -> None:
    assert "HTTPValidationError" not in str(DOCUMENT)


def test_only_changes_that_can_conflict_list_a_409() -> None:
    assert 409 not in errors_of(OPERATIONS["POST /api/sessions/{thread_id}/snapshots"])
    for path in ("runs/{run_id}/finish", "events", "fork"):
        assert 409 in errors_of(OPERATIONS[f"POST /api/sessions/{{thread_id}}/{path}"]), path
    for path in ("cancel", "retry"):
        assert 409 in errors_of(OPERATIONS[f"POST /api/runs/{{run_id}}/{path}"]), path
