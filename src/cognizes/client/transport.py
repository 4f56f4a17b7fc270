"""HTTP calls: the key of the caller, repetition while the server is unavailable, answers as typed results.

| answer | repeated |
| --- | --- |
| no connection | every call: the request was not sent |
| 429 | every call, after `Retry-After`: the request was not executed |
| 502, 503, 504, lost connection, timeout | calls that may be repeated: reads, and writes that are stored once |
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, JsonValue, ValidationError

from cognizes.client.errors import InvalidAnswerError, NotFoundError, ServerUnavailableError, error_of
from cognizes.client.models import decode

Query = Mapping[str, str | int | bool | float | datetime | Sequence[str] | None]
_Model = TypeVar("_Model", bound=BaseModel)
_Primitive = str | int | float | bool | None

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
BUSY = 429
UNAVAILABLE = (502, 503, 504)
"""Answers of a server, or of a load balancer in front of it, that is not available."""
SILENCE_SECONDS = 90.0
"""Three heartbeats; a stream without data for this long is considered dead."""


@dataclass
class Backoff:
    """The pauses between attempts: growing, random by a half, at least what the server asks for, until a deadline."""

    seconds: float = math.inf
    """How long attempts are repeated after a failure."""
    attempts: int = 0

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Start with the shortest pause and a new deadline, after a success."""
        self.attempts = 0
        self.renew()

    def renew(self) -> None:
        """Move the deadline: the time of repetition begins when a connection is lost."""
        self._deadline = time.monotonic() + self.seconds

    async def pause(self, retry_after: float | None = None) -> bool:
        """Wait before the next attempt; return False without waiting when it would begin after the deadline."""
        self.attempts += 1
        # The exponent is bounded: a float cannot hold the power of thousands of attempts.
        pause = min(_FIRST_PAUSE * 2 ** min(self.attempts - 1, 16), _LONGEST_PAUSE)
        pause *= random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        pause = max(pause, retry_after or 0.0)
        if time.monotonic() + pause > self._deadline:
            return False
        await asyncio.sleep(pause)
        return True


class Transport:
    """Calls the routes of one server. Several tasks may use it at the same time."""

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str],
        timeout: float,
        retry_seconds: float,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url = base_url
        self.headers = dict(headers)
        self.retry_seconds = retry_seconds
        self._http = httpx.AsyncClient(base_url=base_url, headers=self.headers, timeout=timeout, transport=transport)

    async def close(self) -> None:
        await self._http.aclose()

    async def get(
        self,
        model: type[_Model],
        path: str,
        *ids: str,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> _Model:
        return parse(model, await self.call("GET", path, *ids, query=query, headers=headers, repeatable=True))

    async def post(
        self,
        model: type[_Model],
        path: str,
        *ids: str,
        query: Query | None = None,
        body: JsonValue = None,
        repeatable: bool = False,
    ) -> _Model:
        return parse(model, await self.call("POST", path, *ids, query=query, body=body, repeatable=repeatable))

    async def delete(self, path: str, *ids: str, query: Query | None = None) -> None:
        """Delete a resource. If an answer was lost and the resource is gone at the next attempt, it was deleted."""
        backoff = Backoff(self.retry_seconds)
        try:
            await self.call("DELETE", path, *ids, query=query, repeatable=True, backoff=backoff)
        except NotFoundError:
            if not backoff.attempts:
                raise

    async def call(
        self,
        method: str,
        path: str,
        *ids: str,
        query: Query | None = None,
        body: JsonValue = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = False,
        backoff: Backoff | None = None,
    ) -> httpx.Response:
        """Return the successful answer of a route whose path has the placeholders `ids`, in order.

        Repeat the call as the table of this module says.
        """
        if body is not None:
            content, headers = _encode(body), {"Content-Type": "application/json", **(headers or {})}
        url = fill(path, ids)
        backoff = backoff or Backoff(self.retry_seconds)
        while True:
            try:
                response = await self._http.request(
                    method, url, params=_parameters(query), content=content, headers=headers
                )
            except httpx.TransportError as failure:
                was_sent = not isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
                if (was_sent and not repeatable) or not await backoff.pause():
                    raise _unavailable(method, url, failure) from failure
                continue
            if response.is_success:
                return response
            is_repeated = response.status_code == BUSY or (response.status_code in UNAVAILABLE and repeatable)
            error = error_of(response.status_code, response.headers, response.text)
            if not is_repeated or not await backoff.pause(error.retry_after):
                raise error

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *ids: str,
        query: Query | None = None,
        body: JsonValue = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """Open a stream, once. A lost connection raises `httpx.TransportError` in the block."""
        content = None if body is None else _encode(body)
        if content is not None:
            headers = {"Content-Type": "application/json", **(headers or {})}
        request = self._http.build_request(
            method,
            fill(path, ids),
            params=_parameters(query),
            content=content,
            headers={"Accept": "text/event-stream", **(headers or {})},
            timeout=httpx.Timeout(SILENCE_SECONDS, connect=10.0),
        )
        response = await self._http.send(request, stream=True)
        try:
            if not response.is_success:
                text = (await response.aread()).decode(errors="replace")
                raise error_of(response.status_code, response.headers, text)
            yield response
        finally:
            await response.aclose()


def fill(path: str, ids: Sequence[str]) -> str:
    """Return a path with its placeholders replaced by ids, in order."""
    parts = path.split("/")
    values = iter(ids)
    return "/".join(_segment(next(values)) if part.startswith("{") else part for part in parts)


def _segment(value: str) -> str:
    """Return an id as one segment of a path."""
    if value in ("", ".", ".."):
        raise ValueError(f"invalid id {value!r}: it cannot be a part of a path")
    return quote(value, safe="", errors="surrogatepass")


def parse(model: type[_Model], response: httpx.Response) -> _Model:
    """Return the body of an answer as a typed result; `InvalidAnswerError` if it is something else."""
    try:
        return model.model_validate(decode(response.text))
    except (ValueError, ValidationError) as error:
        raise _invalid(response, model.__name__, error) from error


def parse_json(response: httpx.Response) -> JsonValue:
    """Return the body of an answer; `InvalidAnswerError` if it is not JSON."""
    try:
        return decode(response.text)
    except ValueError as error:
        raise _invalid(response, "JSON", error) from error


def _invalid(response: httpx.Response, expected: str, error: Exception) -> InvalidAnswerError:
    return InvalidAnswerError(
        f"{response.request.method} {response.request.url.path} answered {response.status_code} with something "
        f"other than {expected}: {error}; is this the address of a Cognizes server of the same version?"
    )


def _unavailable(method: str, url: str, error: httpx.TransportError) -> ServerUnavailableError:
    return ServerUnavailableError(f"no answer to {method} {url}: {str(error) or type(error).__name__}")


def _parameters(query: Query | None) -> list[tuple[str, _Primitive]]:
    found: list[tuple[str, _Primitive]] = []
    for name, value in (query or {}).items():
        if value is None:
            continue
        if isinstance(value, bool):
            found.append((name, "true" if value else "false"))
        elif isinstance(value, datetime):
            found.append((name, value.isoformat()))
        elif isinstance(value, str | int | float):
            found.append((name, str(value)))
        else:
            found += [(name, item) for item in value]
    return found


def _encode(value: JsonValue) -> bytes:
    """Return the body of a request. `ValueError` for a float that is not finite: JSON has none."""
    _check_finite(value)
    # ASCII, so that lone surrogates can be sent.
    return json.dumps(value, separators=(",", ":")).encode()


def _check_finite(value: JsonValue) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} cannot be sent as JSON; send None or a text instead")
    if isinstance(value, dict):
        for item in value.values():
            _check_finite(item)
    elif isinstance(value, list):
        for item in value:
            _check_finite(item)
