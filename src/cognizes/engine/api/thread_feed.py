"""What a WebSocket says about a thread: its stored events, the chunks of its messages, and other notifications."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from datetime import UTC, datetime
from types import TracebackType
from typing import Self
from uuid import UUID

from fastapi import WebSocketException

from cognizes.engine.agui.monitor import Step
from cognizes.engine.database.tenancy import continue_in_task
from cognizes.engine.engine import Engine
from cognizes.engine.errors import EngineError, NotFoundError
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.pulse.pg_notify_listener import DEFAULT_CHANNEL, NotifyEvent
from cognizes.engine.streams.postgres_deltas import CHANNEL as STREAM_CHANNEL

logger = logging.getLogger(__name__)

EVERYTHING = "*"
_WAITING = 256
_POLICY_VIOLATION = 1008
_REASON_BYTES = 120


class ThreadFeed:
    """Follows one thread, or everything, for one connection.

    Stored events of a thread are read back by the hub: in order, without gaps. The text of a message that is streamed
    comes as TEXT_MESSAGE_* and REASONING_* frames on the channel of the streams, before the message's stored event.
    Notifications that are no stored event, and everything under `*`, are passed on as they come; a reader that is too
    slow for those misses some.
    """

    def __init__(self, engine: Engine, thread_id: str, *, after: int | None) -> None:
        self._engine = engine
        self._name = thread_id
        self._after = after
        self._thread: UUID | None = None
        self._items: asyncio.Queue[JsonObject | None] = asyncio.Queue(_WAITING)
        self._pump: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            head = (await self._engine.sessions.store.get_thread(self._name)).last_sequence
        except NotFoundError:
            if self._engine.database.acting_apps is not None:
                # Test notifications are not for tenants: a thread that one cannot see is somebody else's, or nobody's.
                raise WebSocketException(
                    _POLICY_VIOLATION, f"there is no thread {self._name}"[:_REASON_BYTES]
                ) from None
            head = None
        if head is not None:
            self._thread = UUID(self._name)
            start = head if self._after is None else max(self._after, 0)
            self._pump = continue_in_task(self._follow(self._thread, start), name="thread-feed")
        self._engine.listener.on_event(DEFAULT_CHANNEL, self._on_notification)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.listener.off_event(DEFAULT_CHANNEL, self._on_notification)
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])

    async def next(self) -> JsonObject | None:
        """What is to be sent next; None when nothing more can come: the thread was deleted, or the engine closes."""
        return await self._items.get()

    async def _follow(self, thread_id: UUID, after: int) -> None:
        try:
            async with aclosing(self._engine.monitor_frames.follow_thread(thread_id, after=after)) as pages:
                async for page in pages:
                    for step in page:
                        await self._put(step)
        except EngineError as error:
            logger.warning("thread %s cannot be followed any more: %s", thread_id, error)
        await self._items.put(None)

    async def _put(self, step: Step) -> None:
        for frame in step.frames if step.is_streamed else ():
            if frame.type.startswith(("TEXT_", "REASONING_")):
                payload = {"thread_id": self._name, **frame.to_json()}
                await self._items.put(_item(payload, datetime.now(UTC), channel=STREAM_CHANNEL))
        if step.event is not None:
            await self._items.put(_item(_payload(step.event), datetime.now(UTC)))

    async def _on_notification(self, event: NotifyEvent) -> None:
        if self._name not in (EVERYTHING, event.payload.get("thread_id")):
            return
        if self._thread is not None and isinstance(event.payload.get("sequence_num"), int):
            return  # a stored event: the hub reads it back
        try:
            self._items.put_nowait(_item(event.payload, event.received_at))
        except asyncio.QueueFull:
            logger.warning("a reader of %s is too slow for notifications; one was left out", self._name)


def _item(payload: JsonObject, received_at: datetime, *, channel: str = DEFAULT_CHANNEL) -> JsonObject:
    return {"channel": channel, "payload": payload, "received_at": received_at.isoformat()}


def _payload(event: Event) -> JsonObject:
    return {
        "event_id": event.id,
        "thread_id": event.thread_id,
        "sequence_num": event.sequence_num,
        "run_id": event.run_id,
        "author": event.author,
        "event_type": event.event_type,
        "created_at": event.created_at.isoformat() if event.created_at else None,
    }
