"""AgentHost: runs of hosted agents that belong to the server.

A request starts a run and then observes it, like any other observer. The run continues when the client leaves. A client
that connects later receives a snapshot and follows from there. One run at a time executes on a thread; a second one is
a `ConflictError`, because two answers at once would mix in one conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from ag_ui.core import AgentCapabilities as ProtocolCapabilities
from ag_ui.core import RunAgentInput

from cognizes.engine.agui.observation import Observation, started
from cognizes.engine.concurrency import KeyedLock, WakeUp, retry_while_unavailable
from cognizes.engine.database.documents import check_depth, dump_jsonb, load_jsonb
from cognizes.engine.engine import Engine
from cognizes.engine.errors import ConflictError, InvalidInputError, NotFoundError, OpenInterruptsError
from cognizes.engine.hosting.agent import (
    PROPERTIES,
    AgentCapabilities,
    HostedAgent,
    RunContext,
    ThreadKey,
    Turn,
    client_state_delta,
    describe_agent,
    handler_of,
    protocol_capabilities,
)
from cognizes.engine.hosting.hosted_run import HostedRun, RunExecutor
from cognizes.engine.hosting.inputs import PromptAttachments, check_attachments
from cognizes.engine.hosting.recovery import RunRecovery
from cognizes.engine.models import JsonObject, Run, RunStatus, RunWait, Session, new_id, new_thread_id, user_slot
from cognizes.engine.pulse.events import check_name, check_text, event_columns, join_state
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.pulse.sessions import RunFence
from cognizes.engine.runs.run_rows import checked_document, run_from_row
from cognizes.engine.settings import Settings
from cognizes.engine.telemetry import current_traceparent

_DISCONNECT_SECONDS = 2.0
_BUSY_SECONDS = 1.0


class AgentHost:
    """Executes agents on the server's engine, each run as a task of the host."""

    def __init__(self, engine: Engine, agents: Iterable[HostedAgent]) -> None:
        self._engine = engine
        self._agents = {agent.name: agent for agent in agents}
        self._active: dict[ThreadKey, HostedRun] = {}
        self._starting = KeyedLock()
        self._queue = InputQueue()
        self._recovery = RunRecovery(engine, self._agents, self._continue)
        self._executor = RunExecutor(engine, self._forget)
        self._is_closing = False
        self._beginning = 0

    @property
    def descriptions(self) -> dict[str, str]:
        return {name: agent.description for name, agent in self._agents.items()}

    def listing(self) -> list[JsonObject]:
        """Return the agents with what they can do, and what they cannot."""
        return [describe_agent(agent) for agent in self._agents.values()]

    def capabilities(self, name: str) -> ProtocolCapabilities:
        """Return the capabilities of an agent in the form of AG-UI; `NotFoundError` when there is no such agent."""
        return protocol_capabilities(self._agent(name))

    def start(self) -> None:
        """Extend leases, and begin to continue runs that lost their server."""
        self._engine.runs.leases.start()
        self._recovery.start()

    async def close(self, *, seconds: float) -> None:
        """Let runs finish for some seconds; then hand over those that another server can continue, and fail the others.

        Observers receive the end.
        """
        self._is_closing = True
        self._queue.changes.notify()
        await self._recovery.close()
        while self._beginning:
            # A run that is in the database is executed before it is stopped like the others.
            await self._queue.changes.wait(self._queue.changes.version)
        if tasks := self._tasks():
            await asyncio.wait(tasks, timeout=seconds)
        while tasks := self._tasks():
            for run in list(self._active.values()):
                run.cancel(by_server=True)
            await asyncio.wait(tasks)
        await self._executor.close()
        for agent in self._agents.values():
            await agent.close()

    async def run(self, name: str, user_id: str, run_input: RunAgentInput, *, is_end_user: bool = False) -> HostedRun:
        """Start a run; it is executing, and its row says so, when this returns.

        An end user may bring results of client tools, not of the long-running tools of the agent.
        """
        agent = self._agent(name)
        key = (name, user_id, run_input.thread_id)
        policy = RunPolicy.of(run_input.forwarded_props, self._engine.settings)
        with self._queue.join(key, policy.on_busy) as place:
            while True:
                seen = self._queue.changes.version
                elsewhere: ThreadBusyError | None = None
                # Held while the run begins, never while the input waits for the end of another run.
                async with self._starting.acquire(key):
                    if self._is_closing:
                        raise ConflictError(
                            "the server is about to stop and accepts no new runs; try again in a moment"
                        )
                    active = self._active.get(key)
                    if active is None and place.is_first:
                        self._beginning += 1
                        try:
                            run = await self._begin_run(agent, key, run_input, policy, is_end_user=is_end_user)
                        except ThreadBusyError as busy:
                            elsewhere = place.busy = busy
                        else:
                            run.cancels_on_disconnect = policy.on_disconnect is OnDisconnect.CANCEL
                            return run
                        finally:
                            self._beginning -= 1
                            self._queue.changes.notify()
                if active is not None:
                    await self._end_active(active, policy.on_busy)
                elif elsewhere is not None:
                    await self._end_elsewhere(key, elsewhere, policy.on_busy)
                elif policy.on_busy is OnBusy.REJECT and (waited_for := place.queue[0].busy):
                    raise ThreadBusyError(waited_for.run_id)
                else:
                    await self._queue.changes.wait(seen)

    async def _begin_run(
        self, agent: HostedAgent, key: ThreadKey, run_input: RunAgentInput, policy: RunPolicy, *, is_end_user: bool
    ) -> HostedRun:
        """Begin a run in the database and execute it; no other run of this process executes on its thread."""
        known: UUID | None = None
        attachments: PromptAttachments | None = None
        while True:
            try:
                turn = await agent.read_turn(run_input, key[1], is_end_user=is_end_user, thread_id=known)
            except InvalidInputError as error:
                # The input may be late: a run of another server has answered the same question.
                session = await self._engine.sessions.get(*key)
                if session and (elsewhere := await self._find_active_run(key[0], thread_uuid(session.thread_id))):
                    raise ThreadBusyError(elsewhere) from error
                raise
            if any(isinstance(message.content, list) for message in turn.new_messages):
                attachments = attachments or PromptAttachments(self._engine, Session(key[2], key[0], key[1]), room=0)
                await check_attachments(attachments, turn.new_messages)
            begun = await begin_hosted(
                self._engine,
                key,
                turn,
                run_id=run_input.run_id,
                input=_kept_input(run_input, turn, agent.capabilities),
                answered=[entry.interrupt_id for entry in run_input.resume or ()],
                withdraws=policy.on_busy is OnBusy.CANCEL,
            )
            if isinstance(begun, BegunRun):
                break
            known = begun.thread_id
            if known is None or begun.is_branched:
                turn.forget()
        context = await self._with_client_changes(begun, run_input)
        return self._start(agent, key, context, run_input, start_sequence=begun.sequence)

    async def _with_client_changes(self, begun: BegunRun, run_input: RunAgentInput) -> RunContext:
        run, session = begun.run, begun.session
        try:
            if delta := await self._client_changes(session, run_input):
                await self._engine.sessions.update(session, delta, author="user", run_id=run.id)
                session = await self._engine.sessions.store.get_thread(run.thread_id)
        except BaseException as error:
            await self._engine.runs.fail(run.thread_id, run.id, error=f"the run could not be started: {error!r}")
            raise
        return self._context(run, session, begun.turn)

    async def _end_active(self, active: HostedRun, on_busy: OnBusy) -> None:
        """Return when no run executes on the thread any more; `ThreadBusyError` when the policy is to refuse."""
        if on_busy is OnBusy.CANCEL:
            active.cancel()
        elif on_busy is OnBusy.REJECT and not active.is_ending:
            # The server may notice a moment later that the client of that run has left.
            limit = _DISCONNECT_SECONDS if active.cancels_on_disconnect else 0.0
            if not await active.wait(timeout=limit):
                raise ThreadBusyError(active.run_id)
        await active.wait()

    async def _end_elsewhere(self, key: ThreadKey, busy: ThreadBusyError, on_busy: OnBusy) -> None:
        """Cancel a run that another process executes on the thread, or wait a while for its end."""
        if on_busy is OnBusy.REJECT:
            if busy.is_waiting:
                raise busy
            await self._wait_for_departure(key, busy)
            return
        with self._engine.runs.notifications.subscribe(lambda _: True) as ended:
            seen = ended.version
            if on_busy is OnBusy.CANCEL:
                session = await self._engine.sessions.get(*key)
                if session is not None and await self._cancel_run(session, busy.run_id):
                    return
            await ended.wait(seen, timeout=_BUSY_SECONDS)

    async def _wait_for_departure(self, key: ThreadKey, busy: ThreadBusyError) -> None:
        """Return when a run of another process that ends with its clients has ended; raise `busy` if it does not.

        That process may notice a moment later that the client has left.
        """
        session = await self._engine.sessions.get(*key)
        deadline = asyncio.get_running_loop().time() + _DISCONNECT_SECONDS
        with self._engine.runs.notifications.subscribe(lambda _: True) as changed:
            while session is not None:
                seen = changed.version
                run = await self._engine.runs.get(session.thread_id, busy.run_id)
                if run.status is not RunStatus.RUNNING:
                    return
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0 or run.handler != handler_of(key[0]) or not self._ends_with_clients(run):
                    raise busy
                await changed.wait(seen, timeout=left)

    def _ends_with_clients(self, run: Run) -> bool:
        given = run.input.get("forwardedProps") if isinstance(run.input, dict) else None
        return RunPolicy.of(given, self._engine.settings).on_disconnect is OnDisconnect.CANCEL

    async def watch(self, run: HostedRun) -> Observation:
        with run.observed():
            async with aclosing(run.log.follow()) as frames:
                async for number, frame in frames:
                    yield number, frame

    async def connect(self, name: str, user_id: str, thread_id: str, *, run_id: str) -> Observation:
        """Yield a snapshot of a thread, then the rest of its active run; without one, a run `run_id` that ends."""
        self.check_agent(name)
        observer = self._engine._observer
        if run := self._active.get((name, user_id, thread_id)):
            first = started(thread_id, run.run_id)
            with run.observed():
                frames = observer.observe_active(run.thread_id, run.log, first, after=run.start_sequence)
                async with aclosing(frames):
                    async for item in frames:
                        yield item
            return
        session = await self._engine.sessions.get(name, user_id, thread_id)
        thread = thread_uuid(session.thread_id) if session else None
        elsewhere = await self._find_active_run(name, thread) if thread else None
        frames = observer.observe_thread(thread, started(thread_id, elsewhere or run_id))
        async with aclosing(frames):
            async for item in frames:
                yield item

    async def cancel(self, name: str, user_id: str, thread_id: str, *, run_id: str | None = None) -> bool:
        """Cancel the run of a thread (with `run_id` only that run) and wait for its end; False when there is none."""
        self.check_agent(name)
        run = self._active.get((name, user_id, thread_id))
        if run is None:
            return await self._cancel_elsewhere(name, user_id, thread_id, run_id)
        if run.task is None or (run_id is not None and run_id not in (run.run_id, run.asked_id)):
            return False
        is_cancelled = run.cancel()
        await run.wait()
        return is_cancelled

    def check_agent(self, name: str) -> None:
        """Raise `NotFoundError` when there is no such agent."""
        self._agent(name)

    def _agent(self, name: str) -> HostedAgent:
        if (agent := self._agents.get(name)) is None:
            raise NotFoundError(f"there is no agent {name!r}; there is {', '.join(self._agents)}")
        return agent

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [run.task for run in self._active.values() if run.task is not None]

    def _start(
        self,
        agent: HostedAgent,
        key: ThreadKey,
        context: RunContext,
        run_input: RunAgentInput,
        *,
        start_sequence: int | None = None,
    ) -> HostedRun:
        run = HostedRun(agent, key, context, run_input, asked_id=run_input.run_id)
        if start_sequence is not None:
            run.start_sequence = start_sequence
        run.begin()
        self._active[key] = run
        run.task = self._executor.begin(run)
        return run

    def _forget(self, run: HostedRun) -> None:
        del self._active[run.key]

    async def _find_active_run(self, name: str, thread_id: UUID) -> str | None:
        found: str | None = await self._engine._database.fetch_value("find_active_run", thread_id, handler_of(name))
        return found

    def _context(self, run: Run, session: Session, turn: Turn) -> RunContext:
        fence = RunFence(thread_uuid(run.thread_id), run.id, run.attempt)
        capabilities = self._agent(session.app_name).capabilities
        return RunContext(self._engine, run, session, fence, turn, capabilities=capabilities)

    async def _client_changes(self, session: Session, run_input: RunAgentInput) -> JsonObject:
        """Return what the client itself changed. It sends its whole state each time, and a tab that missed a turn sends
        an old one: a value that it received with the newest message it knows, or later, is not a change."""
        delta = client_state_delta(run_input.state, session.state)
        if not delta:
            return {}
        thread_id = thread_uuid(session.thread_id)
        known = [message.id for message in run_input.messages]
        newest: int = await self._engine._database.fetch_value("find_newest_message", thread_id, known)
        # The state of the session alone: the history of user: and app: keys may be deleted.
        past = await self._engine.sessions.time_travel.session_at(thread_id, sequence=newest)
        delta = _without_known(delta, past.state)
        async for item in self._engine._debug.iterate_history(thread_id, after_version=past.version):
            delta = _without_known(delta, item["delta"])
        return delta

    async def _cancel_elsewhere(self, name: str, user_id: str, session_id: str, run_id: str | None) -> bool:
        """Cancel a run of the thread that another process executes, which notices at once, or that waits."""
        session = await self._engine.sessions.get(name, user_id, session_id)
        if session is None:
            return False
        thread_id = thread_uuid(session.thread_id)
        waiting = await self._engine._database.fetch("find_waiting_runs", thread_id, handler_of(name))
        active = [await self._find_active_run(name, thread_id), *(row["id"] for row in waiting)]
        found = next((one for one in active if one is not None and run_id in (None, one)), None)
        return found is not None and await self._cancel_run(session, found)

    async def _cancel_run(self, session: Session, run_id: str) -> bool:
        """Cancel a run that this process does not execute; False when it has ended."""
        try:
            await self._engine.runs.cancel(session.thread_id, run_id)
        except ConflictError:
            return False
        return True

    async def _continue(self, run: Run) -> str | None:
        """Continue a claimed run whose server stopped. Return why its agent cannot; None when it executes.

        The answer of the run until then is kept in any case.
        """
        session = await self._engine.sessions.store.get_thread(run.thread_id)
        key = (session.app_name, session.user_id, session.id)
        if not await self._leave_own(key, run):
            await self._engine.runs.release(run)
            return None
        await self._engine.streams.interrupt_run(thread_uuid(run.thread_id), run.id)
        while True:
            async with self._starting.acquire(key):
                active = self._active.get(key)
                if active is None:
                    return await self._continue_on(key, run, session)
            # A run of an earlier version began on the thread in between.
            await active.wait()

    async def _continue_on(self, key: ThreadKey, run: Run, session: Session) -> str | None:
        # Before the agent reads the session: the snapshot restores state.
        resumption = await self._engine.runs.restore(run, session)
        if resumption is not None:
            session = await self._engine.sessions.store.get_thread(run.thread_id)
        agent = self._agent(key[0])
        run_input = RunAgentInput.model_validate(run.input)
        try:
            turn = await agent.read_continuation(run, run_input, session, resumption=resumption)
        except InvalidInputError as refused:
            return f"the signal does not answer the questions of the run: {refused}"
        if turn is None:
            return ORPHANED
        self._start(agent, key, self._context(run, session, turn), run_input)
        return None

    async def _leave_own(self, key: ThreadKey, run: Run) -> bool:
        """Stop the attempt of this process before the next one begins: a server that was paused for longer than its
        lease claims its own run. False when the code of the attempt does not stop."""
        mine = self._active.get(key)
        if mine is None or mine.run_id != run.id or mine.task is None:
            return True
        mine.lose()
        await asyncio.wait([mine.task], timeout=self._engine.settings.run_lease_seconds / 2)
        return mine.task.done()


ORPHANED = "the server that executed the run stopped; its answer until then is kept"


class OnDisconnect(StrEnum):
    """What happens to a run when the last client that follows it leaves."""

    CONTINUE = "continue"
    CANCEL = "cancel"


class OnBusy(StrEnum):
    """What happens to an input on a thread whose run executes: refused, accepted after that run, or instead of it."""

    REJECT = "reject"
    QUEUE = "queue"
    CANCEL = "cancel"


@dataclass(frozen=True)
class RunPolicy:
    on_disconnect: OnDisconnect = OnDisconnect.CONTINUE
    on_busy: OnBusy = OnBusy.REJECT

    @classmethod
    def of(cls, props: Any, settings: Settings) -> RunPolicy:
        """Return the policy of a request by its `forwardedProps`; the settings hold for what they do not say."""
        given = props.get(PROPERTIES) if isinstance(props, dict) else None
        if given is not None and not isinstance(given, dict):
            raise InvalidInputError(f"forwardedProps.{PROPERTIES} must be an object")
        asked: dict[str, Any] = given or {}
        try:
            return cls(
                OnDisconnect(asked.get("onDisconnect", settings.on_disconnect)),
                OnBusy(asked.get("onBusy", settings.on_busy)),
            )
        except ValueError as error:
            raise InvalidInputError(
                f"invalid forwardedProps.{PROPERTIES}: {error}; onDisconnect is continue or cancel, "
                "onBusy is reject, queue or cancel"
            ) from error


class InputQueue:
    """The inputs that wait until their thread is free, in the order in which their runs begin.

    An input that cancels other runs goes before those that wait for the end of runs.
    """

    def __init__(self) -> None:
        self.changes = WakeUp()
        self._waiting: dict[ThreadKey, list[QueuedInput]] = {}

    @contextmanager
    def join(self, key: ThreadKey, on_busy: OnBusy) -> Iterator[QueuedInput]:
        queue = self._waiting.setdefault(key, [])
        place = len(queue)
        if on_busy is OnBusy.CANCEL:
            place = next((i for i, item in enumerate(queue) if item.on_busy is not OnBusy.CANCEL), place)
        joined = QueuedInput(queue, on_busy)
        queue.insert(place, joined)
        try:
            yield joined
        finally:
            queue.remove(joined)
            if not queue:
                del self._waiting[key]
            self.changes.notify()


@dataclass(eq=False)
class QueuedInput:
    """The place of an input among those that wait on its thread. `busy`: a run of another process keeps it waiting."""

    queue: list[QueuedInput]
    on_busy: OnBusy
    busy: ThreadBusyError | None = None

    @property
    def is_first(self) -> bool:
        return self.queue[0] is self


class ThreadBusyError(ConflictError):
    """Another run executes on the thread, or waits for something else than a person."""

    def __init__(self, run_id: str, *, wait: RunWait | None = None) -> None:
        does = "executes on this thread"
        if wait is not None:
            does = f"waits for a {wait.kind} ({wait.correlation_key}), which no input can end"
        super().__init__(f"run {run_id} {does}; connect to it, cancel it, or wait for its end")
        self.run_id = run_id
        self.is_waiting = wait is not None


@dataclass(frozen=True)
class BegunRun:
    """A run that has begun: its session, its turn, and the sequence number of its first event."""

    run: Run
    session: Session
    turn: Turn
    sequence: int


@dataclass(frozen=True)
class MovedThread:
    """A thread that is not as its turn was read: it exists, was deleted (None), or has other events.

    With branches or hidden events, a cached turn may contain what the thread does not show any more.
    """

    thread_id: UUID | None
    is_branched: bool = False


async def begin_hosted(
    engine: Engine,
    key: ThreadKey,
    turn: Turn,
    *,
    run_id: str = "",
    input: Any = None,  # noqa: A002
    answered: Sequence[str] = (),
    withdraws: bool = False,
) -> BegunRun | MovedThread:
    """Begin a run of a hosted agent in one round trip: create its thread if there is none, and store the turn.

    Runs of the agent that wait for a person end: completed when `answered` names questions, cancelled when the input
    `withdraws` them. `ConflictError` when another run executes on the thread, when the run that asked was cancelled, or
    when a run waits and the input has no answer for it.
    """
    runs, settings = engine.runs, engine.settings
    app_name, user_id = check_name("app_name", key[0]), check_name("user_id", key[1])
    columns = event_columns(turn.events, settings)
    if len(set(columns.ids)) < len(columns.ids):
        raise InvalidInputError("two messages of the input have one id; give every message an id of its own")
    state = dump_jsonb(turn.initial_state) if turn.initial_state else None
    if state is not None:
        check_depth(state, turn.initial_state, settings.max_json_depth)
    arguments = (
        app_name,
        user_id,
        check_session_id(key[2]),
        turn.thread_id,
        new_thread_id(user_slot(app_name, user_id)),
        state,
        turn.expected_sequence,
        turn.is_cached,
        check_name("run_id", run_id) if run_id else str(new_id()),
        str(new_id()),
        handler_of(app_name),
        checked_document(
            "the input of a run", input, max_depth=settings.max_json_depth, max_bytes=settings.max_event_bytes
        ),
        settings.run_attempts,
        runs.worker_id,
        runs.leases.duration,
        str(new_id()),
        list(answered),
        withdraws,
        current_traceparent(),
        *columns.arguments(),
        settings.snapshot_every,
        settings.max_state_bytes,
    )
    row = await retry_while_unavailable(
        lambda: engine._database.fetch_row("start_hosted_run", *arguments), seconds=settings.retry_seconds
    )
    assert row is not None  # noqa: S101 - the function returns one row
    match row["outcome"]:
        case "moved":
            return MovedThread(row["started_thread_id"], is_branched=bool(row["is_branched"]))
        case "busy":
            raise ThreadBusyError(row["id"], wait=run_from_row(row).wait)
        case "waiting":
            raise OpenInterruptsError(row["id"], (row["wait_key"] or "").split(","), reason=row["wait_reason"])
        case "withdrawn":
            raise ConflictError(f"run {row['id']}, which asked, was cancelled with its question; connect again")
    states = (load_jsonb(row[name] or "{}") for name in ("state", "user_state", "app_state"))
    run = run_from_row(row)
    session = Session(
        key[2],
        app_name,
        user_id,
        thread_id=run.thread_id,
        state=join_state(*states),
        version=row["version"],
        last_sequence=row["last_sequence"],
        user_version=row["user_version"],
        app_version=row["app_version"],
    )
    for event in turn.events:
        event.thread_id, event.run_id, event.invocation_id = run.thread_id, run.id, run.id
    begun = turn.begun(session, is_branched=row["is_branched"])
    return BegunRun(run, session, begun, row["begun_sequence"])


def check_session_id(session_id: str) -> str:
    """Return the id of a session; `InvalidInputError` for one that is blank."""
    if not check_text("threadId", session_id).strip():
        raise InvalidInputError("threadId is blank; give the thread a name")
    return session_id


def _kept_input(run_input: RunAgentInput, turn: Turn, can: AgentCapabilities) -> JsonObject:
    """Return what another server needs to continue: the state is in the thread, and so are messages and answers, unless
    the agent stores them itself."""
    messages = (list(turn.new_messages) or run_input.messages[-1:]) if can.keeps_own_history else []
    resume = run_input.resume if can.keeps_own_history else None
    kept: JsonObject = run_input.model_copy(update={"messages": messages, "state": {}, "resume": resume}).model_dump(
        mode="json", by_alias=True
    )
    return kept


def _without_known(delta: JsonObject, known: JsonObject) -> JsonObject:
    return {key: value for key, value in delta.items() if not (key in known and known[key] == value)}
