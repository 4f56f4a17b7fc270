"""A run of a hosted agent: its frames, its execution and its end.

The order at the end is guaranteed: the agent stores the rest of its answer, the host changes the run's row, then
observers receive the last frame. An observer that sees the end finds everything in the database.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from contextlib import aclosing
from functools import partial
from uuid import UUID

from ag_ui.core import (
    PROTOCOL_VERSION,
    BaseEvent,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunStartedEvent,
    StateSnapshotEvent,
)

from cognizes.engine.agui.frames import OpenItems, clean_text, now
from cognizes.engine.agui.translator import wait_key_of
from cognizes.engine.concurrency import WakeUp
from cognizes.engine.database.tenancy import acting_for
from cognizes.engine.engine import Engine
from cognizes.engine.errors import EngineError, LeaseLostError
from cognizes.engine.hosting.agent import HostedAgent, RunContext, ThreadKey
from cognizes.engine.models import Run, RunStatus
from cognizes.engine.pulse.events import without_temp
from cognizes.engine.pulse.sessions import fenced_by
from cognizes.engine.runs import WaitKind

logger = logging.getLogger(__name__)

LOST = "another server executes the run; connect to the thread to follow it"
HANDED_OVER = "the server was stopped; another one continues the run: connect to the thread to follow it"
STOPPED = "the server was stopped while the run was executed; its answer until then is kept"


class FrameLog:
    """The frames of an active run, for any number of observers.

    An observer has a position and no queue, so a slow one costs nothing. All frames are kept while the run is active,
    because an observer that connects receives all of them, folded.
    """

    def __init__(self) -> None:
        self._frames: list[BaseEvent] = []
        self._wake_up = WakeUp()
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def frames(self) -> tuple[BaseEvent, ...]:
        return tuple(self._frames)

    def extend(self, frames: Iterable[BaseEvent]) -> None:
        before = len(self._frames)
        self._frames.extend(frames)
        if len(self._frames) > before:
            self._wake_up.notify()

    def close(self) -> None:
        """End the observations behind the last frame."""
        self.is_closed = True
        self._wake_up.notify()

    async def follow(self, after: int = 0) -> AsyncGenerator[tuple[int, BaseEvent], None]:
        """Yield the frames after a number of them, with their numbers: existing ones, then new ones."""
        place = after
        while True:
            version = self._wake_up.version
            while place < len(self._frames):
                place += 1
                yield place, self._frames[place - 1]
            if self.is_closed:
                return
            await self._wake_up.wait(version)


class HostedRun:
    """An active run of this process: its task, its frames, and the position in the thread's log where it began.

    `asked_id` is the run id of the client's input; a client that resumes may send an id that is taken.
    """

    def __init__(
        self, agent: HostedAgent, key: ThreadKey, context: RunContext, run_input: RunAgentInput, *, asked_id: str
    ) -> None:
        self.agent = agent
        self.key = key
        self.context = context
        self.run_input = run_input
        self.run_id = context.run.id
        self.asked_id = asked_id
        self.thread_id: UUID = context.thread_id
        self.start_sequence = context.session.last_sequence
        self.log = FrameLog()
        self.task: asyncio.Task[None] | None = None
        self.has_begun = False
        self.is_ending = False
        self.is_stopped_by_server = False
        self.is_lost = False
        self.last_frame: RunErrorEvent | RunFinishedEvent | None = None
        self._open_items = OpenItems()

    def begin(self) -> None:
        """Log the first frames: RUN_STARTED with the new input, and the state."""
        started = RunStartedEvent(
            thread_id=self.key[2],
            run_id=self.run_id,
            protocol_version=PROTOCOL_VERSION,
            input=_new_input(self.run_input, self.context, run_id=self.run_id),
            timestamp=now(),
        )
        state = StateSnapshotEvent(snapshot=without_temp(self.context.session.state), timestamp=now())
        self.log.extend([started, state])

    def take(self, frame: BaseEvent) -> None:
        """Log a frame of the agent. RUN_FINISHED and RUN_ERROR are held back until the end is stored."""
        if self.last_frame is not None or isinstance(frame, RunStartedEvent):
            return
        if isinstance(frame, RunErrorEvent | RunFinishedEvent):
            self.last_frame = frame
            return
        self._open_items.fold(frame)
        self.log.extend([frame])

    def end(self, last: BaseEvent) -> None:
        """Close the open items, log the last frame, and end the observations."""
        error = last.message if isinstance(last, RunErrorEvent) else None
        is_waiting = isinstance(last, RunFinishedEvent) and isinstance(last.outcome, RunFinishedInterruptOutcome)
        frames = [*self._open_items.end_frames(error=error, is_waiting=is_waiting), last]
        moment = now()
        for frame in frames:
            frame.timestamp = moment
        self.log.extend(frames)
        self.log.close()

    def cancel(self, *, by_server: bool = False) -> bool:
        """Cancel the task; the run ends in a moment. False when it is about to end anyway."""
        if self.task is None or self.is_ending:
            return False
        self.is_ending = True
        self.is_stopped_by_server = by_server
        self.context.is_released = by_server and self.agent.capabilities.resumes_after_crash
        if self.has_begun:
            return self.task.cancel()
        # A task that is cancelled before its first step never runs, and the run would never end.
        asyncio.get_running_loop().call_soon(self.task.cancel)
        return True

    async def wait(self) -> None:
        """Return when the run has ended. Cancelling the caller does not cancel the run."""
        if self.task is not None:
            await asyncio.wait([self.task])

    def lose(self) -> None:
        """Stop executing a run that was cancelled elsewhere, or that another server has."""
        if self.cancel():
            self.is_lost = self.context.is_released = True

    def finished(self, outcome: RunFinishedCancelledOutcome | None = None) -> RunFinishedEvent:
        return RunFinishedEvent(thread_id=self.key[2], run_id=self.run_id, outcome=outcome)


def _new_input(run_input: RunAgentInput, context: RunContext, *, run_id: str) -> RunAgentInput:
    """Return the input as RUN_STARTED carries it: the new messages, and every field that older clients require."""
    return RunAgentInput(
        thread_id=run_input.thread_id,
        run_id=run_id,
        state={},
        messages=list(context.turn.new_messages),
        tools=[],
        context=[],
        forwarded_props={},
        resume=run_input.resume,
    )


class RunExecutor:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._episodes: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Wait until the episodes of ended runs are written."""
        if self._episodes:
            await asyncio.wait(self._episodes)

    async def execute(self, run: HostedRun) -> None:
        """Execute a run to its end; never raises."""
        run.has_begun = True
        lease = self._engine.runs.leases.hold(run.context.fence, run.lose)
        try:
            # A run accesses the rows of its own app only, for any caller.
            with acting_for([run.key[0]]), fenced_by(run.context.fence):
                await self._execute(run)
        finally:
            self._engine.runs.leases.drop(lease)
            run.context.fence.end()

    async def _execute(self, run: HostedRun) -> None:
        last: BaseEvent | None = None
        try:
            async with aclosing(run.agent.run(run.run_input, run.context)) as frames:
                async for frame in frames:
                    run.take(frame)
            run.is_ending = True
            last = await self._finish(run)
        except asyncio.CancelledError:
            last = await self._stop(run)
        except Exception as error:
            # Any exception of an agent fails its run, and the client receives the cause.
            run.is_ending = True
            logger.warning("run %s failed", run.run_id, exc_info=error)
            last = await self._fail(run, f"{type(error).__name__}: {error}", code=type(error).__name__)
        finally:
            run.end(last or _error("the run ended unexpectedly; see the log of the server"))

    async def _finish(self, run: HostedRun) -> BaseEvent:
        last = run.last_frame or run.finished()
        if isinstance(last, RunErrorEvent):
            return await self._fail(run, last.message, code=last.code)
        if isinstance(last.outcome, RunFinishedInterruptOutcome):
            messages = [interrupt.message for interrupt in last.outcome.interrupts if interrupt.message]
            questions = [interrupt.id for interrupt in last.outcome.interrupts]
            # The next input ends the wait, or a signal continues the run.
            await wait_for_person(self._engine, run.context.run, questions, reason=" ".join(messages) or None)
        else:
            await self._store_end(run, partial(self._engine.runs.finish, run.thread_id, run.run_id))
        return last

    async def _stop(self, run: HostedRun) -> BaseEvent:
        if run.is_lost:
            return await self._leave(run)
        if run.context.is_released:
            return await self._hand_over(run)
        if run.is_stopped_by_server:
            return await self._fail(run, STOPPED, code="SERVER_STOPPED")
        try:
            await self._store_end(run, partial(self._engine.runs.cancel, run.thread_id, run.run_id))
        except EngineError as error:
            logger.error("run %s was cancelled, which could not be stored: %s", run.run_id, error)
        return run.finished(RunFinishedCancelledOutcome())

    async def _leave(self, run: HostedRun) -> BaseEvent:
        """Return the last frame for observers here of a run that ended or continues elsewhere."""
        try:
            stored = await self._engine.runs.get(run.thread_id, run.run_id)
        except EngineError as error:
            logger.warning("run %s was lost, and its status cannot be read: %s", run.run_id, error)
            return _error(LOST, code="RUN_LOST")
        if stored.status is RunStatus.CANCELLED:
            return run.finished(RunFinishedCancelledOutcome())
        return _error(stored.error or LOST, code="RUN_LOST")

    async def _hand_over(self, run: HostedRun) -> BaseEvent:
        """Release a run for another server that has the agent, or for this one after its start."""
        try:
            await self._engine.runs.release(run.context.run)
        except EngineError as error:
            # The lease expires, with the same result.
            logger.error("run %s could not be handed over: %s", run.run_id, error)
        return _error(HANDED_OVER, code="SERVER_STOPPED")

    async def _fail(self, run: HostedRun, message: str, *, code: str | None = None) -> BaseEvent:
        try:
            await self._store_end(run, partial(self._engine.runs.fail, run.thread_id, run.run_id, error=message))
        except LeaseLostError:
            # The run ended elsewhere at the same time.
            return await self._leave(run)
        except EngineError as error:
            logger.error("run %s failed, which could not be stored: %s", run.run_id, error)
        return _error(message, code=code)

    async def _store_end(self, run: HostedRun, change_row: Callable[..., Awaitable[Run]]) -> None:
        """Change the row, also when PostgreSQL is unavailable for a moment; write the episode in the background."""
        ended = await change_row()
        task = asyncio.create_task(self._engine.runs.remember(ended), name=f"remember-{run.run_id}")
        self._episodes.add(task)
        task.add_done_callback(self._episodes.discard)


async def wait_for_person(engine: Engine, run: Run, questions: Collection[str], *, reason: str | None = None) -> None:
    """Let a run wait for the answers to the questions of its agent."""
    await engine.runs.wait(run, kind=WaitKind.HUMAN, correlation_key=wait_key_of(questions), reason=reason)


def _error(message: str, *, code: str | None = None) -> RunErrorEvent:
    return RunErrorEvent(message=clean_text(message), code=code)
