"""Background tasks of memory: embed and index new texts, write episodes of ended runs."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta

from cognizes.engine.concurrency import Sweeper, WakeUp
from cognizes.engine.database import Database
from cognizes.engine.errors import NotFoundError
from cognizes.engine.memory.episodic import EpisodicMemoryStore
from cognizes.engine.memory.message_search import MESSAGE_BATCH, MessageIndex
from cognizes.engine.memory.vectors import BATCH, EmbeddingQueue, VectorIndex
from cognizes.engine.supervision import SupervisedLoop

logger = logging.getLogger(__name__)

_EPISODE_SECONDS = 5.0
_INDEX_SECONDS = 3.0
"""Texts that another process stored wait at most this long: only texts of this process wake the job."""
_LONGEST_PAUSE = 60.0
"""Between two attempts while the embedder is unavailable."""
_BUILD_SECONDS = 60.0
"""Interval of the search for large users, which scans all users."""
_PAUSE_FACTOR = 8.0
"""The pause after a slice of a backlog, as a multiple of its duration, if the event loop was busy all that time."""
_OWN_SHARE = 0.1
"""The share of that thread that indexing itself takes at most. Without requests there is no pause."""
_CLAIM = timedelta(minutes=5)
_ATTEMPTS = 5
_EPISODES = 20


class Pace:
    """Pauses between slices: the busier the thread of the event loop was, the longer, so that requests come first."""

    def __init__(self) -> None:
        self._read_clocks()

    async def pause(self) -> None:
        spent = time.monotonic() - self._started
        share = (time.thread_time() - self._computed) / max(spent, 1e-6) - _OWN_SHARE
        await asyncio.sleep(_PAUSE_FACTOR * max(share, 0.0) * spent)
        self._read_clocks()

    def _read_clocks(self) -> None:
        self._started, self._computed = time.monotonic(), time.thread_time()


class MemoryBackground:
    """Runs three periodic jobs. Unfinished work stays in tables for the next process."""

    def __init__(
        self,
        database: Database,
        wake_up: WakeUp,
        *,
        queue: EmbeddingQueue | None,
        vector_index: VectorIndex | None,
        messages: MessageIndex,
        episodic: EpisodicMemoryStore,
        sweeper: Sweeper,
    ) -> None:
        self._database = database
        self._wake_up = wake_up
        self._queue = queue
        self._vector_index = vector_index
        self._messages = messages
        self._episodic = episodic
        self._sweeper = sweeper
        self._loops: list[SupervisedLoop] = []
        self._has_backlog = True
        self._caught_up = WakeUp()
        self._episodes_due = WakeUp()

    async def start(self) -> None:
        start = self._sweeper.start
        self._loops = [
            start("memory-episodes", self._write_episodes, seconds=_EPISODE_SECONDS, wake_up=self._episodes_due),
            start(
                "memory-index", self._index, seconds=_INDEX_SECONDS, wake_up=self._wake_up, longest_pause=_LONGEST_PAUSE
            ),
            start("memory-vector-index", self._build, seconds=_BUILD_SECONDS, wake_up=self._caught_up),
        ]
        # At once: an earlier process may have left work.
        self._episodes_due.notify()
        self._wake_up.notify()

    async def close(self) -> None:
        """Stop the jobs. The claim of an unfinished batch is released."""
        for loop in self._loops:
            await loop.stop()
        self._loops = []

    async def _index(self) -> None:
        pace = Pace()
        # Words first: they do not depend on the embedder.
        indexed = await self._messages.work(pause=pace.pause)
        taken = await self._queue.work(pause=pace.pause) if self._queue is not None else 0
        had_backlog, self._has_backlog = self._has_backlog, taken >= BATCH or indexed >= MESSAGE_BATCH
        if self._has_backlog:
            self._wake_up.notify()
        elif had_backlog:
            self._caught_up.notify()

    async def _build(self) -> None:
        """Build the indexes of large users. A build takes minutes, and texts are embedded beside it."""
        # After a backlog: each vector that an index contains already is more expensive to store.
        if self._has_backlog:
            return
        if self._vector_index is not None:
            await self._vector_index.grow()
        await self._messages.build_vector_index()

    async def _write_episodes(self) -> None:
        while await self.write_due_episodes():
            pass

    async def write_due_episodes(self) -> int:
        """Write the episodes of ended runs; return the number of runs claimed."""
        # What is claimed together is written before the claim expires.
        number = (
            _EPISODES
            if self._episodic.summariser is None
            else _CLAIM // (2 * timedelta(seconds=self._episodic.summary_seconds))
        )
        rows = await self._database.fetch("claim_episodes", max(min(number, _EPISODES), 1), _CLAIM)
        for row in rows:
            try:
                await self._episodic.write_for_run(row["thread_id"], row["run_id"])
            except NotFoundError:
                logger.debug("run %s was deleted; no episode is written", row["run_id"])
            except Exception as error:
                # A run whose summary fails must not block the others.
                if row["attempts"] < _ATTEMPTS:
                    logger.warning("writing the episode of run %s failed, retrying: %s", row["run_id"], error)
                    continue
                logger.exception("no episode of run %s after %s attempts", row["run_id"], _ATTEMPTS)
            await self._database.fetch("finish_episode", row["thread_id"], row["run_id"])
        return len(rows)
