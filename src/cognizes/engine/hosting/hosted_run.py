"""A run of a hosted agent: its frames, its execution and its end.

The agent's code runs in a task of its own, so that the run ends even if that code ignores its cancellation. The order
at the end is guaranteed: the rest of the answer is stored, the host changes the run's row, then observers receive the
last frame. An observer that sees the end finds everything in the database.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

from ag_ui.core import (
    PROTOCOL_VERSION,
    BaseEvent,
    Interrupt,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    StateSnapshotEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from cognizes.engine.agui.frames import OpenItems, clean_text, now, to_json
from cognizes.engine.agui.translator import interrupt_of_wait, wait_key_of
from cognizes.engine.concurrency import WakeUp, create_shared_task
from cognizes.engine.database.tenancy import acting_for
from cognizes.engine.engine import Engine
from cognizes.engine.errors import EngineError, IllegalFrameError, LeaseLostError, LimitExceededError
from cognizes.engine.hosting.agent import HostedAgent, RunContext, ThreadKey
from cognizes.engine.hosting.recorder import FrameRecorder
from cognizes.engine.hosting.turns import ThreadTurn
from cognizes.engine.models import UNKNOWN_MODEL, Run, RunStatus, TokenUsage
from cognizes.engine.pulse.events import without_temp
from cognizes.engine.pulse.sessions import fenced_by
from cognizes.engine.runs import RunSuspended, WaitKind
from cognizes.engine.runs.run_rows import attempt_span
from cognizes.engine.telemetry import TELEMETRY, record_span, tool_attributes

logger = logging.getLogger(__name__)

_FRAME_SECONDS = 0.002
"""The shortest time between two deliveries to an observer: the frames of a fast model are sent together."""
_LONGEST_TURN = 0.005
"""Seconds after which a task that takes frames lets other tasks of the event loop run."""
_FRAME_BYTES = 1024
"""What a frame of the agent needs in memory besides its content, about."""
LOST = "another server executes the run; connect to the thread to follow it"
HANDED_OVER = "the server was stopped; another one continues the run: connect to the thread to follow it"
STOPPED = "the server was stopped while the run was executed; its answer until then is kept"


class FrameLog:
    """The frames of an active run, for any number of observers.

    An observer has a position and no queue, so a slow one costs nothing. All frames are kept while the run is active,
    because an observer that connects receives all of them, folded. `size` is the length of their content.
    """

    def __init__(self) -> None:
        self.size = 0
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
            self.size += sum(map(_content_size, self._frames[before:]))
            self._wake_up.notify()

    def close(self) -> None:
        """End the observations behind the last frame."""
        self.is_closed = True
        self._wake_up.notify()

    async def follow(self, after: int = 0) -> AsyncGenerator[tuple[int, BaseEvent], None]:
        """Yield the frames after a number of them, with their numbers: existing ones, then new ones."""
        place = after
        loop = asyncio.get_running_loop()
        while True:
            version = self._wake_up.version
            while place < len(self._frames):
                place += 1
                yield place, self._frames[place - 1]
            if self.is_closed:
                return
            delivered_at = loop.time()
            await self._wake_up.wait(version)
            if (pause := delivered_at + _FRAME_SECONDS - loop.time()) > 0 and not self.is_closed:
                await asyncio.sleep(pause)


def _content_size(frame: BaseEvent) -> int:
    delta = getattr(frame, "delta", None)
    return len(delta) if isinstance(delta, str) else len(to_json(frame.model_dump(by_alias=True)))


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
        self.agent_task: asyncio.Task[None] | None = None
        self.recorder: FrameRecorder | None = None
        self.is_ending = False
        self.has_ended = False
        self.is_stopped_by_server = False
        self.is_lost = False
        self.last_frame: RunErrorEvent | RunFinishedEvent | None = None
        self.stopping = context.stopping
        self.observers = 0
        self.cancels_on_disconnect = False
        self._taken = 0
        self._agents_run_id: str | None = None
        self._open_items = OpenItems()
        self._tool_calls: dict[str, tuple[str, int]] = {}

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

    async def take(self, frame: BaseEvent) -> None:
        """Log a frame of the agent. RUN_FINISHED and RUN_ERROR are held back until the end is stored.

        Nothing after the end reaches an observer: the run was abandoned, or the agent yields on after RUN_ERROR.
        `IllegalFrameError` for any frame after RUN_FINISHED, and for the beginning of another run; `LimitExceededError`
        when the run keeps too much in memory. Observers have the frame that exceeded the limit, because it is stored.
        """
        if self.has_ended or isinstance(self.last_frame, RunErrorEvent):
            return
        if self.last_frame is not None:
            cause = f": {frame.message}" if isinstance(frame, RunErrorEvent) else ""
            raise IllegalFrameError(f"the agent yielded {frame.type.value} after RUN_FINISHED{cause}")
        self._taken += 1
        if isinstance(frame, RunStartedEvent):
            self._check_start(frame)
        elif isinstance(frame, RunErrorEvent | RunFinishedEvent):
            if _interrupts(frame) and not self.agent.capabilities.interrupts:
                raise IllegalFrameError(
                    "the agent yielded RUN_FINISHED with an interrupt, and its capabilities say that it asks nothing: "
                    "declare AgentCapabilities(interrupts=True)"
                )
            self.last_frame = frame
        elif self.recorder is not None:
            await self.recorder.take(frame)
        else:
            self.emit([frame])
        self._check_size()

    def _check_start(self, frame: RunStartedEvent) -> None:
        """Raise an error for a RUN_STARTED that does not begin the run. The host has sent its own.

        The agent's ids may differ from those of the host. One that repeats the first is dropped: some agents send it
        twice when they begin.
        """
        if self._agents_run_id is None and self._taken > 1:
            raise IllegalFrameError("the agent yielded RUN_STARTED after other events")
        if self._agents_run_id not in (None, frame.run_id):
            raise IllegalFrameError(
                f"the agent yielded RUN_STARTED of the run {frame.run_id!r:.80} in the run {self._agents_run_id!r:.80}"
            )
        self._agents_run_id = frame.run_id

    def _check_size(self) -> None:
        limit = self.context.engine.settings.max_run_bytes
        if (size := self.log.size + self._taken * _FRAME_BYTES) > limit:
            raise LimitExceededError(
                f"the run, after {self._taken} events of the agent,",
                size=size,
                limit=limit,
                setting="COGNIZES_MAX_RUN_BYTES",
            )

    def trace_tool_call(self, frame: BaseEvent) -> None:
        """Record the span of a tool call: from the end of its arguments to its result."""
        if isinstance(frame, ToolCallStartEvent):
            self._tool_calls[frame.tool_call_id] = frame.tool_call_name, time.time_ns()
        elif isinstance(frame, ToolCallEndEvent) and (call := self._tool_calls.get(frame.tool_call_id)):
            self._tool_calls[frame.tool_call_id] = call[0], time.time_ns()
        elif isinstance(frame, ToolCallResultEvent) and (call := self._tool_calls.pop(frame.tool_call_id, None)):
            name, started = call
            attributes = tool_attributes(
                name, call_id=frame.tool_call_id, conversation_id=str(self.thread_id), agent=self.agent.name
            )
            record_span(f"execute_tool {name}", attributes, started=started)

    def emit(self, frames: Sequence[BaseEvent]) -> None:
        """Log frames for the observers."""
        if not self.has_ended:
            for frame in frames:
                self._open_items.fold(frame)
            self.log.extend(frames)

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
        self.has_ended = True

    def cancel(self, *, by_server: bool = False) -> bool:
        """Cancel the agent's task; the run ends in a moment. False when it is about to end anyway."""
        if self.agent_task is None or self.is_ending or self.agent_task.done():
            return False
        self.is_ending = True
        self.is_stopped_by_server = by_server
        self.context.is_released = by_server and self.agent.capabilities.resumes_after_crash
        self.agent_task.cancel()
        self.stopping.set()
        return True

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Count an observer. A run that its request wants to end with its clients is cancelled when the last leaves."""
        self.observers += 1
        try:
            yield
        finally:
            self.observers -= 1
            if self.cancels_on_disconnect and not self.observers and not self.has_ended:
                self.cancel()

    def name_questions(self) -> dict[str, str]:
        """Give the questions of the last frame ids that are unique in the thread; return the agent's ids by these."""
        turn = self.context.turn
        if not isinstance(turn, ThreadTurn) or not (interrupts := _interrupts(self.last_frame)):
            return {}
        asked, given_ids = turn.conversation.ask(interrupts)
        outcome = RunFinishedInterruptOutcome(interrupts=asked)
        self.last_frame = self.last_frame and self.last_frame.model_copy(update={"outcome": outcome})
        return given_ids

    async def wait(self, *, timeout: float | None = None) -> bool:
        """Return when the run has ended, or False after a time. Cancelling the caller does not cancel the run."""
        if self.task is not None:
            await asyncio.wait([self.task], timeout=timeout)
        return self.task is None or self.task.done()

    def lose(self) -> None:
        """Stop executing a run that was cancelled elsewhere, or that another server has."""
        if self.cancel():
            self.is_lost = self.context.is_released = True

    def finished(self, outcome: RunFinishedOutcome | None = None) -> RunFinishedEvent:
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


class AgentExitError(Exception):
    """The code of an agent tried to end the process."""


class RunExecutor:
    """Executes runs. `on_end` is called before observers receive the last frame of a run."""

    def __init__(self, engine: Engine, on_end: Callable[[HostedRun], None]) -> None:
        self._engine = engine
        self._on_end = on_end
        self._episodes: set[asyncio.Task[None]] = set()
        self._abandoned: set[asyncio.Task[None]] = set()
        self._releases: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Wait until the episodes of ended runs are written."""
        for task in self._releases:
            task.cancel()
        if tasks := self._episodes | self._releases:
            await asyncio.wait(tasks)

    def begin(self, run: HostedRun) -> asyncio.Task[None]:
        """Begin to execute a run; the task ends with the run and never raises."""
        # A run accesses the rows of its own app only, for any caller. Both tasks inherit the fence.
        with acting_for([run.key[0]]), fenced_by(run.context.fence):
            run.agent_task = asyncio.create_task(self._run_agent(run), name=f"agent-{run.run_id}")
            return asyncio.create_task(self._execute(run), name=f"run-{run.run_id}")

    async def _execute(self, run: HostedRun) -> None:
        assert run.agent_task is not None  # noqa: S101 - `begin` created it
        lease = self._engine.runs.leases.hold(run.context.fence, run.lose)
        last: BaseEvent | None = None
        try:
            is_abandoned = await self._wait_for_agent(run, run.agent_task)
            last = await self._end(run, run.agent_task, is_abandoned=is_abandoned)
        finally:
            self._on_end(run)
            run.end(last or _error("the run ended unexpectedly; see the log of the server"))
            self._engine.runs.leases.drop(lease)
            if lease.is_overdue:
                self._release_after_outage(run.context.run)
            if run.agent_task.done():
                run.context.fence.end()
            # Else the fence refuses the writes of the abandoned code: the run has ended.

    def _release_after_outage(self, run: Run) -> None:
        """Let a server continue a run whose lease expired because PostgreSQL was away. It costs no attempt."""

        async def release() -> None:
            try:
                await self._engine.runs.release_after_outage(run)
            except EngineError as error:
                logger.info("run %s is not released: %s", run.id, error)

        task = create_shared_task(release(), name=f"release-{run.id}")
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _wait_for_agent(self, run: HostedRun, agent_task: asyncio.Task[None]) -> bool:
        """Wait until the agent's task ends; return True for one that ignores its cancellation for too long."""
        stopping = asyncio.create_task(run.stopping.wait(), name=f"stop-{run.run_id}")
        try:
            await asyncio.wait([agent_task, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        if not agent_task.done():
            await asyncio.wait([agent_task], timeout=self._engine.settings.shutdown_seconds)
        if agent_task.done():
            return False
        logger.warning("run %s is abandoned: its agent ignores the cancellation", run.run_id)
        self._abandoned.add(agent_task)
        agent_task.add_done_callback(partial(self._forget, run))
        return True

    def _forget(self, run: HostedRun, agent_task: asyncio.Task[None]) -> None:
        self._abandoned.discard(agent_task)
        run.context.fence.end()
        if not agent_task.cancelled() and (error := agent_task.exception()) is not None:
            logger.info("the abandoned agent of run %s has stopped: %r", run.run_id, error)

    async def _run_agent(self, run: HostedRun) -> None:
        try:
            with attempt_span(run.context.run, agent=run.agent.name):
                await self._run_in_span(run)
        except SystemExit as error:
            # asyncio would end the event loop, and with it the server.
            raise AgentExitError(f"the agent called sys.exit({error.code!r})") from error

    async def _run_in_span(self, run: HostedRun) -> None:
        context = run.context
        if context.fence.attempt > 1:
            for event in context.turn.events:
                event.run_id = event.invocation_id = context.run_id
                await self._engine.sessions.append_to_thread(context.thread_id, event)
        await context.turn.prepare(self._engine)
        if not run.agent.capabilities.keeps_own_history:
            client_tools = [tool.name for tool in run.agent.capabilities.offered_tools(run.run_input.tools)]
            run.recorder = FrameRecorder(run.context, author=run.agent.name, client_tools=client_tools, emit=run.emit)
        try:
            await self._take_frames(run)
        except* RunSuspended:
            # The code of the agent waits; a task group of it wraps the exception.
            if context.suspended_by is None:
                raise
        if run.recorder is None or isinstance(run.last_frame, RunErrorEvent):
            return
        given_ids: dict[str, str] = {}
        if context.suspended_by is not None:
            asked = interrupt_of_wait(context.suspended_by, run.run_id)
            run.last_frame = run.finished(RunFinishedInterruptOutcome(interrupts=[asked]))
        else:
            given_ids = run.name_questions()
        await run.recorder.finish(_interrupts(run.last_frame), given_ids=given_ids)

    async def _take_frames(self, run: HostedRun) -> None:
        loop = asyncio.get_running_loop()
        suspended_at = loop.time()
        async with aclosing(run.agent.run(run.run_input, run.context)) as frames:
            async for frame in frames:
                if run.recorder is not None and TELEMETRY.is_tracing:
                    run.trace_tool_call(frame)
                await run.take(frame)
                if loop.time() - suspended_at > _LONGEST_TURN:
                    # Neither the agent nor a frame that is only kept in memory need to suspend this task.
                    await asyncio.sleep(0)
                    suspended_at = loop.time()

    async def _end(self, run: HostedRun, agent_task: asyncio.Task[None], *, is_abandoned: bool) -> BaseEvent:
        # What an agent does with its cancellation does not decide: it may return, or raise another exception.
        was_cancelled = run.stopping.is_set()
        error = None if is_abandoned else _error_of(agent_task)
        if was_cancelled and error is not None:
            logger.info("the agent of run %s ended its cancellation with %r", run.run_id, error)
        has_failed = was_cancelled or error is not None or isinstance(run.last_frame, RunErrorEvent)
        run.is_ending = True
        if run.recorder is not None and has_failed:
            await run.recorder.abort()
        if has_failed and isinstance(run.last_frame, RunFinishedEvent):
            await _record_known_usage(run, run.last_frame)
        if was_cancelled:
            return await self._stop(run)
        if error is not None:
            # Any exception of an agent fails its run, and the client receives the cause.
            logger.warning("run %s failed", run.run_id, exc_info=error)
            return await self._fail(run, _described(error), code=type(error).__name__)
        try:
            return await self._finish(run)
        except Exception as failure:
            logger.warning("run %s failed", run.run_id, exc_info=failure)
            return await self._fail(run, _described(failure), code=type(failure).__name__)

    async def _finish(self, run: HostedRun) -> BaseEvent:
        last = run.last_frame or run.finished()
        if isinstance(last, RunErrorEvent):
            # Frameworks send str(error), which is empty for many exceptions.
            message = last.message or f"the agent failed: {last.code or 'it gave no reason'}"
            return await self._fail(run, message, code=last.code)
        await _record_usage(run, last)
        interrupts = _interrupts(last)
        if (wait := run.context.suspended_by) is not None:
            await self._engine.runs.wait(
                run.context.run,
                kind=wait.kind,
                correlation_key=wait.correlation_key,
                reason=wait.reason,
                expires_at=wait.expires_at,
            )
        elif interrupts:
            messages = [interrupt.message for interrupt in interrupts if interrupt.message]
            questions = [interrupt.id for interrupt in interrupts]
            # The next input ends the wait, or a signal continues the run.
            await wait_for_person(
                self._engine,
                run.context.run,
                questions,
                reason=" ".join(messages) or None,
                expires_at=_first_expiry(interrupts),
            )
        else:
            await self._store_end(run, partial(self._engine.runs.finish, run.thread_id, run.run_id))
        if run.recorder is None:
            return last
        outcome = last.outcome
        if not interrupts and run.recorder.pending:
            outcome = RunFinishedSuccessOutcome(pending_tool_call_ids=run.recorder.pending)
        return run.finished(outcome).model_copy(update={"result": last.result, "usage": last.usage})

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
        task = asyncio.create_task(self._remember(run, ended), name=f"remember-{run.run_id}")
        self._episodes.add(task)
        task.add_done_callback(self._episodes.discard)

    async def _remember(self, run: HostedRun, ended: Run) -> None:
        await self._engine.runs.remember(ended)
        try:
            await run.context.turn.close()
        except EngineError as error:
            logger.info("the end of run %s is not read ahead for the next one: %s", run.run_id, error)


async def wait_for_person(
    engine: Engine,
    run: Run,
    questions: Collection[str],
    *,
    reason: str | None = None,
    expires_at: datetime | None = None,
) -> None:
    """Let a run wait for the answers to the questions of its agent; it fails if none arrive before `expires_at`."""
    await engine.runs.wait(
        run, kind=WaitKind.HUMAN, correlation_key=wait_key_of(questions), reason=reason, expires_at=expires_at
    )


def _first_expiry(interrupts: Sequence[Interrupt]) -> datetime | None:
    """Return when the first of some interrupts expires, as a time in ISO 8601, in UTC if it names no zone."""
    expiries: list[datetime] = []
    for interrupt in interrupts:
        if interrupt.expires_at:
            try:
                expiry = datetime.fromisoformat(interrupt.expires_at)
            except ValueError as error:
                raise IllegalFrameError(
                    f"the interrupt {interrupt.id!r:.80} has the invalid expiresAt {interrupt.expires_at!r:.80}; use "
                    "ISO 8601"
                ) from error
            expiries.append(expiry if expiry.tzinfo else expiry.replace(tzinfo=UTC))
    return min(expiries, default=None)


async def end_waiting_runs(engine: Engine, thread_id: UUID, handler: str | None, *, is_answered: bool) -> None:
    """End the runs of a thread that wait for a person: another run continues with the answers, or without them."""
    for row in await engine._database.fetch("find_waiting_runs", thread_id, handler):
        if row["wait_kind"] != WaitKind.HUMAN:
            continue
        end = engine.runs.finish if is_answered else engine.runs.cancel
        await end(thread_id, row["id"])


def _interrupts(last: BaseEvent | None) -> list[Interrupt]:
    outcome = last.outcome if isinstance(last, RunFinishedEvent) else None
    return outcome.interrupts if isinstance(outcome, RunFinishedInterruptOutcome) else []


def _error_of(agent_task: asyncio.Task[None]) -> BaseException | None:
    return asyncio.CancelledError("its own code cancelled it") if agent_task.cancelled() else agent_task.exception()


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _error(message: str, *, code: str | None = None) -> RunErrorEvent:
    return RunErrorEvent(message=clean_text(message), code=code)


async def _record_known_usage(run: HostedRun, last: RunFinishedEvent) -> None:
    """Count the tokens of an agent that reported its end and failed or was cancelled after it."""
    try:
        await _record_usage(run, last)
    except EngineError as error:
        logger.error("run %s: its tokens could not be counted: %s", run.run_id, error)


async def _record_usage(run: HostedRun, last: RunFinishedEvent) -> None:
    """Count the tokens that an agent reports at the end of its run only; the attempt marks them."""
    if run.context.has_recorded_usage:
        return
    for place, usage in enumerate(last.usage or ()):
        counted = TokenUsage(
            usage.model or usage.provider or UNKNOWN_MODEL,
            input_tokens=usage.input_tokens or 0,
            output_tokens=usage.output_tokens or 0,
            cached_tokens=usage.cached_input_tokens or 0,
            cache_write_tokens=usage.cache_write_input_tokens or 0,
            reasoning_tokens=usage.reasoning_tokens or 0,
        )
        usage_id = f"{run.run_id}/{run.context.fence.attempt}/{place}"
        await run.context.record_usage(counted, usage_id=usage_id)
