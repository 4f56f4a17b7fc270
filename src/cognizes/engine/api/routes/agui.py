"""Agents over AG-UI, in the strict profile: run, connect, cancel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from ag_ui.core import RunAgentInput
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from cognizes.engine.access import Permission
from cognizes.engine.agui.snapshot import read_history
from cognizes.engine.api.agents import CurrentHost, CurrentUser, Served, Streams
from cognizes.engine.api.authorization import Caller, CurrentEngine, Reach, access, is_end_user
from cognizes.engine.api.responses import DocumentResponse
from cognizes.engine.engine import Engine
from cognizes.engine.errors import NotFoundError
from cognizes.engine.models import MAX_TEXT_LENGTH, JsonObject, Session
from cognizes.engine.pulse.session_store import thread_uuid

router = APIRouter(prefix="/agui", tags=["agents"])


class Connection(BaseModel):
    """The thread to connect to. A complete RunAgentInput is accepted: clients send it on every call."""

    model_config = ConfigDict(extra="allow", str_max_length=MAX_TEXT_LENGTH)
    thread_id: str = Field(alias="threadId", min_length=1)
    run_id: str = Field(default="", alias="runId")
    protocol_version: str | None = Field(default=None, alias="protocolVersion")


Before = Annotated[int | None, Query(ge=1, description="`before` of the page with newer messages.")]


class AgentList(BaseModel):
    """The agents of this server."""

    agents: list[dict[str, Any]]


@router.get("", response_model=AgentList, summary="List the agents")
@access(Reach.CALLER)
async def list_agents(agents: Served, caller: Caller) -> Response:
    """Return the agents that the caller may use, with what they can do; `limits` says what they cannot."""
    host = await agents.find_host()
    listed = [
        {**agent, "url": f"/agui/{agent['name']}"}
        for agent in (host.listing() if host else [])
        if caller.sees_app(agent["name"])
    ]
    return DocumentResponse({"agents": listed})


@router.post("/{agent}", summary="Run an agent")
@access(Reach.AGENT, Permission.WRITE, has_large_body=True)
async def run_agent(
    agent: str, run_input: RunAgentInput, host: CurrentHost, user: CurrentUser, caller: Caller, streams: Streams
) -> Response:
    """Start a run and stream it. The run belongs to the server: it continues when the client leaves.

    409 while another run executes on the thread, and when a run waits and the input does not answer it; `interrupts`
    of the problem lists the open ones.
    """
    run = await host.run(agent, user, run_input, is_end_user=is_end_user(caller))
    return streams.open(host.watch(run), protocol_version=run_input.protocol_version)


@router.get("/{agent}/capabilities", summary="What an agent can do")
@access(Reach.AGENT)
async def get_capabilities(agent: str, host: CurrentHost) -> Response:
    """Return the capabilities of the agent in the form of AG-UI 1.0."""
    return DocumentResponse(host.capabilities(agent).model_dump(mode="json", by_alias=True))


@router.post("/{agent}/connect", summary="Connect to a thread")
@access(Reach.AGENT, has_large_body=True)
async def connect_agent(
    agent: str, body: Connection, host: CurrentHost, user: CurrentUser, streams: Streams
) -> Response:
    """Stream a snapshot of the thread, then the rest of its active run. Clients may call it again at any time."""
    host.check_agent(agent)
    frames = host.connect(agent, user, body.thread_id, run_id=body.run_id or f"connect-{body.thread_id}")
    return streams.open(frames, protocol_version=body.protocol_version)


@router.post("/{agent}/cancel", summary="Cancel the active run of a thread")
@access(Reach.AGENT, Permission.WRITE)
async def cancel_agent(agent: str, body: Connection, host: CurrentHost, user: CurrentUser) -> Response:
    """Return when the run has ended; `cancelled` is false when there was none."""
    cancelled = await host.cancel(agent, user, body.thread_id, run_id=body.run_id or None)
    return DocumentResponse({"cancelled": cancelled})


@router.get("/{agent}/threads/{thread_id:path}/messages", summary="Page through the messages of a thread")
@access(Reach.AGENT)
async def list_messages(
    agent: str, thread_id: str, engine: CurrentEngine, host: CurrentHost, user: CurrentUser, before: Before = None
) -> Response:
    """Return AG-UI messages, oldest first: the newest, or the newest before a cursor.

    A client that connects receives the newest messages. The CUSTOM event `cognizes.older_messages` says that there are
    older ones and carries the cursor of the first page.
    """
    host.check_agent(agent)
    session = await engine.sessions.get(agent, user, thread_id)
    if session is None:
        raise NotFoundError(f"there is no thread {thread_id}")
    return await message_page(engine, session, before=before)


async def message_page(
    engine: Engine,
    session: Session,
    *,
    before: int | None,
    show: Callable[[JsonObject], JsonObject] = lambda item: item,
) -> Response:
    """Return a page of a thread's messages, and the cursor of the next older one."""
    up_to = None if before is None else before - 1
    history = await read_history(engine.sessions.log, thread_uuid(session.thread_id), up_to=up_to)
    messages = [show(message) for message in history.snapshot.messages]
    older = history.older_before
    return DocumentResponse({"messages": messages, "hasMore": older is not None, "before": older})
