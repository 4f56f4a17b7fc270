"""Runs: one execution of an agent on a thread, from its creation to its end.

A run's row changes in the transaction of the event that says so. The SQL function `run_transition_allowed` defines the
legal transitions; an illegal one is an `IllegalTransitionError` and changes nothing. A running run has a lease and an
attempt. The attempt fences every write: after another worker has claimed the run, or after a cancellation, the earlier
attempt gets a `LeaseLostError` and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, overload
from uuid import UUID

from cognizes.engine.concurrency import Sweeper, retry_while_unavailable
from cognizes.engine.database import Database
from cognizes.engine.database.documents import dump_json, dump_jsonb, escape_text
from cognizes.engine.database.notifications import PgNotifyListener
from cognizes.engine.errors import (
    ConflictError,
    DatabaseUnavailableError,
    EngineError,
    InvalidInputError,
    PoolTimeoutError,
)
from cognizes.engine.memory.consolidation import CONSOLIDATION_HANDLER
from cognizes.engine.memory.long_term import LongTermKey
from cognizes.engine.memory.memory import Memory
from cognizes.engine.memory.snapshot import MemorySnapshot
from cognizes.engine.models import JsonObject, JsonValue, Run, RunStatus, Session, new_id
from cognizes.engine.pulse.events import check_name, check_text
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.pulse.sessions import RunFence, Sessions, attempt_at, fenced_by, releasing
from cognizes.engine.runs.batcher import RunBatcher, RunClaim, RunEnd
from cognizes.engine.runs.context import InProcessRun, WriteMessage
from cognizes.engine.runs.leases import LeaseKeeper, RunNotifications, RunSweep, new_worker_id
from cognizes.engine.runs.queues import check_priority
from cognizes.engine.runs.run_rows import RunReader, attempt_span, checked_document, run_from_row
from cognizes.engine.runs.waits import Resumption, SignalOutcome, Wait, WaitKind, check_wait, read_resumption
from cognizes.engine.settings import Settings
from cognizes.engine.supervision import Supervisor
from cognizes.engine.telemetry import count_run_end, current_traceparent, observe_claim, observe_wait
from cognizes.engine.usage import Usage

logger = logging.getLogger(__name__)

CLIENT_LEASE = timedelta(hours=1)
"""The default lease of a run that a client executes, for example over REST: long enough without a heartbeat."""
CLIENT = "client"
"""The worker id of such a run."""
_LONGEST_BACKOFF = timedelta(minutes=5)
_OUTAGE_BACKOFF = timedelta(milliseconds=100)

# `list` is a method of the base class.
_Runs = list[Run]
_Result = TypeVar("_Result")


class Runs(RunReader):
    """Creates, claims, changes and ends runs; the base class reads them.

    Each write is sent again while PostgreSQL is unavailable, for `retry_seconds`, like an append. The id of its event
    marks it, so a write whose answer was lost counts once.
    """

    def __init__(
        self,
        database: Database,
        sessions: Sessions,
        *,
        memory: Memory,
        listener: PgNotifyListener,
        settings: Settings,
        supervisor: Supervisor,
        sweeper: Sweeper,
        write_message: WriteMessage,
        usage: Usage,
    ) -> None:
        super().__init__(database)
        self._sessions = sessions
        self._memory = memory
        self._settings = settings
        self._supervisor = supervisor
        self._write_message = write_message
        self._usage = usage
        self.worker_id = new_worker_id()
        self.notifications = RunNotifications(listener)
        self.sweep = RunSweep(database.without_tenants(), self.notifications, sweeper)
        self.leases = LeaseKeeper(
            database, self.notifications, seconds=settings.run_lease_seconds, supervisor=supervisor
        )
        self._batcher = RunBatcher(database, lease=self.leases.duration, release=self.release)

    async def close(self) -> None:
        """Answer the ends and claims that were submitted, and stop the sweep and the extension of leases."""
        await self.sweep.close()
        await self._batcher.close()
        await self.leases.close()

    # Creating and executing

    async def create(
        self, session: Session, *, run_id: str | None = None, running: bool = False, lease: timedelta = CLIENT_LEASE
    ) -> Run:
        """Create a run that the caller executes: pending, or running at once with a lease.

        The caller extends the lease with `heartbeat` or by progress of the run; when it expires, the run fails.
        """
        status = RunStatus.RUNNING if running else RunStatus.PENDING
        return await self._create(session, run_id, status, worker_id=CLIENT, lease=lease)

    async def enqueue(
        self,
        session: Session,
        handler: str,
        *,
        input: JsonValue = None,  # noqa: A002 - the usual word
        run_id: str | None = None,
        max_attempts: int | None = None,
        available_at: datetime | None = None,
        queue: str | None = None,
        priority: int = 0,
    ) -> Run:
        """Create a pending run for the workers that have this handler, claimable now or from a time on.

        A run without a `queue` is in the queue of its handler's name. Runs of a higher `priority` are claimed first.
        """
        return await self._create(
            session,
            run_id,
            RunStatus.PENDING,
            handler=check_name("handler", handler),
            input=input,
            max_attempts=max_attempts,
            available_at=available_at,
            queue=check_name("queue", queue) if queue is not None else "",
            priority=check_priority(priority),
        )

    async def begin_leased(
        self,
        session: Session,
        *,
        run_id: str | None = None,
        handler: str | None = None,
        input: JsonValue = None,  # noqa: A002
        max_attempts: int | None = None,
    ) -> Run:
        """Create a run that this process executes at once; the caller passes its fence to `leases.hold`."""
        return await self._create(
            session, run_id, RunStatus.RUNNING, handler=handler, input=input, max_attempts=max_attempts
        )

    @asynccontextmanager
    async def start(self, session: Session, *, run_id: str | None = None) -> AsyncIterator[InProcessRun]:
        """Create a run and execute it in a block: it ends completed, failed with the exception, or cancelled.

        `run.wait(...)` in the block waits durably: if the process dies, the run keeps waiting, and `resume` continues
        it.
        """
        async with self._execute_here(self.begin_leased(session, run_id=run_id)) as context:
            yield context

    @asynccontextmanager
    async def resume(self, thread_id: str | UUID, run_id: str) -> AsyncIterator[InProcessRun]:
        """Continue a pending run in a block: a run whose wait is over, or that was released."""
        async with self._execute_here(self.claim_one(thread_id, run_id)) as context:
            yield context

    @asynccontextmanager
    async def _execute_here(self, taking: Coroutine[Any, Any, Run]) -> AsyncIterator[InProcessRun]:
        run, session = await self._take(taking)
        fence = RunFence(UUID(run.thread_id), run.id, run.attempt)
        context = InProcessRun(self, run, session, fence)
        with attempt_span(run), fenced_by(fence):
            async with context:
                yield context

    async def _take(self, taking: Coroutine[Any, Any, Run]) -> tuple[Run, Session]:
        """Return a run that this process holds and its session; cancel the run if the caller is cancelled."""

        async def take() -> tuple[Run, Session]:
            run = await taking
            return run, await self._sessions.store.get_thread(run.thread_id)

        task = asyncio.create_task(take())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            if task.exception() is None:
                run, _ = task.result()
                await asyncio.shield(self.cancel(run.thread_id, run.id))
            raise

    async def begin(self, thread_id: str | UUID, run_id: str, *, lease: timedelta = CLIENT_LEASE) -> Run:
        """Start a pending run that the caller executes, with a lease. After a wait, apply its memory snapshot, once."""
        run = await self._claim_one(thread_uuid(thread_id), run_id, CLIENT, lease=lease, from_waiting=True)
        if run.last_wait is not None:
            session = await self._sessions.store.get_thread(run.thread_id)
            await self.until_available(lambda: self.restore(run, session))
        return run

    async def claim(self, handlers: Iterable[str], *, worker_id: str | None = None, limit: int = 1) -> _Runs:
        """Claim pending runs of these handlers, each with a lease, in the order in which they became due."""
        self.leases.start()
        wanted = tuple(sorted(set(handlers)))
        claimed = await self._batcher.claim(RunClaim(wanted, worker_id or self.worker_id, limit))
        for run in claimed:
            observe_claim(run.attempt, run.claimable_since, run.started_at)
        return claimed

    async def claim_one(self, thread_id: str | UUID, run_id: str, *, worker_id: str | None = None) -> Run:
        """Claim one pending run, whatever its handler. `ConflictError` when it is not pending."""
        self.leases.start()
        thread, worker = thread_uuid(thread_id), worker_id or self.worker_id
        return await self._claim_one(thread, run_id, worker, lease=self.leases.duration)

    async def _claim_one(
        self, thread_id: UUID, run_id: str, worker_id: str, *, lease: timedelta, from_waiting: bool = False
    ) -> Run:
        event_id = str(new_id())
        arguments = thread_id, run_id, worker_id, lease, event_id, from_waiting
        run = await self._write_run(thread_id, event_id, "claim_run", *arguments)
        if run is not None:
            observe_claim(run.attempt, run.claimable_since, run.started_at)
            return run
        # The answer was lost. The event names the attempt; the run may have been claimed again since then.
        event = await self.until_available(lambda: self._sessions.log.find(thread_id, event_id))
        assert event is not None  # noqa: S101 - the write was found by this event
        return replace(await self._read(thread_id, run_id), attempt=int(event.content["attempt"]))

    async def heartbeat(self, runs: Sequence[Run], *, lease: timedelta | None = None) -> _Runs:
        """Extend the leases of running runs, each by its own duration or by `lease`; return the runs still held.

        Stop executing the others.
        """
        keys = [UUID(run.thread_id) for run in runs], [run.id for run in runs], [run.attempt for run in runs]
        rows = await self._database.fetch("extend_leases", *keys, lease)
        held = {(str(row["thread_id"]), row["id"]) for row in rows}
        return [run for run in runs if (run.thread_id, run.id) in held]

    # Progress

    async def think(self, thread_id: str | UUID, run_id: str, thought: str) -> None:
        entry = {"thought": thought, "at": _now()}
        await self._progress(thread_id, run_id, "thought", entry, {"thought": thought})

    async def call_tool(self, thread_id: str | UUID, run_id: str, name: str, arguments: JsonValue) -> str:
        """Add a tool call; return its id for `finish_tool`."""
        call_id = str(new_id())
        entry = {"id": call_id, "tool_name": name, "input": arguments, "at": _now()}
        content = {"tool_call_id": call_id, "tool_name": name, "tool_input": arguments}
        await self._progress(thread_id, run_id, "act", entry, content)
        return call_id

    async def finish_tool(
        self, thread_id: str | UUID, run_id: str, call_id: str, output: JsonValue, *, is_error: bool = False
    ) -> None:
        entry = {"id": call_id, "output": output, "is_error": is_error, "finished_at": _now()}
        content = {"tool_call_id": call_id, "observation": output, "is_error": is_error}
        await self._progress(thread_id, run_id, "observe", entry, content)

    # Ending

    @overload
    async def finish(self, run: Run, *, result: JsonValue = None, event_id: str | None = None) -> Run: ...

    @overload
    async def finish(
        self, run: str | UUID, run_id: str, *, result: JsonValue = None, event_id: str | None = None
    ) -> Run: ...

    async def finish(
        self, run: Run | str | UUID, run_id: str | None = None, *, result: JsonValue = None, event_id: str | None = None
    ) -> Run:
        """End a running run as completed: a claimed run, or one by the ids of its thread and itself.

        A `Run` is ended only if its attempt still holds it. A caller that may repeat the call gives the `event_id`: it
        counts once.
        """
        document = self._document("the result of a run", result) if result is not None else None
        return await self._end(run, run_id, RunStatus.COMPLETED, result=document, event_id=event_id)

    @overload
    async def fail(self, run: Run, *, error: str, event_id: str | None = None) -> Run: ...

    @overload
    async def fail(self, run: str | UUID, run_id: str, *, error: str, event_id: str | None = None) -> Run: ...

    async def fail(
        self, run: Run | str | UUID, run_id: str | None = None, *, error: str, event_id: str | None = None
    ) -> Run:
        """End a run as failed, without another attempt; it is named as for `finish`."""
        return await self._end(run, run_id, RunStatus.FAILED, error=error, event_id=event_id)

    async def cancel(self, thread_id: str | UUID, run_id: str, *, event_id: str | None = None) -> Run:
        """End a run as cancelled; the process that executes it stops."""
        return await self._end(thread_id, run_id, RunStatus.CANCELLED, event_id=event_id)

    async def _end(
        self,
        run: Run | str | UUID,
        run_id: str | None,
        status: RunStatus,
        *,
        result: str | None = None,
        error: str | None = None,
        event_id: str | None = None,
    ) -> Run:
        attempt: int | None
        if isinstance(run, Run):
            thread, run_id, attempt = UUID(run.thread_id), run.id, run.attempt
        elif run_id is None:
            raise InvalidInputError("pass a Run, or the id of its thread and its own id")
        else:
            thread = thread_uuid(run)
            attempt = attempt_at(thread, run_id)
        content: JsonObject = {"run_id": run_id, "status": status}
        if error is not None:
            content["error"] = error
        end = RunEnd(
            thread,
            run_id,
            attempt,
            status,
            result,
            _escape(error),
            event_id or str(new_id()),
            dump_json(content),
            self._database.acting_apps,
        )
        with releasing(thread, run_id):
            ended = await self._once(thread, end.event_id, lambda: self._batcher.end(end))
        count_run_end(status)
        return ended or await self._read(thread, run_id)

    async def release(self, run: Run, *, cause: str | None = None, after_outage: bool = False) -> RunStatus:
        """Make a claimed run claimable again; return its status.

        With a cause the attempt counts as failed: the next one starts after a pause, and after the last the run fails.
        An attempt that ends `after_outage` of PostgreSQL does not count; the next one starts after the first pause.
        """
        thread_id, event_id = UUID(run.thread_id), str(new_id())
        backoff = timedelta(seconds=self._settings.run_backoff_seconds if cause is not None else 0)
        if after_outage:
            backoff = max(timedelta(seconds=self._settings.run_backoff_seconds), _OUTAGE_BACKOFF)
        arguments = thread_id, run.id, run.attempt, _escape(cause), backoff, _LONGEST_BACKOFF, event_id
        answer = await self._write_once(thread_id, event_id, "release_run", *arguments)
        status = RunStatus(answer) if answer is not None else (await self._read(thread_id, run.id)).status
        if status is RunStatus.FAILED:
            count_run_end(status)
        return status

    async def release_after_outage(self, run: Run) -> None:
        """Make a run claimable as soon as PostgreSQL is back; `LeaseLostError` if another process has claimed it."""
        await retry_while_unavailable(
            lambda: self.release(run, after_outage=True), errors=(DatabaseUnavailableError, PoolTimeoutError)
        )

    async def retry(self, thread_id: str | UUID, run_id: str) -> Run:
        """Make a failed run pending again, with all its attempts; finished steps stay finished."""
        run = await self.get(thread_id, run_id)
        if run.handler is None:
            raise ConflictError(f"run {run_id} has no handler, so no worker can try it again; start a new run")
        thread, event_id = UUID(run.thread_id), str(new_id())
        retried = await self._write_run(thread, event_id, "retry_run", thread, run_id, event_id)
        return retried or await self._read(thread, run_id)

    async def expire(self) -> int:
        """Release runs whose lease expired and end waits that are due, now; return how many runs changed."""
        return await self.sweep.sweep()

    async def remember(self, run: Run) -> None:
        """Write the episode of a run that has ended, unless it is a consolidation. A failure is logged."""
        if run.handler == CONSOLIDATION_HANDLER:
            return
        try:
            await self._memory.remember_run(run.thread_id, run.id)
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
        payload_results: Mapping[str, JsonValue] | None = None,
        memory_snapshot: JsonObject | None = None,
        long_term_keys: Iterable[LongTermKey] = (),
    ) -> Run:
        """Make a claimed run wait. A signal that arrived before ends the wait at once.

        After `expires_at` a timer fires; any other wait continues at `timeout_node`, or fails its run. Without a
        `memory_snapshot` one is taken of the session, with the names of the `long_term_keys`.
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
            session = await self._sessions.store.get_thread(run.thread_id)
            snapshot = await self._memory.snapshots.take(session, long_term_keys=long_term_keys)
            memory_snapshot = snapshot.to_json()
        await self.store_wait(fence, wait, memory_snapshot=memory_snapshot, suspend=True)
        return await self._read(fence.thread_id, run.id)

    async def store_wait(
        self, fence: RunFence, wait: Wait, *, memory_snapshot: JsonObject | None, suspend: bool
    ) -> bool:
        """Store a wait and its event. Return False when a kept signal ended it; without `suspend` the run then stays
        running."""
        event_id = str(new_id())
        with releasing(fence.thread_id, fence.run_id):
            status = await self._write_once(
                fence.thread_id,
                event_id,
                "wait_run",
                fence.thread_id,
                fence.run_id,
                fence.attempt,
                wait.kind,
                wait.correlation_key,
                _escape(wait.reason),
                wait.expires_at,
                wait.timeout_node,
                self._document("the resumption context", wait.to_context(memory_snapshot)),
                suspend,
                event_id,
                dump_json(wait.to_event(fence.run_id)),
            )
        # If the answer was lost, the event of the wait is stored: the run waits, or has waited.
        return status in ("waiting", None)

    async def signal(
        self,
        run_id: str,
        *,
        correlation_key: str,
        payload: JsonValue = None,
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
        return SignalOutcome(await self.until_available(lambda: self._database.fetch_value("signal_run", *arguments)))

    async def restore(self, run: Run, session: Session) -> Resumption | None:
        """Apply the memory snapshot of the last wait of a run that resumes, once; return what it continues with, with
        the episodes and the present values of its long-term keys. None when no wait of the run is over."""
        resumption = await read_resumption(self._database, run)
        if resumption is not None:
            observe_wait(resumption.kind, resumption.waited_from, resumption.waited_until)
            resumption.record_span(run)
        if resumption is None or resumption.memory_snapshot is None:
            return resumption
        snapshot = MemorySnapshot.from_json(resumption.memory_snapshot)
        kept_keys = await self._memory.snapshots.resume(session, snapshot, run_id=run.id)
        entries = await self._memory.snapshots.preload(session, snapshot)
        return replace(
            resumption,
            memory_snapshot=snapshot,
            kept_keys=kept_keys,
            episodic_tail=snapshot.episodic_tail,
            long_term={(entry.namespace, entry.key): entry.value for entry in entries},
        )

    async def resumption(self, run: Run) -> Resumption | None:
        """Read what a run continues with after its last wait, without applying its snapshot; None until then."""
        resumption = await read_resumption(self._database, run)
        if resumption is None or resumption.memory_snapshot is None:
            return resumption
        snapshot_id = str(resumption.memory_snapshot.get("id"))
        kept_keys = await self._memory.snapshots.kept_keys(UUID(run.thread_id), snapshot_id)
        return replace(resumption, kept_keys=kept_keys)

    # Writing once

    async def until_available(self, attempt: Callable[[], Awaitable[_Result]]) -> _Result:
        """Call an idempotent operation again while PostgreSQL is unavailable, for the time that an append gets."""
        return await retry_while_unavailable(attempt, seconds=self._settings.retry_seconds)

    async def _create(
        self,
        session: Session,
        run_id: str | None,
        status: RunStatus,
        *,
        handler: str | None = None,
        input: JsonValue = None,  # noqa: A002
        max_attempts: int | None = None,
        available_at: datetime | None = None,
        worker_id: str | None = None,
        lease: timedelta | None = None,
        queue: str = "",
        priority: int = 0,
    ) -> Run:
        if max_attempts is not None and max_attempts < 1:
            raise InvalidInputError("max_attempts must be at least 1")
        if available_at is not None and available_at.tzinfo is None:
            raise InvalidInputError("available_at has no time zone; use an aware datetime")
        thread_id = await self._sessions.store.find_thread(session)
        run_id = check_name("run_id", run_id) if run_id else str(new_id())
        content: JsonObject = {"run_id": run_id, "status": status, **({"handler": handler} if handler else {})}
        if status is RunStatus.RUNNING and lease is None:
            self.leases.start()
        event_id = str(new_id())
        created = await self._write_run(
            thread_id,
            event_id,
            "create_run",
            thread_id,
            run_id,
            status,
            handler,
            self._document("the input of a run", input),
            max_attempts or self._settings.run_attempts,
            available_at,
            worker_id or self.worker_id,
            lease or self.leases.duration,
            event_id,
            dump_json(content),
            queue,
            priority,
            current_traceparent(),
        )
        return created or await self._read(thread_id, run_id)

    async def _progress(
        self, thread_id: str | UUID, run_id: str, kind: str, entry: JsonObject, content: JsonObject
    ) -> None:
        thread, event_id = thread_uuid(thread_id), str(new_id())
        arguments = thread, run_id, kind, dump_jsonb(entry), event_id, dump_json(content), attempt_at(thread, run_id)
        await self._write_once(thread, event_id, "record_run_progress", *arguments)

    async def _read(self, thread_id: UUID, run_id: str) -> Run:
        """Read a run after a write whose answer was lost, for as long as the write would be retried."""
        return await self.until_available(lambda: self.get(thread_id, run_id))

    async def _write_run(self, thread_id: UUID, event_id: str, query: str, *arguments: Any) -> Run | None:
        """Write, and return the run; None when an earlier answer was lost."""
        row = await self._once(thread_id, event_id, lambda: self._database.fetch_row(query, *arguments))
        return run_from_row(row) if row is not None else None

    async def _write_once(self, thread_id: UUID, event_id: str, query: str, *arguments: Any) -> Any:
        """Write, and return the answer; None when an earlier answer was lost."""
        return await self._once(thread_id, event_id, lambda: self._database.fetch_value(query, *arguments))

    async def _once(self, thread_id: UUID, event_id: str, write: Callable[[], Awaitable[_Result]]) -> _Result | None:
        """Send a write until PostgreSQL answers. If it is refused but its event is stored, an answer was lost."""
        try:
            return await self.until_available(write)
        except (ConflictError, InvalidInputError):
            if await self.until_available(lambda: self._database.fetch_row("read_event", thread_id, event_id)) is None:
                raise
            return None

    def _document(self, what: str, value: Any) -> str:
        return checked_document(
            what, value, max_depth=self._settings.max_json_depth, max_bytes=self._settings.max_event_bytes
        )


def _escape(text: str | None) -> str | None:
    return escape_text(text) if text is not None else None


def _now() -> str:
    return datetime.now(UTC).isoformat()
