"""DurableRuns: runs that are claimed, wait, are signalled, die and go on.

Every write of an attempt is fenced inside its transaction: once another worker has claimed the run, or somebody has
cancelled it, the attempt that held it before changes nothing any more and gets a `LeaseLostError`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from cognizes.engine.database import Database
from cognizes.engine.database.documents import check_depth, dump_json, escape_text, text_bytes
from cognizes.engine.database.tenancy import continue_in_task
from cognizes.engine.errors import ConflictError, EngineError, InvalidInputError, LimitExceededError, NotFoundError
from cognizes.engine.memory.long_term import LongTermKey
from cognizes.engine.memory.memory import Memory
from cognizes.engine.memory.snapshot import MemorySnapshot
from cognizes.engine.models import JsonObject, Page, Run, RunStatus, Session, new_id
from cognizes.engine.pulse.events import check_name, check_text
from cognizes.engine.pulse.fencing import RunFence, fenced_by
from cognizes.engine.pulse.pg_notify_listener import PgNotifyListener
from cognizes.engine.pulse.runs import EVENT_OF_STATUS, Runs, run_from_row
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.pulse.sessions import Sessions
from cognizes.engine.pulse.state_manager import StateManager
from cognizes.engine.runs.doorbell import RunDoorbell
from cognizes.engine.runs.leases import LeaseKeeper
from cognizes.engine.runs.resumption import Resumption, make_context, read_resumption
from cognizes.engine.runs.run_context import InProcessRun
from cognizes.engine.runs.steps import Step, list_steps
from cognizes.engine.runs.turnover import Claiming, Ending, Turnover
from cognizes.engine.runs.waits import SignalOutcome, Wait, WaitKind, check_wait
from cognizes.engine.settings import Settings
from cognizes.engine.supervision import Supervisor

logger = logging.getLogger(__name__)

Found = list[Run]
Steps = list[Step]

_LONGEST_BACKOFF = timedelta(minutes=5)


def new_worker_id() -> str:
    """A name for who executes runs: where it is, and one of a kind."""
    return f"{socket.gethostname()}/{os.getpid()}/{new_id().hex[-8:]}"


class DurableRuns(Runs):
    """Everything `Runs` does, for one process at a time, and what it takes to do it with many that come and go."""

    def __init__(
        self,
        database: Database,
        manager: StateManager,
        sessions: Sessions,
        *,
        memory: Memory,
        listener: PgNotifyListener,
        settings: Settings,
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__(database, manager.sessions, retry_seconds=settings.retry_seconds)
        self.database = database
        self.manager = manager
        self.sessions = sessions
        self.memory = memory
        self.settings = settings
        self.doorbell = RunDoorbell(listener)
        self.supervisor = supervisor or Supervisor()
        self.leases = LeaseKeeper(
            database, self.doorbell, seconds=settings.run_lease_seconds, supervisor=self.supervisor
        )
        self._turnover = Turnover(database, lease=self.leases.duration, give_back=self.release)
        self.worker_id = new_worker_id()

    async def close(self) -> None:
        """Answers those who end or claim runs, and stops keeping leases."""
        await self._turnover.close()
        await self.leases.close()

    # A run from its creation to its end

    async def enqueue(
        self,
        session: Session,
        handler: str,
        *,
        input: Any = None,  # noqa: A002 - the word of the trade
        run_id: str | None = None,
        max_attempts: int | None = None,
        available_at: datetime | None = None,
    ) -> Run:
        """A pending run for the workers that know this handler, from now or from a moment on."""
        return await self._enqueue(
            session,
            run_id,
            RunStatus.PENDING,
            handler=check_name("handler", handler),
            input=input,
            max_attempts=max_attempts,
            available_at=available_at,
        )

    async def begin_leased(
        self,
        session: Session,
        *,
        run_id: str | None = None,
        handler: str | None = None,
        input: Any = None,  # noqa: A002
        max_attempts: int | None = None,
    ) -> Run:
        """A run that this process executes from the start, with a lease: its caller keeps it, see `leases`."""
        return await self._enqueue(
            session, run_id, RunStatus.RUNNING, handler=handler, input=input, max_attempts=max_attempts
        )

    @asynccontextmanager
    async def start(self, session: Session, *, run_id: str | None = None) -> AsyncIterator[InProcessRun]:
        """A run that is executed by the code of a block: it ends completed, failed with the exception, or cancelled.

        `run.wait(...)` inside waits durably: should the process die meanwhile, the run stays waiting, and `resume` goes
        on with it.
        """
        async with self._execute_here(self.begin_leased(session, run_id=run_id)) as context:
            yield context

    @asynccontextmanager
    async def resume(self, thread_id: str | UUID, run_id: str) -> AsyncIterator[InProcessRun]:
        """Goes on with a pending run in the code of a block: one whose wait is over, or that was given back."""
        async with self._execute_here(self._claim_whole(thread_uuid(thread_id), run_id)) as context:
            yield context

    async def _claim_whole(self, thread_id: UUID, run_id: str) -> Run:
        await self.claim_one(thread_id, run_id)
        return await self._get_changed(thread_id, run_id)

    @asynccontextmanager
    async def _execute_here(self, taking: Coroutine[Any, Any, Run]) -> AsyncIterator[InProcessRun]:
        run, session = await self._take(taking)
        fence = RunFence(UUID(run.thread_id), run.id, run.attempt)
        context = InProcessRun(self, run, session, fence)
        with fenced_by(fence):
            async with context:
                yield context

    async def _take(self, taking: Coroutine[Any, Any, Run]) -> tuple[Run, Session]:
        """A run that this process holds, and its session; one that came while its caller was cancelled ends so."""

        async def take() -> tuple[Run, Session]:
            run = await taking
            return run, await self.manager.sessions.get_thread(run.thread_id)

        task = continue_in_task(take())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            if task.exception() is None:
                run, _ = task.result()
                await asyncio.shield(self.cancel(run.thread_id, run.id))
            raise

    # For workers

    async def claim(self, handlers: Iterable[str], *, worker_id: str | None = None, limit: int = 1) -> list[Run]:
        """Takes pending runs of these handlers, each with a lease: those first that were due first, none that waits."""
        wanted = tuple(sorted(set(handlers)))
        return await self._turnover.claim(Claiming(wanted, worker_id or self.worker_id, limit))

    async def claim_one(self, thread_id: str | UUID, run_id: str, *, worker_id: str | None = None) -> int:
        """Takes one pending run, whatever its handler; its attempt. `ConflictError` when it is not pending."""
        thread, event_id = thread_uuid(thread_id), str(new_id())
        attempt: int | None = await self._write_once(
            thread, event_id, "claim_run", thread, run_id, worker_id or self.worker_id, self.leases.duration, event_id
        )
        if attempt is None:
            event = await self.until_available(lambda: self.manager.events.find(thread, event_id))
            assert event is not None  # noqa: S101 - the claim is known by its event
            attempt = int(event.content["attempt"])
        return attempt

    async def heartbeat(self, runs: Sequence[Run]) -> list[Run]:
        """Extends the leases of claimed runs; returns those that are still the caller's. Stop working on the others."""
        keys = [UUID(run.thread_id) for run in runs], [run.id for run in runs], [run.attempt for run in runs]
        rows = await self.database.fetch("extend_leases", *keys, self.leases.duration)
        held = {(str(row["thread_id"]), row["id"]) for row in rows}
        return [run for run in runs if (run.thread_id, run.id) in held]

    async def complete(self, run: Run, result: Any = None, *, event_id: str | None = None) -> Run:
        """Ends a claimed run with its result. Whoever may ask again, because an answer was lost, names the event."""
        document = self._document("the result of a run", result)
        return await self._end(run, RunStatus.COMPLETED, result=document, event_id=event_id)

    async def abandon(self, run: Run, *, error: str, event_id: str | None = None) -> Run:
        """Ends a claimed run as failed, without another attempt."""
        return await self._end(run, RunStatus.FAILED, error=error, event_id=event_id)

    async def release(self, run: Run, *, cause: str | None = None) -> RunStatus:
        """Gives a claimed run back. With a cause it counts as a failed attempt: the next one waits a while, and after
        the last the run fails with the cause."""
        thread_id, event_id = UUID(run.thread_id), str(new_id())
        status = await self._write_once(
            thread_id,
            event_id,
            "release_run",
            thread_id,
            run.id,
            run.attempt,
            escape_text(cause) if cause is not None else None,
            timedelta(seconds=self.settings.run_backoff_seconds),
            _LONGEST_BACKOFF,
            event_id,
        )
        return RunStatus(status) if status is not None else (await self._get_changed(thread_id, run.id)).status

    async def expire(self) -> int:
        """Frees the runs of silent workers, fires timers, hands messages over and ends waits that took too long."""
        released: int = await self.database.fetch_value("release_expired_leases")
        return released + await self.resume_due_waits()

    async def resume_due_waits(self) -> int:
        """The part of `expire` that concerns waiting runs."""
        resumed: int = await self.database.fetch_value("resume_due_waits")
        return resumed

    async def remember(self, run: Run) -> None:
        """Writes the episode of a run that has ended. Should that fail the run has ended all the same."""
        try:
            await self.memory.remember_run(run.thread_id, run.id)
        except EngineError as error:
            logger.warning("the episode of run %s could not be written: %s", run.id, error)

    # Waiting

    async def wait(
        self,
        run: Run,
        *,
        kind: str,
        correlation_key: str,
        reason: str | None = None,
        expires_at: datetime | None = None,
        timeout_node: str | None = None,
        cursor_node: str | None = None,
        plan_decision_id: str | None = None,
        payload_results: Mapping[str, Any] | None = None,
        memory_snapshot: JsonObject | None = None,
        long_term_keys: Iterable[LongTermKey] = (),
    ) -> Run:
        """Lets a claimed run wait, with what it wants back. A signal that came before ends the wait at once.

        When `expires_at` has passed a timer fires; any other wait goes on at `timeout_node`, or else fails its run.
        Without a `memory_snapshot` one is taken of the session, with the names of the `long_term_keys`.
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
        fence = RunFence(UUID(run.thread_id), run.id, run.attempt)
        if memory_snapshot is None:
            session = await self.manager.sessions.get_thread(run.thread_id)
            snapshot = await self.memory.snapshots.take(session, long_term_keys=long_term_keys)
            memory_snapshot = snapshot.to_json()
        await self.store_wait(fence, wait, memory_snapshot=memory_snapshot, suspend=True)
        return await self._get_changed(run.thread_id, run.id)

    async def store_wait(
        self, fence: RunFence, wait: Wait, *, memory_snapshot: JsonObject | None, suspend: bool
    ) -> bool:
        """Stores a wait and its event. False when a signal was there before; without `suspend` the run goes on."""
        context = make_context(
            payload_results=wait.payload_results,
            plan_decision_id=wait.plan_decision_id,
            cursor_node=wait.cursor_node,
            memory_snapshot=memory_snapshot,
        )
        event_id = str(new_id())
        with fence.letting_go():
            status = await self._write_once(
                fence.thread_id,
                event_id,
                "wait_run",
                fence.thread_id,
                fence.run_id,
                fence.attempt,
                wait.kind,
                wait.correlation_key,
                escape_text(wait.reason) if wait.reason is not None else None,
                wait.expires_at,
                wait.timeout_node,
                self._document("the resumption context", context),
                suspend,
                event_id,
                dump_json(wait.to_event(fence.run_id)),
            )
        # Without an answer the event of the wait is stored: the run waits, or has waited.
        return status in ("waiting", None)

    async def signal(
        self,
        run_id: str,
        *,
        correlation_key: str,
        payload: Any = None,
        thread_id: str | UUID | None = None,
        may_answer: Collection[WaitKind] | None = None,
    ) -> SignalOutcome:
        """End the wait for a key, now or as soon as the run waits for it. The same key again counts once.

        `may_answer` lists the kinds of wait that the sender may answer (None: all). PostgreSQL checks kind and key in
        the transaction that stores the signal, and keeps `may_answer` with a signal that arrives before the wait: a
        wait of another kind does not use it. `PermissionDeniedError` when the run waits for another kind,
        `ConflictError` when it waits for another key, or has ended: nothing changed.
        """
        check_text("correlation_key", correlation_key)
        run = await self.until_available(lambda: self.find(run_id, thread_id=thread_id))
        document = self._document("the payload of a signal", payload)
        kinds = sorted(may_answer) if may_answer is not None else None
        # The same id each time: PostgreSQL answers a signal that it has stored before with the same outcome.
        arguments = UUID(run.thread_id), run.id, correlation_key, document, kinds, str(new_id())
        return SignalOutcome(await self.until_available(lambda: self.database.fetch_value("signal_run", *arguments)))

    async def begin(self, thread_id: str | UUID, run_id: str) -> Run:
        """From pending to running. After a wait, the memory snapshot of the run is applied, once."""
        run = await super().begin(thread_id, run_id)
        if run.last_wait is not None:
            session = await self.manager.sessions.get_thread(run.thread_id)
            await self.until_available(lambda: self.restore(run, session))
        return run

    async def restore(self, run: Run, session: Session) -> Resumption | None:
        """Apply the memory snapshot of the last wait of a run that resumes, once; return what it continues with, with
        the episodes and the present values of its long-term keys. None when no wait of the run is over."""
        resumption = await read_resumption(self.database, run)
        if resumption is None or resumption.memory_snapshot is None:
            return resumption
        snapshot = MemorySnapshot.from_json(resumption.memory_snapshot)
        kept_keys = await self.memory.snapshots.resume(session, snapshot, run_id=run.id)
        entries = await self.memory.snapshots.preload(session, snapshot)
        return replace(
            resumption,
            memory_snapshot=snapshot,
            kept_keys=kept_keys,
            episodic_tail=snapshot.episodic_tail,
            long_term={(entry.namespace, entry.key): entry.value for entry in entries},
        )

    async def resumption(self, run: Run) -> Resumption | None:
        """Read what a run continues with after its last wait, without applying its snapshot; None until then."""
        resumption = await read_resumption(self.database, run)
        if resumption is None or resumption.memory_snapshot is None:
            return resumption
        snapshot_id = str(resumption.memory_snapshot.get("id"))
        kept_keys = await self.memory.snapshots.kept_keys(UUID(run.thread_id), snapshot_id)
        return replace(resumption, kept_keys=kept_keys)

    async def retry(self, thread_id: str | UUID, run_id: str) -> Run:
        """From failed to pending, with all its attempts; finished steps stay finished."""
        run = await self.get(thread_id, run_id)
        if run.handler is None:
            raise ConflictError(f"run {run_id} has no handler, so no worker could try it again; start a new one")
        content = dump_json({"run_id": run_id, "status": RunStatus.PENDING})
        thread, event_id = UUID(run.thread_id), str(new_id())
        change = (thread, run_id, RunStatus.PENDING, None, event_id, "run_retried", content, None)
        await self._write_once(thread, event_id, "change_run", *change)
        return await self._get_changed(thread_id, run_id)

    # Looking

    async def find(self, run_id: str, *, thread_id: str | UUID | None = None) -> Run:
        """A run by its id alone. Ids are unique in their thread: when two threads have it, name the thread."""
        if thread_id is not None:
            return await self.get(thread_id, run_id)
        runs = await self.find_all(run_id)
        if not runs:
            raise NotFoundError(f"there is no run {run_id}")
        if len(runs) > 1:
            raise ConflictError(f"several threads have a run {run_id}; say which one by thread_id")
        return runs[0]

    async def find_all(
        self, run_id: str, *, app_names: Collection[str] | None = None, user_id: str | None = None
    ) -> Found:
        """Return the runs of an id in all threads of some apps and of a user (None: all), newest first; up to 100."""
        apps = sorted(app_names) if app_names is not None else None
        return [run_from_row(row) for row in await self.database.fetch("find_runs", run_id, apps, user_id)]

    async def steps(self, thread_id: str | UUID, run_id: str) -> Steps:
        """What the run has begun and finished, in its order."""
        return await list_steps(self.database, thread_uuid(thread_id), run_id)

    async def search(
        self,
        *,
        status: Sequence[str] | None = None,
        app_name: str | None = None,
        user_id: str | None = None,
        handler: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Run]:
        """Runs of all threads, newest first, a page at a time."""
        after = _read_cursor(cursor) if cursor else (None, None, None)
        rows = await self.database.fetch(
            "search_runs", list(status) if status is not None else None, app_name, handler, *after, limit + 1, user_id
        )
        runs = [run_from_row(row) for row in rows[:limit]]
        return Page(items=runs, next_cursor=_cursor(runs[-1]) if len(rows) > limit else None)

    async def _enqueue(
        self,
        session: Session,
        run_id: str | None,
        status: RunStatus,
        *,
        handler: str | None,
        input: Any,  # noqa: A002
        max_attempts: int | None,
        available_at: datetime | None = None,
    ) -> Run:
        if max_attempts is not None and max_attempts < 1:
            raise InvalidInputError("max_attempts must be at least 1")
        if available_at is not None and available_at.tzinfo is None:
            raise InvalidInputError("available_at has no time zone; use an aware datetime")
        thread_id = await self.manager.sessions.find_thread(session)
        run_id = check_name("run_id", run_id) if run_id else str(new_id())
        is_leased = status is RunStatus.RUNNING
        content: JsonObject = {"run_id": run_id, "status": status, **({"handler": handler} if handler else {})}
        event_id = str(new_id())
        await self._write_once(
            thread_id,
            event_id,
            "enqueue_run",
            thread_id,
            run_id,
            status,
            handler,
            self._document("the input of a run", input),
            max_attempts or self.settings.run_attempts,
            available_at,
            self.worker_id if is_leased else None,
            self.leases.duration if is_leased else None,
            event_id,
            EVENT_OF_STATUS[status],
            dump_json(content),
        )
        return await self._get_changed(thread_id, run_id)

    async def _end(
        self,
        run: Run,
        status: RunStatus,
        *,
        result: str | None = None,
        error: str | None = None,
        event_id: str | None = None,
    ) -> Run:
        content: JsonObject = {"run_id": run.id, "status": status}
        if error is not None:
            content["error"] = error
        ending = Ending(
            UUID(run.thread_id),
            run.id,
            run.attempt,
            status,
            result,
            escape_text(error) if error is not None else None,
            event_id or str(new_id()),
            EVENT_OF_STATUS[status],
            dump_json(content),
        )
        ended = await self._once(ending.thread_id, ending.event_id, lambda: self._turnover.end(ending))
        return ended or await self._get_changed(run.thread_id, run.id)

    def _document(self, what: str, value: Any) -> str:
        try:
            text = dump_json(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInputError(f"{what} cannot be stored as JSON: {error}") from error
        check_depth(text, value, self.settings.max_json_depth)
        limit = self.settings.max_event_bytes
        if (size := text_bytes(text)) > limit:
            raise LimitExceededError(what, size=size, limit=limit, setting="COGNIZES_MAX_EVENT_BYTES")
        return text


def _cursor(run: Run) -> str:
    place = [run.created_at.isoformat(), run.thread_id, run.id]
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def _read_cursor(cursor: str) -> tuple[datetime, UUID, str]:
    try:
        moment, thread_id, run_id = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        return datetime.fromisoformat(moment), UUID(thread_id), str(run_id)
    except (ValueError, TypeError, AttributeError, binascii.Error) as error:
        raise InvalidInputError("the cursor is not one that a listing returned; begin without one") from error
