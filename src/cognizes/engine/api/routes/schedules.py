"""Schedules: create, list, pause, resume, delete; their next times and their firings."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, model_validator
from starlette.responses import Response

from cognizes.engine.access import Permission
from cognizes.engine.api.authorization import CurrentEngine, Limit, Reach, access
from cognizes.engine.api.responses import CONFLICT, NOT_FOUND, DocumentResponse
from cognizes.engine.api.views import Body
from cognizes.engine.errors import NotFoundError
from cognizes.engine.models import JsonObject
from cognizes.engine.runs.queues import MAX_PRIORITY
from cognizes.engine.runs.schedules import MAX_CATCH_UP, MAX_NEXT_TIMES, Firing

router = APIRouter(prefix="/api/schedules", tags=["schedules"])
AppName = Annotated[str | None, Query(description="The app of the schedule. A key of some apps must name it.")]


class NewSchedule(Body):
    """A schedule: either `cron` in `timezone`, or `every_seconds`. Its runs belong to the thread `thread_id`, or each
    to a new session of the user."""

    app_name: str
    user_id: str
    handler: str
    cron: str | None = Field(default=None, examples=["0 8 * * MON-FRI"])
    every_seconds: float | None = Field(default=None, ge=1, le=3660 * 86400)
    timezone: str = "UTC"
    thread_id: UUID | None = None
    name: str | None = None
    input: Any = None
    catch_up: Literal["skip", "one", "all"] = "one"
    catch_up_limit: int = Field(default=100, ge=1, le=MAX_CATCH_UP)
    max_attempts: int | None = Field(default=None, ge=1, le=1_000_000)
    queue: str | None = None
    priority: int = Field(default=0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)

    @model_validator(mode="after")
    def _one_of_two(self) -> NewSchedule:
        if (self.cron is None) == (self.every_seconds is None):
            raise ValueError("give either cron or every_seconds")
        return self


class ScheduleView(BaseModel):
    id: str
    app_name: str
    user_id: str
    thread_id: str | None
    name: str
    handler: str
    input: Any
    max_attempts: int
    queue: str | None
    priority: int
    cron: str | None
    every_seconds: float | None
    timezone: str
    catch_up: str
    catch_up_limit: int
    paused_at: datetime | None
    created_at: datetime
    next_times: list[datetime] = Field(description="The next due times; none while the schedule is paused.")


class SchedulePage(BaseModel):
    schedules: list[ScheduleView]
    next_cursor: str | None


class FiringView(BaseModel):
    due_at: datetime
    fired_at: datetime
    thread_id: str
    run_id: str
    status: str


class FiringPage(BaseModel):
    """The newest firings; a firing is stored as long as its run."""

    firings: list[FiringView]


@router.post(
    "", status_code=201, response_model=ScheduleView, responses=CONFLICT | NOT_FOUND, summary="Create a schedule"
)
@access(Reach.APP, Permission.WRITE, is_for_agents=True)
async def create_schedule(body: NewSchedule, engine: CurrentEngine) -> Response:
    session = None
    if body.thread_id is not None:
        session = await engine.sessions.store.get_thread(body.thread_id)
        if (session.app_name, session.user_id) != (body.app_name, body.user_id):
            raise NotFoundError(
                f"the user {body.user_id!r} of the app {body.app_name!r} has no thread {body.thread_id}"
            )
    schedule = await engine.schedules.create(
        body.cron if body.cron is not None else timedelta(seconds=body.every_seconds or 0),
        body.handler,
        session=session,
        app_name=body.app_name,
        user_id=body.user_id,
        name=body.name,
        input=body.input,
        timezone=body.timezone,
        catch_up=body.catch_up,
        catch_up_limit=body.catch_up_limit,
        max_attempts=body.max_attempts,
        queue=body.queue,
        priority=body.priority,
    )
    return DocumentResponse(schedule.to_json(), status_code=201)


@router.get("", response_model=SchedulePage, summary="List schedules")
@access(Reach.APP, is_for_agents=True)
async def list_schedules(
    engine: CurrentEngine,
    app_name: AppName = None,
    user_id: str | None = None,
    limit: Limit = 100,
    cursor: str | None = None,
) -> Response:
    page = await engine.schedules.list(app_name=app_name, user_id=user_id, limit=limit, cursor=cursor)
    return DocumentResponse({"schedules": [item.to_json() for item in page.items], "next_cursor": page.next_cursor})


@router.get("/{schedule_id}", response_model=ScheduleView, responses=NOT_FOUND, summary="Read a schedule")
@access(Reach.APP, is_for_agents=True)
async def get_schedule(
    schedule_id: str,
    engine: CurrentEngine,
    app_name: AppName = None,
    count: Annotated[int, Query(ge=1, le=MAX_NEXT_TIMES, description="The number of next times.")] = 5,
) -> Response:
    return DocumentResponse((await engine.schedules.get(schedule_id, app_name=app_name)).to_json(count))


@router.get("/{schedule_id}/firings", response_model=FiringPage, responses=NOT_FOUND, summary="List firings")
@access(Reach.APP, is_for_agents=True)
async def list_firings(
    schedule_id: str, engine: CurrentEngine, app_name: AppName = None, limit: Limit = 100
) -> Response:
    found = await engine.schedules.firings(schedule_id, app_name=app_name, limit=limit)
    return DocumentResponse({"firings": [_firing_view(firing) for firing in found]})


@router.post("/{schedule_id}/pause", response_model=ScheduleView, responses=NOT_FOUND, summary="Pause a schedule")
@access(Reach.APP, Permission.WRITE, is_for_agents=True)
async def pause_schedule(schedule_id: str, engine: CurrentEngine, app_name: AppName = None) -> Response:
    return DocumentResponse((await engine.schedules.pause(schedule_id, app_name=app_name)).to_json())


@router.post("/{schedule_id}/resume", response_model=ScheduleView, responses=NOT_FOUND, summary="Resume a schedule")
@access(Reach.APP, Permission.WRITE, is_for_agents=True)
async def resume_schedule(schedule_id: str, engine: CurrentEngine, app_name: AppName = None) -> Response:
    """It continues at the next time after now."""
    return DocumentResponse((await engine.schedules.resume(schedule_id, app_name=app_name)).to_json())


@router.delete("/{schedule_id}", status_code=204, responses=NOT_FOUND, summary="Delete a schedule")
@access(Reach.APP, Permission.WRITE, is_for_agents=True)
async def delete_schedule(schedule_id: str, engine: CurrentEngine, app_name: AppName = None) -> Response:
    """Runs that it created stay."""
    await engine.schedules.delete(schedule_id, app_name=app_name)
    return Response(status_code=204)


def _firing_view(firing: Firing) -> JsonObject:
    return {
        "due_at": firing.due_at.isoformat(),
        "fired_at": firing.fired_at.isoformat(),
        "thread_id": firing.thread_id,
        "run_id": firing.run_id,
        "status": firing.status,
    }
