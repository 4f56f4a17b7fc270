"""The ranking of recall: the score of each candidate from its parts, without a database.

The parts of a score are measured on scales that do not depend on the other memories, so that the two halves of the
search can be added for short chat turns and for long texts alike. A hit contains the parts:

- `words`: BM25 divided by its maximum for the query; 1 if the memory contains every word of the query often.
- `meaning`: the cosine of the vectors. A frequent word of the user's memories weighs less in the vector of the query.
  While a memory has no vector, its words stand in for its meaning.
- `rarity`: 0.1 if the memory contains the query and one of its words is in no other memory; 1 for such an identifier.
- `speaker`: 1 if the query contains the name of the author.
- `neighbours`: what up to three memories before and after it in the session have, less with the distance, so that a
  question raises its answer. A memory that is much shorter than its neighbour gets less.
- `passage`: how far it and the memories around it match: what each has above 0.5, half of it 200 words further on. In
  short turns a passage covers many of them, and a long message is a passage of its own.
- `session`: what the best memory of its session has; of a memory without a session, what it has itself.
- `importance`: the importance that was stored with the memory, if any.
- `recency`: 1 for a new memory, half after each half-life, if the caller gives one.

The sum s becomes the score s / (1 + s), between 0 and 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import exp, log, log1p, sqrt

from cognizes.engine.database.documents import unescape_text
from cognizes.engine.memory.words import split_words

_AUTHOR_LENGTH = 200
_UNRELATED = 0.05
"""Cosines below this are ignored: half of all unrelated texts reach them."""
_RELATED = 0.15
_SPREAD = 0.075
"""The standard deviation of the cosines of unrelated texts, measured with WordLlama."""
RARE = 0.7
"""A word of this weight or more, of at most 1, counts fully in the vector of a query."""
_NAMED_WORDS = 5
_STRONG = 0.5
"""A memory whose own parts exceed this is a match that raises the passage around it."""
_PASSAGE_WORDS = 200
"""Words of text, without stop words, after which a passage has half of what a match has."""
_PASSAGE_REACH = 20
_PASSAGE_MATCHES = 100
"""Bounds of the work: memories before and after a match that its passage contains, and matches that raise passages."""
_ARTICLES = frozenset(
    {"the", "a", "an", "of", "and", "der", "die", "das", "le", "la", "les", "el", "los", "de", "du", "von"}
)
"""Parts of names that are words of most queries."""
_NOTABLE = 0.02
"""What the passage of a hit must add to be one of its reasons."""


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
    passage: float = 1.0
    session: float = 0.8
    importance: float = 0.3
    recency: float = 0.3


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
    importance: float | None = None
    created_at: datetime | None = None
    parts: dict[str, float] = field(default_factory=dict)
    own: float = 0.0
    from_passage: float = 0.0
    score: float = 0.0


@dataclass(frozen=True)
class Edge:
    earlier: int
    later: int
    distance: int


@dataclass
class Pool:
    """Candidates, the pairs of neighbours among them, the words of the query, and the half-life of recency if any."""

    candidates: list[Candidate]
    edges: Collection[Edge]
    words: Sequence[str]
    half_life: timedelta | None = None


def keep_related(candidates: Iterable[Candidate], *, compared: int = 0) -> list[Candidate]:
    """Return the candidates that match by a word or by their meaning, best first; none if the query matches neither.

    The nearest of n unrelated texts has a cosine of about `_SPREAD` times the root of 2 ln n; more is a match.
    `compared` is n, at least the number of candidates with a cosine.
    """
    found = list(candidates)
    number = max(compared, sum(one.cosine is not None for one in found), 2)
    related = max(_RELATED, _SPREAD * sqrt(2 * log(number)))
    if not any(one.share > 0 or (one.cosine or 0.0) >= related for one in found):
        return []
    # Beside a match, also lower cosines: leaving them out lowers the recall of paraphrases.
    matching = [one for one in found if one.share > 0 or one.cosine]
    return sorted(matching, key=lambda one: (-one.share - (one.share if one.cosine is None else one.cosine), -one.id))


def rank(pool: Pool, weights: Weights) -> list[Candidate]:
    """Score the candidates and return them, best first. Needs no database."""
    by_id = {candidate.id: candidate for candidate in pool.candidates}
    now = datetime.now(UTC)
    _score_individually(pool, weights)
    from_neighbours: dict[int, float] = defaultdict(float)
    for edge in pool.edges:
        earlier, later = by_id[edge.earlier], by_id[edge.later]
        near = weights.decay ** (edge.distance - 1)
        from_neighbours[later.id] += weights.previous * near * earlier.own * _gain(later, earlier)
        from_neighbours[earlier.id] += weights.next * near * later.own * _gain(earlier, later)
    around = _passages(by_id, pool.edges)
    best: dict[str, float] = defaultdict(float)
    for candidate in by_id.values():
        if candidate.session_id is not None:
            best[candidate.session_id] = max(best[candidate.session_id], candidate.own)
    for candidate in by_id.values():
        session = candidate.own if candidate.session_id is None else best[candidate.session_id]
        alone = weights.passage * _saturate(_excess(candidate))
        passage = weights.passage * _saturate(_excess(candidate) + around[candidate.id])
        candidate.from_passage = passage - alone
        candidate.parts |= {"neighbours": from_neighbours[candidate.id], "passage": passage}
        candidate.parts["session"] = weights.session * session
        candidate.parts |= _upkeep_parts(candidate, pool.half_life, weights, now)
        total = sum(candidate.parts.values())
        candidate.score = total / (1 + total)
    return sorted(by_id.values(), key=lambda candidate: (-candidate.score, -candidate.id))


def _passages(by_id: dict[int, Candidate], edges: Collection[Edge]) -> dict[int, float]:
    """Return what each candidate gets from matches around it, along the known consecutive memories of its session."""
    following = _successors(edges)
    preceding = {later: earlier for earlier, later in following.items()}
    received: dict[int, float] = defaultdict(float)
    matches = [candidate for candidate in by_id.values() if candidate.own > _STRONG]
    matches.sort(key=lambda candidate: (-candidate.own, -candidate.id))
    for match in matches[:_PASSAGE_MATCHES]:
        for step in (following, preceding):
            words, at = match.length / 2, match
            for _ in range(_PASSAGE_REACH):
                if (number := step.get(at.id)) is None:
                    break
                at = by_id[number]
                share = 0.5 ** ((words + at.length / 2) / _PASSAGE_WORDS)
                received[at.id] += share * _excess(match) * _gain(at, match)
                words += at.length
    return received


def _successors(edges: Collection[Edge]) -> dict[int, int]:
    """Return the memory that directly follows each, as far as the pairs of neighbours tell."""
    before = {(edge.later, edge.distance): edge.earlier for edge in edges}
    after = {(edge.earlier, edge.distance): edge.later for edge in edges}
    found: dict[int, int] = {}
    for (origin, distance), number in before.items():
        following = origin if distance == 1 else before.get((origin, distance - 1))
        if following is not None:
            found[number] = following
    for (origin, distance), number in after.items():
        preceding = origin if distance == 1 else after.get((origin, distance - 1))
        if preceding is not None:
            found[preceding] = number
    return found


def _excess(candidate: Candidate) -> float:
    return max(0.0, candidate.own - _STRONG)


def _saturate(matches: float) -> float:
    return 1 - exp(-matches)


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


def _upkeep_parts(
    candidate: Candidate, half_life: timedelta | None, weights: Weights, now: datetime
) -> dict[str, float]:
    parts = {}
    if candidate.importance is not None:
        parts["importance"] = weights.importance * candidate.importance
    if half_life is not None and candidate.created_at is not None:
        age = max(now - candidate.created_at, timedelta()) / half_life
        parts["recency"] = weights.recency * 0.5**age
    return parts


def _gain(candidate: Candidate, neighbour: Candidate) -> float:
    """Return how much a memory gets of a neighbour's score: less if it is much shorter ("Go on." after a long text)."""
    return min(1.0, log1p(candidate.length) / log1p(neighbour.length)) if neighbour.length else 1.0


def _is_named(author: str | None, words: set[str]) -> bool:
    return not words.isdisjoint(set(split_words((author or "")[:_AUTHOR_LENGTH])) - _ARTICLES)


def related_cosine(cosine: float) -> float:
    """Return a cosine, 0 if it is not significant or NaN: the vector of a text without words is zero."""
    return cosine if cosine >= _UNRELATED else 0.0


def explain(candidate: Candidate, words: Sequence[str]) -> str:
    """Return the reasons of a hit in words."""
    reasons = []
    if candidate.matched:
        found = [words[place - 1] for place in sorted(candidate.matched) if place <= len(words)]
        more = f" and {len(found) - _NAMED_WORDS} more" if len(found) > _NAMED_WORDS else ""
        reasons.append(f"contains {', '.join(found[:_NAMED_WORDS])}{more} ({candidate.share:.0%} of the query's words)")
    if candidate.cosine:
        reasons.append(f"similar in meaning (cosine {candidate.cosine:.2f})")
    if candidate.rarity >= RARE:
        reasons.append("hardly any other memory contains one of these words")
    if candidate.parts.get("speaker"):
        reasons.append(f"said by {unescape_text(candidate.author or '')}")
    if candidate.parts.get("neighbours", 0.0) > candidate.own:
        reasons.append("next to memories that match")
    if candidate.from_passage >= _NOTABLE:
        reasons.append("in a passage that matches")
    return "; ".join(reasons) or "in a session that matches"
