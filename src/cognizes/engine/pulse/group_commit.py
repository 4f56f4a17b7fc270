"""Adaptive group commit: concurrent callers of one process share a transaction.

While batches are being sent, new items queue; the next batch takes them. A single caller's item is sent at once. There
is no timer. `GroupCommit` forms the batches; `AppendBatcher` sends batches of events.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from json.encoder import encode_basestring as quote
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from opentelemetry.trace import SpanContext

from cognizes.engine.concurrency import WakeUp, create_shared_task, retry_while_unavailable
from cognizes.engine.database import Database
from cognizes.engine.database.notifications import DEFAULT_CHANNEL, Notifier
from cognizes.engine.database.tenancy import Apps
from cognizes.engine.errors import DatabaseUnavailableError, EngineClosedError, EngineError, PoolTimeoutError
from cognizes.engine.telemetry import TELEMETRY, batch_span, current_context


class GroupItem(Protocol):
    @property
    def size(self) -> int:
        """The size in bytes; a batch is bounded by the sum."""
        ...

    @property
    def order_key(self) -> Hashable:
        """Items of one key are sent in the order of their submission, never in two batches at once."""
        ...

    @property
    def identity(self) -> Hashable:
        """A batch has no two items of one key and one identity: the second must find the first one stored."""
        ...

    @property
    def tenant_key(self) -> Hashable:
        """On whose behalf the item is sent. A batch has items of one tenant key only."""
        ...


Item = TypeVar("Item", bound=GroupItem)
Answer = TypeVar("Answer")
Entry = tuple[Item, "asyncio.Future[Answer]"]
Send = Callable[[list[Item]], Awaitable["list[Answer | None]"]]
_FURTHER_BATCH = 16
"""The number of items that are worth a batch of their own while another one is in flight."""
_LARGE_BATCH = 256 * 1024
"""A batch of more bytes takes long: items behind it do not wait for it if a sender is free."""
_LONGEST_WAIT = 0.01
"""Seconds after which items stop waiting for a batch in flight: it may wait for a lock of another process."""


class GroupCommit(Generic[Item, Answer]):
    """Sends items in batches, one batch at a time per sender, and answers each caller after its item's commit.

    - A second sender works only while many items wait, or behind a large or slow batch: few items in one batch take
      less time than in two, because a statement and a commit cost more than an item.
    - Callers that submit their next item in the step of the event loop in which they are answered, as writers in a loop
      do, join the next batch. For callers that do not, such as clients of a server, no batch waits.
    - Items of one key keep their order. A key is held from the moment its items are sent until their result is known;
      a cancelled caller does not change that.
    - An item that a sender answers with None waits for a lock of another process. The `blocking_sender` sends it again,
      in a task of its own; later items of its key queue behind it, items of other keys do not.
    - One item's error fails no other item.
    - Tenants are served round-robin: one that sends much delays the others by one batch at most.
    """

    def __init__(
        self,
        *senders: Send[Item, Answer],
        blocking_sender: Send[Item, Answer] | None = None,
        max_items: int = 256,
        max_bytes: int = 8 * 1024 * 1024,
    ) -> None:
        self._free_senders = list(senders)
        self._number_of_senders = len(senders)
        self._blocking_sender = blocking_sender
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._queues: dict[Hashable, deque[Entry[Item, Answer]]] = {}
        self._ready: OrderedDict[Hashable, deque[Hashable]] = OrderedDict()
        self._emptied: dict[Hashable, WakeUp] = {}
        self._queued = 0
        self._submitted = 0
        self._callers_return = True
        self._in_flight = 0
        self._bytes_in_flight = 0
        self._sent_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def submit(self, item: Item) -> Answer:
        return await self.enqueue(item)

    def enqueue(self, item: Item) -> asyncio.Future[Answer]:
        """Queue an item now; the future has the answer after the item's commit."""
        if self._is_closed:
            raise EngineClosedError("the engine is closed; nothing was stored; open it again")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        key = item.order_key
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
            self._make_ready(key, item.tenant_key)
        queue.append((item, future))
        self._queued += 1
        self._submitted += 1
        if self._ready and self._free_senders:
            self._use_free_sender()
        return future

    @property
    def is_idle(self) -> bool:
        return not self._queues

    async def wait_until_answered(self, key: Hashable) -> None:
        """Return when no item of a key is queued or in flight."""
        while key in self._queues:
            emptied = self._emptied.setdefault(key, WakeUp())
            await emptied.wait(emptied.version)

    async def close(self) -> None:
        """Refuse new items, and return when every submitted item has been answered."""
        self._is_closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._timer is not None:
            self._timer.cancel()

    def _use_free_sender(self) -> None:
        if not (self._ready and self._free_senders):
            return
        if self._is_batch_due():
            self._start(self._send_batches(self._free_senders.pop()))
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._sent_at + _LONGEST_WAIT, self._end_wait, loop)

    def _is_batch_due(self) -> bool:
        return bool(self._ready) and (
            not self._in_flight or self._queued >= _FURTHER_BATCH or self._bytes_in_flight >= _LARGE_BATCH
        )

    def _end_wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._ready and self._free_senders and loop.time() >= self._sent_at + _LONGEST_WAIT:
            self._start(self._send_batches(self._free_senders.pop()))
        else:
            # Another batch was sent since.
            self._use_free_sender()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        # Not the caller's task: cancelling a caller must not abort a batch in flight, or the order of its item and the
        # next one of its key would be unknown.
        task = create_shared_task(work, name="group-commit")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_batches(self, sender: Send[Item, Answer]) -> None:
        try:
            while batch := self._take_batch():
                size = sum(item.size for item, _ in batch)
                self._in_flight += len(batch)
                self._bytes_in_flight += size
                self._sent_at = asyncio.get_running_loop().time()
                try:
                    postponed = await self._send(batch, sender)
                finally:
                    self._in_flight -= len(batch)
                    self._bytes_in_flight -= size
                for key in {item.order_key for item, _ in batch}:
                    if key in postponed:
                        self._start(self._send_blocking(key, postponed[key]))
                    else:
                        self._release(key)
                asyncio.get_running_loop().call_soon(self._note_returns, self._submitted, len(batch))
                if self._callers_return or not self._queued:
                    # The next items of the callers that were just answered join the next batch.
                    await asyncio.sleep(0)
                if not self._is_batch_due():
                    break
        finally:
            self._free_senders.append(sender)
            self._use_free_sender()

    def _note_returns(self, submitted: int, answered: int) -> None:
        """Note whether callers that were just answered have submitted their next items: runs after they ran."""
        self._callers_return = 2 * (self._submitted - submitted) >= answered

    def _take_batch(self) -> list[Entry[Item, Answer]]:
        # Not all items: the other senders would get batches of few items.
        share = max(-(-(self._queued + self._in_flight) // self._number_of_senders), _FURTHER_BATCH)
        batch: list[Entry[Item, Answer]] = []
        while self._ready and not batch:
            tenant_key, ready = self._ready.popitem(last=False)
            batch = self._take_of_tenant(tenant_key, ready, min(share, self._max_items))
            if ready:
                self._ready[tenant_key] = ready
        return batch

    def _take_of_tenant(self, tenant_key: Hashable, ready: deque[Hashable], at_most: int) -> list[Entry[Item, Answer]]:
        batch: list[Entry[Item, Answer]] = []
        room = self._max_bytes
        while ready and len(batch) < at_most:
            key = ready[0]
            queue = self._queues[key]
            if len(queue) == 1 and queue[0][0].size <= room and not queue[0][1].cancelled():
                # Nearly always: one item of its key.
                ready.popleft()
                entry = queue.popleft()
                self._queued -= 1
                room -= entry[0].size
                batch.append(entry)
                continue
            taken = self._take(queue, tenant_key, room, self._max_items - len(batch), is_first=not batch)
            if not taken and queue and queue[0][0].tenant_key == tenant_key:
                break
            ready.popleft()
            if not taken:
                self._release(key)
            batch += taken
            room -= sum(item.size for item, _ in taken)
        return batch

    def _take(
        self, queue: deque[Entry[Item, Answer]], tenant_key: Hashable, room: int, at_most: int, *, is_first: bool
    ) -> list[Entry[Item, Answer]]:
        """Take the first items of a key that fit into `room`, and one in any case if the batch is empty."""
        taken: list[Entry[Item, Answer]] = []
        identities: set[Hashable] = set()
        while queue and len(taken) < at_most:
            item, future = queue[0]
            if not future.cancelled():
                if item.tenant_key != tenant_key:
                    break
                is_alone = is_first and not taken
                if not is_alone and (item.size > room or item.identity in identities):
                    break
                room -= item.size
                identities.add(item.identity)
                taken.append((item, future))
            queue.popleft()
            self._queued -= 1
        return taken

    def _release(self, key: Hashable) -> None:
        if queue := self._queues[key]:
            self._make_ready(key, queue[0][0].tenant_key)
            self._use_free_sender()
        else:
            del self._queues[key]
            if self._emptied and (emptied := self._emptied.pop(key, None)) is not None:
                emptied.notify()

    def _make_ready(self, key: Hashable, tenant_key: Hashable) -> None:
        ready = self._ready.get(tenant_key)
        if ready is None:
            ready = self._ready[tenant_key] = deque()
        ready.append(key)

    async def _send_blocking(self, key: Hashable, entries: list[Entry[Item, Answer]]) -> None:
        """Send postponed items of a key, then those that queued behind them, until the key's queue is empty."""
        if self._blocking_sender is None:
            raise RuntimeError("a sender postponed an item, but there is no blocking sender")
        tenant_key = entries[0][0].tenant_key
        while entries:
            await self._send(entries, self._blocking_sender)
            await asyncio.sleep(0)
            entries = self._take(self._queues[key], tenant_key, self._max_bytes, self._max_items, is_first=True)
        self._release(key)

    async def _send(
        self, batch: list[Entry[Item, Answer]], sender: Send[Item, Answer]
    ) -> dict[Hashable, list[Entry[Item, Answer]]]:
        """Send a batch and answer its callers; return the postponed items by key."""
        try:
            return _answer(batch, await sender([item for item, _ in batch]))
        except asyncio.CancelledError:
            self._cancel_all(batch)
            raise
        except (DatabaseUnavailableError, PoolTimeoutError) as error:
            _fail(batch, error)
        except Exception as error:  # noqa: BLE001 - the caller of the item receives it
            if len(batch) > 1:
                # One item cannot be stored and failed the transaction: send each item alone.
                return await self._send_one_by_one(batch, sender)
            _fail(batch, error)
        return {}

    async def _send_one_by_one(
        self, batch: list[Entry[Item, Answer]], sender: Send[Item, Answer]
    ) -> dict[Hashable, list[Entry[Item, Answer]]]:
        postponed: dict[Hashable, list[Entry[Item, Answer]]] = {}
        for entry in batch:
            if (key := entry[0].order_key) in postponed:
                postponed[key].append(entry)
            elif not entry[1].cancelled():
                postponed |= await self._send([entry], sender)
        return postponed

    def _cancel_all(self, batch: list[Entry[Item, Answer]]) -> None:
        """Cancel every waiting caller: the event loop is shutting down."""
        self._is_closed = True
        for _, future in [*batch, *(entry for queue in self._queues.values() for entry in queue)]:
            future.cancel()
        self._ready.clear()


def _answer(
    batch: list[Entry[Item, Answer]], answers: list[Answer | None]
) -> dict[Hashable, list[Entry[Item, Answer]]]:
    postponed: dict[Hashable, list[Entry[Item, Answer]]] = {}
    for entry, answer in zip(batch, answers, strict=True):
        if answer is None or entry[0].order_key in postponed:
            postponed.setdefault(entry[0].order_key, []).append(entry)
        elif not entry[1].done():
            entry[1].set_result(answer)
    return postponed


def _fail(batch: list[Entry[Item, Answer]], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)


@dataclass(slots=True)
class AppendItem:
    """One event as the SQL function takes it; documents are JSON text. `fence` is the writing run and its attempt.

    `may_be_resent`: the caller chose the id, so the event may be stored already. The function looks for a stored event
    only where `expects_duplicate` is set, because the search costs every new event an index lookup. It is set after the
    server refused a batch and after a lost connection. `apps`: the tenant's apps; None for the engine itself.
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
    expects_duplicate: bool = False
    usage: str | None = None
    caller: SpanContext | None = None
    apps: Apps | None = None

    @property
    def order_key(self) -> UUID:
        return self.thread_id

    @property
    def identity(self) -> str:
        """The event id: a second event of that id must find the first one stored."""
        return self.event_id

    @property
    def tenant_key(self) -> Apps | None:
        """The apps: a transaction sees the rows of one tenant."""
        return self.apps


class AppendAnswer(NamedTuple):
    """The result of an item: `stored`, `duplicate`, `conflict`, `missing` or `fenced`."""

    status: str
    sequence_num: int
    version: int
    created_at: datetime


_Fetch = Callable[..., Awaitable[list[Any]]]
_POOL_SIZE_FOR_TWO_SENDERS = 4
_IN_THE_LOG = ("stored", "duplicate")
_ID_LENGTH = 200


class AppendBatcher:
    """Group commit for events.

    Events of one thread are appended in the order of their submission. Two batches may be in flight at once; they
    share no thread. With a `notifier` the events are notified after their commit, else by the trigger in the
    transaction. A batch never waits for a thread's lock that another process holds: the items of that thread leave
    the batch and wait in the thread's own queue.
    """

    def __init__(
        self,
        database: Database,
        *,
        snapshot_every: int,
        max_state_bytes: int,
        retry_seconds: float,
        notifier: Notifier | None = None,
    ) -> None:
        self._database = database
        self._notifier = notifier
        self._limits = (snapshot_every, max_state_bytes)
        self._retry_seconds = retry_seconds
        connections = database.pool.get_max_size()
        # Readers need connections too: two senders would take half of a small pool.
        senders = 2 if connections >= _POOL_SIZE_FOR_TWO_SENDERS else 1
        self._free_waits = max(1, connections // 4)
        self._groups: GroupCommit[AppendItem, AppendAnswer] = GroupCommit(
            *[partial(self._send, fetch=database.fetch_batch, wait=False)] * senders,
            blocking_sender=self._send_and_wait,
        )

    def submit(self, item: AppendItem) -> Awaitable[AppendAnswer]:
        """Store an item; await the result, which is known after the commit."""
        item.apps = self._database.acting_apps
        if TELEMETRY.is_tracing:
            item.caller = current_context()
        if (measured := TELEMETRY.instruments) is not None:
            return measured.time_append(lambda: self._groups.submit(item))
        return self._groups.enqueue(item)

    async def wait_until_answered(self, thread: Hashable) -> None:
        """Return when no append to a thread, given by its `order_key`, is queued or in flight."""
        await self._groups.wait_until_answered(thread)

    async def close(self) -> None:
        """Refuse new items, and return when every submitted item has been answered."""
        await self._groups.close()

    async def _send_and_wait(self, items: list[AppendItem]) -> list[AppendAnswer | None]:
        """Wait for a thread's lock in PostgreSQL, which serves waiters in order, on a bounded number of connections."""
        while True:
            if self._free_waits:
                self._free_waits -= 1
                try:
                    return await self._send(items, fetch=self._database.fetch, wait=True)
                finally:
                    self._free_waits += 1
            answers = await self._send(items, fetch=self._database.fetch, wait=False)
            if None not in answers:
                return answers
            await asyncio.sleep(random.uniform(0.005, 0.02))  # noqa: S311 - jitter, not a secret

    async def _send(self, items: list[AppendItem], *, fetch: _Fetch, wait: bool) -> list[AppendAnswer | None]:
        if TELEMETRY.is_tracing:
            callers = [item.caller for item in items]
            with batch_span("append", callers, {"cognizes.append.events": len(items), "db.system.name": "postgresql"}):
                return await self._send_items(items, fetch=fetch, wait=wait)
        return await self._send_items(items, fetch=fetch, wait=wait)

    async def _send_items(self, items: list[AppendItem], *, fetch: _Fetch, wait: bool) -> list[AppendAnswer | None]:
        try:
            rows = await self._call_until_available(items, fetch, wait=wait)
        except (DatabaseUnavailableError, PoolTimeoutError):
            raise
        except EngineError:
            resent = [item for item in items if item.may_be_resent and not item.expects_duplicate]
            if not resent:
                raise
            _expect_duplicates(resent)
            rows = await self._call_until_available(items, fetch, wait=wait)
        answers = [None if row[0] == "busy" else AppendAnswer._make(row) for row in rows]
        if (counted := TELEMETRY.instruments) is not None:
            counted.append_batch.observe(len(items))
            for stored in filter(None, answers):
                counted.appends.labels(stored.status).inc()
        if self._notifier is not None:
            for item, answer in zip(items, answers, strict=True):
                # A duplicate may be the event of a commit whose answer was lost, which was not notified.
                if answer is not None and answer.status in _IN_THE_LOG:
                    self._notifier.notify(DEFAULT_CHANNEL, _notification(item, answer))
                    self._database.note_sequence(item.thread_id, answer.sequence_num)
        return answers

    async def _call_until_available(self, items: list[AppendItem], fetch: _Fetch, *, wait: bool) -> list[Any]:
        try:
            return await self._call(items, fetch, wait=wait)
        except DatabaseUnavailableError as error:
            failed = error
        return await retry_while_unavailable(
            lambda: self._call(items, fetch, wait=wait),
            seconds=self._retry_seconds,
            # The commit may have happened although its answer was lost.
            before_retry=lambda: _expect_duplicates(items),
            failed=failed,
        )

    async def _call(self, items: list[AppendItem], fetch: _Fetch, *, wait: bool) -> list[Any]:
        if len(items) == 1:
            (item,) = items
            fields = (*_fields(item), wait, *self._limits, *_conditions(item), self._notifier is None, item.usage)
            return await fetch("append_event", item.thread_id, *fields, apps=item.apps)
        threads = {item.order_key: item.thread_id for item in items}
        places = {key: place for place, key in enumerate(threads, start=1)}
        index = [places[item.order_key] for item in items]
        columns, conditions = as_columns(map(_fields, items)), as_columns(map(_conditions, items))
        (usages,) = as_columns((item.usage,) for item in items)
        fields = (*columns, wait, *self._limits, *conditions, self._notifier is None, usages)
        return await fetch("append_events", [*threads.values()], index, *fields, apps=items[0].apps)


def event_notification(
    *,
    event_id: str,
    thread_id: UUID,
    sequence_num: int,
    run_id: str | None,
    author: str,
    event_type: str,
    created_at: datetime,
) -> str:
    """Return the payload that the trigger `notify_event_insert` sends for the same event."""
    run = "null" if run_id is None else quote(run_id[:_ID_LENGTH])
    return (
        f'{{"event_id":{quote(event_id[:_ID_LENGTH])},"thread_id":"{thread_id}",'
        f'"sequence_num":{sequence_num},"run_id":{run},"author":{quote(author[:_ID_LENGTH])},'
        f'"event_type":{quote(event_type[:_ID_LENGTH])},"created_at":"{created_at.isoformat()}"}}'
    )


def _notification(item: AppendItem, answer: AppendAnswer) -> str:
    return event_notification(
        event_id=item.event_id,
        thread_id=item.thread_id,
        sequence_num=answer.sequence_num,
        run_id=item.run_id,
        author=item.author,
        event_type=item.event_type,
        created_at=answer.created_at,
    )


def _expect_duplicates(items: list[AppendItem]) -> None:
    for item in items:
        item.expects_duplicate = True


def as_columns(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...] | None]:
    """Return the values of each field; None for a field that is None in all rows, which the driver encodes faster."""
    return [None if column.count(None) == len(column) else column for column in zip(*rows, strict=True)]


_NO_FENCE = (None, None)


def _conditions(item: AppendItem) -> tuple[Any, ...]:
    return (item.expected_sequence, item.expected_user_version, item.expected_app_version, *(item.fence or _NO_FENCE))


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
        item.expects_duplicate or None,
    )
