"""Is it alive, and which one is it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import asdict
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from cognizes.engine.api.authorization import CurrentEngine, Reach, access
from cognizes.engine.api.responses import DocumentResponse
from cognizes.engine.errors import EngineError
from cognizes.engine.version import __version__

router = APIRouter(tags=["health"])


class DeltasView(BaseModel):
    """What carries token deltas between processes, and whether it answers."""

    carried_by: Literal["redis", "postgresql"]
    status: str


class PoolView(BaseModel):
    """The connections of the process to PostgreSQL."""

    size: int
    idle: int
    max: int


class FailingTaskView(BaseModel):
    """A background task whose last round failed, and how often it was restarted."""

    name: str
    error: str
    restarts: int


class BackgroundView(BaseModel):
    """How many background tasks run, and which of them fail now."""

    tasks: int
    failing: list[FailingTaskView]


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


@router.get("/health", response_model=HealthView, summary="Whether the database, the listener and Redis work")
@access(Reach.PUBLIC)
async def health(engine: CurrentEngine) -> Response:
    """200 with `"status": "ok"`, or 503 and what is wrong.

    200 with `"degraded"` while the Redis that carries token deltas is away, or while a background task fails
    (`background.failing` names it): requests are answered and answers are stored all the same, and taking every server
    out of service would end those, too.
    """
    database, deltas = await asyncio.gather(
        _ask(engine.database.fetch_value("ping")), _ask(engine.streams.backend.ping())
    )
    listening = engine.listener.is_running
    failing = engine.supervisor.failures
    status = "ok" if deltas == "ok" and not failing else "degraded"
    if database != "ok" or not listening:
        status = "unavailable"
    body = {
        "status": status,
        "listener_running": listening,
        "database": database,
        "deltas": {"carried_by": "redis" if engine.settings.redis_url else "postgresql", "status": deltas},
        "server": "embedded" if engine.embedded else "external",
        "maintenance": engine.maintenance.scheduler,
        "pool": {
            "size": engine.database.pool.get_size(),
            "idle": engine.database.pool.get_idle_size(),
            "max": engine.database.pool.get_max_size(),
        },
        "background": {
            "tasks": len(engine.supervisor.names),
            "failing": [asdict(failure) for failure in failing],
        },
        "conflicts": engine.manager.conflicts,
    }
    return DocumentResponse(body, status_code=503 if status == "unavailable" else 200)


async def _ask(question: Awaitable[object]) -> str:
    try:
        await question
    except EngineError as error:
        return str(error)
    return "ok"


@router.get("/version", summary="Which engine this is")
@access(Reach.PUBLIC)
async def version(engine: CurrentEngine) -> Response:
    """The versions of the engine and of PostgreSQL."""
    postgresql = await engine.database.fetch_value("read_version")
    return DocumentResponse({"engine": __version__, "postgresql": postgresql})
