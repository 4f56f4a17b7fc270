"""Recall: the memories that answer a question, by words and by meaning, fused by score.

The score of a memory is a sum that can be read off its hit:

- `words`: BM25, as a share of the best memory's; `meaning`: the cosine of the vectors, from 0 for the worst of the
  candidates to 1 for the best. They are weighed 7 to 3: static vectors are the weaker judge of the two.
- `rarity`: 1 when it holds a word of the question that no other memory holds, 2 when that word is an identifier.
- `speaker`: 1 when the question names who said it.
- `neighbours`: what the turns before and after it in the session score: a question lends to its answer.
- `session`: the mean of the best three of its session: what is talked about there.
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
from cognizes.engine.pulse.event_log import check_name, check_text

KINDS = ("long_term", "episodic", "turn", "note")
_POOL = 200
_BEST_OF_SESSION = 3
_LARGEST_K = 1000
_MOST_WORDS = 256
"""Different words of a query that are looked for: each of them is compared with every memory that holds one."""
_LONGEST_AUTHOR = 200
_UNRELATED = 0.15
"""A cosine below this says nothing: texts that have nothing to do with each other reach it."""


@dataclass(frozen=True)
class Weights:
    """What each part of a score counts."""

    meaning: float = 0.3
    rarity: float = 0.5
    speaker: float = 0.2
    previous: float = 0.4
    next: float = 0.2
    session: float = 0.5


@dataclass(frozen=True)
class Filters:
    """Which memories may be recalled; None lets all pass. `since` is included, `until` is not."""

    agent: str | None = None
    kinds: Sequence[str] | None = None
    namespace: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        if unknown := set(self.kinds or ()) - set(KINDS):
            raise InvalidInputError(f"there is no kind {sorted(unknown)[0]!r} of memory; kinds are {', '.join(KINDS)}")
        for moment in (self.since, self.until):
            if moment is not None and moment.tzinfo is None:
                raise InvalidInputError("a time without a time zone could be any; give it one")

    @property
    def columns(self) -> tuple[Any, ...]:
        """As the queries want them."""
        return (
            None if self.agent is None else check_text("agent", self.agent),
            None if self.kinds is None else list(self.kinds),
            None if self.namespace is None else check_text("namespace", self.namespace),
            self.since,
            self.until,
        )


@dataclass(frozen=True)
class MemoryRecord:
    """A memory as it is stored. `id` is for `forget`; `source_id` is the caller's own."""

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
        """As JSON data."""
        return vars(self) | {"created_at": self.created_at.isoformat()}


@dataclass(frozen=True)
class Hit:
    """A memory that was recalled, its score, and what the score is made of."""

    memory: MemoryRecord
    score: float
    scores: dict[str, float]

    @property
    def text(self) -> str:
        """What it says."""
        return self.memory.text

    def to_json(self) -> JsonObject:
        """As JSON data."""
        return {**self.memory.to_json(), "score": self.score, "scores": self.scores}


@dataclass
class Candidate:
    """A memory that may be recalled, with what the two judges and its place say of it."""

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
    """Candidates, which of them follows which in a session, and the words that were asked for."""

    candidates: list[Candidate]
    edges: list[tuple[int, int]]
    words: set[str]


class Recall:
    """Finds memories of one user. No query of it reads another user's rows.

    Of a user with very many memories the candidates are chosen by an index, which may miss one; `exact` looks at all.
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
        """The `k` best memories, best first, that fit into `COGNIZES_PAGE_BYTES`."""
        if not 1 <= k <= _LARGEST_K:
            raise InvalidInputError(f"k is between 1 and {_LARGEST_K}")
        scope = check_name("app", app), check_name("user", user), *(filters or Filters()).columns
        asked = await read_query(query)
        vector = await self._embed(query)
        async with self._database.asking() as fetch:
            search = _Search(fetch, scope, exact=self._exact)
            pool = await self._gather(search, asked, vector, max(_POOL, k))
            ranked = rank(pool, self.weights)[:k]
            records = await search.read((candidate.id for candidate in ranked), max_bytes=self._database.page_bytes)
        # A memory that is missing did not fit, or was deleted between two queries.
        return [_hit(records[candidate.id], candidate) for candidate in ranked if candidate.id in records]

    async def gather(self, query: str, *, app: str, user: str) -> Pool:
        """The candidates of a recall before they are ranked: for those who measure the ranking."""
        asked = await read_query(query)
        vector = await self._embed(query)
        async with self._database.asking() as fetch:
            search = _Search(fetch, (app, user, *Filters().columns), exact=self._exact)
            return await self._gather(search, asked, vector, _POOL)

    async def _gather(self, search: _Search, asked: Asked, vector: list[float] | None, size: int) -> Pool:
        found = await search.by_words(asked, size)
        if vector is not None and self._embedder is not None:
            await search.by_vector(found, self._embedder, vector, size)
        edges = await search.neighbours(found)
        return Pool(list(found.values()), edges, set(asked.words))

    async def _embed(self, query: str) -> list[float] | None:
        if self._embedder is None or not query.strip():
            return None
        return await self._embedder.embed_query(query)


@dataclass(frozen=True)
class Asked:
    """The words of a query, and those of them that name one thing."""

    words: list[str]
    identifiers: list[str]


async def read_query(query: str) -> Asked:
    """Split a query into words. `LimitExceededError` when it is too long; of very many words the first ones count."""
    if len(query) > MAX_QUERY_LENGTH:
        raise LimitExceededError("query", size=len(query), limit=MAX_QUERY_LENGTH, unit="characters")
    words, named = await off_loop(len(query), lambda: (split_words(query), identifiers(query)))
    wanted = set(islice(dict.fromkeys(words), _MOST_WORDS))
    return Asked([word for word in words if word in wanted], [word for word in named if word in wanted])


class _Search:
    """The queries of one recall, on one connection."""

    def __init__(self, fetch: Fetch, arguments: tuple[Any, ...], *, exact: bool) -> None:
        self._ask = fetch
        self._arguments = arguments
        self._exact = exact

    async def by_words(self, asked: Asked, limit: int) -> dict[int, Candidate]:
        words, named = join_words(asked.words), join_words(asked.identifiers)
        rows = await self._fetch("recall_by_words", limit, self._exact, words, named)
        return {row["id"]: Candidate(row["id"], bm25=row["bm25"], rarity=row["rarity"]) for row in rows}

    async def by_vector(self, found: dict[int, Candidate], embedder: Embedder, vector: list[float], limit: int) -> None:
        spelled = spell_vector(vector)
        rows = await self._fetch("recall_by_vector", limit, self._exact, embedder.name, embedder.dimension, spelled)
        for row in rows:
            if is_related(row["cosine"]):
                found.setdefault(row["id"], Candidate(row["id"])).cosine = row["cosine"]

    async def neighbours(self, found: dict[int, Candidate]) -> list[tuple[int, int]]:
        """Completes the candidates, adds those beside them, and says which follows which."""
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
        rows = await self._ask("read_memories", *self._arguments[:2], list(ids), max_bytes)
        return {row["id"]: record_from_row(row) for row in rows}

    async def _fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        return await self._ask(query, *self._arguments, *arguments)


def rank(pool: Pool, weights: Weights) -> list[Candidate]:
    """Best first. Pure arithmetic, so that it can be read, tested and measured without a database."""
    by_id = {candidate.id: candidate for candidate in pool.candidates}
    _score_alone(pool, weights)
    lent: dict[int, float] = defaultdict(float)
    for earlier, later in pool.edges:
        lent[later] += weights.previous * by_id[earlier].own
        lent[earlier] += weights.next * by_id[later].own
    sessions = _session_scores(by_id.values())
    for candidate in by_id.values():
        session = sessions.get(candidate.session_id, 0.0) if candidate.session_id is not None else 0.0
        candidate.parts |= {"neighbours": lent[candidate.id], "session": weights.session * session}
        candidate.score = candidate.own + candidate.parts["neighbours"] + candidate.parts["session"]
    return sorted(by_id.values(), key=lambda candidate: (-candidate.score, -candidate.id))


def _score_alone(pool: Pool, weights: Weights) -> None:
    candidates = pool.candidates
    best = max((candidate.bm25 for candidate in candidates), default=0.0) or 1.0
    cosines = [candidate.cosine for candidate in candidates if candidate.cosine is not None]
    meaning = weights.meaning if cosines else 0.0
    lowest, span = (min(cosines), max(cosines) - min(cosines) or 1.0) if cosines else (0.0, 1.0)
    # One alone is the best there is, not the worst.
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
    return not words.isdisjoint(split_words((author or "")[:_LONGEST_AUTHOR]))


def is_related(cosine: float) -> bool:
    """Whether a cosine says something. NaN does not: the vector of a text without words is all zeros."""
    return cosine >= _UNRELATED


def spell_vector(vector: Sequence[float]) -> str:
    """As pgvector reads it."""
    # A half-precision number has four digits.
    return f"[{','.join([f'{value:.6g}' for value in vector])}]"


def record_from_row(row: asyncpg.Record) -> MemoryRecord:
    """A memory as it was stored."""
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
