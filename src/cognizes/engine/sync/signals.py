"""Signals: what changed in a context, and its newest sequence. They carry no content; clients pull it.

The feed of a context is encoded as signals: first what the reader missed, then the current state, then changes.

A subscription (`engine.signals`) coalesces: of a message that grew a hundred times between two reads, it returns the
newest sequence once. Signals that cannot be merged are kept up to a limit. Beyond it the oldest are dropped, and the
`sequence_num` of the heartbeat shows the reader that it missed signals.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Self
from uuid import UUID

from cachetools import FIFOCache

from cognizes.engine.concurrency import WakeUp, retry_while_unavailable
from cognizes.engine.database import Database
from cognizes.engine.errors import DatabaseUnavailableError, FeedRewoundError, NotFoundError, PoolTimeoutError
from cognizes.engine.feed import Chunks, Feed, FeedItem, StreamEnd, StreamView
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.pulse.events import message_role
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.streams.chunks import HIDDEN_ROLES, StreamHead
from cognizes.engine.sync.context_state import ContextState, StateFold
from cognizes.engine.sync.contexts import Contexts
from cognizes.engine.timeline.event_reading import Answer, Question, read_parts

MAX_BYTES: Final = 1024
_LONG_ID = 120
_ENCODER = json.JSONEncoder(separators=(",", ":"))
logger = logging.getLogger(__name__)

_QUEUED = 1000


class SignalType(StrEnum):
    STATE_CHANGED = "state_changed"
    CONTENT_DELTA = "content_delta"
    MESSAGE_CREATED = "message_created"
    MESSAGE_COMPLETED = "message_completed"
    TOOL_APPROVAL = "tool_approval"
    TITLE_UPDATED = "title_updated"
    HEARTBEAT = "heartbeat"


@dataclass(frozen=True)
class Signal:
    """One signal. A reader that has it has all signals up to the event `position`.

    One that `restarts` begins the signals of a context again, at a position that may be before earlier ones.
    """

    type: SignalType
    context_id: str
    position: int
    fields: JsonObject = field(default_factory=dict)
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))
    restarts: bool = False

    def to_document(self) -> JsonObject:
        """Return the signal as JSON data. `sequence_num` is its event, or the newest event of the context."""
        moment = self.timestamp.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return {
            "type": self.type,
            "context_id": self.context_id,
            "sequence_num": self.position,
            **self.fields,
            "timestamp": moment,
        }

    def to_text(self) -> str:
        """Return the signal as JSON text of less than a kilobyte; longer ids are cut, and `is_cut` is set."""
        document = self.to_document()
        # ASCII only, so that a character is a byte and lone surrogates can be encoded.
        text = _ENCODER.encode(document)
        if len(text) < MAX_BYTES - _LONG_ID:
            return text
        short = {key: value[:_LONG_ID] if isinstance(value, str) else value for key, value in document.items()}
        text = _ENCODER.encode(short | {"is_cut": True})
        if len(text) < MAX_BYTES:
            return text
        # Characters that JSON escapes take six bytes each.
        shorter = {key: value[:40] if isinstance(value, str) else value for key, value in document.items()}
        return _ENCODER.encode(shorter | {"is_cut": True})


_MISSED_AT_MOST = 1000
_STORED_KEPT = 256


class ContextSignals:
    """Follows one context for one subscription.

    `after` is the last event that the reader received. Without one, or with one too far back, it begins with the
    current state and one signal for each message that is being streamed. `is_restart`: the database lost events that
    the reader has, so the first signal tells it to read all messages again.
    """

    def __init__(
        self,
        database: Database,
        feed: Feed,
        contexts: Contexts,
        thread_id: UUID,
        put: Callable[[Signal], None],
        *,
        is_restart: bool = False,
    ) -> None:
        self._database = database
        self._feed = feed
        self._contexts = contexts
        self._thread_id = thread_id
        self._id = str(thread_id)
        self._put = put
        self._is_restart = is_restart
        self._fold = StateFold()
        self._branch = ""
        self._sent_state: tuple[ContextState, str] | None = None
        self._streaming: dict[str, int] = {}
        self._roles: dict[str, str] = {}
        self._stored: FIFOCache[str, int] = FIFOCache(_STORED_KEPT)
        self._final_sequences: dict[str, int] = {}
        self._head = 0
        self._is_caught_up = False
        self.position = 0

    async def open(self, after: int | None) -> None:
        """Find out where to begin; `NotFoundError` if there is no such context."""
        context = await self._contexts.metadata(self._thread_id)
        self._head, self._branch = context.last_sequence, context.active_branch_name
        is_near = after is not None and self._head - _MISSED_AT_MOST <= after <= self._head
        self.position = after if after is not None and is_near else self._head
        self._fold = await self._contexts.fold(self._thread_id, up_to=self.position, running=context.running)
        self._sent_state = (self._fold.state, self._branch)
        if self.position < self._head:
            rows = await self._database.fetch("read_final_sequences", self._thread_id, self.position, self._head)
            self._final_sequences = {row["message_id"]: row["final_sequence"] for row in rows}

    async def run(self) -> None:
        feed: AsyncGenerator[list[FeedItem], None] = self._feed.follow(
            self._thread_id, self.position, streams=StreamView.HEADS
        )
        try:
            async with aclosing(feed) as pages:
                async for items in pages:
                    self._encode(items)
        except NotFoundError:
            return

    def heartbeat(self) -> Signal:
        """Return a signal that carries only the newest sequence of the context."""
        return self._signal(SignalType.HEARTBEAT)

    def _encode(self, items: Iterable[FeedItem]) -> None:
        heads: list[StreamHead] = []
        for item in items:
            match item:
                case Event():
                    self._on_event(item)
                case Chunks(head=head) if head.role not in HIDDEN_ROLES:
                    if self._is_caught_up:
                        self._on_head(head)
                    else:
                        heads.append(head)
                case StreamEnd(head=head) if head.role not in HIDDEN_ROLES:
                    self._on_end(head)
        if not self._is_caught_up and self.position >= self._head:
            self._is_caught_up = True
            self._final_sequences = {}
            self._show(heads)

    def _show(self, heads: list[StreamHead]) -> None:
        """Put the current state and one signal for each message that is being streamed."""
        for head in heads:
            self._streaming[head.message_id] = head.current_sequence
            self._roles[head.message_id] = head.role
        self._sent_state = None
        if self._is_restart and (changed := self._state_signal()) is not None:
            fields = {**changed[1], "messages_removed": True}
            self._put(Signal(changed[0], self._id, self.position, fields, restarts=True))
        self._put_state()
        for head in heads:
            self._put(self._delta(head))

    def _on_event(self, event: Event) -> None:
        sequence = event.sequence_num or self.position
        signals = self._signals_of(event)
        self._fold.apply(event)
        if event.event_type == "branch_switched":
            self._branch = str(event.content.get("name"))
        name = _message_id(event)
        if self._streaming.pop(name, None) is not None:
            # From here on the event determines the state; the end of the stream comes later.
            self._stored[name] = sequence
        if event.event_type == "messages_removed":
            # Sent also when the state is the same: readers of this branch must read its messages again.
            self._sent_state = None
        if (changed := self._state_signal()) is not None:
            if event.event_type == "messages_removed":
                changed[1]["messages_removed"] = True
            signals.append(changed)
        # Only the last signal of an event moves the position: a reader that has only some of them gets all again.
        self.position = sequence
        for place, (kind, fields) in enumerate(signals, 1):
            position = sequence if place == len(signals) else sequence - 1
            self._put(Signal(kind, self._id, position, {"sequence_num": sequence, **fields}))

    def _signals_of(self, event: Event) -> list[tuple[SignalType, JsonObject]]:
        signals: list[tuple[SignalType, JsonObject]] = []
        role = "assistant" if event.event_type in ("act", "tool_call") else message_role(event)
        name = _message_id(event)
        final = self._final_sequences.get(name) if message_role(event) is not None else None
        if final is not None:
            signals.append((SignalType.MESSAGE_COMPLETED, {"message_id": name, "final_sequence": final}))
        elif role is not None and name not in self._roles:
            signals.append((SignalType.MESSAGE_CREATED, {"message_id": name, "role": role}))
        if event.event_type == "title_updated":
            signals.append((SignalType.TITLE_UPDATED, {}))
        signals += ((SignalType.TOOL_APPROVAL, fields) for fields in _approvals(event))
        return signals

    def _on_head(self, head: StreamHead) -> None:
        name = head.message_id
        known = self._streaming.get(name)
        if name in self._stored or (known is not None and head.current_sequence <= known):
            return
        self._streaming[name] = head.current_sequence
        if known is None:
            self._roles[name] = head.role
            self._put(self._signal(SignalType.MESSAGE_CREATED, message_id=name, role=head.role))
        if head.current_sequence > 0:
            self._put(self._delta(head))
        self._put_state()

    def _on_end(self, head: StreamHead) -> None:
        name = head.message_id
        fields: JsonObject = {"message_id": name, "final_sequence": head.current_sequence, "status": head.status}
        if (sequence := self._stored.get(name)) is not None:
            fields["sequence_num"] = sequence
        self._put(self._signal(SignalType.MESSAGE_COMPLETED, **fields))
        self._streaming.pop(name, None)
        self._roles.pop(name, None)
        self._put_state()

    def _state_signal(self) -> tuple[SignalType, JsonObject] | None:
        streaming = (sequence for name, sequence in self._streaming.items() if self._roles.get(name) == "assistant")
        state = (self._fold.with_streams(streaming), self._branch)
        if state == self._sent_state:
            return None
        self._sent_state = state
        return SignalType.STATE_CHANGED, {"new_state": state[0], "active_branch_name": state[1]}

    def _put_state(self) -> None:
        if (changed := self._state_signal()) is not None:
            self._put(self._signal(changed[0], **changed[1]))

    def _delta(self, head: StreamHead) -> Signal:
        return self._signal(
            SignalType.CONTENT_DELTA, message_id=head.message_id, current_sequence=head.current_sequence
        )

    def _signal(self, kind: SignalType, **fields: Any) -> Signal:
        return Signal(kind, self._id, self.position, fields)


def _message_id(event: Event) -> str:
    given = event.content.get("message_id")
    return given if isinstance(given, str) and given else event.id


def _approvals(event: Event) -> list[JsonObject]:
    """Return the approvals in an event: the engine's own, or confirmations that Google ADK requests."""
    if event.event_type == "decision_asked":
        return [
            {"approval_id": _decision_id(event), "status": "requested", "tool_name": event.content.get("tool_name")}
        ]
    if event.event_type == "decision_answered":
        status = "approved" if event.content.get("approved") else "rejected"
        return [{"approval_id": _decision_id(event), "status": status}]
    found: list[JsonObject] = []
    for part in read_parts(event):
        if isinstance(part, Question):
            call = part.arguments.get("originalFunctionCall") or {}
            found.append({"approval_id": part.id, "status": "requested", "tool_name": call.get("name")})
        elif isinstance(part, Answer):
            found.append({"approval_id": part.id, "status": "answered"})
    return found


def _decision_id(event: Event) -> str:
    return str(event.content.get("decision_id") or event.id)


class Signals:
    def __init__(self, database: Database, feed: Feed, contexts: Contexts) -> None:
        self._database = database
        self._feed = feed
        self._contexts = contexts

    def follow(self, thread_ids: Iterable[str | UUID] = (), *, stays_open: bool = False) -> SignalSubscription:
        """Return a subscription to some contexts, to be entered with `async with` and iterated over."""
        return SignalSubscription(
            self._database,
            self._feed,
            self._contexts,
            [thread_uuid(thread_id) for thread_id in thread_ids],
            stays_open=stays_open,
        )


class SignalSubscription:
    """The signals of some contexts, which may change while it is open.

    Unless it stays open, it ends when all its contexts are deleted.
    """

    def __init__(
        self, database: Database, feed: Feed, contexts: Contexts, thread_ids: list[UUID], *, stays_open: bool
    ) -> None:
        self._database = database
        self._feed = feed
        self._contexts = contexts
        self._first = thread_ids
        self._stays_open = stays_open
        self._followed: dict[UUID, ContextSignals] = {}
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._queue: dict[Hashable, Signal] = {}
        self._number = 0
        self._changed = WakeUp()
        self._is_running = False
        self._is_closed = False

    async def __aenter__(self) -> Self:
        for thread_id in self._first:
            await self.add(thread_id)
        self._is_running = True
        for thread_id in self._followed:
            self._start(thread_id)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def positions(self) -> dict[UUID, int]:
        """The last event of each context whose signals are in the queue or were taken."""
        return {thread_id: context.position for thread_id, context in self._followed.items()}

    @property
    def thread_ids(self) -> list[UUID]:
        return list(self._followed)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def add(self, thread_id: str | UUID, *, after: int | None = None) -> None:
        """Follow a context too, after an event or from now on; `NotFoundError` if there is none."""
        thread = thread_uuid(thread_id)
        if thread in self._followed:
            return
        context = ContextSignals(self._database, self._feed, self._contexts, thread, self._put)
        await context.open(after)
        if self._is_closed or thread in self._followed:
            return
        self._followed[thread] = context
        if self._is_running:
            self._start(thread)

    async def remove(self, thread_id: str | UUID) -> None:
        thread = thread_uuid(thread_id)
        self._followed.pop(thread, None)
        if (task := self._tasks.pop(thread, None)) is not None:
            task.cancel()
            await asyncio.wait([task])
        self._drop_queued(thread)

    async def close(self) -> None:
        self._is_closed = True
        for thread_id in list(self._tasks):
            await self.remove(thread_id)
        self._changed.notify()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Signal:
        while not self._queue:
            await self._wait()
        return self._queue.pop(next(iter(self._queue)))

    async def take(self) -> list[Signal]:
        """Wait for the first signal and return all in the queue; return none if the subscription has ended."""
        try:
            while not self._queue:
                await self._wait()
        except StopAsyncIteration:
            return []
        taken, self._queue = list(self._queue.values()), {}
        return taken

    def heartbeats(self) -> list[Signal]:
        """Return one heartbeat for each context, with its newest sequence."""
        return [context.heartbeat() for context in self._followed.values()]

    async def _wait(self) -> None:
        if self._is_closed or not (self._followed or self._stays_open):
            raise StopAsyncIteration
        await self._changed.wait(self._changed.version)

    def _put(self, signal: Signal) -> None:
        message = (signal.context_id, signal.fields.get("message_id"))
        if signal.type in (SignalType.CONTENT_DELTA, SignalType.MESSAGE_COMPLETED):
            # Moved to the end, so that positions in the queue never decrease.
            self._queue.pop(message, None)
        if signal.type is SignalType.CONTENT_DELTA:
            self._queue[message] = signal
        else:
            self._number += 1
            self._queue[self._number] = signal
        while len(self._queue) > _QUEUED:
            del self._queue[next(iter(self._queue))]
        self._changed.notify()

    def _drop_queued(self, thread: UUID) -> None:
        name = str(thread)
        self._queue = {key: signal for key, signal in self._queue.items() if signal.context_id != name}

    def _start(self, thread_id: UUID) -> None:
        task = asyncio.create_task(self._follow(thread_id), name="signals")
        self._tasks[thread_id] = task
        task.add_done_callback(lambda done: self._end(thread_id, done))

    async def _follow(self, thread_id: UUID) -> None:
        """Follow a context until it is deleted. If the database lost events, restart its signals."""
        while True:
            try:
                await self._followed[thread_id].run()
                return
            except FeedRewoundError as error:
                logger.warning("%s", error)
            self._drop_queued(thread_id)
            context = ContextSignals(self._database, self._feed, self._contexts, thread_id, self._put, is_restart=True)
            try:
                await retry_while_unavailable(
                    lambda: context.open(None),  # noqa: B023 - called in this round only
                    errors=(DatabaseUnavailableError, PoolTimeoutError),
                )
            except NotFoundError:
                return
            self._followed[thread_id] = context

    def _end(self, thread_id: UUID, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the signals of context %s failed", thread_id, exc_info=error)
        if self._tasks.get(thread_id) is task:
            del self._followed[thread_id], self._tasks[thread_id]
        self._changed.notify()
