"""Appends on their way to the database: grouped, ordered per thread, sent again when the connection breaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
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
_ENOUGH_FOR_TWO = 4


@dataclass(slots=True)
class AppendItem:
    """One event as the SQL function wants it; documents are JSON text. `fence` is who writes it: run and attempt."""

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
    fence: tuple[str, int] | None = None

    @property
    def order_key(self) -> UUID:
        """The thread: its appends keep their order."""
        return self.thread_id

    @property
    def identity(self) -> str:
        """An event that comes again must find the first one stored."""
        return self.event_id


@dataclass(slots=True, frozen=True)
class AppendAnswer:
    """What became of an item: `stored`, `duplicate`, `conflict`, `missing` or `fenced`."""

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

    The order of one thread's appends is the order of their submission. Two batches may be on their way at once; they
    share no thread. A batch never waits for a thread that another process holds: such a thread's items leave the batch
    and wait in a lane of their own.
    """

    def __init__(self, database: Database, *, snapshot_every: int, max_state_bytes: int, retry_seconds: float) -> None:
        self._database = database
        self._limits = (snapshot_every, max_state_bytes)
        self._retry_seconds = retry_seconds
        connections = database.pool.get_max_size()
        # Readers must find a connection, too: a small pool is not for two batches at once.
        self._connections = [StickyConnection(database) for _ in range(2 if connections >= _ENOUGH_FOR_TWO else 1)]
        self._places_to_wait = max(1, connections // 4)
        self._groups: GroupCommit[AppendItem, AppendAnswer] = GroupCommit(
            *(partial(self._send, fetch=connection.fetch, wait=False) for connection in self._connections),
            patient=self._send_and_wait,
        )

    async def submit(self, item: AppendItem) -> AppendAnswer:
        """Stores an item, or says why not; returns after the commit."""
        return await self._groups.submit(item)

    async def close(self) -> None:
        """Refuses what comes from now on, and waits until everything that was submitted has been answered."""
        await self._groups.close()
        for connection in self._connections:
            await connection.close()

    async def _send_and_wait(self, items: list[AppendItem]) -> list[AppendAnswer | None]:
        """Waits for a thread in the server, where waiting is first come, first served; but not on all connections."""
        while True:
            if self._places_to_wait:
                self._places_to_wait -= 1
                try:
                    return await self._send(items, fetch=self._database.fetch, wait=True)
                finally:
                    self._places_to_wait += 1
            answers = await self._send(items, fetch=self._database.fetch, wait=False)
            if None not in answers:
                return answers
            await asyncio.sleep(random.uniform(0.005, 0.02))  # noqa: S311 - jitter, not a secret

    async def _send(self, items: list[AppendItem], *, fetch: _Fetch, wait: bool) -> list[AppendAnswer | None]:
        def expect_duplicates() -> None:
            # The commit may have happened although its answer was lost.
            for item in items:
                item.may_be_resent = True

        rows = await retry_while_unavailable(
            lambda: self._call(items, fetch, wait=wait), seconds=self._retry_seconds, before_retry=expect_duplicates
        )
        return [None if row[0] == "busy" else AppendAnswer(*row) for row in rows]

    async def _call(self, items: list[AppendItem], fetch: _Fetch, *, wait: bool) -> list[Any]:
        if len(items) == 1:
            (item,) = items
            query = "append_event" if item.fence is None else "append_fenced_event"
            fields = (*_fields(item), wait, *self._limits, *_expected(item), *(item.fence or ()))
            return await fetch(query, item.thread_id, *fields)
        if (place := _place_of_fence(items)) is not None:
            return await self._call_in_parts(items[:place], items[place:], fetch, wait=wait)
        places: dict[UUID, int] = {}
        index = [places.setdefault(item.thread_id, len(places) + 1) for item in items]
        columns, expected = _columns(map(_fields, items)), _columns(map(_expected, items))
        return await fetch("append_events", list(places), index, *columns, wait, *self._limits, *expected)

    async def _call_in_parts(
        self, first: list[AppendItem], second: list[AppendItem], fetch: _Fetch, *, wait: bool
    ) -> list[Any]:
        # Should the second part fail as a whole, the items of both are sent again, one by one.
        for item in first:
            item.may_be_resent = True
        rows = await self._call(first, fetch, wait=wait)
        held = {item.thread_id for item, row in zip(first, rows, strict=True) if row[0] == "busy"}
        free = [item for item in second if item.thread_id not in held]
        answers = iter(await self._call(free, fetch, wait=wait) if free else ())
        # What a held thread's item waits for, a later item of that thread waits for too: it must not overtake.
        return rows + [_BUSY if item.thread_id in held else next(answers) for item in second]


_BUSY = ("busy", 0, 0, None)


def _place_of_fence(items: list[AppendItem]) -> int | None:
    """Where a list is to be cut, so that the first fenced item is alone: each asks its own run for leave."""
    for place, item in enumerate(items):
        if item.fence is not None:
            return place or 1
    return None


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
