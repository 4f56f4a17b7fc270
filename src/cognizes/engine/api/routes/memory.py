"""Memory: facts, episodes, working memory, and recall over all of them. Every route names the app and the user."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime, BaseModel, Field, StringConstraints
from starlette.responses import Response

from cognizes.engine.access import Permission
from cognizes.engine.api.authorization import LARGEST, CurrentEngine, Limit, Reach, access
from cognizes.engine.api.responses import NOT_FOUND, DocumentResponse
from cognizes.engine.api.views import Body, MessageView
from cognizes.engine.errors import NotFoundError
from cognizes.engine.memory.episodic import EpisodicEntry
from cognizes.engine.memory.filters import Filters, MetadataValue, Range
from cognizes.engine.memory.ingest import Remembered
from cognizes.engine.memory.records import MemoryScope
from cognizes.engine.memory.working import WorkingMemory
from cognizes.engine.models import MAX_QUERY_LENGTH

router = APIRouter(prefix="/memory", tags=["memory"])
Offset = Annotated[int, Query(ge=0, le=LARGEST)]
MemoryText = Annotated[str, StringConstraints(max_length=1_000_000)]
SearchText = Annotated[str, StringConstraints(max_length=MAX_QUERY_LENGTH)]
Kind = Literal["long_term", "episodic", "turn", "note"]
Visibility = Literal["user", "agent", "app"]
Scalar = str | int | float | bool | None
Tags = Annotated[list[str], Field(max_length=64)]


class Bounds(Body):
    """A range of numbers or of texts."""

    gt: int | float | str | None = None
    gte: int | float | str | None = None
    lt: int | float | str | None = None
    lte: int | float | str | None = None


MetadataFilter = dict[str, Bounds | Scalar | list[Scalar]]


class Owned(Body):
    """Whose memory it is; without an agent, that of the app's one agent."""

    app_name: str = Field(min_length=1)
    user_id: str = Field(min_length=1)
    agent_id: str = ""

    @property
    def scope(self) -> MemoryScope:
        return MemoryScope(self.app_name, self.user_id, self.agent_id)


class NewFact(Owned):
    """A key to set. `text` is what recall reads: by default key and value, empty for nothing."""

    namespace: str = ""
    key: str = Field(min_length=1)
    value: Any = None
    text: MemoryText | None = None


class NewEpisode(Owned):
    """An episode; one of the same id is kept as it is."""

    summary: MemoryText
    id: str = ""
    session_id: str | None = None
    run_id: str | None = None
    payload: dict[str, Any] = Field(default_factory=dict)
    created_at: datetime | None = None


class NewNote(Body):
    """A text to be recalled later. The same `source_id` is kept once, with the newest text."""

    source_id: str = Field(min_length=1)
    text: MemoryText
    session_id: str | None = None
    position: int = Field(default=0, ge=-(2**62), le=2**62)
    author: str | None = None
    namespace: str = ""
    content: Any = None
    created_at: datetime | None = None
    tags: Tags = Field(default_factory=list)
    metadata: dict[str, Scalar | list[Scalar]] = Field(default_factory=dict)
    importance: float | None = Field(default=None, ge=0, le=1)
    expires_at: AwareDatetime | None = None


class NewNotes(Owned):
    """Texts to be recalled later; `turn` for what was said in a session, `note` for anything else."""

    kind: Literal["turn", "note"] = "note"
    memories: list[NewNote] = Field(min_length=1, max_length=1000)


class NewWorkingMemory(Owned):
    """What an agent has in mind in a session."""

    session_id: str = Field(min_length=1)
    messages: list[dict[str, Any]] = Field(default_factory=list)
    variables: dict[str, Any] = Field(default_factory=dict)
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)
    scratchpad: Any = ""
    last_checkpoint: dict[str, Any] | None = None


class Question(Body):
    """What to recall, of whom, and which memories may answer."""

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
    """What the prompt is about, and how many tokens its context may have."""

    app_name: str = Field(min_length=1)
    user_id: str = Field(min_length=1)
    query: SearchText
    session_id: str | None = None
    agent_id: str | None = None
    budget_tokens: int = Field(default=2000, ge=1, le=10_000_000)
    recent_turns: int = Field(default=20, ge=0, le=500)
    k: int = Field(default=20, ge=1, le=1000)
    min_score: float = Field(default=0.3, ge=0, le=1)
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


class Fact(BaseModel):
    """A long-term fact."""

    agent_id: str
    namespace: str
    key: str
    value: Any
    text: str
    created_at: datetime
    updated_at: datetime


class Facts(BaseModel):
    """Long-term facts, newest change first. `has_more`: the next page has the offset of this one plus its entries."""

    entries: list[Fact]
    has_more: bool


class Episode(BaseModel):
    """An episode."""

    id: str
    app_name: str
    user_id: str
    agent_id: str
    session_id: str | None
    run_id: str | None
    summary: str
    payload: dict[str, Any]
    created_at: datetime


class Episodes(BaseModel):
    """Episodes, newest first. `has_more`: the next page has the offset of this one plus its entries."""

    entries: list[Episode]
    has_more: bool


class WorkingMemoryView(BaseModel):
    """A working memory."""

    agent_id: str
    session_id: str
    messages: list[dict[str, Any]]
    variables: dict[str, Any]
    tool_calls: list[dict[str, Any]]
    scratchpad: Any
    last_checkpoint: dict[str, Any] | None
    updated_at: datetime | None


class MemoryView(BaseModel):
    """A memory."""

    id: str
    agent_id: str
    kind: Kind
    namespace: str
    source_id: str
    session_id: str | None
    author: str | None
    text: str
    content: Any
    created_at: datetime
    tags: list[str]
    metadata: dict[str, Any]
    importance: float | None
    expires_at: datetime | None
    visibility: Visibility


class Memories(BaseModel):
    """Memories, newest first; `next_before` is where the next page begins."""

    memories: list[MemoryView]
    next_before: str | None


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


class ContextView(BaseModel):
    """The text of a context, its items in the order of the text, and the number of items that did not fit."""

    text: str
    items: list[ContextItemView]
    tokens: int
    left_out: int


class Hits(BaseModel):
    """What was recalled, best first, as far as it fits into `COGNIZES_PAGE_BYTES`."""

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
    """Messages that were found, best first, as far as they fit into `COGNIZES_PAGE_BYTES`."""

    hits: list[MessageHitView]


class Stored(BaseModel):
    """How many memories are new or changed."""

    stored: int


async def _scope(app_name: str, user_id: str, agent_id: str = "") -> MemoryScope:
    return MemoryScope(app_name, user_id, agent_id)


Scope = Annotated[MemoryScope, Depends(_scope)]


@router.post("/recall", response_model=Hits, summary="Recall what answers a question")
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


@router.post("/context", response_model=ContextView, responses=NOT_FOUND, summary="Build the context of a prompt")
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


@router.post("", status_code=201, response_model=Stored, summary="Remember texts")
@access(Reach.APP, Permission.WRITE, has_large_body=True)
async def remember(body: NewNotes, engine: CurrentEngine) -> Response:
    """What is there already, with the same text, is left alone."""
    items = [Remembered(**note.model_dump()) for note in body.memories]
    store = engine.memory.remember_turns if body.kind == "turn" else engine.memory.remember
    return DocumentResponse({"stored": await store(body.scope, items)}, status_code=201)


@router.get("", response_model=Memories, summary="List memories, newest first")
@access(Reach.APP)
async def list_memories(
    engine: CurrentEngine,
    app_name: str,
    user_id: str,
    agent_id: str | None = None,
    kind: Annotated[list[Kind] | None, Query()] = None,
    namespace: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    tag: Annotated[list[str] | None, Query()] = None,
    limit: Limit = 100,
    before: str | None = None,
) -> Response:
    filters = Filters(agent=agent_id, kinds=kind, namespace=namespace, since=since, until=until, tags=tag)
    page = await engine.memory.read_page(app_name, user_id, filters=filters, limit=limit, before=before)
    next_before = page.items[-1].id if page.has_more else None
    return DocumentResponse({"memories": [memory.to_json() for memory in page.items], "next_before": next_before})


@router.delete("/{memory_id}", status_code=204, responses=NOT_FOUND, summary="Forget a memory for good")
@access(Reach.APP, Permission.WRITE, is_audited=True)
async def forget(memory_id: str, engine: CurrentEngine, app_name: str, user_id: str) -> Response:
    """With the fact or episode it tells of."""
    if not await engine.memory.forget(app_name, user_id, memory_id):
        raise NotFoundError(f"there is no memory {memory_id}")
    return Response(status_code=204)


@router.put("/long-term", response_model=Fact, summary="Set a long-term fact")
@access(Reach.APP, Permission.WRITE, has_large_body=True)
async def set_fact(body: NewFact, engine: CurrentEngine) -> Response:
    entry = await engine.memory.long_term.set(body.scope, body.namespace, body.key, body.value, text=body.text)
    return DocumentResponse(entry.to_json())


@router.get("/long-term", response_model=Facts, summary="List long-term facts, newest change first")
@access(Reach.APP)
async def list_facts(
    scope: Scope, engine: CurrentEngine, namespace: str | None = None, limit: Limit = 100, offset: Offset = 0
) -> Response:
    """Those after the first `offset`, as many as fit into a page."""
    page = await engine.memory.long_term.read_page(scope, namespace, limit=limit, offset=offset)
    return DocumentResponse({"entries": [entry.to_json() for entry in page.items], "has_more": page.has_more})


@router.get("/long-term/entry", response_model=Fact, responses=NOT_FOUND, summary="Read a long-term fact")
@access(Reach.APP)
async def get_fact(
    scope: Scope, engine: CurrentEngine, key: str, namespace: str = "", as_of: AwareDatetime | None = None
) -> Response:
    """The current value, or the one that was valid at the time `as_of`."""
    entry = await engine.memory.long_term.get(scope, namespace, key, as_of=as_of)
    if entry is None:
        raise NotFoundError(f"there is no fact {key!r} in namespace {namespace!r}")
    return DocumentResponse(entry.to_json())


@router.delete("/long-term/entry", status_code=204, responses=NOT_FOUND, summary="Delete a long-term fact")
@access(Reach.APP, Permission.WRITE, is_audited=True)
async def delete_fact(scope: Scope, engine: CurrentEngine, key: str, namespace: str = "") -> Response:
    if not await engine.memory.long_term.delete(scope, namespace, key):
        raise NotFoundError(f"there is no fact {key!r} in namespace {namespace!r}")
    return Response(status_code=204)


@router.post("/episodic", status_code=201, response_model=Episode, summary="Append an episode")
@access(Reach.APP, Permission.WRITE, has_large_body=True)
async def append_episode(body: NewEpisode, engine: CurrentEngine) -> Response:
    fields = body.model_dump(exclude={"app_name", "user_id", "agent_id"})
    entry = await engine.memory.episodic.append(EpisodicEntry(body.scope, **fields))
    return DocumentResponse(entry.to_json(), status_code=201)


@router.get("/episodic", response_model=Episodes, summary="List episodes, newest first")
@access(Reach.APP)
async def list_episodes(
    scope: Scope, engine: CurrentEngine, session_id: str | None = None, limit: Limit = 100, offset: Offset = 0
) -> Response:
    """Of an agent, or of one session: those after the first `offset`, as many as fit into a page."""
    page = await engine.memory.episodic.read_page(scope, session_id, limit=limit, offset=offset)
    return DocumentResponse({"entries": [entry.to_json() for entry in page.items], "has_more": page.has_more})


@router.delete("/episodic/entry", status_code=204, responses=NOT_FOUND, summary="Delete an episode")
@access(Reach.APP, Permission.WRITE, is_audited=True)
async def delete_episode(
    scope: Scope, engine: CurrentEngine, episode_id: Annotated[str, Query(alias="id")]
) -> Response:
    if not await engine.memory.episodic.delete(scope, episode_id):
        raise NotFoundError(f"there is no episode {episode_id}")
    return Response(status_code=204)


@router.put("/working", response_model=WorkingMemoryView, summary="Save a working memory")
@access(Reach.APP, Permission.WRITE, has_large_body=True)
async def save_working_memory(body: NewWorkingMemory, engine: CurrentEngine) -> Response:
    fields = body.model_dump(exclude={"app_name", "user_id", "agent_id"})
    memory = WorkingMemory(agent_id=body.scope.agent_id, **fields)
    return DocumentResponse((await engine.memory.working.save(body.scope, memory)).to_json())


@router.get("/working", response_model=WorkingMemoryView, responses=NOT_FOUND, summary="Load a working memory")
@access(Reach.APP)
async def load_working_memory(scope: Scope, engine: CurrentEngine, session_id: str) -> Response:
    memory = await engine.memory.working.load(scope, session_id)
    if memory is None:
        raise NotFoundError(f"there is no working memory of session {session_id!r}")
    return DocumentResponse(memory.to_json())
