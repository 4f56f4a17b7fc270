"""`Notifier`: sends notifications about committed rows, on a connection of its own.

NOTIFY in a writing transaction holds a lock of the whole server until the commit is flushed and replicated, so writers
of several processes wait for each other's disk. The engine notifies after the commit instead: one statement for all
notifications that came in since the previous one, in a transaction that does not wait for the disk. A single
notification is sent at once; while there are many, a statement follows the previous one after a short interval.

A notification is a hint to read the database. One that is lost, because the process was killed between the commit and
the notification, costs subscribers one interval of their sweep.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import islice
from typing import Any

import asyncpg

from cognizes.engine.concurrency import WakeUp, retry_while_unavailable
from cognizes.engine.database.driver_errors import DRIVER_ERRORS, translate
from cognizes.engine.database.hosts import HostConnector
from cognizes.engine.database.listener import connect_directly
from cognizes.engine.database.queries import Queries
from cognizes.engine.supervision import SupervisedLoop, Supervisor

logger = logging.getLogger(__name__)

APPLICATION_NAME = "cognizes-notifier"
"""The name of a notifier's connection in `pg_stat_activity`."""
_CONNECT_SECONDS = 10.0
MAX_WAITING = 20_000
"""The notifications that are kept while PostgreSQL is away; older ones are dropped, and sweeps replace them."""
_PER_STATEMENT = 1000
_INTERVAL = 0.004
_LONGEST_PAUSE = 1.0
_LAST_SECONDS = 2.0


class Notifier:
    """Sends notifications in the order of `notify`. It connects when there is something to send."""

    def __init__(self, dsn: str, *, schema: str = "public", supervisor: Supervisor | None = None) -> None:
        self._connector = HostConnector(dsn, seconds=_CONNECT_SECONDS)
        self._statement = Queries(schema)["notify_many"]
        self._supervisor = supervisor or Supervisor()
        self._waiting: deque[tuple[str, str]] = deque()
        self._in_flight: list[tuple[str, str]] = []
        self._changed = WakeUp()
        self._connection: asyncpg.Connection[Any] | None = None
        self._sender: SupervisedLoop | None = None
        self._sent_at = 0.0
        self.dropped = 0
        """The number of notifications that were dropped, because too many waited or PostgreSQL refused them."""

    @property
    def waiting(self) -> int:
        """The number of notifications that PostgreSQL has not accepted yet."""
        return len(self._waiting) + len(self._in_flight)

    def notify(self, channel: str, payload: str) -> None:
        """Send a notification soon. `payload` has at most 7999 bytes."""
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append((channel, payload))
        if len(self._waiting) == 1:
            self._changed.notify()

    async def start(self) -> None:
        if self._sender is None:
            self._sender = self._supervisor.start("notifier", self._send_waiting, longest_pause=_LONGEST_PAUSE)

    async def close(self) -> None:
        """Send what waits, unless PostgreSQL is away, then disconnect."""
        if self._sender is None:
            return
        version = self._changed.version
        while self.waiting and await self._changed.wait(version, timeout=_LAST_SECONDS):
            version = self._changed.version
        if self.waiting:
            logger.warning("%d notifications were not sent; sweeps of other processes replace them", self.waiting)
        await self._sender.stop()
        self._sender = None
        await self._disconnect()

    async def _send_waiting(self) -> None:
        while not self._waiting:
            await self._changed.wait(self._changed.version)
        loop = asyncio.get_running_loop()
        if (pause := self._sent_at + _INTERVAL - loop.time()) > 0:
            await asyncio.sleep(pause)
        self._sent_at = loop.time()
        self._in_flight = list(islice(self._waiting, _PER_STATEMENT))
        for _ in self._in_flight:
            self._waiting.popleft()
        try:
            await retry_while_unavailable(self._send)
        except Exception:
            self.dropped += len(self._in_flight)
            raise
        finally:
            self._in_flight = []
            self._changed.notify()

    async def _send(self) -> None:
        """Send what is in flight. After a lost connection it may be sent twice, which a hint tolerates."""
        channels, payloads = zip(*self._in_flight, strict=True)
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await connect_directly(self._connector, APPLICATION_NAME)
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
