"""Serves valid requests without FastAPI's layers, from the same declarations.

FastAPI needs more time for a request than the engine: its stacks of exit callbacks, its solver of dependencies and two
parsers for one body. `DirectRoutes` is built of the routes of an application. It finds the route of a request, reads
the body once, authorizes the caller, solves the dependencies and calls the endpoint. Everything else is left to
FastAPI: an unknown path, a route that takes headers or forms, a body of another type, and every request that is not
valid. So validation errors and the OpenAPI document have one source, and a route behaves the same on both ways.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from fastapi import FastAPI, Request, params
from fastapi._compat import ModelField
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import request_params_to_args
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts
from pydantic_core import from_json
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.types import Message, Receive, Scope, Send

from cognizes.engine.api.authorization import UNREAD, authorize, call_of

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_JSON_TYPES = frozenset({b"application/json", b"application/json; charset=utf-8", b"application/json;charset=utf-8"})
_Arguments = dict[str, Any]
_Cache = dict[Callable[..., Any], Any]
_Solve = Callable[[Request, _Cache], Awaitable[_Arguments]]


class _InvalidError(Exception):
    """The arguments of a request are not valid. FastAPI validates them again and says what is wrong."""


@dataclass(frozen=True, slots=True)
class DirectRoute:
    """A route with what is needed to call its endpoint. `body` is its parameter for the body, if it has one."""

    route: APIRoute
    endpoint: Callable[..., Awaitable[Response]]
    converters: Mapping[str, Any]
    solve: _Solve
    body: ModelField | None = None


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
            arguments = await direct.solve(request, {})
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
    is_json = len(bodies) == 1 and type(bodies[0].field_info) is params.Body and not context._embed_body_fields
    solve = _solver(dependant)
    if solve is None or (bodies and not is_json):
        return None
    return DirectRoute(route, endpoint, context.param_convertors, solve, bodies[0] if bodies else None)


def _returns_response(endpoint: Callable[..., Any]) -> bool:
    returned = get_type_hints(endpoint).get("return")
    return inspect.iscoroutinefunction(endpoint) and isinstance(returned, type) and issubclass(returned, Response)


def _solver(dependant: Dependant, *, is_nested: bool = False) -> _Solve | None:
    """Return a function that solves the arguments of an endpoint or a dependency, except the body."""
    unsupported = (
        dependant.header_params,
        dependant.cookie_params,
        dependant.response_param_name,
        dependant.background_tasks_param_name,
        dependant.security_scopes_param_name,
        is_nested and dependant.body_params,
    )
    if any(unsupported):
        return None
    nested: list[tuple[str | None, Callable[..., Any], _Solve]] = []
    for dependency in dependant.dependencies:
        # `authorize` is the first dependency of every route; `serve` has called it.
        if dependency.call is authorize:
            continue
        solve = _solver(dependency, is_nested=True)
        if solve is None or dependency.call is None or not inspect.iscoroutinefunction(dependency.call):
            return None
        nested.append((dependency.name, dependency.call, solve))
    names = [name for name in (dependant.request_param_name, dependant.http_connection_param_name) if name]
    read_path, read_query = _reader(dependant.path_params), _reader(dependant.query_params)

    async def solve_all(request: Request, cache: _Cache) -> _Arguments:
        arguments: _Arguments = dict.fromkeys(names, request)
        for name, call, solve in nested:
            if call not in cache:
                cache[call] = await call(**await solve(request, cache))
            if name is not None:
                arguments[name] = cache[call]
        if read_path is not None:
            arguments.update(read_path(request.path_params))
        if read_query is not None:
            arguments.update(read_query(request.query_params))
        return arguments

    return solve_all


def _reader(fields: list[ModelField]) -> Callable[[Mapping[str, Any]], _Arguments] | None:
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


def _is_plain_text(parameter: ModelField) -> bool:
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


def _validate(parameter: ModelField, value: Any) -> Any:
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
