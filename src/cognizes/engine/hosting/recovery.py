"""RunRecovery: continues hosted runs whose server stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack, suppress

from cognizes.engine.concurrency import WakeUp, create_shared_task
from cognizes.engine.engine import Engine
from cognizes.engine.errors import EngineError
from cognizes.engine.hosting.agent import handler_of
from cognizes.engine.models import Run
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.pulse.sessions import RunFence
from cognizes.engine.supervision import SupervisedLoop

logger = logging.getLogger(__name__)

UNFIT = "the server that executed the run stopped, and another one cannot continue it"
_SECONDS = 1.5
_AT_ONCE = 10


class RunRecovery:
    """Continues hosted runs whose server stopped, or fails them with a clear cause, until it is closed.

    A hosted run has a handler, a lease and an attempt like any other run. When its lease expires, or its server hands
    it over, a server of the same agent claims it; the attempt before can write no more. `resume` returns why a run
    cannot be continued; one that takes long does not delay the recovery of other runs.
    """

    def __init__(self, engine: Engine, agents: Iterable[str], resume: Callable[[Run], Awaitable[str | None]]) -> None:
        self._engine = engine
        self._handlers = [handler_of(agent) for agent in agents]
        self._resume = resume
        self._loop: SupervisedLoop | None = None
        self._subscription = ExitStack()
        self._wake_up = WakeUp()
        self._recovering: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        runs = self._engine.runs
        runs.sweep.start()
        self._wake_up = self._subscription.enter_context(
            runs.notifications.subscribe(lambda event: event.makes_claimable)
        )
        self._loop = self._engine._sweeper.start("recover-runs", self.recover, seconds=_SECONDS, wake_up=self._wake_up)
        self._wake_up.notify()

    async def close(self) -> None:
        """Stop; runs that are being recovered are released for other servers."""
        if self._loop is not None:
            await self._loop.stop()
            self._loop = None
        self._subscription.close()
        for task in self._recovering:
            task.cancel()
        if self._recovering:
            await asyncio.wait(self._recovering)

    async def recover(self) -> None:
        """Claim runs without a server, and begin to recover each in a task of its own."""
        if (room := _AT_ONCE - len(self._recovering)) <= 0:
            return
        for run in await self._engine.runs.claim(self._handlers, limit=room):
            task = create_shared_task(self._recover(run), name=f"recover-{run.id}")
            self._recovering.add(task)
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._recovering.discard(task)
        if len(self._recovering) == _AT_ONCE - 1:
            # There may be more runs than could be claimed.
            self._wake_up.notify()

    async def _recover(self, run: Run) -> None:
        """Continue a run or fail it. An error of one run does not stop the recovery of others."""
        runs = self._engine.runs
        trying = asyncio.create_task(self._try(run), name=f"continue-{run.id}")
        lease = runs.leases.hold(RunFence(thread_uuid(run.thread_id), run.id, run.attempt), trying.cancel)
        try:
            await asyncio.wait([trying])
            if not trying.cancelled() and (reason := trying.result()) is not None:
                await runs.remember(await runs.fail(run, error=reason))
        except EngineError as error:
            # The lease expires, and the run is claimed again.
            logger.warning("run %s could not be recovered: %s", run.id, error)
        except asyncio.CancelledError:
            trying.cancel()
            await asyncio.wait([trying])
            if trying.cancelled():
                with suppress(EngineError):
                    await runs.release(run)
            raise
        finally:
            runs.leases.drop(lease)

    async def _try(self, run: Run) -> str | None:
        try:
            return await self._resume(run)
        except EngineError:
            raise
        except Exception as error:
            logger.warning("run %s could not be continued", run.id, exc_info=error)
            return f"{UNFIT}: {type(error).__name__}: {error}"
