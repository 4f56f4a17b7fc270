"""The one ASGI middleware: what happens to every request before and after its route, and how its route is called.

For each request: an id, the caller, the tenant of its database calls, a line in the log and, for administrative writes,
an entry in the audit log. `api/exchanges` has what concerns the connection of one request.

`DirectRoutes` serves valid requests without FastAPI's layers, from the same declarations. FastAPI needs more time for a
request than the engine: its stacks of exit callbacks, its solver of dependencies and two parsers for one body.
`DirectRoutes` finds the route of a request, reads the body once, authorizes the caller, solves the dependencies and
calls the endpoint. Everything else is left to FastAPI: an unknown path, a route that takes headers or forms, a body of
another type, and every request that is not valid. So validation errors and the OpenAPI document have one source, and a
route behaves the same on both ways.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, get_type_hints

from fastapi import FastAPI, Request, params
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import request_params_to_args
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts
from pydantic_core import from_json
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cognizes.engine.access import Principal
from cognizes.engine.access.audit import printable
from cognizes.engine.access.authenticator import Credential
from cognizes.engine.api.authorization import (
    UNREAD,
    authorize,
    call_of,
    check_peer,
    credential_of,
    origins_of,
)
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
from cognizes.engine.telemetry import TELEMETRY, request_span

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
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_JSON_TYPES = frozenset({b"application/json", b"application/json; charset=utf-8", b"application/json;charset=utf-8"})
_Arguments = dict[str, Any]
_Read = Callable[[Mapping[str, Any]], _Arguments]


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
        is_traced = TELEMETRY.is_tracing or b"traceparent" in exchange.call.headers
        try:
            await (self._serve_traced(exchange) if is_traced else self._serve_exchange(exchange))
        except Exception as error:
            await exchange.answer_unexpected(error)
            raise
        finally:
            seconds = time.perf_counter() - started
            if (measured := TELEMETRY.instruments) is not None:
                route = exchange.route
                measured.requests.labels(scope["method"], route, exchange.status).inc()
                if not exchange.is_stream:
                    measured.request_seconds.labels(scope["method"], route).observe(seconds)
            if access_logger.isEnabledFor(logging.INFO):
                _log_request(scope, exchange.status, seconds * 1000, current)
            request_id.reset(token)

    async def _serve_traced(self, exchange: HttpExchange) -> None:
        scope = exchange.scope
        exchange.span = request_span(scope["method"], scope["path"], exchange.call.headers)
        with exchange.span:
            try:
                await self._serve_exchange(exchange)
            finally:
                exchange.end_span()

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
        credential = credential_of(exchange.scope, exchange.call.headers)
        if (cached := engine.access.find_cached(credential)) is not None:
            exchange.call.principal = cached
            await self._serve_granted(engine, exchange)
            return
        with serving_request():
            try:
                exchange.call.principal = await _authenticate(engine, exchange.scope, credential)
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


async def _authenticate(engine: Engine, scope: Scope, credential: Credential) -> Principal:
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


class _InvalidError(Exception):
    """The arguments of a request are not valid. FastAPI validates them again and says what is wrong."""


class _Parameter(Protocol):
    """A parameter as FastAPI describes it."""

    name: str
    field_info: Any

    def validate(self, value: Any, values: dict[str, Any], *, loc: tuple[int | str, ...]) -> tuple[Any, list[Any]]:
        """Return the value and the errors."""
        ...


@dataclass(frozen=True, slots=True)
class DirectRoute:
    """A route with what is needed to call its endpoint. `body` is its parameter for the body, if it has one."""

    route: APIRoute
    endpoint: Callable[..., Awaitable[Response]]
    converters: Mapping[str, Any]
    dependencies: list[_Step]
    own: _Step
    body: _Parameter | None = None


@dataclass(slots=True)
class _Candidate:
    """A route in the order of the application. Without a `direct` route FastAPI serves it."""

    pattern: re.Pattern[str]
    direct: DirectRoute | None


@dataclass(slots=True)
class _Group:
    """The candidates of one method whose paths begin with the same segment, by their second segment."""

    by_second: dict[str, list[_Candidate]] = field(default_factory=dict)
    others: list[_Candidate] = field(default_factory=list)

    def add(self, second: str, candidate: _Candidate) -> None:
        if "{" in second:
            # It may match any second segment: it stands in each list, in the order of the routes.
            for candidates in self.by_second.values():
                candidates.append(candidate)
            self.others.append(candidate)
        else:
            self.by_second.setdefault(second, list(self.others)).append(candidate)


class DirectRoutes:
    """The routes of an application, by method and path. The first route that matches is used, as FastAPI does it."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._groups: dict[tuple[str, str], _Group] = {}
        for context in iter_route_contexts(app.routes):
            pattern, template = getattr(context, "path_regex", None), context.path_format
            if pattern is None or template is None or isinstance(context.original_route, WebSocketRoute):
                continue
            _, first, *rest = template.split("/", 2)
            candidate = _Candidate(pattern, _direct_route(context))
            for method in context.methods or _METHODS:
                second = rest[0].partition("/")[0] if rest else ""
                self._groups.setdefault((method, first), _Group()).add(second, candidate)

    def __iter__(self) -> Iterator[DirectRoute]:
        found = {
            id(candidate.direct): candidate.direct
            for group in self._groups.values()
            for candidates in (*group.by_second.values(), group.others)
            for candidate in candidates
            if candidate.direct is not None
        }
        return iter(found.values())

    def find(self, scope: Scope) -> DirectRoute | None:
        """Return the route of a request, and add it to the scope as FastAPI does; None when FastAPI must serve it."""
        parts = scope["path"].split("/", 3)
        group = self._groups.get((scope["method"], parts[1])) if len(parts) > 1 else None
        if group is None or scope.get("root_path") or self._app.dependency_overrides:
            return None
        for candidate in group.by_second.get(parts[2] if len(parts) > 2 else "", group.others):
            if found := candidate.pattern.match(scope["path"]):
                direct = candidate.direct
                if direct is None:
                    return None
                scope["path_params"] = {
                    name: direct.converters[name].convert(value) for name, value in found.groupdict().items()
                }
                scope["endpoint"], scope["route"] = direct.endpoint, direct.route
                return direct
        return None

    async def serve(self, direct: DirectRoute, scope: Scope, receive: Receive, send: Send) -> Response | Receive:
        """Return the response. When the request is not valid, return the function with which FastAPI receives it again.

        An unexpected error is raised.
        """
        request = Request(scope, receive, send)
        call = call_of(request)
        raw: bytes | None = None
        try:
            if direct.body is not None:
                raw = await _read_body(receive)
                call.body = _parse(raw, call.headers.get(b"content-type"))
            await authorize(request)
            results: dict[Callable[..., Any], Any] = {}
            for step in direct.dependencies:
                results[step.call] = await step.call(**step.arguments(request, results))
            arguments = direct.own.arguments(request, results)
            if direct.body is not None:
                arguments[direct.body.name] = _validate(direct.body, call.body)
            return await direct.endpoint(**arguments)
        except _InvalidError:
            # FastAPI parses the body again and may read it differently: the caller is authorized for what it reads.
            call.body = UNREAD
            return receive if raw is None else _replay(raw, receive)
        except Exception as error:
            if (response_of := self._find_handler(error)) is None:
                raise
            return await response_of(request, error)

    def _find_handler(self, error: Exception) -> Callable[[Request, Exception], Awaitable[Response]] | None:
        """Return the handler of an error; None for an unexpected one."""
        for kind in type(error).__mro__:
            if kind is Exception:
                return None
            if (handler := self._app.exception_handlers.get(kind)) is not None:
                return handler  # type: ignore[return-value]
        return None


def _direct_route(context: RouteContext) -> DirectRoute | None:
    """Return a route that can be served directly; None when its declaration has parts that only FastAPI solves."""
    route, endpoint = context.original_route, context.endpoint
    if not isinstance(route, APIRoute) or endpoint is None or not _returns_response(endpoint):
        return None
    dependant: Dependant = context.dependant
    bodies = dependant.body_params
    is_json = len(bodies) == 1 and type(bodies[0].field_info) is params.Body and not bodies[0].field_info.embed
    steps = _steps(dependant)
    if steps is None or (bodies and not is_json):
        return None
    *dependencies, own = steps
    return DirectRoute(route, endpoint, context.param_convertors, dependencies, own, bodies[0] if bodies else None)


def _returns_response(endpoint: Callable[..., Any]) -> bool:
    returned = get_type_hints(endpoint).get("return")
    return inspect.iscoroutinefunction(endpoint) and isinstance(returned, type) and issubclass(returned, Response)


@dataclass(frozen=True, slots=True)
class _Step:
    """A call of a dependency, or of the endpoint, and where its arguments come from."""

    call: Callable[..., Any]
    requests: tuple[str, ...]
    """The parameters that take the request."""
    results: tuple[tuple[str, Callable[..., Any]], ...]
    """The parameters that take the results of earlier calls."""
    read_path: _Read | None
    read_query: _Read | None

    def arguments(self, request: Request, results: Mapping[Callable[..., Any], Any]) -> _Arguments:
        arguments: _Arguments = dict.fromkeys(self.requests, request)
        for name, call in self.results:
            arguments[name] = results[call]
        if self.read_path is not None:
            arguments.update(self.read_path(request.path_params))
        if self.read_query is not None:
            arguments.update(self.read_query(request.query_params))
        return arguments


def _steps(dependant: Dependant, *, is_nested: bool = False) -> list[_Step] | None:
    """Return the calls of an endpoint's dependencies, each once, then of itself; None if only FastAPI solves a part."""
    unsupported = (
        dependant.call is None,
        dependant.header_params,
        dependant.cookie_params,
        dependant.response_param_name,
        dependant.background_tasks_param_name,
        dependant.security_scopes_param_name,
        is_nested and (dependant.body_params or not inspect.iscoroutinefunction(dependant.call)),
    )
    if any(unsupported):
        return None
    steps: list[_Step] = []
    results: list[tuple[str, Callable[..., Any]]] = []
    for dependency in dependant.dependencies:
        # `authorize` is the first dependency of every route; `serve` has called it.
        if dependency.call is authorize:
            continue
        nested = _steps(dependency, is_nested=True)
        if nested is None:
            return None
        known = {step.call for step in steps}
        steps += [step for step in nested if step.call not in known]
        if dependency.name is not None:
            results.append((dependency.name, nested[-1].call))
    assert dependant.call is not None  # noqa: S101 - else it is unsupported
    requests = tuple(name for name in (dependant.request_param_name, dependant.http_connection_param_name) if name)
    path, query = _reader(dependant.path_params), _reader(dependant.query_params)
    return [*steps, _Step(dependant.call, requests, tuple(results), path, query)]


def _reader(fields: list[Any]) -> _Read | None:
    """Return a function that reads parameters of a path or a query; None without parameters."""
    if not fields:
        return None
    if all(isinstance(one.field_info, params.Path) and _is_plain_text(one) for one in fields):
        aliases = [(one.name, one.alias) for one in fields]
        return lambda given: {name: given[alias] for name, alias in aliases}

    def read(given: Mapping[str, Any]) -> _Arguments:
        values, errors = request_params_to_args(fields, given)
        if errors:
            raise _InvalidError
        return values

    return read


def _is_plain_text(parameter: _Parameter) -> bool:
    return parameter.field_info.annotation is str and not parameter.field_info.metadata


async def _read_body(receive: Receive) -> bytes:
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return body
    parts = [body]
    while message.get("more_body", False):
        message = await receive()
        parts.append(message.get("body", b""))
    return b"".join(parts)


def _parse(raw: bytes, content_type: bytes | None) -> Any:
    """Return the JSON of a body. FastAPI reads what this parser does not: lone surrogates, other encodings."""
    if content_type not in _JSON_TYPES:
        raise _InvalidError
    try:
        return from_json(raw)
    except ValueError:
        raise _InvalidError from None


def _validate(parameter: _Parameter, value: Any) -> Any:
    if value is None:
        raise _InvalidError
    validated, errors = parameter.validate(value, {}, loc=("body",))
    if errors:
        raise _InvalidError
    return validated


def _replay(raw: bytes, receive: Receive) -> Receive:
    """Return a function that receives a body which was received before, then what follows."""
    is_read = False

    async def receive_again() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": raw, "more_body": False}

    return receive_again
