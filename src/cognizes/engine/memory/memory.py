"""`engine.memory`: the stores, snapshots, recall and message search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from cognizes.engine.concurrency import Sweeper
from cognizes.engine.database import Database
from cognizes.engine.database.documents import unescape_text
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.memory.background import MemoryBackground
from cognizes.engine.memory.consolidation import Consolidated, Consolidation, Upkeep
from cognizes.engine.memory.context import (
    ContextSources,
    CountTokens,
    MemoryContext,
    build_context,
    check_budget,
    estimate_tokens,
    recalled_items,
)
from cognizes.engine.memory.embedders import choose_embedder
from cognizes.engine.memory.episodic import EpisodicEntry, EpisodicMemoryStore
from cognizes.engine.memory.extraction import choose_extractor
from cognizes.engine.memory.filters import Filters, MetadataValue, Range
from cognizes.engine.memory.long_term import LongTermMemoryStore
from cognizes.engine.memory.message_search import MessageFilters, MessageHit, MessageIndex, MessageSearch
from cognizes.engine.memory.recall import Recall
from cognizes.engine.memory.records import (
    Hit,
    Ingest,
    MemoryPage,
    MemoryRecord,
    MemoryScope,
    Remembered,
    memory_number,
    owner,
    record_from_row,
)
from cognizes.engine.memory.snapshot import MemorySnapshots
from cognizes.engine.memory.vectors import EmbeddingQueue, VectorIndex
from cognizes.engine.memory.words import off_loop
from cognizes.engine.memory.working import WorkingMemoryStore
from cognizes.engine.models import MAX_QUERY_LENGTH, Session
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.pulse.sessions import Sessions
from cognizes.engine.settings import Settings

_PAGE = 500
_PAGE_CHARACTERS = 2_000_000
Rows = list[asyncpg.Record]
_MAX_ID = 2**63 - 1


class Memory:
    """The memory of agents: `working`, `long_term`, `episodic`, `snapshots`, and recall over all of them.

    Recall finds a memory by its words at once, and by meaning after a background task has embedded it.
    """

    def __init__(
        self,
        database: Database,
        sessions: Sessions,
        settings: Settings,
        *,
        reads: Database | None = None,
        sweeper: Sweeper,
    ) -> None:
        self._database = database
        self._sessions = sessions
        self.embedder = choose_embedder(settings)
        self._ingest = Ingest(database, embeds=self.embedder is not None)
        self.working = WorkingMemoryStore(database)
        self.long_term = LongTermMemoryStore(
            database,
            self._ingest,
            max_depth=settings.max_json_depth,
            keeps_history=settings.fact_history_kept_days > 0,
        )
        self.episodic = EpisodicMemoryStore(database, self._ingest)
        self.upkeep = Upkeep(database)
        self.snapshots = MemorySnapshots(
            database,
            sessions,
            episodic=self.episodic,
            long_term=self.long_term,
            max_state_bytes=settings.max_state_bytes,
        )
        self.consolidation = Consolidation(
            database,
            sessions,
            episodic=self.episodic,
            long_term=self.long_term,
            extractor=choose_extractor(settings),
        )
        self._context = ContextSources(database, sessions)
        self._recall = Recall(reads or database, embedder=self.embedder)
        self.queue = EmbeddingQueue(database, self.embedder) if self.embedder else None
        self.message_index = MessageIndex(database, self.embedder)
        self._message_search = MessageSearch(database, self.embedder, reads=reads)
        self.background = MemoryBackground(
            database,
            self._ingest.wake_up,
            queue=self.queue,
            vector_index=VectorIndex(database, self.embedder) if self.embedder else None,
            messages=self.message_index,
            episodic=self.episodic,
            sweeper=sweeper,
        )
        self._runs_background = settings.memory_background

    async def start(self) -> None:
        if self._runs_background:
            await self.background.start()

    async def close(self) -> None:
        await self.background.close()

    async def remember(self, scope: MemoryScope, items: Iterable[Remembered]) -> int:
        """Store texts as notes of an agent; return the number of new or changed ones. A `source_id` is stored once."""
        return await self._ingest.store(scope, "note", items)

    async def remember_turns(self, scope: MemoryScope, items: Iterable[Remembered]) -> int:
        """Store messages of sessions; return the number of new or changed ones. Forgotten ones are not stored again."""
        return await self._ingest.store(scope, "turn", items)

    async def remember_session(self, session: Session, *, agent_id: str | None = None, after: int = 0) -> int:
        """Store the messages of a session after a sequence number; return the number of new ones."""
        scope = MemoryScope.of(session, agent_id)
        thread_id = await self._sessions.store.find_thread(session)
        stored = 0
        while rows := await self._database.fetch("read_session_turns", thread_id, after, _PAGE, _PAGE_CHARACTERS):
            stored += await self.remember_turns(scope, (_turn(session, row) for row in rows))
            after = rows[-1]["sequence_num"]
        return stored

    async def consolidate(self, session: Session, *, agent_id: str | None = None) -> Consolidated:
        """Store the episodes and facts that the extractor finds in the new messages of a session.

        `engine.consolidations` does the same as a durable run.
        """
        return await self.consolidation.run(session, agent_id=agent_id)

    async def remember_run(self, thread_id: str | UUID, run_id: str) -> EpisodicEntry:
        """Write the episode of an ended run once and return it."""
        entry = await self.episodic.write_for_run(thread_id, run_id)
        await self._database.write_value("finish_episode", thread_uuid(thread_id), run_id)
        return entry

    async def recall(
        self,
        query: str,
        *,
        app: str,
        user: str,
        agent: str | None = None,
        k: int = 10,
        min_score: float = 0.0,
        kinds: Sequence[str] | None = None,
        namespace: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, MetadataValue | Range] | None = None,
        half_life: timedelta | None = None,
        visibility: Sequence[str] = ("user",),
    ) -> list[Hit]:
        """Return the `k` best memories of a user for the query with at least `min_score`, between 0 and 1.

        Return none if the query matches no memory by a word or by its meaning. `scores` holds the parts of each score
        and `why` the reasons in words. With `half_life` newer memories score higher: the part `recency` halves with
        each half-life of age. `visibility` adds memories that users share: "agent" those of the agent, "app" those of
        the app.
        """
        filters = Filters(agent, kinds, namespace, since, until, tags, metadata)
        return await self._recall.recall(
            query,
            app=app,
            user=user,
            k=k,
            min_score=min_score,
            filters=filters,
            half_life=half_life,
            visibility=visibility,
        )

    async def context(
        self,
        query: str,
        *,
        app: str,
        user: str,
        session: Session | None = None,
        agent: str | None = None,
        budget_tokens: int = 2000,
        recent_turns: int = 20,
        k: int = 20,
        min_score: float = 0.3,
        kinds: Sequence[str] | None = None,
        namespace: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, MetadataValue | Range] | None = None,
        half_life: timedelta | None = None,
        visibility: Sequence[str] = ("user",),
        count_tokens: CountTokens = estimate_tokens,
    ) -> MemoryContext:
        """Return what fits into a budget of tokens: working memory and recent turns of a session, recalled memories.

        `session` must belong to the app and the user. `citation` of an item names it in the text. The filters, with
        the names of those of `recall`, select the recalled memories. `query` may be a long message of the user: its
        first 10 000 characters are searched.
        """
        check_budget(budget_tokens)
        if not 0 <= recent_turns <= _PAGE:
            raise InvalidInputError(f"invalid recent_turns {recent_turns}; it must be between 0 and {_PAGE}")
        if session is not None and (session.app_name, session.user_id) != (app, user):
            raise InvalidInputError(f"session {session.id!r} belongs to another app or user; give its own names")
        hits = await self._recall.recall(
            query[:MAX_QUERY_LENGTH],
            app=app,
            user=user,
            k=k,
            min_score=min_score,
            filters=Filters(agent, kinds, namespace, since, until, tags, metadata),
            half_life=half_life,
            visibility=visibility,
        )
        working, recent = [], []
        if session is not None:
            working = await self._context.working(session, agent_id=agent)
            if recent_turns:
                recent = await self._context.recent(session, limit=recent_turns, budget_tokens=budget_tokens)
        recalled = recalled_items(hits)
        return await off_loop(
            sum(len(item.text) for items in (working, recalled, recent) for item in items),
            lambda: build_context(working, recalled, recent, budget_tokens=budget_tokens, count_tokens=count_tokens),
        )

    async def search_messages(
        self,
        query: str,
        *,
        app: str,
        user: str | None = None,
        session_id: str | None = None,
        k: int = 10,
        min_score: float = 0.0,
        roles: Sequence[str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[MessageHit]:
        """Return the `k` best messages of an app, a user or a session with at least `min_score`, by words and meaning.

        A message can be found after a background task has indexed it, usually within seconds.
        """
        filters = MessageFilters(user=user, session_id=session_id, roles=roles, since=since, until=until)
        return await self._message_search.search(query, app=app, k=k, min_score=min_score, filters=filters)

    async def list(
        self,
        app: str,
        user: str,
        *,
        filters: Filters | None = None,
        limit: int = 100,
        before: str | None = None,
        visibility: str = "user",
    ) -> list[MemoryRecord]:
        """Return memories of a user, newest first. `before` is the id of the last memory of the previous page.

        With `visibility` "app" or "agent" return those that users share.
        """
        rows = await self._list(app, user, filters or Filters(), before, visibility, limit=limit)
        return [record_from_row(row, visibility) for row in rows]

    async def read_page(
        self,
        app: str,
        user: str,
        *,
        filters: Filters,
        limit: int,
        before: str | None = None,
        visibility: str = "user",
    ) -> MemoryPage[MemoryRecord]:
        rows = await self._list(
            app, user, filters, before, visibility, limit=limit + 1, max_bytes=self._database.page_bytes
        )
        return MemoryPage.of(rows, limit, lambda row: record_from_row(row, visibility))

    async def _list(
        self,
        app: str,
        user: str,
        filters: Filters,
        before: str | None,
        visibility: str,
        *,
        limit: int,
        max_bytes: int | None = None,
    ) -> Rows:
        start = _MAX_ID if before is None else memory_number(before)
        filtered = filters.seen_as(visibility, app).document
        return await self._database.fetch(
            "list_memories", app, owner(user, visibility), filtered, limit, start, max_bytes
        )

    async def forget(self, app: str, user: str, memory_id: str, *, visibility: str = "user") -> bool:
        """Delete a memory and its fact or episode; return whether it existed.

        With `visibility` "app" or "agent" delete a memory that users share.
        """
        found: bool = await self._database.write_value(
            "forget_memory", app, owner(user, visibility), memory_number(memory_id)
        )
        return found


def _turn(session: Session, row: asyncpg.Record) -> Remembered:
    return Remembered(
        source_id=row["event_id"],
        text=unescape_text(row["content"]),
        session_id=session.id,
        position=row["sequence_num"],
        author=row["author"],
        created_at=row["created_at"],
    )
