"""The rows that say which streams are open and what became of the others. They are in PostgreSQL with every backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import asyncpg

from cognizes.engine.concurrency import retry_while_unavailable
from cognizes.engine.database import Database
from cognizes.engine.database.documents import load_json, unescape_text
from cognizes.engine.errors import ConflictError, NotFoundError
from cognizes.engine.models import Event
from cognizes.engine.pulse.events import append_item
from cognizes.engine.pulse.fencing import attempt_at
from cognizes.engine.pulse.group_commit import AppendItem
from cognizes.engine.pulse.state import ScopedDelta
from cognizes.engine.settings import Settings
from cognizes.engine.streams.delta_stream import THOUGHT, StreamKey, StreamStatus

_KIND_OF_ROLE = {
    "assistant": "assistant_message",
    "user": "user_message",
    "system": "system_message",
    "tool": "observe",
    THOUGHT: "thought",
}
ROLES = tuple(_KIND_OF_ROLE)
_NO_LIMIT = 1 << 40
_Call = Callable[[], Awaitable[asyncpg.Record | None]]


@dataclass(frozen=True)
class StreamRow:
    """One row of `message_streams`."""

    key: StreamKey
    role: str
    author: str
    run_id: str | None
    status: StreamStatus
    owner: UUID | None
    final_sequence: int | None


@dataclass(frozen=True)
class Ending:
    """How a stream shall end: with which text, cut into chunks of which lengths."""

    status: StreamStatus
    final_sequence: int
    text: str
    lengths: bytes
    finish_reason: str | None = None


@dataclass(frozen=True)
class EndAnswer:
    """What became of an attempt to end a stream; `answer` is one of those of the SQL function `end_stream`."""

    answer: str
    status: StreamStatus | None
    final_sequence: int | None


@dataclass(frozen=True)
class StoredBody:
    """A stored message: its text, and how it was cut if it was streamed."""

    text: str
    status: StreamStatus
    final_sequence: int | None
    lengths: bytes | None


class StreamRows:
    """Opens, ends and finds streams."""

    def __init__(self, database: Database, settings: Settings, *, checks_chunks: bool) -> None:
        self._database = database
        self._settings = settings
        self._checks_chunks = checks_chunks
        self._lease = timedelta(seconds=settings.stream_lease_seconds)
        self._idle = timedelta(seconds=settings.stream_idle_seconds)

    async def open(
        self,
        key: StreamKey,
        *,
        role: str,
        author: str,
        run_id: str | None,
        invocation_id: str,
        owner: UUID | None,
    ) -> str:
        """A row for a message to come; returns the app's name."""

        async def call() -> asyncpg.Record | None:
            lease = self._idle if owner is None else self._lease
            return await self._database.fetch_row(
                "open_stream", key.thread_id, key.message_id, role, author, run_id, invocation_id, owner, lease
            )

        # A resend of ours is known by its owner. Without one a second answer could not be told from a second producer.
        row = await (call() if owner is None else self._patiently(call))
        assert row is not None  # noqa: S101 - the function always answers
        if row["status"] == "missing":
            raise NotFoundError(f"there is no thread {key.thread_id}; it was deleted or never created")
        if row["status"] == "taken":
            raise ConflictError(
                f"the message {_short(key.message_id)} is there already, or is being written by somebody else; "
                "leave the message_id out or choose another"
            )
        app_name: str = row["app_name"]
        return app_name

    async def end(
        self,
        row: StreamRow,
        ending: Ending,
        *,
        owner: UUID | None = None,
        only_expired: bool = False,
        settles: bool = False,
        refresh: Callable[[], Awaitable[Ending]] | None = None,
    ) -> EndAnswer:
        """Stores the message with its event and ends the stream, all or nothing; again answers the same.

        With `settles` only the stream ends: another process stored the message. `refresh` reads the ending again before
        each retry while PostgreSQL is away.
        """
        item = self._item(row, ending, settles=settles)
        is_retry = False
        # A whole answer is the run's; what was cut off was heard already, and is kept whoever has the run now.
        is_answer = row.run_id is not None and ending.status is StreamStatus.COMPLETED
        attempt = attempt_at(row.key.thread_id, row.run_id) if is_answer and row.run_id else None

        async def call() -> asyncpg.Record | None:
            nonlocal ending, item, is_retry
            if is_retry and refresh is not None:
                ending = await refresh()
                item = self._item(row, ending, settles=settles)
            is_retry = True
            return await self._database.fetch_row(
                "end_stream",
                row.key.thread_id,
                row.key.message_id,
                ending.status,
                ending.final_sequence,
                ending.lengths,
                item.event_type if item else None,
                item.content if item else "{}",
                item.text if item else None,
                owner,
                only_expired,
                settles,
                self._checks_chunks,
                self._settings.snapshot_every,
                row.run_id,
                attempt,
            )

        answer = await self._patiently(call)
        assert answer is not None  # noqa: S101 - the function always answers
        return EndAnswer(
            answer["status"],
            StreamStatus(answer["end_status"]) if answer["end_status"] else None,
            answer["final_sequence"],
        )

    def _item(self, row: StreamRow, ending: Ending, *, settles: bool) -> AppendItem | None:
        # An interrupted stream in which nothing was said leaves no empty message.
        if settles or not (ending.text or ending.status is StreamStatus.COMPLETED):
            return None
        return append_item(
            _event(row, ending),
            ScopedDelta(),
            thread_id=row.key.thread_id,
            expected_version=None,
            # What was cut off is kept, however long it had become.
            max_bytes=self._settings.max_event_bytes if ending.status is StreamStatus.COMPLETED else _NO_LIMIT,
            max_depth=self._settings.max_json_depth,
        )

    async def find(self, key: StreamKey) -> StreamRow | None:
        """One row."""
        row = await self._database.fetch_row("find_stream", key.thread_id, key.message_id)
        return _row(row) if row else None

    async def find_open(self, keys: Sequence[StreamKey]) -> set[StreamKey]:
        """Which of these are being streamed."""
        threads, ids = [key.thread_id for key in keys], [key.message_id for key in keys]
        rows = await self._database.fetch("find_open_streams", threads, ids)
        return {StreamKey(row["thread_id"], row["message_id"]) for row in rows}

    async def list_streams(self, thread_ids: Sequence[UUID], *, ended_within: float = 0.0) -> list[StreamRow]:
        """What is streaming in these threads, and what ended there within so many seconds."""
        window = timedelta(seconds=ended_within)
        return [_row(row) for row in await self._database.fetch("list_streams", list(thread_ids), window)]

    async def list_silent(self, *, grace: float, limit: int) -> list[StreamRow]:
        """Open streams whose lease ran out, but none within so many seconds after the server's start."""
        rows = await self._database.fetch("list_silent_streams", timedelta(seconds=grace), limit)
        return [_row(row) for row in rows]

    async def extend(self, owner: UUID, keys: Sequence[StreamKey]) -> set[StreamKey]:
        """Extends the leases of streams of a process; returns which are still its own."""
        threads, ids = [key.thread_id for key in keys], [key.message_id for key in keys]
        rows = await self._database.fetch("extend_stream_leases", threads, ids, owner, self._lease)
        return {StreamKey(row["thread_id"], row["message_id"]) for row in rows}

    async def read_body(self, key: StreamKey) -> StoredBody | None:
        """A message that is stored, streamed or not; also an ended stream that left none."""
        row = await self._database.fetch_row("read_body", key.thread_id, key.message_id)
        if row is None or (row["content"] is None and row["final_sequence"] is None):
            return None
        return StoredBody(
            load_json(row["thought"]).get("thought", "") if row["thought"] else unescape_text(row["content"] or ""),
            StreamStatus(row["status"]) if row["final_sequence"] is not None else StreamStatus.COMPLETED,
            row["final_sequence"],
            row["chunk_lengths"],
        )

    async def _patiently(self, call: _Call) -> asyncpg.Record | None:
        return await retry_while_unavailable(call, seconds=self._settings.retry_seconds)


def _event(row: StreamRow, ending: Ending) -> Event:
    content = {"thought" if row.role == THOUGHT else "text": ending.text, "message_id": row.key.message_id}
    if ending.finish_reason is not None:
        content["finish_reason"] = ending.finish_reason
    return Event(
        id=row.key.message_id,
        thread_id=str(row.key.thread_id),
        invocation_id="",
        author=row.author,
        event_type=_KIND_OF_ROLE[row.role],
        content={**content, **({"interrupted": True} if ending.status is StreamStatus.INTERRUPTED else {})},
    )


def _row(row: asyncpg.Record) -> StreamRow:
    return StreamRow(
        StreamKey(row["thread_id"], row["message_id"]),
        row["role"],
        row["author"],
        row["run_id"],
        StreamStatus(row["status"]),
        row["owner"],
        row["final_sequence"],
    )


def _short(message_id: str) -> str:
    return repr(message_id if len(message_id) <= 80 else message_id[:80] + "…")
