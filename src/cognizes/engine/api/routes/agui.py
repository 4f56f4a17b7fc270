"""Agents over AG-UI in the strict profile (run, connect, cancel), and a CopilotKit runtime over the same functions.

`runtimeUrl="http://127.0.0.1:8000/copilotkit"` needs no Node process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from ag_ui.core import AgentCapabilities, RunAgentInput
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response, StreamingResponse

from cognizes.engine.access import Permission, Principal
from cognizes.engine.agui.frames import FrameEncoder
from cognizes.engine.agui.snapshot import ThreadFrames, read_history
from cognizes.engine.api.agents import CurrentHost, CurrentUser, Served, Streams
from cognizes.engine.api.authorization import Caller, CurrentEngine, Reach, access, is_end_user
from cognizes.engine.api.responses import DocumentResponse
from cognizes.engine.database.documents import dump_json
from cognizes.engine.engine import Engine
from cognizes.engine.errors import NotFoundError, PermissionDeniedError
from cognizes.engine.models import MAX_TEXT_LENGTH, JsonObject, Session
from cognizes.engine.pulse.events import check_text
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.version import __version__

router = APIRouter(prefix="/agui", tags=["agents"])


class Connection(BaseModel):
    """The thread to connect to. A complete RunAgentInput is accepted: clients send it on every call."""

    model_config = ConfigDict(extra="allow", str_max_length=MAX_TEXT_LENGTH)
    thread_id: str = Field(alias="threadId", min_length=1)
    run_id: str = Field(default="", alias="runId")
    protocol_version: str | None = Field(default=None, alias="protocolVersion")


Before = Annotated[int | None, Query(ge=1, description="`before` of the page with newer messages.")]


class AgentView(BaseModel):
    """A hosted agent: what it can do, and in `limits` what it cannot."""

    name: str
    description: str
    capabilities: dict[str, bool]
    limits: list[str]
    url: str


class AgentList(BaseModel):
    """The agents of this server."""

    agents: list[AgentView]


class CancelledRun(BaseModel):
    """Whether a run was cancelled; false when none was active."""

    cancelled: bool


class MessagesView(BaseModel):
    """A page of AG-UI messages, oldest first. If `hasMore`, the older page begins at the cursor `before`."""

    messages: list[dict[str, Any]]
    has_more: bool = Field(alias="hasMore")
    before: int | None


_FRAMES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "Frames of AG-UI, until the run ends"}
}


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


@router.post("/{agent}", response_class=Response, responses=_FRAMES, summary="Run an agent")
@access(Reach.AGENT, Permission.WRITE, has_large_body=True)
async def run_agent(
    agent: str, run_input: RunAgentInput, host: CurrentHost, user: CurrentUser, caller: Caller, streams: Streams
) -> Response:
    """Start a run and stream it. The run belongs to the server: it continues when the client leaves.

    409 while another run executes on the thread, and when a run waits and the input does not answer it; `interrupts`
    of the problem lists the open ones.
    """
    run = await host.run(agent, user, run_input, is_end_user=is_end_user(caller))
    return streams.open(host.watch(run), protocol_version=run_input.protocol_version, until=run.observed())


@router.get("/{agent}/capabilities", response_model=AgentCapabilities, summary="What an agent can do")
@access(Reach.AGENT)
async def get_capabilities(agent: str, host: CurrentHost) -> Response:
    """Return the capabilities of the agent in the form of AG-UI 1.0."""
    return DocumentResponse(host.capabilities(agent).model_dump(mode="json", by_alias=True))


@router.post("/{agent}/connect", response_class=Response, responses=_FRAMES, summary="Connect to a thread")
@access(Reach.AGENT, has_large_body=True)
async def connect_agent(
    agent: str, body: Connection, host: CurrentHost, user: CurrentUser, streams: Streams
) -> Response:
    """Stream a snapshot of the thread, then the rest of its active run. Clients may call it again at any time."""
    host.check_agent(agent)
    check_text("threadId", body.thread_id)
    frames = host.connect(agent, user, body.thread_id, run_id=body.run_id or f"connect-{body.thread_id}")
    return streams.open(frames, protocol_version=body.protocol_version)


@router.post("/{agent}/cancel", response_model=CancelledRun, summary="Cancel the active run of a thread")
@access(Reach.AGENT, Permission.WRITE)
async def cancel_agent(agent: str, body: Connection, host: CurrentHost, user: CurrentUser) -> Response:
    """Return when the run has ended; `cancelled` is false when there was none."""
    cancelled = await host.cancel(agent, user, body.thread_id, run_id=body.run_id or None)
    return DocumentResponse({"cancelled": cancelled})


@router.get(
    "/{agent}/threads/{thread_id:path}/messages",
    response_model=MessagesView,
    summary="Page through the messages of a thread",
)
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


copilotkit = APIRouter(prefix="/copilotkit", tags=["copilotkit"])


class Stop(BaseModel):
    """The run to stop; without an id, the active one. Other fields are ignored."""

    model_config = ConfigDict(extra="ignore", str_max_length=MAX_TEXT_LENGTH)
    run_id: str | None = Field(default=None, alias="runId")


@copilotkit.get("/info", summary="What this runtime offers")
@access(Reach.CALLER)
async def info(host: CurrentHost, caller: Caller) -> Response:
    """Return the agents and the features of this runtime."""
    agents = {
        name: {"name": name, "description": description, "className": "LlmAgent"}
        for name, description in host.descriptions.items()
        if caller.sees_app(name)
    }
    threads = {"list": True, "inspect": True, "mutations": False, "realtimeMetadata": False}
    return DocumentResponse(
        {
            "version": __version__,
            "agents": agents,
            "audioFileTranscriptionEnabled": False,
            "mode": "sse",
            "threadEndpoints": threads,
            "suggestions": False,
            "a2uiEnabled": False,
            "openGenerativeUIEnabled": False,
            "telemetryDisabled": True,
        }
    )


@copilotkit.post("/agent/{agent}/run", response_class=Response, responses=_FRAMES, summary="Run an agent")
@access(Reach.AGENT, Permission.WRITE, has_large_body=True)
async def run(
    agent: str, run_input: RunAgentInput, host: CurrentHost, user: CurrentUser, caller: Caller, streams: Streams
) -> Response:
    """Run an agent, like `POST /agui/{agent}`."""
    return await run_agent(agent, run_input, host, user, caller, streams)


@copilotkit.post("/agent/{agent}/connect", response_class=Response, responses=_FRAMES, summary="Connect to a thread")
@access(Reach.AGENT, has_large_body=True)
async def connect(agent: str, body: Connection, host: CurrentHost, user: CurrentUser, streams: Streams) -> Response:
    """Connect to a thread, like `POST /agui/{agent}/connect`."""
    return await connect_agent(agent, body, host, user, streams)


@copilotkit.post("/agent/{agent}/stop/{thread_id}", summary="Stop the active run of a thread")
@access(Reach.AGENT, Permission.WRITE)
async def stop(agent: str, thread_id: str, host: CurrentHost, user: CurrentUser, body: Stop | None = None) -> Response:
    """Return whether a run was stopped."""
    run_id = body.run_id if body else None
    if await host.cancel(agent, user, thread_id, run_id=run_id):
        interrupt = {"type": "RUN_ERROR", "message": "Run stopped by user", "code": "STOPPED"}
        return DocumentResponse({"stopped": True, "interrupt": interrupt})
    return DocumentResponse({"stopped": False, "message": f"No active run for thread '{thread_id}'."})


@copilotkit.get("/threads", summary="List threads, newest activity first")
@access(Reach.AGENTS)
async def list_threads(
    engine: CurrentEngine,
    host: CurrentHost,
    user: CurrentUser,
    caller: Caller,
    agent: Annotated[str | None, Query(alias="agentId")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: str | None = None,
) -> Response:
    """Return the user's threads with one agent, or the newest threads with all agents."""
    if agent is not None:
        if not caller.sees_app(agent):
            raise PermissionDeniedError(f"{caller.name} is not for the app {agent!r}")
        page = await engine.sessions.list(agent, user, limit=limit, cursor=cursor, with_state=False)
        return DocumentResponse({"threads": [_thread(item) for item in page.items], "nextCursor": page.next_cursor})
    pages = [await engine.sessions.list(name, user, limit=limit, with_state=False) for name in _apps(host, caller)]
    threads = [_thread(item) for page in pages for item in page.items]
    newest = sorted(threads, key=lambda thread: str(thread["updatedAt"]), reverse=True)[:limit]
    return DocumentResponse({"threads": newest, "nextCursor": None})


@copilotkit.get("/threads/{thread_id}/messages", response_model=MessagesView, summary="The messages of a thread")
@access(Reach.AGENTS)
async def thread_messages(
    thread_id: str, engine: CurrentEngine, host: CurrentHost, user: CurrentUser, caller: Caller, before: Before = None
) -> Response:
    """Return messages as CopilotKit's inspector shows them: the newest, or the newest before a cursor. `hasMore` says
    that there are older ones; `before` is their cursor."""
    session = await _find(engine, _apps(host, caller), user, thread_id)
    return await message_page(engine, session, before=before, show=_message)


@copilotkit.get("/threads/{thread_id}/events", summary="The AG-UI events of a thread")
@access(Reach.AGENTS)
async def thread_events(
    thread_id: str, engine: CurrentEngine, host: CurrentHost, user: CurrentUser, caller: Caller
) -> Response:
    """Stream all stored events as AG-UI events, page by page."""
    session = await _find(engine, _apps(host, caller), user, thread_id)
    return StreamingResponse(_event_parts(engine, session, thread_id), media_type="application/json")


async def _event_parts(engine: Engine, session: Session, thread_id: str) -> AsyncIterator[str]:
    older = FrameEncoder(protocol_1=False)
    frames = ThreadFrames(thread_id)
    yield '{"events":['
    comma = ""
    async for page in engine.sessions.log.iterate_pages(thread_uuid(session.thread_id), only_shown=True):
        for event in page.events:
            for frame in frames.of(event):
                yield comma + dump_json(older.dump(frame))
                comma = ","
    yield "]}"


@copilotkit.get("/threads/{thread_id}/state", summary="The state of a thread")
@access(Reach.AGENTS)
async def thread_state(
    thread_id: str, engine: CurrentEngine, host: CurrentHost, user: CurrentUser, caller: Caller
) -> Response:
    """Return session, user and app state, with prefixes."""
    return DocumentResponse({"state": (await _find(engine, _apps(host, caller), user, thread_id)).state})


def _apps(host: Any, caller: Principal) -> list[str]:
    return [name for name in host.descriptions if caller.sees_app(name)]


async def _find(engine: Engine, apps: list[str], user: str, thread_id: str) -> Session:
    """Return the thread with the latest activity: several agents may have one of this id."""
    found = [session for name in apps if (session := await engine.sessions.get(name, user, thread_id))]
    if not found:
        raise NotFoundError(f"there is no thread {thread_id}")
    return max(found, key=lambda session: str(session.updated_at))


def _thread(session: Session) -> JsonObject:
    return {
        "id": session.id,
        "name": session.title,
        "agentId": session.app_name,
        "organizationId": "",
        "createdById": session.user_id,
        "archived": False,
        "createdAt": session.created_at.isoformat() if session.created_at else None,
        "updatedAt": session.updated_at.isoformat() if session.updated_at else None,
    }


def _message(message: JsonObject) -> JsonObject:
    calls = [
        {"id": call["id"], "name": call["function"]["name"], "args": call["function"]["arguments"]}
        for call in message.get("toolCalls") or ()
    ]
    return {**message, "toolCalls": calls} if calls else message
