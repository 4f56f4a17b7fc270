"""PgNotifyListener: hears PostgreSQL's NOTIFY on one direct connection, and keeps hearing it.

A notification is a doorbell, not a delivery: PostgreSQL keeps none for a listener that was away. After every
reconnection the callbacks of `on_reconnect` are told, so that they read what they missed.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import asyncpg

from cognizes.engine.database.driver_errors import DRIVER_ERRORS, translate
from cognizes.engine.models import JsonObject
from cognizes.engine.supervision import SupervisedLoop, Supervisor

logger = logging.getLogger(__name__)

DEFAULT_CHANNEL = "event_stream"
APPLICATION_NAME = "cognizes-listener"
"""How `pg_stat_activity` shows the connection of a listener."""

EventCallback = Callable[["NotifyEvent"], Awaitable[None]]
TextCallback = Callable[[str, str], Any]
Reconnected = Callable[[], Awaitable[None]]

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_CHECK_SECONDS = 5.0
_LAST_CALLBACKS_SECONDS = 10.0


@dataclass
class NotifyEvent:
    """One notification. A payload that is not a JSON object arrives as `{"raw": text}`."""

    channel: str
    payload: JsonObject
    received_at: datetime


class PgNotifyListener:
    """Calls back for every notification on its channels.

    Notifications that name the same `thread_id` are handled one after the other, in their order; different threads
    do not wait for each other. A callback that raises is logged and hurts nobody else. A dropped connection is made
    anew, with growing pauses.
    """

    def __init__(self, dsn: str, channels: list[str] | None = None, *, supervisor: Supervisor | None = None) -> None:
        self.dsn = dsn
        self._supervisor = supervisor or Supervisor()
        self.channels = list(channels or [DEFAULT_CHANNEL])
        self.reconnections = 0
        self._listeners: dict[str, list[EventCallback]] = {}
        self._text_listeners: dict[str, list[TextCallback]] = {}
        self._taps: dict[str, list[Callable[[str], None]]] = {}
        self._reconnect_listeners: list[Reconnected] = []
        self._connection: asyncpg.Connection[Any] | None = None
        self._heard: set[str] = set()
        # asyncpg takes one statement at a time: two subscribers, or one and the check, would refuse each other.
        self._speaking = asyncio.Lock()
        self._running = False
        self._keeper: SupervisedLoop | None = None
        self._lost = asyncio.Event()
        self._queues: dict[str, deque[tuple[NotifyEvent, str]]] = {}
        self._workers: set[asyncio.Task[None]] = set()

    @property
    def is_running(self) -> bool:
        """Whether it hears notifications right now."""
        return self._running and self._connection is not None and not self._connection.is_closed()

    def on_event(self, channel: str, callback: EventCallback) -> None:
        """Registers an async callback for a channel."""
        self._listeners.setdefault(channel, []).append(callback)

    def tap(self, channel: str, callback: Callable[[str], None]) -> None:
        """Registers a plain function for a channel's payloads, called at once. It must be quick and must not raise:
        every append of every process passes by here."""
        self._taps.setdefault(channel, []).append(callback)

    def off_event(self, channel: str, callback: EventCallback) -> None:
        """Forgets a callback that `on_event` registered."""
        self._listeners[channel].remove(callback)

    def on_reconnect(self, callback: Reconnected) -> None:
        """Registers an async callback for the moment after a reconnection: catch up now."""
        self._reconnect_listeners.append(callback)

    async def subscribe(self, channel: str, callback: TextCallback) -> None:
        """Listens to a channel, with a callback for the payload's text. While the connection is being made anew, the
        channel is heard as soon as it is there."""
        self._text_listeners.setdefault(channel, []).append(callback)
        if channel not in self.channels:
            self.channels.append(channel)
        await self._settle_channels()

    async def unsubscribe(self, channel: str, callback: TextCallback | None = None) -> None:
        """Forgets a callback that `subscribe` registered for a channel, or all of them. The channel is left when
        nobody hears it any more."""
        callbacks = self._text_listeners.get(channel, [])
        if callback is None:
            callbacks.clear()
        elif callback in callbacks:
            callbacks.remove(callback)
        if not callbacks:
            self._text_listeners.pop(channel, None)
        if channel in self.channels and not self._is_heard(channel):
            self.channels.remove(channel)
        await self._settle_channels()

    def _is_heard(self, channel: str) -> bool:
        return any(known.get(channel) for known in (self._text_listeners, self._listeners, self._taps))

    async def start(self) -> None:
        """Connects and listens; from now on it reconnects by itself."""
        if self._running:
            return
        self._running = True
        try:
            await self._connect()
        except BaseException as error:
            self._running = False
            if isinstance(error, DRIVER_ERRORS):
                raise translate(error) from error
            raise
        self._keeper = self._supervisor.start("notify-listener", self._keep_connected, longest_pause=_LONGEST_PAUSE)

    async def stop(self) -> None:
        """Stops listening; notifications already received are still handled, but not for ever."""
        self._running = False
        if self._keeper is not None:
            await self._keeper.stop()
            self._keeper = None
        await self._disconnect()
        if self._workers:
            _, stuck = await asyncio.wait(self._workers, timeout=_LAST_CALLBACKS_SECONDS)
            for worker in stuck:
                logger.error("a callback of the listener does not return; it is cancelled")
                worker.cancel()
            if stuck:
                await asyncio.wait(stuck)

    async def _connect(self) -> None:
        """It counts as connected when it hears all its channels."""
        connection = await asyncpg.connect(
            self.dsn, timeout=10, command_timeout=10, server_settings={"application_name": APPLICATION_NAME}
        )
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        try:
            async with self._speaking:
                self._heard = set()
                await self._listen(connection)
                self._lost, self._connection = lost, connection
        except BaseException:
            connection.terminate()
            raise

    async def _listen(self, connection: asyncpg.Connection[Any]) -> None:
        """Hears exactly the channels that are wanted now, whoever changed them meanwhile."""
        while (wanted := set(self.channels)) != self._heard:
            for channel in wanted - self._heard:
                await connection.add_listener(channel, self._handle_notification)
                self._heard.add(channel)
            for channel in self._heard - wanted:
                await connection.remove_listener(channel, self._handle_notification)
                self._heard.discard(channel)

    async def _settle_channels(self) -> None:
        async with self._speaking:
            if self._connection is None or self._connection.is_closed():
                return  # whoever connects listens to all that is wanted then
            try:
                await self._listen(self._connection)
            except DRIVER_ERRORS as error:
                logger.debug("the listener's connection fails and is made anew: %s", error)
                self._lost.set()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            try:
                await connection.close(timeout=2)
            except DRIVER_ERRORS as error:
                logger.debug("the listener's connection did not close cleanly: %s", error)
                connection.terminate()

    async def _keep_connected(self) -> None:
        await self._wait_for_loss()
        logger.warning("the listener lost its connection; connecting again")
        await self._disconnect()
        await self._reconnect()
        self.reconnections += 1
        logger.info("the listener is connected again")
        for callback in list(self._reconnect_listeners):
            await self._guarded(callback)

    async def _wait_for_loss(self) -> None:
        """Returns when the connection is gone. A half-dead one says nothing, so it is asked from time to time."""
        while self._connection is not None and not self._connection.is_closed():
            try:
                await asyncio.wait_for(self._lost.wait(), timeout=_CHECK_SECONDS)
                return
            except TimeoutError:
                pass
            try:
                async with self._speaking:
                    await self._connection.fetchval("SELECT 1", timeout=_CHECK_SECONDS)
            except DRIVER_ERRORS as error:
                logger.debug("the listener's connection does not answer: %s", error)
                return

    async def _reconnect(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._connect()
                return
            except Exception as error:
                # Whatever it is: without a listener everybody waits for the sweep.
                known = isinstance(error, DRIVER_ERRORS)
                logger.log(
                    logging.DEBUG if known else logging.ERROR,
                    "the listener cannot connect yet: %s",
                    error,
                    exc_info=None if known else error,
                )
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _handle_notification(self, _connection: Any, _pid: int, channel: str, payload: object) -> None:
        text = str(payload)
        for tap in self._taps.get(channel, ()):
            tap(text)
        if not self._listeners.get(channel) and not self._text_listeners.get(channel):
            return
        event = NotifyEvent(channel=channel, payload=parse_payload(text), received_at=datetime.now(UTC))
        key = str(event.payload.get("thread_id", ""))
        if key in self._queues:
            self._queues[key].append((event, text))
            return
        self._queues[key] = deque([(event, text)])
        worker = asyncio.get_running_loop().create_task(self._work_off(key), name="notify-callbacks")
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)

    async def _work_off(self, key: str) -> None:
        queue = self._queues[key]
        while queue:
            event, text = queue.popleft()
            for callback in list(self._listeners.get(event.channel, ())):
                await self._guarded(callback, event)
            for text_callback in list(self._text_listeners.get(event.channel, ())):
                await self._guarded(text_callback, event.channel, text)
        del self._queues[key]

    @staticmethod
    async def _guarded(callback: Callable[..., Any], *arguments: Any) -> None:
        try:
            result = callback(*arguments)
            if inspect.isawaitable(result):
                await result
        except Exception:
            logger.exception("a callback of the listener failed; the others go on")


def parse_payload(text: str) -> JsonObject:
    """A payload as an object; what is none becomes `{"raw": text}`."""
    try:
        value = json.loads(text)
    except ValueError:
        return {"raw": text}
    return value if isinstance(value, dict) else {"raw": text}
