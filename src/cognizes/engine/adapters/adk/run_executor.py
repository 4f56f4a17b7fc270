"""Executes a hosted run from its first event to its last frame, whatever happens on the way.

The order at the end is a promise: what is left of the answer is stored, then the run's row changes, then observers see
the end. Whoever sees the end finds everything in the database.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial

from ag_ui.core import BaseEvent, Interrupt, RunAgentInput
from google.adk.agents._streaming_mode import StreamingMode
from google.adk.agents.run_config import RunConfig
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions.session import Session

from cognizes.engine.adapters.adk.hosted_run import HostedRun
from cognizes.engine.adapters.adk.hosted_sessions import HostedSessionService
from cognizes.engine.adapters.adk.run_input import UserTurn
from cognizes.engine.adapters.adk.run_progress import record_progress, wait_for_people
from cognizes.engine.adapters.adk.unfinished import store_unfinished
from cognizes.engine.engine import Engine
from cognizes.engine.errors import EngineError, LeaseLostError
from cognizes.engine.models import JsonObject, Run, RunStatus
from cognizes.engine.pulse.fencing import fenced_by

logger = logging.getLogger(__name__)

LOST = "the run is executed by another server by now; connect to the thread to follow it"
HANDED_OVER = "the server was stopped; another one goes on with the run: connect to the thread to follow it"
STOPPED = "the server was stopped while the run was going on; what it had said until then is kept"


class RunExecutor:
    """Drives ADK's runner for hosted runs, and ends them."""

    def __init__(self, engine: Engine, service: HostedSessionService) -> None:
        self._engine = engine
        self._service = service
        self._remembering: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Waits for what is remembered of runs that have ended."""
        if self._remembering:
            await asyncio.wait(self._remembering)

    async def execute(
        self,
        run: HostedRun,
        make_runner: Callable[[], Runner],
        session: Session,
        run_input: RunAgentInput,
        turn: UserTurn | None,
    ) -> None:
        """Returns when the run has ended; never raises. Without a turn it goes on with the run's invocation."""
        with fenced_by(run.fence):
            await self._execute(run, make_runner, session, run_input, turn)

    async def _execute(
        self,
        run: HostedRun,
        make_runner: Callable[[], Runner],
        session: Session,
        run_input: RunAgentInput,
        turn: UserTurn | None,
    ) -> None:
        frames: list[BaseEvent] = []
        try:
            for message_id, content in turn.earlier if turn else ():
                await self._service.append_event(session, Event(id=message_id, author="user", content=content))
            async with aclosing(_events(make_runner(), run, run_input, turn)) as events:
                async for event in events:
                    run.take(event)
                    await run.streams.take(event)
                    await record_progress(self._engine, run.thread_id, run.run_id, event)
            run.is_ending = True
            frames = await self._finish(run)
        except asyncio.CancelledError:
            frames = await self._stop(run)
        except Exception as error:
            # Whatever an agent raises ends its run, and the client is told.
            run.is_ending = True
            logger.warning("run %s failed", run.run_id, exc_info=error)
            frames = await self._fail(run, f"{type(error).__name__}: {error}", code=type(error).__name__)
        finally:
            run.end(frames or run.translator.fail("the run ended unexpectedly; the server's log says why"))
            # What is still being said when the end could not be stored is nobody's any more.
            await run.streams.close()

    async def _finish(self, run: HostedRun) -> list[BaseEvent]:
        if run.error is not None:
            return await self._fail(run, run.error)
        if interrupts := run.translator.interrupts:
            await self._wait(run, interrupts)
        else:
            await self._settle(run, partial(self._engine.runs.finish, run.thread_id, run.run_id))
        return run.translator.finish()

    async def _wait(self, run: HostedRun, interrupts: Sequence[Interrupt]) -> None:
        """Let the run wait for the answers to its questions. The next input ends it, a signal continues it."""
        await self._close_turns(run)
        messages = [interrupt.message for interrupt in interrupts if interrupt.message]
        questions = [interrupt.id for interrupt in interrupts]
        with run.fence.letting_go():
            await wait_for_people(self._engine, run.stored, questions, reason=" ".join(messages) or None)

    async def _stop(self, run: HostedRun) -> list[BaseEvent]:
        if run.is_lost:
            return await self._leave(run)
        if run.is_stopped_by_server and run.is_resumable:
            return await self._hand_over(run)
        if run.is_stopped_by_server:
            return await self._fail(run, STOPPED, code="SERVER_STOPPED")
        try:
            await self._settle(run, partial(self._engine.runs.cancel, run.thread_id, run.run_id))
        except EngineError as error:
            logger.error("run %s was cancelled, which could not be stored: %s", run.run_id, error)
        return run.translator.cancel()

    async def _leave(self, run: HostedRun) -> list[BaseEvent]:
        """The run is somebody else's to end, or was ended by somebody else: observers here are told."""
        await run.streams.close()
        try:
            stored = await self._engine.runs.get(run.thread_id, run.run_id)
        except EngineError as error:
            logger.warning("run %s was lost, and what became of it is not known: %s", run.run_id, error)
            return run.translator.fail(LOST, "RUN_LOST")
        if stored.status is RunStatus.CANCELLED:
            return run.translator.cancel()
        return run.translator.fail(stored.error or LOST, "RUN_LOST")

    async def _hand_over(self, run: HostedRun) -> list[BaseEvent]:
        """Another server that has the agent goes on with the invocation; if there is none, this one after its start."""
        try:
            await run.streams.close()
            await self._engine.runs.release(run.stored)
        except EngineError as error:
            # Its lease runs out, which leads to the same end.
            logger.error("run %s could not be handed over: %s", run.run_id, error)
        return run.translator.fail(HANDED_OVER, "SERVER_STOPPED")

    async def _fail(self, run: HostedRun, message: str, *, code: str | None = None) -> list[BaseEvent]:
        try:
            await self._settle(run, partial(self._engine.runs.fail, run.thread_id, run.run_id, error=message))
        except LeaseLostError:
            # It ended elsewhere while it was about to end here.
            return await self._leave(run)
        except EngineError as error:
            logger.error("run %s failed, which could not be stored: %s", run.run_id, error)
        return run.translator.fail(message, code)

    async def _settle(self, run: HostedRun, change_row: Callable[..., Awaitable[Run]]) -> None:
        """Keeps what never became whole, and changes the row, also when PostgreSQL is away for a moment."""
        await self._close_turns(run)
        with run.fence.letting_go():
            ended = await change_row()
        # Nobody waits for it: who saw the end may speak at once.
        task = asyncio.create_task(self._engine.runs.remember(ended), name=f"remember-{run.run_id}")
        self._remembering.add(task)
        task.add_done_callback(self._remembering.discard)

    async def _close_turns(self, run: HostedRun) -> None:
        await run.streams.close_thoughts()
        turns = run.translator.unfinished_turns()
        await store_unfinished(self._engine, run.thread_id, turns, run_id=run.run_id, invocation_id=run.invocation_id)
        await run.streams.close()


def _events(
    runner: Runner, run: HostedRun, run_input: RunAgentInput, turn: UserTurn | None
) -> AsyncGenerator[Event, None]:
    _, user_id, session_id = run.key
    return runner.run_async(
        user_id=user_id,
        session_id=session_id,
        invocation_id=None if turn else run.invocation_id,
        new_message=turn.content if turn else None,
        state_delta=_client_context(run_input) or None,
        run_config=RunConfig(streaming_mode=StreamingMode.SSE),
    )


def _client_context(run_input: RunAgentInput) -> JsonObject:
    """What the agent may know of its client, for the length of the run: instructions can name these keys."""
    context: JsonObject = {}
    if run_input.context:
        context["temp:agui_context"] = [item.model_dump(by_alias=True) for item in run_input.context]
    if run_input.forwarded_props:
        context["temp:agui_forwarded_props"] = run_input.forwarded_props
    return context
