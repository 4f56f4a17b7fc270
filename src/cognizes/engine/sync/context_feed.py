"""What happens in one context, as signals: first what the reader missed, then where things stand, then what comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from cognizes.engine.database import Database
from cognizes.engine.database.tenancy import continue_in_task
from cognizes.engine.errors import DatabaseUnavailableError, NotFoundError, PoolTimeoutError
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.pulse.events import EventLog, message_role
from cognizes.engine.pulse.live_hub import LiveHub
from cognizes.engine.streams.delta_stream import StreamHead, StreamStatus
from cognizes.engine.streams.message_streams import MessageStreams
from cognizes.engine.streams.stream_hub import StreamWatch
from cognizes.engine.sync.context_state import ContextState, StateFold
from cognizes.engine.sync.contexts import Contexts
from cognizes.engine.sync.signals import Signal, SignalType
from cognizes.engine.timeline.event_reading import Answer, Question, read_parts

logger = logging.getLogger(__name__)

_MISSED_AT_MOST = 1000
_PAGE = 500
_ENDS_REMEMBERED = 256
_FAR = 2**63
_RETRY_SECONDS = 0.2

Result = TypeVar("Result")


@dataclass(frozen=True)
class Sources:
    """Where a feed hears of things."""

    database: Database
    hub: LiveHub
    streams: MessageStreams
    contexts: Contexts


class ContextFeed:
    """Follows one context for one subscription.

    `after` is the event that the reader was told of last. Without one, and with one that is too far back, it begins
    with where things stand now: the state, and one signal for each message that is being streamed.
    """

    def __init__(self, sources: Sources, thread_id: UUID, put: Callable[[Signal], None]) -> None:
        self._sources = sources
        self._thread_id = thread_id
        self._id = str(thread_id)
        self._put = put
        self._log = EventLog(sources.database)
        self._fold = StateFold()
        self._branch = ""
        self._told: tuple[ContextState, str] | None = None
        self._streaming: dict[str, int] = {}
        self._roles: dict[str, str] = {}
        self._began: dict[str, int] = {}
        self._ending: dict[str, _Ending] = {}
        self._stored: dict[str, int] = {}
        self.position = 0
        self._head = 0

    async def open(self, after: int | None) -> None:
        """Finds out where to begin; `NotFoundError` when there is no such context."""
        context = await self._sources.contexts.metadata(self._thread_id)
        self._head, self._branch = context.last_sequence, context.active_branch_name
        is_near = after is not None and self._head - _MISSED_AT_MOST <= after <= self._head
        self.position = after if after is not None and is_near else self._head
        self._fold = await self._sources.contexts.fold(self._thread_id, up_to=self.position, running=context.running)
        self._told = (self._fold.state, self._branch)

    async def run(self) -> None:
        """Puts signals until the context is gone."""
        try:
            async with self._watch() as watch:
                await self._catch_up()
                await self._show(await _until_available(self._sources.streams.heads, [self._thread_id]))
                moving = continue_in_task(self._follow_streams(watch), name="signals-streams")
                try:
                    async with aclosing(self._sources.hub.follow(self._thread_id, after=self.position)) as events:
                        async for event in events:
                            self._on_event(event)
                finally:
                    moving.cancel()
                    await asyncio.wait([moving])
        except NotFoundError:
            return  # it was deleted meanwhile

    def heartbeat(self) -> Signal:
        """A signal that says only how far the context has come."""
        return self._signal(SignalType.HEARTBEAT)

    @asynccontextmanager
    async def _watch(self) -> AsyncIterator[StreamWatch]:
        watch = self._sources.streams.watch(self._thread_id)
        await _until_available(watch.__aenter__)
        try:
            yield watch
        finally:
            watch.close()

    async def _catch_up(self) -> None:
        """What the reader missed while it was away."""
        while self.position < self._head:
            events = await _until_available(self._log.read, self._thread_id, after=self.position, limit=_PAGE)
            if not events:
                return
            for event in events:
                final = await self._final_sequence(event)
                self._on_event(event, final=final)

    async def _final_sequence(self, event: Event) -> int | None:
        if message_role(event) is None:
            return None
        found: int | None = await _until_available(
            self._sources.database.fetch_value, "read_final_sequence", self._thread_id, _message_id(event)
        )
        return found

    async def _show(self, heads: list[StreamHead]) -> None:
        for head in heads:
            self._streaming[head.message_id] = head.current_sequence
            self._roles[head.message_id] = head.role
        self._told = None
        self._tell_state()
        for head in heads:
            self._put(self._delta(head))

    async def _follow_streams(self, watch: StreamWatch) -> None:
        async for head in watch:
            try:
                await self._on_head(head)
            except Exception:
                logger.exception("a stream could not be signalled; its reader heals by itself")

    def _on_event(self, event: Event, *, final: int | None = None) -> None:
        sequence = event.sequence_num or self.position
        signals = self._signals_of(event, final=final)
        self._fold.apply(event)
        if event.event_type == "branch_switched":
            self._branch = str(event.content.get("name"))
        self._settle(_message_id(event), sequence)
        for name in [name for name, ending in self._ending.items() if ending.is_due(name in self._stored, sequence)]:
            signals.append((SignalType.MESSAGE_COMPLETED, self._ending.pop(name).fields(name, self._stored.get(name))))
            self._forget(name)
        # What the event itself changed is told before what began after it.
        for began_before in (sequence, sequence + 1):
            if (changed := self._state_signal(began_before=began_before)) is not None:
                signals.append(changed)
        # Whoever has only some of an event's signals is told all of them again.
        self.position = sequence
        for place, (kind, fields) in enumerate(signals, 1):
            position = sequence if place == len(signals) else sequence - 1
            self._put(Signal(kind, self._id, position, {"sequence_num": sequence, **fields}))

    def _signals_of(self, event: Event, *, final: int | None) -> list[tuple[SignalType, JsonObject]]:
        signals: list[tuple[SignalType, JsonObject]] = []
        role = "assistant" if event.event_type in ("act", "tool_call") else message_role(event)
        message_id = _message_id(event)
        if final is not None:
            signals.append((SignalType.MESSAGE_COMPLETED, {"message_id": message_id, "final_sequence": final}))
        elif role is not None and message_id not in self._roles:
            signals.append((SignalType.MESSAGE_CREATED, {"message_id": message_id, "role": role}))
        if event.event_type == "title_updated":
            signals.append((SignalType.TITLE_UPDATED, {}))
        signals += ((SignalType.TOOL_APPROVAL, fields) for fields in _approvals(event))
        return signals

    async def _on_head(self, head: StreamHead) -> None:
        name = head.message_id
        if head.status is not StreamStatus.STREAMING:
            await self._end_stream(head)
            return
        if name in self._stored:
            return
        known = self._streaming.get(name)
        if known is not None and head.current_sequence <= known:
            return
        self._streaming[name] = head.current_sequence
        if known is None:
            self._roles[name] = head.role
            self._put(self._signal(SignalType.MESSAGE_CREATED, message_id=name, role=head.role))
        if head.current_sequence > 0:
            self._put(self._delta(head))
        if known is None:
            # It began after the events that are there by now: what those changed is told first.
            self._began[name] = _FAR
            self._began[name] = await self._last_sequence()
        self._tell_state()

    async def _end_stream(self, head: StreamHead) -> None:
        """The stored message moves the state on and says where it stands. Until its event was seen, the state is that
        of the stream: it must not fall back to what was before for a moment. One that said nothing has no event."""
        name = head.message_id
        ending = _Ending(head, until=await self._last_sequence())
        if ending.is_due(name in self._stored, self._fold.sequence):
            self._put(self._signal(SignalType.MESSAGE_COMPLETED, **ending.fields(name, self._stored.get(name))))
            self._forget(name)
            self._tell_state()
        else:
            self._ending[name] = ending

    async def _last_sequence(self) -> int:
        row = await _until_available(self._sources.database.fetch_row, "read_thread_head", self._thread_id)
        return row["last_sequence"] if row is not None else 0

    def _settle(self, message_id: str, sequence: int) -> None:
        """The message is stored: from here on the event tells the state. Its stream's end may be heard of later."""
        if self._streaming.pop(message_id, None) is not None:
            self._stored[message_id] = sequence
            while len(self._stored) > _ENDS_REMEMBERED:
                del self._stored[next(iter(self._stored))]

    def _forget(self, message_id: str) -> None:
        self._streaming.pop(message_id, None)
        self._began.pop(message_id, None)
        self._roles.pop(message_id, None)

    def _state(self, began_before: int) -> ContextState:
        return self._fold.with_streams(
            sequence
            for name, sequence in self._streaming.items()
            if self._roles.get(name) == "assistant" and self._began.get(name, -1) < began_before
        )

    def _state_signal(self, *, began_before: int) -> tuple[SignalType, JsonObject] | None:
        now = (self._state(began_before), self._branch)
        if now == self._told:
            return None
        self._told = now
        return SignalType.STATE_CHANGED, {"new_state": now[0], "active_branch_name": now[1]}

    def _tell_state(self) -> None:
        if (changed := self._state_signal(began_before=self._fold.sequence + 1)) is not None:
            self._put(self._signal(changed[0], **changed[1]))

    def _delta(self, head: StreamHead) -> Signal:
        return self._signal(
            SignalType.CONTENT_DELTA, message_id=head.message_id, current_sequence=head.current_sequence
        )

    def _signal(self, kind: SignalType, **fields: Any) -> Signal:
        return Signal(kind, self._id, self.position, fields)


@dataclass(frozen=True)
class _Ending:
    """A stream that has ended; its event, if it has one, is not after `until`."""

    head: StreamHead
    until: int

    def is_due(self, is_stored: bool, sequence: int) -> bool:
        return is_stored or self.until <= sequence

    def fields(self, message_id: str, sequence: int | None) -> JsonObject:
        found = {"message_id": message_id, "final_sequence": self.head.current_sequence, "status": self.head.status}
        return found if sequence is None else {**found, "sequence_num": sequence}


def _message_id(event: Event) -> str:
    given = event.content.get("message_id")
    return given if isinstance(given, str) and given else event.id


def _approvals(event: Event) -> list[JsonObject]:
    """What an event says about approvals: the engine's own, or a confirmation that Google ADK asks for."""
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


async def _until_available(read: Callable[..., Awaitable[Result]], *arguments: Any, **named: Any) -> Result:
    while True:
        try:
            return await read(*arguments, **named)
        except (DatabaseUnavailableError, PoolTimeoutError) as error:
            logger.debug("signals wait for PostgreSQL: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)
