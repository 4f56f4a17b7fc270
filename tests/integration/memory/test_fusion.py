"""Words and meaning together, on a small part of the documentation corpora of `benchmarks/memory_recall.py`."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from cognizes.engine import Engine
from cognizes.engine.memory.ranking import Candidate, rank
from cognizes.engine.memory.recall import Recall, default_weights
from cognizes.engine.memory.records import MemoryScope, Remembered
from tests.engine_parts import database_of

_CONVERSATIONS = 2


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[Engine]:
    async with Engine.open(database_url, memory_background=False) as opened:
        yield opened


@pytest.fixture
def corpora(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    return importlib.import_module("memory_corpora")


@pytest.mark.parametrize("questions", ["make_headings", "make_paraphrases"])
async def test_the_mix_is_at_most_a_point_below_its_better_half(engine: Engine, corpora: Any, questions: str) -> None:
    """Evidence among the first 5 and 10 hits, in percent: of BM25, of vectors, and of what a recall makes of both."""
    found: dict[tuple[str, int], list[float]] = {}
    for conversation in itertools.islice(getattr(corpora, questions)(), _CONVERSATIONS):
        await _store(engine, conversation)
        rows = await database_of(engine).pool.fetch(
            "SELECT id, source_id FROM memories WHERE user_id = $1", conversation.name
        )
        names = {row["id"]: row["source_id"] for row in rows}
        recall = Recall(database_of(engine), embedder=engine.memory.embedder)
        for question in conversation.questions:
            asked = {"app": "bench", "user": conversation.name}
            wide = (await recall.gather(question.text, **asked, k=200)).candidates
            mixed = rank(await recall.gather(question.text, **asked, k=10), default_weights(engine.memory.embedder))
            orders: dict[str, Iterable[Candidate]] = {
                "mix": mixed,
                "BM25": sorted((one for one in wide if one.bm25), key=lambda one: (-one.bm25, -one.id)),
                "vectors": sorted((one for one in wide if one.cosine), key=lambda one: -(one.cosine or 0)),
            }
            for (name, order), first in itertools.product(orders.items(), (5, 10)):
                hits = {names[one.id] for one in itertools.islice(order, first)} & question.evidence
                found.setdefault((name, first), []).append(100 * len(hits) / len(question.evidence))
    for first in (5, 10):
        assert len(found["mix", first]) == 45 * _CONVERSATIONS
        halves = [mean(found[name, first]) for name in ("BM25", "vectors")]
        assert min(halves) > 20
        assert mean(found["mix", first]) >= max(halves) - 1


async def _store(engine: Engine, conversation: Any) -> None:
    turns = [
        Remembered(turn.id, turn.text, session_id=str(turn.session), position=turn.place, author=turn.author)
        for turn in conversation.turns
    ]
    await engine.memory.remember_turns(MemoryScope("bench", conversation.name), turns)
    assert engine.memory.queue is not None
    while await engine.memory.queue.work():
        pass
