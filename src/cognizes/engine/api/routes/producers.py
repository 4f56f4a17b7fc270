"""Producers in any language: create a context, add messages whole or in chunks, request approvals, cancel."""

from __future__ import annotations

import logging
from typing import Any, Literal
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from cognizes.engine.access import Permission
from cognizes.engine.api.agents import Served
from cognizes.engine.api.authorization import (
    Caller,
    ContextId,
    CurrentEngine,
    Reach,
    access,
    check_user_references,
    is_end_user,
)
from cognizes.engine.api.responses import CONFLICT, DocumentResponse
from cognizes.engine.api.routes.contexts import ContextView, context_view
from cognizes.engine.api.views import Body, Content, format_time
from cognizes.engine.engine import Engine
from cognizes.engine.errors import ConflictError, InvalidInputError, NotFoundError
from cognizes.engine.hosting import AgentHost
from cognizes.engine.models import Event, JsonObject, new_id
from cognizes.engine.sync.context_state import ContextState, check_transition
from cognizes.engine.sync.contexts import DESCRIPTIVE
from cognizes.engine.sync.tool_approvals import ToolApproval

logger = logging.getLogger(__name__)

router = APIRouter(prefix="/contexts", tags=["contexts"])
_KIND_OF_ROLE = {
    "user": "user_message",
    "assistant": "assistant_message",
    "system": "system_message",
    "tool": "observe",
}
Role = Literal["user", "assistant", "system", "tool"]
MessageId = Field(default=None, min_length=1, max_length=200)


class NewContext(Body):
    """What a context starts with."""

    app_name: str = Field(min_length=1)
    user_id: str = Field(min_length=1)
    session_id: str | None = None
    title: str | None = None
    model_id: str | None = None
    mode: str | None = None
    system_prompt_id: str | None = None
    workspace_path: str | None = None


class NewMessage(Body):
    """A whole message: a text, or parts such as `{"type": "text", "text": …}`."""

    role: Role
    content: Content | list[dict[str, Any]]
    message_id: str | None = MessageId
    run_id: str | None = None


class NewStream(Body):
    """A message that will be sent in chunks."""

    role: Role = "assistant"
    message_id: str | None = MessageId
    run_id: str | None = None


class NewChunks(Body):
    """Consecutive chunks from `first_sequence` on; the first chunk of a message is 1."""

    first_sequence: int = Field(ge=1, le=2**62)
    deltas: list[Content]


class Completion(Body):
    """Why the model stopped."""

    finish_reason: str | None = None


class NewApproval(Body):
    """A tool call that needs the approval of a person."""

    tool_name: str
    tool_input: Any = None
    tool_call_id: str | None = None
    message: Content | None = None
    run_id: str | None = None
    approval_id: str | None = MessageId


class ApprovalAnswer(Body):
    """The decision of the person."""

    approved: bool
    reason: str | None = None


class StoredMessageView(BaseModel):
    """The id of a stored message, and the number of its event."""

    message_id: str
    sequence_num: int


class OpenedStreamView(BaseModel):
    """The id under which chunks are sent."""

    message_id: str


class SentChunksView(BaseModel):
    """The number of the newest chunk that is stored."""

    current_sequence: int


class EndedStreamView(BaseModel):
    """The number of the last chunk of the message."""

    final_sequence: int


class ApprovalView(BaseModel):
    """A request to a person; `approved` is null until it is answered."""

    approval_id: str
    tool_name: str
    tool_input: Any
    tool_call_id: str | None
    message: str | None
    run_id: str | None
    approved: bool | None
    asked_at: str | None


class ApprovalList(BaseModel):
    """The open requests of a context."""

    approvals: list[ApprovalView]


class CancelledView(BaseModel):
    """The state of the context, and the runs that were active."""

    current_state: str
    run_ids: list[str]


@router.post("", status_code=201, response_model=ContextView, responses=CONFLICT, summary="Create a context")
@access(Reach.APP, Permission.WRITE)
async def create_context(body: NewContext, engine: CurrentEngine) -> Response:
    described = {name: getattr(body, name) for name in DESCRIPTIVE if getattr(body, name) is not None}
    session = await engine.sessions.create(
        body.app_name, body.user_id, session_id=body.session_id, title=body.title, metadata=described
    )
    return DocumentResponse(context_view(await engine.contexts.metadata(session.thread_id)), status_code=201)


@router.post("/{context_id}/messages", status_code=201, response_model=StoredMessageView, summary="Add a whole message")
@access(Reach.THREAD, Permission.WRITE, has_large_body=True)
async def post_message(context_id: ContextId, body: NewMessage, engine: CurrentEngine, caller: Caller) -> Response:
    """Add a message. A resend with the same `message_id` and content is stored once; other content is a conflict."""
    if isinstance(body.content, list) and not any(isinstance(part.get("text"), str) for part in body.content):
        raise InvalidInputError("content has no part with a text; add one, because models and searches read it")
    message_id = body.message_id or str(new_id())
    is_resent = body.message_id is not None and await engine.sessions.log.find(context_id, message_id) is not None
    if body.role == "user" and not is_resent:
        check_transition(await engine.contexts.state(context_id), ContextState.PROCESSING_USER_MESSAGE)
    key = "text" if isinstance(body.content, str) else "content"
    content: JsonObject = {key: body.content, "message_id": message_id}
    event = Event(
        id=message_id,
        thread_id=str(context_id),
        invocation_id="",
        author=body.role,
        event_type=_KIND_OF_ROLE[body.role],
        content=content,
        run_id=body.run_id,
    )
    if is_end_user(caller):
        await check_user_references(engine, context_id, event)
    await engine.sessions.append_to_thread(context_id, event)
    return DocumentResponse({"message_id": message_id, "sequence_num": event.sequence_num}, status_code=201)


@router.post(
    "/{context_id}/messages/stream",
    status_code=201,
    response_model=OpenedStreamView,
    summary="Start a message that is sent in chunks",
)
@access(Reach.THREAD, Permission.WRITE, is_for_agents=True, has_large_body=True)
async def open_stream(context_id: ContextId, engine: CurrentEngine, body: NewStream | None = None) -> Response:
    new = body or NewStream()
    message_id = await engine.streams.open(context_id, message_id=new.message_id, role=new.role, run_id=new.run_id)
    return DocumentResponse({"message_id": message_id}, status_code=201)


@router.post("/{context_id}/messages/{message_id:path}/chunks", response_model=SentChunksView, summary="Send chunks")
@access(Reach.THREAD, Permission.WRITE, is_for_agents=True, has_large_body=True)
async def append_chunks(context_id: ContextId, message_id: str, body: NewChunks, engine: CurrentEngine) -> Response:
    """Append chunks. A resend of the same range changes nothing; a gap or other content is a conflict."""
    current = await engine.streams.append(
        context_id, message_id, first_sequence=body.first_sequence, deltas=body.deltas
    )
    return DocumentResponse({"current_sequence": current})


@router.post(
    "/{context_id}/messages/{message_id:path}/complete", response_model=EndedStreamView, summary="Complete a message"
)
@access(Reach.THREAD, Permission.WRITE, is_for_agents=True, has_large_body=True)
async def complete_stream(
    context_id: ContextId, message_id: str, engine: CurrentEngine, body: Completion | None = None
) -> Response:
    reason = body.finish_reason if body else None
    final = await engine.streams.complete(context_id, message_id, finish_reason=reason)
    return DocumentResponse({"final_sequence": final})


@router.post(
    "/{context_id}/messages/{message_id:path}/abort", response_model=EndedStreamView, summary="Abort a message"
)
@access(Reach.THREAD, Permission.WRITE, is_for_agents=True, has_large_body=True)
async def abort_stream(context_id: ContextId, message_id: str, engine: CurrentEngine) -> Response:
    """Store the text so far, with the status `interrupted`."""
    return DocumentResponse({"final_sequence": await engine.streams.abort(context_id, message_id)})


@router.get("/{context_id}/tool-approvals", response_model=ApprovalList, summary="List open approvals")
@access(Reach.THREAD)
async def list_approvals(context_id: ContextId, engine: CurrentEngine) -> Response:
    waiting = await engine.approvals.list_open(context_id)
    return DocumentResponse({"approvals": [approval_view(approval) for approval in waiting]})


@router.post(
    "/{context_id}/tool-approvals", status_code=201, response_model=ApprovalView, summary="Request an approval"
)
@access(Reach.THREAD, Permission.WRITE, is_for_agents=True)
async def ask_approval(context_id: ContextId, body: NewApproval, engine: CurrentEngine) -> Response:
    approval = await engine.approvals.ask(context_id, **body.model_dump())
    return DocumentResponse(approval_view(approval), status_code=201)


@router.post(
    "/{context_id}/tool-approvals/{approval_id:path}", response_model=ApprovalView, summary="Answer an approval"
)
@access(Reach.THREAD, Permission.WRITE)
async def answer_approval(
    context_id: ContextId, approval_id: str, body: ApprovalAnswer, engine: CurrentEngine
) -> Response:
    """Approve or deny a tool call. The same answer again changes nothing; another one is a conflict."""
    approval = await engine.approvals.answer(context_id, approval_id, approved=body.approved, reason=body.reason)
    return DocumentResponse(approval_view(approval))


@router.post("/{context_id}/cancel", response_model=CancelledView, summary="Cancel runs and streams")
@access(Reach.THREAD, Permission.WRITE)
async def cancel_context(context_id: ContextId, engine: CurrentEngine, served: Served) -> Response:
    """End the runs and streamed messages of a context; a conflict when none is active."""
    run_ids = await _cancel(engine, context_id, await served.find_host())
    state = await engine.contexts.state(context_id)
    if state is ContextState.CANCELLING and not run_ids:
        raise ConflictError("the active run or message cannot be stopped by this server; it ends by itself")
    return DocumentResponse({"current_state": state, "run_ids": run_ids})


def approval_view(approval: ToolApproval) -> JsonObject:
    """An approval as JSON."""
    return {
        "approval_id": approval.id,
        "tool_name": approval.tool_name,
        "tool_input": approval.tool_input,
        "tool_call_id": approval.tool_call_id,
        "message": approval.message,
        "run_id": approval.run_id,
        "approved": approval.approved,
        "asked_at": format_time(approval.asked_at),
    }


async def _cancel(engine: Engine, thread_id: UUID, host: AgentHost | None) -> list[str]:
    """Stop the runs of a context (hosted agents through their host) and its streamed messages.

    Returns the runs that ended. `IllegalTransitionError` when nothing is active.
    """
    context = await engine.contexts.metadata(thread_id)
    check_transition(context.current_state, ContextState.CANCELLING)
    await _append(engine, thread_id, "cancel_requested")
    active = [row["id"] for row in await engine._database.fetch("list_active_runs", thread_id)]
    if host is not None and context.app_name in host.descriptions:
        await host.cancel(context.app_name, context.user_id, context.session_id)
    for run_id in active:
        try:
            await engine.runs.cancel(thread_id, run_id)
        except (ConflictError, NotFoundError) as error:
            logger.debug("run %s had ended already: %s", run_id, error)
    for head in await engine.streams.heads([thread_id]):
        try:
            await engine.streams.abort(thread_id, head.message_id)
        except (ConflictError, NotFoundError) as error:
            # A process writes it: it ends with the run that was cancelled.
            logger.debug("message %s is not ours to end: %s", head.message_id, error)
    if await engine.contexts.state(thread_id) is ContextState.CANCELLING:
        await _append(engine, thread_id, "cancelled")
    return active


async def _append(engine: Engine, thread_id: UUID, kind: str) -> None:
    event = Event(id="", thread_id=str(thread_id), invocation_id="", author="user", event_type=kind)
    await engine.sessions.append_to_thread(thread_id, event)
