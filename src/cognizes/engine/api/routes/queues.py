"""Queues: the limits of runs, for administrators of all apps."""

from __future__ import annotations

from datetime import timedelta

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from cognizes.engine.access import Permission
from cognizes.engine.api.authorization import CurrentEngine, Reach, access
from cognizes.engine.api.responses import NOT_FOUND, DocumentResponse
from cognizes.engine.api.views import Body

router = APIRouter(prefix="/api/queues", tags=["runs"])


class Limits(Body):
    """`concurrency` limits the running runs, `rate` the claims per `per_seconds`; at least one is given."""

    concurrency: int | None = Field(default=None, ge=0, le=1_000_000)
    rate: int | None = Field(default=None, ge=1, le=1_000_000)
    per_seconds: float = Field(default=1, gt=0, le=366 * 86400)


class QueueView(BaseModel):
    name: str
    concurrency: int | None
    rate: int | None
    per_seconds: float
    running: int
    pending: int


class QueueList(BaseModel):
    queues: list[QueueView]


@router.get("", response_model=QueueList, summary="List the queues that have limits")
@access(Reach.EVERYTHING)
async def list_queues(engine: CurrentEngine) -> Response:
    return DocumentResponse({"queues": [queue.to_json() for queue in await engine.queues.list()]})


@router.put("/{name:path}", response_model=QueueView, summary="Set the limits of a queue")
@access(Reach.EVERYTHING, Permission.ADMIN, is_audited=True)
async def set_queue(name: str, body: Limits, engine: CurrentEngine) -> Response:
    """A run without a queue is in the queue of its handler's name. A concurrency of 0 stops a queue."""
    per = timedelta(seconds=body.per_seconds)
    queue = await engine.queues.set(name, concurrency=body.concurrency, rate=body.rate, per=per)
    return DocumentResponse(queue.to_json())


@router.delete("/{name:path}", status_code=204, responses=NOT_FOUND, summary="Remove the limits of a queue")
@access(Reach.EVERYTHING, Permission.ADMIN, is_audited=True)
async def delete_queue(name: str, engine: CurrentEngine) -> Response:
    """Its runs stay."""
    await engine.queues.delete(name)
    return Response(status_code=204)
