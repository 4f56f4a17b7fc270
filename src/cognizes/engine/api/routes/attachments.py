"""Attachments of messages: upload, list and download, by thread and by agent."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from cognizes.engine.access import Permission
from cognizes.engine.api.agents import CurrentHost, CurrentUser
from cognizes.engine.api.authorization import CurrentEngine, Limit, Reach, ThreadId, access
from cognizes.engine.api.responses import DocumentResponse, matches_tag
from cognizes.engine.artifacts import Attachment
from cognizes.engine.artifacts.attachments import UNKNOWN_TYPE
from cognizes.engine.engine import Engine
from cognizes.engine.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from cognizes.engine.models import JsonObject, Session

router = APIRouter(tags=["attachments"])

_SHOWN_TYPES = re.compile(r"image/(png|jpeg|gif|webp|avif)|audio/[\w.+-]+|video/[\w.+-]+|application/pdf|text/plain")
"""Types that no browser executes. Any other type is sent as bytes."""
_RANGE = re.compile(r"bytes=(\d{0,1000})-(\d{0,1000})", re.ASCII | re.IGNORECASE)

FileName = Annotated[str, Query(max_length=1024, description="The name that downloads have.")]


class AttachmentView(BaseModel):
    """An attachment. `part` is the part of an AG-UI message that refers to it."""

    id: str
    name: str
    mime_type: str
    size: int
    sha256: str
    created_at: str
    url: str
    part: JsonObject


class AttachmentPage(BaseModel):
    """A page of attachments; `next_cursor` is null on the last one."""

    attachments: list[AttachmentView]
    next_cursor: str | None


_UPLOAD_BODY = {
    "requestBody": {"required": True, "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}}
}
_REFUSED: dict[int | str, dict[str, object]] = {
    408: {"description": "The file did not arrive in time"},
    413: {"description": "The file is larger than COGNIZES_MAX_ARTIFACT_BYTES"},
}
_DOWNLOAD: dict[int | str, dict[str, object]] = {
    200: {"description": "The bytes", "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}},
    206: {"description": "The bytes of the `Range` header"},
    304: {"description": "The client has the bytes of its `If-None-Match` header"},
    416: {"description": "The file does not have the bytes of the `Range` header"},
}


@router.post(
    "/api/sessions/{thread_id}/attachments",
    status_code=201,
    response_model=AttachmentView,
    responses=_REFUSED,
    openapi_extra=_UPLOAD_BODY,
    summary="Upload an attachment",
)
@access(Reach.THREAD, Permission.WRITE, takes_upload=True)
async def upload(thread_id: ThreadId, request: Request, engine: CurrentEngine, filename: FileName = "") -> Response:
    """Store the body as a file of the session. Its type is that of the `Content-Type` header.

    413 above `COGNIZES_MAX_ARTIFACT_BYTES`.
    """
    session = await engine.sessions.store.get_thread(thread_id)
    return await _save(engine, session, request, filename, base=f"/api/sessions/{thread_id}/attachments")


@router.get(
    "/api/sessions/{thread_id}/attachments", response_model=AttachmentPage, summary="List the attachments of a session"
)
@access(Reach.THREAD)
async def list_attachments(
    thread_id: ThreadId, engine: CurrentEngine, limit: Limit = 100, cursor: str | None = None
) -> Response:
    session = await engine.sessions.store.get_thread(thread_id)
    page = await engine.attachments.read_page(session, limit=limit, cursor=cursor)
    base = f"/api/sessions/{thread_id}/attachments"
    return DocumentResponse(
        {"attachments": [_view(item, base) for item in page.items], "next_cursor": page.next_cursor}
    )


@router.get(
    "/api/sessions/{thread_id}/attachments/{attachment_id}",
    response_class=Response,
    responses=_DOWNLOAD,
    summary="Download an attachment",
)
@access(Reach.THREAD)
async def download(thread_id: ThreadId, attachment_id: str, request: Request, engine: CurrentEngine) -> Response:
    """Return the bytes as a download that no browser renders. A `Range` header of one range is honoured, any other one
    ignored."""
    session = await engine.sessions.store.get_thread(thread_id)
    return _download(engine, await engine.attachments.get(session, attachment_id), request)


@router.post(
    "/agui/{agent}/threads/{thread_id:path}/attachments",
    status_code=201,
    response_model=AttachmentView,
    responses=_REFUSED,
    openapi_extra=_UPLOAD_BODY,
    summary="Upload an attachment for a thread of an agent",
)
@access(Reach.AGENT, Permission.WRITE, takes_upload=True)
async def upload_for_agent(
    agent: str,
    thread_id: str,
    request: Request,
    engine: CurrentEngine,
    host: CurrentHost,
    user: CurrentUser,
    filename: FileName = "",
) -> Response:
    """Store the body as a file of the thread, which is created if it does not exist."""
    host.check_agent(agent)
    session = await engine.sessions.get(agent, user, thread_id)
    while session is None:
        with suppress(AlreadyExistsError):
            session = await engine.sessions.create(agent, user, session_id=thread_id)
            break
        session = await engine.sessions.get(agent, user, thread_id)
    base = f"/agui/{quote(agent, safe='')}/threads/{quote(thread_id, safe='')}/attachments"
    return await _save(engine, session, request, filename, base=base)


@router.get(
    "/agui/{agent}/threads/{thread_id:path}/attachments/{attachment_id}",
    response_class=Response,
    responses=_DOWNLOAD,
    summary="Download an attachment of a thread of an agent",
)
@access(Reach.AGENT)
async def download_for_agent(
    agent: str,
    thread_id: str,
    attachment_id: str,
    request: Request,
    engine: CurrentEngine,
    host: CurrentHost,
    user: CurrentUser,
) -> Response:
    """Return the bytes as a download that no browser renders."""
    host.check_agent(agent)
    session = await engine.sessions.get(agent, user, thread_id)
    if session is None:
        raise NotFoundError(f"there is no thread {thread_id}")
    return _download(engine, await engine.attachments.get(session, attachment_id), request)


async def _save(engine: Engine, session: Session, request: Request, filename: str, *, base: str) -> Response:
    kind = request.headers.get("content-type")
    try:
        saved = await engine.attachments.save(session, request.stream(), name=filename, mime_type=kind)
    except ClientDisconnect as error:
        raise InvalidInputError("the client left before the whole file arrived; nothing was stored") from error
    return DocumentResponse(_view(saved, base), status_code=201)


def _view(attachment: Attachment, base: str) -> JsonObject:
    return {
        "id": attachment.id,
        "name": attachment.name,
        "mime_type": attachment.mime_type,
        "size": attachment.size,
        "sha256": attachment.sha256,
        "created_at": attachment.created_at.isoformat(),
        "url": f"{base}/{attachment.id}",
        "part": attachment.part(),
    }


def _download(engine: Engine, attachment: Attachment, request: Request) -> Response:
    headers = {
        "Content-Type": attachment.mime_type if _SHOWN_TYPES.fullmatch(attachment.mime_type) else UNKNOWN_TYPE,
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(attachment.name, safe='')}",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "private, max-age=31536000, immutable",
        "Accept-Ranges": "bytes",
        "ETag": f'"{attachment.sha256}"',
    }
    if matches_tag(request.headers.get("if-none-match", ""), attachment.sha256):
        return Response(status_code=304, headers=headers)
    start, end, status = 0, attachment.size, 200
    if (asked := _RANGE.fullmatch(request.headers.get("range", "").strip())) is not None and any(asked.groups()):
        found = _range_of(*asked.groups(), size=attachment.size)
        if found is None:
            return Response(status_code=416, headers={"Content-Range": f"bytes */{attachment.size}"})
        (start, end), status = found, 206
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{attachment.size}"
    headers["Content-Length"] = str(end - start)
    return StreamingResponse(_chunks(engine, attachment, start, end), status_code=status, headers=headers)


async def _chunks(engine: Engine, attachment: Attachment, start: int, end: int) -> AsyncGenerator[bytes, None]:
    async with aclosing(engine.attachments.stream(attachment, start=start, end=end)) as chunks:
        async for chunk in chunks:
            yield chunk


def _range_of(first: str, last: str, *, size: int) -> tuple[int, int] | None:
    """Return the start and the end (without it) of a single range; None for one that cannot be satisfied."""
    if not first:
        return (max(size - int(last), 0), size) if int(last) else None
    start, end = int(first), min(int(last) + 1 if last else size, size)
    return (start, end) if start < end else None
