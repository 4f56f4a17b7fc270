"""Runs whose process died: they fail with a cause, and what they had said is kept.

A process holds a lease on the runs it executes; what they say is streamed, so other processes have it. When it falls
silent the others find its leases run out, store what is left of the answer and fail the run. A released run may have
been made pending by the engine's own housekeeping before; it is the same to us.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from datetime import timedelta
from uuid import UUID

from cognizes.engine.adapters.adk.hosted_run import HostedRun
from cognizes.engine.engine import Engine
from cognizes.engine.errors import ConflictError, EngineError

logger = logging.getLogger(__name__)

ORPHANED = "the server that executed the run went away; what it had said until then is kept"

_LEASE = timedelta(seconds=10)
_BEAT_SECONDS = 0.5
_BEATS_BETWEEN_LOOKS = 6


class RunWatch:
    """Keeps the leases of this process's runs, and ends the runs of processes that died."""

    def __init__(self, engine: Engine, apps: Sequence[str], active: Collection[HostedRun]) -> None:
        self._engine = engine
        self._apps = list(apps)
        self._active = active
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to watch."""
        self._task = asyncio.create_task(self._beat_forever(), name="watch-runs")

    async def close(self) -> None:
        """Stops watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def keep(self, runs: Sequence[HostedRun]) -> None:
        """Extends the leases of runs."""
        if not runs:
            return
        keys = [run.thread_id for run in runs], [run.run_id for run in runs]
        await self._engine.database.fetch("extend_run_leases", *keys, _LEASE)

    async def _beat_forever(self) -> None:
        beat = 0
        while True:
            try:
                await self.keep(list(self._active))
                if beat % _BEATS_BETWEEN_LOOKS == 0:
                    await self._end_orphans()
            except EngineError as error:
                logger.warning("the leases of runs could not be looked after and will be: %s", error)
            beat += 1
            await asyncio.sleep(_BEAT_SECONDS)

    async def _end_orphans(self) -> None:
        mine = {(run.thread_id, run.run_id) for run in self._active}
        for row in await self._engine.database.fetch("list_orphaned_runs", self._apps):
            if (row["thread_id"], row["id"]) not in mine:
                await self._end_orphan(row["thread_id"], row["id"])

    async def _end_orphan(self, thread_id: UUID, run_id: str) -> None:
        await self._engine.streams.interrupt_run(thread_id, run_id)
        try:
            await self._engine.runs.fail(thread_id, run_id, error=ORPHANED)
        except ConflictError:
            logger.debug("another process has ended run %s", run_id)
