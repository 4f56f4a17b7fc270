"""Runs of a session: start, progress, end."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from cognizes.engine.api.dependencies import CurrentEngine, Limit, ThreadId
from cognizes.engine.api.problems import PROBLEMS
from cognizes.engine.api.responses import DocumentResponse
from cognizes.engine.api.views import Failure, NewRun, RunPage, RunView, Thought, ToolCall, ToolResult, run_view

router = APIRouter(prefix="/api/sessions/{thread_id}/runs", tags=["runs"], responses=PROBLEMS)


@router.post("", status_code=201, response_model=RunView, summary="Create a run")
async def create_run(thread_id: ThreadId, engine: CurrentEngine, body: NewRun | None = None) -> Response:
    new = body or NewRun()
    session = await engine.manager.sessions.get_thread(thread_id)
    run = await engine.runs.create(session, run_id=new.run_id, running=new.start)
    return DocumentResponse(run_view(run), status_code=201)


@router.get("", response_model=RunPage, summary="List runs, newest first")
async def list_runs(thread_id: ThreadId, engine: CurrentEngine, limit: Limit = 100) -> Response:
    await engine.manager.sessions.get_thread(thread_id)
    return DocumentResponse({"runs": [run_view(run) for run in await engine.runs.list(thread_id, limit=limit)]})


@router.get("/{run_id}", response_model=RunView, summary="Read a run")
async def get_run(thread_id: ThreadId, run_id: str, engine: CurrentEngine) -> Response:
    return DocumentResponse(run_view(await engine.runs.get(thread_id, run_id)))


@router.post("/{run_id}/start", response_model=RunView, summary="From pending to running")
async def start_run(thread_id: ThreadId, run_id: str, engine: CurrentEngine) -> Response:
    return DocumentResponse(run_view(await engine.runs.begin(thread_id, run_id)))


@router.post("/{run_id}/finish", response_model=RunView, summary="From running to completed")
async def finish_run(thread_id: ThreadId, run_id: str, engine: CurrentEngine) -> Response:
    return DocumentResponse(run_view(await engine.runs.finish(thread_id, run_id)))


@router.post("/{run_id}/fail", response_model=RunView, summary="To failed, with the reason")
async def fail_run(thread_id: ThreadId, run_id: str, body: Failure, engine: CurrentEngine) -> Response:
    return DocumentResponse(run_view(await engine.runs.fail(thread_id, run_id, error=body.error)))


@router.post("/{run_id}/cancel", response_model=RunView, summary="To cancelled")
async def cancel_run(thread_id: ThreadId, run_id: str, engine: CurrentEngine) -> Response:
    return DocumentResponse(run_view(await engine.runs.cancel(thread_id, run_id)))


@router.post("/{run_id}/thinking-steps", status_code=201, response_model=RunView, summary="Add a thinking step")
async def add_thought(thread_id: ThreadId, run_id: str, body: Thought, engine: CurrentEngine) -> Response:
    await engine.runs.think(thread_id, run_id, body.thought)
    return DocumentResponse(run_view(await engine.runs.get(thread_id, run_id)), status_code=201)


@router.post("/{run_id}/tool-calls", status_code=201, summary="Add a tool call")
async def add_tool_call(thread_id: ThreadId, run_id: str, body: ToolCall, engine: CurrentEngine) -> Response:
    call_id = await engine.runs.call_tool(thread_id, run_id, body.tool_name, body.input)
    return DocumentResponse({"id": call_id}, status_code=201)


@router.post("/{run_id}/tool-calls/{call_id}/result", response_model=RunView, summary="Add a tool's result")
async def add_tool_result(
    thread_id: ThreadId, run_id: str, call_id: str, body: ToolResult, engine: CurrentEngine
) -> Response:
    await engine.runs.finish_tool(thread_id, run_id, call_id, body.output, is_error=body.is_error)
    return DocumentResponse(run_view(await engine.runs.get(thread_id, run_id)))
