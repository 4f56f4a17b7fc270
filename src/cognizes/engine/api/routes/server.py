"""The server itself: health, version, the caller, tickets, and the pages of the Monitor and of the API."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from dataclasses import asdict
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from cognizes.engine.access import ANONYMOUS, Permission
from cognizes.engine.access.authenticator import TICKET_SECONDS
from cognizes.engine.api.authorization import Caller, CurrentEngine, Reach, access
from cognizes.engine.api.responses import NOT_FOUND, DocumentResponse
from cognizes.engine.database import Database
from cognizes.engine.database.tenancy import acting_as_engine
from cognizes.engine.errors import DatabaseUnavailableError, EngineError, NotFoundError
from cognizes.engine.monitor import CONTENT_SECURITY_POLICY, STATIC
from cognizes.engine.version import __version__

router = APIRouter()
_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_PING_SECONDS = 3.0
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
"""Instead of the types of the machine: browsers refuse modules that are not text/javascript."""


class DeltasView(BaseModel):
    """The backend of token deltas, and whether it answers."""

    carried_by: Literal["redis", "postgresql"]
    status: str


class PoolView(BaseModel):
    """The connections of the process to PostgreSQL."""

    size: int
    idle: int
    max: int


class FailingTaskView(BaseModel):
    """A background task whose last round failed, and its number of restarts."""

    name: str
    error: str
    restarts: int


class BackgroundView(BaseModel):
    """The number of background tasks, and those that fail now."""

    tasks: int
    failing: list[FailingTaskView]


class LiveView(BaseModel):
    """The process serves requests."""

    status: Literal["ok"]


class HealthView(BaseModel):
    """The state of the engine. `database` and `deltas.status` are `ok` or the reason why they are not."""

    status: Literal["ok", "degraded", "unavailable"]
    listener_running: bool
    database: str
    deltas: DeltasView
    server: Literal["embedded", "external"]
    maintenance: str
    pool: PoolView
    background: BackgroundView
    conflicts: int


@router.get(
    "/health",
    tags=["server"],
    response_model=HealthView,
    responses={503: {"model": HealthView, "description": "The database or the listener is unavailable"}},
    summary="Check the database, the listener and Redis",
)
@access(Reach.PUBLIC)
async def health(engine: CurrentEngine, caller: Caller) -> Response:
    """Return 200 with `"status": "ok"`, or 503 with what is wrong.

    200 with `"degraded"` while the Redis of token deltas is unavailable, or while a background task fails
    (`background.failing` names it): the server still serves requests, so it stays in service. On a server with keys,
    only callers with a key read the reasons; others read `unavailable` and `failing`.
    """
    shows_reasons = not engine.access.is_required or caller is not ANONYMOUS
    with acting_as_engine():
        database, deltas = await asyncio.gather(_ask(_ping(engine._database)), _ask(engine.streams.backend.ping()))
    listening = engine._listener.is_running
    failing = engine._supervisor.failures
    named = [asdict(failure) | ({} if shows_reasons else {"error": "failing"}) for failure in failing]
    status = "ok" if deltas == "ok" and not failing else "degraded"
    if database != "ok" or not listening:
        status = "unavailable"
    body = {
        "status": status,
        "listener_running": listening,
        "database": database if shows_reasons or database == "ok" else "unavailable",
        "deltas": {
            "carried_by": "redis" if engine.settings.redis_url else "postgresql",
            "status": deltas if shows_reasons or deltas == "ok" else "unavailable",
        },
        "server": "embedded" if engine._embedded else "external",
        "maintenance": engine._maintenance.scheduler,
        "pool": {
            "size": engine._database.pool.get_size(),
            "idle": engine._database.pool.get_idle_size(),
            "max": engine._database.pool.get_max_size(),
        },
        "background": {"tasks": len(engine._supervisor.names), "failing": named},
        "conflicts": engine.sessions.conflicts,
    }
    return DocumentResponse(body, status_code=503 if status == "unavailable" else 200)


@router.get("/live", tags=["server"], response_model=LiveView, summary="Check that the process runs")
@access(Reach.PUBLIC)
async def live() -> Response:
    """Return 200 while the process serves requests, whatever the state of the database: for a liveness probe."""
    return DocumentResponse({"status": "ok"})


async def _ping(database: Database) -> None:
    """Raise `DatabaseUnavailableError` unless the primary answers in time."""
    try:
        async with asyncio.timeout(_PING_SECONDS):
            if not await database.fetch_value("ping"):
                raise DatabaseUnavailableError("the PostgreSQL server is a standby, which is read-only")
    except TimeoutError as error:
        raise DatabaseUnavailableError(f"PostgreSQL did not answer in {_PING_SECONDS:g} s") from error


async def _ask(question: Awaitable[object]) -> str:
    try:
        await question
    except EngineError as error:
        return str(error)
    return "ok"


@router.get(
    "/metrics",
    tags=["server"],
    response_class=PlainTextResponse,
    responses=NOT_FOUND,
    summary="Read the metrics in Prometheus' text format",
)
@access(Reach.EVERYTHING, Permission.ADMIN)
async def metrics(request: Request) -> Response:
    """Return the metrics of all processes of `serve`. 404 unless COGNIZES_METRICS=1."""
    export = request.app.state.metrics
    if export is None:
        raise NotFoundError("metrics are off; set COGNIZES_METRICS=1")
    # A late import: the module needs the extra `metrics`.
    from cognizes.engine.api.metrics import CONTENT_TYPE  # noqa: PLC0415

    return Response(await export.render(), media_type=CONTENT_TYPE)


class VersionView(BaseModel):
    """The versions of the engine and of PostgreSQL."""

    engine: str
    postgresql: str


@router.get("/version", tags=["server"], response_model=VersionView, summary="Read the versions")
@access(Reach.PUBLIC)
async def version(engine: CurrentEngine) -> Response:
    """Return the versions of the engine and of PostgreSQL."""
    with acting_as_engine():
        postgresql = await engine._database.fetch_value("read_version")
    return DocumentResponse({"engine": __version__, "postgresql": postgresql})


class CallerView(BaseModel):
    """A caller. Without apps it is for all apps; without a user it may act for any user."""

    name: str
    permissions: list[str]
    app_names: list[str] | None
    user_id: str | None
    expires_at: str | None


class TicketView(BaseModel):
    """A ticket that opens one stream."""

    ticket: str
    expires_in: int


@router.get("/api/access/me", tags=["access"], response_model=CallerView, summary="Read the caller")
@access(Reach.CALLER)
async def who_am_i(caller: Caller) -> Response:
    """Return the rights of the key or token of this request."""
    return DocumentResponse(
        {
            "name": caller.name,
            "permissions": sorted(caller.permissions),
            "app_names": None if caller.app_names is None else sorted(caller.app_names),
            "user_id": caller.user_id,
            "expires_at": caller.expires_at.isoformat() if caller.expires_at else None,
        }
    )


@router.post(
    "/api/access/tickets",
    tags=["access"],
    status_code=201,
    response_model=TicketView,
    summary="Create a ticket for one stream",
)
@access(Reach.CALLER)
async def create_ticket(caller: Caller, engine: CurrentEngine) -> Response:
    """Create a ticket for EventSource and WebSocket in browsers, which send no headers.

    `?ticket=…` opens one stream within half a minute. It ends when the key is revoked or the token expires.
    """
    ticket = await engine.access.tickets.issue(caller)
    return DocumentResponse({"ticket": ticket, "expires_in": TICKET_SECONDS}, status_code=201)


@access(Reach.PUBLIC)
class MonitorFiles(StaticFiles):
    """The files of the page with its headers. Clients revalidate them by ETag."""

    def __init__(self) -> None:
        super().__init__(directory=STATIC)

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(_HEADERS)
        if kind := _TYPES.get(os.path.splitext(full_path)[1]):
            response.headers["content-type"] = f"{kind}; charset=utf-8"
        return response


@router.get("/", include_in_schema=False)
@access(Reach.PUBLIC)
async def first_page() -> Response:
    """Return the page of the Monitor."""
    return FileResponse(STATIC / "index.html", headers=_HEADERS)


@router.get("/docs", include_in_schema=False)
@access(Reach.PUBLIC)
async def api_reference() -> Response:
    """Return the page that shows the OpenAPI document."""
    return FileResponse(STATIC / "api_reference.html", headers=_HEADERS)
