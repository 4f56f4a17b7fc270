"""Recall: find the memories that match a query, by words and by meaning.

PostgreSQL finds candidates by BM25 and by vectors, `ranking` scores them, and the best are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from itertools import accumulate, islice
from typing import Any

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.connection_pool import Fetch
from cognizes.engine.errors import InvalidInputError, LimitExceededError
from cognizes.engine.memory.embedders.embedder import Embedder, QueryVectors, WeightedEmbedder
from cognizes.engine.memory.filters import Filters
from cognizes.engine.memory.ranking import (
    RARE,
    Candidate,
    Edge,
    Pool,
    Weights,
    explain,
    keep_related,
    rank,
    related_cosine,
)
from cognizes.engine.memory.records import Hit, MemoryRecord, owner, record_from_row
from cognizes.engine.memory.words import identifiers, join_words, off_loop, spelled_words, split_words
from cognizes.engine.models import MAX_QUERY_LENGTH
from cognizes.engine.pulse.events import check_name

_POOL = 200
_EXPANDED = 50
"""Candidates whose neighbours are read, if `k` is not larger."""
_MAX_K = 1000
_SELECTED = 5000
"""Memories that match a filter up to which all of them are compared, of a user with many memories."""
_MAX_WORDS = 256
"""Distinct words of a query that are sent to the database, which searches the first 64 that are not stop words."""
_MAX_SPELLED = 4000
"""Characters of a query whose words are weighed in its vector."""
_UNKNOWN = 0.6
"""The weight in the vector of a query of a word whose frequency is not known."""


class Recall:
    """Finds memories of one user; no query reads rows of another user.

    For a user with many memories an approximate index selects the candidates; `exact` scans all memories.
    """

    def __init__(
        self, database: Database, *, embedder: Embedder | None, weights: Weights | None = None, exact: bool = False
    ) -> None:
        self._database = database
        self._embedder = embedder
        self._query_vectors = QueryVectors(None if isinstance(embedder, WeightedEmbedder) else embedder)
        self._exact = exact
        self.weights = weights or default_weights(embedder)

    async def recall(
        self,
        query: str,
        *,
        app: str,
        user: str,
        k: int = 10,
        min_score: float = 0.0,
        filters: Filters | None = None,
        half_life: timedelta | None = None,
        visibility: Sequence[str] = ("user",),
    ) -> list[Hit]:
        """Return the `k` best memories of at least `min_score` that fit into `COGNIZES_PAGE_BYTES`, best first.

        Each visibility is a search of its own with its own statistics. Scores do not depend on the other hits, so the
        results are merged by score.
        """
        check_limits(k, min_score)
        if half_life is not None and half_life <= timedelta():
            raise InvalidInputError(f"invalid half_life {half_life}; it must be positive")
        check_name("app", app)
        given = filters or Filters()
        scopes = [(one, (app, owner(user, one), given.seen_as(one, app).document)) for one in dict.fromkeys(visibility)]
        terms = await read_query(query)
        # Before a connection is taken, because a remote embedder may be slow.
        vector = await self._query_vectors.embed(query)
        hits: list[Hit] = []
        async with self._database.one_connection() as fetch:
            for name, scope in scopes:
                search = _RecallQueries(fetch, scope, exact=self._exact)
                await search.select()
                pool = await self._gather(search, query, terms, vector, k)
                pool.half_life = half_life
                ranked = [candidate for candidate in rank(pool, self.weights)[:k] if candidate.score >= min_score]
                records = await search.read((candidate.id for candidate in ranked), name, self._database.page_bytes)
                # A missing memory did not fit into the page, or was deleted between two queries.
                hits += [_hit(records[one.id], one, pool.words) for one in ranked if one.id in records]
        if len(scopes) == 1:
            return hits
        best = sorted(hits, key=lambda hit: (-hit.score, -int(hit.memory.id)))[:k]
        sizes = list(accumulate(len(hit.text.encode(errors="replace")) for hit in best))
        fitting = sum(size <= self._database.page_bytes for size in sizes)
        return best[: max(fitting, 1)]

    async def gather(self, query: str, *, app: str, user: str, k: int = 10) -> Pool:
        """Return the candidates of a recall of `k` hits without ranking them, for benchmarks of the ranking."""
        terms = await read_query(query)
        # Before a connection is taken, because a remote embedder may be slow.
        vector = await self._query_vectors.embed(query)
        async with self._database.one_connection() as fetch:
            search = _RecallQueries(fetch, (app, user, None), exact=self._exact)
            return await self._gather(search, query, terms, vector, k)

    async def _gather(
        self, search: _RecallQueries, query: str, terms: QueryTerms, vector: list[float] | None, k: int
    ) -> Pool:
        size = max(_POOL, k)
        found, weights = await search.by_words(terms, size)
        if isinstance(self._embedder, WeightedEmbedder) and query.strip():
            vector = await self._embedder.embed_weighted(*await weigh_words(query, terms, weights))
        if vector is not None and self._embedder is not None:
            await search.by_vector(found, self._embedder, vector, size)
        best = keep_related(found.values(), compared=search.compared)[: max(_EXPANDED, k)]
        near, edges = await search.neighbours(found, [candidate.id for candidate in best])
        return Pool(near, edges, terms.distinct)


def default_weights(embedder: Embedder | None) -> Weights:
    """Return the weights for an embedder: passages only with WordLlama, for whose cosines their threshold was measured.

    Sentence models give most turns of a conversation a higher cosine, so that too many count as matches.
    """
    return Weights() if isinstance(embedder, WeightedEmbedder) else Weights(passage=0)


def check_limits(k: int, min_score: float) -> None:
    if not isinstance(k, int) or not 1 <= k <= _MAX_K:
        raise InvalidInputError(f"invalid k {k!r}; it must be an integer between 1 and {_MAX_K}")
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
        return spelled, [_UNKNOWN if weight is None else min(1.0, weight / RARE) for weight in found]

    return await off_loop(len(query), weigh)


class _RecallQueries:
    def __init__(self, fetch: Fetch, arguments: tuple[Any, ...], *, exact: bool) -> None:
        self._run_query = fetch
        self._arguments = arguments
        self._exact = exact
        self._selected: list[int] | None = None
        self.compared = 0
        """Memories whose vectors the last search compared."""

    async def select(self) -> None:
        """Read the ids of the memories that match the filter, if it selects few of many."""
        if self._arguments[2] is not None and not self._exact:
            ((selected,),) = await self._fetch("select_memories", _SELECTED)
            self._selected = selected

    async def by_words(self, terms: QueryTerms, limit: int) -> tuple[dict[int, Candidate], list[float | None]]:
        """Return the candidates by words, and the weights of the distinct words of the query."""
        words, named = join_words(terms.words), join_words(terms.identifiers)
        rows = await self._fetch("recall_by_words", self._selected, limit, self._exact, words, named)
        found = {
            row["id"]: Candidate(row["id"], row["share"], row["bm25"], rarity=row["rarity"], matched=row["matched"])
            for row in rows
        }
        return found, rows[0]["weights"] if rows else []

    async def by_vector(self, found: dict[int, Candidate], embedder: Embedder, vector: list[float], limit: int) -> None:
        literal = vector_literal(vector)
        model = embedder.name, embedder.dimension, literal
        for row in await self._fetch("recall_by_vector", self._selected, limit, self._exact, *model, list(found)):
            found.setdefault(row["id"], Candidate(row["id"])).cosine = related_cosine(row["cosine"])
            self.compared = row["memories"] if self._selected is None else len(self._selected)

    async def neighbours(self, found: dict[int, Candidate], best: list[int]) -> tuple[list[Candidate], set[Edge]]:
        """Return the best candidates and their neighbours with session, author and length, and the pairs."""
        near: dict[int, Candidate] = {}
        edges: set[Edge] = set()
        for row in await self._fetch("read_memory_neighbours", best) if best else ():
            one = near[row["id"]] = found.get(row["id"]) or near.get(row["id"]) or Candidate(row["id"])
            one.session_id, one.author, one.length = row["session_id"], row["author"], row["length"]
            one.importance, one.created_at = row["importance"], row["created_at"]
            if (distance := row["distance"]) < 0:
                edges.add(Edge(row["id"], row["origin"], -distance))
            elif distance > 0:
                edges.add(Edge(row["origin"], row["id"], distance))
        return list(near.values()), edges

    async def read(self, ids: Iterable[int], visibility: str, max_bytes: int) -> dict[int, MemoryRecord]:
        rows = await self._run_query("read_memories", *self._arguments[:2], list(ids), max_bytes)
        return {row["id"]: record_from_row(row, visibility) for row in rows}

    async def _fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        return await self._run_query(query, *self._arguments, *arguments)


def vector_literal(vector: Sequence[float]) -> str:
    """Return a vector in the input format of pgvector."""
    return _literal_format(len(vector)) % tuple(vector)


@cache
def _literal_format(dimension: int) -> str:
    # Half precision has four significant digits.
    return f"[{','.join(['%.6g'] * dimension)}]"


def _hit(record: MemoryRecord, candidate: Candidate, words: Sequence[str]) -> Hit:
    measured = {"bm25": candidate.bm25} | ({} if candidate.cosine is None else {"cosine": candidate.cosine})
    return Hit(record, candidate.score, candidate.parts | measured, explain(candidate, words))
