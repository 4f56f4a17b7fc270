"""The debug API of the Monitor and of other tools: find threads, read state and events, export, act on runs.

Lists cut large values (`{"$cut": …}`); routes for one value return it whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from ag_ui.core import ResumeEntry, RunAgentInput
from fastapi import APIRouter, Depends, Path, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cognizes.engine.access import Permission, Principal
from cognizes.engine.agui.monitor import frames_of
from cognizes.engine.agui.snapshot import read_history
from cognizes.engine.agui.translator import Translator, wait_of
from cognizes.engine.api.agents import CurrentHost, Served
from cognizes.engine.api.authorization import (
    LARGEST,
    Caller,
    CurrentEngine,
    Limit,
    OptionalSequence,
    Reach,
    Sequence,
    ThreadId,
    access,
)
from cognizes.engine.api.responses import NOT_FOUND, DocumentResponse
from cognizes.engine.api.routes.runs import answerable_kinds
from cognizes.engine.api.views import Body, RunTotals, RunView, event_view, format_time, run_view, session_view
from cognizes.engine.database.documents import dump_json
from cognizes.engine.engine import Engine
from cognizes.engine.errors import ConflictError, NotFoundError
from cognizes.engine.models import Event, JsonObject, RunStatus, new_id
from cognizes.engine.monitor.pulse_meter import PulseMeter
from cognizes.engine.monitor.queries import CUT, MonitorQueries, RunSummary, ThreadStatus, ThreadSummary, preview
from cognizes.engine.pulse.events import parse_state_prefix
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.pulse.state_debug import StateDiff, group_by_prefix
from cognizes.engine.runs import WaitKind
from cognizes.engine.sync.tool_approvals import ToolApproval

router = APIRouter(prefix="/api/debug", tags=["debug"])
AUTHOR = "monitor"
ACTION = "monitor_action"
_ENDED = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)
Version = Annotated[int, Query(ge=1, le=LARGEST)]
EventNumber = Annotated[int, Path(ge=1, le=LARGEST)]
_KEYS_OF_A_SCOPE = 2000


async def _queries(engine: CurrentEngine) -> MonitorQueries:
    return MonitorQueries(engine._database)


Queries = Annotated[MonitorQueries, Depends(_queries)]


# Threads


@router.get("/threads", responses=NOT_FOUND, summary="Find threads across apps and users, newest activity first")
@access(Reach.APP)
async def find_threads(
    queries: Queries,
    q: Annotated[str | None, Query(max_length=1000)] = None,
    app_name: str | None = None,
    user_id: str | None = None,
    status: ThreadStatus | None = None,
    ids: Annotated[str | None, Query(description="Thread ids, separated by commas: only these.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: str | None = None,
) -> Response:
    """Find threads with `q` in their title, session id, user or app, or with a message that contains all its words.

    A key of some apps names one of them in `app_name`. `next_cursor` is null on the last page.
    """
    if ids is not None:
        wanted = [thread_uuid(one) for one in ids.split(",")[:500] if one]
        found = await queries.read_threads(wanted, app_name=app_name, user_id=user_id)
        return DocumentResponse({"threads": [_summary_view(item) for item in found], "next_cursor": None})
    page = await queries.find_threads(
        text=q, app_name=app_name, user_id=user_id, status=status, limit=limit, cursor=cursor
    )
    return DocumentResponse({"threads": [_summary_view(item) for item in page.items], "next_cursor": page.next_cursor})


@router.get("/apps", summary="List the apps of the caller")
@access(Reach.CALLER)
async def list_apps(queries: Queries, caller: Caller) -> Response:
    """Return the apps that the caller's key or token names. If it names none: those of its user, or all."""
    apps = await queries.list_apps(caller.user_id) if caller.app_names is None else sorted(caller.app_names)
    return DocumentResponse({"apps": apps})


@router.get("/threads/{thread_id}", summary="Read the summary of a thread")
@access(Reach.THREAD)
async def read_summary(thread_id: ThreadId, queries: Queries) -> Response:
    found = await queries.read_threads([thread_id])
    if not found:
        raise NotFoundError(f"there is no thread {thread_id}")
    return DocumentResponse(_summary_view(found[0]))


@router.get("/threads/{thread_id}/active-path", summary="Read which events are on the active branch")
@access(Reach.THREAD)
async def read_active_path(thread_id: ThreadId, queries: Queries) -> Response:
    """Return ranges of sequence numbers, both ends included. A thread without branches has one range."""
    return DocumentResponse({"ranges": await queries.read_active_path(thread_id)})


@router.get("/threads/{thread_id}/messages", summary="Find messages of a thread that contain a text")
@access(Reach.THREAD)
async def find_messages(
    thread_id: ThreadId,
    queries: Queries,
    q: Annotated[str, Query(min_length=1, max_length=1000)],
    before: OptionalSequence = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Response:
    """Return each message's event with the part around the text, newest first; case is ignored. If `has_more`, continue
    with `before`, the `sequence_num` of the last hit."""
    hits, has_more = await queries.find_messages(thread_id, q, before=before, limit=limit)
    return DocumentResponse({"hits": [asdict(hit) for hit in hits], "has_more": has_more})


# Events


@router.get("/threads/{thread_id}/events", summary="Read events with large values cut, oldest first")
@access(Reach.THREAD)
async def preview_events(
    thread_id: ThreadId, queries: Queries, after: Sequence = 0, limit: Annotated[int, Query(ge=1, le=500)] = 100
) -> Response:
    """Return events; one with `cut: true` is incomplete, and `/events/{sequence_num}` returns it whole."""
    page = await queries.preview_events(thread_id, after=after, limit=limit)
    return DocumentResponse({"events": page.events, "last_sequence": page.last_sequence})


@router.get("/threads/{thread_id}/events/{sequence_num}", summary="Read one event with its AG-UI frames")
@access(Reach.THREAD)
async def read_event(thread_id: ThreadId, sequence_num: EventNumber, engine: CurrentEngine) -> Response:
    """Return an event; `frames` has the Monitor's profile, `agui` what a strict AG-UI client receives for it alone."""
    event = await _event(engine, thread_id, sequence_num)
    before = await engine._past.at(thread_id, sequence=sequence_num - 1)
    translator = Translator(
        thread_id=event.thread_id, run_id=event.run_id or "", state=before.state, root_agent=None, with_user=True
    )
    strict = translator.translate(event)
    return DocumentResponse(
        {
            "event": event_view(event),
            "frames": [frame.to_json() for frame in frames_of(event)],
            "agui": [frame.model_dump(mode="json", by_alias=True, exclude_none=True) for frame in strict],
        }
    )


@router.get("/threads/{thread_id}/events/{sequence_num}/diff", summary="Read what one event changed in the state")
@access(Reach.THREAD)
async def diff_event(thread_id: ThreadId, sequence_num: EventNumber, engine: CurrentEngine) -> Response:
    return DocumentResponse(_diff_view(await engine._debug.diff_event(thread_id, sequence_num)))


# Runs


@router.get("/runs", summary="Find runs of all threads without their documents, newest first")
@access(Reach.APP)
async def find_run_summaries(
    queries: Queries,
    engine: CurrentEngine,
    app_name: str | None = None,
    user_id: str | None = None,
    status: Annotated[
        list[Literal["pending", "running", "waiting", "completed", "failed", "cancelled"]] | None, Query()
    ] = None,
    wait_kind: Annotated[
        list[Literal["webhook", "human", "timer", "signal", "message"]] | None,
        Query(description="Of waiting runs: those that wait for one of these."),
    ] = None,
    handler: Annotated[
        str | None, Query(description="The beginning of the name of a handler or of a hosted agent.", max_length=1000)
    ] = None,
    with_usage: Annotated[bool, Query(description="Add the tokens and the cost of each run.")] = False,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: str | None = None,
) -> Response:
    """Return each run with the user and the title of its thread; `wait.since` is the start of its wait.

    A key of some apps names one of them in `app_name`. `next_cursor` is null on the last page.
    """
    page = await queries.find_runs(
        status=status,
        wait_kind=wait_kind,
        app_name=app_name,
        user_id=user_id,
        handler=handler,
        limit=limit,
        cursor=cursor,
    )
    views = [_run_summary_view(run) for run in page.items]
    if with_usage:
        for view, usage in zip(views, await engine.usage.of_runs(page.items), strict=True):
            view["usage"] = {name: getattr(usage, name) for name in RunTotals.model_fields}
    return DocumentResponse({"runs": views, "next_cursor": page.next_cursor})


@router.get(
    "/threads/{thread_id}/runs/{run_id:path}/activity", summary="Read the model calls, the waits and the steps of a run"
)
@access(Reach.THREAD)
async def read_activity(thread_id: ThreadId, run_id: str, engine: CurrentEngine, queries: Queries) -> Response:
    """Return the first 300 of each, oldest first, and the trace of the run with its link (COGNIZES_TRACE_URL).

    `nodes` are the steps that the agent announced, such as the nodes of a graph.
    """
    run = await engine.runs.get(thread_id, run_id)
    calls = await queries.list_model_calls(thread_id, run_id)
    waits = await queries.list_waits(thread_id, run_id)
    nodes = await queries.list_agent_steps(thread_id, run_id)
    return DocumentResponse(
        {
            "model_calls": [
                {
                    **asdict(call.usage),
                    "cost": engine.usage.prices.cost(call.usage),
                    "ended_at": format_time(call.ended_at),
                }
                for call in calls
            ],
            "waits": [
                {**asdict(wait), "started_at": format_time(wait.started_at), "ended_at": format_time(wait.ended_at)}
                for wait in waits
            ],
            "nodes": [
                {**asdict(node), "started_at": format_time(node.started_at), "ended_at": format_time(node.ended_at)}
                for node in nodes
            ],
            "trace": _trace_view(engine, run.traceparent),
        }
    )


def _trace_view(engine: Engine, traceparent: str | None) -> JsonObject | None:
    if traceparent is None:
        return None
    trace_id = traceparent.split("-")[1]
    template = engine.settings.trace_url
    return {"id": trace_id, "url": template.replace("{trace_id}", trace_id) if template else None}


# State


@router.get("/threads/{thread_id}/state", summary="Read the state by scope, with its history")
@access(Reach.THREAD)
async def debug_state(
    thread_id: ThreadId, engine: CurrentEngine, limit: Limit = 1000, after_version: Sequence = 0
) -> Response:
    """The history is a page of `limit` changes and `COGNIZES_PAGE_BYTES`; if `has_more`, continue with `after_version`,
    the `version` of its last change."""
    await engine.sessions.store.get_thread(thread_id)
    info = asdict(await engine._debug.get_debug_info(thread_id, limit=limit, after_version=after_version))
    return DocumentResponse({**info, "state_history": [_plain(item) for item in info["state_history"]]})


@router.get("/threads/{thread_id}/scopes", summary="Read the current or a past state by scope, with large values cut")
@access(Reach.THREAD)
async def read_scopes(thread_id: ThreadId, engine: CurrentEngine, sequence: OptionalSequence = None) -> Response:
    """Return the state after an event; `sequence=0` is the initial state. `/value` returns one key whole."""
    past = await engine._debug.state_at(thread_id, sequence)
    scopes = {name: _cut_scope(values) for name, values in group_by_prefix(past.state).items()}
    return DocumentResponse({"sequence_num": past.sequence_num, "version": past.version, "scopes": scopes})


@router.get("/threads/{thread_id}/value", summary="Read one key of the state")
@access(Reach.THREAD)
async def read_value(
    thread_id: ThreadId, engine: CurrentEngine, key: str, sequence: OptionalSequence = None
) -> Response:
    """The key has its scope's prefix."""
    past = await engine._debug.state_at(thread_id, sequence)
    if key not in past.state:
        raise NotFoundError(f"there is no key {key!r} in this state")
    return DocumentResponse({"key": key, "scope": parse_state_prefix(key)[0], "value": past.state[key]})


@router.get("/threads/{thread_id}/keys", summary="Read the writes of one key: author, time, run")
@access(Reach.THREAD)
async def key_history(
    thread_id: ThreadId,
    engine: CurrentEngine,
    caller: Caller,
    key: str,
    limit: Limit = 1000,
    before_version: OptionalSequence = None,
) -> Response:
    """Return the newest writes within `limit` and `COGNIZES_PAGE_BYTES`; if `has_more`, continue with `before_version`,
    the `version` of the first.

    Threads of many users write an `app:` key: for an end user, thread and author of the writes of others are omitted.
    """
    await engine.sessions.store.get_thread(thread_id)
    page = await engine._debug.key_history_page(
        thread_id, key, limit=limit, before_version=before_version, for_user=caller.user_id
    )
    return DocumentResponse({"key": key, "history": [_plain(item) for item in page.changes], "has_more": page.has_more})


@router.get("/threads/{thread_id}/diff", summary="Compare the state at two versions")
@access(Reach.THREAD)
async def diff(thread_id: ThreadId, engine: CurrentEngine, from_version: Version, to_version: Version) -> Response:
    return DocumentResponse(asdict(await engine._debug.diff(thread_id, from_version, to_version)))


# Export


@router.get("/threads/{thread_id}/export", summary="Export a thread as JSON or NDJSON", response_class=Response)
@access(Reach.THREAD)
async def export_thread(
    thread_id: ThreadId,
    engine: CurrentEngine,
    file_format: Annotated[Literal["json", "ndjson"], Query(alias="format")] = "json",
) -> Response:
    """Stream a thread page by page. NDJSON has the session first, then one event per line."""
    session = await engine.sessions.store.get_thread(thread_id)
    parts = _json_parts(engine, thread_id, session_view(session))
    if file_format == "ndjson":
        parts = _ndjson_parts(engine, thread_id, session_view(session))
    media_type = "application/json" if file_format == "json" else "application/x-ndjson"
    disposition = f'attachment; filename="thread-{thread_id}.{file_format}"'
    return StreamingResponse(parts, media_type=media_type, headers={"Content-Disposition": disposition})


async def _json_parts(engine: Engine, thread_id: UUID, session: JsonObject) -> AsyncIterator[str]:
    yield '{"session":' + dump_json(session) + ',"events":['
    comma = ""
    async for event in engine.sessions.log.iterate(thread_id):
        yield comma + dump_json(event_view(event))
        comma = ",\n"
    yield "]}\n"


async def _ndjson_parts(engine: Engine, thread_id: UUID, session: JsonObject) -> AsyncIterator[str]:
    yield dump_json({"session": session}) + "\n"
    async for event in engine.sessions.log.iterate(thread_id):
        yield dump_json({"event": event_view(event)}) + "\n"


# Pulse


@router.get("/pulse", summary="Read the metrics of this process")
@access(Reach.EVERYTHING, Permission.ADMIN)
async def read_pulse(engine: CurrentEngine, request: Request) -> Response:
    """Return counters since the process started; `events_per_second` has the last minute, oldest first."""
    pool = engine._database.pool
    state = request.app.state
    meter: PulseMeter = state.meter
    streams = state.heartbeats.connections + state.agent_heartbeats.connections
    return DocumentResponse(
        {
            "now": datetime.now(UTC).isoformat(),
            "events": meter.events,
            "events_per_second": meter.per_second(),
            "notify_latency_ms": asdict(meter.latency()),
            "listener": {"running": engine._listener.is_running, "reconnections": engine._listener.reconnections},
            "missed_notifications": engine.feed.missed_notifications,
            "conflicts": engine.sessions.conflicts,
            "retries": engine.sessions.retries,
            "pool": {
                "size": pool.get_size(),
                "in_use": pool.get_size() - pool.get_idle_size(),
                "max": pool.get_max_size(),
            },
            "clients": {"streams": streams, "websockets": state.connections.websockets},
        }
    )


# Actions: each is written into the thread first, by the author `monitor`, with the name of the caller.


class Answers(Body):
    """The answer to each open question by the id of the question: any JSON value, which the agent receives.

    `response_schema` of a question says what its agent expects. All open questions must be answered at once.
    """

    answers: dict[str, Any] = Field(min_length=1)


class ToolDecision(Body):
    """Approval or denial of a tool call."""

    approved: bool


class RunSignal(Body):
    """A signal for a waiting run."""

    correlation_key: str
    payload: Any = None


@router.post("/threads/{thread_id}/runs/{run_id}/cancel", response_model=RunView, summary="Cancel a run, audited")
@access(Reach.THREAD, Permission.ADMIN, is_audited=True)
async def cancel_run(
    thread_id: ThreadId, run_id: str, engine: CurrentEngine, agents: Served, caller: Caller
) -> Response:
    """Stop a hosted agent; mark any other run as cancelled."""
    run = await engine.runs.get(thread_id, run_id)
    if run.status in _ENDED:
        raise ConflictError(f"run {run_id} has ended already: {run.status}")
    await _note(engine, caller, thread_id, run_id, {"action": "cancel"})
    if not await _cancel_hosted(engine, agents, thread_id, run_id):
        await engine.runs.cancel(thread_id, run_id)
    return DocumentResponse(run_view(await engine.runs.get(thread_id, run_id)))


@router.post("/threads/{thread_id}/runs/{run_id}/signal", summary="Signal a waiting run, audited")
@access(Reach.THREAD, Permission.ADMIN, is_audited=True)
async def signal_run(
    thread_id: ThreadId, run_id: str, body: RunSignal, engine: CurrentEngine, caller: Caller
) -> Response:
    """End the wait for a key. `outcome` is `resumed`, `kept` for a later wait, or `duplicate`."""
    run = await engine.runs.get(thread_id, run_id)
    if run.status in _ENDED:
        raise ConflictError(f"run {run_id} has ended already: {run.status}")
    await _note(engine, caller, thread_id, run_id, {"action": "signal", "correlation_key": body.correlation_key})
    outcome = await engine.runs.signal(
        run_id,
        correlation_key=body.correlation_key,
        payload=body.payload,
        thread_id=thread_id,
        may_answer=answerable_kinds(caller),
    )
    return DocumentResponse({"outcome": outcome, "run": run_view(await engine.runs.get(thread_id, run_id))})


@router.get("/threads/{thread_id}/questions", summary="List open questions to people")
@access(Reach.THREAD)
async def open_questions(thread_id: ThreadId, engine: CurrentEngine) -> Response:
    """Return unanswered interrupts of the hosted agent, and open tool approvals (`"kind": "approval"`)."""
    await engine.sessions.store.get_thread(thread_id)
    history = await read_history(engine.sessions.log, thread_id)
    questions = [
        item.model_dump(mode="json", by_alias=False, exclude_none=True)
        for item in history.interrupts
        if wait_of(item).get("wait", WaitKind.HUMAN) == WaitKind.HUMAN
    ]
    questions += [_question(approval) for approval in await engine.approvals.list_open(thread_id)]
    return DocumentResponse({"questions": questions})


@router.post("/threads/{thread_id}/approvals/{approval_id:path}", summary="Approve or deny a tool, audited")
@access(Reach.THREAD, Permission.ADMIN, is_audited=True)
async def answer_approval(
    thread_id: ThreadId, approval_id: str, body: ToolDecision, engine: CurrentEngine, caller: Caller
) -> Response:
    """Answer an approval; a run that waits for it resumes."""
    asked = next((one for one in await engine.approvals.list_open(thread_id) if one.id == approval_id), None)
    if asked is None:
        raise ConflictError(f"the approval {approval_id[:80]!r} is not open: it was answered, or no run waits for it")
    content: JsonObject = {"action": "approve" if body.approved else "deny", "approval_id": approval_id}
    await _note(engine, caller, thread_id, asked.run_id, content)
    await engine.approvals.answer(thread_id, approval_id, approved=body.approved, reason="answered in the monitor")
    return DocumentResponse({"approval_id": approval_id, "approved": body.approved})


@router.post("/threads/{thread_id}/answers", status_code=202, summary="Answer the questions of an agent, audited")
@access(Reach.THREAD, Permission.ADMIN, is_audited=True)
async def answer_questions(
    thread_id: ThreadId, body: Answers, engine: CurrentEngine, host: CurrentHost, caller: Caller
) -> Response:
    """Start the run that resumes with the answers, without waiting for its end."""
    session = await engine.sessions.store.get_thread(thread_id)
    history = await read_history(engine.sessions.log, thread_id)
    open_ids = {interrupt.id for interrupt in history.interrupts}
    if open_ids != body.answers.keys():
        raise ConflictError(f"the open questions are {sorted(open_ids) or 'none'}; answer exactly these")
    for interrupt_id, payload in body.answers.items():
        content: JsonObject = {"action": _action_of(payload), "interrupt_id": interrupt_id}
        await _note(engine, caller, thread_id, None, content)
    run_input = RunAgentInput(
        thread_id=session.id,
        run_id=str(new_id()),
        state={},
        messages=[],
        tools=[],
        context=[],
        forwarded_props={},
        resume=[
            ResumeEntry(interrupt_id=one, status="resolved", payload=payload) for one, payload in body.answers.items()
        ],
    )
    run = await host.run(session.app_name, session.user_id, run_input)
    return DocumentResponse({"run_id": run.run_id}, status_code=202)


def _action_of(payload: Any) -> str:
    """Return `approve` or `deny` for a payload that decides: true, or an object like `{"approved": false}`."""
    decisions = [payload] if isinstance(payload, bool) else []
    if isinstance(payload, dict):
        decisions = [payload[name] for name in ("approved", "confirmed") if isinstance(payload.get(name), bool)]
    if not decisions:
        return "answer"
    return "approve" if decisions[0] else "deny"


def _question(approval: ToolApproval) -> JsonObject:
    return {
        "id": approval.id,
        "kind": "approval",
        "reason": "tool_approval",
        "message": approval.message,
        "metadata": {"toolName": approval.tool_name, "arguments": approval.tool_input},
    }


async def _cancel_hosted(engine: Engine, agents: Any, thread_id: UUID, run_id: str) -> bool:
    host = await agents.find_host()
    session = await engine.sessions.store.get_thread(thread_id)
    if host is None or session.app_name not in host.descriptions:
        return False
    cancelled: bool = await host.cancel(session.app_name, session.user_id, session.id, run_id=run_id)
    return cancelled


async def _note(engine: Engine, caller: Principal, thread_id: UUID, run_id: str | None, content: JsonObject) -> None:
    event = Event(
        id="",
        thread_id=str(thread_id),
        invocation_id="",
        author=AUTHOR,
        event_type=ACTION,
        content={**content, "by": caller.name},
        run_id=run_id,
    )
    await engine.sessions.append_to_thread(thread_id, event)


# Views


def _summary_view(summary: ThreadSummary) -> JsonObject:
    view = asdict(summary)
    return {**view, "created_at": summary.created_at.isoformat(), "updated_at": summary.updated_at.isoformat()}


def _run_summary_view(run: RunSummary) -> JsonObject:
    times = {name: format_time(getattr(run, name)) for name in ("created_at", "started_at", "completed_at")}
    wait = run.wait
    return {
        **asdict(run),
        **times,
        "wait": wait and {**asdict(wait), "since": format_time(wait.since), "expires_at": format_time(wait.expires_at)},
    }


def _cut_scope(values: JsonObject) -> JsonObject:
    shown = {key: preview(value, budget=6000) for key, value in list(values.items())[:_KEYS_OF_A_SCOPE]}
    return shown if len(shown) == len(values) else {**shown, CUT: "object", "length": len(values)}


def _diff_view(difference: StateDiff) -> JsonObject:
    return {
        "added": {key: preview(value, budget=6000) for key, value in difference.added.items()},
        "changed": {
            key: [preview(value, budget=6000) for value in values] for key, values in difference.changed.items()
        },
        "removed": {key: preview(value, budget=6000) for key, value in difference.removed.items()},
    }


def _plain(item: JsonObject) -> JsonObject:
    """Return a write as JSON, without the other keys of its delta."""
    return {**item, "time": item["time"].isoformat()}


async def _event(engine: Engine, thread_id: UUID, sequence_num: int) -> Event:
    found = await engine._history.read(thread_id, after=sequence_num - 1, limit=1)
    if not found or found[0].sequence_num != sequence_num:
        raise NotFoundError(f"there is no event {sequence_num} in thread {thread_id}")
    return found[0]
