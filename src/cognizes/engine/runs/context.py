"""RunContext: what the code that executes a run works with: input, session, steps, waits, memory, messages.

Every write for the run is fenced by its attempt.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self
from uuid import UUID

from cognizes.engine.concurrency import WakeUp
from cognizes.engine.errors import (
    DatabaseError,
    InvalidInputError,
    LeaseLostError,
    StepInterruptedError,
    WaitExpiredError,
)
from cognizes.engine.memory.context import MemoryContext
from cognizes.engine.memory.episodic import EpisodicEntry
from cognizes.engine.memory.long_term import LongTermEntry, LongTermKey
from cognizes.engine.memory.memory import Memory
from cognizes.engine.memory.records import MemoryScope
from cognizes.engine.memory.snapshot import MemorySnapshot
from cognizes.engine.models import Event, JsonObject, JsonValue, Run, RunStatus, Session, TokenUsage
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.pulse.sessions import RunFence, StateFunction, fence_of_thread, fenced_by
from cognizes.engine.runs.leases import Lease
from cognizes.engine.runs.run_rows import Step, Steps
from cognizes.engine.runs.waits import Resolution, Resumption, RunSuspended, Wait, WaitKind, check_wait, read_resolution
from cognizes.engine.telemetry import record_span, tool_attributes
from cognizes.engine.usage import trace_model_call

if TYPE_CHECKING:
    from cognizes.engine.runs.runs import Runs
    from cognizes.engine.streams.writer import MessageWriter

logger = logging.getLogger(__name__)

IfInterrupted = Literal["again", "raise"] | Callable[[int], Awaitable[Any]]


class WriteMessage(Protocol):
    def __call__(
        self,
        session: UUID,
        /,
        *,
        role: str,
        message_id: str | None,
        author: str | None,
        run_id: str | None,
        invocation_id: str,
    ) -> MessageWriter: ...


class RunMemory:
    """`engine.memory` in the scope of a run: its app, its user, its agent. It records which long-term keys are used."""

    def __init__(self, memory: Memory, session: Session, keys: Iterable[LongTermKey] = ()) -> None:
        self.scope = MemoryScope.of(session)
        self._memory = memory
        self._session = session
        self._keys = dict.fromkeys(keys)

    @property
    def used_keys(self) -> list[LongTermKey]:
        return list(self._keys)

    async def get(self, namespace: str, key: str) -> Any:
        entry = await self._memory.long_term.get(self.scope, namespace, key)
        self._keys[LongTermKey(namespace, key)] = None
        return entry.value if entry else None

    async def set(self, namespace: str, key: str, value: JsonValue, *, text: str | None = None) -> LongTermEntry:
        """Set a long-term key; recall searches `text`."""
        entry = await self._memory.long_term.set(self.scope, namespace, key, value, text=text)
        self._keys[LongTermKey(namespace, key)] = None
        return entry

    async def episodes(self, *, limit: int = 10) -> list[EpisodicEntry]:
        """Return the latest episodes of the agent, newest first."""
        return await self._memory.episodic.list_by_agent(self.scope, limit=limit)

    async def context(
        self, query: str, *, budget_tokens: int = 2000, visibility: Sequence[str] = ("user",)
    ) -> MemoryContext:
        """Return what fits into a budget of tokens: working memory, recent turns and recalled memories."""
        return await self._memory.context(
            query,
            app=self.scope.app_name,
            user=self.scope.user_id,
            session=self._session,
            budget_tokens=budget_tokens,
            visibility=visibility,
        )

    async def write_scratchpad(self, scratchpad: JsonValue) -> None:
        fence = fence_of_thread(thread_uuid(self._session.thread_id))
        await self._memory.working.write_scratchpad(self.scope, self._session.id, scratchpad, fence=fence)

    async def snapshot(self) -> MemorySnapshot:
        return await self._memory.snapshots.take(self._session, long_term_keys=self.used_keys)


class RunContext(ABC):
    """A run and its attempt, for the code that executes it."""

    def __init__(self, runs: Runs, run: Run, session: Session, fence: RunFence) -> None:
        self.id = run.id
        self.thread_id = fence.thread_id
        self.run = run
        self.session = session
        self.resumption: Resumption | None = None
        self.interrupted_steps: list[Step] = []
        self._runs = runs
        self._fence = fence
        self._steps = Steps(runs._database, fence, retry_seconds=runs._settings.retry_seconds)
        self._ended_waits: set[str] = set()
        self._tool_calls: dict[str, tuple[str, int]] = {}
        self.memory = RunMemory(runs._memory, session)

    @property
    def input(self) -> Any:
        return self.run.input

    @property
    def attempt(self) -> int:
        """The number of claims of the run, this one included."""
        return self._fence.attempt

    @property
    def cursor_node(self) -> str | None:
        """The node at which to continue after a wait; None before the first one."""
        return self.resumption.cursor_node if self.resumption else None

    async def restore(self) -> None:
        """Apply the memory snapshot of the last wait, once, and load what the run continues with."""
        await self._runs.until_available(self._restore)

    async def _restore(self) -> None:
        self.interrupted_steps = [
            step
            for step in await self._runs.steps(self.thread_id, self.id)
            if step.status == "started" and step.attempt < self.attempt
        ]
        self._steps.expect_interrupted(self.interrupted_steps)
        self.resumption = await self._runs.restore(self.run, self.session)
        if self.resumption is not None and self.resumption.memory_snapshot is not None:
            keys = self.resumption.memory_snapshot.long_term_keys
            self.memory = RunMemory(self._runs._memory, self.session, keys)

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        if_interrupted: IfInterrupted = "again",
        **named: Any,
    ) -> Any:
        """Call a function once in the life of the run and return its result, which must be JSON.

        An attempt that was interrupted inside the function leaves the step `started`, and its effect is unknown. Then
        the function is called `again`, or `StepInterruptedError` is raised (`raise`), or the given function is called
        with the number of that attempt and decides.
        """

        async def work() -> Any:
            result = function(*arguments, **named)
            return await result if inspect.isawaitable(result) else result

        async def refuse(attempt: int) -> Any:
            raise StepInterruptedError(f"attempt {attempt} began the step {name!r} and did not finish it")

        if if_interrupted not in ("again", "raise") and not callable(if_interrupted):
            raise InvalidInputError("if_interrupted must be 'again', 'raise', or a function that decides")
        decide = refuse if if_interrupted == "raise" else if_interrupted if callable(if_interrupted) else None
        with fenced_by(self._fence):
            return await self._steps.run(name, work, if_interrupted=decide)

    async def append(
        self,
        *,
        kind: str,
        text: str | None = None,
        content: JsonObject | None = None,
        state: Mapping[str, JsonValue] | None = None,
        author: str = "agent",
        event_id: str = "",
        invocation_id: str = "",
    ) -> Event:
        with fenced_by(self._fence):
            return await self._runs._sessions.append(
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

    async def update_state(self, change: Mapping[str, JsonValue] | StateFunction) -> Session:
        """Change state by a delta, or by a function of the current state, in every scope that it writes."""
        with fenced_by(self._fence):
            return await self._runs._sessions.update(self.session, change, run_id=self.id)

    def message(
        self, role: str = "assistant", *, message_id: str | None = None, author: str | None = None
    ) -> MessageWriter:
        """Return a message of this run, to be entered with `async with` and written token by token."""
        return self._runs._write_message(
            self.thread_id, role=role, message_id=message_id, author=author, run_id=self.id, invocation_id=self.id
        )

    async def think(self, thought: str) -> None:
        with fenced_by(self._fence):
            await self._runs.think(self.thread_id, self.id, thought)

    async def call_tool(self, name: str, arguments: JsonValue) -> str:
        """Add a tool call; return its id for `finish_tool`."""
        started = time.time_ns()
        with fenced_by(self._fence):
            call_id = await self._runs.call_tool(self.thread_id, self.id, name, arguments)
        self._tool_calls[call_id] = name, started
        return call_id

    async def finish_tool(self, call_id: str, output: JsonValue, *, is_error: bool = False) -> None:
        with fenced_by(self._fence):
            await self._runs.finish_tool(self.thread_id, self.id, call_id, output, is_error=is_error)
        if call_id in self._tool_calls:
            name, started = self._tool_calls.pop(call_id)
            attributes = tool_attributes(
                name, call_id=call_id, conversation_id=str(self.thread_id), agent=self.run.handler
            )
            error = "the tool failed" if is_error else None
            record_span(f"execute_tool {name}", attributes, started=started, error=error)

    async def record_usage(self, usage: TokenUsage, *, usage_id: str, started_at: datetime | None = None) -> bool:
        """Count the tokens of one call of a model; return False if this id was counted before.

        An id that is the same in each attempt, such as the name of the step, counts a repeated step once. With
        `started_at` the call, which has just ended, is also a span of the trace.
        """
        if started_at is not None:
            trace_model_call(usage, started_at, conversation_id=str(self.thread_id), agent=self.run.handler)
        return await self._runs._usage.record(self.thread_id, usage, usage_id=usage_id, run_id=self.id)

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
        payload_results: Mapping[str, JsonValue] | None = None,
    ) -> Any:
        """Wait durably, and return the payload of what ended the wait.

        Every wait of a run has a key of its own: code that runs again after the wait gets the same payload at once.
        With a `cursor_node` the call does not return; the handler is called again and finds the node in `cursor_node`.
        After `expires_at` a timer fires; any other wait continues at its `timeout_node`, or fails the run.
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
                f"the run has waited for {correlation_key!r} before; give every wait a key of its own"
            )
        with fenced_by(self._fence):
            payload = await self._wait(wait)
        self._ended_waits.add(correlation_key)
        return payload

    @abstractmethod
    async def _wait(self, wait: Wait) -> Any: ...

    async def _snapshot(self) -> JsonObject:
        return (await self._runs.until_available(self.memory.snapshot)).to_json()

    async def _resolution(self, wait: Wait) -> Resolution | None:
        return await self._runs.until_available(
            lambda: read_resolution(self._runs._database, self.thread_id, self.id, wait)
        )

    async def _payload_of(self, wait: Wait) -> Any:
        found = await self._resolution(wait)
        if found is None:
            raise LeaseLostError(f"another process executes run {self.id}")
        return found.payload


class HandledRun(RunContext):
    """A run in a worker: a wait ends the call of the handler, which the worker calls again afterwards."""

    async def _wait(self, wait: Wait) -> Any:
        if wait.cursor_node is None and await self._resolution(wait):
            # The run does not wait, so no memory snapshot is taken.
            await self._runs.store_wait(self._fence, wait, memory_snapshot=None, suspend=False)
            return await self._payload_of(wait)
        await self._runs.store_wait(self._fence, wait, memory_snapshot=await self._snapshot(), suspend=True)
        raise RunSuspended(wait.correlation_key)


class InProcessRun(RunContext):
    """A run in a block of code: a wait blocks the code for as long as the process lives.

    Entering it extends the lease of the run; leaving it ends the run.
    """

    def __init__(self, runs: Runs, run: Run, session: Session, fence: RunFence) -> None:
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
            # Python does not call `__aexit__` then, and the lease would be extended until the process ends.
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            self._runs.leases.drop(lease)
        if self._is_waiting or isinstance(error, WaitExpiredError):
            # The run keeps waiting, or has failed already.
            return
        if lease is not None and lease.is_lost and not await self._was_cancelled_by_others(error):
            raise LeaseLostError(f"run {self.id} was cancelled, or another process has it") from error
        await self._end(error)

    async def _was_cancelled_by_others(self, error: BaseException | None) -> bool:
        """Take back the cancellation by which the lost lease stopped the block; return whether another one remains."""
        if not isinstance(error, asyncio.CancelledError):
            # The cancellation has not arrived yet.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        return self._task is not None and self._task.uncancel() > 0

    async def _end(self, error: BaseException | None) -> None:
        run = self.thread_id, self.id
        try:
            if isinstance(error, asyncio.CancelledError):
                await asyncio.shield(self._runs.cancel(*run))
            elif isinstance(error, Exception):
                await self._runs.fail(*run, error=f"{type(error).__name__}: {error}")
            elif error is None:
                await self._runs.finish(*run)
        except LeaseLostError:
            if error is None:
                raise
            logger.info("run %s is not ended: another process holds it, or it waits: %r", self.id, error)
            return
        self._fence.end()
        await self._runs.remember(self.run)

    def _hold(self) -> None:
        self._lease = self._runs.leases.hold(self._fence, self._stop)

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _wait(self, wait: Wait) -> Any:
        if wait.cursor_node is not None:
            raise InvalidInputError("cursor_node is for handlers; a block of code continues after its wait")
        snapshot = await self._snapshot()
        for_message = wait.kind is WaitKind.MESSAGE
        with self._runs.sweep.waiting(self.thread_id, self.id, for_message=for_message) as wake_up:
            if await self._runs.store_wait(self._fence, wait, memory_snapshot=snapshot, suspend=False):
                if for_message:
                    # The message may be there already.
                    self._runs.sweep.request()
                await self._sleep_until_resumed(wait, wake_up)
        return await self._payload_of(wait)

    async def _sleep_until_resumed(self, wait: Wait, wake_up: WakeUp) -> None:
        if self._lease is not None:
            self._runs.leases.drop(self._lease)
        self._is_waiting = True
        status = RunStatus.WAITING
        while status is RunStatus.WAITING:
            seen = wake_up.version
            try:
                status = (await self._runs.get(self.thread_id, self.id)).status
            except DatabaseError as error:
                logger.debug("the status of the waiting run %s could not be read: %s", self.id, error)
            if status is RunStatus.WAITING:
                await wake_up.wait(seen)
        if status is RunStatus.FAILED:
            raise WaitExpiredError(f"no answer to {wait.correlation_key!r} arrived in time; run {self.id} has failed")
        if status is not RunStatus.PENDING:
            raise LeaseLostError(f"run {self.id} is {status}; this code does not execute it any more")
        # No worker claims it in between: the run of a block has no handler.
        self.run = await self._runs.claim_one(self.thread_id, self.id)
        self._fence.attempt = self.run.attempt
        self._is_waiting = False
        self._hold()
        await self.restore()
