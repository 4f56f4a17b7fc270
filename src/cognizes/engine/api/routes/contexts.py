"""Contexts: metadata, messages, the chunks of a message, the input of a model, and branches."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from cognizes.engine.access import Permission
from cognizes.engine.api.authorization import LARGEST, ContextId, CurrentEngine, OptionalSequence, Reach, access
from cognizes.engine.api.responses import DocumentResponse, pull_response
from cognizes.engine.api.views import Body, format_time
from cognizes.engine.models import JsonObject
from cognizes.engine.streams.chunks import ChunkPage, StreamStatus
from cognizes.engine.sync.branches import Branch
from cognizes.engine.sync.contexts import ContextMessage, ContextMetadata

router = APIRouter(prefix="/contexts/{context_id}", tags=["contexts"])
LONGEST_WAIT = 60.0


class ContextView(BaseModel):
    """A context, without its content."""

    id: str
    current_state: str
    active_branch_name: str
    message_count: int
    model_id: Any
    mode: Any
    system_prompt_id: Any
    workspace_path: Any
    title: str | None
    session_id: str
    app_name: str
    user_id: str
    last_sequence: int
    created_at: str
    updated_at: str


class ContextMessageView(BaseModel):
    """A message, a tool call or a result. One that is being streamed has no content here: pull its chunks."""

    id: str
    role: str
    content: Any
    tool_calls: list[dict[str, Any]] | None = Field(description="`{id, name, arguments}` of each call")
    tool_result: dict[str, Any] | None = Field(description="`{tool_call_id, tool_name, content, is_error}`")
    message_type: str
    status: str
    sequence_num: int | None
    final_sequence: int | None
    created_at: str | None


class FoundMessagesView(BaseModel):
    """Messages by their ids. If `has_more`, ask again for the ids after the last one."""

    messages: list[ContextMessageView]
    requested_count: int
    found_count: int
    has_more: bool


class BranchMessagesView(BaseModel):
    """A page of a branch, oldest first. If `has_more`, continue `after` its `last_sequence`; if `has_earlier`,
    `before` its `first_sequence`."""

    messages: list[ContextMessageView]
    branch: str
    offset: int
    total: int
    has_more: bool
    has_earlier: bool
    first_sequence: int | None
    last_sequence: int | None


class ChunkView(BaseModel):
    """One delta of a message."""

    sequence: int
    delta: str


class ChunksView(BaseModel):
    """The chunks of a message that exist now."""

    context_id: str
    message_id: str
    chunks: list[ChunkView]
    current_sequence: int
    has_more: bool
    status: str


class ModelInputView(BaseModel):
    """The newest messages that fit, oldest first, in the format of chat models."""

    context_id: str
    messages: list[dict[str, Any]] = Field(description="`{role, content, tool_calls, tool_call_id}` of each message")
    estimated_tokens: int
    is_truncated: bool


class BranchView(BaseModel):
    """A branch. `tip_sequence` is its newest event; `main` has neither a parent nor a fork."""

    name: str
    parent: str | None
    forked_at: int | None
    tip_sequence: int
    is_active: bool
    created_at: str | None


class BranchList(BaseModel):
    """The branches of a context."""

    branches: list[BranchView]


class BranchStateView(BaseModel):
    """The state at the tip of a branch."""

    state: dict[str, Any]
    version: int
    sequence_num: int


@router.get("/metadata", response_model=ContextView, summary="Read a context without its content")
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
    """Return the messages of `ids`, in that order; else a page of a branch (default: the active one), oldest first.

    A page also ends at `COGNIZES_PAGE_BYTES`. If `has_more`, continue `after` its `last_sequence`; if
    `has_earlier`, `before` its `first_sequence`. With `ids`, ask again for the ids after the last one. A message that
    is being streamed has no content here: pull its chunks.
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
    """Return the chunks after `from_sequence`. `has_more` is true when more of the requested chunks exist.

    Continue from the last chunk received, not from `current_sequence`, which is later if `has_more`.
    """
    page = await engine.feed.read_chunks(context_id, message_id, after=from_sequence, up_to=to, limit=limit, wait=wait)
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
    """Return whether the response never changes: the message is finished, or all requested chunks exist."""
    return page.status is not StreamStatus.STREAMING or (to is not None and last == to)


@router.get("/llm-context", response_model=ModelInputView, summary="Read the input of a model")
@access(Reach.THREAD)
async def read_llm_context(
    context_id: ContextId,
    request: Request,
    engine: CurrentEngine,
    max_tokens: Annotated[int, Query(ge=1, le=LARGEST)] = 8000,
    branch: str | None = None,
) -> Response:
    """Return the newest messages that fit, tool calls with their results. Tokens are estimated."""
    context = await engine.contexts.llm_context(context_id, max_tokens=max_tokens, branch=branch)
    document = {
        "context_id": str(context_id),
        "messages": context.messages,
        "estimated_tokens": context.estimated_tokens,
        "is_truncated": context.is_truncated,
    }
    return pull_response(request, document, identity=None)


# Branches


class NewBranch(Body):
    """A branch that forks after an event, or at the newest one."""

    name: str = Field(min_length=1)
    at_sequence: int | None = Field(default=None, ge=0, le=2**62)


class ActiveBranch(Body):
    """The branch to switch to."""

    name: str


@router.get("/branches", response_model=BranchList, summary="List branches")
@access(Reach.THREAD)
async def list_branches(context_id: ContextId, engine: CurrentEngine) -> Response:
    branches = await engine.branches.list(context_id)
    return DocumentResponse({"branches": [branch_view(branch) for branch in branches]})


@router.post("/branches", status_code=201, response_model=BranchView, summary="Create a branch")
@access(Reach.THREAD, Permission.WRITE)
async def create_branch(context_id: ContextId, body: NewBranch, engine: CurrentEngine) -> Response:
    """Create a branch after an event, or at the newest one. Nothing is copied; the active branch stays."""
    branch = await engine.branches.create(context_id, body.name, at_sequence=body.at_sequence)
    return DocumentResponse(branch_view(branch), status_code=201)


@router.put("/branches/active", response_model=BranchView, summary="Switch to a branch")
@access(Reach.THREAD, Permission.WRITE)
async def switch_branch(context_id: ContextId, body: ActiveBranch, engine: CurrentEngine) -> Response:
    """Append to this branch from now on. The session's state becomes the state at its tip."""
    return DocumentResponse(branch_view(await engine.branches.switch(context_id, body.name)))


@router.get("/branches/{name:path}/state", response_model=BranchStateView, summary="Read the state at a branch's tip")
@access(Reach.THREAD)
async def read_branch_state(context_id: ContextId, name: str, engine: CurrentEngine) -> Response:
    past = await engine.branches.state(context_id, name)
    return DocumentResponse({"state": past.state, "version": past.version, "sequence_num": past.sequence_num})


@router.delete("/branches/{name:path}", status_code=204, summary="Delete a branch")
@access(Reach.THREAD, Permission.WRITE, is_audited=True)
async def delete_branch(context_id: ContextId, name: str, engine: CurrentEngine) -> Response:
    """Hide a branch; its events stay in the log. 409 for `main`, the active branch, and one that others fork from."""
    await engine.branches.delete(context_id, name)
    return Response(status_code=204)


# Documents


def context_view(context: ContextMetadata) -> JsonObject:
    return {
        "id": context.id,
        "current_state": context.current_state,
        "active_branch_name": context.active_branch_name,
        "message_count": context.message_count,
        "model_id": context.model_id,
        "mode": context.mode,
        "system_prompt_id": context.system_prompt_id,
        "workspace_path": context.workspace_path,
        "title": context.title,
        "session_id": context.session_id,
        "app_name": context.app_name,
        "user_id": context.user_id,
        "last_sequence": context.last_sequence,
        "created_at": format_time(context.created_at),
        "updated_at": format_time(context.updated_at),
    }


def context_message_view(message: ContextMessage) -> JsonObject:
    return {
        "id": message.id,
        "role": message.role,
        "content": message.content,
        "tool_calls": message.tool_calls,
        "tool_result": message.tool_result,
        "message_type": message.message_type,
        "status": message.status,
        "sequence_num": message.sequence_num,
        "final_sequence": message.final_sequence,
        "created_at": format_time(message.created_at),
    }


def branch_view(branch: Branch) -> JsonObject:
    return {
        "name": branch.name,
        "parent": branch.parent,
        "forked_at": branch.forked_at,
        "tip_sequence": branch.tip_sequence,
        "is_active": branch.is_active,
        "created_at": format_time(branch.created_at),
    }
