"""Measure quality and speed of recall.

    uv run python benchmarks/memory_recall.py --data DIR          quality, on LoCoMo's public JSON in that directory
    uv run python benchmarks/memory_recall.py --scale [--million] speed by number of memories (memory_scale.py)
    ... [--embedder NAME] [--quick] [--out DIRECTORY]

Quality: every turn of a conversation is a memory, every conversation a separate user; a question (categories 1 to 4)
should return the turns with its evidence. R@k is the share of a question's evidence among the first k, averaged over
questions. Peers: ADK's SqliteMemoryService, BM25 alone, vectors alone. The weights are round numbers; cross-validation
chooses them on nine conversations and measures the tenth, ten times.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.adk.events.event import Event
from google.adk.memory._sqlite_memory_service import SqliteMemoryService
from google.genai import types

from cognizes.engine import Engine
from cognizes.engine.memory.ingest import Remembered
from cognizes.engine.memory.recall import Candidate, Pool, Recall, Weights, rank
from cognizes.engine.memory.scope import MemoryScope
from memory_scale import FULL, MILLION, QUICK, measure_scale
from report import Bars, Grid, Report, Target

_HERE = Path(__file__).parent
_APP = "bench"
_FIRST = 10
Score = tuple[float, float, float]


@dataclass(frozen=True)
class Turn:
    """A turn of a conversation, with the caption of its picture."""

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
    """Read LoCoMo's conversations from its JSON."""
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
    """A question with its candidates, which can be ranked again without a database."""

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
    """Store a conversation, wait for its vectors, and gather the candidates of every question."""
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
    recall = Recall(engine.database, embedder=engine.memory.embedder)
    return [
        Asked(question, await recall.gather(question.text, app=_APP, user=conversation.name), names)
        for question in conversation.questions
    ]


async def drained(engine: Engine) -> None:
    """Wait until the embedding queue is empty."""
    assert engine.memory.queue is not None, "install the extra `embeddings`"
    while (await engine.memory.queue.length()).waiting:
        await asyncio.sleep(0.02)


async def ask_adk(conversation: Conversation, directory: Path) -> list[Score]:
    """Ask the same questions to ADK's persistent memory service."""
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
    """Choose weights on all conversations but one and measure that one; return the mean and the chosen weights."""
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
    """Measure LoCoMo for the engine and its peers."""
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


async def main() -> None:
    """Run the requested measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the directory of locomo10.json")
    parser.add_argument("--scale", action="store_true", help="measure speed")
    parser.add_argument("--million", action="store_true", help="with --scale: up to a million memories; ten minutes")
    parser.add_argument("--embedder", default="wordllama", help="COGNIZES_EMBEDDER: wordllama, minilm, …")
    parser.add_argument("--quick", action="store_true", help="three conversations; 30 000 memories")
    parser.add_argument("--out", type=Path, default=_HERE / "results", help="where the JSON and the chart go")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="cognizes-recall-"))
    report = Report("memory_recall", "Memory: recall")

    async def open_engine(**settings: Any) -> Engine:
        return await Engine.open(
            data_dir=directory / "data", statement_timeout=0, embedder=options.embedder, **settings
        ).start()

    try:
        if options.data is not None:
            engine = await open_engine()
            try:
                await measure_quality(engine, options.data, directory, report, quick=options.quick)
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
