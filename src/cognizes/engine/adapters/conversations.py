"""What the adapters that store a framework's conversation in a session share: new events, safe writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

import asyncpg

from cognizes.engine.concurrency import retry_while_unavailable
from cognizes.engine.database.documents import load_json
from cognizes.engine.database.notifications import DEFAULT_CHANNEL
from cognizes.engine.engine import Engine
from cognizes.engine.errors import LeaseLostError
from cognizes.engine.models import Event, JsonObject, new_id
from cognizes.engine.pulse.events import EventColumns
from cognizes.engine.pulse.group_commit import event_notification
from cognizes.engine.pulse.sessions import fence_of_thread

_Result = TypeVar("_Result")


def new_event(kind: str, *, author: str, content: JsonObject) -> Event:
    """Return an event with an id, so that a second attempt to store it is recognized."""
    return Event(id=str(new_id()), thread_id="", invocation_id="", author=author, event_type=kind, content=content)


def event_of_row(row: asyncpg.Record) -> Event:
    """Return the event of a row of `read_session_items` or `pop_event`."""
    return Event(
        id=row["id"],
        thread_id=str(row["thread_id"]),
        invocation_id="",
        author=row["author"],
        event_type=row["event_type"],
        content=load_json(row["content"]),
        actions={} if row["actions"] == "{}" else load_json(row["actions"]),
        created_at=row["created_at"],
        sequence_num=row["sequence_num"],
    )


@dataclass
class WriteAttempt:
    """The state of a write that is repeated while PostgreSQL is away: `is_repeated` from the second attempt on."""

    is_repeated: bool = False

    def repeat(self) -> None:
        self.is_repeated = True


async def write(engine: Engine, attempt: Callable[[WriteAttempt], Awaitable[_Result]]) -> _Result:
    """Write, and repeat while PostgreSQL is away. A cancelled caller first waits for the outcome of the write."""
    state = WriteAttempt()
    writing = asyncio.ensure_future(
        retry_while_unavailable(
            lambda: attempt(state), seconds=engine.settings.retry_seconds, before_retry=state.repeat
        )
    )
    try:
        return await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        if not writing.cancelled():
            writing.exception()  # the cancellation is the error to report
        raise


def notify_events(engine: Engine, columns: EventColumns, row: asyncpg.Record, *, run_id: str | None) -> None:
    """Notify subscribers of the events that `append_to_sessions` has committed."""
    thread_id: UUID = row["thread_id"]
    stored = zip(columns.ids, columns.authors, columns.kinds, row["sequence_nums"], row["created_ats"], strict=True)
    for event_id, author, kind, sequence_num, created_at in stored:
        payload = event_notification(
            event_id=event_id,
            thread_id=thread_id,
            sequence_num=sequence_num,
            run_id=run_id,
            author=author,
            event_type=kind,
            created_at=created_at,
        )
        engine._notifier.notify(DEFAULT_CHANNEL, payload)
        engine._database.note_sequence(thread_id, sequence_num)


Fence = tuple[str | None, int | None]


def fence_arguments(thread_id: UUID | None) -> Fence:
    """Return the run and the attempt with which the calling task writes to a thread, if it executes a run there."""
    fence = fence_of_thread(thread_id) if thread_id is not None else None
    return (fence.run_id, fence.attempt) if fence is not None else (None, None)


def check_status(status: str | None) -> None:
    """Raise `LeaseLostError` for the status of a write that its fence refused."""
    if status == "fenced":
        raise LeaseLostError("this attempt no longer holds its run; nothing was stored; stop executing it")
