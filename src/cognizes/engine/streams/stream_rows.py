"""The rows of `message_streams`: which streams are open and how the others ended, with every backend."""

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
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.pulse.events import ScopedDelta, append_item
from cognizes.engine.pulse.group_commit import AppendItem
from cognizes.engine.pulse.sessions import attempt_at
from cognizes.engine.settings import Settings
from cognizes.engine.streams.chunks import CALL, THOUGHT, CallHead, StreamKey, StreamRow, StreamStatus

_KIND_OF_ROLE = {
    "assistant": "assistant_message",
    "user": "user_message",
    "system": "system_message",
    "tool": "observe",
    THOUGHT: "thought",
    CALL: "act",
}
ROLES = tuple(_KIND_OF_ROLE)
_NO_LIMIT = 1 << 40
_Call = Callable[[], Awaitable[asyncpg.Record | None]]


@dataclass(frozen=True)
class Ending:
    """The requested end of a stream: its status, text and lengths of chunks. `content` is that of the event of a tool
    call, or more content of the event of a text."""

    status: StreamStatus
    final_sequence: int
    text: str
    lengths: bytes
    finish_reason: str | None = None
    content: JsonObject | None = None


@dataclass(frozen=True)
class OpenedStream:
    """The app and the head of the thread of a stream that is open. A reopened one had been interrupted without text."""

    app_name: str
    began_after: int
    is_reopened: bool


@dataclass(frozen=True)
class EndAnswer:
    """The result of ending a stream; `answer` is a status of the SQL function `end_stream`."""

    answer: str
    status: StreamStatus | None
    final_sequence: int | None


@dataclass(frozen=True)
class StoredBody:
    """A stored message: its text, and the lengths of its chunks if it was streamed."""

    text: str
    status: StreamStatus
    final_sequence: int | None
    lengths: bytes | None


class StreamRows:
    def __init__(self, database: Database, settings: Settings, *, checks_chunks: bool) -> None:
        self._database = database
        self._settings = settings
        self._checks_chunks = checks_chunks
        self._lease = timedelta(seconds=settings.stream_lease_seconds)
        self._idle = timedelta(seconds=settings.stream_idle_seconds)

    async def open(
        self, key: StreamKey, *, role: str, author: str, run_id: str | None, invocation_id: str, owner: UUID | None
    ) -> OpenedStream:
        """Insert the row of a new stream, or reopen one that was interrupted before its first chunk."""

        async def call() -> asyncpg.Record | None:
            lease = self._idle if owner is None else self._lease
            return await self._database.fetch_row(
                "open_stream", key.thread_id, key.message_id, role, author, run_id, invocation_id, owner, lease
            )

        # The owner identifies a retry. Without one, a retry looks like a second producer.
        row = await (call() if owner is None else self._retry(call))
        assert row is not None  # noqa: S101 - the function always returns a row
        if row["status"] == "missing":
            raise NotFoundError(f"there is no thread {key.thread_id}; it was deleted or never created")
        if row["status"] == "taken":
            raise ConflictError(
                f"the message {_short(key.message_id)} exists or is being written by another producer; "
                "omit the message_id or choose another"
            )
        return OpenedStream(row["app_name"], row["began_after"], is_reopened=row["status"] == "reopened")

    async def end(
        self,
        row: StreamRow,
        ending: Ending,
        *,
        owner: UUID | None = None,
        only_expired: bool = False,
        is_stored: bool = False,
        refresh: Callable[[], Awaitable[Ending]] | None = None,
    ) -> EndAnswer:
        """Store the message and its event and end the stream in one transaction; a repeated call returns the same.

        With `is_stored` only the stream ends, because another component stored the message. `refresh` reads the ending
        again before each retry while PostgreSQL is unavailable.
        """
        item = self._item(row, ending, is_stored=is_stored)
        is_retry = False
        # A complete answer belongs to the attempt that holds the run. An interrupted text was read already and is kept.
        is_answer = row.run_id is not None and ending.status is StreamStatus.COMPLETED
        attempt = attempt_at(row.key.thread_id, row.run_id) if is_answer and row.run_id else None

        async def call() -> asyncpg.Record | None:
            nonlocal ending, item, is_retry
            if is_retry and refresh is not None:
                ending = await refresh()
                item = self._item(row, ending, is_stored=is_stored)
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
                is_stored,
                self._checks_chunks,
                self._settings.snapshot_every,
                row.run_id,
                attempt,
            )

        answer = await self._retry(call)
        assert answer is not None  # noqa: S101 - the function always returns a row
        return EndAnswer(
            answer["status"],
            StreamStatus(answer["end_status"]) if answer["end_status"] else None,
            answer["final_sequence"],
        )

    def _item(self, row: StreamRow, ending: Ending, *, is_stored: bool) -> AppendItem | None:
        # An interrupted stream without text leaves no message.
        if is_stored or not (ending.text or ending.status is StreamStatus.COMPLETED):
            return None
        if (event := _event(row, ending)) is None:
            return None
        return append_item(
            event,
            ScopedDelta(),
            thread_id=row.key.thread_id,
            expected_version=None,
            # An interrupted text is kept at any length.
            max_bytes=self._settings.max_event_bytes if ending.status is StreamStatus.COMPLETED else _NO_LIMIT,
            max_depth=self._settings.max_json_depth,
        )

    async def find(self, key: StreamKey) -> StreamRow | None:
        row = await self._database.fetch_row("find_stream", key.thread_id, key.message_id)
        return read_row(row) if row else None

    async def list_open(self, thread_ids: Sequence[UUID]) -> list[StreamRow]:
        return [read_row(row) for row in await self._database.fetch("list_open_streams", list(thread_ids))]

    async def list_expired(self, *, grace: float, limit: int) -> list[StreamRow]:
        """Return open streams whose lease expired, but none within `grace` seconds after the server's start."""
        rows = await self._database.fetch("list_expired_streams", timedelta(seconds=grace), limit)
        return [read_row(row) for row in rows]

    async def extend_leases(self, owner: UUID, keys: Sequence[StreamKey]) -> set[StreamKey]:
        """Extend the leases of a process's streams; return the streams that it still owns."""
        threads, ids = [key.thread_id for key in keys], [key.message_id for key in keys]
        rows = await self._database.fetch("extend_stream_leases", threads, ids, owner, self._lease)
        return {StreamKey(row["thread_id"], row["message_id"]) for row in rows}

    async def read_body(self, key: StreamKey) -> StoredBody | None:
        """Return a stored message, streamed or not, or an ended stream that left no message."""
        row = await self._database.fetch_row("read_body", key.thread_id, key.message_id)
        if row is None or (row["content"] is None and row["final_sequence"] is None):
            return None
        return StoredBody(
            load_json(row["thought"]).get("thought", "") if row["thought"] else unescape_text(row["content"] or ""),
            StreamStatus(row["status"]) if row["final_sequence"] is not None else StreamStatus.COMPLETED,
            row["final_sequence"],
            row["chunk_lengths"],
        )

    async def _retry(self, call: _Call) -> asyncpg.Record | None:
        return await retry_while_unavailable(call, seconds=self._settings.retry_seconds)


def _event(row: StreamRow, ending: Ending) -> Event | None:
    """Return the event of a stream; None for a tool call whose first chunk is missing."""
    content: JsonObject
    if row.role != CALL:
        content = {"thought" if row.role == THOUGHT else "text": ending.text, "message_id": row.key.message_id}
        content |= ending.content or {}
    elif ending.content is not None:
        content = dict(ending.content)
    elif found := CallHead.split(ending.text):
        head, arguments = found
        content = {"tool_call_id": head.call_id, "tool_name": head.tool_name, "tool_input": arguments, "format": "text"}
        content |= {"parent_message_id": head.parent_id}
    else:
        return None
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


def read_row(row: asyncpg.Record) -> StreamRow:
    return StreamRow(
        StreamKey(row["thread_id"], row["message_id"]),
        row["role"],
        row["author"],
        row["run_id"],
        StreamStatus(row["status"]),
        row["owner"],
        row["final_sequence"],
        row["began_after"] or 0,
    )


def _short(message_id: str) -> str:
    return repr(message_id if len(message_id) <= 80 else message_id[:80] + "…")
