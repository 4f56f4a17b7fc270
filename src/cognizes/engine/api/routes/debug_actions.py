"""What a person does to a run from the monitor. Each is written into the thread first, by the author `monitor`, with
the name of the caller."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ag_ui.core import ResumeEntry, RunAgentInput
from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from cognizes.engine.access import Permission, Principal
from cognizes.engine.agui.snapshot import read_history
from cognizes.engine.api.agents import CurrentHost, Served
from cognizes.engine.api.authorization import Caller, CurrentEngine, Reach, ThreadId, access
from cognizes.engine.api.responses import DocumentResponse
from cognizes.engine.api.routes.runs import answerable_kinds
from cognizes.engine.api.views import Body, RunView, run_view
from cognizes.engine.engine import Engine
from cognizes.engine.errors import ConflictError
from cognizes.engine.models import Event, JsonObject, RunStatus, new_id
from cognizes.engine.sync.tool_approvals import ToolApproval

router = APIRouter(prefix="/api/debug/threads/{thread_id}", tags=["debug"])

AUTHOR = "monitor"
ACTION = "monitor_action"
_ENDED = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


class Answers(Body):
    """Open questions by their id, and whether each is approved. All that are open must be answered at once."""

    answers: dict[str, bool] = Field(min_length=1)


class ApprovalAnswer(Body):
    """Whether a tool may be called."""

    approved: bool


class RunSignal(Body):
    """What a waiting run is told."""

    correlation_key: str
    payload: Any = None


@router.post("/runs/{run_id}/cancel", response_model=RunView, summary="Cancel a run, audited")
@access(Reach.THREAD, Permission.ADMIN, is_audited=True)
async def cancel_run(
    thread_id: ThreadId, run_id: str, engine: CurrentEngine, agents: Served, caller: Caller
) -> Response:
    """A hosted agent is stopped; any other run is marked as cancelled."""
    run = await engine.runs.get(thread_id, run_id)
    if run.status in _ENDED:
        raise ConflictError(f"run {run_id} has ended already: {run.status}")
    await _note(engine, caller, thread_id, run_id, {"action": "cancel"})
    if not await _cancel_hosted(engine, agents, thread_id, run_id):
        await engine.runs.cancel(thread_id, run_id)
    return DocumentResponse(run_view(await engine.runs.get(thread_id, run_id)))


@router.post("/runs/{run_id}/signal", summary="Signal a waiting run, audited")
@access(Reach.THREAD, Permission.ADMIN, is_audited=True)
async def signal_run(
    thread_id: ThreadId, run_id: str, body: RunSignal, engine: CurrentEngine, caller: Caller
) -> Response:
    """Ends the wait for this key. `outcome` is `resumed`, `kept` for a wait to come, or `duplicate`."""
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


@router.get("/questions", summary="What people are asked for in a thread")
@access(Reach.THREAD)
async def open_questions(thread_id: ThreadId, engine: CurrentEngine) -> Response:
    """What nobody has answered yet: the interrupts of its hosted agent, and tool approvals (`"kind": "approval"`)."""
    await engine.manager.sessions.get_thread(thread_id)
    history = await read_history(engine.manager.events, thread_id)
    questions = [item.model_dump(mode="json", by_alias=False, exclude_none=True) for item in history.interrupts]
    questions += [_question(approval) for approval in await engine.approvals.list_open(thread_id)]
    return DocumentResponse({"questions": questions})


@router.post("/approvals/{approval_id:path}", summary="Approve or deny a tool, audited")
@access(Reach.THREAD, Permission.ADMIN, is_audited=True)
async def answer_approval(
    thread_id: ThreadId, approval_id: str, body: ApprovalAnswer, engine: CurrentEngine, caller: Caller
) -> Response:
    """A run that waits for this approval goes on."""
    asked = next((one for one in await engine.approvals.list_open(thread_id) if one.id == approval_id), None)
    if asked is None:
        raise ConflictError(f"the approval {approval_id[:80]!r} is not open: it was answered, or is not awaited now")
    content: JsonObject = {"action": "approve" if body.approved else "deny", "approval_id": approval_id}
    await _note(engine, caller, thread_id, asked.run_id, content)
    await engine.approvals.answer(thread_id, approval_id, approved=body.approved, reason="answered in the monitor")
    return DocumentResponse({"approval_id": approval_id, "approved": body.approved})


@router.post("/answers", status_code=202, summary="Approve or deny what an agent asked for, audited")
@access(Reach.THREAD, Permission.ADMIN, is_audited=True)
async def answer_questions(
    thread_id: ThreadId, body: Answers, engine: CurrentEngine, host: CurrentHost, caller: Caller
) -> Response:
    """Starts the run that goes on with the answers, and does not wait for its end."""
    session = await engine.manager.sessions.get_thread(thread_id)
    history = await read_history(engine.manager.events, thread_id)
    open_ids = {interrupt.id for interrupt in history.interrupts}
    if open_ids != body.answers.keys():
        raise ConflictError(f"the open questions are {sorted(open_ids) or 'none'}; answer exactly these")
    for interrupt_id, approved in body.answers.items():
        content: JsonObject = {"action": "approve" if approved else "deny", "interrupt_id": interrupt_id}
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
            ResumeEntry(interrupt_id=one, status="resolved", payload={"confirmed": approved})
            for one, approved in body.answers.items()
        ],
    )
    run = await host.run(session.app_name, session.user_id, run_input)
    return DocumentResponse({"run_id": run.run_id}, status_code=202)


def _question(approval: ToolApproval) -> JsonObject:
    """An approval in the form of an interrupt."""
    return {
        "id": approval.id,
        "kind": "approval",
        "reason": "tool_approval",
        "message": approval.message,
        "metadata": {"toolName": approval.tool_name, "arguments": approval.tool_input},
    }


async def _cancel_hosted(engine: Engine, agents: Any, thread_id: UUID, run_id: str) -> bool:
    host = await agents.find_host()
    session = await engine.manager.sessions.get_thread(thread_id)
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
    await engine.manager.append_to_thread(thread_id, event)
