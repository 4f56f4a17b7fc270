"""Memory over the wire: bodies and answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

from cognizes.engine.api.views import Body, MessageView
from cognizes.engine.memory.scope import MemoryScope
from cognizes.engine.models import MAX_QUERY_LENGTH

MemoryText = Annotated[str, StringConstraints(max_length=1_000_000)]
SearchText = Annotated[str, StringConstraints(max_length=MAX_QUERY_LENGTH)]
Kind = Literal["long_term", "episodic", "turn", "note"]


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
    kinds: list[Kind] | None = None
    namespace: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class MessageQuestion(Body):
    """Which messages to find: of a whole app, of a user, or of one session of a user."""

    app_name: str = Field(min_length=1)
    user_id: str | None = Field(default=None, min_length=1)
    session_id: str | None = None
    query: SearchText
    k: int = Field(default=10, ge=1, le=1000)
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


class Memories(BaseModel):
    """Memories, newest first; `next_before` is where the next page begins."""

    memories: list[MemoryView]
    next_before: str | None


class HitView(MemoryView):
    """A memory that was recalled; `scores` says why."""

    score: float
    scores: dict[str, float]


class Hits(BaseModel):
    """What was recalled, best first, as far as it fits into `COGNIZES_PAGE_BYTES`."""

    hits: list[HitView]


class MessageHitView(MessageView):
    """A message that was found; `scores` says why."""

    thread_id: str
    app_name: str
    user_id: str
    session_id: str
    score: float
    scores: dict[str, float]


class MessageHits(BaseModel):
    """Messages that were found, best first, as far as they fit into `COGNIZES_PAGE_BYTES`."""

    hits: list[MessageHitView]


class Stored(BaseModel):
    """How many memories are new or changed."""

    stored: int
