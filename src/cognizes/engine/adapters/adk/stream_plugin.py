"""EngineStreamPlugin: records the invocations of ADK's runner as runs, and streams their text chunk by chunk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from ag_ui.core import BaseEvent, ToolCallArgsEvent, ToolCallStartEvent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions.session import Session
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from cognizes.engine import models
from cognizes.engine.adapters.adk.events import to_json
from cognizes.engine.adapters.adk.run_input import OpenCalls
from cognizes.engine.adapters.adk.session_reader import Revision
from cognizes.engine.adapters.adk.session_service import OpenSessionService
from cognizes.engine.concurrency import retry_while_unavailable
from cognizes.engine.database.documents import dump_jsonb
from cognizes.engine.engine import Engine
from cognizes.engine.errors import ConflictError, EngineError
from cognizes.engine.hosting.hosted_run import end_waiting_runs, wait_for_person
from cognizes.engine.models import JsonObject, Run, RunStatus, new_id
from cognizes.engine.pulse.sessions import RunFence, fenced_by
from cognizes.engine.runs.leases import Lease
from cognizes.engine.streams.chunks import CALL, CALL_INFIX, THOUGHT, THOUGHT_SUFFIX, CallHead
from cognizes.engine.streams.writer import MessageWriter

logger = logging.getLogger(__name__)

_Place = tuple[str, str]


@dataclass
class _Turn:
    """A message that is being streamed. `message_id` is the id of its first fragment, which may be a thought."""

    message_id: str
    thoughts: MessageWriter | None = None
    writer: MessageWriter | None = None
    calls: dict[str, MessageWriter] = field(default_factory=dict)
    is_broken: bool = False


class TurnStreams:
    """Writes the text that ADK streams as chunks that any process reads; each agent and branch has one open message.

    A message is streamed under the id of its whole event, its thoughts under the id that AG-UI frames give them. A
    failure is logged and does not stop the agent: the whole event is stored in any case.
    """

    def __init__(self, engine: Engine, thread_id: UUID, *, run_id: str | None) -> None:
        self._engine = engine
        self._thread_id = thread_id
        self._run_id = run_id
        self._turns: dict[_Place, _Turn] = {}

    async def take(self, event: Event) -> None:
        """Write an event of ADK: a fragment, or a whole event that is stored."""
        if event.partial:
            await self.write(event)
        else:
            await self.write_rest(event)
            await self.mark_stored(event)

    def streamed_id(self, event: Event) -> str | None:
        """Return the id under which the fragments of a whole event were streamed; None if none was."""
        turn = self._turns.get(_place(event))
        return turn.message_id if turn and (turn.writer or turn.thoughts) else None

    async def write(self, event: Event) -> None:
        turn = self._turns.setdefault(_place(event), _Turn(event.id))
        if (thought := _text(event, thought=True)) and not turn.is_broken:
            with _marked_broken(turn):
                if turn.thoughts is None:
                    turn.thoughts = await self._open(turn.message_id + THOUGHT_SUFFIX, event, role=THOUGHT)
                await turn.thoughts.write(thought)
        if (text := _text(event)) and not turn.is_broken:
            with _marked_broken(turn):
                if turn.writer is None:
                    turn.writer = await self._open(turn.message_id, event, role="assistant")
                await turn.writer.write(text)

    async def write_calls(self, event: Event, frames: Iterable[BaseEvent]) -> None:
        """Write the fragments of tool calls that a fragment of ADK became, each call as a stream of its own."""
        for frame in frames:
            turn = self._turns.setdefault(_place(event), _Turn(event.id))
            if turn.is_broken:
                return
            with _marked_broken(turn):
                if isinstance(frame, ToolCallStartEvent):
                    head = CallHead(frame.tool_call_id, frame.tool_call_name, frame.parent_message_id or "")
                    name = f"{turn.message_id}{CALL_INFIX}{frame.tool_call_id}"
                    turn.calls[frame.tool_call_id] = await self._open(name, event, role=CALL)
                    await turn.calls[frame.tool_call_id].write(head.text())
                elif isinstance(frame, ToolCallArgsEvent) and (writer := turn.calls.get(frame.tool_call_id)):
                    await writer.write(frame.delta)

    def has_call(self, call_id: str) -> bool:
        """Return whether the arguments of an unfinished call are streamed; `close` stores the call."""
        return any(call_id in turn.calls for turn in self._turns.values())

    async def write_rest(self, event: Event) -> None:
        """Write the part of a whole event that its fragments did not contain."""
        turn = self._turns.get(_place(event))
        if turn and turn.writer and not turn.is_broken and (text := _text(event)).startswith(said := turn.writer.text):
            with _marked_broken(turn):
                await turn.writer.write(text[len(said) :])

    async def mark_stored(self, event: Event) -> None:
        """End the stream of a message whose whole event is stored. An event without content has none."""
        if event.content and event.content.parts and (turn := self._turns.pop(_place(event), None)):
            for writer in (turn.writer, turn.thoughts, *turn.calls.values()):
                if writer:
                    with _marked_broken(turn):
                        await writer.mark_stored()
                    writer.abandon()

    async def close_thoughts(self) -> None:
        """Store the thoughts of unfinished messages. Call it before the messages are stored."""
        for turn in self._turns.values():
            thoughts, turn.thoughts = turn.thoughts, None
            if thoughts:
                with _marked_broken(turn):
                    await thoughts.abort()
                thoughts.abandon()

    async def close(self) -> None:
        """Store the unfinished messages as interrupted, unless they are stored; the run is over."""
        await self.close_thoughts()
        turns, self._turns = self._turns, {}
        for turn in turns.values():
            for writer in (turn.writer, *turn.calls.values()):
                if writer:
                    with _marked_broken(turn):
                        await writer.abort()
                    writer.abandon()

    async def _open(self, message_id: str, event: Event, *, role: str) -> MessageWriter:
        writer = self._engine.stream_message(
            self._thread_id,
            role=role,
            message_id=message_id,
            author=event.author,
            run_id=self._run_id,
            invocation_id=event.invocation_id,
        )
        return await writer.open()


def _place(event: Event) -> _Place:
    # Parallel agents stream at the same time, each on its own branch.
    return event.author, event.branch or ""


def _text(event: Event, *, thought: bool = False) -> str:
    parts = (event.content and event.content.parts) or ()
    return "".join(part.text for part in parts if part.text and bool(part.thought) is thought)


@contextmanager
def _marked_broken(turn: _Turn) -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        # The stream skips the following fragments: each might wait as long as this one did.
        turn.is_broken = True
        logger.warning("message %s could not be streamed: %s", turn.message_id, error)


_InvocationKey = tuple[str, str, str, str]


@dataclass(frozen=True)
class _OpenRun:
    service: OpenSessionService
    engine: Engine
    thread_id: UUID
    invocation_id: str
    id: str
    streams: TurnStreams
    lease: Lease


class EngineStreamPlugin(BasePlugin):
    """Records every invocation on an `OpenSessionService` as a run.

    - A run starts with the invocation, under the invocation's id, and ends completed, failed with the error, or
      cancelled. While the agent asks a person the run waits, until the next invocation of the session. The thread's
      log contains these changes; the events of the invocation carry the run's id. When a process is killed, its run
      fails at the expiry of its lease (`COGNIZES_RUN_LEASE_SECONDS`).
    - The run's row receives thoughts, tool calls and their results as they happen.
    - Text that ADK streams (`StreamingMode.SSE`) is read live from any process, chunk by chunk: `engine.streams`. The
      whole event is stored under the id of its first fragment. An unfinished message is stored as interrupted.
    - A failure to record is logged and does not stop the agent. On other session services the plugin does nothing.

    runner = Runner(..., session_service=OpenSessionService(), plugins=[EngineStreamPlugin()])
    """

    def __init__(self, name: str = "cognizes_engine_stream") -> None:
        super().__init__(name=name)
        self._runs: dict[_InvocationKey, _OpenRun] = {}
        self._watches: dict[_InvocationKey, Callable[[], object]] = {}
        self._cancelling: set[asyncio.Task[None]] = set()

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        service = invocation_context.session_service
        revision = Revision.of(invocation_context.session)
        if not isinstance(service, OpenSessionService) or revision is None:
            return
        with _only_logged():
            key = _key(invocation_context.session, invocation_context.invocation_id)
            self._runs[key] = await _begin(service, revision.thread_id, invocation_context)
            self._watch(key)

    async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> None:
        """Stream a fragment; record the thoughts of a whole event, which the session service stores next."""
        run = self._runs.get(_key(invocation_context.session, invocation_context.invocation_id))
        if run is None or event.content is None:
            return
        if event.partial:
            await run.streams.write(event)
            return
        if event.content.parts:
            event.id = run.streams.streamed_id(event) or event.id
            await run.streams.write_rest(event)
        for part in event.content.parts or []:
            if part.thought and part.text and part.text.strip():
                await _record(run, "thought", {"thought": part.text, "at": _now()})

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        run = self._runs.get(_key(callback_context.session, callback_context.invocation_id))
        if run is not None and llm_request.model:
            run.service.note_model(run.invocation_id, callback_context.agent_name, llm_request.model)

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> None:
        if run := self._run_of(tool_context):
            entry = {
                "id": tool_context.function_call_id,
                "tool_name": tool.name,
                "input": to_json(tool_args),
                "at": _now(),
            }
            await _record(run, "act", entry)

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, result: Any
    ) -> None:
        await self._finish_tool(tool_context, to_json(result), is_error=False)

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, error: BaseException
    ) -> None:
        await self._finish_tool(tool_context, _description(error), is_error=True)

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        key = _key(invocation_context.session, invocation_context.invocation_id)
        if invocation_context.is_aborted:
            await self._end(key, RunStatus.CANCELLED)
            return
        questions = OpenCalls.of(invocation_context.session.events).questions
        await self._end(key, RunStatus.WAITING if questions else RunStatus.COMPLETED, questions=questions)

    async def on_run_error_callback(self, *, invocation_context: InvocationContext, error: Exception) -> None:
        key = _key(invocation_context.session, invocation_context.invocation_id)
        await self._end(key, RunStatus.FAILED, error=_description(error))

    async def close(self) -> None:
        """Wait until every cancelled run is recorded."""
        if self._cancelling:
            await asyncio.wait(self._cancelling)

    def _run_of(self, context: ToolContext) -> _OpenRun | None:
        return self._runs.get(_key(context.session, context.invocation_id))

    async def _finish_tool(self, context: ToolContext, output: Any, *, is_error: bool) -> None:
        if run := self._run_of(context):
            entry = {"id": context.function_call_id, "output": output, "is_error": is_error, "finished_at": _now()}
            await _record(run, "observe", entry)

    def _watch(self, key: _InvocationKey) -> None:
        """Cancel the run when the task ends: ADK does not report cancelled invocations to plugins."""
        task = asyncio.current_task()
        if task is not None:
            watcher = partial(self._cancel_left_over, key)
            task.add_done_callback(watcher)
            self._watches[key] = partial(task.remove_done_callback, watcher)

    def _cancel_left_over(self, key: _InvocationKey, _: asyncio.Task[Any]) -> None:
        cancelling = asyncio.ensure_future(self._end(key, RunStatus.CANCELLED))
        self._cancelling.add(cancelling)
        cancelling.add_done_callback(self._cancelling.discard)

    async def _end(
        self, key: _InvocationKey, status: RunStatus, *, error: str | None = None, questions: Collection[str] = ()
    ) -> None:
        run = self._runs.pop(key, None)
        if run is None:
            return
        if stop_watching := self._watches.pop(key, None):
            stop_watching()
        run.service.detach_run(run.thread_id, run.invocation_id)
        run.service.forget_models(run.invocation_id)
        await run.streams.close()
        with _only_logged(), fenced_by(run.lease.fence):
            if status is RunStatus.WAITING:
                await wait_for_person(run.engine, await run.engine.runs.get(run.thread_id, run.id), questions)
            else:
                await _store_end(run, status, error)
        # After the end is stored: the run keeps its lease while PostgreSQL is unavailable.
        run.engine.runs.leases.drop(run.lease)


async def _begin(service: OpenSessionService, thread_id: UUID, context: InvocationContext) -> _OpenRun:
    engine = await service.engine()
    session = models.Session(
        id=context.session.id,
        app_name=context.session.app_name,
        user_id=context.session.user_id,
        thread_id=str(thread_id),
    )
    # Not `user_content`: for an invocation that continues with an answer it is the first message of the user.
    said = next((event for event in reversed(context.session.events) if event.author == "user"), None)
    if said is not None:
        await end_waiting_runs(engine, thread_id, None, is_answered=bool(said.get_function_responses()))
    try:
        run = await engine.runs.begin_leased(session, run_id=context.invocation_id)
    except ConflictError:
        # A resumed invocation keeps its id, and its first run has ended.
        run = await engine.runs.begin_leased(session, run_id=f"{context.invocation_id}/{new_id()}")
    lease = engine.runs.leases.hold(RunFence(thread_id, run.id, run.attempt))
    streams = TurnStreams(engine, thread_id, run_id=run.id)
    service.attach_run(thread_id, context.invocation_id, run.id, on_stored=streams.mark_stored)
    return _OpenRun(service, engine, thread_id, context.invocation_id, run.id, streams, lease)


async def _store_end(run: _OpenRun, status: RunStatus, error: str | None) -> None:
    runs, place = run.engine.runs, (run.thread_id, run.id)
    # One event id for all attempts: if only the answer was lost, the run has ended.
    event_id = str(new_id())

    async def change() -> Run:
        if status is RunStatus.FAILED:
            return await runs.fail(*place, error=error or "", event_id=event_id)
        if status is RunStatus.CANCELLED:
            return await runs.cancel(*place, event_id=event_id)
        return await runs.finish(*place, event_id=event_id)

    await retry_while_unavailable(change, seconds=run.engine.settings.retry_seconds)


async def _record(run: _OpenRun, kind: str, entry: JsonObject) -> None:
    """Record an entry on the run's row, without an event: the session service stores ADK's event."""
    with _only_logged():
        await run.engine._database.fetch_value(
            "record_run_progress", run.thread_id, run.id, kind, dump_jsonb(entry), None, None, None
        )


@contextmanager
def _only_logged() -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        logger.warning("an invocation could not be recorded as a run: %s", error)


def _key(session: Session, invocation_id: str) -> _InvocationKey:
    return session.app_name, session.user_id, session.id, invocation_id


def _description(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _now() -> str:
    return datetime.now(UTC).isoformat()
