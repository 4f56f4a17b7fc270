"""Recall: find the memories that match a query, by words and by meaning.

The parts of a score are measured on scales that do not depend on the other memories, so that the two halves of the
search can be added for short chat turns and for long texts alike. A hit contains the parts:

- `words`: BM25 divided by its maximum for the query; 1 if the memory contains every word of the query often.
- `meaning`: the cosine of the vectors. A frequent word of the user's memories weighs less in the vector of the query.
  While a memory has no vector, its words stand in for its meaning.
- `rarity`: 0.1 if the memory contains the query and one of its words is in no other memory; 1 for such an identifier.
- `speaker`: 1 if the query contains the name of the author.
- `neighbours`: what up to three memories before and after it in the session have, less with the distance, so that a
  question raises its answer. A memory that is much shorter than its neighbour gets less.
- `session`: what the best memory of its session has.

The sum s becomes the score s / (1 + s), between 0 and 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import islice
from math import log, log1p, sqrt
from typing import Any

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.connection_pool import Fetch
from cognizes.engine.database.documents import load_json, unescape_text
from cognizes.engine.errors import InvalidInputError, LimitExceededError
from cognizes.engine.memory.embedders.embedder import Embedder, WeightedEmbedder
from cognizes.engine.memory.words import identifiers, join_words, off_loop, spelled_words, split_words
from cognizes.engine.models import MAX_QUERY_LENGTH, JsonObject
from cognizes.engine.pulse.events import check_name, check_text

KINDS = ("long_term", "episodic", "turn", "note")
_POOL = 200
_EXPANDED = 50
"""Candidates whose neighbours are read, if `k` is not larger."""
_MAX_K = 1000
_MAX_WORDS = 256
"""Distinct words of a query that are sent to the database, which searches the first 64 that are not stop words."""
_MAX_SPELLED = 4000
"""Characters of a query whose words are weighed in its vector."""
_AUTHOR_LENGTH = 200
_UNRELATED = 0.05
"""Cosines below this are ignored: half of all unrelated texts reach them."""
_RELATED = 0.15
_SPREAD = 0.075
"""The standard deviation of the cosines of unrelated texts, measured with WordLlama."""
_RARE = 0.7
"""A word of this weight or more, of at most 1, counts fully in the vector of a query."""
_UNKNOWN = 0.6
"""The weight in the vector of a query of a word whose frequency is not known."""


@dataclass(frozen=True)
class Weights:
    """The weight of each part of a score. A step of distance multiplies the weight of a neighbour by `decay`."""

    words: float = 1.0
    meaning: float = 1.0
    rarity: float = 0.1
    speaker: float = 0.2
    previous: float = 0.4
    next: float = 0.2
    decay: float = 0.5
    session: float = 0.8


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
    """A recalled memory, its score between 0 and 1, the parts of the score, and the reasons in words."""

    memory: MemoryRecord
    score: float
    scores: dict[str, float]
    why: str

    @property
    def text(self) -> str:
        return self.memory.text

    def to_json(self) -> JsonObject:
        return {**self.memory.to_json(), "score": self.score, "scores": self.scores, "why": self.why}


@dataclass
class Candidate:
    """A memory that may match a query, with the inputs and the parts of its score. A cosine of None: no vector."""

    id: int
    share: float = 0.0
    bm25: float = 0.0
    cosine: float | None = None
    rarity: float = 0.0
    matched: Sequence[int] = ()
    session_id: str | None = None
    author: str | None = None
    length: int = 0
    parts: dict[str, float] = field(default_factory=dict)
    own: float = 0.0
    score: float = 0.0

    @property
    def matches(self) -> bool:
        """Whether it matches the query by a word or by its meaning, not only by its place in the session."""
        return self.share > 0 or bool(self.cosine)


@dataclass(frozen=True)
class Edge:
    earlier: int
    later: int
    distance: int


@dataclass
class Pool:
    """Candidates, the pairs of neighbours among them, and the words of the query."""

    candidates: list[Candidate]
    edges: Collection[Edge]
    words: Sequence[str]


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
        self, query: str, *, app: str, user: str, k: int = 10, min_score: float = 0.0, filters: Filters | None = None
    ) -> list[Hit]:
        """Return the `k` best memories of at least `min_score` that fit into `COGNIZES_PAGE_BYTES`, best first."""
        check_limits(k, min_score)
        scope = check_name("app", app), check_name("user", user), *(filters or Filters()).columns
        terms = await read_query(query)
        vector = await self._embed(query)
        async with self._database.one_connection() as fetch:
            search = _RecallQueries(fetch, scope, exact=self._exact)
            pool = await self._gather(search, query, terms, vector, k)
            ranked = [candidate for candidate in rank(pool, self.weights)[:k] if candidate.score >= min_score]
            records = await search.read((candidate.id for candidate in ranked), max_bytes=self._database.page_bytes)
        # A missing memory did not fit into the page, or was deleted between two queries.
        return [_hit(records[one.id], one, pool.words) for one in ranked if one.id in records]

    async def gather(self, query: str, *, app: str, user: str) -> Pool:
        """Return the candidates of a recall without ranking them, for benchmarks of the ranking."""
        terms = await read_query(query)
        vector = await self._embed(query)
        async with self._database.one_connection() as fetch:
            search = _RecallQueries(fetch, (app, user, *Filters().columns), exact=self._exact)
            return await self._gather(search, query, terms, vector, 2 * _EXPANDED)

    async def _gather(
        self, search: _RecallQueries, query: str, terms: QueryTerms, vector: list[float] | None, k: int
    ) -> Pool:
        size = max(_POOL, k)
        found, weights = await search.by_words(terms, size)
        if isinstance(self._embedder, WeightedEmbedder) and query.strip():
            vector = await self._embedder.embed_weighted(*await weigh_words(query, terms, weights))
        if vector is not None and self._embedder is not None:
            await search.by_vector(found, self._embedder, vector, size)
        best = keep_related(found.values())[: max(_EXPANDED, k)]
        near, edges = await search.neighbours(found, [candidate.id for candidate in best])
        return Pool(near, edges, terms.distinct)

    async def _embed(self, query: str) -> list[float] | None:
        # Before a connection is taken, because a remote embedder may be slow.
        if self._embedder is None or isinstance(self._embedder, WeightedEmbedder) or not query.strip():
            return None
        return await self._embedder.embed_query(query)


def check_limits(k: int, min_score: float) -> None:
    if not 1 <= k <= _MAX_K:
        raise InvalidInputError(f"invalid k {k}; it must be between 1 and {_MAX_K}")
    if not 0 <= min_score <= 1:
        raise InvalidInputError(f"invalid min_score {min_score}; it must be between 0 and 1")


@dataclass(frozen=True)
class QueryTerms:
    words: list[str]
    identifiers: list[str]

    @property
    def distinct(self) -> list[str]:
        return list(dict.fromkeys(self.words))


async def read_query(query: str) -> QueryTerms:
    """Split a query into words and keep the first 256 distinct ones. Raise `LimitExceededError` if it is too long."""
    if len(query) > MAX_QUERY_LENGTH:
        raise LimitExceededError("query", size=len(query), limit=MAX_QUERY_LENGTH, unit="characters")
    words, named = await off_loop(len(query), lambda: (split_words(query), identifiers(query)))
    wanted = set(islice(dict.fromkeys(words), _MAX_WORDS))
    return QueryTerms([word for word in words if word in wanted], [word for word in named if word in wanted])


async def weigh_words(query: str, terms: QueryTerms, weights: Sequence[float | None]) -> tuple[list[str], list[float]]:
    """Return the words of a query as they are spelled, and their weights in its vector.

    A name that half of the memories contain would otherwise decide the direction of the vector.
    """
    known = {word: weight for word, weight in zip(terms.distinct, weights, strict=False) if weight is not None}

    def weigh() -> tuple[list[str], list[float]]:
        spelled = spelled_words(query[:_MAX_SPELLED])
        found = [max((known[word] for word in split_words(one) if word in known), default=None) for one in spelled]
        return spelled, [_UNKNOWN if weight is None else min(1.0, weight / _RARE) for weight in found]

    return await off_loop(len(query), weigh)


def keep_related(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates that match by words or meaning, best first; none if the query matches neither.

    The nearest of n unrelated texts has a cosine of about `_SPREAD` times the root of 2 ln n; more is a match.
    """
    found = list(candidates)
    compared = sum(one.cosine is not None for one in found)
    related = max(_RELATED, _SPREAD * sqrt(2 * log(max(compared, 2))))
    if not any(one.share > 0 or (one.cosine or 0.0) >= related for one in found):
        return []
    matching = [one for one in found if one.matches]
    return sorted(matching, key=lambda one: (-one.share - (one.share if one.cosine is None else one.cosine), -one.id))


class _RecallQueries:
    def __init__(self, fetch: Fetch, arguments: tuple[Any, ...], *, exact: bool) -> None:
        self._run_query = fetch
        self._arguments = arguments
        self._exact = exact

    async def by_words(self, terms: QueryTerms, limit: int) -> tuple[dict[int, Candidate], list[float | None]]:
        """Return the candidates by words, and the weights of the distinct words of the query."""
        words, named = join_words(terms.words), join_words(terms.identifiers)
        rows = await self._fetch("recall_by_words", limit, self._exact, words, named)
        found = {
            row["id"]: Candidate(row["id"], row["share"], row["bm25"], rarity=row["rarity"], matched=row["matched"])
            for row in rows
        }
        return found, rows[0]["weights"] if rows else []

    async def by_vector(self, found: dict[int, Candidate], embedder: Embedder, vector: list[float], limit: int) -> None:
        literal = vector_literal(vector)
        model = embedder.name, embedder.dimension, literal
        for row in await self._fetch("recall_by_vector", limit, self._exact, *model, list(found)):
            found.setdefault(row["id"], Candidate(row["id"])).cosine = related_cosine(row["cosine"])

    async def neighbours(self, found: dict[int, Candidate], best: list[int]) -> tuple[list[Candidate], set[Edge]]:
        """Return the best candidates and their neighbours with session, author and length, and the pairs."""
        near: dict[int, Candidate] = {}
        edges: set[Edge] = set()
        for row in await self._fetch("read_memory_neighbours", best) if best else ():
            one = near[row["id"]] = found.get(row["id"]) or near.get(row["id"]) or Candidate(row["id"])
            one.session_id, one.author, one.length = row["session_id"], row["author"], row["length"]
            if (distance := row["distance"]) < 0:
                edges.add(Edge(row["id"], row["origin"], -distance))
            elif distance > 0:
                edges.add(Edge(row["origin"], row["id"], distance))
        return list(near.values()), edges

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
    for edge in pool.edges:
        earlier, later = by_id[edge.earlier], by_id[edge.later]
        near = weights.decay ** (edge.distance - 1)
        from_neighbours[later.id] += weights.previous * near * earlier.own * _gain(later, earlier)
        from_neighbours[earlier.id] += weights.next * near * later.own * _gain(earlier, later)
    best: dict[str, float] = defaultdict(float)
    for candidate in by_id.values():
        if candidate.session_id is not None:
            best[candidate.session_id] = max(best[candidate.session_id], candidate.own)
    for candidate in by_id.values():
        session = 0.0 if candidate.session_id is None else best[candidate.session_id]
        candidate.parts |= {"neighbours": from_neighbours[candidate.id], "session": weights.session * session}
        total = sum(candidate.parts.values())
        candidate.score = total / (1 + total)
    return sorted(by_id.values(), key=lambda candidate: (-candidate.score, -candidate.id))


def _score_individually(pool: Pool, weights: Weights) -> None:
    words = set(pool.words)
    named: dict[str | None, float] = {None: 0.0}
    for candidate in pool.candidates:
        if candidate.author not in named:
            named[candidate.author] = weights.speaker if _is_named(candidate.author, words) else 0.0
        candidate.parts = {
            "words": weights.words * candidate.share,
            "meaning": weights.meaning * (candidate.share if candidate.cosine is None else candidate.cosine),
            "rarity": weights.rarity * candidate.rarity,
            "speaker": named[candidate.author],
        }
        candidate.own = sum(candidate.parts.values())


def _gain(candidate: Candidate, neighbour: Candidate) -> float:
    """Return how much a memory gets of a neighbour's score: less if it is much shorter ("Go on." after a long text)."""
    return min(1.0, log1p(candidate.length) / log1p(neighbour.length)) if neighbour.length else 1.0


def _is_named(author: str | None, words: set[str]) -> bool:
    return not words.isdisjoint(split_words((author or "")[:_AUTHOR_LENGTH]))


def related_cosine(cosine: float) -> float:
    """Return a cosine, 0 if it is not significant or NaN: the vector of a text without words is zero."""
    return cosine if cosine >= _UNRELATED else 0.0


def vector_literal(vector: Sequence[float]) -> str:
    """Return a vector in the input format of pgvector."""
    return _literal_format(len(vector)) % tuple(vector)


@cache
def _literal_format(dimension: int) -> str:
    # Half precision has four significant digits.
    return f"[{','.join(['%.6g'] * dimension)}]"


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


def _hit(record: MemoryRecord, candidate: Candidate, words: Sequence[str]) -> Hit:
    measured = {"bm25": candidate.bm25} | ({} if candidate.cosine is None else {"cosine": candidate.cosine})
    return Hit(record, candidate.score, candidate.parts | measured, explain(candidate, words))


_NAMED_WORDS = 5


def explain(candidate: Candidate, words: Sequence[str]) -> str:
    """Return the reasons of a hit in words."""
    reasons = []
    if candidate.matched:
        found = [words[place - 1] for place in sorted(candidate.matched) if place <= len(words)]
        more = f" and {len(found) - _NAMED_WORDS} more" if len(found) > _NAMED_WORDS else ""
        reasons.append(f"contains {', '.join(found[:_NAMED_WORDS])}{more} ({candidate.share:.0%} of the query's words)")
    if candidate.cosine:
        reasons.append(f"similar in meaning (cosine {candidate.cosine:.2f})")
    if candidate.rarity >= _RARE:
        reasons.append("hardly any other memory contains one of these words")
    if candidate.parts.get("speaker"):
        reasons.append(f"said by {unescape_text(candidate.author or '')}")
    if candidate.parts.get("neighbours", 0.0) > candidate.own:
        reasons.append("next to memories that match")
    return "; ".join(reasons) or "in a session that matches"
