"""Appends on their way to the database: grouped, ordered per thread, sent again when the connection breaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
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
    size: int
    expected_sequence: int | None = None
    expected_user_version: int | None = None
    expected_app_version: int | None = None
    moved_to: asyncio.Future[AppendAnswer] | None = None


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
        if self._is_in_lane(item.thread_id):
            return await self._lanes[item.thread_id].submit(item)
        answer = await self._groups.submit(item)
        return answer if item.moved_to is None else await item.moved_to

    async def close(self) -> None:
        """Waits until everything that was submitted has been answered."""
        await self._groups.close()
        for lane in self._lanes.values():
            await lane.close()
        await self._connection.close()

    async def _send_without_waiting(self, items: list[AppendItem]) -> list[AppendAnswer]:
        if self._lanes and any(self._is_in_lane(item.thread_id) for item in items):
            return await self._send_around_lanes(items)
        answers = await self._send(items, self._connection.fetch, wait=False)
        busy = [item for item, answer in zip(items, answers, strict=True) if answer.status == "busy"]
        self._move_to_lanes(busy)
        return answers

    async def _send_around_lanes(self, items: list[AppendItem]) -> list[AppendAnswer]:
        """A batch that is sent again item by item may have opened a lane for the thread of a later item."""
        held = [item for item in items if self._is_in_lane(item.thread_id)]
        free = [item for item in items if not self._is_in_lane(item.thread_id)]
        self._move_to_lanes(held)
        answers = {id(item): _BUSY for item in held}
        if free:
            sent = await self._send_without_waiting(free)
            answers |= {id(item): answer for item, answer in zip(free, sent, strict=True)}
        return [answers[id(item)] for item in items]

    def _move_to_lanes(self, items: list[AppendItem]) -> None:
        for item in items:
            item.moved_to = self._open_lane(item.thread_id).enqueue(item)
        # What was submitted later for such a thread must not overtake: it waits in the lane too, behind.
        for thread_id in {item.thread_id for item in items}:
            self._groups.move_waiting(partial(_is_of, thread_id), self._lanes[thread_id])

    def _is_in_lane(self, thread_id: UUID) -> bool:
        lane = self._lanes.get(thread_id)
        return lane is not None and not lane.is_idle

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
            (item,) = items
            return await fetch("append_event", item.thread_id, *_fields(item), wait, *self._limits, *_expected(item))
        if (twin := _place_of_twin(items)) is not None:
            # An event that comes again in one batch must find the first one stored.
            return await self._call(items[:twin], fetch, wait=wait) + await self._call(items[twin:], fetch, wait=wait)
        places: dict[UUID, int] = {}
        index = [places.setdefault(item.thread_id, len(places) + 1) for item in items]
        fields, expected = _columns(map(_fields, items)), _columns(map(_expected, items))
        return await fetch("append_events", list(places), index, *fields, wait, *self._limits, *expected)


_BUSY = AppendAnswer(status="busy", sequence_num=0, version=0, created_at=datetime.min.replace(tzinfo=UTC))


def _place_of_twin(items: list[AppendItem]) -> int | None:
    """Where the first event stands that is in the list already."""
    seen: set[tuple[UUID, str]] = set()
    for place, item in enumerate(items):
        if (item.thread_id, item.event_id) in seen:
            return place
        seen.add((item.thread_id, item.event_id))
    return None


def _is_of(thread_id: UUID, item: AppendItem) -> bool:
    return item.thread_id == thread_id


def _columns(rows: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _expected(item: AppendItem) -> tuple[int | None, int | None, int | None]:
    return item.expected_sequence, item.expected_user_version, item.expected_app_version


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
