"""Upkeep of memory: duplicates, history of facts, sources of memories, consolidation of sessions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from cognizes.engine.access import Permission
from cognizes.engine.api.authorization import CurrentEngine, Limit, Reach, access
from cognizes.engine.api.responses import NOT_FOUND, DocumentResponse
from cognizes.engine.api.routes.memory import Kind, MemoryView, Owned, Scope
from cognizes.engine.errors import NotFoundError

router = APIRouter(prefix="/memory", tags=["memory"])


class DuplicatesToMerge(Owned):
    """Which memories to compare. Without an agent those of all agents."""

    kinds: tuple[Kind, ...] = ("note", "episodic")
    similarity: float = Field(default=0.9, gt=0, le=1)


class Merged(BaseModel):
    """The number of memories that recall no longer returns."""

    merged: int


class SessionToConsolidate(Owned):
    """The session whose messages become episodes and facts."""

    session_id: str = Field(min_length=1)


class EnqueuedRun(BaseModel):
    """A run that a worker executes."""

    run_id: str
    thread_id: str


class FactVersionView(BaseModel):
    """A value of a key; `valid_until` is null for the current one."""

    value: Any
    text: str
    valid_from: datetime
    valid_until: datetime | None


class FactHistory(BaseModel):
    """The values of a key, newest first."""

    versions: list[FactVersionView]


class SourceView(BaseModel):
    """An event that a memory came from; `sequence_num` is null if it is not stored any more."""

    session_id: str
    event_id: str
    thread_id: str | None
    sequence_num: int | None


class Sources(BaseModel):
    """The events that a memory and its duplicates came from."""

    sources: list[SourceView]


class MemoriesOfEvent(BaseModel):
    """The memories that came from an event."""

    memories: list[MemoryView]


@router.post("/duplicates", response_model=Merged, summary="Merge equal and near memories")
@access(Reach.APP, Permission.WRITE, is_audited=True)
async def merge_duplicates(body: DuplicatesToMerge, engine: CurrentEngine) -> Response:
    """The oldest of them stays; the others keep their sources."""
    merged = await engine.memory.upkeep.merge_duplicates(
        body.app_name, body.user_id, agent=body.agent_id or None, kinds=body.kinds, similarity=body.similarity
    )
    return DocumentResponse({"merged": merged})


@router.post("/consolidations", status_code=202, response_model=EnqueuedRun, responses=NOT_FOUND, summary="Consolidate")
@access(Reach.APP, Permission.WRITE, is_for_agents=True)
async def consolidate(body: SessionToConsolidate, engine: CurrentEngine) -> Response:
    """Enqueue a run that turns the new messages of a session into episodes and facts."""
    session = await engine.sessions.get(body.app_name, body.user_id, body.session_id)
    if session is None:
        raise NotFoundError(f"there is no session {body.session_id[:200]!r}")
    run = await engine.consolidations.enqueue(session, agent_id=body.agent_id or None)
    return DocumentResponse({"run_id": run.id, "thread_id": run.thread_id}, status_code=202)


@router.get("/long-term/history", response_model=FactHistory, summary="List the values of a long-term fact")
@access(Reach.APP)
async def fact_history(
    scope: Scope, engine: CurrentEngine, key: str, namespace: str = "", limit: Limit = 100
) -> Response:
    """Newest first, the current value included."""
    versions = await engine.memory.long_term.history(scope, namespace, key, limit=limit)
    return DocumentResponse({"versions": [version.to_json() for version in versions]})


@router.get("/of-event", response_model=MemoriesOfEvent, summary="List the memories that came from an event")
@access(Reach.APP)
async def memories_of_event(
    engine: CurrentEngine, app_name: str, user_id: str, session_id: str, event_id: str
) -> Response:
    memories = await engine.memory.upkeep.memories_of_event(app_name, user_id, session_id=session_id, event_id=event_id)
    return DocumentResponse({"memories": [memory.to_json() for memory in memories]})


@router.get("/{memory_id}/sources", response_model=Sources, summary="List the events that a memory came from")
@access(Reach.APP)
async def memory_sources(memory_id: str, engine: CurrentEngine, app_name: str, user_id: str) -> Response:
    sources = await engine.memory.upkeep.sources(app_name, user_id, memory_id)
    return DocumentResponse({"sources": [source.to_json() for source in sources]})
