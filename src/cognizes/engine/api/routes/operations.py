"""Operations: schedules, queues, webhooks, and the export and erasure of the data of a user."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, model_validator
from starlette.responses import Response, StreamingResponse

from cognizes.engine.access import Permission
from cognizes.engine.api.authorization import CurrentEngine, Limit, Reach, access
from cognizes.engine.api.responses import CONFLICT, NOT_FOUND, DocumentResponse
from cognizes.engine.api.views import Body
from cognizes.engine.errors import NotFoundError
from cognizes.engine.models import JsonObject
from cognizes.engine.runs.queues import MAX_PRIORITY
from cognizes.engine.runs.schedules import MAX_CATCH_UP, MAX_NEXT_TIMES, Firing

schedules = APIRouter(prefix="/api/schedules", tags=["schedules"])
AppName = Annotated[str | None, Query(description="The app that it belongs to. A key of some apps must name it.")]


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


@schedules.post(
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


@schedules.get("", response_model=SchedulePage, summary="List schedules")
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


@schedules.get("/{schedule_id}", response_model=ScheduleView, responses=NOT_FOUND, summary="Read a schedule")
@access(Reach.APP, is_for_agents=True)
async def get_schedule(
    schedule_id: str,
    engine: CurrentEngine,
    app_name: AppName = None,
    count: Annotated[int, Query(ge=1, le=MAX_NEXT_TIMES, description="The number of next times.")] = 5,
) -> Response:
    return DocumentResponse((await engine.schedules.get(schedule_id, app_name=app_name)).to_json(count))


@schedules.get("/{schedule_id}/firings", response_model=FiringPage, responses=NOT_FOUND, summary="List firings")
@access(Reach.APP, is_for_agents=True)
async def list_firings(
    schedule_id: str, engine: CurrentEngine, app_name: AppName = None, limit: Limit = 100
) -> Response:
    found = await engine.schedules.firings(schedule_id, app_name=app_name, limit=limit)
    return DocumentResponse({"firings": [_firing_view(firing) for firing in found]})


@schedules.post("/{schedule_id}/pause", response_model=ScheduleView, responses=NOT_FOUND, summary="Pause a schedule")
@access(Reach.APP, Permission.WRITE, is_for_agents=True)
async def pause_schedule(schedule_id: str, engine: CurrentEngine, app_name: AppName = None) -> Response:
    return DocumentResponse((await engine.schedules.pause(schedule_id, app_name=app_name)).to_json())


@schedules.post("/{schedule_id}/resume", response_model=ScheduleView, responses=NOT_FOUND, summary="Resume a schedule")
@access(Reach.APP, Permission.WRITE, is_for_agents=True)
async def resume_schedule(schedule_id: str, engine: CurrentEngine, app_name: AppName = None) -> Response:
    """It continues at the next time after now."""
    return DocumentResponse((await engine.schedules.resume(schedule_id, app_name=app_name)).to_json())


@schedules.delete("/{schedule_id}", status_code=204, responses=NOT_FOUND, summary="Delete a schedule")
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


queues = APIRouter(prefix="/api/queues", tags=["runs"])


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


@queues.get("", response_model=QueueList, summary="List the queues that have limits")
@access(Reach.EVERYTHING)
async def list_queues(engine: CurrentEngine) -> Response:
    return DocumentResponse({"queues": [queue.to_json() for queue in await engine.queues.list()]})


@queues.put("/{name:path}", response_model=QueueView, summary="Set the limits of a queue")
@access(Reach.EVERYTHING, Permission.ADMIN, is_audited=True)
async def set_queue(name: str, body: Limits, engine: CurrentEngine) -> Response:
    """A run without a queue is in the queue of its handler's name. A concurrency of 0 stops a queue."""
    per = timedelta(seconds=body.per_seconds)
    queue = await engine.queues.set(name, concurrency=body.concurrency, rate=body.rate, per=per)
    return DocumentResponse(queue.to_json())


@queues.delete("/{name:path}", status_code=204, responses=NOT_FOUND, summary="Remove the limits of a queue")
@access(Reach.EVERYTHING, Permission.ADMIN, is_audited=True)
async def delete_queue(name: str, engine: CurrentEngine) -> Response:
    """Its runs stay."""
    await engine.queues.delete(name)
    return Response(status_code=204)


webhooks = APIRouter(prefix="/api/webhooks", tags=["webhooks"])
EventName = Literal["waiting", "failed", "completed"]


class NewWebhook(Body):
    """A URL with https and a public address, and the events that it is called for."""

    app_name: str
    url: str = Field(examples=["https://hooks.example.com/cognizes"])
    events: list[EventName] = Field(default=["waiting", "failed", "completed"], min_length=1, max_length=3)


class WebhookView(BaseModel):
    """`waiting` and `dead` count the deliveries that are not answered."""

    id: str
    app_name: str
    url: str
    events: list[str]
    created_at: datetime
    waiting: int
    dead: int


class CreatedWebhook(WebhookView):
    secret: str = Field(description="The key of the signatures. It is not shown again.")


class WebhookList(BaseModel):
    webhooks: list[WebhookView]


class NewSecret(BaseModel):
    secret: str = Field(description="The new key of the signatures. It is not shown again.")


class DeadLetterView(BaseModel):
    id: str
    webhook_id: str
    app_name: str
    thread_id: str
    run_id: str
    event: str
    payload: Any
    attempts: int
    last_error: str | None
    created_at: datetime
    dead_at: datetime


class DeadLetterPage(BaseModel):
    dead_letters: list[DeadLetterView]
    next_cursor: str | None


@webhooks.post("", status_code=201, response_model=CreatedWebhook, summary="Create a webhook")
@access(Reach.APP, Permission.ADMIN, is_for_agents=True, is_audited=True)
async def create_webhook(body: NewWebhook, engine: CurrentEngine) -> Response:
    """Calls are signed as Standard Webhooks describes, with the `secret` of the answer."""
    webhook, secret = await engine.webhooks.create(body.app_name, body.url, events=body.events)
    return DocumentResponse({**webhook.to_json(), "secret": secret}, status_code=201)


@webhooks.get("", response_model=WebhookList, summary="List webhooks")
@access(Reach.APP, Permission.ADMIN, is_for_agents=True)
async def list_webhooks(engine: CurrentEngine, app_name: AppName = None) -> Response:
    return DocumentResponse({"webhooks": [item.to_json() for item in await engine.webhooks.list(app_name=app_name)]})


@webhooks.get("/dead-letters", response_model=DeadLetterPage, summary="List calls that were given up, newest first")
@access(Reach.APP, Permission.ADMIN, is_for_agents=True)
async def list_dead_letters(
    engine: CurrentEngine, app_name: AppName = None, limit: Limit = 100, cursor: str | None = None
) -> Response:
    page = await engine.webhooks.dead_letters(app_name=app_name, limit=limit, cursor=cursor)
    return DocumentResponse({"dead_letters": [item.to_json() for item in page.items], "next_cursor": page.next_cursor})


@webhooks.post(
    "/dead-letters/{delivery_id}/redeliver", status_code=204, responses=NOT_FOUND, summary="Redeliver a call"
)
@access(Reach.APP, Permission.ADMIN, is_for_agents=True, is_audited=True)
async def redeliver(delivery_id: str, engine: CurrentEngine, app_name: AppName = None) -> Response:
    """It is sent again now, with all its attempts."""
    await engine.webhooks.redeliver(delivery_id, app_name=app_name)
    return Response(status_code=204)


@webhooks.post("/{webhook_id}/rotate", response_model=NewSecret, responses=NOT_FOUND, summary="Replace the secret")
@access(Reach.APP, Permission.ADMIN, is_for_agents=True, is_audited=True)
async def rotate_secret(webhook_id: str, engine: CurrentEngine, app_name: AppName = None) -> Response:
    """Later calls are signed with the new secret alone."""
    return DocumentResponse({"secret": await engine.webhooks.rotate(webhook_id, app_name=app_name)})


@webhooks.delete("/{webhook_id}", status_code=204, responses=NOT_FOUND, summary="Delete a webhook")
@access(Reach.APP, Permission.ADMIN, is_for_agents=True, is_audited=True)
async def delete_webhook(webhook_id: str, engine: CurrentEngine, app_name: AppName = None) -> Response:
    """Its secret and its deliveries are deleted, too."""
    await engine.webhooks.delete(webhook_id, app_name=app_name)
    return Response(status_code=204)


user_data = APIRouter(prefix="/api/user-data", tags=["user data"])


class Erased(BaseModel):
    """The number of deleted rows per table; of `audit_log`, the entries that now have a pseudonym."""

    rows: dict[str, int] = Field(examples=[{"threads": 2, "events": 41, "memories": 12}])


@user_data.get(
    "",
    responses={**NOT_FOUND, 200: {"content": {"application/x-ndjson": {}}, "description": "One row per line"}},
    response_class=Response,
    summary="Export all data of a user as NDJSON",
)
@access(Reach.APP, Permission.ADMIN, is_audited=True)
async def export_user_data(engine: CurrentEngine, app_name: str, user_id: str) -> Response:
    """The first line is a header, each other line a row of a table, all as one transaction sees them."""
    lines = engine.user_data.export(app_name, user_id)
    first = await anext(lines)  # raises before the response begins
    headers = {"Content-Disposition": 'attachment; filename="user-data.ndjson"'}
    return StreamingResponse(_following(first, lines), media_type="application/x-ndjson", headers=headers)


@user_data.delete("", response_model=Erased, responses=NOT_FOUND, summary="Erase all data of a user")
@access(Reach.APP, Permission.ADMIN, is_audited=True)
async def erase_user_data(engine: CurrentEngine, app_name: str, user_id: str) -> Response:
    """Deletes sessions, events, messages, state, memories, runs and streams; entries of the audit log stay, with a
    pseudonym. It cannot be undone."""
    return DocumentResponse({"rows": await engine.user_data.erase(app_name, user_id)})


async def _following(first: str, lines: AsyncGenerator[str, None]) -> AsyncIterator[str]:
    async with aclosing(lines):
        yield first
        async for line in lines:
            yield line
