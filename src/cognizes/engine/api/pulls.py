"""Answers to pulls: compressed where it pays, kept by the client for as long as they are true."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cognizes.engine.database.documents import dump_json

_WORTH_COMPRESSING = 500
_LARGE = 64 * 1024
_LEVEL = 5
_IMMUTABLE = "private, max-age=31536000, immutable"
_GROWING = "private, no-cache"


async def pull_response(request: Request, document: Any, *, never_changes_as: tuple[object, ...] | None) -> Response:
    """A document. One that never changes is known by what it is: it gets an `ETag`, may be kept for good, and is not
    sent again to a client that has it. The tag is weak, because the bytes differ by compression."""
    headers = {"vary": "Accept-Encoding", "cache-control": _GROWING}
    if never_changes_as is not None:
        digest = hashlib.sha256(repr(never_changes_as).encode(errors="surrogatepass")).hexdigest()[:32]
        headers |= {"etag": f'W/"{digest}"', "cache-control": _IMMUTABLE}
        if _has(request.headers.get("if-none-match", ""), digest):
            return Response(status_code=304, headers=headers)
    body = dump_json(document).encode()
    if len(body) >= _WORTH_COMPRESSING and _takes_gzip(request.headers.get("accept-encoding", "")):
        headers["content-encoding"] = "gzip"
        if len(body) > _LARGE:
            body = await asyncio.to_thread(gzip.compress, body, _LEVEL)
        else:
            body = gzip.compress(body, _LEVEL)
    return Response(body, media_type="application/json", headers=headers)


def _has(if_none_match: str, digest: str) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or f'"{digest}"' in tags


def _takes_gzip(accept_encoding: str) -> bool:
    for offer in accept_encoding.split(","):
        name, _, weight = offer.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
