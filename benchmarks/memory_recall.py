"""How well memories are recalled, and how fast.

    uv run python benchmarks/memory_recall.py --data DIR          quality, on LoCoMo's public JSON in that directory
    uv run python benchmarks/memory_recall.py --scale [--million] speed: recall with many memories, ingest
    ... [--quick] [--out DIRECTORY]

Quality: every turn of a conversation is a memory, every conversation a user of its own; a question (categories 1 to 4)
should bring the turns that hold its evidence. R@k is the share of a question's evidence among the first k, averaged
over questions. Beside ours: ADK's SqliteMemoryService, BM25 alone, vectors alone. The weights are round numbers; to see
whether they are tuned to these conversations, they are chosen anew on nine and measured on the tenth, ten times.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import random
import re
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from google.adk.events.event import Event
from google.adk.memory._sqlite_memory_service import SqliteMemoryService
from google.genai import types

from cognizes.engine import Engine
from cognizes.engine.memory.ingest import Remembered
from cognizes.engine.memory.recall import Candidate, Pool, Weights, rank
from cognizes.engine.memory.scope import MemoryScope
from report import Bars, Grid, Lines, Report, Target

_HERE = Path(__file__).parent
_APP = "bench"
_FIRST = 10
_MODEL = "wordllama-256"
Score = tuple[float, float, float]


@dataclass(frozen=True)
class Turn:
    """What somebody said, with the caption of a picture that was shown."""

    id: str
    session: int
    place: int
    author: str
    text: str


@dataclass(frozen=True)
class Question:
    """A question and the turns that answer it."""

    text: str
    evidence: frozenset[str]


@dataclass(frozen=True)
class Conversation:
    """One of LoCoMo's conversations."""

    name: str
    turns: list[Turn]
    questions: list[Question]


def load(directory: Path) -> list[Conversation]:
    """LoCoMo's conversations out of its own JSON."""
    return [_conversation(entry) for entry in json.loads((directory / "locomo10.json").read_text())]


def _conversation(entry: dict[str, Any]) -> Conversation:
    said = entry["conversation"]
    turns = []
    for session in itertools.count(1):
        if f"session_{session}_date_time" not in said and f"session_{session}" not in said:
            break
        for place, turn in enumerate(said.get(f"session_{session}", [])):
            caption = f" [{turn['blip_caption']}]" if turn.get("blip_caption") else ""
            turns.append(Turn(turn["dia_id"], session, place, turn["speaker"], turn["text"] + caption))
    known = {turn.id for turn in turns}
    questions = []
    for asked in entry["qa"]:
        evidence = frozenset(re.findall(r"D\d+:\d+", " ".join(asked.get("evidence", [])))) & known
        if asked["category"] in (1, 2, 3, 4) and evidence:
            questions.append(Question(asked["question"], evidence))
    return Conversation(entry["sample_id"], turns, questions)


def score(found: Sequence[str], evidence: frozenset[str]) -> Score:
    """R@5, R@10 and nDCG@10 of one answer."""
    hits = [place for place, turn in enumerate(found[:_FIRST]) if turn in evidence]
    ideal = sum(1 / math.log2(place + 2) for place in range(min(_FIRST, len(evidence))))
    return (
        sum(place < 5 for place in hits) / len(evidence),
        len(hits) / len(evidence),
        sum(1 / math.log2(place + 2) for place in hits) / ideal,
    )


def mean(scores: Iterable[Score]) -> list[float]:
    """In percent."""
    columns = list(zip(*scores, strict=True))
    return [100 * sum(column) / len(column) for column in columns]


# Quality


@dataclass
class Asked:
    """A question with its candidates: ranking them anew needs no database."""

    question: Question
    pool: Pool
    names: dict[int, str]

    def score(self, order: Callable[[Pool], list[Candidate]]) -> Score:
        return score([self.names[candidate.id] for candidate in order(self.pool)[:_FIRST]], self.question.evidence)


def by_words(pool: Pool) -> list[Candidate]:
    """BM25 alone."""
    return sorted((c for c in pool.candidates if c.bm25), key=lambda c: -c.bm25)


def by_meaning(pool: Pool) -> list[Candidate]:
    """Vectors alone."""
    return sorted((c for c in pool.candidates if c.cosine is not None), key=lambda c: -(c.cosine or 0))


async def ask(engine: Engine, conversation: Conversation) -> list[Asked]:
    """Remembers a conversation, waits for its vectors, and gathers the candidates of every question."""
    scope = MemoryScope(_APP, conversation.name)
    await engine.memory.remember_turns(
        scope,
        [
            Remembered(turn.id, turn.text, session_id=str(turn.session), position=turn.place, author=turn.author)
            for turn in conversation.turns
        ],
    )
    await drained(engine)
    rows = await engine.database.pool.fetch("SELECT id, source_id FROM memories WHERE user_id = $1", conversation.name)
    names = {row["id"]: row["source_id"] for row in rows}
    return [
        Asked(question, await engine.memory.recaller.gather(question.text, app=_APP, user=conversation.name), names)
        for question in conversation.questions
    ]


async def drained(engine: Engine) -> None:
    """Waits until no memory waits for its vector."""
    assert engine.memory.queue is not None, "install the extra `embeddings`"
    while (await engine.memory.queue.length()).waiting:
        await asyncio.sleep(0.02)


async def ask_adk(conversation: Conversation, directory: Path) -> list[Score]:
    """The same questions to ADK's own persistent memory service."""
    service = SqliteMemoryService(directory / f"{conversation.name}.db")
    for session, turns in itertools.groupby(conversation.turns, key=lambda turn: turn.session):
        events = [
            Event(
                id=turn.id,
                author=turn.author,
                content=types.Content(parts=[types.Part(text=f"{turn.author}: {turn.text}")]),
            )
            for turn in turns
        ]
        await service.add_events_to_memory(app_name=_APP, user_id="u", events=events, session_id=str(session))
    scores = []
    for question in conversation.questions:
        found = await service.search_memory(app_name=_APP, user_id="u", query=question.text)
        ids = [str(memory.custom_metadata["event_id"]) for memory in found.memories]
        scores.append(score(ids, question.evidence))
    await service.close()
    return scores


def cross_validate(asked: list[list[Asked]], *, quick: bool) -> tuple[list[float], list[Weights]]:
    """Weights chosen on all conversations but one, measured on that one; the mean over all, and what was chosen."""
    choices = [
        Weights(meaning=meaning, session=session, previous=previous, next=after, rarity=rarity)
        for meaning, session, (previous, after), rarity in itertools.product(
            (0.2, 0.3) if quick else (0.1, 0.2, 0.3, 0.4),
            (0.5,) if quick else (0.3, 0.5, 0.7),
            ((0.3, 0.3), (0.4, 0.2)),
            (0.5,) if quick else (0.25, 0.5),
        )
    ]
    table = {
        choice: [[one.score(lambda pool, w=choice: rank(pool, w)) for one in questions] for questions in asked]
        for choice in choices
    }
    measured: list[Score] = []
    chosen = []
    for left_out in range(len(asked)):

        def elsewhere(choice: Weights, left_out: int = left_out) -> float:
            return mean(s for place, scores in enumerate(table[choice]) if place != left_out for s in scores)[2]

        best = max(choices, key=elsewhere)
        chosen.append(best)
        measured += table[best][left_out]
    return mean(measured), chosen


async def measure_quality(engine: Engine, data: Path, directory: Path, report: Report, *, quick: bool) -> None:
    """LoCoMo, ours and the others."""
    conversations = load(data)[: 3 if quick else None]
    asked = [await ask(engine, conversation) for conversation in conversations]
    everything = list(itertools.chain.from_iterable(asked))
    adk = [one for conversation in conversations for one in await ask_adk(conversation, directory)]
    weights = Weights()
    rows = {
        "ours": mean(one.score(lambda pool: rank(pool, weights)) for one in everything),
        "BM25 alone": mean(one.score(by_words) for one in everything),
        "vectors alone": mean(one.score(by_meaning) for one in everything),
        "ADK SqliteMemoryService": mean(adk),
    }
    validated, chosen = cross_validate(asked, quick=quick)
    rows["ours, cross-validated"] = validated
    report.grids.append(
        Grid(
            f"LoCoMo, {len(everything)} questions of {len(conversations)} conversations, percent",
            ("", "R@5", "R@10", "nDCG@10"),
            [(name, *figures) for name, figures in rows.items()],
        )
    )
    names = ("R@5", "R@10", "nDCG@10")
    for name, bound, figure in zip(names, (60.0, 70.0, 52.0), rows["ours"], strict=True):
        report.targets.append(Target(f"LoCoMo {name}", figure, bound, "%"))
    report.panels.append(Bars("Evidence found (LoCoMo)", "percent", names, dict(rows)))
    report.details["chosen_weights"] = [vars(choice) for choice in chosen]


# Speed

_FILL = """
INSERT INTO memories (app_name, user_id, agent_id, kind, source_id, session_id, position, text, terms, length)
SELECT $1, user_id, $1, 'turn', n::text, (n / 20)::text, n, text, terms, cardinality(terms)
  FROM (SELECT n, $2 || (n / $3) AS user_id,
               (SELECT string_agg('w' || floor(power(5000, random()))::int, ' ')
                  FROM generate_series(1, 12) WHERE n IS NOT NULL) AS text
          FROM generate_series($4::int, $5::int - 1) n) texts,
       LATERAL (SELECT memory_term_keys($1, user_id, text) AS terms) keys
"""
_FILL_VECTORS = """
INSERT INTO memory_vectors (app_name, user_id, memory_id, model, embedding)
SELECT m.app_name, m.user_id, m.id, $1,
       (SELECT array_agg((random() - 0.5)::real) FROM generate_series(1, 256) WHERE m.id IS NOT NULL)::vector::halfvec
  FROM memories m
 WHERE NOT EXISTS (SELECT FROM memory_vectors v
                    WHERE v.app_name = m.app_name AND v.user_id = m.user_id AND v.memory_id = m.id)
"""
_SMALL_SCOPE = 1000
_LARGE_SCOPE = 100_000


async def fill(engine: Engine, prefix: str, scope: int, first: int, last: int) -> None:
    """Memories of made-up words, a few of them frequent, in scopes of one size, with random vectors."""
    async with engine.database.connection() as connection:
        for start in range(first, last, 20_000):
            stop = min(start + 20_000, last)
            await connection.execute(_FILL, _APP, prefix, scope, start, stop, timeout=600)
        await connection.execute(_FILL_VECTORS, _MODEL, timeout=3600)
        await connection.execute("VACUUM ANALYZE memories", timeout=3600)
        await connection.execute("VACUUM ANALYZE memory_vectors", timeout=3600)


async def recall_times(engine: Engine, user: str, *, rounds: int) -> list[float]:
    """Milliseconds of recalls with questions of six words, five of them frequent."""
    dice = random.Random(7)
    times = []
    for number in range(rounds + 10):
        query = " ".join(f"w{int(5000 ** dice.random())}" for _ in range(6))
        started = time.perf_counter()
        await engine.memory.recall(query, app=_APP, user=user, k=10)
        if number >= 10:
            times.append((time.perf_counter() - started) * 1000)
    return sorted(times)


async def ingest_rate(engine: Engine, count: int, *, with_vectors: bool) -> float:
    """Memories a second, in one batch after the other, until they can be recalled by words, or by meaning too."""
    dice = random.Random(11)
    scope = MemoryScope(_APP, f"ingest-{with_vectors}")
    items = [
        Remembered(str(n), " ".join(f"word{int(5000 ** dice.random())}" for _ in range(12)), session_id="s", position=n)
        for n in range(count)
    ]
    started = time.perf_counter()
    await engine.memory.remember_turns(scope, items)
    if with_vectors:
        await drained(engine)
    return count / (time.perf_counter() - started)


async def measure_speed(
    open_engine: Callable[..., Awaitable[Engine]], report: Report, *, quick: bool, million: bool
) -> None:
    """Recall as the database grows, and ingest."""
    rounds = 30 if quick else 200
    engine = await open_engine(memory_background=False)
    sizes = [1000, 10_000] if quick else [1000, 100_000, *([1_000_000] if million else [])]
    large = 20_000 if quick else _LARGE_SCOPE
    p50, p95, before = [], [], 0
    try:
        for size in sizes:
            await fill(engine, "u", _SMALL_SCOPE, before, size)
            before = size
            times = await recall_times(engine, "u0", rounds=rounds)
            p50.append(median(times))
            p95.append(times[int(len(times) * 0.95)])
        await fill(engine, "large", large, 0, large)
        started = time.perf_counter()
        await engine.memory.background._graph.grow()  # type: ignore[union-attr]
        building = time.perf_counter() - started
        wide = await recall_times(engine, "large0", rounds=max(rounds // 4, 10))
        plain = await ingest_rate(engine, 500 if quick else 5000, with_vectors=False)
    finally:
        await engine.close()
    engine = await open_engine()
    try:
        embedded = await ingest_rate(engine, 500 if quick else 5000, with_vectors=True)
    finally:
        await engine.close()
    places = [f"{size:,} memories, scope {_SMALL_SCOPE:,}".replace(",", " ") for size in sizes]
    rows = [*zip(places, p50, p95, strict=True), (f"scope {large:,}".replace(",", " "), median(wide), wide[-1])]
    report.grids.append(Grid("Recall, k = 10, milliseconds", ("", "p50", "p95"), rows))
    report.grids.append(
        Grid(
            "Ingest, memories a second",
            ("", "rate"),
            [("until found by words", plain), ("until found by meaning, too", embedded), ("graph, seconds", building)],
        )
    )
    report.panels.append(Lines("Recall p50, scope of 1 000", "ms", "memories in the database", sizes, {"ours": p50}))
    report.details["milliseconds_large_scope"] = wide


async def main() -> None:
    """Measures what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the directory of locomo10.json")
    parser.add_argument("--scale", action="store_true", help="measure speed")
    parser.add_argument("--million", action="store_true", help="up to a million memories; takes half an hour")
    parser.add_argument("--quick", action="store_true", help="three conversations; 10 000 memories")
    parser.add_argument("--out", type=Path, default=_HERE / "results", help="where the JSON and the chart go")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="cognizes-recall-"))
    report = Report("memory_recall", "Memory: recall")

    async def open_engine(**settings: Any) -> Engine:
        return await Engine.open(data_dir=directory / "data", statement_timeout=0, **settings).start()

    try:
        if options.data is not None:
            engine = await open_engine()
            try:
                await measure_quality(engine, options.data, directory, report, quick=options.quick)
            finally:
                await engine.close()
        if options.scale:
            await measure_speed(open_engine, report, quick=options.quick, million=options.million)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report.print()
    for path in report.write(options.out):
        print(path)


if __name__ == "__main__":
    asyncio.run(main())
