"""Measure recall and ingest by number of memories: for `memory_recall.py --scale`.

Two users are measured: one with 1 000 memories, one with 100 000. Their memories are sentences of a Markov chain over
the texts of Python's help, stored by `remember_turns` and embedded by the engine. The memories of other users make the
database large: their texts, word keys and vectors are synthetic, and are inserted without the engine.
"""

from __future__ import annotations

import random
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from pydoc_data.topics import topics
from statistics import mean, median
from typing import Any

from cognizes.engine import Engine, LimitExceededError
from cognizes.engine.memory.filters import Range
from cognizes.engine.memory.recall import Recall
from cognizes.engine.memory.records import MemoryScope, Remembered
from cognizes.engine.memory.vectors import VectorIndex
from cognizes.engine.models import MAX_QUERY_LENGTH
from report import Grid, Lines, Report, Target

_APP = "bench"
_SMALL, _LARGE = "small", "large"
_OTHERS = 1000
"""Memories of each user that is not measured."""
_FIRST = 10
_TURNS_OF_SESSION = 20
_FILTERS: dict[str, dict[str, Any]] = {
    "a tag of 1 in 100": {"tags": ["topic7"]},
    "a tag of 1 in 2": {"tags": ["even"]},
    "a range of metadata, 1 in 50": {"metadata": {"number": Range(gte=40, lt=60)}},
    "kind and time, none excluded": {"kinds": ["turn"], "since": datetime(2020, 1, 1, tzinfo=UTC)},
}

_FILL = """
INSERT INTO memories (app_name, user_id, agent_id, kind, source_id, session_id, position, text, terms, length)
SELECT $1, 'other-' || n / $2, $1, 'turn', n::text, (n / 20)::text, n, 'made up, made up, made up, made up, made up',
       ARRAY(SELECT hashint8extended(n / $2 * 5000 + floor(power(5000, random()))::int8, 0)
               FROM generate_series(1, 12) WHERE n IS NOT NULL), 12
  FROM generate_series($3::int, $4::int - 1) n
"""
_FILL_VECTORS = """
WITH made AS MATERIALIZED (
    SELECT place, (SELECT array_agg((random() - 0.5)::real) FROM generate_series(1, $2::int)
                    WHERE place IS NOT NULL)::vector::halfvec AS embedding FROM generate_series(0, 999) place
)
INSERT INTO memory_vectors (app_name, user_id, memory_id, model, embedding)
SELECT m.app_name, m.user_id, m.id, $1, made.embedding
  FROM memories m JOIN made ON made.place = m.id % 1000 WHERE m.user_id LIKE 'other-%'
"""
_FILL_COUNTS = """
INSERT INTO memory_scopes (app_name, user_id, memories, total_length)
SELECT app_name, user_id, count(*), sum(length) FROM memories WHERE user_id LIKE 'other-%' GROUP BY 1, 2
"""


@dataclass(frozen=True)
class Plan:
    """The amount of work."""

    small: int
    large: int
    total: int | None
    rounds: int
    compared: int
    ingested: int


FULL = Plan(small=1000, large=100_000, total=None, rounds=200, compared=100, ingested=10_000)
MILLION = Plan(small=1000, large=100_000, total=1_000_000, rounds=200, compared=100, ingested=10_000)
QUICK = Plan(small=500, large=21_000, total=30_000, rounds=30, compared=20, ingested=1000)


class Prose:
    """Generates sentences with the word frequencies of English."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._after: dict[tuple[str, str], list[str]] = defaultdict(list)
        for text in topics.values():
            words = re.findall(r"[A-Za-z][A-Za-z']*", text)
            for first, second, third in zip(words, words[1:], words[2:], strict=False):
                self._after[first, second].append(third)
        self._pairs = list(self._after)

    def sentence(self, length: int) -> str:
        """So many words."""
        pair = self._dice.choice(self._pairs)
        words = list(pair)
        while len(words) < length:
            pair = (pair[1], self._dice.choice(self._after.get(pair) or self._dice.choice(self._pairs)))
            words.append(pair[1])
        return " ".join(words[:length])

    def turns(self, count: int, *, labelled: bool) -> Iterator[Remembered]:
        """Turns of sessions, with tags and metadata if they are labelled."""
        for number in range(count):
            text = self.sentence(self._dice.randint(8, 24))
            session = str(number // _TURNS_OF_SESSION)
            labels: dict[str, Any] = {}
            if labelled:
                tags = [f"topic{number % 100}", "even" if number % 2 == 0 else "odd"]
                labels = {"tags": tags, "metadata": {"number": number % 1000}}
            yield Remembered(str(number), text, session_id=session, position=number, author="ada", **labels)


def questions(count: int) -> list[str]:
    """Return a query: six consecutive words of some sentence."""
    prose = Prose(7)
    return [prose.sentence(6) for _ in range(count)]


class Scale:
    """Measures in stages in one database."""

    def __init__(self, engine: Engine, plan: Plan) -> None:
        self._engine = engine
        self._plan = plan
        self.sizes: list[int] = []
        self.times: dict[str, list[list[float] | None]] = {_SMALL: [], _LARGE: []}
        self.filtered: dict[tuple[str, str], list[float]] = {}
        self.processor: dict[tuple[str, str], list[float]] = {}
        self.seconds: dict[str, float] = {}

    async def recall(self, user: str, name: str, query: str, **filters: Any) -> float:
        """Return the milliseconds of a recall; add the processor time of PostgreSQL to the measured ones of this name.

        Other work on the machine changes the processor time little.
        """
        rows = await self._engine._database.pool.fetch(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
        )
        pids = [row["pid"] for row in rows]
        before, started = _processor_ms(pids), time.perf_counter()
        await self._engine.memory.recall(query, app=_APP, user=user, k=_FIRST, **filters)
        taken = (time.perf_counter() - started) * 1000
        self.processor.setdefault((user, name), []).append(_processor_ms(pids) - before)
        return taken

    async def ingest(self, user: str, count: int, *, embed: bool) -> float:
        """Measure memories per second until they are found by words, or also by meaning."""
        items = list(Prose(count).turns(count, labelled=embed))
        started = time.perf_counter()
        await self._engine.memory.remember_turns(MemoryScope(_APP, user), items)
        while embed and await self._engine.memory.queue.work():  # type: ignore[union-attr]
            pass
        return count / (time.perf_counter() - started)

    async def grow_graph(self) -> None:
        """Move the vectors of the large user into the HNSW index, as the background task does."""
        embedder = self._engine.memory.embedder
        assert embedder is not None, "install the extra `embeddings`"
        started = time.perf_counter()
        await VectorIndex(self._engine._database, embedder).grow()
        self.seconds["the graph of the large scope is built"] = time.perf_counter() - started

    async def fill(self, count: int) -> None:
        """Insert synthetic memories of other users. Drops and rebuilds the word indexes; no triggers fire."""
        embedder = self._engine.memory.embedder
        assert embedder is not None
        started = time.perf_counter()
        async with self._engine._database.connection() as connection:
            index = await connection.fetchval("SELECT pg_get_indexdef('idx_memories_terms'::regclass)")
            async with connection.transaction():
                await connection.execute(
                    "SET LOCAL session_replication_role = replica; SET LOCAL maintenance_work_mem = '1GB';"
                    "DROP INDEX idx_memories_terms"
                )
                for first in range(0, count, 50_000):
                    last = min(first + 50_000, count)
                    await connection.execute(_FILL, _APP, _OTHERS, first, last, timeout=600)
                await connection.execute(_FILL_VECTORS, embedder.name, embedder.dimension, timeout=600)
                await connection.execute(_FILL_COUNTS, timeout=600)
                await connection.execute(index, timeout=600)
        await self.analyze()
        self.seconds[f"{count} made-up memories are loaded"] = time.perf_counter() - started

    async def analyze(self) -> None:
        """Vacuum and analyse, as autovacuum would."""
        async with self._engine._database.connection() as connection:
            for table in ("memories", "memory_metadata", "memory_vectors", "memory_scopes", "memory_embedding_queue"):
                await connection.execute(f"VACUUM (ANALYZE) {table}", timeout=600)

    async def measure(self, *users: str) -> None:
        """Measure milliseconds per recall of these users, alternating."""
        times: dict[str, list[float]] = {user: [] for user in users}
        for number, question in enumerate(questions(self._plan.rounds + 10)):
            if number == 10:
                self.processor = {}
            for user in users:
                times[user].append(await self.recall(user, "no filter", question))
        self.sizes.append(await self._engine._database.pool.fetchval("SELECT count(*) FROM memories"))
        for user, measured in self.times.items():
            measured.append(sorted(times[user][10:]) if user in times else None)

    async def measure_filters(self) -> None:
        """Measure milliseconds per recall of both users with each filter, alternating."""
        for number, question in enumerate(questions(self._plan.compared + 5)):
            for user in (_SMALL, _LARGE):
                for name, filters in _FILTERS.items():
                    taken = await self.recall(user, name, question, **filters)
                    if number >= 5:
                        self.filtered.setdefault((user, name), []).append(taken)

    async def measure_long_queries(self) -> dict[str, list[float]]:
        """Measure milliseconds per recall with 100 000 characters, of which the engine accepts the first 10 000."""
        prose, found = Prose(11), defaultdict[str, list[float]](list)
        for _ in range(self._plan.compared):
            text = " ".join(prose.sentence(24) for _ in range(1000))[:100_000]
            assert len(text) == 100_000
            for user in (_SMALL, _LARGE):
                started = time.perf_counter()
                try:
                    await self._engine.memory.recall(text, app=_APP, user=user, k=_FIRST)
                except LimitExceededError:
                    found[f"{user}, refused"].append((time.perf_counter() - started) * 1000)
                found[user].append(await self.recall(user, "10 000 characters", text[:MAX_QUERY_LENGTH]))
        return found

    async def agreement(self) -> tuple[list[float], list[float], list[float]]:
        """Compare with the exact ranking: share of its first ten, equal first hit, milliseconds of the exact recall."""
        exact = Recall(self._engine._database, embedder=self._engine.memory.embedder, exact=True)
        shares, firsts, times = [], [], []
        for question in questions(self._plan.compared):
            found = await self._engine.memory.recall(question, app=_APP, user=_LARGE, k=_FIRST)
            started = time.perf_counter()
            wanted = await exact.recall(question, app=_APP, user=_LARGE, k=_FIRST)
            times.append((time.perf_counter() - started) * 1000)
            ids = {hit.memory.id for hit in wanted}
            shares.append(sum(hit.memory.id in ids for hit in found) / max(len(ids), 1))
            firsts.append(float(found[0].memory.id == wanted[0].memory.id))
        return shares, firsts, times


async def measure_scale(open_engine: Callable[..., Awaitable[Engine]], report: Report, plan: Plan) -> None:
    """Measure recall by size of the database, its agreement with the exact ranking, and ingest."""
    started = time.perf_counter()
    engine = await open_engine(memory_background=False)
    try:
        scale = Scale(engine, plan)
        embedded = await _stages(scale, plan)
        await scale.measure_filters()
        long_queries = await scale.measure_long_queries()
        plain = await scale.ingest("plain", plan.ingested, embed=False)
        shares, firsts, exact = await scale.agreement()
    finally:
        await engine.close()
    scale.seconds["all of it"] = time.perf_counter() - started
    rows = []
    for name, user, size in (("scope", _SMALL, plan.small), ("scope", _LARGE, plan.large)):
        for place, measured in zip(scale.sizes, scale.times[user], strict=True):
            if measured is not None:
                row = f"{_spaced(place)} memories, {name} of {_spaced(size)}"
                rows.append((row, median(measured), measured[int(len(measured) * 0.95)]))
    report.grids += [
        Grid("Recall, k = 10, milliseconds", ("", "p50", "p95"), rows),
        Grid(
            f"Recall with a filter, k = 10, {_spaced(scale.sizes[-1])} memories, milliseconds",
            ("", "p50", "p95"),
            [
                (f"scope of {_spaced(size)}, {name}", median(times), sorted(times)[int(len(times) * 0.95)])
                for owner, size in ((_SMALL, plan.small), (_LARGE, plan.large))
                for (user, name), times in scale.filtered.items()
                if user == owner
            ],
        ),
        Grid(
            "Queries of 100 000 characters: refused, or cut to 10 000 as ADK's search_memory does, milliseconds",
            ("", "p50", "p99"),
            [
                (f"scope of {_spaced(size)}{name}", median(times), sorted(times)[int(len(times) * 0.99)])
                for user, size in ((_SMALL, plan.small), (_LARGE, plan.large))
                for name, times in ((", refused", long_queries[f"{user}, refused"]), (", cut", long_queries[user]))
            ],
        ),
        Grid(
            "Processor time of PostgreSQL for a recall, milliseconds",
            ("", "p50", "p95"),
            [
                (f"scope of {_spaced(size)}, {name}", median(times), sorted(times)[int(len(times) * 0.95)])
                for owner, size in ((_SMALL, plan.small), (_LARGE, plan.large))
                for (user, name), times in scale.processor.items()
                if user == owner
            ],
        ),
        Grid(
            f"Recall among {_spaced(plan.large)} memories against the exact ranking, {len(shares)} questions, percent",
            ("", ""),
            [
                ("of the exact ten", 100 * mean(shares)),
                ("of them, worst question", 100 * min(shares)),
                ("the first is the same", 100 * mean(firsts)),
                ("the exact ranking takes, ms", median(exact)),
            ],
        ),
        Grid(
            "Ingest, memories a second",
            ("", "rate"),
            [("until found by words", plain), ("until found by meaning, too", embedded)],
        ),
        Grid(
            "Loading: measured scopes have generated sentences and real vectors, the rest is made up",
            ("", "seconds"),
            list(scale.seconds.items()),
        ),
    ]
    for user, size, wanted in ((_SMALL, plan.small, 15.0), (_LARGE, plan.large, 50.0)):
        slowest = max(median(times) for (owner, _), times in scale.filtered.items() if owner == user)
        last = median(scale.times[user][-1] or [])
        report.targets += [
            Target(f"p50, scope of {_spaced(size)}", last, wanted, "ms", at_least=False),
            Target(f"p50 with the slowest filter, scope of {_spaced(size)}", slowest, wanted, "ms", at_least=False),
        ]
    report.targets.append(Target("agreement with the exact first ten", 100 * mean(shares), 95.0, "%"))
    report.panels.append(
        Lines(
            "Recall p50",
            "ms",
            "memories in the database",
            scale.sizes,
            {
                f"scope of {_spaced(size)}": [None if times is None else median(times) for times in scale.times[user]]
                for user, size in ((_SMALL, plan.small), (_LARGE, plan.large))
            },
        )
    )
    report.details |= {"recall_ms": scale.times, "agreement": shares, "exact_ms": exact}


async def _stages(scale: Scale, plan: Plan) -> float:
    await scale.ingest(_SMALL, plan.small, embed=True)
    await scale.analyze()
    await scale.measure(_SMALL)
    embedded = await scale.ingest(_LARGE, plan.large, embed=True)
    await scale.analyze()
    await scale.grow_graph()
    await scale.analyze()
    await scale.measure(_SMALL, _LARGE)
    if plan.total is not None:
        await scale.fill(plan.total - plan.small - plan.large)
        await scale.measure(_SMALL, _LARGE)
    return embedded


def _processor_ms(pids: Sequence[int]) -> float:
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e6


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")
