"""AgentHost: ADK agents whose runs belong to the server.

A request starts a run and then only watches it, like any other observer. When the client goes away the run goes on;
whoever connects later is told what happened so far and follows from there. One run at a time on a thread: a second one
is a `ConflictError`, because two answers at once would mix in one conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from uuid import UUID

from ag_ui.core import ResumeEntry, RunAgentInput
from google.adk.apps.app import App
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions.session import Session
from google.genai import types

from cognizes.engine import models
from cognizes.engine.adapters.adk.client_tools import server_tools, with_client_tools
from cognizes.engine.adapters.adk.hosted_run import HostedRun
from cognizes.engine.adapters.adk.hosted_sessions import HostedSessionService, StreamedIds
from cognizes.engine.adapters.adk.revision import Revision
from cognizes.engine.adapters.adk.run_executor import RunExecutor
from cognizes.engine.adapters.adk.run_input import OpenCalls, UserTurn, client_state_delta, read_turn
from cognizes.engine.adapters.adk.run_progress import end_waiting_runs
from cognizes.engine.adapters.adk.run_watch import ORPHANED, RunWatch, handler_of
from cognizes.engine.adapters.adk.session_cache import SessionKey
from cognizes.engine.adapters.adk.turn_streams import TurnStreams
from cognizes.engine.adapters.observers import make_observer
from cognizes.engine.agui.observation import Observation, started
from cognizes.engine.agui.translator import Translator, wait_key_of
from cognizes.engine.concurrency import KeyedLock
from cognizes.engine.database.tenancy import acting_for
from cognizes.engine.engine import Engine
from cognizes.engine.errors import ConflictError, InvalidInputError, NotFoundError
from cognizes.engine.models import JsonObject, Run
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.runs.resumption import Resumption

_NOTHING_NEW = UserTurn(content=types.Content(), message_id=None, earlier=[], new_messages=[])


class AgentHost:
    """Runs agents on the server's engine, each run as a task of the host."""

    def __init__(self, engine: Engine, apps: Mapping[str, App]) -> None:
        self._engine = engine
        self._service = HostedSessionService(engine, self._active_run)
        self._streamed_ids = StreamedIds()
        self._apps = {name: _with_plugin(app, self._streamed_ids) for name, app in apps.items()}
        self._runners = {name: self._runner(app) for name, app in self._apps.items()}
        self._active: dict[SessionKey, HostedRun] = {}
        self._observer = make_observer(engine)
        self._starting = KeyedLock()
        self._watch = RunWatch(engine, apps, self._adopt)
        self._executor = RunExecutor(engine, self._service)
        self._is_closing = False

    @property
    def descriptions(self) -> dict[str, str]:
        """The agents by name, and what they say of themselves."""
        return {name: getattr(app.root_agent, "description", "") for name, app in self._apps.items()}

    def start(self) -> None:
        """Begins to look after runs."""
        self._watch.start()

    async def close(self, *, seconds: float) -> None:
        """Lets runs go on for a while, then hands them over where their agent can be resumed, and else ends them as
        failed; observers see the end."""
        self._is_closing = True
        await self._watch.close()
        if tasks := self._tasks():
            await asyncio.wait(tasks, timeout=seconds)
        while tasks := self._tasks():
            # Also those that were being started when the host began to close.
            for run in list(self._active.values()):
                run.cancel(by_server=True)
            await asyncio.wait(tasks)
        await self._executor.close()
        for runner in self._runners.values():
            await runner.close()

    async def run(self, name: str, user_id: str, run_input: RunAgentInput, *, is_end_user: bool = False) -> HostedRun:
        """Starts a run; it is going on, and its row says so, when this returns.

        An end user brings the results of its client's tools and not those of the agent's own long-running tools.
        """
        self.check_agent(name)
        if self._is_closing:
            raise ConflictError("the server is about to stop and takes no more runs; try again in a moment")
        key = (name, user_id, run_input.thread_id)
        async with self._starting.acquire(key):
            session = await self._open_session(key, run_input)
            await self._refuse_second_run(key, session)
            reserved = server_tools(self._apps[name]) if is_end_user else frozenset()
            turn = read_turn(run_input, session.events, reserved=reserved)
            await self._end_waiting_runs(key, session, run_input, turn)
            run = await self._begin(key, run_input, turn)
            run.task = asyncio.create_task(self._execute(run, session, run_input, turn), name=f"run-{run.run_id}")
        return run

    async def watch(self, run: HostedRun) -> Observation:
        """All frames of a run that was started here."""
        async with aclosing(run.log.follow()) as frames:
            async for number, frame in frames:
                yield number, frame

    async def connect(self, name: str, user_id: str, thread_id: str, *, run_id: str) -> Observation:
        """What happened on a thread so far, then the rest of its active run; when there is none, a run `run_id`."""
        self.check_agent(name)
        if run := self._active.get((name, user_id, thread_id)):
            first = started(thread_id, run.run_id)
            frames = self._observer.observe_active(run.thread_id, run.log, first, after=run.start_sequence)
        else:
            session = await self._engine.sessions.get(name, user_id, thread_id)
            thread = thread_uuid(session.thread_id) if session else None
            elsewhere = await self._find_leased_run(thread) if thread else None
            frames = self._observer.observe_thread(thread, started(thread_id, elsewhere or run_id))
        async with aclosing(frames):
            async for item in frames:
                yield item

    async def cancel(self, name: str, user_id: str, thread_id: str, *, run_id: str | None = None) -> bool:
        """Stops the run of a thread, only the one of that id if given. False when there is none; else it has ended."""
        self.check_agent(name)
        run = self._active.get((name, user_id, thread_id))
        if run is None:
            return await self._cancel_elsewhere(name, user_id, thread_id, run_id)
        if run.task is None or (run_id is not None and run_id not in (run.run_id, run.asked_id)):
            return False
        is_cancelled = run.cancel()
        await asyncio.wait([run.task])
        return is_cancelled

    def check_agent(self, name: str) -> None:
        """`NotFoundError` when there is no such agent."""
        if name not in self._apps:
            raise NotFoundError(f"there is no agent {name!r}; there is {', '.join(self._apps)}")

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [run.task for run in self._active.values() if run.task is not None]

    def _runner(self, app: App) -> Runner:
        return Runner(app=app, session_service=self._service)

    def _runner_for(self, run: HostedRun, run_input: RunAgentInput) -> Runner:
        name = run.key[0]
        if run_input.tools:
            return self._runner(with_client_tools(self._apps[name], run_input.tools))
        return self._runners[name]

    def _active_run(self, key: SessionKey) -> HostedRun | None:
        return self._active.get(key)

    async def _open_session(self, key: SessionKey, run_input: RunAgentInput) -> Session:
        app_name, user_id, session_id = key
        if session := await self._service.get_session(app_name=app_name, user_id=user_id, session_id=session_id):
            return session
        state = client_state_delta(run_input.state, {})
        try:
            return await self._service.create_session(
                app_name=app_name, user_id=user_id, session_id=session_id, state=state
            )
        except AlreadyExistsError:
            # Another process was asked for the same thread at the same time, and was faster.
            return await self._open_session(key, run_input)

    async def _refuse_second_run(self, key: SessionKey, session: Session) -> None:
        revision = Revision.of(session)
        if active := self._active.get(key):
            raise _is_busy(active.run_id)
        if revision and (elsewhere := await self._find_leased_run(revision.thread_id)):
            raise _is_busy(elsewhere)

    async def _end_waiting_runs(
        self, key: SessionKey, session: Session, run_input: RunAgentInput, turn: UserTurn
    ) -> None:
        """End the runs that wait for people when the input answers them, or says something else instead."""
        revision = Revision.of(session)
        answered = [entry.interrupt_id for entry in run_input.resume or ()]
        if revision is None or not (answered or turn.has_text):
            return
        thread_id = revision.thread_id
        if answered and await self._engine.database.fetch_value("find_cancelled_wait", thread_id, answered):
            raise ConflictError("the run that asked was cancelled, and its question with it; connect again")
        await end_waiting_runs(self._engine, thread_id, handler_of(key[0]), is_answered=bool(answered))

    async def _find_leased_run(self, thread_id: UUID) -> str | None:
        found: str | None = await self._engine.database.fetch_value("find_leased_run", thread_id)
        return found

    async def _begin(self, key: SessionKey, run_input: RunAgentInput, turn: UserTurn) -> HostedRun:
        stored = await self._engine.sessions.get(*key)
        if stored is None:
            raise NotFoundError(f"the thread {key[2]} was deleted a moment ago")
        created = await self._engine.runs.begin_leased(
            stored,
            run_id=await self._free_id(stored, run_input),
            handler=handler_of(key[0]),
            input=_kept_input(run_input),
        )
        try:
            # Another process may have been asked at the same moment: the run that was created first goes on.
            first = await self._find_leased_run(thread_uuid(created.thread_id))
            if first is not None and first != created.id:
                raise _is_busy(first)
            if delta := await self._client_changes(stored, run_input):
                await self._engine.sessions.update(stored, delta, author="user")
            stored = await self._engine.manager.sessions.get_thread(created.thread_id)
            run = self._make_run(key, stored, created, turn)
        except BaseException as error:
            await self._engine.runs.fail(created.thread_id, created.id, error=f"it could not be started: {error!r}")
            raise
        run.asked_id = run_input.run_id
        run.begin(_new_input(run_input, turn, run_id=run.run_id))
        self._active[key] = run
        return run

    async def _client_changes(self, session: models.Session, run_input: RunAgentInput) -> JsonObject:
        """What the client itself changed. It sends its whole state each time, and a tab that missed a turn sends an
        old one: a value it was shown at the newest message it knows, or later, is not a change."""
        delta = client_state_delta(run_input.state, session.state)
        if not delta:
            return {}
        thread_id = thread_uuid(session.thread_id)
        known = [message.id for message in run_input.messages]
        newest: int = await self._engine.database.fetch_value("find_newest_message", thread_id, known)
        past = await self._engine.time_travel.at(thread_id, sequence=newest)
        delta = _without_shown(delta, past.state)
        async for item in self._engine.debug.iterate_history(thread_id, after_version=past.version):
            delta = _without_shown(delta, item["delta"])
        return delta

    async def _free_id(self, session: models.Session, run_input: RunAgentInput) -> str | None:
        """The client's id. One that resumes may send the id of the run that asked (CopilotKit does): that is taken."""
        if not run_input.resume:
            return run_input.run_id
        taken = await self._engine.database.fetch_row("read_run", thread_uuid(session.thread_id), run_input.run_id)
        return None if taken else run_input.run_id

    async def _cancel_elsewhere(self, name: str, user_id: str, session_id: str, run_id: str | None) -> bool:
        """Stops a run of the thread that another process executes, which notices at once, or that waits for people."""
        session = await self._engine.sessions.get(name, user_id, session_id)
        if session is None:
            return False
        thread_id = thread_uuid(session.thread_id)
        waiting = await self._engine.database.fetch("find_waiting_runs", thread_id, handler_of(name))
        active = [await self._find_leased_run(thread_id), *(row["id"] for row in waiting)]
        found = next((one for one in active if one is not None and run_id in (None, one)), None)
        if found is None:
            return False
        try:
            await self._engine.runs.cancel(session.thread_id, found)
        except ConflictError:
            return False
        return True

    async def _adopt(self, run: Run) -> None:
        """Goes on with a run whose server went away, by its invocation, where the agent can be resumed. Else it fails,
        and what it had said is kept, which it is in any case."""
        stored = await self._engine.manager.sessions.get_thread(run.thread_id)
        key = (stored.app_name, stored.user_id, stored.id)
        if not await self._leave_own(key, run):
            await self._engine.runs.release(run)
            return
        await self._engine.streams.interrupt_run(thread_uuid(run.thread_id), run.id)
        place = thread_uuid(run.thread_id), run.id
        invocation_id: str | None = await self._engine.database.fetch_value("find_invocation_of_run", *place)
        async with self._starting.acquire(key):
            # Before the session is read: it may restore state.
            resumption = await self._engine.runs.restore(run, stored)
            session = await self._service.get_session(app_name=key[0], user_id=key[1], session_id=key[2])
            run_input = RunAgentInput.model_validate(run.input)
            error = ORPHANED
            turn = None
            if session is not None and resumption is not None:
                try:
                    turn = _signalled_turn(resumption, run_input, session)
                except InvalidInputError as refused:
                    error = f"the signal does not answer what the run asked: {refused}"
            is_resumable = bool(invocation_id) and error == ORPHANED and _is_resumable(self._apps[key[0]])
            if session is None or key in self._active or not (turn or is_resumable):
                await self._engine.runs.remember(await self._engine.runs.abandon(run, error=error))
                return
            hosted = self._make_run(key, stored, run, turn or _NOTHING_NEW)
            hosted.invocation_id = invocation_id or ""
            hosted.begin(_new_input(run_input, turn or _NOTHING_NEW, run_id=run.id))
            self._active[key] = hosted
            hosted.task = asyncio.create_task(self._execute(hosted, session, run_input, turn), name=f"run-{run.id}")

    async def _leave_own(self, key: SessionKey, run: Run) -> bool:
        """A server that was paused for longer than its lease finds its own run: the attempt it woke up with can write
        nothing more, and ends before the next one begins. False when its code does not stop."""
        mine = self._active.get(key)
        if mine is None or mine.run_id != run.id or mine.task is None:
            return True
        mine.lose()
        await asyncio.wait([mine.task], timeout=self._engine.settings.run_lease_seconds / 2)
        return mine.task.done()

    def _make_run(self, key: SessionKey, stored: models.Session, created: Run, turn: UserTurn) -> HostedRun:
        run_id = created.id
        app = self._apps[key[0]]
        root = app.root_agent
        translator = Translator(
            thread_id=key[2], run_id=run_id, state=stored.state, root_agent=root.name if root else None
        )
        return HostedRun(
            key,
            thread_id=thread_uuid(stored.thread_id),
            translator=translator,
            streams=TurnStreams(self._engine, thread_uuid(stored.thread_id), run_id=run_id),
            start_sequence=stored.last_sequence,
            message_ids=[message_id for message_id, _ in turn.earlier] + ([turn.message_id] if turn.message_id else []),
            stored=created,
            is_resumable=_is_resumable(app),
        )

    async def _execute(self, run: HostedRun, session: Session, run_input: RunAgentInput, turn: UserTurn | None) -> None:
        run.has_begun = True
        lease = self._engine.runs.leases.hold(run.fence, run.lose)
        try:
            # Whoever asked for it, a run has to do with the rows of its own app.
            with acting_for([run.key[0]]):
                await self._executor.execute(run, partial(self._runner_for, run, run_input), session, run_input, turn)
        finally:
            self._engine.runs.leases.drop(lease)
            run.fence.end()
            self._streamed_ids.forget(run.invocation_id)
            del self._active[run.key]


def _signalled_turn(resumption: Resumption, run_input: RunAgentInput, session: Session) -> UserTurn | None:
    """The answers with which a signal continues a run that waited for people; None when they were given before.

    The payload of the signal is the answer to the question; when there are several, it maps their ids to the answers.
    """
    questions = OpenCalls.of(session.events).questions
    if resumption.correlation_key != wait_key_of(questions):
        return None
    answers = resumption.payload if len(questions) > 1 else dict.fromkeys(questions, resumption.payload)
    if not isinstance(answers, dict):
        raise InvalidInputError(f"the payload must map each of {', '.join(sorted(questions))} to its answer")
    resume = [ResumeEntry(interrupt_id=one, status="resolved", payload=answer) for one, answer in answers.items()]
    return read_turn(run_input.model_copy(update={"resume": resume, "messages": []}), session.events)


def _is_busy(run_id: str) -> ConflictError:
    return ConflictError(f"run {run_id} is going on in this thread; connect to it, cancel it, or wait for its end")


def _is_resumable(app: App) -> bool:
    return bool(app.resumability_config and app.resumability_config.is_resumable)


def _kept_input(run_input: RunAgentInput) -> JsonObject:
    """What another server needs to go on: messages and state are in the thread."""
    kept: JsonObject = run_input.model_copy(update={"messages": [], "state": {}, "resume": None}).model_dump(
        mode="json", by_alias=True
    )
    return kept


def _with_plugin(app: App, plugin: BasePlugin) -> App:
    return app.model_copy(update={"plugins": [*app.plugins, plugin]})


def _new_input(run_input: RunAgentInput, turn: UserTurn, *, run_id: str) -> RunAgentInput:
    """The input as RUN_STARTED carries it: what is new, and every field that older clients insist on."""
    return RunAgentInput(
        thread_id=run_input.thread_id,
        run_id=run_id,
        state={},
        messages=turn.new_messages,
        tools=[],
        context=[],
        forwarded_props={},
        resume=run_input.resume,
    )


def _without_shown(delta: JsonObject, shown: JsonObject) -> JsonObject:
    return {key: value for key, value in delta.items() if not (key in shown and shown[key] == value)}
