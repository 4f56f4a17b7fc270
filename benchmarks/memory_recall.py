"""Measure how well memories are recalled, and how fast.

    uv run python benchmarks/memory_recall.py --locomo DIR --qmsum DIR   quality, on three corpora (memory_corpora.py)
    uv run python benchmarks/memory_recall.py --scale [--million]        speed, as memories grow (memory_scale.py)
    ... [--embedder NAME] [--quick] [--out DIRECTORY]

Quality: every turn of a conversation is a memory and every conversation is a user. A question should find the turns
that contain its evidence. R@k is the share of the evidence of a question among the first k hits, averaged over
questions. An interval is the middle 95 % of 1 000 bootstrap samples of conversations. The rows are BM25 alone, vectors
alone, vectors alone with an unweighted query, and the mix; beside them ADK's SqliteMemoryService. To show that the
weights are not tuned to these corpora, they are chosen again on all conversations of all corpora but one part, and
measured on that part.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.adk.events.event import Event
from google.adk.memory._sqlite_memory_service import SqliteMemoryService
from google.genai import types

from cognizes.engine import Engine
from cognizes.engine.memory.ranking import Pool, Weights, rank
from cognizes.engine.memory.recall import Recall, default_weights, vector_literal
from cognizes.engine.memory.records import MemoryScope, Remembered
from memory_corpora import Conversation, Question, load_locomo, load_qmsum, make_headings, make_paraphrases
from memory_scale import FULL, MILLION, QUICK, measure_scale
from report import Bars, Grid, Report, Target

_HERE = Path(__file__).parent
_APP = "bench"
_FIRST = 10
_WIDE = 200
_SAMPLES = 1000
_NEAREST = """
SELECT memory_id FROM memory_vectors WHERE app_name = $1 AND user_id = $2 ORDER BY embedding <=> $3::halfvec LIMIT $4
"""
_UNRELATED_QUERIES = ("python", "quantum chromodynamics", "zyzzyva", "xqv 4711", "photosynthesis")
Score = tuple[float, float, float]


def score(found: Sequence[str], evidence: frozenset[str]) -> Score:
    """Return R@5, R@10 and nDCG@10 of one answer."""
    hits = [place for place, turn in enumerate(found[:_FIRST]) if turn in evidence]
    ideal = sum(1 / math.log2(place + 2) for place in range(min(_FIRST, len(evidence))))
    return (
        sum(place < 5 for place in hits) / len(evidence),
        len(hits) / len(evidence),
        sum(1 / math.log2(place + 2) for place in hits) / ideal,
    )


def mean(scores: Iterable[Score]) -> list[float]:
    """Return the means in percent."""
    columns = list(zip(*scores, strict=True))
    return [100 * sum(column) / len(column) for column in columns]


# Quality


@dataclass
class Asked:
    """A question with its candidates: ranking them again needs no database.

    `pool` is the one of a recall of ten hits; the halves are measured on `wide`, which contains more.
    """

    question: Question
    pool: Pool
    wide: Pool
    unweighted: list[int]
    names: dict[int, str]

    def score(self, order: Callable[[Asked], Iterable[int]]) -> Score:
        found = itertools.islice(order(self), _FIRST)
        return score([self.names[number] for number in found], self.question.evidence)


def by_words(asked: Asked) -> Iterable[int]:
    """BM25 alone."""
    return (c.id for c in sorted((c for c in asked.wide.candidates if c.bm25), key=lambda c: (-c.bm25, -c.id)))


def by_meaning(asked: Asked) -> Iterable[int]:
    """Vectors alone."""
    return (c.id for c in sorted((c for c in asked.wide.candidates if c.cosine), key=lambda c: -(c.cosine or 0)))


def by_unweighted(asked: Asked) -> Iterable[int]:
    """Vectors alone, with the plain vector of the query."""
    return asked.unweighted


def by_mix(weights: Weights) -> Callable[[Asked], Iterable[int]]:
    return lambda asked: (candidate.id for candidate in rank(asked.pool, weights))


async def ask(engine: Engine, corpus: str, conversation: Conversation) -> list[Asked]:
    """Store a conversation, wait for its vectors, and gather the candidates of every question."""
    user = f"{corpus} {conversation.name}"
    scope = MemoryScope(_APP, user)
    await engine.memory.remember_turns(
        scope,
        [
            Remembered(turn.id, turn.text, session_id=str(turn.session), position=turn.place, author=turn.author)
            for turn in conversation.turns
        ],
    )
    await drained(engine)
    rows = await engine._database.pool.fetch("SELECT id, source_id FROM memories WHERE user_id = $1", user)
    names = {row["id"]: row["source_id"] for row in rows}
    embedder = engine.memory.embedder
    assert embedder is not None
    recall = Recall(engine._database, embedder=embedder)
    asked = []
    for question in conversation.questions:
        pool = await recall.gather(question.text, app=_APP, user=user, k=_FIRST)
        wide = await recall.gather(question.text, app=_APP, user=user, k=_WIDE)
        vector = vector_literal(await embedder.embed_query(question.text))
        nearest = await engine._database.pool.fetch(_NEAREST, _APP, user, vector, _FIRST)
        asked.append(Asked(question, pool, wide, [row["memory_id"] for row in nearest], names))
    return asked


async def drained(engine: Engine) -> None:
    """Wait until no memory waits for its vector."""
    assert engine.memory.queue is not None, "install the extra `embeddings`"
    while (await engine.memory.queue.length()).waiting:
        await asyncio.sleep(0.02)


async def ask_adk(conversation: Conversation, directory: Path) -> list[Score]:
    """Ask ADK's own persistent memory service the same questions."""
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


CHOICES = [
    Weights(meaning=meaning, previous=previous, next=after, decay=decay, passage=passage)
    for meaning, (previous, after), decay, passage in itertools.product(
        (0.7, 1.0), ((0.4, 0.2), (0.4, 0.3)), (0.5, 0.8), (0.0, 0.5, 1.0, 1.5)
    )
]
_PARTS = 5


def cross_validate(corpora: dict[str, list[list[Asked]]], choices: list[Weights]) -> dict[str, list[list[Score]]]:
    """Choose the weights on four fifths of the conversations of all corpora and measure them on the rest."""
    table = {
        (number, name): [[one.score(by_mix(choice)) for one in asked] for asked in conversations]
        for number, choice in enumerate(choices)
        for name, conversations in corpora.items()
    }
    measured: dict[str, list[list[Score]]] = {name: [] for name in corpora}
    for part in range(_PARTS):

        def elsewhere(number: int, part: int = part) -> float:
            kept = (
                [s for place, scores in enumerate(table[number, name]) if place % _PARTS != part for s in scores]
                for name in corpora
            )
            return sum(sum(mean(scores)) for scores in kept if scores)

        best = max(range(len(choices)), key=elsewhere)
        for name in corpora:
            measured[name] += table[best, name][part::_PARTS]
    return measured


def interval(scores: list[list[Score]]) -> list[tuple[float, float]]:
    """Return the middle 95 % of the means of bootstrap samples of conversations, for each figure."""
    dice = random.Random(20)
    sums = [([sum(column) for column in zip(*one, strict=True)], len(one)) for one in scores if one]
    means = []
    for _ in range(_SAMPLES):
        sample = dice.choices(sums, k=len(sums))
        asked = sum(count for _, count in sample)
        means.append([100 * sum(total[place] for total, _ in sample) / asked for place in range(3)])
    columns = [sorted(column) for column in zip(*means, strict=True)]
    return [(column[_SAMPLES // 40], column[-_SAMPLES // 40]) for column in columns]


@dataclass(frozen=True)
class Corpus:
    """A corpus and the figures that are aimed at."""

    name: str
    load: Callable[[], Iterable[Conversation]]
    aims: tuple[float, float] | None = None


async def measure_quality(
    engine: Engine, corpora: list[Corpus], directory: Path, report: Report, *, quick: bool
) -> None:
    asked: dict[str, list[list[Asked]]] = {}
    adk: dict[str, list[list[Score]]] = {}
    for corpus in corpora:
        conversations = list(itertools.islice(corpus.load(), 3 if quick else None))
        asked[corpus.name] = [await ask(engine, corpus.name, conversation) for conversation in conversations]
        folder = Path(tempfile.mkdtemp(dir=directory))
        adk[corpus.name] = [await ask_adk(conversation, folder) for conversation in conversations]
    validated = cross_validate(asked, CHOICES[::8] if quick else CHOICES)
    names = ("R@5", "R@10", "nDCG@10")
    for corpus in corpora:
        of_corpus = asked[corpus.name]

        def scores(
            order: Callable[[Asked], Iterable[int]], of_corpus: list[list[Asked]] = of_corpus
        ) -> list[list[Score]]:
            return [[one.score(order) for one in conversation] for conversation in of_corpus]

        rows = {
            "mix": scores(by_mix(default_weights(engine.memory.embedder))),
            "mix, cross-validated": validated[corpus.name],
            "BM25 alone": scores(by_words),
            "vectors alone": scores(by_meaning),
            "vectors alone, plain query": scores(by_unweighted),
            "ADK SqliteMemoryService": adk[corpus.name],
        }
        figures = {name: mean(itertools.chain.from_iterable(found)) for name, found in rows.items()}
        intervals = {name: interval(found) for name, found in rows.items()}
        questions = sum(map(len, of_corpus))
        report.grids.append(
            Grid(
                f"{corpus.name}, {questions} questions of {len(of_corpus)} conversations, percent",
                ("", "R@5", "from", "to", "R@10", "from", "to", "nDCG@10"),
                [
                    (
                        name,
                        *itertools.chain(*([f, *i] for f, i in zip(figures[name][:2], intervals[name], strict=False))),
                        figures[name][2],
                    )
                    for name in rows
                ],
            )
        )
        halves = [name for name in rows if "alone" in name]
        for place, name in enumerate(names[:2]):
            better = max(figures[half][place] for half in halves)
            report.targets.append(
                Target(f"{corpus.name} {name}, mix above the better half - 1", figures["mix"][place], better - 1, "%")
            )
            if corpus.aims is not None:
                report.targets.append(Target(f"{corpus.name} {name}", figures["mix"][place], corpus.aims[place], "%"))
        shown = {name: figures[name] for name in ("mix", "BM25 alone", "vectors alone", "ADK SqliteMemoryService")}
        report.panels.append(Bars(f"Evidence found ({corpus.name})", "percent", names, shown))
        report.details[corpus.name] = {
            "figures": figures, "intervals": intervals, "precision_by_score": precision_by_score(of_corpus),
        }  # fmt: skip
    await measure_unrelated(engine, asked, report)


def precision_by_score(asked: list[list[Asked]]) -> dict[str, float]:
    """Return the share of hits that are evidence, of the first ten, by tenths of the score."""
    hits: dict[int, list[bool]] = defaultdict(list)
    for one in itertools.chain.from_iterable(asked):
        for candidate in rank(one.pool, Weights())[:_FIRST]:
            hits[int(candidate.score * 10)].append(one.names[candidate.id] in one.question.evidence)
    return {f"{tenth / 10:.1f}": sum(found) / len(found) for tenth, found in sorted(hits.items())}


async def measure_unrelated(engine: Engine, asked: dict[str, list[list[Asked]]], report: Report) -> None:
    """Ask for words that no conversation is about, before and after `min_score`."""
    rows = []
    users = await engine._database.pool.fetch("SELECT DISTINCT user_id FROM memories WHERE app_name = $1", _APP)
    for query in _UNRELATED_QUERIES:
        found = [await engine.memory.recall(query, app=_APP, user=row["user_id"]) for row in users]
        answered = sum(bool(hits) for hits in found)
        rows.append(
            (query, 100 * answered / len(users), max((hit.score for hits in found for hit in hits), default=0.0))
        )
    report.grids.append(Grid("Queries about nothing that was said", ("", "users with hits, %", "highest score"), rows))


async def main() -> None:
    """Measure what the options name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--locomo", type=Path, help="the directory of locomo10.json")
    parser.add_argument("--qmsum", type=Path, help="the directory of committee.jsonl")
    parser.add_argument("--documentation", action="store_true", help="only the corpora that need no directory")
    parser.add_argument("--scale", action="store_true", help="measure speed")
    parser.add_argument("--million", action="store_true", help="with --scale: up to a million memories; ten minutes")
    parser.add_argument("--embedder", default="wordllama", help="COGNIZES_EMBEDDER: wordllama, minilm, …")
    parser.add_argument("--quick", action="store_true", help="three conversations of each corpus; 30 000 memories")
    parser.add_argument("--out", type=Path, default=_HERE / "results", help="where the JSON and the chart go")
    options = parser.parse_args()
    corpora = []
    if (locomo := options.locomo) is not None:
        corpora.append(Corpus("LoCoMo", lambda: load_locomo(locomo), (65.0, 75.0)))
    if (qmsum := options.qmsum) is not None:
        corpora.append(Corpus("QMSum", lambda: load_qmsum(qmsum), (46.0, 55.0)))
    if corpora or options.documentation:
        corpora += [
            Corpus("Documentation, paraphrases", make_paraphrases),
            Corpus("Documentation, headings", make_headings),
        ]
    directory = Path(tempfile.mkdtemp(prefix="cognizes-recall-"))
    report = Report("memory_recall", "Memory: recall")

    async def open_engine(**settings: Any) -> Engine:
        return await Engine.open(
            data_dir=directory / "data", statement_timeout=0, embedder=options.embedder, **settings
        ).start()

    try:
        if corpora:
            engine = await open_engine()
            try:
                await measure_quality(engine, corpora, directory, report, quick=options.quick)
            finally:
                await engine.close()
        if options.scale:
            plan = QUICK if options.quick else MILLION if options.million else FULL
            await measure_scale(open_engine, report, plan)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report.print()
    for path in report.write(options.out):
        print(path)


if __name__ == "__main__":
    asyncio.run(main())
