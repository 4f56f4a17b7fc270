"""Runs: start, lease, progress, end; queue, waits and signals.

Below `/api/runs` the path names a run by its id alone, which may be any text; below a session by its thread and id. The
OpenAPI document has one operation for each; `?thread_id=` names the thread when several have a run of the id. The other
path is an alias.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel
from starlette.responses import Response

from cognizes.engine.access import Permission, Principal
from cognizes.engine.api.authorization import Caller, CurrentEngine, Limit, Reach, ThreadId, access
from cognizes.engine.api.responses import DocumentResponse
from cognizes.engine.api.views import (
    Failure,
    FoundRuns,
    NewLease,
    NewRun,
    NewSignal,
    NewWait,
    RunDetail,
    RunPage,
    RunTotals,
    RunView,
    Signalled,
    Thought,
    ToolCall,
    ToolResult,
    resumption_view,
    run_view,
    step_view,
)
from cognizes.engine.engine import Engine
from cognizes.engine.errors import ConflictError, LeaseLostError, NotFoundError
from cognizes.engine.memory.long_term import LongTermKey
from cognizes.engine.models import Run
from cognizes.engine.pulse.sessions import RunFence, fenced_by
from cognizes.engine.runs import WaitKind

router = APIRouter(tags=["runs"])
_ENDED_BY_USERS = (WaitKind.HUMAN, WaitKind.MESSAGE)
_OF_SESSION = "/api/sessions/{thread_id}/runs"
_RUN = _OF_SESSION + "/{run_id:path}"
_BY_ID = "/api/runs/{run_id:path}"


async def _found(
    run_id: str,
    engine: CurrentEngine,
    caller: Caller,
    thread_id: Annotated[
        UUID | None, Query(description="The thread of the run, when several threads have a run of this id.")
    ] = None,
) -> Run:
    """Return the run of an id among those that the caller may see; runs of other callers are ignored."""
    found = await engine.runs.find_all(run_id, app_names=caller.app_names, user_id=caller.user_id)
    if thread_id is not None:
        found = [run for run in found if run.thread_id == str(thread_id)]
    if not found:
        raise NotFoundError(f"there is no run {run_id}")
    if len(found) > 1:
        raise ConflictError(f"several threads have a run {run_id}; name one with ?thread_id=")
    return found[0]


FoundRun = Annotated[Run, Depends(_found)]


async def _of_thread(thread_id: ThreadId, run_id: str, engine: CurrentEngine) -> Run:
    return await engine.runs.get(thread_id, run_id)


RunOfThread = Annotated[Run, Depends(_of_thread)]
Attempt = Annotated[
    int | None,
    Query(ge=1, description="The attempt of the run when the caller started it; 409 when another attempt holds it."),
]


@contextmanager
def _fenced(thread_id: UUID, run_id: str, attempt: int | None) -> Iterator[None]:
    """Fence the writes of a client that names its attempt."""
    with nullcontext() if attempt is None else fenced_by(RunFence(thread_id, run_id, attempt)):
        yield


def _held_by(run: Run, attempt: int | None) -> Run:
    return run if attempt is None else replace(run, attempt=attempt)


@router.post(_OF_SESSION, status_code=201, response_model=RunView, summary="Create a run, or enqueue it for workers")
@access(Reach.THREAD, Permission.WRITE, is_for_agents=True)
async def create_run(thread_id: ThreadId, engine: CurrentEngine, body: NewRun | None = None) -> Response:
    """Without a `handler` the caller executes the run and keeps its lease; with one, a worker does."""
    new = body or NewRun()
    session = await engine.sessions.store.get_thread(thread_id)
    if new.handler is None:
        lease = timedelta(seconds=new.lease_seconds)
        run = await engine.runs.create(session, run_id=new.run_id, running=new.start, lease=lease)
    else:
        run = await engine.runs.enqueue(
            session,
            new.handler,
            input=new.input,
            run_id=new.run_id,
            max_attempts=new.max_attempts,
            available_at=new.available_at,
            queue=new.queue,
            priority=new.priority,
        )
    return DocumentResponse(run_view(run), status_code=201)


@router.get(_OF_SESSION, response_model=RunPage, summary="List the runs of a session, newest first")
@access(Reach.THREAD)
async def list_runs(thread_id: ThreadId, engine: CurrentEngine, limit: Limit = 100) -> Response:
    await engine.sessions.store.get_thread(thread_id)
    return DocumentResponse({"runs": [run_view(run) for run in await engine.runs.list(thread_id, limit=limit)]})


@router.get(_RUN, response_model=RunDetail, include_in_schema=False)
@access(Reach.THREAD)
async def get_run(run: RunOfThread, engine: CurrentEngine) -> Response:
    return await _detail(engine, run)


@router.post(_RUN + "/start", response_model=RunDetail, summary="From pending to running")
@access(Reach.THREAD, Permission.WRITE, is_for_agents=True, has_large_body=True)
async def start_run(thread_id: ThreadId, run_id: str, engine: CurrentEngine, body: NewLease | None = None) -> Response:
    """The caller executes the run as its next `attempt`, with a lease. When a wait of the run is over, its memory
    snapshot is applied, once, and `resumption` says what to continue with."""
    lease = timedelta(seconds=(body or NewLease()).lease_seconds)
    return await _detail(engine, await engine.runs.begin(thread_id, run_id, lease=lease))


@router.post(_RUN + "/heartbeat", response_model=RunView, summary="Extend the lease of a running run")
@access(Reach.THREAD, Permission.WRITE, is_for_agents=True, has_large_body=True)
async def extend_lease(
    run: RunOfThread, engine: CurrentEngine, body: NewLease | None = None, attempt: Attempt = None
) -> Response:
    """By `lease_seconds`, else by the duration of the lease. Thinking steps, tool calls and their results extend the
    lease as well. A run whose lease expires is released: a worker claims it, or it fails if it has no handler."""
    lease = timedelta(seconds=body.lease_seconds) if body is not None else None
    if not await engine.runs.heartbeat([_held_by(run, attempt)], lease=lease):
        raise LeaseLostError(
            f"run {run.id} is {run.status}, at attempt {run.attempt}; its lease cannot be extended, stop executing it"
        )
    return DocumentResponse(run_view(await engine.runs.get(run.thread_id, run.id)))


@router.post(_RUN + "/finish", response_model=RunView, summary="From running to completed")
@access(Reach.THREAD, Permission.WRITE, is_for_agents=True, has_large_body=True)
async def finish_run(thread_id: ThreadId, run_id: str, engine: CurrentEngine, attempt: Attempt = None) -> Response:
    with _fenced(thread_id, run_id, attempt):
        return DocumentResponse(run_view(await engine.runs.finish(thread_id, run_id)))


@router.post(_RUN + "/fail", response_model=RunView, summary="To failed, with the reason")
@access(Reach.THREAD, Permission.WRITE, is_for_agents=True, has_large_body=True)
async def fail_run(
    thread_id: ThreadId, run_id: str, body: Failure, engine: CurrentEngine, attempt: Attempt = None
) -> Response:
    with _fenced(thread_id, run_id, attempt):
        return DocumentResponse(run_view(await engine.runs.fail(thread_id, run_id, error=body.error)))


@router.post(_RUN + "/cancel", response_model=RunView, include_in_schema=False)
@access(Reach.THREAD, Permission.WRITE, has_large_body=True)
async def cancel_run(thread_id: ThreadId, run_id: str, engine: CurrentEngine) -> Response:
    return DocumentResponse(run_view(await engine.runs.cancel(thread_id, run_id)))


@router.post(_RUN + "/retry", response_model=RunView, include_in_schema=False)
@access(Reach.THREAD, Permission.WRITE, has_large_body=True)
async def retry_run(thread_id: ThreadId, run_id: str, engine: CurrentEngine) -> Response:
    return DocumentResponse(run_view(await engine.runs.retry(thread_id, run_id)))


@router.post(_RUN + "/wait", response_model=RunView, include_in_schema=False)
@access(Reach.THREAD, Permission.WRITE, is_for_agents=True, has_large_body=True)
async def wait_run(run: RunOfThread, body: NewWait, engine: CurrentEngine, attempt: Attempt = None) -> Response:
    return await _wait(engine, _held_by(run, attempt), body)


@router.post(_RUN + "/signal", response_model=Signalled, include_in_schema=False)
@access(Reach.THREAD, Permission.WRITE, has_large_body=True)
async def signal_run(run: RunOfThread, body: NewSignal, engine: CurrentEngine, caller: Caller) -> Response:
    return await _signal(engine, caller, run, body)


@router.post(_RUN + "/thinking-steps", status_code=201, response_model=RunView, summary="Add a thinking step")
@access(Reach.THREAD, Permission.WRITE, is_for_agents=True, has_large_body=True)
async def add_thought(
    thread_id: ThreadId, run_id: str, body: Thought, engine: CurrentEngine, attempt: Attempt = None
) -> Response:
    with _fenced(thread_id, run_id, attempt):
        await engine.runs.think(thread_id, run_id, body.thought)
    return DocumentResponse(run_view(await engine.runs.get(thread_id, run_id)), status_code=201)


class ToolCallView(BaseModel):
    """The id of a tool call, for its result."""

    id: str


@router.post(_RUN + "/tool-calls", status_code=201, response_model=ToolCallView, summary="Add a tool call")
@access(Reach.THREAD, Permission.WRITE, is_for_agents=True, has_large_body=True)
async def add_tool_call(
    thread_id: ThreadId, run_id: str, body: ToolCall, engine: CurrentEngine, attempt: Attempt = None
) -> Response:
    with _fenced(thread_id, run_id, attempt):
        call_id = await engine.runs.call_tool(thread_id, run_id, body.tool_name, body.input)
    return DocumentResponse({"id": call_id}, status_code=201)


@router.post(_RUN + "/tool-calls/{call_id}/result", response_model=RunView, summary="Add a tool's result")
@access(Reach.THREAD, Permission.WRITE, is_for_agents=True, has_large_body=True)
async def add_tool_result(
    thread_id: ThreadId, run_id: str, call_id: str, body: ToolResult, engine: CurrentEngine, attempt: Attempt = None
) -> Response:
    with _fenced(thread_id, run_id, attempt):
        await engine.runs.finish_tool(thread_id, run_id, call_id, body.output, is_error=body.is_error)
    return DocumentResponse(run_view(await engine.runs.get(thread_id, run_id)))


@router.get("/api/runs", response_model=FoundRuns, summary="Find runs of all sessions, newest first")
@access(Reach.APP)
async def find_runs(
    engine: CurrentEngine,
    app_name: str | None = None,
    user_id: str | None = None,
    status: Annotated[
        list[Literal["pending", "running", "waiting", "completed", "failed", "cancelled"]] | None, Query()
    ] = None,
    handler: str | None = None,
    with_usage: Annotated[bool, Query(description="Add the tokens and the cost of each run.")] = False,
    limit: Limit = 100,
    cursor: str | None = None,
) -> Response:
    """`?status=waiting` lists the waiting runs with their waits. `next_cursor` is null on the last page."""
    page = await engine.runs.search(
        status=status, app_name=app_name, user_id=user_id, handler=handler, limit=limit, cursor=cursor
    )
    views = [run_view(run) for run in page.items]
    if with_usage:
        for view, usage in zip(views, await engine.usage.of_runs(page.items), strict=True):
            view["usage"] = {name: getattr(usage, name) for name in RunTotals.model_fields}
    return DocumentResponse({"runs": views, "next_cursor": page.next_cursor})


@router.post(_BY_ID + "/signal", response_model=Signalled, summary="Signal a run")
@access(Reach.RUN, Permission.WRITE, has_large_body=True)
async def signal_found_run(run: FoundRun, body: NewSignal, engine: CurrentEngine, caller: Caller) -> Response:
    """Ends the wait for this key, now or as soon as the run waits for it; the same key again counts once. 409, and
    nothing changes, when the run waits for another key or has ended. An end user answers what people are asked."""
    return await _signal(engine, caller, run, body)


@router.post(_BY_ID + "/cancel", response_model=RunView, summary="From pending, running or waiting to cancelled")
@access(Reach.RUN, Permission.WRITE, has_large_body=True)
async def cancel_found_run(run: FoundRun, engine: CurrentEngine) -> Response:
    """A worker that executes the run stops at once, and its later writes are refused."""
    return DocumentResponse(run_view(await engine.runs.cancel(run.thread_id, run.id)))


@router.post(_BY_ID + "/retry", response_model=RunView, summary="From failed to pending")
@access(Reach.RUN, Permission.WRITE, has_large_body=True)
async def retry_found_run(run: FoundRun, engine: CurrentEngine) -> Response:
    """Finished steps stay finished."""
    return DocumentResponse(run_view(await engine.runs.retry(run.thread_id, run.id)))


@router.post(_BY_ID + "/wait", response_model=RunView, summary="From running to waiting")
@access(Reach.RUN, Permission.WRITE, is_for_agents=True, has_large_body=True)
async def wait_found_run(run: FoundRun, body: NewWait, engine: CurrentEngine, attempt: Attempt = None) -> Response:
    return await _wait(engine, _held_by(run, attempt), body)


# This route is the last one: its path matches every run id, also one that ends like another route.
@router.get(_BY_ID, response_model=RunDetail, summary="Read a run with its steps")
@access(Reach.RUN)
async def get_found_run(run: FoundRun, engine: CurrentEngine) -> Response:
    return await _detail(engine, run)


async def _wait(engine: Engine, run: Run, body: NewWait) -> Response:
    keys = [LongTermKey(key.namespace, key.key) for key in body.long_term_keys]
    wait = body.model_dump(exclude={"long_term_keys"})
    return DocumentResponse(run_view(await engine.runs.wait(run, **wait, long_term_keys=keys)))


async def _signal(engine: Engine, caller: Principal, run: Run, body: NewSignal) -> Response:
    outcome = await engine.runs.signal(
        run.id,
        correlation_key=body.correlation_key,
        payload=body.payload,
        thread_id=run.thread_id,
        may_answer=answerable_kinds(caller),
    )
    return DocumentResponse({"outcome": outcome, "run": run_view(await engine.runs.get(run.thread_id, run.id))})


def answerable_kinds(caller: Principal) -> tuple[WaitKind, ...] | None:
    """Return the kinds of wait that a caller may answer; None: all. An end user must not answer for a webhook."""
    return _ENDED_BY_USERS if caller.user_id is not None else None


async def _detail(engine: Engine, run: Run) -> Response:
    steps = [step_view(step) for step in await engine.runs.steps(run.thread_id, run.id)]
    resumption = await engine.runs.resumption(run)
    return DocumentResponse(
        {
            **run_view(run),
            "steps": steps,
            "resumption_context": run.resumption_context,
            "resumption": resumption_view(resumption) if resumption is not None else None,
        }
    )
