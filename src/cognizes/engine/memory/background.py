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
from cognizes.engine.supervision import SupervisedLoop, Supervisor

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
_FIRST_PAUSE = 1.0
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
        supervisor: Supervisor | None = None,
    ) -> None:
        self._database = database
        self._rung = rung
        self._queue = queue
        self._graph = graph
        self._messages = messages
        self._episodic = episodic
        self._supervisor = supervisor or Supervisor()
        self._loops: list[SupervisedLoop] = []
        self._pause = _FIRST_PAUSE
        self._graph_grown_at = float("-inf")

    async def start(self) -> None:
        """Begins."""
        self._loops = [
            self._supervisor.start("memory-episodes", self._write_episodes_round),
            self._supervisor.start("memory-index", self._index_round),
        ]

    async def close(self) -> None:
        """Stops; a batch in the middle is given up, its claim runs out."""
        for loop in self._loops:
            await loop.stop()
        self._loops = []

    async def _index_round(self) -> None:
        self._rung.clear()
        try:
            # Words first: they do not wait for an embedder that is away.
            indexed = await self._messages.work()
            taken = await self._queue.work() if self._queue is not None else 0
            self._pause = _FIRST_PAUSE
            if taken < BATCH and indexed < MESSAGES_AT_ONCE:
                if self._graph is not None and time.monotonic() >= self._graph_grown_at + _GRAPH_SECONDS:
                    self._graph_grown_at = time.monotonic()
                    await self._graph.grow()
                    await self._messages.build_graph()
                await _wait(self._rung, _LOOK_SECONDS)
            return
        except EmbedderUnavailableError as error:
            logger.warning("memories and messages wait for their vectors: %s", error)
        except EngineError as error:
            logger.warning("making vectors failed and will be tried again: %s", error)
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    async def _write_episodes_round(self) -> None:
        try:
            while await self.write_due_episodes():
                pass
        except EngineError as error:
            logger.warning("writing episodes failed and will be tried again: %s", error)
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
