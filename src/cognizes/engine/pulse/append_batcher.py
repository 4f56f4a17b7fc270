"""Appends on their way to the database: grouped, ordered per thread, sent again when the connection breaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from cognizes.engine.concurrency import retry_while_unavailable
from cognizes.engine.database import Database
from cognizes.engine.database.sticky_connection import StickyConnections
from cognizes.engine.database.tenancy import Apps
from cognizes.engine.errors import DatabaseUnavailableError, EngineError, PoolTimeoutError
from cognizes.engine.pulse.group_commit import GroupCommit

_Fetch = Callable[..., Awaitable[list[Any]]]
_ENOUGH_FOR_TWO = 4


@dataclass(slots=True)
class AppendItem:
    """One event as the SQL function wants it; documents are JSON text. `fence` is who writes it: run and attempt.

    `may_be_resent`: the caller chose the id, so the event may be there already. Looking for it before storing it would
    cost all the events that are not there: it `is_looked_for` when the server has refused something, or was away.
    `apps`: on whose behalf it is written, behind the second wall; None for the engine itself.
    """

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
    is_looked_for: bool = False
    apps: Apps | None = None

    @property
    def order_key(self) -> int:
        """The thread: its appends keep their order. Its number, because hashing a UUID is slow."""
        return self.thread_id.int

    @property
    def is_sociable(self) -> bool:
        """A fenced one asks its own run for leave, alone."""
        return self.fence is None

    @property
    def identity(self) -> str:
        """An event that comes again must find the first one stored."""
        return self.event_id

    @property
    def company(self) -> Apps | None:
        """A transaction sees the rows of one caller's apps."""
        return self.apps


@dataclass(slots=True, frozen=True)
class AppendAnswer:
    """What became of an item: `stored`, `duplicate`, `conflict`, `missing` or `fenced`."""

    status: str
    sequence_num: int
    version: int
    created_at: datetime


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
        self._connections = [StickyConnections(database) for _ in range(2 if connections >= _ENOUGH_FOR_TWO else 1)]
        self._places_to_wait = max(1, connections // 4)
        self._groups: GroupCommit[AppendItem, AppendAnswer] = GroupCommit(
            *(partial(self._send, fetch=connection.fetch, wait=False) for connection in self._connections),
            patient=self._send_and_wait,
        )

    async def submit(self, item: AppendItem) -> AppendAnswer:
        """Stores an item, or says why not; returns after the commit."""
        item.apps = self._database.acting_apps
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
        try:
            rows = await self._call_until_available(items, fetch, wait=wait)
        except (DatabaseUnavailableError, PoolTimeoutError):
            raise
        except EngineError:
            if not _look_for_resent(items):
                raise
            rows = await self._call_until_available(items, fetch, wait=wait)
        return [None if row[0] == "busy" else AppendAnswer(*row) for row in rows]

    async def _call_until_available(self, items: list[AppendItem], fetch: _Fetch, *, wait: bool) -> list[Any]:
        def expect_duplicates() -> None:
            # The commit may have happened although its answer was lost.
            for item in items:
                item.is_looked_for = True

        return await retry_while_unavailable(
            lambda: self._call(items, fetch, wait=wait), seconds=self._retry_seconds, before_retry=expect_duplicates
        )

    async def _call(self, items: list[AppendItem], fetch: _Fetch, *, wait: bool) -> list[Any]:
        if len(items) == 1:
            (item,) = items
            query = "append_event" if item.fence is None else "append_fenced_event"
            fields = (*_fields(item), wait, *self._limits, *_expected(item), *(item.fence or ()))
            return await fetch(query, item.thread_id, *fields, apps=item.apps)
        threads = {item.order_key: item.thread_id for item in items}
        places = {key: place for place, key in enumerate(threads, start=1)}
        index = [places[item.order_key] for item in items]
        columns, expected = as_columns(map(_fields, items)), as_columns(map(_expected, items))
        fields = (*columns, wait, *self._limits, *expected)
        return await fetch("append_events", [*threads.values()], index, *fields, apps=items[0].apps)


def _look_for_resent(items: list[AppendItem]) -> bool:
    """Lets events be looked for that may be there already; false when all of them were looked for before."""
    found = [item for item in items if item.may_be_resent and not item.is_looked_for]
    for item in found:
        item.is_looked_for = True
    return bool(found)


def as_columns(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...] | None]:
    """The values of each field; None for a field that nobody uses, which saves the driver a look at every value."""
    return [None if column.count(None) == len(column) else column for column in zip(*rows, strict=True)]


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
        item.message_id if item.role is not None else None,
        item.is_looked_for or None,
    )
