"""Reads on replicas: `COGNIZES_READ_URL` names standbys that answer timelines, pulls, history, debug and recall.

A caller that has received event N of a thread never reads less. `SequenceGate` notes the sequences that this process
stored, received by notification or delivered; a request may add one with the header `X-Seen-Sequence`. Before a read,
the same connection of the replica says how far it is. If it is behind, gone, slow or refuses the statement, the primary
answers. What no notification announced before, such as memories, is compared by the position in the write-ahead log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import asyncpg

from cognizes.engine.concurrency import Sweeper
from cognizes.engine.database.connection_pool import Database, Fetch
from cognizes.engine.database.hosts import split_hosts
from cognizes.engine.database.tenancy import Apps
from cognizes.engine.errors import DatabaseError, EngineError, SetupError
from cognizes.engine.settings import Settings
from cognizes.engine.supervision import SupervisedLoop

logger = logging.getLogger(__name__)

_NOTED = 100_000
"""The threads whose sequences are noted; with more, all are forgotten and the log position takes their place."""
_CHECK_SECONDS = 2.0
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_seen_sequence: ContextVar[int] = ContextVar("seen_sequence", default=0)
_Result = TypeVar("_Result")


@contextmanager
def having_seen(sequence: int) -> Iterator[None]:
    """Let the reads of this task see at least this event of their thread."""
    token = _seen_sequence.set(sequence)
    try:
        yield
    finally:
        _seen_sequence.reset(token)


@dataclass
class ReadCounters:
    """The number of reads by who answered them, and why it was not a replica."""

    replica: int = 0
    """Answered by a replica."""
    behind: int = 0
    """Answered by the primary, because the replica lacked what the caller has seen."""
    unavailable: int = 0
    """Answered by the primary, because the replica was gone, slow or refused the statement."""


class SequenceGate:
    """The newest sequence of each thread that this process knows of, and the log position for everything before."""

    def __init__(self) -> None:
        self._noted: dict[UUID, int] = {}
        self._position: str | None = None
        self._writes = 0

    def note(self, thread_id: UUID, sequence: int) -> None:
        if sequence > self._noted.get(thread_id, -1):
            if len(self._noted) >= _NOTED:
                self.forget()
            self._noted[thread_id] = sequence

    def forget(self) -> None:
        """Forget all sequences: replicas must reach the present position of the primary."""
        self._noted.clear()
        self._position = None

    async def on_reconnect(self) -> None:
        """Notifications were missed, or the primary is another one."""
        self.forget()

    def needed(self, thread_id: UUID | None) -> int:
        """Return the sequence that a read of a thread must see."""
        return 0 if thread_id is None else max(self._noted.get(thread_id, 0), _seen_sequence.get())

    async def position(self, primary: Database, *, writes: int) -> str:
        """Return the position in the log that a replica must have reached; ask the primary if it wrote since then."""
        if self._position is None or self._writes != writes:
            found: str = await primary.fetch_value("read_log_position")
            self._position, self._writes = found, writes
        return self._position


class Replica:
    """One host of `COGNIZES_READ_URL`. It is used while it is open; after a failure it rests for a growing pause."""

    def __init__(self, url: str, tenant_url: str | None, settings: Settings, *, needs_tenants: bool) -> None:
        self._url = url
        self._tenant_url = tenant_url
        self._settings = settings.model_copy(update={"connect_timeout": settings.read_timeout})
        self._needs_tenants = needs_tenants
        self._rests_until = 0.0
        self._pause = _FIRST_PAUSE
        self.database: Database | None = None

    @property
    def is_usable(self) -> bool:
        return self.database is not None and asyncio.get_running_loop().time() >= self._rests_until

    async def open(self) -> None:
        """Connect, with row level security where the primary has it; `EngineError` if that is not possible."""
        database = await Database.connect(self._url, self._settings, for_reading=True)
        try:
            if self._needs_tenants:
                reason = await database.open_tenant_pool(
                    self._tenant_url or self._url, self._settings, take_role=self._tenant_url is None, for_reading=True
                )
                if reason is not None:
                    raise SetupError(f"row level security cannot be used on a replica: {reason}")
        except BaseException:
            await database.close()
            raise
        self.database = database

    async def close(self) -> None:
        if self.database is not None:
            await self.database.close()
            self.database = None

    def rest(self) -> None:
        self._rests_until = asyncio.get_running_loop().time() + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    def recover(self) -> None:
        self._pause = _FIRST_PAUSE


class ReadDatabase(Database):
    """Runs read-only queries on replicas and falls back to the primary. Without replicas it is the primary.

    The first argument of a query about a thread is the id of the thread.
    """

    def __init__(self, primary: Database, settings: Settings) -> None:
        super().__init__(primary.connections, schema=primary.queries.schema, page_bytes=primary.page_bytes)
        self._primary = primary
        self._unrestricted = primary.without_tenants()
        self._abandoned: set[asyncio.Task[Any]] = set()
        self._seconds = settings.read_timeout
        self._next = 0
        self._opening: SupervisedLoop | None = None
        self._replicas: list[Replica] = []
        self.counters = ReadCounters()
        if settings.read_url is not None:
            primary.gate = SequenceGate()
            own = settings.read_tenant_url
            tenant_urls = split_hosts(own.get_secret_value()) if own is not None else []
            hosts = split_hosts(settings.read_url.get_secret_value())
            if tenant_urls and len(tenant_urls) != len(hosts):
                raise SetupError("COGNIZES_READ_TENANT_URL must list the same hosts as COGNIZES_READ_URL")
            self._replicas = [
                Replica(
                    host,
                    tenant_urls[place] if tenant_urls else None,
                    settings,
                    needs_tenants=primary.has_row_level_security,
                )
                for place, host in enumerate(hosts)
            ]

    @property
    def acting_apps(self) -> Apps | None:
        return self._primary.acting_apps

    @property
    def open_replicas(self) -> int:
        return sum(replica.database is not None for replica in self._replicas)

    async def start(self, sweeper: Sweeper) -> None:
        """Open the replicas that answer now; the others are opened when they do."""
        if self._replicas:
            await self._open_replicas()
            self._opening = sweeper.start("open-replicas", self._open_replicas, seconds=_CHECK_SECONDS)

    async def lags(self) -> dict[str, float]:
        """Return by how many seconds each replica that answers is behind, by its place in COGNIZES_READ_URL."""
        found: dict[str, float] = {}
        for place, replica in enumerate(self._replicas):
            if replica.database is None or not replica.is_usable:
                continue
            try:
                async with asyncio.timeout(self._seconds):
                    found[str(place)] = float(await replica.database.without_tenants().fetch_value("read_replica_lag"))
            except (EngineError, TimeoutError) as error:
                logger.debug("the lag of replica %d is not known: %s", place, error)
        return found

    async def close(self) -> None:
        if self._opening is not None:
            await self._opening.stop()
            self._opening = None
        for replica in self._replicas:
            await replica.close()

    async def _open_replicas(self) -> None:
        for replica in self._replicas:
            if replica.database is None:
                try:
                    await replica.open()
                except EngineError as error:
                    logger.warning("a replica cannot be used yet; the primary answers its reads: %s", error)

    # Queries

    async def fetch(self, query: str, *arguments: Any, apps: Apps | None = None) -> list[asyncpg.Record]:
        async def call(fetch: Fetch) -> list[asyncpg.Record]:
            return await fetch(query, *arguments)

        if apps is not None or not self._replicas:
            return await self._primary.fetch(query, *arguments, apps=apps)
        return await self._read(_thread_of(arguments), call, lambda: self._primary.fetch(query, *arguments))

    async def fetch_row(self, query: str, *arguments: Any) -> asyncpg.Record | None:
        if not self._replicas:
            return await self._primary.fetch_row(query, *arguments)
        return next(iter(await self.fetch(query, *arguments)), None)

    async def fetch_value(self, query: str, *arguments: Any) -> Any:
        if not self._replicas:
            return await self._primary.fetch_value(query, *arguments)
        row = await self.fetch_row(query, *arguments)
        return None if row is None else row[0]

    @asynccontextmanager
    async def one_connection(self) -> AsyncIterator[Fetch]:
        """Run several queries that concern no single thread; each falls back to the primary by itself."""
        if self._replicas:
            yield self.fetch
        else:
            async with self._primary.one_connection() as fetch:
                yield fetch

    async def write_row(self, query: str, *arguments: Any) -> asyncpg.Record | None:
        return await self._primary.write_row(query, *arguments)

    async def write_value(self, query: str, *arguments: Any) -> Any:
        return await self._primary.write_value(query, *arguments)

    def note_sequence(self, thread_id: UUID, sequence: int) -> None:
        self._primary.note_sequence(thread_id, sequence)

    async def catch_up(self, thread_id: UUID) -> None:
        """Let the following reads of a thread see all that is stored now."""
        if self._replicas and (row := await self._primary.fetch_row("read_thread_head", thread_id)) is not None:
            self._primary.note_sequence(thread_id, row["last_sequence"])

    async def _read(
        self,
        thread_id: UUID | None,
        call: Callable[[Fetch], Awaitable[_Result]],
        fall_back: Callable[[], Awaitable[_Result]],
    ) -> _Result:
        replica = self._choose()
        if replica is None or replica.database is None:
            self.counters.unavailable += 1
            return await fall_back()
        assert self._primary.gate is not None  # noqa: S101 - made with the replicas
        position = await self._primary.gate.position(self._unrestricted, writes=self._primary.writes)
        reading = asyncio.create_task(self._read_current(replica.database, thread_id, position, call))
        try:
            await asyncio.wait([reading], timeout=self._seconds)
        finally:
            if not reading.done():
                # A frozen server does not confirm the cancellation: the caller does not wait for that.
                reading.cancel()
                self._abandoned.add(reading)
                reading.add_done_callback(self._forget)
        if not reading.done():
            return await self._answer_without(replica, f"no answer in {self._seconds:g} s", fall_back)
        try:
            answers = reading.result()
        except DatabaseError as error:
            return await self._answer_without(replica, str(error), fall_back)
        except EngineError as error:
            # The primary decides, for example whether a branch exists.
            logger.debug("a replica refused a read: %s", error)
            answers = []
        replica.recover()
        if not answers:
            self.counters.behind += 1
            return await fall_back()
        self.counters.replica += 1
        return answers[0]

    async def _read_current(
        self, database: Database, thread_id: UUID | None, position: str, call: Callable[[Fetch], Awaitable[_Result]]
    ) -> list[_Result]:
        """Return the result of a read; nothing if the replica is behind."""
        async with database.one_connection() as fetch:
            return [await call(fetch)] if await self._is_current(fetch, thread_id, position) else []

    async def _answer_without(
        self, replica: Replica, reason: str, fall_back: Callable[[], Awaitable[_Result]]
    ) -> _Result:
        logger.warning("a replica failed and rests; the primary answers its reads: %s", reason)
        replica.rest()
        self.counters.unavailable += 1
        return await fall_back()

    def _forget(self, reading: asyncio.Task[Any]) -> None:
        self._abandoned.discard(reading)
        if not reading.cancelled() and (error := reading.exception()) is not None:
            logger.debug("an abandoned read failed: %s", error)

    def _choose(self) -> Replica | None:
        usable = [replica for replica in self._replicas if replica.is_usable]
        self._next += 1
        return usable[self._next % len(usable)] if usable else None

    async def _is_current(self, fetch: Fetch, thread_id: UUID | None, position: str) -> bool:
        """Return whether the replica of a connection has what this process knows of, and note what it has."""
        assert self._primary.gate is not None  # noqa: S101 - made with the replicas
        (row,) = await fetch("read_replica_position", thread_id, position)
        if not row["is_current"]:
            return False
        if thread_id is None:
            return True
        sequence = row["last_sequence"]
        if sequence is None or sequence < self._primary.gate.needed(thread_id):
            return False
        # A later read, on another replica, sees no less.
        self._primary.gate.note(thread_id, sequence)
        return True


def _thread_of(arguments: tuple[Any, ...]) -> UUID | None:
    return arguments[0] if arguments and isinstance(arguments[0], UUID) else None
