"""The application: `uvicorn cognizes.engine.api.main:app`, or `cognizes serve`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, FastAPI
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from cognizes.engine.access.audit import keep_queries_out_of_logs
from cognizes.engine.api.agents import ServedAgents
from cognizes.engine.api.authorization import Authorizer, authorize
from cognizes.engine.api.http_protocol import ConnectionLimits, descriptor_limit, on_shutdown_signal
from cognizes.engine.api.limits import FailedKeys, OpenStreams, SharedLimits
from cognizes.engine.api.middleware import Middleware, OpenConnections
from cognizes.engine.api.openapi import document
from cognizes.engine.api.responses import add_problem_handlers
from cognizes.engine.api.routes import (
    agui,
    attachments,
    contexts,
    conversations,
    debug,
    live,
    mcp,
    memory,
    operations,
    producers,
    recall,
    runs,
    server,
    sessions,
    signals,
    usage,
)
from cognizes.engine.api.sse import HeartbeatTimer
from cognizes.engine.database.notifications import DEFAULT_CHANNEL
from cognizes.engine.engine import Engine
from cognizes.engine.monitor.pulse_meter import PulseMeter
from cognizes.engine.settings import Settings
from cognizes.engine.version import __version__

if TYPE_CHECKING:
    from cognizes.engine.api.metrics import MetricsExport, ProcessGroup

logger = logging.getLogger("uvicorn.error")

_DESCRIPTION = """The durable heartbeat of AI agents: sessions, state, events, streams, runs and memory, on PostgreSQL.

Errors are problem details (`application/problem+json`). Every answer carries `X-Request-ID`.
"""


def create_app(
    settings: Settings | None = None,
    engine: Engine | None = None,
    agents: Sequence[str] | None = None,
    *,
    process_group: ProcessGroup | None = None,
) -> FastAPI:
    """Return an application. Without a started engine it opens one of its own while it runs.

    `agents` are served over AG-UI, as `package.module:agent`; None means those of the settings, else the demo.
    `process_group`: the processes whose metrics `/metrics` shows, this one included.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if engine is None:
            _serve(app, await Engine(settings or Settings()).start(), agents, process_group)
        logger.info("✓ PgNotifyListener started")
        exported: MetricsExport | None = app.state.metrics
        try:
            if exported is not None:
                await exported.start()
            # A server fires schedules and ends waits, whether it hosts agents or not.
            app.state.engine.runs.sweep.start()
            if app.state.engine.access.is_required:
                app.state.shared_limits.start(app.state.engine._sweeper)
            await app.state.agents.start()
            with on_shutdown_signal(partial(_end_streams, app)):
                yield
        finally:
            await app.state.shared_limits.close()
            await app.state.agents.close()
            await app.state.heartbeats.close()
            await app.state.agent_heartbeats.close()
            if exported is not None:
                await exported.close()
            if engine is None:
                await app.state.engine.close()

    keep_queries_out_of_logs()
    app = _Application(
        title="Cognizes Engine",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        # FastAPI's pages load scripts of other origins; `routes/server.py` serves ours.
        docs_url=None,
        redoc_url=None,
        # The middleware makes a span for each request, and counts it.
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
        # Every route is authorized by what it declares with `@access`.
        dependencies=[Depends(authorize)],
        routes=[*_routes()],
    )
    app.state.connections = OpenConnections()
    if engine is not None:
        _serve(app, engine, agents, process_group)
    add_problem_handlers(app)
    # As FastAPI documents it.
    app.openapi = partial(document, app)  # type: ignore[method-assign]
    app.mount("/monitor", server.MonitorFiles(), name="monitor")
    return app


@cache
def _routes() -> tuple[BaseRoute, ...]:
    """Return the routes of every application.

    FastAPI analyses their parameters at the first request, which takes longer than most requests: the applications of a
    process share the result.
    """
    routes = APIRouter(dependencies=[Depends(authorize)])
    for router in (
        server.router,
        usage.router,
        sessions.router,
        attachments.router,
        live.router,
        runs.router,
        operations.schedules,
        operations.queues,
        operations.webhooks,
        debug.router,
        agui.router,
        agui.copilotkit,
        mcp.router,
        operations.user_data,
    ):
        routes.include_router(router)
    for part in (conversations, contexts, producers, signals):
        routes.include_router(part.router)
        routes.include_router(part.router, prefix="/v1", include_in_schema=False)
    for router in (memory.shared, recall.router, memory.router):
        routes.include_router(router)
        routes.include_router(router, prefix="/api", include_in_schema=False)
    return tuple(routes.routes)


class _Application(FastAPI):
    """FastAPI below our middleware, which passes to it only the requests that it does not serve directly.

    Middleware that a caller of `create_app` adds stays outermost and sees every request.
    """

    def build_middleware_stack(self) -> ASGIApp:
        added, self.user_middleware = self.user_middleware, []
        try:
            stack: ASGIApp = Middleware(super().build_middleware_stack(), counts=self.state.connections)
        finally:
            self.user_middleware = added
        for kind, arguments, named in reversed(added):
            stack = kind(stack, *arguments, **named)
        return stack


def _serve(app: FastAPI, engine: Engine, agents: Sequence[str] | None, group: ProcessGroup | None) -> None:
    app.state.engine = engine
    app.state.authorizer = Authorizer(engine)
    app.state.streams = OpenStreams(engine.settings)
    app.state.connection_limits = ConnectionLimits(engine.settings, descriptors=descriptor_limit())
    app.state.meter = PulseMeter()
    engine._listener.tap(DEFAULT_CHANNEL, app.state.meter.count)
    app.state.failed_keys = FailedKeys(engine.settings)
    app.state.shared_limits = SharedLimits(
        engine._database.without_tenants(),
        {"requests": app.state.authorizer.rate, "failed": app.state.failed_keys.by_address},
        app.state.streams,
    )
    app.state.agents = ServedAgents(engine, agents)
    seconds, send_seconds = engine.settings.heartbeat_seconds, engine.settings.send_seconds
    app.state.heartbeats = HeartbeatTimer(seconds, send_seconds=send_seconds, supervisor=engine._supervisor)
    app.state.agent_heartbeats = HeartbeatTimer(seconds, send_seconds=send_seconds, supervisor=engine._supervisor)
    app.state.metrics = _export_metrics(app, engine, group) if engine.settings.metrics else None


def _export_metrics(app: FastAPI, engine: Engine, group: ProcessGroup | None) -> MetricsExport:
    # A late import: the module needs the extra `metrics`.
    from cognizes.engine.api.metrics import MetricsExport  # noqa: PLC0415

    def connections() -> dict[str, int]:
        sse = app.state.heartbeats.connections + app.state.agent_heartbeats.connections
        return {"sse": sse, "websocket": app.state.connections.websockets}

    return MetricsExport(engine, connections=connections, group=group)


def _end_streams(app: FastAPI) -> None:
    app.state.heartbeats.end()
    app.state.agents.close_soon()


app = create_app()
