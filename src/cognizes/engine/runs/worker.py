"""Worker: executes the runs of some handlers, up to `concurrency` at once, until it is stopped.

Any number of workers on any number of machines share the work. When a worker dies, others claim its runs after their
leases expire; a worker that is stopped releases its runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self
from uuid import UUID

from cognizes.engine.concurrency import WakeUp
from cognizes.engine.errors import (
    DatabaseUnavailableError,
    EngineError,
    InvalidInputError,
    LeaseLostError,
    NotFoundError,
    PoolTimeoutError,
    RunFailedError,
    StatementTimeoutError,
)
from cognizes.engine.models import Run, RunStatus
from cognizes.engine.pulse.events import check_name
from cognizes.engine.pulse.sessions import RunFence, fenced_by
from cognizes.engine.runs.context import HandledRun
from cognizes.engine.runs.leases import Lease, new_worker_id
from cognizes.engine.runs.run_rows import attempt_span
from cognizes.engine.runs.runs import Runs
from cognizes.engine.runs.waits import RunSuspended
from cognizes.engine.supervision import SupervisedLoop
from cognizes.engine.telemetry import ActiveSpan

logger = logging.getLogger(__name__)

Handler = Callable[[HandledRun], Awaitable[Any]]
_POLL_SECONDS = 1.0


class HasRuns(Protocol):
    runs: Runs


class Worker:
    """Claims and executes runs.

    async with Worker(engine, {"refund": refund}, concurrency=4):
        ...

    A run whose handler raises is tried again after a pause, up to its attempts; `RunFailedError` fails it at once. An
    attempt that ends because PostgreSQL is unavailable does not count: the run is tried again when PostgreSQL is back.
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
        self._grace = engine.runs._settings.shutdown_seconds if grace_seconds is None else grace_seconds
        self._tasks: dict[asyncio.Task[None], Run] = {}
        self._main: asyncio.Task[None] | None = None
        self._claiming: SupervisedLoop | None = None
        self._stopped = asyncio.Event()
        self._wake_up = WakeUp()
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
        return list(self._tasks.values())

    def stop(self) -> None:
        """Stop claiming; `run` returns when the active runs have ended or were released."""
        self._is_stopping = True
        self._stopped.set()
        if self._claiming is not None:
            # A claim in progress is not cancelled: the runs that it returns must be released.
            self._claiming.finish()
        self._wake_up.notify()

    async def run(self) -> None:
        """Work until `stop`. Active runs may continue for the grace time, then they are released."""
        if self._is_stopping:
            return
        self._runs.sweep.start()
        with (
            self._runs.notifications.subscribe(lambda event: event.makes_claimable) as self._wake_up,
            self._runs.sweep.on_user_messages(),
        ):
            self._claiming = self._runs._supervisor.start(
                f"worker-{self.id}", self._claim_round, longest_pause=_POLL_SECONDS
            )
            try:
                await self._stopped.wait()
            finally:
                self.stop()
                await self._claiming.wait()
                await self._release_active()

    async def _claim_round(self) -> None:
        seen = self._wake_up.version
        if not await self._claim():
            await self._wake_up.wait(seen, timeout=_POLL_SECONDS)

    async def _claim(self) -> bool:
        """Claim as many runs as may start; return whether another claim at once is useful."""
        room = self._concurrency - len(self._tasks)
        try:
            claimed = await self._runs.claim(self._handlers, worker_id=self.id, limit=room) if room else []
        except EngineError as error:
            logger.warning("worker %s could not claim runs; retrying: %s", self.id, error)
            return False
        for run in claimed:
            task = asyncio.create_task(self._execute(run), name=f"run-{run.id}")
            self._tasks[task] = run
            task.add_done_callback(self._forget)
        return bool(claimed) and len(claimed) == room and len(self._tasks) < self._concurrency

    def _forget(self, task: asyncio.Task[None]) -> None:
        run = self._tasks.pop(task)
        self._wake_up.notify()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("run %s of worker %s ended with an internal error", run.id, self.id, exc_info=error)

    async def _release_active(self) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=self._grace)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _execute(self, run: Run) -> None:
        """Execute one attempt at a run; never raise."""
        task = asyncio.current_task()
        fence = RunFence(UUID(run.thread_id), run.id, run.attempt)
        lease = self._runs.leases.hold(fence, task.cancel if task else lambda: None)
        try:
            with attempt_span(run) as active, fenced_by(fence):
                await self._attempt(run, fence, lease, active)
        except LeaseLostError as error:
            logger.info("worker %s lost run %s: %s", self.id, run.id, error)
        except NotFoundError as error:
            logger.info("run %s was deleted: %s", run.id, error)
        except EngineError as error:
            # Its lease expires, and the run is tried again.
            logger.error("the result of run %s could not be stored: %s", run.id, error)
        finally:
            self._runs.leases.drop(lease)

    async def _attempt(self, run: Run, fence: RunFence, lease: Lease, active: ActiveSpan) -> None:
        try:
            session = await self._runs.until_available(lambda: self._runs._sessions.store.get_thread(run.thread_id))
            context = HandledRun(self._runs, run, session, fence)
            await context.restore()
            result = await self._handlers[run.handler or ""](context)
            self._runs.leases.drop(lease)
            await self._runs.finish(run, result=result)
        except RunSuspended:
            return
        except asyncio.CancelledError:
            if lease.is_lost:
                if lease.is_overdue and not self._is_stopping:
                    await self._runs.release_after_outage(run)
                return
            cause = None if self._is_stopping else "its handler was cancelled"
            await asyncio.shield(self._runs.release(run, cause=cause))
        except (LeaseLostError, NotFoundError):
            raise
        except RunFailedError as error:
            active.fail(error)
            self._runs.leases.drop(lease)
            await self._runs.fail(run, error=str(error))
            await self._runs.remember(run)
        except (DatabaseUnavailableError, PoolTimeoutError) as error:
            self._runs.leases.drop(lease)
            if isinstance(error, StatementTimeoutError):
                logger.warning("attempt %s at run %s failed: %s", run.attempt, run.id, error)
                await self._fail_attempt(run, error)
            else:
                logger.warning("attempt %s at run %s ended in an outage: %s", run.attempt, run.id, error)
                await self._runs.release_after_outage(run)
        except Exception as error:
            logger.warning("attempt %s at run %s failed", run.attempt, run.id, exc_info=error)
            self._runs.leases.drop(lease)
            await self._fail_attempt(run, error)
        else:
            await self._runs.remember(run)

    async def _fail_attempt(self, run: Run, error: Exception) -> None:
        cause = f"{type(error).__name__}: {error}"
        if await self._runs.release(run, cause=cause) == RunStatus.FAILED:
            await self._runs.remember(run)
