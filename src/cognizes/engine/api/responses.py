"""Responses: JSON documents, documents that clients cache, and errors as problem details (RFC 9457)."""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Mapping
from contextvars import ContextVar
from functools import cache
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipResponder
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from cognizes.engine.database.documents import dump_json
from cognizes.engine.errors import (
    ArtifactStoreError,
    AuthenticationError,
    ConcurrencyConflictError,
    ConflictError,
    DatabaseUnavailableError,
    EngineClosedError,
    EngineError,
    HistoryExpiredError,
    InvalidInputError,
    LimitExceededError,
    NotFoundError,
    OpenInterruptsError,
    PermissionDeniedError,
    PoolTimeoutError,
    TooManyRequestsError,
)

logger = logging.getLogger(__name__)

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request that is served, for logs and problem details."""
_STATUS_OF_ERROR: list[tuple[type[EngineError], HTTPStatus]] = [
    (LimitExceededError, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (InvalidInputError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (HistoryExpiredError, HTTPStatus.GONE),
    (NotFoundError, HTTPStatus.NOT_FOUND),
    (ConflictError, HTTPStatus.CONFLICT),
    (AuthenticationError, HTTPStatus.UNAUTHORIZED),
    (PermissionDeniedError, HTTPStatus.FORBIDDEN),
    (TooManyRequestsError, HTTPStatus.TOO_MANY_REQUESTS),
    (PoolTimeoutError, HTTPStatus.SERVICE_UNAVAILABLE),
    (DatabaseUnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (ArtifactStoreError, HTTPStatus.SERVICE_UNAVAILABLE),
    (EngineClosedError, HTTPStatus.SERVICE_UNAVAILABLE),
]
_RETRY_SECONDS = "1"
_PARAMETER = re.compile(r"\{\w+\}")
_MIN_COMPRESSED_BYTES = 500
_COMPRESSION_LEVEL = 5
_IMMUTABLE = "private, max-age=31536000, immutable"
_REVALIDATED = "private, no-cache"
_REFUSED_WEIGHTS = ("q=0", "q=0.0", "q=0.00", "q=0.000")


class DocumentResponse(JSONResponse):
    """JSON whose strings may hold lone surrogates (escaped) and whose numbers may be NaN (``{"$float": "NaN"}``)."""

    _type = b"application/json"
    is_whole = True
    """Whether the response is what `body` and `raw_headers` hold."""

    def render(self, content: Any) -> bytes:
        return dump_json(content).encode()

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        if headers is not None:
            super().init_headers(headers)
        else:
            self.raw_headers = [(b"content-length", b"%d" % len(self.body)), (b"content-type", self._type)]

    def encode_headers(self) -> bytes:
        """Return the headers as HTTP/1.1 writes them. Values that clients chose are checked where they are read."""
        return b"".join([b"%b: %b\r\n" % header for header in self.raw_headers])


class _CompressedDocument(DocumentResponse):
    is_whole = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # At most one of both writes `Vary`: the responder leaves documents below its minimum size as they are.
        if len(self.body) < _MIN_COMPRESSED_BYTES:
            self.headers["vary"] = "Accept-Encoding"
        compressor = GZipResponder(super().__call__, _MIN_COMPRESSED_BYTES, _COMPRESSION_LEVEL)
        await compressor(scope, receive, send)


def pull_response(request: Request, content: Any, *, identity: tuple[object, ...] | None) -> Response:
    """Return a document that clients cache, compressed for a client that accepts gzip.

    A document that never changes is known by its `identity`: it has an `ETag`, may be cached for good, and is not sent
    to a client that has it. The tag is weak, because the bytes differ by compression.
    """
    headers = {"cache-control": _REVALIDATED}
    if identity is not None:
        digest = hashlib.sha256(repr(identity).encode(errors="surrogatepass")).hexdigest()[:32]
        headers = {"etag": f'W/"{digest}"', "cache-control": _IMMUTABLE}
        if matches_tag(request.headers.get("if-none-match", ""), digest):
            return Response(status_code=304, headers={**headers, "vary": "Accept-Encoding"})
    if _accepts_gzip(request.headers.get("accept-encoding", "")):
        return _CompressedDocument(content, headers=headers)
    return DocumentResponse(content, headers={**headers, "vary": "Accept-Encoding"})


def matches_tag(if_none_match: str, digest: str) -> bool:
    """Return whether the client of an `If-None-Match` header has a document; weak tags count."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or f'"{digest}"' in tags


def _accepts_gzip(accept_encoding: str) -> bool:
    for offer in accept_encoding.split(","):
        name, _, weight = offer.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "").lower() not in _REFUSED_WEIGHTS
    return False


class ProblemResponse(DocumentResponse):
    media_type = "application/problem+json"
    _type = b"application/problem+json"


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


CONFLICT: dict[int | str, dict[str, Any]] = {409: {"description": "Conflict"}}
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"description": "Not Found"}}
"""What a route declares as `responses`; `api/openapi.py` adds the errors that follow from its access and arguments."""


def add_problem_handlers(app: FastAPI) -> None:
    app.add_exception_handler(EngineError, _answer_engine_error)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(Exception, _answer_unexpected_error)


def problem(status: HTTPStatus, detail: str, *, headers: dict[str, str] | None = None, **more: Any) -> Response:
    body = {
        "type": "about:blank",
        "title": status.phrase,
        "status": status.value,
        "detail": detail,
        "request_id": request_id.get(),
        **more,
    }
    return ProblemResponse(body, status_code=status, headers=headers)


def problem_of(error: EngineError) -> Response:
    status = next((code for kind, code in _STATUS_OF_ERROR if isinstance(error, kind)), None)
    if status is None:
        logger.error("a request failed: %s", error, exc_info=error)
        return problem(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
    if isinstance(error, ConcurrencyConflictError):
        return problem(status, str(error), expected=error.expected, actual=error.actual)
    if isinstance(error, OpenInterruptsError):
        return problem(status, str(error), run_id=error.run_id, interrupts=error.interrupts)
    return problem(status, str(error), headers=_headers_of(error, status))


def _headers_of(error: EngineError, status: HTTPStatus) -> dict[str, str] | None:
    if isinstance(error, TooManyRequestsError):
        return {"Retry-After": str(math.ceil(error.retry_after))}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return {"Retry-After": _RETRY_SECONDS}
    return {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else None


async def _answer_engine_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, EngineError)  # noqa: S101 - registered for this type
    return problem_of(error)


async def _answer_validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this type
    errors = [{"at": list(item["loc"]), "message": item["msg"], "type": item["type"]} for item in error.errors()]
    where = "; ".join(f"{'.'.join(map(str, item['at']))}: {item['message']}" for item in errors)
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, where, errors=errors)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this type
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and (methods := _methods_of(request)):
        headers["Allow"] = methods
    return problem(HTTPStatus(error.status_code), str(error.detail), headers=headers)


def _methods_of(request: Request) -> str:
    """Return the methods of a path: Starlette knows those of one route only."""
    methods: dict[str, set[str]] = {}
    for context in iter_route_contexts(request.app.routes):
        if context.path_format and context.methods and _pattern(context.path_format).fullmatch(request.url.path):
            methods.setdefault(context.path_format, set()).update(context.methods)
    if not methods:
        return ""
    # The template with the longest literal part: ids may hold slashes, so that several match.
    closest = max(methods, key=lambda template: len(_PARAMETER.sub("", template)))
    return ", ".join(sorted(methods[closest]))


@cache
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile("[^/]+".join(map(re.escape, _PARAMETER.split(template))))


async def _answer_unexpected_error(_: Request, error: Exception) -> Response:
    return answer_unexpected_error(error)


def answer_unexpected_error(error: Exception) -> Response:
    logger.error("a request failed unexpectedly", exc_info=error)
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "unexpected error; the server's log has it under the request id")
