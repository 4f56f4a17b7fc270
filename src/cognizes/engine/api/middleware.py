"""The one ASGI middleware: what happens to every request before and after its route.

For each request: an id, the caller, the tenant of its database calls, a line in the log and, for administrative writes,
an entry in the audit log. `api/exchanges` has what concerns the connection of one request.
"""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import time
from collections.abc import Mapping

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from cognizes.engine.access import Principal
from cognizes.engine.access.audit import printable
from cognizes.engine.api.authorization import check_peer, credential_of, origins_of
from cognizes.engine.api.direct_routes import DirectRoutes
from cognizes.engine.api.exchanges import HttpExchange, SharedParts, WebSocketExchange
from cognizes.engine.api.http_protocol import CONNECTION_LIMITS
from cognizes.engine.api.limits import FailedKeys
from cognizes.engine.api.responses import request_id
from cognizes.engine.database.replicas import having_seen
from cognizes.engine.database.tenancy import acting_as_engine, acting_for, serving_request
from cognizes.engine.engine import Engine
from cognizes.engine.errors import (
    AccessError,
    AuthenticationError,
    EngineError,
    PermissionDeniedError,
    TooManyRequestsError,
)
from cognizes.engine.settings import Settings
from cognizes.engine.telemetry import instruments, request_span

logger = logging.getLogger(__name__)
access_logger = logging.getLogger("cognizes.engine.access")
_SEQUENCE_DIGITS = 19
_ALLOWED_HEADERS = (
    "authorization",
    "content-type",
    "x-api-key",
    "x-request-id",
    "x-user-id",
    "x-seen-sequence",
    "last-event-id",
)
_SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class OpenConnections:
    """How many WebSockets are open. Server-sent event streams are counted by their heartbeat timer."""

    def __init__(self) -> None:
        self.websockets = 0


class Middleware:
    """See the module. `counts` is kept up to date for the Monitor."""

    def __init__(self, app: ASGIApp, counts: OpenConnections) -> None:
        self._app = app
        self._counts = counts
        self._entry: ASGIApp | None = None
        self._direct: DirectRoutes | None = None
        self._shared: SharedParts | None = None
        # Unique: random digits of this process and a counter. A UUID for each request costs more.
        self._process_id = ""
        self._numbers = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            if "state" in scope:
                # uvicorn passes the state to its protocols. The limits exist once the engine has started.
                scope["state"][CONNECTION_LIMITS] = lambda: scope["app"].state.connection_limits
            self._direct = DirectRoutes(scope["app"])
            await self._app(scope, receive, send)
            return
        if self._entry is None:
            self._entry = self._create_entry(scope["app"])
        await self._entry(scope, receive, send)

    def _create_entry(self, app: FastAPI) -> ASGIApp:
        settings: Settings = app.state.engine.settings
        self._shared = SharedParts(self._direct or DirectRoutes(app), settings)
        self._process_id = secrets.token_hex(8)
        origins = origins_of(settings.cors_origins)
        if not origins:
            return self._serve
        return CORSMiddleware(
            self._serve,
            allow_origins=origins,
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=_ALLOWED_HEADERS,
            expose_headers=["x-request-id", "retry-after", "etag"],
            max_age=600,
        )

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve_http(scope, receive, send)
            return
        self._counts.websockets += 1
        try:
            await self._serve_exchange(WebSocketExchange(scope, receive, send))
        finally:
            self._counts.websockets -= 1

    async def _serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        current = self._request_id(scope)
        token = request_id.set(current)
        assert self._shared is not None  # noqa: S101 - made with the entry
        # FastAPI adds to the scope what it needs; the copy is released while a stream is open.
        exchange = HttpExchange(dict(scope), receive, send, request=current, shared=self._shared)
        exchange.span = request_span(scope["method"], scope["path"], exchange.call.headers)
        try:
            with exchange.span:
                try:
                    await self._serve_exchange(exchange)
                finally:
                    exchange.end_span()
        except Exception as error:
            await exchange.answer_unexpected(error)
            raise
        finally:
            seconds = time.perf_counter() - started
            if (measured := instruments()) is not None:
                route = exchange.route
                measured.requests.labels(scope["method"], route, exchange.status).inc()
                if not exchange.is_stream:
                    measured.request_seconds.labels(scope["method"], route).observe(seconds)
            if access_logger.isEnabledFor(logging.INFO):
                _log_request(scope, exchange.status, seconds * 1000, current)
            request_id.reset(token)

    def _request_id(self, scope: Scope) -> str:
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                given: str = value.decode("latin-1")
                if _SAFE_ID.fullmatch(given):
                    return given
                break
        return f"{self._process_id}-{next(self._numbers):08x}"

    async def _serve_exchange(self, exchange: HttpExchange | WebSocketExchange) -> None:
        engine: Engine = exchange.scope["app"].state.engine
        if engine.settings.read_url is None:
            await self._serve_caller(engine, exchange)
            return
        seen = exchange.call.headers.get(b"x-seen-sequence", b"")
        with having_seen(int(seen) if seen.isdigit() and len(seen) < _SEQUENCE_DIGITS else 0):
            await self._serve_caller(engine, exchange)

    async def _serve_caller(self, engine: Engine, exchange: HttpExchange | WebSocketExchange) -> None:
        if not engine.access.is_required:
            try:
                if not engine.settings.insecure:
                    check_peer(exchange.scope, exchange.call.headers)
            except PermissionDeniedError as error:
                logger.info("%s", error)
                await exchange.refuse(error)
                return
            try:
                await exchange.run(self._app)
            finally:
                await _audit(engine, exchange)
            return
        with serving_request():
            try:
                exchange.call.principal = await _authenticate(engine, exchange.scope, exchange.call.headers)
            except EngineError as error:
                if not isinstance(error, AccessError):
                    logger.warning("a caller could not be authenticated: %s", error)
                exchange.call.refusal = error
                await exchange.run(self._app)
            else:
                await self._serve_granted(engine, exchange)

    async def _serve_granted(self, engine: Engine, exchange: HttpExchange | WebSocketExchange) -> None:
        principal = exchange.call.principal
        grant = exchange.grant = engine.access.grants.open(principal)
        try:
            with acting_as_engine() if principal.app_names is None else acting_for(principal.app_names):
                await exchange.run(self._app)
            if grant.revoked.is_set():
                await exchange.end_revoked()
        except TooManyRequestsError as error:
            if exchange.has_started:
                raise
            await exchange.refuse(error)
        finally:
            exchange.end_stream()
            engine.access.grants.close(grant)
            await _audit(engine, exchange)


def _log_request(scope: Scope, status: int | None, milliseconds: float, request: str) -> None:
    """Log a line. The record is made here: `Logger.info` looks for its caller's line, which takes as long again."""
    path = scope["path"] if scope["path"].isprintable() else printable(scope["path"])
    arguments = (scope["method"], path, status, milliseconds)
    record = logging.LogRecord(
        access_logger.name, logging.INFO, __file__, 0, "%s %s %s %.1fms", arguments, None, "_log_request"
    )
    record.request_id = request
    access_logger.handle(record)


async def _authenticate(engine: Engine, scope: Scope, headers: Mapping[bytes, bytes]) -> Principal:
    credential = credential_of(scope, headers)
    failed: FailedKeys = scope["app"].state.failed_keys
    failed.check(credential)
    async with failed.lookup(scope, credential):
        try:
            principal = await engine.access.authenticate(credential)
        except AuthenticationError:
            failed.note_failure(scope, credential)
            raise
    failed.note_success(credential)
    return principal


async def _audit(engine: Engine, exchange: HttpExchange | WebSocketExchange) -> None:
    call = exchange.call
    if call.audited_app is None:
        return
    method, path = exchange.scope.get("method", "WEBSOCKET"), exchange.scope["path"]
    try:
        await engine.access.audit.write(
            actor=call.principal.name,
            action=f"{method} {exchange.template}",
            app_name=call.audited_app,
            target=path,
            status=exchange.status,
            request_id=request_id.get(),
        )
    except EngineError as error:
        request, actor = printable(f"{method} {path}"), printable(call.principal.name)
        logger.error("the audit log could not be written: %s by %s (%s)", request, actor, error)
