"""Notifications of PostgreSQL: `PgNotifyListener` receives them, `Notifier` sends them; each on a direct connection.

A notification is a hint to read the database. One that is lost, because the process was killed between the commit and
the notification, costs subscribers one interval of their sweep. PostgreSQL keeps none for a disconnected listener.
After every reconnection the listener calls the callbacks of `on_reconnect`, so that they read what they missed.

NOTIFY in a writing transaction holds a lock of the whole server until the commit is flushed and replicated, so writers
of several processes wait for each other's disk. The engine notifies after the commit instead: one statement for all
notifications that came in since the previous one, in a transaction that does not wait for the disk.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import asyncpg

from cognizes.engine.concurrency import WakeUp, retry_while_unavailable
from cognizes.engine.database.documents import parse_json
from cognizes.engine.database.driver_errors import DRIVER_ERRORS, translate
from cognizes.engine.database.hosts import HostConnector
from cognizes.engine.database.queries import Queries, channel_suffix
from cognizes.engine.models import JsonObject
from cognizes.engine.supervision import SupervisedLoop, Supervisor

logger = logging.getLogger(__name__)

DEFAULT_CHANNEL = "event_stream"
"""Announces stored events."""
STREAM_CHANNEL = "stream_moved"
"""Announces opened and ended streams, and new chunks of the PostgreSQL backend."""
ACCESS_CHANNEL = "access_changed"
"""Announces the id of a key that changed."""
ENGINE_CHANNELS = frozenset({DEFAULT_CHANNEL, STREAM_CHANNEL, ACCESS_CHANNEL})
"""The channels of the engine. In a schema other than `public` PostgreSQL knows them by another name."""
LISTENER_NAME = "cognizes-listener"
"""The name of a listener's connection in `pg_stat_activity`."""
NOTIFIER_NAME = "cognizes-notifier"
"""The name of a notifier's connection in `pg_stat_activity`."""
MAX_WAITING = 20_000
"""The notifications that are kept while PostgreSQL is away; older ones are dropped, and sweeps replace them."""
EventCallback = Callable[["NotifyEvent"], Awaitable[None]]
TextCallback = Callable[[str, str], Any]
Reconnected = Callable[[], Awaitable[None]]
Connect = Callable[[], Awaitable["asyncpg.Connection[Any]"]]
_LONGEST_PAUSE = 2.0
_CONNECT_SECONDS = 10.0
_PER_STATEMENT = 1000
_INTERVAL = 0.004
_LONGEST_SEND_PAUSE = 1.0
_LAST_SECONDS = 2.0


@dataclass
class NotifyEvent:
    """One notification. A payload that is not a JSON object arrives as `{"raw": text}`."""

    channel: str
    payload: JsonObject
    received_at: datetime


class PgNotifyListener:
    """Calls back for every notification on its channels.

    Notifications with the same `thread_id` are handled one after the other, in order; different threads do not wait for
    each other. An exception of a callback is logged and does not affect other callbacks. The listener replaces a lost
    connection, with growing pauses between attempts.

    `schema` is that of the engine whose notifications are wanted. Callers use the names of `ENGINE_CHANNELS` in every
    schema; the listener adds the suffix of the schema. Other channels are global.

    `connect` opens the connection; by default it connects to the primary among the hosts of the DSN. The listener
    checks a silent connection every `check_seconds`, and gives callbacks `stop_seconds` to return when it stops.
    """

    def __init__(
        self,
        dsn: str,
        channels: list[str] | None = None,
        *,
        schema: str = "public",
        supervisor: Supervisor | None = None,
        connect_seconds: float = 10.0,
        connect: Connect | None = None,
        check_seconds: float = 5.0,
        stop_seconds: float = 10.0,
    ) -> None:
        self.dsn = dsn
        self._open_connection = connect or partial(
            connect_directly, HostConnector(dsn, seconds=connect_seconds), LISTENER_NAME
        )
        self._check_seconds = check_seconds
        self._stop_seconds = stop_seconds
        suffix = channel_suffix(schema)
        self._names_on_server = {name: name + suffix for name in ENGINE_CHANNELS}
        self._names = {on_server: name for name, on_server in self._names_on_server.items()}
        self._supervisor = supervisor or Supervisor()
        self.channels = list(channels or [DEFAULT_CHANNEL])
        self.reconnections = 0
        self._listeners: dict[str, list[EventCallback]] = {}
        self._text_listeners: dict[str, list[TextCallback]] = {}
        self._taps: dict[str, list[Callable[[str], None]]] = {}
        self._reconnect_listeners: list[Reconnected] = []
        self._connection: asyncpg.Connection[Any] | None = None
        self._subscribed: set[str] = set()
        # An asyncpg connection runs one statement at a time: subscriptions and the check take turns.
        self._statement = asyncio.Lock()
        self._running = False
        self.is_running = False
        """Whether it receives notifications now."""
        self._keeper: SupervisedLoop | None = None
        self._lost = asyncio.Event()
        self._queues: dict[str, deque[tuple[NotifyEvent, str]]] = {}
        self._workers: set[asyncio.Task[None]] = set()

    def on_event(self, channel: str, callback: EventCallback) -> None:
        self._listeners.setdefault(channel, []).append(callback)

    def tap(self, channel: str, callback: Callable[[str], None]) -> None:
        """Register a synchronous function for a channel's payloads, called at once.

        It must be quick and must not raise: it runs for every append of every process.
        """
        self._taps.setdefault(channel, []).append(callback)

    def off_event(self, channel: str, callback: EventCallback) -> None:
        self._listeners[channel].remove(callback)

    def on_reconnect(self, callback: Reconnected) -> None:
        """Register an async callback that runs after each reconnection."""
        self._reconnect_listeners.append(callback)

    async def subscribe(self, channel: str, callback: TextCallback) -> None:
        """Listen to a channel, with a callback for the payload's text; while disconnected, after the reconnection."""
        self._text_listeners.setdefault(channel, []).append(callback)
        if channel not in self.channels:
            self.channels.append(channel)
        await self._apply_channels()

    async def unsubscribe(self, channel: str, callback: TextCallback | None = None) -> None:
        """Remove a callback that `subscribe` registered, or all of a channel; leave a channel without callbacks."""
        callbacks = self._text_listeners.get(channel, [])
        if callback is None:
            callbacks.clear()
        elif callback in callbacks:
            callbacks.remove(callback)
        if not callbacks:
            self._text_listeners.pop(channel, None)
        registered = (self._text_listeners, self._listeners, self._taps)
        if channel in self.channels and not any(known.get(channel) for known in registered):
            self.channels.remove(channel)
        await self._apply_channels()

    async def start(self) -> None:
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
        """Stop; wait for the callbacks of received notifications, up to a limit."""
        self._running = self.is_running = False
        if self._keeper is not None:
            await self._keeper.stop()
            self._keeper = None
        await self._disconnect()
        for worker in (stuck := await self.wait_for_callbacks(self._stop_seconds)):
            logger.error("a callback of the listener does not return and is cancelled")
            worker.cancel()
        if stuck:
            await asyncio.wait(stuck)

    async def wait_for_callbacks(self, seconds: float | None = None) -> set[asyncio.Task[None]]:
        """Wait until the callbacks of all received notifications returned; return the tasks that still run."""
        return (await asyncio.wait(self._workers, timeout=seconds))[1] if self._workers else set()

    async def _connect(self) -> None:
        connection = await self._open_connection()
        lost = asyncio.Event()

        def note_loss(_: object) -> None:
            lost.set()
            if self._lost is lost:
                self.is_running = False

        connection.add_termination_listener(note_loss)
        try:
            async with self._statement:
                self._subscribed = set()
                await self._listen(connection)
                self._lost, self._connection, self.is_running = lost, connection, not lost.is_set()
        except BaseException:
            connection.terminate()
            raise

    async def _listen(self, connection: asyncpg.Connection[Any]) -> None:
        while (wanted := set(self.channels)) != self._subscribed:
            for channel in wanted - self._subscribed:
                await connection.add_listener(self._on_server(channel), self._handle_notification)
                self._subscribed.add(channel)
            for channel in self._subscribed - wanted:
                await connection.remove_listener(self._on_server(channel), self._handle_notification)
                self._subscribed.discard(channel)

    def _on_server(self, channel: str) -> str:
        return self._names_on_server.get(channel, channel)

    async def _apply_channels(self) -> None:
        async with self._statement:
            if self._connection is None or self._connection.is_closed():
                return  # The next connection listens to all wanted channels.
            try:
                await self._listen(self._connection)
            except DRIVER_ERRORS as error:
                logger.debug("the listener replaces a failed connection: %s", error)
                self._lost.set()

    async def _disconnect(self) -> None:
        connection, self._connection, self.is_running = self._connection, None, False
        if connection is not None and not connection.is_closed():
            try:
                await connection.close(timeout=2)
            except DRIVER_ERRORS as error:
                logger.debug("the listener's connection did not close cleanly: %s", error)
                connection.terminate()

    async def _keep_connected(self) -> None:
        """Replace the connection when it is lost. After a failed attempt the supervisor begins the next round."""
        if self._connection is not None:
            await self._wait_for_loss()
            logger.warning("the listener lost its connection; connecting again")
            await self._disconnect()
        try:
            await self._connect()
        except DRIVER_ERRORS as error:
            raise translate(error) from error
        self.reconnections += 1
        logger.info("the listener is connected again")
        for callback in list(self._reconnect_listeners):
            await self._guarded(callback)

    async def _wait_for_loss(self) -> None:
        """Return when the connection is lost. A half-open one is silent, so the listener checks it periodically."""
        while self._connection is not None and not self._connection.is_closed():
            try:
                await asyncio.wait_for(self._lost.wait(), timeout=self._check_seconds)
                return
            except TimeoutError:
                pass
            try:
                async with self._statement:
                    if await self._connection.fetchval("SELECT pg_is_in_recovery()", timeout=self._check_seconds):
                        logger.debug("the listener's server is a standby now")
                        return
            except DRIVER_ERRORS as error:
                logger.debug("the listener's connection does not answer: %s", error)
                return

    def _handle_notification(self, _connection: Any, _pid: int, channel: str, payload: object) -> None:
        text = str(payload)
        channel = self._names.get(channel, channel)
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
        worker = asyncio.get_running_loop().create_task(self._handle_queue(key), name="notify-callbacks")
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)

    async def _handle_queue(self, key: str) -> None:
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
            logger.exception("a callback of the listener failed")


class Notifier:
    """Sends notifications in the order of `notify`. It connects when there is something to send.

    A single notification is sent at once; while there are many, a statement follows the previous one after a short
    interval.
    """

    def __init__(self, dsn: str, *, schema: str = "public", supervisor: Supervisor | None = None) -> None:
        self._connector = HostConnector(dsn, seconds=_CONNECT_SECONDS)
        self._statement = Queries(schema)["notify_many"]
        self._supervisor = supervisor or Supervisor()
        self._queue: deque[tuple[str, str]] = deque()
        self._queued = WakeUp()
        self._in_flight: list[tuple[str, str]] = []
        self._sent = WakeUp()
        self._connection: asyncpg.Connection[Any] | None = None
        self._sender: SupervisedLoop | None = None
        self._sent_at = 0.0
        self.dropped = 0
        """The number of notifications that were dropped, because too many waited or PostgreSQL refused them."""

    @property
    def waiting(self) -> int:
        """The number of notifications that PostgreSQL has not accepted yet."""
        return len(self._queue) + len(self._in_flight)

    def notify(self, channel: str, payload: str) -> None:
        """Send a notification soon. `payload` has at most 7999 bytes."""
        if len(self._queue) >= MAX_WAITING:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append((channel, payload))
        self._queued.notify()

    async def start(self) -> None:
        if self._sender is None:
            self._sender = self._supervisor.start("notifier", self._send_waiting, longest_pause=_LONGEST_SEND_PAUSE)

    async def close(self) -> None:
        """Send what waits, unless PostgreSQL is away, then disconnect."""
        if self._sender is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                while self.waiting:
                    await self._sent.wait(self._sent.version)
        if self.waiting:
            logger.warning("%d notifications were not sent; sweeps of other processes replace them", self.waiting)
        await self._sender.stop()
        self._sender = None
        await self._disconnect()

    async def _send_waiting(self) -> None:
        if not self._queue:
            await self._queued.wait(self._queued.version)
        loop = asyncio.get_running_loop()
        if (pause := self._sent_at + _INTERVAL - loop.time()) > 0:
            await asyncio.sleep(pause)
        self._sent_at = loop.time()
        self._in_flight = [self._queue.popleft() for _ in range(min(len(self._queue), _PER_STATEMENT))]
        try:
            await retry_while_unavailable(self._send)
        except Exception:
            self.dropped += len(self._in_flight)
            raise
        finally:
            self._in_flight = []
            self._sent.notify()

    async def _send(self) -> None:
        """Send what is in flight. After a lost connection it may be sent twice, which a hint tolerates."""
        channels, payloads = zip(*self._in_flight, strict=True)
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await connect_directly(self._connector, NOTIFIER_NAME)
            await self._connection.execute(self._statement, channels, payloads)
        except DRIVER_ERRORS as error:
            if self._connection is not None:
                self._connection.terminate()
                self._connection = None
            raise translate(error) from error

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            try:
                await connection.close(timeout=_LAST_SECONDS)
            except DRIVER_ERRORS as error:
                logger.debug("the notifier's connection did not close cleanly: %s", error)
                connection.terminate()


async def connect_directly(connector: HostConnector, name: str) -> asyncpg.Connection[Any]:
    """Return a connection outside the pool, with a name in `pg_stat_activity`."""
    return await connector.connect(command_timeout=10, server_settings={"application_name": name})


def parse_payload(text: str) -> JsonObject:
    """Return a payload as an object; `{"raw": text}` if it is none."""
    try:
        value = parse_json(text)
    except ValueError:
        return {"raw": text}
    return value if isinstance(value, dict) else {"raw": text}
