"""AdkAgent: an ADK app as a hosted agent. ADK's own events in the thread's log are the record of its runs."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from uuid import UUID
from weakref import WeakKeyDictionary

from ag_ui.core import BaseEvent, RunAgentInput
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session
from google.adk.workflow import BaseNode
from google.genai import types
from typing_extensions import override

from cognizes.engine import models
from cognizes.engine.adapters.adk.artifact_service import HostedArtifactService
from cognizes.engine.adapters.adk.events import encode_event, encode_fragment, to_json
from cognizes.engine.adapters.adk.memory_service import HostedMemoryService
from cognizes.engine.adapters.adk.plugins import (
    AttachmentPlugin,
    ClientCalls,
    ModelNames,
    RunInvocations,
    StreamedIds,
    run_invocations,
)
from cognizes.engine.adapters.adk.run_input import (
    OpenCalls,
    UserTurn,
    message_parts,
    read_turn,
    server_tools,
    with_client_tools,
)
from cognizes.engine.adapters.adk.session_reader import Revision, SessionKey, make_session
from cognizes.engine.adapters.adk.session_service import OpenSessionService
from cognizes.engine.adapters.adk.stream_plugin import TurnStreams
from cognizes.engine.agui.translator import Translator, UnfinishedCall, UnfinishedTurn
from cognizes.engine.concurrency import retry_while_unavailable
from cognizes.engine.engine import Engine
from cognizes.engine.errors import (
    AlreadyExistsError,
    DatabaseUnavailableError,
    DuplicateEventError,
    EngineError,
    InvalidInputError,
    PoolTimeoutError,
)
from cognizes.engine.hosting.agent import AgentCapabilities, RunContext, Turn, client_state_delta
from cognizes.engine.hosting.recorded_items import note_progress
from cognizes.engine.hosting.turns import signalled_answers
from cognizes.engine.models import JsonObject, Run
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.runs import Resumption
from cognizes.engine.timeline.event_reading import AGUI_PARTS, TEXT_FORMAT

logger = logging.getLogger(__name__)

_REMOTE_AGENT = "google.adk.agents.remote_a2a_agent"
_UNAVAILABLE = (DatabaseUnavailableError, PoolTimeoutError)


@dataclass(frozen=True)
class AdkTurn(Turn):
    """A turn for ADK's runner. Without `content` the runner continues the invocation `invocation_id`."""

    content: types.Content | None = None
    history: Sequence[Event] = ()
    earlier: Sequence[tuple[str, types.Content]] = ()
    message_ids: Sequence[str] = ()
    session: Session | None = None
    invocation_id: str = ""
    waiting_event: Event | None = None
    pending: Sequence[str] = ()

    @override
    def begun(self, session: models.Session, *, is_branched: bool) -> AdkTurn:
        key = session.app_name, session.user_id, session.id
        revision = Revision(thread_uuid(session.thread_id), session.version, session.last_sequence)
        opened = self.session or make_session(key, revision, state=session.state, last_update_time=time.time())
        return replace(self, thread_id=thread_uuid(session.thread_id), session=opened)


class AdkAgent:
    """Serves an ADK app. Agents of one server share a session service, and so its cache."""

    def __init__(self, app: App, service: HostedSessionService) -> None:
        self._streamed_ids = StreamedIds()
        self._client_calls = ClientCalls()
        plugins = [
            # ADK skips the plugins behind one that replaces an event or answers for the agent.
            RunInvocations(),
            self._streamed_ids,
            self._client_calls,
            *app.plugins,
            ModelNames(service),
            AttachmentPlugin(service.engine),
        ]
        self._app = app.model_copy(update={"plugins": plugins})
        self._service = service
        self._runner = self._make_runner(self._app)
        self._server_tools = server_tools(app)

    @property
    def name(self) -> str:
        return self._app.name

    @property
    def description(self) -> str:
        return getattr(self._app.root_agent, "description", "")

    @property
    def capabilities(self) -> AgentCapabilities:
        """Return what ADK can do. An app says whether its invocations can be resumed; tools belong to an LlmAgent."""
        config = self._app.resumability_config
        return AgentCapabilities(
            resumes_after_crash=bool(config and config.is_resumable),
            interrupts=True,
            client_tools=isinstance(self._app.root_agent, LlmAgent),
            streams_tool_arguments=True,
            multimodal=True,
            keeps_own_history=True,
        )

    async def close(self) -> None:
        await self._runner.close()

    async def read_turn(
        self, run_input: RunAgentInput, user_id: str, *, is_end_user: bool, thread_id: UUID | None = None
    ) -> AdkTurn:
        """Read the session and return the new part of the input."""
        session_id = run_input.thread_id
        if session_id.strip() != session_id:
            raise InvalidInputError("ADK's session ids have no blanks at their ends; send such a threadId")
        session = await self._service.get_session(app_name=self.name, user_id=user_id, session_id=session_id)
        reserved = self._server_tools if is_end_user else None
        events = session.events if session else []
        return _turn(session, self._user_turn(run_input, events, reserved=reserved, is_end_user=is_end_user), run_input)

    def _user_turn(
        self, run_input: RunAgentInput, events: Sequence[Event], *, reserved: frozenset[str] | None, is_end_user: bool
    ) -> UserTurn:
        agent = self._app.root_agent.name if self._app.root_agent else self.name
        return read_turn(run_input, events, reserved=reserved, agent=agent, is_end_user=is_end_user)

    async def read_continuation(
        self, run: Run, run_input: RunAgentInput, session: models.Session, *, resumption: Resumption | None
    ) -> AdkTurn | None:
        """Return the turn with a signal's answers, or one that continues the invocation, if the app allows it."""
        opened = await self._service.get_session(app_name=self.name, user_id=session.user_id, session_id=session.id)
        if opened is None:
            return None
        if answered := _signalled_turn(resumption, run_input, opened):
            return _turn(opened, answered, run_input)
        engine = await self._service.engine()
        thread_id = thread_uuid(run.thread_id)
        invocation_id = await engine._database.fetch_value("find_invocation_of_run", thread_id, run.id)
        if not invocation_id and run_input.messages:
            # The server stopped before ADK stored the input.
            turn = self._user_turn(run_input, opened.events, reserved=None, is_end_user=True)
            if self.capabilities.resumes_after_crash:
                return _turn(opened, turn, run_input)
            await self._store_input(engine, run, turn)
        if not self.capabilities.resumes_after_crash or not invocation_id:
            return None
        return AdkTurn(thread_id, session=opened, invocation_id=invocation_id)

    async def _store_input(self, engine: Engine, run: Run, turn: UserTurn) -> None:
        """Store the messages of a run that cannot continue: the next turn has them."""
        said = [*turn.earlier, *([(turn.message_id, turn.content)] if turn.message_id else [])]
        for message_id, content in said:
            event = Event(id=message_id, author="user", invocation_id=run.id, content=content)
            row = encode_event(event, thread_id=run.thread_id, run_id=run.id)
            await engine.sessions.append_to_thread(thread_uuid(run.thread_id), row)

    async def run(self, run_input: RunAgentInput, context: RunContext) -> AsyncGenerator[BaseEvent, None]:
        """Yield the frames of an invocation. ADK's runner stores its events through the session service."""
        turn = context.turn
        if not isinstance(turn, AdkTurn) or turn.session is None:
            raise TypeError(f"{self.name} runs the turns that it has read, not a {type(turn).__name__}")
        key = (self.name, context.session.user_id, context.session.id)
        recording = _Recording(context, turn, root_agent=self._app.root_agent.name if self._app.root_agent else None)
        active = self._service.active[key] = ActiveTurn(
            context.run.id, list(turn.message_ids), parts=message_parts(turn.new_messages)
        )
        invocations: set[str] = set()
        run_invocations.set(invocations)
        try:
            for brought in turn.history:
                await self._service.append_event(turn.session, brought)
            for message_id, content in turn.earlier:
                await self._service.append_event(turn.session, Event(id=message_id, author="user", content=content))
            if turn.waiting_event is not None:
                await self._service.append_event(turn.session, _result_event(turn.waiting_event, turn.content))
                for frame in recording.translator.finish():
                    yield frame
                return
            async with aclosing(self._events(turn, run_input, key)) as events:
                async for event in events:
                    frames = recording.translate(event)
                    for frame in frames:
                        yield frame
                    await recording.record(event, frames)
            for frame in recording.translator.finish():
                yield frame
        finally:
            await recording.close()
            for invocation_id in invocations:
                self._streamed_ids.forget(invocation_id)
                self._client_calls.forget(invocation_id)
                self._service.forget_models(invocation_id)
            if self._service.active.get(key) is active:
                # Else this run was abandoned, and the session has another one.
                del self._service.active[key]

    def _events(self, turn: AdkTurn, run_input: RunAgentInput, key: SessionKey) -> AsyncGenerator[Event, None]:
        runner = self._runner
        if run_input.tools:
            runner = self._make_runner(with_client_tools(self._app, run_input.tools))
        return runner.run_async(
            user_id=key[1],
            session_id=key[2],
            invocation_id=None if turn.content else turn.invocation_id,
            new_message=turn.content,
            state_delta=_client_context(run_input) or None,
            run_config=RunConfig(streaming_mode=StreamingMode.SSE),
        )

    def _make_runner(self, app: App) -> Runner:
        service = self._service
        return Runner(
            app=app, session_service=service, artifact_service=service.artifacts, memory_service=service.memories
        )


class _Recording:
    """Frames, chunks, progress and the unfinished messages of one invocation."""

    def __init__(self, context: RunContext, turn: AdkTurn, *, root_agent: str | None) -> None:
        self._context = context
        self.invocation_id = turn.invocation_id
        self.translator = Translator(
            thread_id=context.session.id,
            run_id=context.run.id,
            state=context.session.state,
            root_agent=root_agent,
            pending=turn.pending,
        )
        self._streams = TurnStreams(context.engine, context.thread_id, run_id=context.run.id)

    def translate(self, event: Event) -> list[BaseEvent]:
        self.invocation_id = event.invocation_id
        thread_id = str(self._context.thread_id)
        return self.translator.translate(
            encode_fragment(event, thread_id=thread_id) or encode_event(event, thread_id=thread_id)
        )

    async def record(self, event: Event, frames: Sequence[BaseEvent]) -> None:
        """Stream the text and the calls of an event, and note its thoughts, calls and results on the run's row."""
        await self._streams.take(event)
        if event.partial:
            await self._streams.write_calls(event, frames)
            return
        for kind, entry in _progress(event):
            await note_progress(self._context, kind, entry)

    async def close(self) -> None:
        """Store the messages whose whole event did not arrive. A run that continues elsewhere only closes streams."""
        if not self._context.is_released:
            await self._streams.close_thoughts()
            try:
                await self._store_unfinished(self.translator.unfinished_turns())
                await self._store_unfinished_calls(self.translator.unfinished_calls())
            except EngineError as error:
                logger.error("run %s: its unfinished answer could not be stored: %s", self._context.run.id, error)
        await self._streams.close()

    async def _store_unfinished(self, turns: Sequence[UnfinishedTurn]) -> None:
        """Store the beginnings of messages as interrupted messages of ADK, under the ids they were streamed with."""
        context = self._context
        for turn in turns:
            event = Event(
                id=turn.id,
                author=turn.author,
                branch=turn.branch or None,
                invocation_id=self.invocation_id,
                interrupted=True,
                content=types.Content(role="model", parts=[types.Part(text=turn.text)]),
            )
            row = encode_event(event, thread_id=str(context.thread_id), run_id=context.run.id)
            # A message that was interrupted while its whole event was being stored is in the log.
            with suppress(AlreadyExistsError, DuplicateEventError):
                await context.engine.sessions.append_to_thread(context.thread_id, row, expected_version=None)

    async def _store_unfinished_calls(self, calls: Sequence[UnfinishedCall]) -> None:
        """Store calls whose arguments broke off as events of the engine: ADK's history has no call without a result."""
        context = self._context
        for call in calls:
            if self._streams.has_call(call.id):
                continue
            content: JsonObject = {
                "tool_call_id": call.id,
                "tool_name": call.name,
                "tool_input": call.arguments,
                "format": TEXT_FORMAT,
                "parent_message_id": call.parent_id,
                "interrupted": True,
            }
            event = models.Event(
                id=str(models.new_id()),
                thread_id=str(context.thread_id),
                invocation_id=self.invocation_id,
                author=call.author,
                event_type="act",
                content=content,
                run_id=context.run.id,
            )
            await context.engine.sessions.append_to_thread(context.thread_id, event, expected_version=None)


def _turn(session: Session | None, turn: UserTurn, run_input: RunAgentInput) -> AdkTurn:
    revision = Revision.of(session) if session else None
    return AdkTurn(
        revision.thread_id if revision else None,
        new_messages=turn.new_messages,
        initial_state=client_state_delta(run_input.state, {}),
        content=turn.content,
        history=turn.history,
        earlier=turn.earlier,
        message_ids=[
            *(event.id for event in turn.history if event.author == "user"),
            *(message_id for message_id, _ in turn.earlier),
            *([turn.message_id] if turn.message_id else ()),
        ],
        session=session,
        waiting_event=turn.waiting_event,
        pending=turn.pending,
    )


def _result_event(called: Event, content: types.Content | None) -> Event:
    """Return the event of results of tools of the client, some of whose calls in the event `called` still wait."""
    return Event(author="user", invocation_id=called.invocation_id, branch=called.branch, content=content)


def _signalled_turn(resumption: Resumption | None, run_input: RunAgentInput, session: Session) -> UserTurn | None:
    """Return the answers with which a signal continues a run that waited for a person; None when they were stored."""
    resume = signalled_answers(resumption, OpenCalls.of(session.events).questions)
    if not resume:
        return None
    return read_turn(run_input.model_copy(update={"resume": resume, "messages": []}), session.events)


def _client_context(run_input: RunAgentInput) -> JsonObject:
    """Return the client's context as state of this run; instructions can name the keys."""
    context: JsonObject = {}
    if run_input.context:
        context["temp:agui_context"] = [item.model_dump(by_alias=True) for item in run_input.context]
    if run_input.forwarded_props:
        context["temp:agui_forwarded_props"] = run_input.forwarded_props
    return context


def _is_client_context(event: Event) -> bool:
    delta = event.actions.state_delta
    return (
        event.author == "user"
        and event.content is None
        and bool(delta)
        and all(key.startswith("temp:agui_") for key in delta)
    )


def _progress(event: Event) -> Iterator[tuple[str, JsonObject]]:
    moment = datetime.now(UTC).isoformat()
    for part in (event.content and event.content.parts) or ():
        if part.thought and part.text:
            yield "thought", {"thought": part.text, "at": moment}
        elif call := part.function_call:
            yield "act", {"id": call.id, "tool_name": call.name, "input": to_json(call.args), "at": moment}
        elif response := part.function_response:
            output = {"id": response.id, "output": to_json(response.response), "is_error": False}
            yield "observe", output | {"finished_at": moment}


@dataclass
class ActiveTurn:
    """The run that executes on a session, and the ids that the client gave to the user's messages.

    `parts` are the forms of messages with media, by message id.
    """

    run_id: str
    message_ids: list[str] = field(default_factory=list)
    parts: dict[str, list[JsonObject]] = field(default_factory=dict)


class HostedSessionService(OpenSessionService):
    """Stores the events of hosted runs, on the server's engine.

    - Events belong to the active run of their session, and user messages keep the ids of the client.
    - Other writers may append to a session while an agent runs on it: the service merges, it does not conflict.
    - ADK hands the client's context to a continued invocation in an event, which is not stored: ADK calls the tool at
      which the invocation was interrupted only if no event of the invocation follows the call.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(on_conflict="rebase")
        self._hosting_engine = engine
        self.artifacts = HostedArtifactService(engine)
        self.memories = HostedMemoryService(engine)
        self.active: dict[SessionKey, ActiveTurn] = {}

    @override
    async def engine(self) -> Engine:
        return self._hosting_engine

    @override
    async def close(self) -> None:
        """Do nothing: the server closes its engine."""

    @override
    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session. A read for ADK's runner is retried, because its error would fail the run."""
        read = partial(super().get_session, app_name=app_name, user_id=user_id, session_id=session_id, config=config)
        try:
            return await read()
        except _UNAVAILABLE as error:
            if (app_name, user_id, session_id) not in self.active:
                raise
            # Waiting for a connection may have taken all of this time: it counts from the first failure.
            seconds = self._hosting_engine.settings.retry_seconds
            return await retry_while_unavailable(read, seconds=seconds, errors=_UNAVAILABLE, failed=error)

    @override
    async def append_event(self, session: Session, event: Event) -> Event:
        if _is_client_context(event):
            session.state.update(event.actions.state_delta)
            return event
        turn = self.active.get((session.app_name, session.user_id, session.id))
        revision = Revision.of(session)
        if turn is None or revision is None or event.partial:
            return await super().append_event(session, event)
        if event.author == "user" and turn.message_ids:
            event.id = turn.message_ids.pop(0)
            if parts := turn.parts.get(event.id):
                event.custom_metadata = {**(event.custom_metadata or {}), AGUI_PARTS: parts}
        self.attach_run(revision.thread_id, event.invocation_id, turn.run_id)
        try:
            return await super().append_event(session, event)
        finally:
            self.detach_run(revision.thread_id, event.invocation_id)


_services: WeakKeyDictionary[Engine, HostedSessionService] = WeakKeyDictionary()


def host_app(found: App | BaseNode, *, name: str, engine: Engine) -> AdkAgent:
    """Return an ADK app, or an agent or workflow as an app of its name, as a hosted agent.

    Agents of one engine share a session service. The name of an ADK agent is always its own.
    """
    service = _services.get(engine)
    if service is None:
        service = _services[engine] = HostedSessionService(engine)
        _skip_missing_a2a()
    # Without validation, as ADK's own runner does: App accepts fewer names than an agent.
    app = found if isinstance(found, App) else App.model_construct(name=found.name, root_agent=found, plugins=[])
    return AdkAgent(app, service)


def _skip_missing_a2a() -> None:
    """Let an import fail at once that ADK tries for every run, if the package it needs is not installed.

    Python keeps no record of a failed import: each run would load the module again, for milliseconds.
    """
    if find_spec("a2a") is None:
        sys.modules.setdefault(_REMOTE_AGENT, None)  # type: ignore[arg-type]
