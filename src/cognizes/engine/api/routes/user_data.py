"""The data of one user: export and erasure. No id is in the path, because paths are in the logs and the audit log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response, StreamingResponse

from cognizes.engine.access import Permission
from cognizes.engine.api.authorization import CurrentEngine, Reach, access
from cognizes.engine.api.responses import NOT_FOUND, DocumentResponse

router = APIRouter(prefix="/api/user-data", tags=["user data"])


class Erased(BaseModel):
    """The number of deleted rows per table; of `audit_log`, the entries that now have a pseudonym."""

    rows: dict[str, int] = Field(examples=[{"threads": 2, "events": 41, "memories": 12}])


@router.get(
    "",
    responses={**NOT_FOUND, 200: {"content": {"application/x-ndjson": {}}, "description": "One row per line"}},
    response_class=Response,
    summary="Export all data of a user as NDJSON",
)
@access(Reach.APP, Permission.ADMIN, is_audited=True)
async def export_user_data(engine: CurrentEngine, app_name: str, user_id: str) -> Response:
    """The first line is a header, each other line a row of a table, all as one transaction sees them."""
    lines = engine.user_data.export(app_name, user_id)
    first = await anext(lines)  # raises before the response begins
    headers = {"Content-Disposition": 'attachment; filename="user-data.ndjson"'}
    return StreamingResponse(_following(first, lines), media_type="application/x-ndjson", headers=headers)


@router.delete("", response_model=Erased, responses=NOT_FOUND, summary="Erase all data of a user")
@access(Reach.APP, Permission.ADMIN, is_audited=True)
async def erase_user_data(engine: CurrentEngine, app_name: str, user_id: str) -> Response:
    """Deletes sessions, events, messages, state, memories, runs and streams; entries of the audit log stay, with a
    pseudonym. It cannot be undone."""
    return DocumentResponse({"rows": await engine.user_data.erase(app_name, user_id)})


async def _following(first: str, lines: AsyncGenerator[str, None]) -> AsyncIterator[str]:
    async with aclosing(lines):
        yield first
        async for line in lines:
            yield line
