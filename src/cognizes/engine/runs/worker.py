"""Worker: executes runs of some handlers, as many at once as it is told, until it is stopped.

Any number of workers on any number of machines share the work. One that dies is replaced by another when its leases run
out; one that is stopped gives its runs back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self
from uuid import UUID

from cognizes.engine.errors import EngineError, InvalidInputError, LeaseLostError, NotFoundError, RunFailedError
from cognizes.engine.models import Run, RunStatus
from cognizes.engine.pulse.events import check_name
from cognizes.engine.pulse.fencing import RunFence, fenced_by
from cognizes.engine.runs.doorbell import CLAIMABLE, USER_SPOKE, rings
from cognizes.engine.runs.durable_runs import DurableRuns, new_worker_id
from cognizes.engine.runs.leases import Lease
from cognizes.engine.runs.run_context import HandledRun
from cognizes.engine.runs.waits import RunSuspended
from cognizes.engine.supervision import SupervisedLoop

logger = logging.getLogger(__name__)

Handler = Callable[[HandledRun], Awaitable[Any]]

_LOOK_SECONDS = 1.0


class HasRuns(Protocol):
    """An engine, as far as a worker cares."""

    runs: DurableRuns


class Worker:
    """Claims and executes runs.

    async with Worker(engine, {"refund": refund}, concurrency=4):
        ...

    A handler that raises is tried again after a while, up to the run's attempts; `RunFailedError` fails it at once.
    """

    def __init__(
        self,
        engine: HasRuns,
        handlers: Mapping[str, Handler],
        *,
        concurrency: int = 10,
        worker_id: str | None = None,
        grace_seconds: float | None = None,
    ) -> None:
        if not handlers:
            raise InvalidInputError("a worker needs at least one handler")
        if concurrency < 1:
            raise InvalidInputError("concurrency must be at least 1")
        self._runs = engine.runs
        self._handlers = {check_name("handler", name): handler for name, handler in handlers.items()}
        self._concurrency = concurrency
        self._grace = engine.runs.settings.shutdown_seconds if grace_seconds is None else grace_seconds
        self._tasks: dict[asyncio.Task[None], Run] = {}
        self._main: asyncio.Task[None] | None = None
        self._claiming: SupervisedLoop | None = None
        self._stopped = asyncio.Event()
        self._bell: asyncio.Event | None = None
        self._is_stopping = False
        self.id = worker_id or new_worker_id()

    async def __aenter__(self) -> Self:
        self._main = asyncio.create_task(self.run(), name=f"worker-{self.id}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._main is not None:
            await self._main

    @property
    def active(self) -> list[Run]:
        """The runs that are executed right now, as they were claimed."""
        return list(self._tasks.values())

    def stop(self) -> None:
        """Claims nothing more; `run` returns when the runs under way have ended or were given back."""
        self._is_stopping = True
        self._stopped.set()
        if self._claiming is not None:
            # A claim under way is not cancelled: the runs that it returns must be given back.
            self._claiming.finish()
        if self._bell is not None:
            self._bell.set()

    async def run(self) -> None:
        """Works until `stop`. Runs under way may go on for the grace time, then they are given back."""
        if self._is_stopping:
            return
        supervisor = self._runs.supervisor
        with self._runs.doorbell.listen(*CLAIMABLE) as bell:
            self._bell = bell
            sweeping = supervisor.start(f"sweep-{self.id}", self._sweep_forever, longest_pause=_LOOK_SECONDS)
            self._claiming = supervisor.start(
                f"worker-{self.id}", partial(self._claim_round, bell), longest_pause=_LOOK_SECONDS
            )
            try:
                await self._stopped.wait()
            finally:
                self.stop()
                await self._claiming.wait()
                await sweeping.stop()
                await self._give_back()

    async def _claim_round(self, bell: asyncio.Event) -> None:
        bell.clear()
        if not await self._work():
            await rings(bell, seconds=_LOOK_SECONDS)

    async def _sweep_forever(self) -> None:
        with self._runs.doorbell.listen(*USER_SPOKE) as bell:
            while True:
                try:
                    await self._runs.expire()
                except EngineError as error:
                    logger.warning("worker %s could not look after runs and will again: %s", self.id, error)
                await rings(bell, seconds=_LOOK_SECONDS)

    async def _work(self) -> bool:
        """Claims what there is room for; whether looking again at once is worth it."""
        room = self._concurrency - len(self._tasks)
        try:
            claimed = await self._runs.claim(self._handlers, worker_id=self.id, limit=room) if room else []
        except EngineError as error:
            logger.warning("worker %s could not look for runs and will again: %s", self.id, error)
            return False
        for run in claimed:
            task = asyncio.create_task(self._execute(run), name=f"run-{run.id}")
            self._tasks[task] = run
            task.add_done_callback(self._forget)
        return bool(claimed) and len(claimed) == room and len(self._tasks) < self._concurrency

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if self._bell is not None:
            self._bell.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a run of worker %s ended in an error of the engine", self.id, exc_info=error)

    async def _give_back(self) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=self._grace)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _execute(self, run: Run) -> None:
        """One attempt at a run, whatever comes of it."""
        task = asyncio.current_task()
        fence = RunFence(UUID(run.thread_id), run.id, run.attempt)
        lease = self._runs.leases.hold(fence, task.cancel if task else lambda: None)
        try:
            with fenced_by(fence):
                await self._attempt(run, fence, lease)
        except LeaseLostError as error:
            logger.info("run %s is not worker %s's any more: %s", run.id, self.id, error)
        except NotFoundError as error:
            logger.info("run %s is gone: %s", run.id, error)
        except EngineError as error:
            # Its lease runs out, and it is tried again.
            logger.error("what became of run %s could not be stored: %s", run.id, error)
        finally:
            self._runs.leases.drop(lease)

    async def _attempt(self, run: Run, fence: RunFence, lease: Lease) -> None:
        try:
            session = await self._runs.until_available(lambda: self._runs.manager.sessions.get_thread(run.thread_id))
            context = HandledRun(self._runs, run, session, fence)
            await context.restore()
            result = await self._handlers[run.handler or ""](context)
            self._runs.leases.drop(lease)
            await self._runs.complete(run, result)
        except RunSuspended:
            return
        except asyncio.CancelledError:
            if lease.is_lost:
                return
            cause = None if self._is_stopping else "its handler was cancelled"
            await asyncio.shield(self._runs.release(run, cause=cause))
        except (LeaseLostError, NotFoundError):
            raise
        except RunFailedError as error:
            self._runs.leases.drop(lease)
            await self._runs.abandon(run, error=str(error))
            await self._runs.remember(run)
        except Exception as error:
            logger.warning("attempt %s at run %s failed", run.attempt, run.id, exc_info=error)
            cause = f"{type(error).__name__}: {error}"
            self._runs.leases.drop(lease)
            if await self._runs.release(run, cause=cause) == RunStatus.FAILED:
                await self._runs.remember(run)
        else:
            await self._runs.remember(run)
