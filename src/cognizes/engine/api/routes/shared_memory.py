"""Memories that the users of an app or of an agent share. Callers that are bound to a user read them only by recall."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from cognizes.engine.access import Permission
from cognizes.engine.api.authorization import CurrentEngine, Limit, Reach, access
from cognizes.engine.api.responses import NOT_FOUND, DocumentResponse
from cognizes.engine.api.routes.memory import Memories, NewNote, Stored
from cognizes.engine.api.views import Body
from cognizes.engine.errors import NotFoundError
from cognizes.engine.memory.filters import Filters
from cognizes.engine.memory.ingest import Remembered
from cognizes.engine.memory.records import MemoryScope

router = APIRouter(prefix="/memory/shared", tags=["memory"])
Shared = Literal["agent", "app"]


class NewSharedNotes(Body):
    """Texts for all users of an app, or of one agent; without an agent, of the app's one agent."""

    app_name: str = Field(min_length=1)
    visibility: Shared
    agent_id: str = ""
    memories: list[NewNote] = Field(min_length=1, max_length=1000)


@router.post("", status_code=201, response_model=Stored, summary="Remember texts for all users")
@access(Reach.APP, Permission.WRITE, is_for_agents=True, is_audited=True, has_large_body=True)
async def remember_shared(body: NewSharedNotes, engine: CurrentEngine) -> Response:
    """Recall returns them to users whose queries ask for this visibility."""
    agent_wide = body.visibility == "agent"
    scope = MemoryScope.agent_wide(body.app_name, body.agent_id) if agent_wide else MemoryScope.app_wide(body.app_name)
    items = [Remembered(**note.model_dump()) for note in body.memories]
    return DocumentResponse({"stored": await engine.memory.remember(scope, items)}, status_code=201)


@router.get("", response_model=Memories, summary="List shared memories, newest first")
@access(Reach.APP, is_for_agents=True)
async def list_shared(
    engine: CurrentEngine,
    app_name: str,
    visibility: Shared,
    agent_id: str | None = None,
    tag: Annotated[list[str] | None, Query()] = None,
    limit: Limit = 100,
    before: str | None = None,
) -> Response:
    filters = Filters(agent=agent_id, tags=tag)
    page = await engine.memory.read_page(
        app_name, "", filters=filters, limit=limit, before=before, visibility=visibility
    )
    next_before = page.items[-1].id if page.has_more else None
    return DocumentResponse({"memories": [memory.to_json() for memory in page.items], "next_before": next_before})


@router.delete("/{memory_id}", status_code=204, responses=NOT_FOUND, summary="Forget a shared memory for good")
@access(Reach.APP, Permission.WRITE, is_for_agents=True, is_audited=True)
async def forget_shared(memory_id: str, engine: CurrentEngine, app_name: str, visibility: Shared) -> Response:
    if not await engine.memory.forget(app_name, "", memory_id, visibility=visibility):
        raise NotFoundError(f"there is no shared memory {memory_id}")
    return Response(status_code=204)
