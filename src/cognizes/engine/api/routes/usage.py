"""Tokens and cost of model calls: of a run, a session, a user and an app."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from cognizes.engine.access import Permission
from cognizes.engine.api.authorization import CurrentEngine, Reach, ThreadId, access
from cognizes.engine.api.responses import DocumentResponse
from cognizes.engine.api.routes.runs import FoundRun, RunOfThread
from cognizes.engine.models import TokenUsage
from cognizes.engine.usage import UsageTotals

router = APIRouter(prefix="/api", tags=["usage"])

Moment = Annotated[datetime | None, Query(description="With a time zone, for example 2026-01-31T00:00:00Z.")]
_LARGEST = 2**53 - 1


class ModelUsageView(BaseModel):
    """The calls of one model. Cached and reasoning tokens are parts of the totals; `cost` is null without a price."""

    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    total_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost: float | None


class UsageView(BaseModel):
    """The tokens by model and in total. `cost` is in the unit of COGNIZES_PRICES and lacks the unpriced models."""

    models: list[ModelUsageView]
    calls: int
    input_tokens: int
    output_tokens: int
    total_tokens: int
    cost: float | None
    unpriced_models: list[str]


class NewUsage(BaseModel):
    """The tokens of one call of a model, under an id that is unique in the session."""

    id: str = Field(min_length=1, max_length=1000, description="The id of the response; the same id counts once.")
    model: str = Field(min_length=1, max_length=1000)
    input_tokens: int = Field(default=0, ge=0, le=_LARGEST)
    output_tokens: int = Field(default=0, ge=0, le=_LARGEST)
    cached_tokens: int = Field(default=0, ge=0, le=_LARGEST, description="Part of input_tokens.")
    cache_write_tokens: int = Field(default=0, ge=0, le=_LARGEST, description="Part of input_tokens.")
    reasoning_tokens: int = Field(default=0, ge=0, le=_LARGEST, description="Part of output_tokens.")
    run_id: str | None = Field(default=None, max_length=1000)


class Recorded(BaseModel):
    """Whether the call was counted; false when its id was counted before."""

    is_new: bool


def usage_view(totals: UsageTotals) -> dict[str, object]:
    names = ("calls", "input_tokens", "output_tokens", "total_tokens", "cost", "unpriced_models")
    fields = tuple(ModelUsageView.model_fields)
    models = [{name: getattr(one, name) for name in fields} for one in totals.models]
    return {"models": models, **{name: getattr(totals, name) for name in names}}


@router.get("/sessions/{thread_id}/usage", response_model=UsageView, summary="Read the tokens of a session")
@access(Reach.THREAD)
async def usage_of_session(thread_id: ThreadId, engine: CurrentEngine) -> Response:
    await engine.sessions.store.get_thread(thread_id)
    return DocumentResponse(usage_view(await engine.usage.of_thread(thread_id)))


@router.post(
    "/sessions/{thread_id}/usage", status_code=201, response_model=Recorded, summary="Count the tokens of a model call"
)
@access(Reach.THREAD, Permission.WRITE, is_for_agents=True)
async def record_usage(thread_id: ThreadId, engine: CurrentEngine, body: NewUsage) -> Response:
    """For agents outside of the server. The same `id` again counts once."""
    counts = body.model_dump(exclude={"id", "run_id"})
    is_new = await engine.usage.record(thread_id, TokenUsage(**counts), usage_id=body.id, run_id=body.run_id)
    return DocumentResponse({"is_new": is_new}, status_code=201)


@router.get("/sessions/{thread_id}/runs/{run_id:path}/usage", response_model=UsageView, include_in_schema=False)
@access(Reach.THREAD)
async def usage_of_run_of_session(run: RunOfThread, engine: CurrentEngine) -> Response:
    return DocumentResponse(usage_view(await engine.usage.of_run(run.thread_id, run.id)))


@router.get("/runs/{run_id:path}/usage", response_model=UsageView, summary="Read the tokens of a run")
@access(Reach.RUN)
async def usage_of_run(run: FoundRun, engine: CurrentEngine) -> Response:
    return DocumentResponse(usage_view(await engine.usage.of_run(run.thread_id, run.id)))


@router.get("/usage", response_model=UsageView, summary="Read the tokens of an app, or of one of its users")
@access(Reach.APP)
async def usage_of_app(
    engine: CurrentEngine, app_name: str, user_id: str | None = None, since: Moment = None, until: Moment = None
) -> Response:
    """From `since` to before `until`, by the time of the calls. An app without calls has no models."""
    if user_id is not None:
        totals = await engine.usage.of_user(app_name, user_id, since=since, until=until)
    else:
        totals = await engine.usage.of_app(app_name, since=since, until=until)
    return DocumentResponse(usage_view(totals))
