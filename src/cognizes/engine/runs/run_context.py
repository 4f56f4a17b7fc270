"""What the code that executes a run holds in its hands: input, session, steps, waits, memory, messages.

Everything it writes for the run is fenced by its attempt.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from cognizes.engine.errors import (
    EngineError,
    InvalidInputError,
    LeaseLostError,
    StepInterruptedError,
    WaitExpiredError,
)
from cognizes.engine.models import Event, JsonObject, Run, RunStatus, Session
from cognizes.engine.pulse.fencing import RunFence, fenced_by
from cognizes.engine.pulse.runs import RunHandle
from cognizes.engine.pulse.state_manager import StateFunction
from cognizes.engine.runs.doorbell import MOVED, USER_SPOKE, rings
from cognizes.engine.runs.leases import Lease
from cognizes.engine.runs.resumption import Resolution, Resumption, read_resolution
from cognizes.engine.runs.run_memory import RunMemory
from cognizes.engine.runs.steps import Step, Steps
from cognizes.engine.runs.waits import RunSuspended, Wait, check_wait

if TYPE_CHECKING:
    from cognizes.engine.runs.durable_runs import DurableRuns

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0

IfInterrupted = Literal["again", "raise"] | Callable[[int], Awaitable[Any]]


class RunContext(RunHandle, ABC):
    """A run and its attempt, for the code that executes it."""

    def __init__(self, runs: DurableRuns, run: Run, session: Session, fence: RunFence) -> None:
        super().__init__(runs, fence.thread_id, run.id)
        self._services = runs
        self._fence = fence
        self._steps = Steps(runs.database, fence, retry_seconds=runs.settings.retry_seconds)
        self._ended_waits: set[str] = set()
        self.run = run
        self.session = session
        self.memory = RunMemory(runs.memory, session, retry_seconds=runs.settings.retry_seconds)
        self.resumption: Resumption | None = None
        self.interrupted_steps: list[Step] = []

    @property
    def input(self) -> Any:
        """What the run was enqueued with."""
        return self.run.input

    @property
    def attempt(self) -> int:
        """How often the run has been claimed, this time included."""
        return self._fence.attempt

    @property
    def cursor_node(self) -> str | None:
        """Where to go on after a wait; None at the beginning."""
        return self.resumption.cursor_node if self.resumption else None

    async def restore(self) -> None:
        """Brings the run's mind back: the snapshot of its last wait is applied to working memory, once; episodes and
        long-term values come with it. Steps that were cut off are found."""
        await self._services.until_available(self._restore)

    async def _restore(self) -> None:
        self.interrupted_steps = [
            step
            for step in await self._services.steps(self.thread_id, self.id)
            if step.status == "started" and step.attempt < self.attempt
        ]
        self._steps.expect_interrupted(self.interrupted_steps)
        self.resumption = await self._services.restore(self.run, self.session)
        if self.resumption is not None and self.resumption.memory_snapshot is not None:
            self.memory = RunMemory(
                self._services.memory,
                self.session,
                self.resumption.memory_snapshot.long_term_keys,
                retry_seconds=self._services.settings.retry_seconds,
            )

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        if_interrupted: IfInterrupted = "again",
        **named: Any,
    ) -> Any:
        """Calls a function once in the life of the run and returns its result, which must be JSON.

        An attempt that was cut off in the middle of the function has left it `started`, and nobody knows how far it
        came: then it is called `again`, or a `StepInterruptedError` is raised (`raise`), or a function of yours is
        called with the number of that attempt, and decides.
        """

        async def work() -> Any:
            result = function(*arguments, **named)
            return await result if inspect.isawaitable(result) else result

        async def refuse(attempt: int) -> Any:
            raise StepInterruptedError(f"attempt {attempt} began the step {name!r} and did not finish it")

        if if_interrupted not in ("again", "raise") and not callable(if_interrupted):
            raise InvalidInputError("if_interrupted is 'again', 'raise', or a function that decides")
        decide = refuse if if_interrupted == "raise" else if_interrupted if callable(if_interrupted) else None
        with fenced_by(self._fence):
            return await self._steps.run(name, work, if_interrupted=decide)

    async def append(
        self,
        *,
        kind: str,
        text: str | None = None,
        content: JsonObject | None = None,
        state: Mapping[str, Any] | None = None,
        author: str = "agent",
        event_id: str = "",
        invocation_id: str = "",
    ) -> Event:
        """Stores an event of this run."""
        with fenced_by(self._fence):
            return await self._services.sessions.append(
                self.session,
                author=author,
                kind=kind,
                text=text,
                content=content,
                state=state,
                event_id=event_id,
                invocation_id=invocation_id,
                run_id=self.id,
            )

    async def update_state(self, change: Mapping[str, Any] | StateFunction) -> Session:
        """Changes state by a delta, or exactly, by a function of the fresh state, in every scope that it writes."""
        with fenced_by(self._fence):
            return await self._services.manager.update_session_state(self.session, change, run_id=self.id)

    async def wait(
        self,
        *,
        kind: str,
        correlation_key: str,
        reason: str | None = None,
        expires_at: datetime | None = None,
        timeout_node: str | None = None,
        cursor_node: str | None = None,
        plan_decision_id: str | None = None,
        payload_results: Mapping[str, Any] | None = None,
    ) -> Any:
        """Waits durably, and returns the payload of what ended the wait.

        Every wait of a run has a key of its own: when the code runs again after the wait, it gets the same payload at
        once. With a `cursor_node` it does not return; the code is called again and finds the node in `cursor_node`.
        After `expires_at` a timer fires; any other wait goes on at its `timeout_node`, or fails the run.
        """
        wait = check_wait(
            kind=kind,
            correlation_key=correlation_key,
            reason=reason,
            expires_at=expires_at,
            timeout_node=timeout_node,
            cursor_node=cursor_node,
            plan_decision_id=plan_decision_id,
            payload_results=payload_results,
        )
        if correlation_key in self._ended_waits:
            raise InvalidInputError(
                f"the run has waited for {correlation_key!r} already; give every wait a key of its own"
            )
        with fenced_by(self._fence):
            payload = await self._wait(wait)
        self._ended_waits.add(correlation_key)
        return payload

    async def think(self, thought: str) -> None:
        """Adds a thinking step."""
        with fenced_by(self._fence):
            await super().think(thought)

    async def call_tool(self, name: str, arguments: Any) -> str:
        """Adds a tool call; its id is for `finish_tool`."""
        with fenced_by(self._fence):
            return await super().call_tool(name, arguments)

    async def finish_tool(self, call_id: str, output: Any, *, is_error: bool = False) -> None:
        """Adds a tool's result to its call."""
        with fenced_by(self._fence):
            await super().finish_tool(call_id, output, is_error=is_error)

    @abstractmethod
    async def _wait(self, wait: Wait) -> Any: ...

    async def _snapshot(self) -> JsonObject:
        return (await self._services.until_available(self.memory.snapshot)).to_json()

    async def _resolution(self, wait: Wait) -> Resolution | None:
        return await self._services.until_available(
            lambda: read_resolution(self._services.database, self.thread_id, self.id, wait)
        )

    async def _payload_of(self, wait: Wait) -> Any:
        found = await self._resolution(wait)
        if found is None:
            raise LeaseLostError(f"run {self.id} goes on elsewhere")
        return found.payload


class HandledRun(RunContext):
    """A run in a worker: waiting ends the call of its handler, which is called again afterwards."""

    async def _wait(self, wait: Wait) -> Any:
        returns = wait.cursor_node is None
        services = self._services
        if returns and await self._resolution(wait):
            # Without a look at the memory: the run does not wait.
            await services.store_wait(self._fence, wait, memory_snapshot=None, suspend=False)
            return await self._payload_of(wait)
        await services.store_wait(self._fence, wait, memory_snapshot=await self._snapshot(), suspend=True)
        raise RunSuspended(wait.correlation_key)


class InProcessRun(RunContext):
    """A run in a block of code: waiting waits, for as long as the process lives.

    Entered, it keeps the lease of the run; at its end the run ends.
    """

    def __init__(self, runs: DurableRuns, run: Run, session: Session, fence: RunFence) -> None:
        super().__init__(runs, run, session, fence)
        self._lease: Lease | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_waiting = False

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        self._hold()
        try:
            await self.restore()
        except BaseException as error:
            # Nobody calls `__aexit__` then: the lease would be kept for ever.
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            self._services.leases.drop(lease)
        if self._is_waiting or isinstance(error, WaitExpiredError):
            # It waits on without us, or has failed already.
            return
        if lease is not None and lease.is_lost and not await self._was_stopped_by_others(error):
            raise LeaseLostError(f"run {self.id} was cancelled, or another process has it") from error
        await self._end(error)

    async def _was_stopped_by_others(self, error: BaseException | None) -> bool:
        """Takes back the cancellation with which a lost lease stopped the block; whether somebody else wants it too."""
        if not isinstance(error, asyncio.CancelledError):
            # It has not arrived yet.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        return self._task is not None and self._task.uncancel() > 0

    async def _end(self, error: BaseException | None) -> None:
        place = self.thread_id, self.id
        try:
            if isinstance(error, asyncio.CancelledError):
                await asyncio.shield(self._services.cancel(*place))
            elif isinstance(error, Exception):
                await self._services.fail(*place, error=f"{type(error).__name__}: {error}")
            elif error is None:
                await self._services.finish(*place)
        except LeaseLostError:
            if error is None:
                raise
            # It waits already, or is somebody else's to end.
            logger.info("run %s is left as it is: %r", self.id, error)
            return
        self._fence.end()
        await self._services.remember(self.run)

    def _hold(self) -> None:
        self._lease = self._services.leases.hold(self._fence, self._stop)

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _wait(self, wait: Wait) -> Any:
        if wait.cursor_node is not None:
            raise InvalidInputError("cursor_node is for handlers; a block of code goes on where it waits")
        services = self._services
        snapshot = await self._snapshot()
        with services.doorbell.listen(*MOVED, *USER_SPOKE) as bell:
            if await services.store_wait(self._fence, wait, memory_snapshot=snapshot, suspend=False):
                await self._sleep_until_resumed(wait, bell)
        return await self._payload_of(wait)

    async def _sleep_until_resumed(self, wait: Wait, bell: asyncio.Event) -> None:
        if self._lease is not None:
            self._services.leases.drop(self._lease)
        self._is_waiting = True
        while (status := await self._look()) == RunStatus.WAITING:
            await rings(bell, seconds=_LOOK_SECONDS)
        if status == RunStatus.FAILED:
            raise WaitExpiredError(f"nobody answered {wait.correlation_key!r} in time; run {self.id} has failed")
        if status != RunStatus.PENDING:
            raise LeaseLostError(f"run {self.id} is {status}; this code does not execute it any more")
        # Nobody else would claim it: a run of a block has no handler.
        self._fence.attempt = await self._services.claim_one(self.thread_id, self.id)
        self._is_waiting = False
        self._hold()
        self.run = await self._services.until_available(lambda: self._services.get(self.thread_id, self.id))
        await self.restore()

    async def _look(self) -> RunStatus:
        """Where the waiting run stands, also when PostgreSQL is away for a while."""
        try:
            await self._services.resume_due_waits()
            return (await self._services.get(self.thread_id, self.id)).status
        except EngineError as error:
            logger.debug("run %s waits, and PostgreSQL does not answer: %s", self.id, error)
            return RunStatus.WAITING
