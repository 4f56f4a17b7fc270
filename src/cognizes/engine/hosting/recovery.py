"""Continues hosted runs whose server stopped, or fails them with a clear cause.

A hosted run has a handler, a lease and an attempt like any other run. When its lease expires, or its server hands it
over, a server of the same agent claims it; the attempt before can write no more.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

from cognizes.engine.engine import Engine
from cognizes.engine.errors import EngineError
from cognizes.engine.hosting.agent import handler_of
from cognizes.engine.models import Run
from cognizes.engine.supervision import SupervisedLoop

logger = logging.getLogger(__name__)

UNFIT = "the server that executed the run stopped, and another one cannot continue it"
_POLL_SECONDS = 1.5
_BATCH = 10


class RunRecovery:
    """Claims runs that lost their server, until it is closed. `resume` returns why a run cannot be continued."""

    def __init__(self, engine: Engine, agents: Iterable[str], resume: Callable[[Run], Awaitable[str | None]]) -> None:
        self._engine = engine
        self._handlers = [handler_of(agent) for agent in agents]
        self._resume = resume
        self._loop: SupervisedLoop | None = None

    def start(self) -> None:
        self._loop = self._engine._supervisor.start("recover-runs", self._recover_forever, longest_pause=_POLL_SECONDS)

    async def close(self) -> None:
        if self._loop is not None:
            await self._loop.stop()
            self._loop = None

    async def _recover_forever(self) -> None:
        self._engine.runs.sweep.start()
        with self._engine.runs.notifications.subscribe(lambda event: event.makes_claimable) as wake_up:
            while True:
                seen = wake_up.version
                try:
                    for run in await self._engine.runs.claim(self._handlers, limit=_BATCH):
                        await self._recover(run)
                except EngineError as error:
                    logger.warning("runs without a server could not be claimed; retrying: %s", error)
                await wake_up.wait(seen, timeout=_POLL_SECONDS)

    async def _recover(self, run: Run) -> None:
        """Continue a run or fail it. An error of one run does not stop the recovery of others."""
        try:
            if (reason := await self._try(run)) is not None:
                await self._engine.runs.remember(await self._engine.runs.abandon(run, error=reason))
        except EngineError as error:
            # The lease expires, and the run is claimed again.
            logger.warning("run %s could not be recovered: %s", run.id, error)

    async def _try(self, run: Run) -> str | None:
        try:
            return await self._resume(run)
        except EngineError:
            raise
        except Exception as error:
            logger.warning("run %s could not be continued", run.id, exc_info=error)
            return f"{UNFIT}: {type(error).__name__}: {error}"
