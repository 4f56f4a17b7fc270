"""Recall: find the memories that match a query, by words and by meaning.

The score of a memory is a sum. Its hit contains the parts:

- `words`: BM25 divided by the best BM25; `meaning`: the cosine of the vectors, scaled from 0 for the worst candidate to
  1 for the best. Their weights are 7 to 3, because static vectors rank less well than BM25.
- `rarity`: 1 if the memory contains a word of the query that no other memory contains, 2 if that word is an identifier.
- `speaker`: 1 if the query contains the name of the author.
- `neighbours`: scores of the messages before and after it in the session, so that a question raises its answer.
- `session`: the mean score of the best three memories of its session.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.connection_pool import Fetch
from cognizes.engine.database.documents import load_json, unescape_text
from cognizes.engine.errors import InvalidInputError, LimitExceededError
from cognizes.engine.memory.embedders.embedder import Embedder
from cognizes.engine.memory.words import identifiers, join_words, off_loop, split_words
from cognizes.engine.models import MAX_QUERY_LENGTH, JsonObject
from cognizes.engine.pulse.events import check_name, check_text

KINDS = ("long_term", "episodic", "turn", "note")
_POOL = 200
_BEST_OF_SESSION = 3
_MAX_K = 1000
_MAX_WORDS = 256
"""Distinct words of a query that are searched; the cost of a search grows with their number."""
_AUTHOR_LENGTH = 200
_UNRELATED = 0.15
"""Cosines below this are ignored: unrelated texts reach them."""


@dataclass(frozen=True)
class Weights:
    """The weight of each part of a score."""

    meaning: float = 0.3
    rarity: float = 0.5
    speaker: float = 0.2
    previous: float = 0.4
    next: float = 0.2
    session: float = 0.5


@dataclass(frozen=True)
class Filters:
    """Filters of a recall; None matches all. `since` is inclusive, `until` is exclusive."""

    agent: str | None = None
    kinds: Sequence[str] | None = None
    namespace: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        if unknown := set(self.kinds or ()) - set(KINDS):
            raise InvalidInputError(f"unknown kind of memory {sorted(unknown)[0]!r}; kinds are {', '.join(KINDS)}")
        for moment in (self.since, self.until):
            if moment is not None and moment.tzinfo is None:
                raise InvalidInputError("since and until need a time zone; use an aware datetime")

    @property
    def columns(self) -> tuple[Any, ...]:
        """The arguments of the queries."""
        return (
            None if self.agent is None else check_text("agent", self.agent),
            None if self.kinds is None else list(self.kinds),
            None if self.namespace is None else check_text("namespace", self.namespace),
            self.since,
            self.until,
        )


@dataclass(frozen=True)
class MemoryRecord:
    """A stored memory. `forget` takes its `id`; `source_id` is the id given by the caller."""

    id: str
    agent_id: str
    kind: str
    namespace: str
    source_id: str
    session_id: str | None
    author: str | None
    text: str
    content: Any
    created_at: datetime

    def to_json(self) -> JsonObject:
        return vars(self) | {"created_at": self.created_at.isoformat()}


@dataclass(frozen=True)
class Hit:
    """A recalled memory, its score and the parts of the score."""

    memory: MemoryRecord
    score: float
    scores: dict[str, float]

    @property
    def text(self) -> str:
        return self.memory.text

    def to_json(self) -> JsonObject:
        return {**self.memory.to_json(), "score": self.score, "scores": self.scores}


@dataclass
class Candidate:
    """A memory that matches a query, with the inputs and the parts of its score."""

    id: int
    bm25: float = 0.0
    cosine: float | None = None
    rarity: float = 0.0
    session_id: str | None = None
    author: str | None = None
    parts: dict[str, float] = field(default_factory=dict)
    own: float = 0.0
    score: float = 0.0


@dataclass
class Pool:
    """Candidates, pairs of consecutive candidates of a session, and the words of the query."""

    candidates: list[Candidate]
    edges: list[tuple[int, int]]
    words: set[str]


class Recall:
    """Finds memories of one user; no query reads rows of another user.

    For a user with many memories an approximate index selects the candidates; `exact` scans all memories.
    """

    def __init__(
        self, database: Database, *, embedder: Embedder | None, weights: Weights | None = None, exact: bool = False
    ) -> None:
        self._database = database
        self._embedder = embedder
        self._exact = exact
        self.weights = weights or Weights()

    async def recall(
        self, query: str, *, app: str, user: str, k: int = 10, filters: Filters | None = None
    ) -> list[Hit]:
        """Return the `k` best memories that fit into `COGNIZES_PAGE_BYTES`, best first."""
        if not 1 <= k <= _MAX_K:
            raise InvalidInputError(f"invalid k {k}; it must be between 1 and {_MAX_K}")
        scope = check_name("app", app), check_name("user", user), *(filters or Filters()).columns
        terms = await read_query(query)
        vector = await self._embed(query)
        async with self._database.asking() as fetch:
            search = _RecallQueries(fetch, scope, exact=self._exact)
            pool = await self._gather(search, terms, vector, max(_POOL, k))
            ranked = rank(pool, self.weights)[:k]
            records = await search.read((candidate.id for candidate in ranked), max_bytes=self._database.page_bytes)
        # A missing memory did not fit into the page, or was deleted between two queries.
        return [_hit(records[candidate.id], candidate) for candidate in ranked if candidate.id in records]

    async def gather(self, query: str, *, app: str, user: str) -> Pool:
        """Return the candidates of a recall without ranking them, for benchmarks of the ranking."""
        terms = await read_query(query)
        vector = await self._embed(query)
        async with self._database.asking() as fetch:
            search = _RecallQueries(fetch, (app, user, *Filters().columns), exact=self._exact)
            return await self._gather(search, terms, vector, _POOL)

    async def _gather(self, search: _RecallQueries, terms: QueryTerms, vector: list[float] | None, size: int) -> Pool:
        found = await search.by_words(terms, size)
        if vector is not None and self._embedder is not None:
            await search.by_vector(found, self._embedder, vector, size)
        edges = await search.neighbours(found)
        return Pool(list(found.values()), edges, set(terms.words))

    async def _embed(self, query: str) -> list[float] | None:
        if self._embedder is None or not query.strip():
            return None
        return await self._embedder.embed_query(query)


@dataclass(frozen=True)
class QueryTerms:
    """The words of a query, and those that are identifiers."""

    words: list[str]
    identifiers: list[str]


async def read_query(query: str) -> QueryTerms:
    """Split a query into words and keep the first 256 distinct ones. Raise `LimitExceededError` if it is too long."""
    if len(query) > MAX_QUERY_LENGTH:
        raise LimitExceededError("query", size=len(query), limit=MAX_QUERY_LENGTH, unit="characters")
    words, named = await off_loop(len(query), lambda: (split_words(query), identifiers(query)))
    wanted = set(islice(dict.fromkeys(words), _MAX_WORDS))
    return QueryTerms([word for word in words if word in wanted], [word for word in named if word in wanted])


class _RecallQueries:
    """The queries of one recall, on one connection."""

    def __init__(self, fetch: Fetch, arguments: tuple[Any, ...], *, exact: bool) -> None:
        self._run_query = fetch
        self._arguments = arguments
        self._exact = exact

    async def by_words(self, terms: QueryTerms, limit: int) -> dict[int, Candidate]:
        words, named = join_words(terms.words), join_words(terms.identifiers)
        rows = await self._fetch("recall_by_words", limit, self._exact, words, named)
        return {row["id"]: Candidate(row["id"], bm25=row["bm25"], rarity=row["rarity"]) for row in rows}

    async def by_vector(self, found: dict[int, Candidate], embedder: Embedder, vector: list[float], limit: int) -> None:
        literal = vector_literal(vector)
        rows = await self._fetch("recall_by_vector", limit, self._exact, embedder.name, embedder.dimension, literal)
        for row in rows:
            if is_related(row["cosine"]):
                found.setdefault(row["id"], Candidate(row["id"])).cosine = row["cosine"]

    async def neighbours(self, found: dict[int, Candidate]) -> list[tuple[int, int]]:
        """Fill in session and author of the candidates, add their neighbours, and return the pairs of neighbours."""
        edges: set[tuple[int, int]] = set()
        for row in await self._fetch("read_memory_neighbours", list(found)):
            candidate = found[row["id"]]
            candidate.session_id, candidate.author = row["session_id"], row["author"]
            for name in ("previous", "next"):
                if (other := row[f"{name}_id"]) is not None:
                    beside = found.setdefault(other, Candidate(other))
                    beside.session_id, beside.author = row["session_id"], row[f"{name}_author"]
                    edges.add((other, row["id"]) if name == "previous" else (row["id"], other))
        return sorted(edges)

    async def read(self, ids: Iterable[int], *, max_bytes: int) -> dict[int, MemoryRecord]:
        rows = await self._run_query("read_memories", *self._arguments[:2], list(ids), max_bytes)
        return {row["id"]: record_from_row(row) for row in rows}

    async def _fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        return await self._run_query(query, *self._arguments, *arguments)


def rank(pool: Pool, weights: Weights) -> list[Candidate]:
    """Score the candidates and return them, best first. Needs no database."""
    by_id = {candidate.id: candidate for candidate in pool.candidates}
    _score_individually(pool, weights)
    from_neighbours: dict[int, float] = defaultdict(float)
    for earlier, later in pool.edges:
        from_neighbours[later] += weights.previous * by_id[earlier].own
        from_neighbours[earlier] += weights.next * by_id[later].own
    sessions = _session_scores(by_id.values())
    for candidate in by_id.values():
        session = sessions.get(candidate.session_id, 0.0) if candidate.session_id is not None else 0.0
        candidate.parts |= {"neighbours": from_neighbours[candidate.id], "session": weights.session * session}
        candidate.score = candidate.own + candidate.parts["neighbours"] + candidate.parts["session"]
    return sorted(by_id.values(), key=lambda candidate: (-candidate.score, -candidate.id))


def _score_individually(pool: Pool, weights: Weights) -> None:
    candidates = pool.candidates
    best = max((candidate.bm25 for candidate in candidates), default=0.0) or 1.0
    cosines = [candidate.cosine for candidate in candidates if candidate.cosine is not None]
    meaning = weights.meaning if cosines else 0.0
    lowest, span = (min(cosines), max(cosines) - min(cosines) or 1.0) if cosines else (0.0, 1.0)
    # A single value gets the best score, not the worst.
    lowest = lowest - span if len(set(cosines)) == 1 else lowest
    named: dict[str | None, float] = {None: 0.0}
    for candidate in candidates:
        if candidate.author not in named:
            named[candidate.author] = weights.speaker if _is_named(candidate.author, pool.words) else 0.0
        nearness = 0.0 if candidate.cosine is None else (candidate.cosine - lowest) / span
        candidate.parts = {
            "words": (1 - meaning) * candidate.bm25 / best,
            "meaning": meaning * nearness,
            "rarity": weights.rarity * candidate.rarity,
            "speaker": named[candidate.author],
        }
        candidate.own = sum(candidate.parts.values())


def _session_scores(candidates: Iterable[Candidate]) -> dict[str, float]:
    of_session: dict[str, list[float]] = defaultdict(list)
    for candidate in candidates:
        if candidate.session_id is not None:
            of_session[candidate.session_id].append(candidate.own)
    return {
        session: sum(sorted(scores, reverse=True)[:_BEST_OF_SESSION]) / _BEST_OF_SESSION
        for session, scores in of_session.items()
    }


def _is_named(author: str | None, words: set[str]) -> bool:
    return not words.isdisjoint(split_words((author or "")[:_AUTHOR_LENGTH]))


def is_related(cosine: float) -> bool:
    """Return whether a cosine is significant. NaN is not: the vector of a text without words is zero."""
    return cosine >= _UNRELATED


def vector_literal(vector: Sequence[float]) -> str:
    """Return a vector in the input format of pgvector."""
    # Half precision has four significant digits.
    return f"[{','.join([f'{value:.6g}' for value in vector])}]"


def record_from_row(row: asyncpg.Record) -> MemoryRecord:
    return MemoryRecord(
        id=str(row["id"]),
        agent_id=row["agent_id"],
        kind=row["kind"],
        namespace=row["namespace"],
        source_id=row["source_id"],
        session_id=row["session_id"],
        author=unescape_text(row["author"]) if row["author"] is not None else None,
        text=unescape_text(row["text"]),
        content=load_json(row["content"]) if row["content"] is not None else None,
        created_at=row["created_at"],
    )


def _hit(record: MemoryRecord, candidate: Candidate) -> Hit:
    measured = {"bm25": candidate.bm25} | ({} if candidate.cosine is None else {"cosine": candidate.cosine})
    return Hit(record, candidate.score, candidate.parts | measured)
