"""Measure what vectors of passages of long messages would change.

    uv run python benchmarks/memory_passages.py --qmsum DIR [--locomo DIR]

Each message of more than 1.5 windows of words also gets the vectors of its windows, which overlap by half. The message
stays the unit that is returned: its cosine becomes the largest one of its passages, or the mean of that and its own.
The candidates and their words are those of `Recall`, so only the ranking of the candidates changes.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy
from rich.console import Console
from rich.table import Table

from cognizes.engine import Engine
from cognizes.engine.memory.embedders.embedder import Vectors, WordLlamaEmbedder
from cognizes.engine.memory.ranking import Weights, related_cosine
from memory_corpora import Conversation, load_locomo, load_qmsum, make_headings, make_paraphrases
from memory_recall import Asked, ask, by_meaning, by_mix, interval, mean

_WINDOWS = (40, 60, 100)
_BATCH = 256


class RecordingEmbedder:
    """WordLlama that keeps the vector of the last query."""

    def __init__(self) -> None:
        self._embedder = WordLlamaEmbedder()
        self.name, self.dimension = self._embedder.name, self._embedder.dimension
        self.last: list[float] = []

    async def embed(self, texts: Sequence[str]) -> Vectors:
        return await self._embedder.embed(texts)

    async def embed_query(self, text: str) -> list[float]:
        return await self._embedder.embed_query(text)

    async def embed_weighted(self, words: Sequence[str], weights: Sequence[float]) -> list[float]:
        self.last = await self._embedder.embed_weighted(words, weights)
        return self.last


def passages(text: str, window: int) -> Iterator[str]:
    words = text.split()
    if len(words) > 1.5 * window:
        for start in range(0, len(words) - window // 2, window // 2):
            yield " ".join(words[start : start + window])


async def similarities(
    embedder: RecordingEmbedder, conversation: Conversation, vectors: Sequence[Sequence[float]], window: int
) -> list[dict[str, float]]:
    """Return, for each question, the largest cosine of a passage by message."""
    owners, texts = [], []
    for turn in conversation.turns:
        for text in passages(turn.text, window):
            owners.append(turn.id)
            texts.append(f"{turn.author}: {text}")
    parts = [numpy.array(await embedder.embed(texts[at : at + _BATCH])) for at in range(0, len(texts), _BATCH)]
    found = []
    for vector in vectors:
        best: dict[str, float] = defaultdict(float)
        cosines = numpy.concatenate(parts) @ numpy.array(vector) if parts else ()
        for owner, cosine in zip(owners, cosines, strict=True):
            best[owner] = max(best[owner], related_cosine(float(cosine)))
        found.append(best)
    return found


async def measure(engine: Engine, name: str, conversations: list[Conversation], table: Table) -> None:
    embedder = RecordingEmbedder()
    engine.memory.embedder = embedder
    asked: list[list[Asked]] = []
    vectors: list[list[list[float]]] = []
    for conversation in conversations:
        of_conversation = []
        queries = []
        for question in conversation.questions:
            one = Conversation(conversation.name, conversation.turns, [question])
            of_conversation += await ask(engine, name, one)
            queries.append(embedder.last)
        asked.append(of_conversation)
        vectors.append(queries)
    own = [[{c.id: c.cosine for c in one.wide.candidates} for one in part] for part in asked]
    _row(table, name, "whole messages", asked)
    modes: dict[str, Callable[[float, float], float]] = {
        "largest": max,
        "mean": lambda whole, best: (whole + max(whole, best)) / 2,
    }
    for window in _WINDOWS:
        found = [
            await similarities(embedder, conversation, part, window)
            for conversation, part in zip(conversations, vectors, strict=True)
        ]
        for mode, combine in modes.items():
            for part, cosines, best in zip(asked, own, found, strict=True):
                for one, wholes, passages_of in zip(part, cosines, best, strict=True):
                    for candidate in (*one.pool.candidates, *one.wide.candidates):
                        whole = wholes[candidate.id]
                        candidate.cosine = whole
                        if whole is not None and one.names[candidate.id] in passages_of:
                            candidate.cosine = combine(whole, passages_of[one.names[candidate.id]])
            _row(table, name, f"passages of {window} words, {mode}", asked)


def _row(table: Table, corpus: str, name: str, asked: list[list[Asked]]) -> None:
    cells = []
    for order in (by_mix(Weights()), by_meaning):
        scores = [[one.score(order) for one in part] for part in asked]
        figures, limits = mean(score for part in scores for score in part), interval(scores)
        cells += [f"{figures[n]:.1f} [{limits[n][0]:.1f}, {limits[n][1]:.1f}]" for n in range(2)]
    table.add_row(corpus, name, *cells)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--locomo", type=Path)
    parser.add_argument("--qmsum", type=Path)
    options = parser.parse_args()
    table = Table("corpus", "vectors", "mix R@5", "mix R@10", "vectors R@5", "vectors R@10")
    corpora = {"Documentation, paraphrases": make_paraphrases, "Documentation, headings": make_headings}
    loaded = {name: load() for name, load in corpora.items()}
    if options.qmsum:
        loaded["QMSum"] = load_qmsum(options.qmsum)
    if options.locomo:
        loaded["LoCoMo"] = load_locomo(options.locomo)
    with tempfile.TemporaryDirectory(prefix="cognizes-passages-") as directory:
        async with Engine.open(data_dir=Path(directory) / "data") as engine:
            for name, conversations in loaded.items():
                await measure(engine, name, conversations, table)
    Console(width=150).print(table)


if __name__ == "__main__":
    asyncio.run(main())
