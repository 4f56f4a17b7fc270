"""Reading live: a doorbell says that a thread moved, the rows are read back, and the doorbell is never trusted.

A notification only says *thread T reached event N*. The hub reads the rows after what it delivered last, in order, with
one query for all threads that rang. It also looks at all subscribed threads from time to time, and after every
reconnection of the listener, so that a lost notification costs latency and never data.

A subscriber has no queue. It has a place in the log, and the hub tells it how far the log reaches by now; recent events
are shared between all subscribers of a thread, older ones are read from the database. A slow reader costs no more than
the page it is reading.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

from cognizes.engine.database import Database
from cognizes.engine.errors import DatabaseUnavailableError, EngineError, NotFoundError, PoolTimeoutError
from cognizes.engine.models import Event
from cognizes.engine.pulse.event_log import EventLog, event_from_row
from cognizes.engine.pulse.pg_notify_listener import DEFAULT_CHANNEL, PgNotifyListener, parse_payload

logger = logging.getLogger(__name__)

_SWEEP_SECONDS = 1.5
_RECENT_EVENTS = 256
_PAGE = 500
_RETRY_SECONDS = 0.2

Result = TypeVar("Result")


class _Channel:
    """What the hub knows of one subscribed thread."""

    def __init__(self, head: int) -> None:
        self.head = head
        self.recent: deque[Event] = deque(maxlen=_RECENT_EVENTS)
        self.moved = asyncio.Event()
        self.subscribers = 0

    def advance(self, events: list[Event]) -> None:
        """Takes in the events after the head, which follow each other without a gap."""
        self.recent.extend(events)
        self.head = events[-1].sequence_num or self.head
        # Everybody who waits has this very object; whoever waits next gets a fresh one.
        self.moved.set()
        self.moved = asyncio.Event()

    def end(self) -> None:
        """Lets all subscriptions end."""
        self.head = -1
        self.moved.set()

    def recent_after(self, sequence: int) -> list[Event] | None:
        """The events after a sequence number, or None when they are too old to be remembered."""
        if not self.recent or (self.recent[0].sequence_num or 0) > sequence + 1:
            return None
        return [event for event in self.recent if (event.sequence_num or 0) > sequence]


class LiveHub:
    """Follows threads for any number of subscribers: in order, without gaps, whoever wrote the events."""

    def __init__(self, database: Database, listener: PgNotifyListener) -> None:
        self._database = database
        self._listener = listener
        self._log = EventLog(database)
        self._channels: dict[UUID, _Channel] = {}
        # Held by those who wait: with the last of them the entry is gone.
        self._awaited_runs: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self._rung: set[UUID] = set()
        self._bell = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.healed = 0

    async def start(self) -> None:
        """Begins to follow."""
        self._listener.tap(DEFAULT_CHANNEL, self._on_notification)
        self._listener.on_reconnect(self.sweep)
        self._tasks = [
            asyncio.create_task(self._read_back_forever(), name="live-read-back"),
            asyncio.create_task(self._sweep_forever(), name="live-sweep"),
        ]

    async def close(self) -> None:
        """Stops; subscriptions end."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for channel in self._channels.values():
            channel.end()
        self._tasks = []

    async def follow(self, thread_id: UUID, *, after: int = 0) -> AsyncGenerator[Event, None]:
        """All events of a thread after a sequence number: those that are there, then those to come."""
        channel = await self._join(thread_id)
        try:
            cursor = after
            while channel.head >= 0:
                moved = channel.moved
                if cursor >= channel.head:
                    await moved.wait()
                    continue
                events = channel.recent_after(cursor)
                if events is None:
                    events = await _until_available(self._log.read, thread_id, after=cursor, limit=_PAGE)
                    if not events:
                        return  # the thread was deleted
                for event in events:
                    cursor = event.sequence_num or cursor
                    yield event
        finally:
            self._leave(thread_id, channel)

    async def follow_run(self, run_id: str, *, after: int = 0) -> AsyncGenerator[Event, None]:
        """All events of a run, also of one that does not exist yet."""
        thread_id = await self._find_thread_of(run_id)
        async with aclosing(self.follow(thread_id, after=after)) as events:
            async for event in events:
                if event.run_id == run_id:
                    yield event

    async def _find_thread_of(self, run_id: str) -> UUID:
        waiting = self._awaited_runs.setdefault(run_id, asyncio.Event())
        while True:
            waiting.clear()
            found: UUID | None = await _until_available(self._database.fetch_value, "find_thread_of_run", run_id)
            if found is not None:
                return found
            try:
                await asyncio.wait_for(waiting.wait(), _SWEEP_SECONDS)
            except TimeoutError:
                continue

    async def sweep(self) -> None:
        """Looks how far every subscribed thread has come, whatever the doorbell said."""
        if not self._channels:
            return
        looked_at = dict(self._channels)
        rows = await self._database.fetch("read_thread_heads", list(looked_at))
        heads = {row["id"]: row["last_sequence"] for row in rows}
        for thread_id, channel in looked_at.items():
            if thread_id not in heads:
                channel.end()  # the thread was deleted
            elif heads[thread_id] > channel.head and thread_id not in self._rung:
                self.healed += 1
                self._ring(thread_id)

    async def _join(self, thread_id: UUID) -> _Channel:
        if thread_id not in self._channels:
            row = await self._database.fetch_row("read_thread_head", thread_id)
            if row is None:
                raise NotFoundError(f"there is no thread {thread_id}")
            # Somebody else may have come first while the database answered.
            self._channels.setdefault(thread_id, _Channel(row["last_sequence"]))
        channel = self._channels[thread_id]
        channel.subscribers += 1
        return channel

    def _leave(self, thread_id: UUID, channel: _Channel) -> None:
        channel.subscribers -= 1
        if not channel.subscribers and self._channels.get(thread_id) is channel:
            del self._channels[thread_id]

    def _on_notification(self, text: str) -> None:
        if not self._channels and not self._awaited_runs:
            return
        payload = parse_payload(text)
        if (awaited := self._awaited_runs.get(str(payload.get("run_id")))) is not None:
            awaited.set()
        try:
            thread_id = UUID(payload.get("thread_id", ""))
        except (ValueError, TypeError, AttributeError):
            return
        channel = self._channels.get(thread_id)
        sequence = payload.get("sequence_num")
        if channel is not None and (not isinstance(sequence, int) or sequence > channel.head):
            self._ring(thread_id)

    def _ring(self, thread_id: UUID) -> None:
        self._rung.add(thread_id)
        self._bell.set()

    async def _read_back_forever(self) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            rung, self._rung = self._rung, set()
            try:
                await self._read_back([thread_id for thread_id in rung if thread_id in self._channels])
            except EngineError as error:
                # The sweep comes back to these threads.
                logger.warning("events could not be read back and will be: %s", error)

    async def _read_back(self, thread_ids: list[UUID]) -> None:
        if not thread_ids:
            return
        heads = [self._channels[thread_id].head for thread_id in thread_ids]
        events: dict[UUID, list[Event]] = {}
        for row in await self._database.fetch("read_events_of_threads", thread_ids, heads, _PAGE):
            events.setdefault(row["thread_id"], []).append(event_from_row(row))
        for thread_id, found in events.items():
            channel = self._channels.get(thread_id)
            if channel is None:
                continue
            channel.advance(found)
            if len(found) == _PAGE:
                self._ring(thread_id)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                await self.sweep()
            except EngineError as error:
                logger.warning("the subscribed threads could not be looked at and will be: %s", error)


async def _until_available(read: Callable[..., Awaitable[Result]], *arguments: Any, **named: Any) -> Result:
    """Reads, and reads again while PostgreSQL is away: a subscription outlives a restart."""
    while True:
        try:
            return await read(*arguments, **named)
        except (DatabaseUnavailableError, PoolTimeoutError) as error:
            logger.debug("a subscription waits for PostgreSQL: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)
