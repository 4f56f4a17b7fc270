"""Contexts, their messages and branches on the wire."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from cognizes.engine.api.views import Body, Content, format_time
from cognizes.engine.models import JsonObject
from cognizes.engine.sync.branches import Branch
from cognizes.engine.sync.contexts import ContextMessage, ContextMetadata
from cognizes.engine.sync.tool_approvals import ToolApproval

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
    """Chunks that follow each other, from `first_sequence` on; the first of a message is 1."""

    first_sequence: int = Field(ge=1, le=2**62)
    deltas: list[Content]


class Completion(Body):
    """Why the model stopped."""

    finish_reason: str | None = None


class NewBranch(Body):
    """A branch that forks right after an event, or now."""

    name: str = Field(min_length=1)
    at_sequence: int | None = Field(default=None, ge=0, le=2**62)


class ActiveBranch(Body):
    """The branch to go on with."""

    name: str


class NewApproval(Body):
    """A tool that is called only if a person says yes."""

    tool_name: str
    tool_input: Any = None
    tool_call_id: str | None = None
    message: Content | None = None
    run_id: str | None = None
    approval_id: str | None = MessageId


class ApprovalAnswer(Body):
    """What the person said."""

    approved: bool
    reason: str | None = None


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
    """Messages by their ids. `has_more`: ask again for the ids behind the last one."""

    messages: list[ContextMessageView]
    requested_count: int
    found_count: int
    has_more: bool


class BranchMessagesView(BaseModel):
    """A page of a branch, oldest first. Under `has_more` go on `after` its `last_sequence`, under `has_earlier`
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
    """Chunks of a message, those there are now."""

    context_id: str
    message_id: str
    chunks: list[ChunkView]
    current_sequence: int
    has_more: bool
    status: str


def context_view(context: ContextMetadata) -> JsonObject:
    """A context as JSON."""
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
    """A message as JSON."""
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
    """A branch as JSON."""
    return {
        "name": branch.name,
        "parent": branch.parent,
        "forked_at": branch.forked_at,
        "tip_sequence": branch.tip_sequence,
        "is_active": branch.is_active,
        "created_at": format_time(branch.created_at),
    }


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
