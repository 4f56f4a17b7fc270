"""Is it alive, and which one is it."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from cognizes.engine.api.dependencies import CurrentEngine
from cognizes.engine.api.responses import DocumentResponse
from cognizes.engine.errors import EngineError
from cognizes.engine.version import __version__

router = APIRouter(tags=["health"])


@router.get("/health", summary="Whether the database and the listener work")
async def health(engine: CurrentEngine) -> Response:
    """200 with `"status": "ok"`, or 503 and what is wrong."""
    try:
        await engine.database.fetch_value("ping")
        database = "ok"
    except EngineError as error:
        database = str(error)
    listening = engine.listener.is_running
    status = "ok" if database == "ok" and listening else "unavailable"
    body = {
        "status": status,
        "listener_running": listening,
        "database": database,
        "server": "embedded" if engine.embedded else "external",
        "maintenance": engine.maintenance.scheduler,
        "pool": {
            "size": engine.database.pool.get_size(),
            "idle": engine.database.pool.get_idle_size(),
            "max": engine.database.pool.get_max_size(),
        },
        "conflicts": engine.manager.conflicts,
    }
    return DocumentResponse(body, status_code=200 if status == "ok" else 503)


@router.get("/version", summary="Which engine this is")
async def version(engine: CurrentEngine) -> Response:
    """The versions of the engine and of PostgreSQL."""
    postgresql = await engine.database.fetch_value("read_version")
    return DocumentResponse({"engine": __version__, "postgresql": postgresql})
