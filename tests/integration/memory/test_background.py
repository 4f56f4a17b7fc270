"""The background task writes an episode when a run ends, in any way and from any process."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from cognizes.engine import Engine
from cognizes.engine.concurrency import Sweeper, WakeUp
from cognizes.engine.database import Database
from cognizes.engine.memory.background import MemoryBackground
from cognizes.engine.memory.episodic import EndedRun, EpisodicEntry, EpisodicMemoryStore
from cognizes.engine.memory.message_search import MessageIndex
from cognizes.engine.memory.records import Ingest, MemoryScope, Remembered
from cognizes.engine.memory.vectors import EmbeddingQueue, VectorIndex
from cognizes.engine.supervision import Supervisor
from tests.engine_parts import database_of
from tests.integration.memory.test_embedding_queue import FussyEmbedder

ADA = MemoryScope("shop", "ada")


async def end_run(engine: Engine, answer: str) -> str:
    session = await engine.sessions.create("shop", "ada")
    run = await engine.runs.create(session, running=True)
    await engine.sessions.append(session, author="agent", kind="assistant_message", text=answer, run_id=run.id)
    await engine.runs.finish(run.thread_id, run.id)
    return run.id


async def episodes(engine: Engine, count: int) -> list[EpisodicEntry]:
    deadline = asyncio.get_running_loop().time() + 60
    while len(found := await engine.memory.episodic.list_by_agent(ADA)) < count:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)
    return found


async def test_a_run_that_ends_leaves_an_episode_that_can_be_recalled(engine: Engine) -> None:
    run_id = await end_run(engine, "The parcel left on Monday.")
    (entry,) = await episodes(engine, 1)
    assert (entry.run_id, entry.summary) == (run_id, "The parcel left on Monday.")
    hits = await engine.memory.recall("parcel", app="shop", user="ada", kinds=["episodic"])
    assert [hit.memory.source_id for hit in hits] == [entry.id]


async def test_an_episode_survives_the_death_of_its_process(database_url: str) -> None:
    async with Engine.open(database_url, memory_background=False) as first:
        await end_run(first, "one")
        assert len(await database_of(first).fetch("claim_episodes", 10, timedelta(hours=1))) == 1
        await end_run(first, "two")
        await database_of(first).pool.execute("UPDATE agent_episodes_due SET due_at = now() - interval '1 second'")
    async with Engine.open(database_url) as second:
        assert {entry.summary for entry in await episodes(second, 2)} == {"one", "two"}


async def test_a_summariser_that_never_returns_blocks_no_other_episode(database_url: str) -> None:
    async with Engine.open(database_url, memory_background=False) as engine:

        async def summarise(run: EndedRun) -> str:
            if run.answer == "hangs":
                await asyncio.Event().wait()
            return f"summary of {run.answer}"

        engine.memory.episodic.summariser = summarise
        engine.memory.episodic.summary_seconds = 0.1
        await end_run(engine, "hangs")
        await end_run(engine, "good")
        async with asyncio.timeout(60):
            assert await engine.memory.background.write_due_episodes() == 2
        assert [entry.summary for entry in await engine.memory.episodic.list_by_agent(ADA)] == ["summary of good"]


async def test_a_cancelled_run_has_no_episode_and_a_failing_summariser_is_retried(database_url: str) -> None:
    async with Engine.open(database_url, memory_background=False) as engine:
        calls: list[str] = []

        async def summarise(run: EndedRun) -> str:
            calls.append(run.answer or "")
            if run.answer == "bad":
                raise RuntimeError("no words")
            return f"summary of {run.answer}"

        engine.memory.episodic.summariser = summarise
        session = await engine.sessions.create("shop", "ada")
        cancelled = await engine.runs.create(session, running=True)
        await engine.runs.cancel(cancelled.thread_id, cancelled.id)
        await end_run(engine, "bad")
        await end_run(engine, "good")
        for _ in range(6):
            await engine.memory.background.write_due_episodes()
            await database_of(engine).pool.execute("UPDATE agent_episodes_due SET due_at = now() - interval '1 second'")
        assert [entry.summary for entry in await engine.memory.episodic.list_by_agent(ADA)] == ["summary of good"]
        assert calls.count("bad") == 5
        assert await database_of(engine).pool.fetchval("SELECT count(*) FROM agent_episodes_due") == 0


class NotedIndex(VectorIndex):
    """Notes its builds instead of executing them."""

    def __init__(self, database: Database, embedder: FussyEmbedder) -> None:
        super().__init__(database, embedder)
        self.builds = WakeUp()

    async def grow(self) -> None:
        self.builds.notify()


async def test_the_jobs_run_after_a_reconnection_and_report_an_embedder_that_is_away(database_url: str) -> None:
    async with Engine.open(database_url, memory_background=False) as engine:
        database, embedder, wake_up, supervisor = database_of(engine), FussyEmbedder(), WakeUp(), Supervisor()
        sweeper, index, queue = Sweeper(supervisor), NotedIndex(database, embedder), EmbeddingQueue(database, embedder)
        background = MemoryBackground(
            database,
            wake_up,
            queue=queue,
            vector_index=index,
            messages=MessageIndex(database, None),
            episodic=EpisodicMemoryStore(database, Ingest(database, embeds=False)),
            sweeper=sweeper,
        )
        embedder.is_away = True
        await engine.memory.remember(ADA, [Remembered("1", "tea")])
        await background.start()
        try:
            async with asyncio.timeout(60):
                while [failure.name for failure in supervisor.failures] != ["memory-index"]:
                    await asyncio.sleep(0.01)
                await sweeper.sweep()
                while supervisor.failures[0].restarts < 3:
                    await asyncio.sleep(0.01)
                # Texts wait for vectors: an index is built later.
                assert index.builds.version == 0
                embedder.is_away = False
                wake_up.notify()
                assert await index.builds.wait(0)
                assert (await queue.length()).waiting == 0
                while supervisor.failures:
                    await asyncio.sleep(0.01)
            # Less than the interval of the builds: the listener asks for the sweep when it is connected again.
            before = index.builds.version
            await sweeper.sweep()
            assert await index.builds.wait(before, timeout=30)
        finally:
            await background.close()


async def test_texts_are_embedded_while_an_index_is_built(database_url: str) -> None:
    """The build waits for a row that a transaction has locked."""
    async with Engine.open(database_url, memory_background=False) as engine:
        database, embedder, wake_up = database_of(engine), FussyEmbedder(), WakeUp()
        queue = EmbeddingQueue(database, embedder)
        await engine.memory.remember(ADA, [Remembered(str(number), f"text {number}") for number in range(6)])
        assert await queue.work() == 6
        background = MemoryBackground(
            database,
            wake_up,
            queue=queue,
            vector_index=VectorIndex(database, embedder, large=5),
            messages=MessageIndex(database, None),
            episodic=EpisodicMemoryStore(database, Ingest(database, embeds=False)),
            sweeper=Sweeper(Supervisor()),
        )
        async with database.pool.acquire() as other, other.transaction():
            await other.execute("SELECT FROM memory_scopes WHERE user_id = 'ada' FOR UPDATE")
            await background.start()
            try:
                async with asyncio.timeout(60):
                    while not await database.pool.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                        await asyncio.sleep(0.01)
                    await engine.memory.remember(MemoryScope("shop", "bob"), [Remembered("1", "tea")])
                    wake_up.notify()
                    while not await database.pool.fetchval("SELECT count(*) FROM memory_vectors WHERE user_id = 'bob'"):
                        await asyncio.sleep(0.01)
            finally:
                await background.close()
