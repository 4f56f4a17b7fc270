"""Branches of a context."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from cognizes.engine.access import Permission
from cognizes.engine.api.authorization import ContextId, CurrentEngine, Reach, access
from cognizes.engine.api.context_views import ActiveBranch, NewBranch, branch_view
from cognizes.engine.api.responses import PROBLEMS, DocumentResponse

router = APIRouter(prefix="/contexts/{context_id}/branches", tags=["contexts"], responses=PROBLEMS)


@router.get("", summary="List branches")
@access(Reach.THREAD)
async def list_branches(context_id: ContextId, engine: CurrentEngine) -> Response:
    branches = await engine.branches.list(context_id)
    return DocumentResponse({"branches": [branch_view(branch) for branch in branches]})


@router.post("", status_code=201, summary="Create a branch")
@access(Reach.THREAD, Permission.WRITE)
async def create_branch(context_id: ContextId, body: NewBranch, engine: CurrentEngine) -> Response:
    """It forks right after an event, or now; nothing is copied, and it is not switched to."""
    branch = await engine.branches.create(context_id, body.name, at_sequence=body.at_sequence)
    return DocumentResponse(branch_view(branch), status_code=201)


@router.put("/active", summary="Switch to a branch")
@access(Reach.THREAD, Permission.WRITE)
async def switch_branch(context_id: ContextId, body: ActiveBranch, engine: CurrentEngine) -> Response:
    """What is appended from now on belongs to it. The session's state is again what it was at its tip."""
    return DocumentResponse(branch_view(await engine.branches.switch(context_id, body.name)))


@router.get("/{name:path}/state", summary="The state at a branch's tip")
@access(Reach.THREAD)
async def read_branch_state(context_id: ContextId, name: str, engine: CurrentEngine) -> Response:
    past = await engine.branches.state(context_id, name)
    return DocumentResponse({"state": past.state, "version": past.version, "sequence_num": past.sequence_num})


@router.delete("/{name:path}", status_code=204, summary="Delete a branch")
@access(Reach.THREAD, Permission.WRITE, is_audited=True)
async def delete_branch(context_id: ContextId, name: str, engine: CurrentEngine) -> Response:
    """Its events stay in the log and are shown no more. Not `main`, the active one, or one that others fork from."""
    await engine.branches.delete(context_id, name)
    return Response(status_code=204)
