"""Search messages by words and by meaning, within a session, a user or an app.

Appending a message writes neither words nor a vector. A background task of one process at a time indexes messages,
newest first, with one update per message. The parts of a score are those of recall: `words` and `meaning`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.documents import load_jsonb, unescape_text
from cognizes.engine.errors import InvalidInputError, NotFoundError
from cognizes.engine.memory.embedders.embedder import Embedder, EmbedderUnavailableError, QueryVectors
from cognizes.engine.memory.ranking import Candidate, Pool, Weights, explain, keep_related, rank, related_cosine
from cognizes.engine.memory.recall import check_limits, read_query, vector_literal
from cognizes.engine.memory.vectors import (
    BUILD_SECONDS,
    SLICE,
    Pause,
    bisect_failures,
    build_index,
    no_pause,
    vector_literals,
)
from cognizes.engine.memory.words import index_words, join_words
from cognizes.engine.models import JsonObject, Message
from cognizes.engine.pulse.events import ROLES, check_name, check_text

logger = logging.getLogger(__name__)

MESSAGE_BATCH = 128
_INDEXED_CHARACTERS = 50_000
_READ_CHARACTERS = 500_000
"""Bound of the characters of a batch."""
_LEASE = timedelta(seconds=60)
_CANDIDATES = 200
_INDEXED_DIMENSIONS = 4000
"""Largest dimension that pgvector indexes in half precision."""
_WEIGHTS = Weights(rarity=0, speaker=0, passage=0, session=0)
Key = tuple[UUID, int]


@dataclass(frozen=True)
class MessageFilters:
    """Filters of a search; None matches all. `since` is inclusive, `until` is exclusive."""

    user: str | None = None
    session_id: str | None = None
    roles: Sequence[str] | None = None
    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        if self.session_id is not None and self.user is None:
            raise InvalidInputError("session_id requires user; give the user of the session")
        if unknown := set(self.roles or ()) - set(ROLES):
            raise InvalidInputError(f"unknown role {sorted(unknown)[0]!r}; roles are {', '.join(ROLES)}")
        for moment in (self.since, self.until):
            if moment is not None and moment.tzinfo is None:
                raise InvalidInputError("since and until need a time zone; use an aware datetime")


@dataclass(frozen=True)
class MessageHit:
    """A found message, its owner, its score between 0 and 1, the parts of the score, and the reasons in words."""

    message: Message
    app_name: str
    user_id: str
    session_id: str
    score: float
    scores: dict[str, float]
    why: str

    def to_json(self) -> JsonObject:
        message = vars(self.message) | {"created_at": self.message.created_at.isoformat()}
        return {**message, **{name: value for name, value in vars(self).items() if name != "message"}}


class MessageSearch:
    """Searches messages. Row level security applies to every message that it returns."""

    def __init__(self, database: Database, embedder: Embedder | None, *, reads: Database | None = None) -> None:
        self._database = database
        self._reads = reads or database
        self._embedder = embedder
        self._query_vectors = QueryVectors(embedder)

    async def search(
        self, query: str, *, app: str, k: int, filters: MessageFilters, min_score: float = 0.0
    ) -> list[MessageHit]:
        """Return the `k` best messages of at least `min_score` that fit into `COGNIZES_PAGE_BYTES`, best first.

        Raises `NotFoundError` if the session does not exist.
        """
        check_limits(k, min_score)
        app, user = check_name("app", app), None if filters.user is None else check_name("user", filters.user)
        thread_id = await self._find_thread(app, filters)
        terms = await read_query(query)
        vector = await self._query_vectors.embed(query)
        roles = None if filters.roles is None else list(filters.roles)
        where = app, user, thread_id, roles, filters.since, filters.until, max(_CANDIDATES, k)
        found: dict[Key, Candidate] = {}
        async with self._reads.one_connection() as fetch:
            for row in await fetch("find_messages_by_words", *where, join_words(terms.words)):
                candidate = _candidate(found, row)
                candidate.share, candidate.matched = row["share"], row["matched"]
            if vector is not None and self._embedder is not None:
                model = self._embedder.name, self._embedder.dimension, vector_literal(vector)
                rows = await fetch("find_messages_by_vector", *where, *model)
                for row in rows:
                    _candidate(found, row).cosine = related_cosine(row["cosine"])
                if len(rows) == where[-1]:
                    # The other candidates may have vectors; they are further away than all of these.
                    for candidate in found.values():
                        candidate.cosine = candidate.cosine or 0.0
            keys = list(found)
            pool = Pool(keep_related(found.values()), (), terms.distinct)
            ranked = [candidate for candidate in rank(pool, _WEIGHTS)[:k] if candidate.score >= min_score]
            chosen = [keys[candidate.id] for candidate in ranked]
            threads, numbers = [key[0] for key in chosen], [key[1] for key in chosen]
            rows = await fetch("read_found_messages", app, user, threads, numbers, self._database.page_bytes)
        read = {(row["thread_id"], row["sequence_num"]): row for row in rows}
        # A missing message did not fit into the page, or was deleted between two queries.
        return [_hit(read[key], one, pool.words) for key, one in zip(chosen, ranked, strict=True) if key in read]

    async def _find_thread(self, app: str, filters: MessageFilters) -> UUID | None:
        if filters.session_id is None:
            return None
        session_id = check_text("session_id", filters.session_id)
        found: UUID | None = await self._database.fetch_value("find_thread", app, filters.user, session_id)
        if found is None:
            raise NotFoundError(f"there is no session {session_id[:200]!r} of app {app!r}, user {filters.user!r}")
        return found


def _candidate(found: dict[Key, Candidate], row: asyncpg.Record) -> Candidate:
    return found.setdefault((row["thread_id"], row["sequence_num"]), Candidate(len(found)))


def _hit(row: asyncpg.Record, candidate: Candidate, words: Sequence[str]) -> MessageHit:
    message = Message(
        id=row["id"],
        thread_id=str(row["thread_id"]),
        event_id=row["event_id"],
        sequence_num=row["sequence_num"],
        role=row["role"],
        content=unescape_text(row["content"]),
        metadata=load_jsonb(row["metadata"]),
        created_at=row["created_at"],
    )
    scores = {name: candidate.parts[name] for name in ("words", "meaning")}
    raw = {} if candidate.cosine is None else {"cosine": candidate.cosine}
    owner = row["app_name"], row["user_id"], row["session_id"]
    return MessageHit(message, *owner, candidate.score, scores | raw, explain(candidate, words))


@dataclass(frozen=True)
class WaitingMessages:
    """The number of messages to index, and of indexed messages without a vector."""

    waiting: int
    without_vector: int


class MessageIndex:
    """Indexes new messages. One process at a time does so, under a lease that expires if it dies."""

    def __init__(self, database: Database, embedder: Embedder | None) -> None:
        self._database = database
        self._embedder = embedder
        self._fits: bool | None = None
        self._leased_until: datetime | None = None
        self._renew_at = 0.0

    async def count(self) -> WaitingMessages:
        row = await self._database.fetch_row("count_waiting_messages")
        assert row is not None  # noqa: S101 - a count returns one row
        return WaitingMessages(row["waiting"], row["without_vector"])

    async def work(self, *, pause: Pause = no_pause) -> int:
        """Index one batch; return the number of messages found for it, of which some may be left for the next.

        Calls `pause` after each slice. Raise `EmbedderUnavailableError` after indexing the words.
        """
        embeds = await self._embeds()
        rows = await self._read("read_waiting_messages")
        if not rows and embeds:
            rows = await self._read("read_messages_without_vector")
        if not rows or not await self._hold_lease():
            return 0
        for first in range(0, len(rows), SLICE):
            part = rows[first : first + SLICE]
            try:
                await bisect_failures(part, self._index if embeds else self._index_words, refuse=self._refuse)
            except EmbedderUnavailableError:
                await self._index_words(rows[first:])
                raise
            await pause()
        found: int = rows[0]["found"]
        return found

    async def build_vector_index(self) -> None:
        """Build the HNSW index of the embedder's vectors if there are vectors and no index."""
        if self._embedder is None or not await self._embeds() or self._embedder.dimension > _INDEXED_DIMENSIONS:
            return
        model = self._embedder.name
        index = await self._database.fetch_row("describe_message_index", model, self._embedder.dimension)
        assert index is not None  # noqa: S101 - a format returns one row
        if await self._database.fetch_value("lacks_message_index", model, index["name"]):
            await build_index(self._database, index["name"], index["statement"])

    async def queue_all(self) -> None:
        """Queue every message without a vector of this embedder; first change the dimension of the column if needed."""
        if self._embedder is None:
            return
        if not await self._embeds():
            await self._change_dimension(self._embedder.dimension)
        last: tuple[UUID, int] = (UUID(int=0), 0)
        while (row := await self._database.fetch_row("reindex_messages", self._embedder.name, *last, 1000)) is not None:
            last = (row["thread_id"], row["sequence_num"])

    async def _read(self, query: str) -> list[asyncpg.Record]:
        return await self._database.fetch(query, MESSAGE_BATCH, _INDEXED_CHARACTERS, _READ_CHARACTERS)

    async def _embeds(self) -> bool:
        """Return whether vectors of the embedder fit into the column."""
        if self._embedder is None:
            return False
        if self._fits is None:
            column = await self._database.fetch_value("read_embedding_dimension")
            self._fits = column in (-1, self._embedder.dimension)
            if not self._fits:
                logger.warning(
                    "the vectors of messages have %d dimensions and the embedder %s has %d; messages are found only by "
                    "words until `cognizes memory reembed` changes the column",
                    column, self._embedder.name, self._embedder.dimension,
                )  # fmt: skip
        return self._fits

    async def _hold_lease(self) -> bool:
        if time.monotonic() < self._renew_at:
            return True
        self._leased_until = await self._database.fetch_value("lease_message_index", _LEASE, self._leased_until)
        if self._leased_until is None:
            return False
        self._renew_at = time.monotonic() + _LEASE.total_seconds() / 2
        return True

    async def _index(self, rows: Sequence[asyncpg.Record]) -> None:
        assert self._embedder is not None  # noqa: S101 - called only with an embedder
        texts = [unescape_text(row["content"]) for row in rows]
        literals = await vector_literals(await self._embedder.embed(texts))
        await self._store(rows, await index_words(texts), [self._embedder.name] * len(rows), literals)

    async def _index_words(self, rows: Sequence[asyncpg.Record]) -> None:
        words = await index_words([unescape_text(row["content"]) for row in rows])
        await self._store(rows, words, [None] * len(rows), [None] * len(rows))

    async def _refuse(self, row: asyncpg.Record, error: Exception) -> None:
        logger.warning(
            "message %s of thread %s has no vector: %s: %s",
            row["sequence_num"], row["thread_id"], type(error).__name__, error,
        )  # fmt: skip
        # Another process may have changed the column to another dimension.
        self._fits = None
        words = await index_words([unescape_text(row["content"])])
        await self._store([row], words, [self._embedder.name if self._embedder else None], [None])

    async def _store(self, rows: Sequence[asyncpg.Record], *columns: Sequence[Any]) -> None:
        keys = [row["thread_id"] for row in rows], [row["sequence_num"] for row in rows]
        await self._database.fetch_value("index_messages", *keys, *columns)

    async def _change_dimension(self, dimension: int) -> None:
        for index in await self._database.fetch("list_message_indexes"):
            await self._database.execute_within(BUILD_SECONDS, f"DROP INDEX IF EXISTS {index['name']}")
        statement = await self._database.fetch_value("describe_dimension_change", dimension)
        await self._database.execute_within(BUILD_SECONDS, statement)
        self._fits = True
