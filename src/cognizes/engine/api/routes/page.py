"""The Monitor's page, the page of the API, and their files."""

from __future__ import annotations

import os

from fastapi import APIRouter
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from cognizes.engine.api.authorization import Reach, access
from cognizes.engine.monitor import CONTENT_SECURITY_POLICY, STATIC

router = APIRouter(include_in_schema=False)

_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
"""Not what the machine's own table says: a module that is not text/javascript is not run."""


@access(Reach.PUBLIC)
class MonitorFiles(StaticFiles):
    """The files of the page, with its headers. Revalidated each time, by ETag."""

    def __init__(self) -> None:
        super().__init__(directory=STATIC)

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(_HEADERS)
        if kind := _TYPES.get(os.path.splitext(full_path)[1]):
            response.headers["content-type"] = f"{kind}; charset=utf-8"
        return response


@router.get("/")
@access(Reach.PUBLIC)
async def first_page() -> Response:
    """The Monitor."""
    return FileResponse(STATIC / "index.html", headers=_HEADERS)


@router.get("/docs")
@access(Reach.PUBLIC)
async def api_reference() -> Response:
    """Return the page that shows the OpenAPI document."""
    return FileResponse(STATIC / "api_reference.html", headers=_HEADERS)
