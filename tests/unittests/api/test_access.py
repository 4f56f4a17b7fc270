"""What every route declares about its callers, and what happens without a declaration."""

from __future__ import annotations

from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts

from cognizes.engine.access import Permission
from cognizes.engine.api.authorization import UNDECLARED, Reach, access, access_of, declared_access, only_reads
from cognizes.engine.api.main import app

WITHOUT_DECLARATION = {"/openapi.json"}
"""FastAPI's own route; it holds no data of a tenant."""


def declarations() -> dict[str, str]:
    """Every route, HTTP or WebSocket, aliases included, and what it declares."""
    found = {}
    for context in iter_route_contexts(app.routes):
        target = context.endpoint or getattr(context.route, "app", None)
        needed = declared_access(target)
        for method in sorted(context.methods or {"WEBSOCKET"}):
            found[f"{method} {context.path}"] = f"{needed.reach} {needed.permission}" if needed else "undeclared"
    return found


def test_every_route_declares_its_access() -> None:
    found = declarations()
    assert len(found) > 100
    undeclared = {name for name, needed in found.items() if needed == "undeclared"}
    assert {name.split()[1] for name in undeclared} == WITHOUT_DECLARATION, "declare these routes with @access"


def test_only_these_routes_need_no_credential() -> None:
    public = {name for name, needed in declarations().items() if needed.startswith("public")}
    assert public == {"GET /", "GET /docs", "GET /health", "GET /live", "GET /version", "WEBSOCKET /monitor"}


def test_an_undeclared_route_needs_an_administrator_of_every_app_and_is_audited() -> None:
    async def endpoint() -> None: ...

    assert access_of({"endpoint": endpoint}) is UNDECLARED
    assert access_of({}) is UNDECLARED
    assert (UNDECLARED.reach, UNDECLARED.permission) == (Reach.EVERYTHING, Permission.ADMIN)
    assert UNDECLARED.is_audited


def test_writes_need_more_than_the_permission_to_read() -> None:
    """Only these write nothing that a reader may not write. The tools of MCP that write check the permission."""
    reading = {"POST /api/access/tickets", "POST /mcp"} | {
        name for name in declarations() if name.endswith(("/connect", "/recall", "/memory/context", "/messages/search"))
    }
    weak = {
        name
        for name, needed in declarations().items()
        if not name.startswith(("GET ", "HEAD ", "WEBSOCKET ")) and needed.endswith("read")
    }
    assert weak == reading


def test_a_post_that_only_reads_may_be_cancelled() -> None:
    @access(Reach.APP, only_reads=True)
    async def search() -> None: ...

    @access(Reach.APP)
    async def connect() -> None: ...

    assert only_reads({"method": "POST", "endpoint": search})
    assert not only_reads({"method": "POST", "endpoint": connect})
    assert only_reads({"method": "GET", "endpoint": connect})


def test_the_names_of_the_app_and_the_user_are_checked_in_the_part_that_the_route_reads() -> None:
    """A route without a user concerns all users of the app: it refuses callers that are bound to one."""
    checked = 0
    for context in iter_route_contexts(app.routes):
        needed = declared_access(context.endpoint)
        if needed is None or needed.reach is not Reach.APP:
            continue
        bodies = context.dependant.body_params
        assert needed.takes_body == bool(bodies), f"{context.path}: call the parameter of the body `body`"
        fields = {name for body in bodies for name in body.field_info.annotation.model_fields}
        names = fields if bodies else _query_names(context.dependant)
        assert "app_name" in names, context.path
        assert "user_id" in names or needed.is_for_agents, context.path
        checked += 1
    assert checked > 40


def _query_names(dependant: Dependant) -> set[str]:
    nested = [_query_names(dependency) for dependency in dependant.dependencies]
    return {parameter.alias for parameter in dependant.query_params}.union(*nested)
