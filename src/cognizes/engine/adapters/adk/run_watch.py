"""Runs whose server died or stopped: this one goes on with them, or ends them with a clear cause.

A hosted run has a handler, a lease and an attempt like any other run. When its lease runs out, or its server hands it
over, whoever serves the same agent claims it: the attempt before can write no more.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

from cognizes.engine.engine import Engine
from cognizes.engine.errors import EngineError
from cognizes.engine.models import Run
from cognizes.engine.runs.doorbell import CLAIMABLE, rings
from cognizes.engine.supervision import SupervisedLoop

logger = logging.getLogger(__name__)

ORPHANED = "the server that executed the run went away; what it had said until then is kept"
UNFIT = "the server that executed the run went away, and another one cannot go on with it"

_LOOK_SECONDS = 1.5
_AT_ONCE = 10


def handler_of(agent: str) -> str:
    """The handler of the runs of a served agent: who serves an agent of this name can go on with them."""
    return f"agui/{agent}"


class RunWatch:
    """Looks after runs that lost their server, until it is closed."""

    def __init__(self, engine: Engine, agents: Iterable[str], adopt: Callable[[Run], Awaitable[None]]) -> None:
        self._engine = engine
        self._handlers = [handler_of(agent) for agent in agents]
        self._adopt = adopt
        self._loop: SupervisedLoop | None = None

    def start(self) -> None:
        """Begins to watch."""
        self._loop = self._engine.supervisor.start("watch-runs", self._watch_forever, longest_pause=_LOOK_SECONDS)

    async def close(self) -> None:
        """Stops watching."""
        if self._loop is not None:
            await self._loop.stop()
            self._loop = None

    async def _watch_forever(self) -> None:
        with self._engine.runs.doorbell.listen(*CLAIMABLE) as bell:
            while True:
                try:
                    await self._engine.runs.expire()
                    for run in await self._engine.runs.claim(self._handlers, limit=_AT_ONCE):
                        await self._look_after(run)
                except EngineError as error:
                    logger.warning("runs without a server could not be looked after and will be: %s", error)
                await rings(bell, seconds=_LOOK_SECONDS)

    async def _look_after(self, run: Run) -> None:
        """One run that cannot be resumed does not keep the others from it."""
        try:
            try:
                await self._adopt(run)
            except EngineError:
                raise
            except Exception as error:
                logger.warning("run %s could not be resumed", run.id, exc_info=error)
                await self._engine.runs.abandon(run, error=f"{UNFIT}: {type(error).__name__}: {error}")
        except EngineError as error:
            # Its lease runs out, and it is tried again.
            logger.warning("run %s could not be looked after: %s", run.id, error)
