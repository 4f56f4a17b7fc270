"""A database for the append path that does what a test says, when it says so: no server, no timing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from cognizes.engine.errors import InvalidInputError
from cognizes.engine.pulse.group_commit import AppendItem

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_Row = tuple[str, int, int, datetime]
_Call = list[tuple[UUID, str]]


def item(thread: UUID, event_id: str, *, given: bool = False, size: int = 100) -> AppendItem:
    """An event without content; `given` says that its caller chose the id."""
    return AppendItem(
        thread_id=thread,
        event_id=event_id,
        run_id=None,
        invocation_id="",
        author="a",
        event_type="message",
        content="{}",
        actions="{}",
        delta=None,
        user_delta=None,
        app_delta=None,
        expected_version=None,
        role=None,
        text=None,
        message_id=event_id,
        may_be_resent=given,
        size=size,
    )


class _Names:
    """Stands for the queries: the SQL of a name is the name."""

    def __getitem__(self, name: str) -> str:
        return name


class _Pool:
    def get_max_size(self) -> int:
        return 10


class _Connection:
    def __init__(self, server: ScriptedDatabase) -> None:
        self.server = server

    async def fetch(self, query: str, *arguments: Any) -> list[_Row]:
        return await self.server.execute(query, arguments)

    def is_closed(self) -> bool:
        return False

    def terminate(self) -> None:
        pass


class ScriptedDatabase:
    """Stores events of `append_event` and `append_events` in lists, as the SQL functions do.

    - `held`: threads that another process holds: `busy` for those who do not wait, and waiting for those who do.
    - `gates`: an answer to a call that has this event waits until the gate is set; the event is stored before.
    - `before`: called with every call, before anything is stored; may raise what the server would.
    """

    def __init__(self) -> None:
        self.queries = _Names()
        self.acting_apps = None
        self.has_waiters = False
        self.reuse_seconds = 0.02
        self.pool = _Pool()
        self.log: dict[UUID, list[str]] = {}
        self.calls: list[_Call] = []
        self.held: set[UUID] = set()
        self.gates: dict[str, asyncio.Event] = {}
        self.reached: dict[str, asyncio.Event] = {}
        self.before: Callable[[_Call], None] = lambda call: None
        self.lost_answers = 0
        self.given_back = 0
        self._released = asyncio.Condition()

    async def acquire(self, *, for_tenants: bool) -> _Connection:
        assert not for_tenants
        return _Connection(self)

    async def release(self, connection: _Connection, *, for_tenants: bool) -> None:
        assert not for_tenants
        self.given_back += 1

    async def fetch(self, query: str, *arguments: Any, apps: None = None) -> list[_Row]:
        return await self.execute(query, arguments)

    async def release_thread(self, thread: UUID) -> None:
        """The other process is done with a thread."""
        async with self._released:
            self.held.discard(thread)
            self._released.notify_all()

    async def execute(self, query: str, arguments: tuple[Any, ...]) -> list[_Row]:
        threads, ids, looks, wait = _read(query, arguments)
        call = list(zip(threads, ids, strict=True))
        self.calls.append(call)
        for event_id in ids:
            self.reached.setdefault(event_id, asyncio.Event()).set()
        self.before(call)
        if wait:
            async with self._released:
                await self._released.wait_for(lambda: self.held.isdisjoint(threads))
        items = list(zip(threads, ids, looks or [None] * len(ids), strict=True))
        if any(event_id in self.log.get(thread, ()) and not look for thread, event_id, look in items):
            raise InvalidInputError("the unique index refuses an event that is there already")
        rows = [self._store(thread, event_id) for thread, event_id, _ in items]
        if self.lost_answers:
            self.lost_answers -= 1
            raise ConnectionError("the answer was lost")
        for event_id in ids:
            if event_id in self.gates:
                await self.gates[event_id].wait()
        return rows

    def _store(self, thread: UUID, event_id: str) -> _Row:
        if thread in self.held:
            return "busy", 0, 0, _NOW
        log = self.log.setdefault(thread, [])
        if event_id in log:
            return "duplicate", log.index(event_id) + 1, 1, _NOW
        log.append(event_id)
        return "stored", len(log), 1, _NOW


def _read(query: str, arguments: tuple[Any, ...]) -> tuple[list[UUID], list[str], list[bool | None] | None, bool]:
    if query == "append_event":
        return [arguments[0]], [arguments[1]], [arguments[15]], arguments[16]
    assert query == "append_events"
    return [arguments[0][place - 1] for place in arguments[1]], arguments[2], arguments[16], arguments[17]
