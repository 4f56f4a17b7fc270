"""Pulls: what a context is, its messages, and the chunks of a message while it grows and ever after."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from cognizes.engine.api.authorization import LARGEST, ContextId, CurrentEngine, OptionalSequence, Reach, access
from cognizes.engine.api.context_views import (
    BranchMessagesView,
    ChunksView,
    ContextView,
    FoundMessagesView,
    context_message_view,
    context_view,
)
from cognizes.engine.api.responses import PROBLEMS, DocumentResponse, pull_response
from cognizes.engine.streams.delta_stream import ChunkPage, StreamStatus

router = APIRouter(prefix="/contexts/{context_id}", tags=["contexts"], responses=PROBLEMS)

LONGEST_WAIT = 60.0


@router.get("/metadata", response_model=ContextView, summary="What a context is, without its content")
@access(Reach.THREAD)
async def read_metadata(context_id: ContextId, engine: CurrentEngine) -> Response:
    return DocumentResponse(context_view(await engine.contexts.metadata(context_id)))


@router.get(
    "/messages",
    response_model=BranchMessagesView | FoundMessagesView,
    summary="Read messages by their ids, or those of a branch",
)
@access(Reach.THREAD)
async def read_messages(
    context_id: ContextId,
    request: Request,
    engine: CurrentEngine,
    ids: Annotated[str | None, Query(description="Comma separated; at most 200.")] = None,
    branch: str | None = None,
    offset: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    after: OptionalSequence = None,
    before: OptionalSequence = None,
) -> Response:
    """With `ids` those messages, in that order; else a page of a branch, oldest first, the active one unless named.

    A page also ends at `COGNIZES_PAGE_BYTES`. Under `has_more` go on `after` its `last_sequence`, under `has_earlier`
    `before` its `first_sequence`; with `ids`, ask again for those behind the last one. A message that is being streamed
    has no content here: pull its chunks.
    """
    if ids is not None:
        asked = list(dict.fromkeys(name for name in ids.split(",") if name))
        found = await engine.contexts.find_messages(context_id, asked)
        document = {
            "messages": [context_message_view(message) for message in found.messages],
            "requested_count": len(asked),
            "found_count": len(found.messages),
            "has_more": found.has_more,
        }
        is_final = len(found.messages) == len(asked) and all(message.is_finished for message in found.messages)
        return pull_response(
            request, document, identity=("messages", context_id, *asked) if is_final and asked else None
        )
    page = await engine.contexts.messages(
        context_id, branch=branch, offset=offset, limit=limit, after=after, before=before
    )
    document = {
        "messages": [context_message_view(message) for message in page.messages],
        "branch": page.branch,
        "offset": offset,
        "total": page.total,
        "has_more": page.has_more,
        "has_earlier": page.has_earlier,
        "first_sequence": page.first_sequence,
        "last_sequence": page.last_sequence,
    }
    return pull_response(request, document, identity=None)


@router.get(
    "/messages/{message_id:path}/streaming-chunks", response_model=ChunksView, summary="Pull the chunks of a message"
)
@access(Reach.THREAD)
async def read_chunks(
    context_id: ContextId,
    message_id: str,
    request: Request,
    engine: CurrentEngine,
    from_sequence: Annotated[int, Query(ge=0, le=LARGEST, description="Exclusive.")] = 0,
    to: Annotated[int | None, Query(ge=0, le=LARGEST, description="Inclusive.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT, description="Seconds to wait for more.")] = 0,
) -> Response:
    """Those behind `from_sequence`. `has_more` is true when more of what was asked for is there now.

    Go on from the last chunk you received, not from `current_sequence`: under `has_more` that is further.
    """
    page = await engine.streams.read(context_id, message_id, after=from_sequence, up_to=to, limit=limit, wait=wait)
    document = {
        "context_id": str(context_id),
        "message_id": message_id,
        "chunks": [{"sequence": chunk.sequence, "delta": chunk.delta} for chunk in page.chunks],
        "current_sequence": page.current_sequence,
        "has_more": page.has_more,
        "status": page.status,
    }
    last = page.chunks[-1].sequence if page.chunks else from_sequence
    identity = ("chunks", context_id, message_id, from_sequence, last, page.has_more)
    return pull_response(request, document, identity=identity if _is_closed(page, last, to) else None)


def _is_closed(page: ChunkPage, last: int, to: int | None) -> bool:
    """Whether the same question will always have the same answer: the message is finished, or all that was asked for
    is there."""
    return page.status is not StreamStatus.STREAMING or (to is not None and last == to)


@router.get("/llm-context", summary="The input of a model")
@access(Reach.THREAD)
async def read_llm_context(
    context_id: ContextId,
    request: Request,
    engine: CurrentEngine,
    max_tokens: Annotated[int, Query(ge=1, le=LARGEST)] = 8000,
    branch: str | None = None,
) -> Response:
    """The newest messages that fit, calls and their results together. Tokens are estimated."""
    context = await engine.llm_contexts.read(context_id, max_tokens=max_tokens, branch=branch)
    document = {
        "context_id": str(context_id),
        "messages": context.messages,
        "estimated_tokens": context.estimated_tokens,
        "is_truncated": context.is_truncated,
    }
    return pull_response(request, document, identity=None)
