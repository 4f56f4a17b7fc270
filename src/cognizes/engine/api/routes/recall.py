"""Recall of memories, the context of a prompt, and search in messages."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field, StringConstraints
from starlette.responses import Response

from cognizes.engine.api.authorization import CurrentEngine, Reach, access
from cognizes.engine.api.responses import NOT_FOUND, DocumentResponse
from cognizes.engine.api.routes.memory import Kind, MemoryView, Scalar, Tags, Visibility
from cognizes.engine.api.views import Body, MessageView
from cognizes.engine.errors import NotFoundError
from cognizes.engine.memory.filters import MetadataValue, Range
from cognizes.engine.models import MAX_QUERY_LENGTH

router = APIRouter(prefix="/memory", tags=["memory"])
SearchText = Annotated[str, StringConstraints(max_length=MAX_QUERY_LENGTH)]


class Bounds(Body):
    """A range of numbers or of texts."""

    gt: int | float | str | None = None
    gte: int | float | str | None = None
    lt: int | float | str | None = None
    lte: int | float | str | None = None


MetadataFilter = dict[str, Bounds | Scalar | list[Scalar]]


class Question(Body):
    """A query and the filters of the memories that it may return."""

    app_name: str = Field(min_length=1)
    user_id: str = Field(min_length=1)
    query: SearchText
    agent_id: str | None = None
    k: int = Field(default=10, ge=1, le=1000)
    min_score: float = Field(default=0.0, ge=0, le=1)
    half_life_days: float | None = Field(default=None, gt=0, le=100_000)
    kinds: list[Kind] | None = None
    namespace: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    tags: Tags | None = None
    metadata: MetadataFilter | None = None
    visibility: tuple[Visibility, ...] = ("user",)


class ContextQuestion(Body):
    """The subject of a prompt, the filters of its memories, and the budget of its context in tokens.

    The first 10 000 characters of the query are searched.
    """

    app_name: str = Field(min_length=1)
    user_id: str = Field(min_length=1)
    query: str
    session_id: str | None = None
    agent_id: str | None = None
    budget_tokens: int = Field(default=2000, ge=1, le=10_000_000)
    recent_turns: int = Field(default=20, ge=0, le=500)
    k: int = Field(default=20, ge=1, le=1000)
    min_score: float = Field(default=0.3, ge=0, le=1)
    half_life_days: float | None = Field(default=None, gt=0, le=100_000)
    kinds: list[Kind] | None = None
    namespace: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    tags: Tags | None = None
    metadata: MetadataFilter | None = None
    visibility: tuple[Visibility, ...] = ("user",)


class MessageQuestion(Body):
    """Which messages to find: of a whole app, of a user, or of one session of a user."""

    app_name: str = Field(min_length=1)
    user_id: str | None = Field(default=None, min_length=1)
    session_id: str | None = None
    query: SearchText
    k: int = Field(default=10, ge=1, le=1000)
    min_score: float = Field(default=0.0, ge=0, le=1)
    roles: list[Literal["user", "assistant", "tool", "system"]] | None = None
    since: datetime | None = None
    until: datetime | None = None


class HitView(MemoryView):
    """A memory that was recalled, with a score from 0 to 1, its parts, and the reasons in words."""

    score: float
    scores: dict[str, float]
    why: str


class ContextItemView(BaseModel):
    """A part of a context; `citation` names it in the text."""

    section: str
    citation: str
    text: str
    created_at: datetime | None
    memory_id: str | None
    kind: Kind | None
    visibility: Visibility | None
    session_id: str | None
    event_id: str | None
    score: float | None


class PromptContext(BaseModel):
    """The text of a context, its items in the order of the text, and the number of items that did not fit."""

    text: str
    items: list[ContextItemView]
    tokens: int
    left_out: int


class Hits(BaseModel):
    """Recalled memories, best first; the list ends at `COGNIZES_PAGE_BYTES`."""

    hits: list[HitView]


class MessageHitView(MessageView):
    """A message that was found, with a score from 0 to 1, its parts, and the reasons in words."""

    thread_id: str
    app_name: str
    user_id: str
    session_id: str
    score: float
    scores: dict[str, float]
    why: str


class MessageHits(BaseModel):
    """Found messages, best first; the list ends at `COGNIZES_PAGE_BYTES`."""

    hits: list[MessageHitView]


@router.post("/recall", response_model=Hits, summary="Recall memories")
@access(Reach.APP, only_reads=True, has_large_body=True)
async def recall(body: Question, engine: CurrentEngine) -> Response:
    """Best first, each with its reasons; none if the query matches no memory by a word or by its meaning."""
    hits = await engine.memory.recall(
        body.query,
        app=body.app_name,
        user=body.user_id,
        agent=body.agent_id,
        k=body.k,
        min_score=body.min_score,
        kinds=body.kinds,
        namespace=body.namespace,
        since=body.since,
        until=body.until,
        tags=body.tags,
        metadata=_metadata(body.metadata),
        half_life=None if body.half_life_days is None else timedelta(days=body.half_life_days),
        visibility=body.visibility,
    )
    return DocumentResponse({"hits": [hit.to_json() for hit in hits]})


def _metadata(given: MetadataFilter | None) -> dict[str, MetadataValue | Range] | None:
    if given is None:
        return None
    return {name: Range(**value.model_dump()) if isinstance(value, Bounds) else value for name, value in given.items()}


@router.post("/context", response_model=PromptContext, responses=NOT_FOUND, summary="Build the context of a prompt")
@access(Reach.APP, only_reads=True, has_large_body=True)
async def build_context(body: ContextQuestion, engine: CurrentEngine) -> Response:
    """Working memory and recent turns of a session and recalled memories that fit into a budget of tokens."""
    session = None
    if body.session_id is not None:
        session = await engine.sessions.get(body.app_name, body.user_id, body.session_id)
        if session is None:
            raise NotFoundError(f"there is no session {body.session_id[:200]!r}")
    context = await engine.memory.context(
        body.query,
        app=body.app_name,
        user=body.user_id,
        session=session,
        agent=body.agent_id,
        budget_tokens=body.budget_tokens,
        recent_turns=body.recent_turns,
        k=body.k,
        min_score=body.min_score,
        kinds=body.kinds,
        namespace=body.namespace,
        since=body.since,
        until=body.until,
        tags=body.tags,
        metadata=_metadata(body.metadata),
        half_life=None if body.half_life_days is None else timedelta(days=body.half_life_days),
        visibility=body.visibility,
    )
    return DocumentResponse(context.to_json())


@router.post(
    "/messages/search", response_model=MessageHits, responses=NOT_FOUND, summary="Search messages by words and meaning"
)
@access(Reach.APP, only_reads=True, has_large_body=True)
async def search_messages(body: MessageQuestion, engine: CurrentEngine) -> Response:
    """Best first, in one session, of one user, or of the whole app. New messages are found after some seconds."""
    hits = await engine.memory.search_messages(
        body.query,
        app=body.app_name,
        user=body.user_id,
        session_id=body.session_id,
        k=body.k,
        min_score=body.min_score,
        roles=body.roles,
        since=body.since,
        until=body.until,
    )
    return DocumentResponse({"hits": [hit.to_json() for hit in hits]})
