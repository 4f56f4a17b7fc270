"""The stores of memory: notes, facts, episodes, working memory, shared memories; their history, sources and upkeep."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime, BaseModel, Field, StringConstraints
from starlette.responses import Response

from cognizes.engine.access import Permission
from cognizes.engine.api.authorization import LARGEST, CurrentEngine, Limit, Reach, access
from cognizes.engine.api.responses import NOT_FOUND, DocumentResponse
from cognizes.engine.api.views import Body
from cognizes.engine.errors import NotFoundError
from cognizes.engine.memory.episodic import EpisodicEntry
from cognizes.engine.memory.filters import Filters
from cognizes.engine.memory.records import EventSource, MemoryScope, Remembered
from cognizes.engine.memory.working import WorkingMemory

router = APIRouter(prefix="/memory", tags=["memory"])
Offset = Annotated[int, Query(ge=0, le=LARGEST)]
MemoryText = Annotated[str, StringConstraints(max_length=1_000_000)]
Kind = Literal["long_term", "episodic", "turn", "note"]
Visibility = Literal["user", "agent", "app"]
Scalar = str | int | float | bool | None
Tags = Annotated[list[str], Field(max_length=64)]


class Owned(Body):
    """The owner of a memory. Without `agent_id` the agent has the name of the app."""

    app_name: str = Field(min_length=1)
    user_id: str = Field(min_length=1)
    agent_id: str = ""

    @property
    def scope(self) -> MemoryScope:
        return MemoryScope(self.app_name, self.user_id, self.agent_id)


class NewFact(Owned):
    """A key to set. Recall searches `text`: by default key and value; an empty text is not recalled."""

    namespace: str = ""
    key: str = Field(min_length=1)
    value: Any = None
    text: MemoryText | None = None


class NewEpisode(Owned):
    """An episode. An id that exists changes nothing."""

    summary: MemoryText
    id: str = ""
    session_id: str | None = None
    run_id: str | None = None
    payload: dict[str, Any] = Field(default_factory=dict)
    created_at: AwareDatetime | None = None


class SourceName(Body):
    """An event that a text came from."""

    session_id: str = Field(min_length=1)
    event_id: str = Field(min_length=1)


class NewNote(Body):
    """A text to be recalled later. A `source_id` is stored once, with its newest text."""

    source_id: str = Field(min_length=1)
    text: MemoryText
    session_id: str | None = None
    position: int = Field(default=0, ge=-(2**62), le=2**62)
    author: str | None = None
    namespace: str = ""
    content: Any = None
    created_at: AwareDatetime | None = None
    tags: Tags = Field(default_factory=list)
    metadata: dict[str, Scalar | list[Scalar]] = Field(default_factory=dict)
    importance: float | None = Field(default=None, ge=0, le=1)
    expires_at: AwareDatetime | None = None
    sources: list[SourceName] = Field(default_factory=list, max_length=1000)

    @property
    def item(self) -> Remembered:
        given = self.model_dump(exclude={"sources"})
        return Remembered(**given, sources=[EventSource(one.session_id, one.event_id) for one in self.sources])


class NewNotes(Owned):
    """Texts to be recalled later; `turn` for messages of a session, `note` for any other text."""

    kind: Literal["turn", "note"] = "note"
    memories: list[NewNote] = Field(min_length=1, max_length=1000)


class NewWorkingMemory(Owned):
    """The working memory of an agent in a session."""

    session_id: str = Field(min_length=1)
    messages: list[dict[str, Any]] = Field(default_factory=list)
    variables: dict[str, Any] = Field(default_factory=dict)
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)
    scratchpad: Any = ""
    last_checkpoint: dict[str, Any] | None = None


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
    """Memories, newest first; `next_before` is the value of `before` for the next page."""

    memories: list[MemoryView]
    next_before: str | None


class Stored(BaseModel):
    """How many memories are new or changed."""

    stored: int


async def _scope(app_name: str, user_id: str, agent_id: str = "") -> MemoryScope:
    return MemoryScope(app_name, user_id, agent_id)


Scope = Annotated[MemoryScope, Depends(_scope)]


@router.post("", status_code=201, response_model=Stored, summary="Remember texts")
@access(Reach.APP, Permission.WRITE, has_large_body=True)
async def remember(body: NewNotes, engine: CurrentEngine) -> Response:
    """A memory that is stored with the same text does not change."""
    items = [note.item for note in body.memories]
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
    """Delete the memory with its fact or episode."""
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
    """Skip the first `offset` facts and return as many as fit into a page."""
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
    """Return episodes of an agent or of one session: skip the first `offset` and return as many as fit into a page."""
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


class EventOfFact(BaseModel):
    """An event that a fact came from."""

    session_id: str
    event_id: str


class FactVersionView(BaseModel):
    """A value of a key and the events that it came from; `valid_until` is null for the current one."""

    value: Any
    text: str
    valid_from: datetime
    valid_until: datetime | None
    sources: list[EventOfFact]


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


shared = APIRouter(prefix="/memory/shared", tags=["memory"])
Shared = Literal["agent", "app"]


class NewSharedNotes(Body):
    """Texts for all users of an app or of one agent. Without `agent_id` the agent has the name of the app."""

    app_name: str = Field(min_length=1)
    visibility: Shared
    agent_id: str = ""
    memories: list[NewNote] = Field(min_length=1, max_length=1000)


@shared.post("", status_code=201, response_model=Stored, summary="Remember texts for all users")
@access(Reach.APP, Permission.WRITE, is_for_agents=True, is_audited=True, has_large_body=True)
async def remember_shared(body: NewSharedNotes, engine: CurrentEngine) -> Response:
    """Recall returns them to users whose queries ask for this visibility."""
    agent_wide = body.visibility == "agent"
    scope = MemoryScope.agent_wide(body.app_name, body.agent_id) if agent_wide else MemoryScope.app_wide(body.app_name)
    items = [note.item for note in body.memories]
    return DocumentResponse({"stored": await engine.memory.remember(scope, items)}, status_code=201)


@shared.get("", response_model=Memories, summary="List shared memories, newest first")
@access(Reach.APP, is_for_agents=True)
async def list_shared(
    engine: CurrentEngine,
    app_name: str,
    visibility: Shared,
    agent_id: str | None = None,
    tag: Annotated[list[str] | None, Query()] = None,
    limit: Limit = 100,
    before: str | None = None,
) -> Response:
    filters = Filters(agent=agent_id, tags=tag)
    page = await engine.memory.read_page(
        app_name, "", filters=filters, limit=limit, before=before, visibility=visibility
    )
    next_before = page.items[-1].id if page.has_more else None
    return DocumentResponse({"memories": [memory.to_json() for memory in page.items], "next_before": next_before})


@shared.delete("/{memory_id}", status_code=204, responses=NOT_FOUND, summary="Forget a shared memory for good")
@access(Reach.APP, Permission.WRITE, is_for_agents=True, is_audited=True)
async def forget_shared(memory_id: str, engine: CurrentEngine, app_name: str, visibility: Shared) -> Response:
    if not await engine.memory.forget(app_name, "", memory_id, visibility=visibility):
        raise NotFoundError(f"there is no shared memory {memory_id}")
    return Response(status_code=204)
