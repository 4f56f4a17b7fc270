"""The timeline of a conversation."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from cognizes.engine.api.dependencies import ContextId, CurrentEngine, Limit, OptionalSequence
from cognizes.engine.api.problems import PROBLEMS
from cognizes.engine.api.responses import DocumentResponse

router = APIRouter(prefix="/conversations/{context_id}", tags=["conversations"], responses=PROBLEMS)


class TimelineView(BaseModel):
    """Items, oldest first; `total` counts this page."""

    conversationId: str  # noqa: N815 - the timeline speaks camelCase
    timeline: list[dict[str, Any]]
    total: int
    hasMore: bool  # noqa: N815
    firstSequence: int | None  # noqa: N815
    lastSequence: int | None  # noqa: N815


@router.get("/messages", response_model=TimelineView, summary="Read the timeline")
async def read_timeline(
    context_id: ContextId,
    engine: CurrentEngine,
    limit: Limit = 100,
    before: OptionalSequence = None,
    after: OptionalSequence = None,
    branch: str | None = None,
) -> Response:
    """The newest items, or those right before or right after an event: `firstSequence` and `lastSequence` go on.

    The items of one event stay together. Without `branch`, the active one is shown.
    """
    page = await engine.timeline.read(context_id, limit=limit, before=before, after=after, branch=branch)
    return DocumentResponse(
        {
            "conversationId": str(context_id),
            "timeline": page.items,
            "total": len(page.items),
            "hasMore": page.has_more,
            "firstSequence": page.first_sequence,
            "lastSequence": page.last_sequence,
        }
    )
