"""The embedding queue: no failure stops it, no memory is lost, no stale vector is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import pytest

from cognizes.engine import Engine
from cognizes.engine.memory.embedders.embedder import EmbedderUnavailableError, Vectors
from cognizes.engine.memory.recall import Recall
from cognizes.engine.memory.records import MemoryScope, Remembered
from cognizes.engine.memory.vectors import EmbeddingQueue
from tests.engine_parts import database_of

ADA = MemoryScope("shop", "ada")
_LOOKS_PER_SECOND = 20


class FussyEmbedder:
    """Refuses some texts, and all of them while it is unavailable."""

    def __init__(self, name: str = "fussy-3", dimension: int = 3) -> None:
        self.name = name
        self.dimension = dimension
        self.is_away = False
        self.asked: list[list[str]] = []

    async def embed(self, texts: Sequence[str]) -> Vectors:
        self.asked.append(list(texts))
        if self.is_away:
            raise EmbedderUnavailableError("away")
        if any("poison" in text for text in texts):
            raise ValueError("I do not eat this \x00")
        return [[float(len(text)), *[1.0] * (self.dimension - 1)] for text in texts]

    async def embed_query(self, text: str) -> list[float]:
        (vector,) = await self.embed([text])
        return vector


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[Engine]:
    """An engine that leaves the queue to the test."""
    async with Engine.open(database_url, memory_background=False) as opened:
        yield opened


async def remember(engine: Engine, *texts: str) -> None:
    await engine.memory.remember(ADA, [Remembered(text, text) for text in texts])


async def models(engine: Engine) -> dict[str, str]:
    rows = await database_of(engine).pool.fetch(
        "SELECT m.text, v.model FROM memories m JOIN memory_vectors v ON v.memory_id = m.id"
    )
    return {row["text"]: row["model"] for row in rows}


def queue_of(engine: Engine, embedder: FussyEmbedder) -> EmbeddingQueue:
    return EmbeddingQueue(database_of(engine), embedder, first_delay=timedelta(0))


async def test_a_refused_text_is_parked_with_its_error_and_blocks_no_other(engine: Engine) -> None:
    texts = [f"good {n}" for n in range(20)]
    await remember(engine, *texts[:7], "poison", *texts[7:])
    queue = queue_of(engine, FussyEmbedder())
    for _ in range(5):
        await queue.work()
    assert set(await models(engine)) == set(texts)
    length = await queue.length()
    assert (length.waiting, length.parked) == (0, 1)
    (parked,) = await database_of(engine).fetch("list_parked_embeddings", 10)
    assert parked["attempts"] == 5
    assert parked["error"].startswith("ValueError: I do not eat this")
    await remember(engine, "later")
    assert await queue.work() == 1
    assert "later" in await models(engine)
    await engine.memory.remember(ADA, [Remembered("poison", "an antidote")])
    assert await queue.work() == 1
    assert "an antidote" in await models(engine)


async def test_an_unavailable_embedder_parks_no_memory(engine: Engine) -> None:
    await remember(engine, "a", "b")
    embedder = FussyEmbedder()
    embedder.is_away = True
    queue = queue_of(engine, embedder)
    for _ in range(10):
        with pytest.raises(EmbedderUnavailableError):
            await queue.work()
    embedder.is_away = False
    assert await queue.work() == 2
    assert len(await models(engine)) == 2


async def test_a_query_is_searched_by_words_if_the_embedder_is_unavailable_or_refuses_it(engine: Engine) -> None:
    embedder = FussyEmbedder()
    recall = Recall(database_of(engine), embedder=embedder)
    await remember(engine, "green tea")
    (hit,) = await recall.recall("poison in green tea", app="shop", user="ada")
    assert "contains green, tea" in hit.why
    embedder.is_away = True
    assert len(await recall.recall("tea", app="shop", user="ada")) == 1
    # The next query does not wait for an embedder that has just failed.
    assert len(await recall.recall("green", app="shop", user="ada")) == 1
    assert embedder.asked == [["poison in green tea"], ["tea"]]


async def test_what_a_dead_process_had_claimed_is_taken_by_another(engine: Engine) -> None:
    await remember(engine, "a", "b")
    assert len(await database_of(engine).fetch("claim_embeddings", 10, timedelta(hours=1), 100)) == 2
    queue = queue_of(engine, FussyEmbedder())
    assert await queue.work() == 0
    await database_of(engine).pool.execute("UPDATE memory_embedding_queue SET due_at = now() - interval '1 second'")
    assert await queue.work() == 2
    assert (await queue.length()).waiting == 0


async def test_a_vector_of_an_old_text_is_not_kept(engine: Engine) -> None:
    await engine.memory.long_term.set(ADA, "", "k", "old")

    class Slow(FussyEmbedder):
        async def embed(self, texts: Sequence[str]) -> Vectors:
            if texts == ["k: old"]:
                await engine.memory.long_term.set(ADA, "", "k", "new")
            return await super().embed(texts)

    queue = queue_of(engine, Slow())
    await queue.work()
    assert await models(engine) == {}
    await queue.work()
    assert await models(engine) == {"k: new": "fussy-3"}


async def test_a_memory_that_is_deleted_while_it_is_embedded_leaves_nothing(engine: Engine) -> None:
    await engine.memory.long_term.set(ADA, "", "k", "v")

    class Slow(FussyEmbedder):
        async def embed(self, texts: Sequence[str]) -> Vectors:
            await engine.memory.long_term.delete(ADA, "", "k")
            return await super().embed(texts)

    queue = queue_of(engine, Slow())
    assert await queue.work() == 1
    assert await models(engine) == {}
    assert (await queue.length()).waiting == 0


async def test_the_vector_of_a_locked_memory_is_stored_when_the_lock_is_released(engine: Engine) -> None:
    await remember(engine, "a", "b")
    embedder = FussyEmbedder()
    async with database_of(engine).connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        # As `store_memories` does with each memory of a session that is stored again.
        await connection.execute("SELECT FROM memories WHERE text = 'a' FOR NO KEY UPDATE")
        working = asyncio.create_task(queue_of(engine, embedder).work())
        async with asyncio.timeout(5):
            while "b" not in await models(engine):
                await asyncio.sleep(0.01)
        assert "a" not in await models(engine)
        await transaction.rollback()
    assert await working == 2
    assert await models(engine) == {"a": "fussy-3", "b": "fussy-3"}
    assert embedder.asked == [["a", "b"]]


async def test_a_memory_that_stays_locked_is_released_for_the_next_round(engine: Engine) -> None:
    await remember(engine, "a")
    queue = queue_of(engine, FussyEmbedder())
    async with database_of(engine).connection() as connection, connection.transaction():
        await connection.execute("SELECT FROM memories FOR NO KEY UPDATE")
        assert await queue.work() == 1
        assert await models(engine) == {}
    assert await queue.work() == 1
    assert await models(engine) == {"a": "fussy-3"}


async def test_vectors_arrive_within_seconds_while_a_growing_session_is_stored_again(database_url: str) -> None:
    """Time is counted in looks at the table, 20 per second: a busy machine delays them as it delays the vectors."""
    looks = 0
    stored: list[int] = []
    arrived: dict[int, int] = {}
    turns: list[Remembered] = []
    async with Engine.open(database_url) as engine:

        async def watch() -> None:
            nonlocal looks
            while True:
                await asyncio.sleep(1 / _LOOKS_PER_SECOND)
                rows = await database_of(engine).pool.fetch(
                    "SELECT m.position FROM memory_vectors v JOIN memories m ON m.id = v.memory_id"
                )
                looks += 1
                for row in rows:
                    arrived.setdefault(row["position"], looks)

        watching = asyncio.create_task(watch())
        async with asyncio.timeout(300):
            while looks < 8 * _LOOKS_PER_SECOND:
                number = len(turns)
                turns.append(Remembered(str(number), f"turn {number} about tea", session_id="s", position=number))
                await engine.memory.remember_turns(ADA, turns)
                stored.append(looks)
            last = looks + 5 * _LOOKS_PER_SECOND
            while len(arrived) < len(turns) and looks < last:
                assert not watching.done()
                await asyncio.sleep(0.02)
        watching.cancel()
    assert len(turns) > 50
    late = {place: arrived.get(place, looks) - at for place, at in enumerate(stored)}
    assert max(late.values()) <= 5 * _LOOKS_PER_SECOND
    assert len(arrived) == len(turns)


async def test_two_workers_share_the_queue(engine: Engine) -> None:
    await remember(engine, *(f"text {n}" for n in range(30)))
    workers = [FussyEmbedder(), FussyEmbedder()]

    async def drain(embedder: FussyEmbedder) -> None:
        while await queue_of(engine, embedder).work(batch=4):
            pass

    await asyncio.gather(*map(drain, workers))
    asked = [text for embedder in workers for batch in embedder.asked for text in batch]
    assert sorted(asked) == sorted(f"text {n}" for n in range(30))
    assert len(await models(engine)) == 30


async def test_another_embedder_of_another_dimension(engine: Engine) -> None:
    await remember(engine, "a", "bb", "ccc")
    first, second = FussyEmbedder(), FussyEmbedder("other-5", 5)
    await queue_of(engine, first).work()
    queue = queue_of(engine, second)
    await queue.queue_all()
    await queue.work(batch=1)
    assert sorted((await models(engine)).values()) == ["fussy-3", "fussy-3", "other-5"]
    for embedder in (first, second):
        hits = await Recall(database_of(engine), embedder=embedder).recall("bb", app="shop", user="ada")
        assert hits[0].text == "bb"
    await queue.queue_all()
    while await queue.work():
        pass
    assert set((await models(engine)).values()) == {"other-5"}
    await queue.queue_all()
    assert (await queue.length()).waiting == 0


@pytest.mark.minilm
async def test_from_wordllama_to_minilm(engine: Engine, database_url: str) -> None:
    """Real models of 256 and 384 numbers; until a memory has its new vector it is found by words."""
    await remember(engine, "refunds are paid within a week", "it rains in Oslo")
    await engine.memory.queue.work()  # type: ignore[union-attr]
    async with Engine.open(database_url, embedder="minilm", memory_background=False) as changed:
        queue = changed.memory.queue
        assert queue is not None
        (by_words, *_) = await changed.memory.recall("refunds", app="shop", user="ada")
        assert "cosine" not in by_words.scores
        await queue.queue_all()
        while await queue.work():
            pass
        assert set((await models(changed)).values()) == {"all-MiniLM-L6-v2-int8-384"}
        (best, *_) = await changed.memory.recall("how do I get my money back?", app="shop", user="ada")
        assert (best.text, best.scores["cosine"] > 0.2) == ("refunds are paid within a week", True)
    # The one before cannot read them, and does not stumble over them.
    (hit,) = await engine.memory.recall("Oslo", app="shop", user="ada")
    assert "cosine" not in hit.scores


async def test_a_text_without_words_does_not_affect_the_others(engine: Engine) -> None:
    """Its vector is zero, so no cosine exists."""
    assert engine.memory.queue is not None
    await engine.memory.remember(ADA, [Remembered("empty", "\x00"), Remembered("dog", "my dog is ill")])
    while await engine.memory.queue.work():
        pass
    assert (await engine.memory.queue.length()).parked == 0
    hits = await engine.memory.recall("puppy", app="shop", user="ada")
    assert hits[0].text == "my dog is ill"
    assert all(hit.score == hit.score for hit in hits)


async def test_a_batch_is_embedded_in_slices_with_a_pause_after_each(engine: Engine) -> None:
    await remember(engine, *[f"text {number}" for number in range(70)])
    embedder = FussyEmbedder()
    queue = queue_of(engine, embedder)
    embedded: list[int] = []

    async def pause() -> None:
        embedded.append(len(await models(engine)))

    assert await queue.work(pause=pause) == 70
    assert embedded == [32, 64, 70]
    assert [len(texts) for texts in embedder.asked] == [32, 32, 6]


async def test_a_cancelled_batch_is_claimed_again_at_once(engine: Engine) -> None:
    await remember(engine, *[f"text {number}" for number in range(40)])
    queue, reached = queue_of(engine, FussyEmbedder()), asyncio.Event()

    async def pause() -> None:
        reached.set()
        await asyncio.Event().wait()

    working = asyncio.create_task(queue.work(pause=pause))
    await reached.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert await queue.work() == 8
    assert len(await models(engine)) == 40
