"""What memory does when nobody waits for it: vectors for new memories, episodes for runs that ended."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta

from cognizes.engine.database import Database
from cognizes.engine.errors import EngineError, NotFoundError
from cognizes.engine.memory.embedders.embedder import EmbedderUnavailableError
from cognizes.engine.memory.embedding_queue import BATCH, EmbeddingQueue
from cognizes.engine.memory.episodic import EpisodicMemoryStore
from cognizes.engine.memory.message_search import MESSAGES_AT_ONCE, MessageIndex
from cognizes.engine.memory.vector_graph import VectorGraph

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
_LONGEST_PAUSE = 60.0
_GRAPH_SECONDS = 60.0
"""Who became crowded is looked up this often: it is a look at all users."""
_CLAIM = timedelta(minutes=5)
_ATTEMPTS = 5
_EPISODES = 20


class MemoryBackground:
    """Two tasks that outlive every failure. What they leave undone at the end waits in tables for the next process."""

    def __init__(
        self,
        database: Database,
        rung: asyncio.Event,
        *,
        queue: EmbeddingQueue | None,
        graph: VectorGraph | None,
        messages: MessageIndex,
        episodic: EpisodicMemoryStore,
    ) -> None:
        self._database = database
        self._rung = rung
        self._queue = queue
        self._graph = graph
        self._messages = messages
        self._episodic = episodic
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begins."""
        self._tasks = [
            asyncio.create_task(self._write_episodes(), name="memory-episodes"),
            asyncio.create_task(self._index(), name="memory-index"),
        ]

    async def close(self) -> None:
        """Stops; a batch in the middle is given up, its claim runs out."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []

    async def _index(self) -> None:
        pause = 1.0
        grown_at = float("-inf")
        while True:
            self._rung.clear()
            try:
                # Words first: they do not wait for an embedder that is away.
                indexed = await self._messages.work()
                taken = await self._queue.work() if self._queue is not None else 0
                pause = 1.0
                if taken < BATCH and indexed < MESSAGES_AT_ONCE:
                    if self._graph is not None and time.monotonic() >= grown_at + _GRAPH_SECONDS:
                        grown_at = time.monotonic()
                        await self._graph.grow()
                        await self._messages.build_graph()
                    await _wait(self._rung, _LOOK_SECONDS)
                continue
            except EmbedderUnavailableError as error:
                logger.warning("memories and messages wait for their vectors: %s", error)
            except EngineError as error:
                logger.warning("making vectors failed and will be tried again: %s", error)
            except Exception:
                logger.exception("making vectors failed unexpectedly and will be tried again")
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _write_episodes(self) -> None:
        while True:
            try:
                while await self.write_due_episodes():
                    pass
            except EngineError as error:
                logger.warning("writing episodes failed and will be tried again: %s", error)
            except Exception:
                logger.exception("writing episodes failed unexpectedly and will be tried again")
            await asyncio.sleep(_LOOK_SECONDS)

    async def write_due_episodes(self) -> int:
        """Writes the episodes of runs that ended; returns how many were due."""
        rows = await self._database.fetch("claim_episodes", _EPISODES, _CLAIM)
        for row in rows:
            try:
                await self._episodic.write_for_run(row["thread_id"], row["run_id"])
            except NotFoundError:
                logger.debug("run %s is gone; it has no episode", row["run_id"])
            except Exception as error:
                # One run that cannot be told must not keep the others waiting.
                if row["attempts"] < _ATTEMPTS:
                    logger.warning("the episode of run %s will be tried again: %s", row["run_id"], error)
                    continue
                logger.exception("the episode of run %s is given up", row["run_id"])
            await self._database.fetch("finish_episode", row["thread_id"], row["run_id"])
        return len(rows)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
