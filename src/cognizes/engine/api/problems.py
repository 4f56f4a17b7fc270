"""Errors become problem details (RFC 9457), everywhere: what went wrong, and what to do."""

from __future__ import annotations

import logging
import math
import re
from functools import cache
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from cognizes.engine.api.requests import request_id
from cognizes.engine.api.responses import ProblemResponse
from cognizes.engine.errors import (
    AuthenticationError,
    ConcurrencyConflictError,
    ConflictError,
    DatabaseUnavailableError,
    EngineClosedError,
    EngineError,
    InvalidInputError,
    LimitExceededError,
    NotFoundError,
    PermissionDeniedError,
    PoolTimeoutError,
    TooManyRequestsError,
)

logger = logging.getLogger(__name__)

_STATUS_OF_ERROR: list[tuple[type[EngineError], HTTPStatus]] = [
    (LimitExceededError, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (InvalidInputError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (NotFoundError, HTTPStatus.NOT_FOUND),
    (ConflictError, HTTPStatus.CONFLICT),
    (AuthenticationError, HTTPStatus.UNAUTHORIZED),
    (PermissionDeniedError, HTTPStatus.FORBIDDEN),
    (TooManyRequestsError, HTTPStatus.TOO_MANY_REQUESTS),
    (PoolTimeoutError, HTTPStatus.SERVICE_UNAVAILABLE),
    (DatabaseUnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (EngineClosedError, HTTPStatus.SERVICE_UNAVAILABLE),
]
_RETRY_SECONDS = "1"
_PARAMETER = re.compile(r"\{\w+\}")


class Problem(BaseModel):
    """The body of every error."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    request_id: str
    expected: int | None = None
    actual: int | None = None
    errors: list[dict[str, Any]] | None = None


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "content": {"application/problem+json": {}}, "description": HTTPStatus(status).phrase}
    for status in (400, 401, 403, 404, 408, 409, 413, 422, 429, 503)
}
"""The errors any route may answer with, for the OpenAPI document."""


def add_problem_handlers(app: FastAPI) -> None:
    """Makes every error of an app a problem document."""
    app.add_exception_handler(EngineError, _engine_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected_error)


def problem(status: HTTPStatus, detail: str, *, headers: dict[str, str] | None = None, **more: Any) -> Response:
    """A problem document."""
    body = {
        "type": "about:blank",
        "title": status.phrase,
        "status": status.value,
        "detail": detail,
        "request_id": request_id.get(),
        **more,
    }
    return ProblemResponse(body, status_code=status, headers=headers)


async def _engine_error(_: Request, error: Exception) -> Response:
    status = next((code for kind, code in _STATUS_OF_ERROR if isinstance(error, kind)), None)
    if status is None:
        logger.error("a request failed: %s", error, exc_info=error)
        return problem(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
    if isinstance(error, ConcurrencyConflictError):
        return problem(status, str(error), expected=error.expected, actual=error.actual)
    return problem(status, str(error), headers=_headers_of(error, status))


def _headers_of(error: Exception, status: HTTPStatus) -> dict[str, str] | None:
    """What tells a client how to go on."""
    if isinstance(error, TooManyRequestsError):
        return {"Retry-After": str(math.ceil(error.retry_after))}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return {"Retry-After": _RETRY_SECONDS}
    return {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else None


async def _validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this type
    errors = [{"at": list(item["loc"]), "message": item["msg"], "type": item["type"]} for item in error.errors()]
    where = "; ".join(f"{'.'.join(map(str, item['at']))}: {item['message']}" for item in errors)
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, where, errors=errors)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this type
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and (methods := _methods_of(request)):
        headers["Allow"] = methods
    return problem(HTTPStatus(error.status_code), str(error.detail), headers=headers)


def _methods_of(request: Request) -> str:
    """The methods of a path, as the OpenAPI document has them: Starlette knows those of one route only."""
    documented: dict[str, dict[str, Any]] = request.app.openapi()["paths"]
    path = request.url.path
    fitting = [template for template in documented if _pattern(template).fullmatch(path)]
    if not fitting:
        return ""
    # The one that leaves least to its parameters: ids may hold slashes, so others fit too.
    closest = max(fitting, key=lambda template: len(_PARAMETER.sub("", template)))
    return ", ".join(sorted(method.upper() for method in documented[closest]))


@cache
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile("[^/]+".join(map(re.escape, _PARAMETER.split(template))))


async def _unexpected_error(_: Request, error: Exception) -> Response:
    logger.error("a request failed unexpectedly", exc_info=error)
    return problem(
        HTTPStatus.INTERNAL_SERVER_ERROR, "the engine met an error it did not expect; its log has the request id"
    )
