"""The timeline of a conversation, and chat with its agent."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ag_ui.core import RunAgentInput, UserMessage
from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from cognizes.engine.access import Permission
from cognizes.engine.api.agents import CurrentHost
from cognizes.engine.api.authorization import ContextId, CurrentEngine, Limit, OptionalSequence, Reach, access
from cognizes.engine.api.responses import DocumentResponse
from cognizes.engine.api.views import Body, Content
from cognizes.engine.models import JsonObject, new_id
from cognizes.engine.timeline.timeline import TimelinePage

router = APIRouter(prefix="/conversations/{context_id}", tags=["conversations"])


class TimelineView(BaseModel):
    """Items, oldest first; `total` counts this page."""

    conversationId: str  # noqa: N815 - the timeline speaks camelCase
    timeline: list[dict[str, Any]]
    total: int
    hasMore: bool  # noqa: N815
    firstSequence: int | None  # noqa: N815
    lastSequence: int | None  # noqa: N815


class NewChat(Body):
    """The message of the user, and the ids of attachments of the conversation that belong to it."""

    message: Content = Field(min_length=1)
    attachments: list[str] = Field(default_factory=list, max_length=32)


class ChatView(TimelineView):
    """The conversation with the agent's answer, and the run that wrote it."""

    runId: str  # noqa: N815
    status: str
    error: str | None


@router.get("/messages", response_model=TimelineView, summary="Read the timeline")
@access(Reach.THREAD)
async def read_timeline(
    context_id: ContextId,
    engine: CurrentEngine,
    limit: Limit = 100,
    before: OptionalSequence = None,
    after: OptionalSequence = None,
    branch: str | None = None,
) -> Response:
    """Return the newest items, or those before or after an event: continue with `firstSequence` or `lastSequence`.

    The items of one event stay together. Without `branch`, the active one is shown.
    """
    page = await engine.timeline.read(context_id, limit=limit, before=before, after=after, branch=branch)
    return DocumentResponse(_timeline_view(context_id, page))


@router.post("/chat", response_model=ChatView, summary="Send a message to the agent of a conversation")
@access(Reach.THREAD, Permission.WRITE)
async def chat(
    context_id: ContextId, body: NewChat, engine: CurrentEngine, host: CurrentHost, limit: Limit = 100
) -> Response:
    """Run the hosted agent that has the name of the conversation's app, wait for the end of the run and return the
    newest items. The run belongs to the server: it continues when the client leaves. `POST /agui/{agent}` streams it.

    404 when no agent of that name is hosted or an attachment does not exist, 409 while another run executes in the
    conversation. A run that failed is an answer like any other, with its `status` and `error`.
    """
    session = await engine.sessions.store.get_thread(context_id)
    parts = [(await engine.attachments.get(session, name)).part() for name in body.attachments]
    content = [{"type": "text", "text": body.message}, *parts] if parts else body.message
    run_input = RunAgentInput(
        thread_id=session.id,
        run_id=str(new_id()),
        state={},
        messages=[UserMessage.model_validate({"id": str(new_id()), "content": content})],
        tools=[],
        context=[],
        forwarded_props={},
    )
    started = await host.run(session.app_name, session.user_id, run_input)
    await started.wait()
    run = await engine.runs.get(context_id, started.run_id)
    page = await engine.timeline.read(context_id, limit=limit)
    answer = {"runId": run.id, "status": run.status, "error": run.error}
    return DocumentResponse({**_timeline_view(context_id, page), **answer})


def _timeline_view(context_id: UUID, page: TimelinePage) -> JsonObject:
    return {
        "conversationId": str(context_id),
        "timeline": page.items,
        "total": len(page.items),
        "hasMore": page.has_more,
        "firstSequence": page.first_sequence,
        "lastSequence": page.last_sequence,
    }
