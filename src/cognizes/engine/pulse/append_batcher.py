"""Appends on their way to the database: grouped, ordered per thread, sent again when the connection breaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from cognizes.engine.database import Database
from cognizes.engine.database.sticky_connection import StickyConnection
from cognizes.engine.errors import DatabaseUnavailableError
from cognizes.engine.pulse.group_commit import GroupCommit

_Result = TypeVar("_Result")
_Fetch = Callable[..., Awaitable[list[Any]]]


@dataclass(slots=True)
class AppendItem:
    """One event as the SQL function wants it; documents are JSON text."""

    thread_id: UUID
    event_id: str
    run_id: str | None
    invocation_id: str
    author: str
    event_type: str
    content: str
    actions: str
    delta: str | None
    user_delta: str | None
    app_delta: str | None
    expected_version: int | None
    role: str | None
    text: str | None
    message_id: str | None
    may_be_resent: bool
    expected_sequence: int | None = None
    moved_to: asyncio.Future[AppendAnswer] | None = None

    @property
    def size(self) -> int:
        return len(self.content) + len(self.actions) + 200


@dataclass(slots=True, frozen=True)
class AppendAnswer:
    """What became of an item: `stored`, `duplicate`, `conflict`, `missing` (or `busy`, which callers never see)."""

    status: str
    sequence_num: int
    version: int
    created_at: datetime


async def retry_while_unavailable(
    attempt: Callable[[], Awaitable[_Result]], *, seconds: float, before_retry: Callable[[], None]
) -> _Result:
    """Tries again, with growing pauses, for as long as PostgreSQL is away and the time lasts."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    pause = 0.02
    while True:
        try:
            return await attempt()
        except DatabaseUnavailableError:
            if loop.time() + pause > deadline:
                raise
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
        pause = min(pause * 2, 1.0)
        before_retry()


class AppendBatcher:
    """Group commit for appends.

    The order of one thread's appends is the order of their submission. A batch never waits for a thread that another
    process holds: such a thread's items leave the batch and wait in a lane of their own.
    """

    def __init__(self, database: Database, *, snapshot_every: int, max_state_bytes: int, retry_seconds: float) -> None:
        self._database = database
        self._limits = (snapshot_every, max_state_bytes)
        self._retry_seconds = retry_seconds
        self._connection = StickyConnection(database)
        self._groups: GroupCommit[AppendItem, AppendAnswer] = GroupCommit(self._send_without_waiting)
        self._lanes: dict[UUID, GroupCommit[AppendItem, AppendAnswer]] = {}

    async def submit(self, item: AppendItem) -> AppendAnswer:
        """Stores an item, or says why not; returns after the commit."""
        lane = self._lanes.get(item.thread_id)
        if lane is not None and not lane.is_idle:
            return await lane.submit(item)
        answer = await self._groups.submit(item)
        return answer if item.moved_to is None else await item.moved_to

    async def close(self) -> None:
        """Waits until everything that was submitted has been answered."""
        await self._groups.close()
        for lane in self._lanes.values():
            await lane.close()
        await self._connection.close()

    async def _send_without_waiting(self, items: list[AppendItem]) -> list[AppendAnswer]:
        answers = await self._send(items, self._connection.fetch, wait=False)
        busy = [item for item, answer in zip(items, answers, strict=True) if answer.status == "busy"]
        for item in busy:
            item.moved_to = self._open_lane(item.thread_id).enqueue(item)
        # What was submitted later for such a thread must not overtake: it waits in the lane too, behind.
        for thread_id in {item.thread_id for item in busy}:
            self._groups.move_waiting(partial(_is_of, thread_id), self._lanes[thread_id])
        return answers

    def _open_lane(self, thread_id: UUID) -> GroupCommit[AppendItem, AppendAnswer]:
        if thread_id not in self._lanes:
            self._lanes = {key: lane for key, lane in self._lanes.items() if not lane.is_idle}
            self._lanes[thread_id] = GroupCommit(self._send_and_wait)
        return self._lanes[thread_id]

    async def _send_and_wait(self, items: list[AppendItem]) -> list[AppendAnswer]:
        return await self._send(items, self._database.fetch, wait=True)

    async def _send(self, items: list[AppendItem], fetch: _Fetch, *, wait: bool) -> list[AppendAnswer]:
        def expect_duplicates() -> None:
            # The commit may have happened although its answer was lost.
            for item in items:
                item.may_be_resent = True

        rows = await retry_while_unavailable(
            lambda: self._call(items, fetch, wait=wait), seconds=self._retry_seconds, before_retry=expect_duplicates
        )
        return [AppendAnswer(*row) for row in rows]

    async def _call(self, items: list[AppendItem], fetch: _Fetch, *, wait: bool) -> list[Any]:
        if len(items) == 1:
            return await fetch("append_event", *_single(items[0]), wait, *self._limits, items[0].expected_sequence)
        places: dict[UUID, int] = {}
        index = [places.setdefault(item.thread_id, len(places) + 1) for item in items]
        sequences = [item.expected_sequence for item in items]
        return await fetch("append_events", list(places), index, *_columns(items), wait, *self._limits, sequences)


def _is_of(thread_id: UUID, item: AppendItem) -> bool:
    return item.thread_id == thread_id


def _single(item: AppendItem) -> tuple[Any, ...]:
    return (item.thread_id, *_fields(item))


def _columns(items: list[AppendItem]) -> tuple[list[Any], ...]:
    return tuple(list(column) for column in zip(*map(_fields, items), strict=True))


def _fields(item: AppendItem) -> tuple[Any, ...]:
    return (
        item.event_id,
        item.run_id,
        item.invocation_id,
        item.author,
        item.event_type,
        item.content,
        item.actions,
        item.delta,
        item.user_delta,
        item.app_delta,
        item.expected_version,
        item.role,
        item.text,
        item.message_id,
        item.may_be_resent,
    )
