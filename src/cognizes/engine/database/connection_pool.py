"""The connection pool: named queries, row level security for tenants, connections reused between statements."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID
from weakref import WeakSet

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from cognizes.engine.concurrency import retry_while_unavailable
from cognizes.engine.database.driver_errors import (
    DRIVER_ERRORS,
    is_statement_timeout,
    is_unavailable,
    terminate,
    translate,
    translated,
)
from cognizes.engine.database.hosts import (
    ANY_SERVER,
    CLIENT_GRACE_SECONDS,
    READ_WRITE,
    HostConnector,
    create_pool,
    milliseconds,
)
from cognizes.engine.database.queries import Queries, quote_schema
from cognizes.engine.database.tenancy import Apps, as_tenant_statement, current_apps
from cognizes.engine.errors import DatabaseUnavailableError, EngineClosedError, InvalidInputError, PoolTimeoutError
from cognizes.engine.settings import Settings
from cognizes.engine.telemetry import TELEMETRY

if TYPE_CHECKING:
    from cognizes.engine.database.replicas import SequenceGate

logger = logging.getLogger(__name__)

SERVER_ROLE = "cognizes_server"
_POOL_SIZE_FOR_REUSE = 4
_SILENT_SECONDS = 5.0
"""How long a connection may be in use before its server is checked."""
_CANCEL_SECONDS = 5.0
"""The time limit of the server's confirmation that it cancelled a statement."""
Fetch = Callable[..., Awaitable[list[asyncpg.Record]]]
"""Runs a named query with its arguments."""


@dataclass(frozen=True)
class RowPage:
    rows: list[asyncpg.Record]
    has_more: bool


class Database:
    """Runs named queries on a pool. Waiting for a connection is bounded and ends in `PoolTimeoutError`.

    It also wraps a bare `asyncpg` pool of the caller, which needs no JSON codec: documents are passed as text.
    """

    def __init__(
        self,
        pool: asyncpg.Pool[Any],
        *,
        schema: str = "public",
        pool_timeout: float = 10.0,
        page_bytes: int = 4 * 1024 * 1024,
        reuse_seconds: float = 0.02,
        retry_seconds: float = 0.0,
    ) -> None:
        self.pool = pool
        self.retry_seconds = retry_seconds
        self.writes = 0
        """The number of writes by `write_row` and `write_value`, which no notification announces."""
        self.gate: SequenceGate | None = None
        """What replicas must have; None without replicas."""
        self.reuse_seconds = reuse_seconds
        self.page_bytes = page_bytes
        self.queries = Queries(schema)
        self._pool_timeout = pool_timeout
        self.waiting = 0
        """The number of tasks that wait for a connection."""
        self._tenant_pool: asyncpg.Pool[Any] | None = None
        self._limits_statements = False
        self._tenant_statements: dict[str, str | None] = {}
        self._connectors: dict[asyncpg.Pool[Any], HostConnector] = {}
        self._in_use: dict[PoolConnectionProxy[Any], tuple[asyncpg.Pool[Any], float]] = {}
        self.holders: WeakSet[ReusedConnection] = WeakSet()
        """What keeps a connection between statements."""
        # Acquiring and releasing a connection takes a fifth of the time of a short query.
        self._reused = self._make_reused(pool)
        self._reused_for_tenants: list[ReusedConnection] = []

    def note_sequence(self, thread_id: UUID, sequence: int) -> None:
        """Note that a caller has received an event: reads on replicas must see it."""
        if self.gate is not None:
            self.gate.note(thread_id, sequence)

    @property
    def pools(self) -> dict[str, asyncpg.Pool[Any]]:
        """The pools by the privileges of their connections: `engine` and, with row level security, `tenants`."""
        return {"engine": self.pool} | ({"tenants": self._tenant_pool} if self._tenant_pool is not None else {})

    @classmethod
    async def connect(cls, url: str, settings: Settings, *, for_reading: bool = False) -> Database:
        """Open a pool on a URL: of the primary, or of any server `for_reading`.

        Connections are made when first needed, up to `pool_size`.
        """
        target = ANY_SERVER if for_reading else READ_WRITE
        with translated():
            pool, connector, limits_statements = await create_pool(url, settings, target)
        database = cls(
            pool,
            schema=settings.db_schema,
            pool_timeout=settings.pool_timeout,
            page_bytes=settings.page_bytes,
            retry_seconds=settings.retry_seconds,
        )
        database._limits_statements = limits_statements
        database._connectors[pool] = connector
        return database

    async def close(self) -> None:
        """Close the connections; wait a few seconds for those in use, then terminate them."""
        await self._release_reused()
        for pool in self._pools():
            try:
                await asyncio.wait_for(pool.close(), timeout=5)
            except TimeoutError:
                pool.terminate()

    async def expire_connections(self) -> None:
        """Replace all connections made so far, each when it is next acquired."""
        await self._release_reused()
        for pool in self._pools():
            await pool.expire_connections()

    async def _release_reused(self) -> None:
        for reused in (*self._reused, *self._reused_for_tenants):
            await reused.close()

    def _make_reused(self, pool: asyncpg.Pool[Any], *, for_tenants: bool = False) -> list[ReusedConnection]:
        size = pool.get_max_size()
        number = size // 2 if size >= _POOL_SIZE_FOR_REUSE else 0
        return [ReusedConnection(self, for_tenants=for_tenants) for _ in range(number)]

    def _release_idle(self, pool: asyncpg.Pool[Any], *, for_tenants: bool) -> None:
        """Release a connection that is kept for the next statement, if all others of the pool are in use."""
        if pool.get_size() == pool.get_max_size() and not pool.get_idle_size():
            any(holder.release_if_idle(for_tenants=for_tenants) for holder in self.holders)

    def _pools(self) -> list[asyncpg.Pool[Any]]:
        return [pool for pool in (self._tenant_pool, self.pool) if pool is not None]

    def _pool(self, *, for_tenants: bool) -> asyncpg.Pool[Any]:
        if not for_tenants:
            return self.pool
        assert self._tenant_pool is not None  # noqa: S101 - `acting_apps` is None without it
        return self._tenant_pool

    async def acquire(self, *, for_tenants: bool = False) -> PoolConnectionProxy[Any]:
        """Return a connection, to be returned with `release`; `PoolTimeoutError` when none is free in time."""
        pool = self._pool(for_tenants=for_tenants)
        self._release_idle(pool, for_tenants=for_tenants)
        self.waiting += 1
        measured = TELEMETRY.instruments
        started = time.perf_counter() if measured is not None else 0.0
        try:
            connection = await pool.acquire(timeout=self._pool_timeout)
            self.mark_in_use(connection, for_tenants=for_tenants)
            if measured is not None:
                measured.pool_acquire_seconds.observe(time.perf_counter() - started)
            return connection
        except TimeoutError as error:
            if measured is not None:
                measured.pool_timeouts.inc()
            connector = self._connectors.get(pool)
            if connector is not None and connector.failure is not None:
                raise DatabaseUnavailableError(
                    f"no connection to PostgreSQL in {self._pool_timeout:g} s ({connector.failure}); "
                    "try again in a moment"
                ) from error
            raise PoolTimeoutError(
                f"all {pool.get_max_size()} connections stayed busy for {self._pool_timeout:g} s; "
                "raise COGNIZES_POOL_SIZE, or send less at once"
            ) from error
        except DRIVER_ERRORS as error:
            if pool.is_closing():
                raise EngineClosedError("the engine is closed; open it again, or open another one") from error
            raise translate(error) from error
        finally:
            self.waiting -= 1

    async def release(
        self, connection: PoolConnectionProxy[Any], *, for_tenants: bool = False, after: BaseException | None = None
    ) -> None:
        """Return a connection to its pool; `after` an error of the driver, or a cancellation.

        An abandoned statement is cancelled on the server first: closing the connection would not end it.
        """
        pool = self._pool(for_tenants=for_tenants)
        self._in_use.pop(connection, None)
        if after is None:
            await pool.release(connection)
        elif is_statement_timeout(after) or isinstance(after, asyncio.CancelledError):
            try:
                await pool.release(connection, timeout=_CANCEL_SECONDS)
            except DRIVER_ERRORS as error:
                logger.warning("PostgreSQL did not confirm that it cancelled a statement: %s", error)
        else:
            if is_unavailable(after):
                terminate(connection)
            await pool.release(connection)

    def mark_in_use(self, connection: PoolConnectionProxy[Any], *, for_tenants: bool = False) -> None:
        """Note that a statement is sent on a connection now."""
        self._in_use[connection] = self._pool(for_tenants=for_tenants), asyncio.get_running_loop().time()

    async def drop_silent_connections(self) -> int:
        """Terminate the connections in use whose server answers no new connection, or is not the primary any more.

        Their statements end with `DatabaseUnavailableError` at once instead of after the statement timeout.
        """
        before = asyncio.get_running_loop().time() - _SILENT_SECONDS
        dropped = 0
        for pool, connector in self._connectors.items():
            old = {
                connection: since
                for connection, (owner, since) in self._in_use.items()
                if owner is pool and since < before
            }
            for connection in await connector.silent(old) if old else ():
                # It may have been answered, and used for another statement, while the server was checked.
                if self._in_use.get(connection, (None, 0.0))[1] == old[connection]:
                    terminate(connection)
                    dropped += 1
        if dropped:
            logger.warning("PostgreSQL does not answer, or is read-only: %s connections in use were closed", dropped)
        return dropped

    @asynccontextmanager
    async def connection(self, *, for_tenants: bool = False) -> AsyncIterator[PoolConnectionProxy[Any]]:
        """Hold a connection for the length of a block: with the privileges of the engine, unless `for_tenants`.

        Never acquire a second one while holding one: ten writers on ten connections would deadlock.
        """
        connection = await self.acquire(for_tenants=for_tenants)
        failed: BaseException | None = None
        try:
            yield connection
        except DRIVER_ERRORS as error:
            failed = error
            raise translate(error) from error
        except asyncio.CancelledError as error:
            failed = error
            raise
        finally:
            await self.release(connection, for_tenants=for_tenants, after=failed)

    # Queries

    async def fetch(self, query: str, *arguments: Any, apps: Apps | None = None) -> list[asyncpg.Record]:
        """Return all rows of a named query, seen by the given apps, else by those of the request of this task."""
        apps = self.acting_apps if apps is None else apps
        if apps is not None:
            if self._tenant_statement_or_none(query) is not None:
                for reused in self._reused_for_tenants:
                    if reused.is_free:
                        return await reused.fetch(query, *arguments, apps=apps)
            async with self.connection(for_tenants=True) as connection:
                return await self._fetch_as(connection, apps, query, arguments)
        return cast(list[asyncpg.Record], await self._call("fetch", query, arguments))

    async def fetch_row(self, query: str, *arguments: Any) -> asyncpg.Record | None:
        if self.acting_apps is not None:
            return next(iter(await self.fetch(query, *arguments)), None)
        return cast("asyncpg.Record | None", await self._call("fetchrow", query, arguments))

    async def fetch_value(self, query: str, *arguments: Any) -> Any:
        if self.acting_apps is not None:
            row = await self.fetch_row(query, *arguments)
            return None if row is None else row[0]
        return await self._call("fetchval", query, arguments)

    async def write_row(self, query: str, *arguments: Any) -> asyncpg.Record | None:
        """Run a write that has the same effect when it is sent twice: again while PostgreSQL is unavailable, for
        `retry_seconds`."""
        row = await retry_while_unavailable(lambda: self.fetch_row(query, *arguments), seconds=self.retry_seconds)
        self.writes += 1
        return row

    async def write_value(self, query: str, *arguments: Any) -> Any:
        value = await retry_while_unavailable(lambda: self.fetch_value(query, *arguments), seconds=self.retry_seconds)
        self.writes += 1
        return value

    async def _call(self, method: str, query: str, arguments: tuple[Any, ...]) -> Any:
        for reused in self._reused:
            if reused.is_free:
                return await reused.call(method, self.queries[query], arguments)
        async with self.connection() as connection:
            return await getattr(connection, method)(self.queries[query], *arguments)

    @asynccontextmanager
    async def one_connection(self) -> AsyncIterator[Fetch]:
        """Run several queries on one connection, each with the tenancy of `fetch`."""
        apps = self.acting_apps
        async with self.connection(for_tenants=apps is not None) as connection:

            async def fetch(query: str, *arguments: Any) -> list[asyncpg.Record]:
                if apps is not None:
                    return await self._fetch_as(connection, apps, query, arguments)
                return list(await connection.fetch(self.queries[query], *arguments))

            yield fetch

    async def fetch_within(self, seconds: float, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """Return the rows of a named query, run with the privileges of the engine and its own time limit."""
        async with self.connection() as connection, connection.transaction():
            await connection.execute(self.queries["limit_statements"], milliseconds(seconds), True)
            timeout = seconds + CLIENT_GRACE_SECONDS
            return list(await connection.fetch(self.queries[query], *arguments, timeout=timeout))

    async def fetch_value_within(self, seconds: float, query: str, *arguments: Any) -> Any:
        return (await self.fetch_within(seconds, query, *arguments))[0][0]

    async def execute_within(self, seconds: float, statement: str) -> None:
        """Execute a statement that cannot run in a transaction, with a time limit of its own."""
        async with self.connection() as connection:
            if self._limits_statements:
                await connection.execute(self.queries["limit_statements"], milliseconds(seconds), False)
            try:
                await connection.execute(statement, timeout=seconds + CLIENT_GRACE_SECONDS)
            finally:
                # The next user of this connection has the usual limit, or gets another connection.
                if self._limits_statements:
                    try:
                        await connection.execute("RESET statement_timeout")
                    except DRIVER_ERRORS:
                        terminate(connection)
                        raise

    async def fetch_page(
        self,
        query: str,
        *arguments: Any,
        limit: int,
        whole: str,
        owner: tuple[Any, ...],
        key: str = "sequence_num",
        max_bytes: int | None = None,
    ) -> RowPage:
        """Return the first rows of a named query: at most `limit` and `page_bytes` (or `max_bytes`), but at least one.

        The query returns the size of a row as `bytes`. Its last two parameters are the number of rows and the size
        above which it leaves the long columns of a row null. So a page of small rows is one statement, and of large
        rows only those that fit are read: by the query `whole`, which takes `owner` and a list of keys.
        """
        if limit < 0:
            raise InvalidInputError(f"limit is {limit}; a page has 0 or more rows")
        budget = self.page_bytes if max_bytes is None else max_bytes
        largest = budget // (limit + 1)
        rows = await self.fetch(query, *arguments, limit + 1, largest)
        if all(row["bytes"] <= largest for row in rows):
            return RowPage(rows[:limit], len(rows) > limit)
        page: list[asyncpg.Record] = []
        size = 0
        for row in rows[:limit]:
            size += row["bytes"]
            if page and size > budget:
                break
            page.append(row)
        has_more = len(page) < len(rows)
        if large := [row[key] for row in page if row["bytes"] > largest]:
            found = {row[key]: row for row in await self.fetch(whole, *owner, large)}
            # A row that is missing was deleted with its thread.
            read = (found.get(row[key]) if row["bytes"] > largest else row for row in page)
            page = [row for row in read if row is not None]
        return RowPage(page, has_more)

    # Row level security

    @property
    def has_row_level_security(self) -> bool:
        """Whether row level security filters what requests of tenants see."""
        return self._tenant_pool is not None

    @property
    def acting_apps(self) -> Apps | None:
        """The apps whose rows this task sees under row level security; None for the engine itself."""
        return current_apps() if self._tenant_pool is not None else None

    def tenant_statement(self, query: str) -> str:
        """Return a named query as one statement that sets its apps first, in one more parameter."""
        sql = self._tenant_statement_or_none(query)
        if sql is None:
            raise ValueError(f"the query {query} writes by itself and cannot be one statement that sets its tenant")
        return sql

    def without_tenants(self) -> Database:
        """Return the same database with the privileges of the engine: for authentication, which no tenant may read."""
        return Database(
            self.pool,
            schema=self.queries.schema,
            pool_timeout=self._pool_timeout,
            page_bytes=self.page_bytes,
            retry_seconds=self.retry_seconds,
        )

    async def open_tenant_pool(
        self, url: str, settings: Settings, *, take_role: bool, for_reading: bool = False
    ) -> str | None:
        """Open the pool for requests of tenants. Return why it cannot be used; it is closed then.

        With `take_role` its connections log in as the engine and take the role `cognizes_server`; without, the URL
        names a member of it. `DatabaseUnavailableError` when PostgreSQL cannot be reached.
        """
        try:
            pool, connector, _ = await create_pool(
                url,
                settings,
                ANY_SERVER if for_reading else READ_WRITE,
                **({"role": SERVER_ROLE} if take_role else {}),
            )
        except DRIVER_ERRORS as error:
            return _reason(error)
        try:
            role = await pool.fetchrow(self.queries["describe_role"])
        except DRIVER_ERRORS as error:
            pool.terminate()
            return _reason(error)
        if role is None or role["bypasses"] or not role["is_server"] or not role["is_protected"]:
            await pool.close()
            return f"the policies are missing, or do not hold for {role['name'] if role else 'the role'}"
        self._tenant_pool = pool
        self._connectors[pool] = connector
        self._reused_for_tenants = self._make_reused(pool, for_tenants=True)
        return None

    async def _fetch_as(
        self, connection: PoolConnectionProxy[Any], apps: Apps, query: str, arguments: tuple[Any, ...]
    ) -> list[asyncpg.Record]:
        statement = self._tenant_statement_or_none(query)
        if statement is not None:
            return list(await connection.fetch(statement, *arguments, apps))
        async with connection.transaction():
            await connection.fetchval(self.queries["enter_tenant"], apps)
            return list(await connection.fetch(self.queries[query], *arguments))

    def _tenant_statement_or_none(self, query: str) -> str | None:
        if query not in self._tenant_statements:
            self._tenant_statements[query] = as_tenant_statement(self.queries[query], quote_schema(self.queries.schema))
        return self._tenant_statements[query]


class ReusedConnection:
    """Runs consecutive statements on one connection and releases it after a short idle time.

    Releasing and acquiring again takes more than a tenth of the time of an append. One user at a time. While a task
    waits for a connection of the pool, this one is released after every statement, or at once if it is idle. One
    `for_tenants` belongs to the tenants' pool; each of its statements sets the apps on whose behalf it is sent.
    """

    def __init__(self, database: Database, *, for_tenants: bool = False) -> None:
        self._database = database
        self._for_tenants = for_tenants
        self._connection: PoolConnectionProxy[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._uses = 0
        self._is_in_use = False
        self._release_after_use = False
        self._releases: set[asyncio.Task[None]] = set()
        database.holders.add(self)

    @property
    def is_free(self) -> bool:
        return not self._is_in_use

    def release_if_idle(self, *, for_tenants: bool) -> bool:
        """Release a connection of this pool that runs no statement; return whether there was one."""
        if self._connection is None or self._is_in_use or self._for_tenants != for_tenants:
            return False
        self._release()
        return True

    async def fetch(self, query: str, *arguments: Any, apps: Apps | None = None) -> list[asyncpg.Record]:
        if apps is None:
            return cast(list[asyncpg.Record], await self.call("fetch", self._database.queries[query], arguments))
        statement = self._database.tenant_statement(query)
        return cast(list[asyncpg.Record], await self.call("fetch", statement, (*arguments, apps)))

    async def call(self, method: str, statement: str, arguments: tuple[Any, ...]) -> Any:
        self._uses += 1
        self._is_in_use = True
        try:
            if self._connection is not None and _is_broken(self._connection):
                self._release()
            if self._connection is None:
                self._connection = await self._acquire()
            else:
                self._database.mark_in_use(self._connection, for_tenants=self._for_tenants)
            answer = await getattr(self._connection, method)(statement, *arguments)
        except DRIVER_ERRORS as error:
            self._release(after=error)
            raise translate(error) from error
        except BaseException as error:
            self._release(after=error)
            raise
        finally:
            self._is_in_use = False
        if self._database.waiting or self._release_after_use:
            self._release()
        elif self._timer is None:
            self._start_timer()
        return answer

    async def close(self) -> None:
        """Release the connection now, or after the statement that uses it."""
        if self._is_in_use:
            self._release_after_use = True
        else:
            self._release()
        await asyncio.gather(*self._releases)

    async def _acquire(self) -> PoolConnectionProxy[Any]:
        if self._releases:
            # The pool serves the first caller: tasks that waited before must be able to acquire the released one.
            await asyncio.wait(self._releases)
            await asyncio.sleep(0)
        return await self._database.acquire(for_tenants=self._for_tenants)

    def _start_timer(self) -> None:
        # One timer for many statements: one for each would take as long as the JSON of an event.
        self._timer = asyncio.get_running_loop().call_later(
            self._database.reuse_seconds, self._release_if_idle, self._uses
        )

    def _release_if_idle(self, uses_then: int) -> None:
        if uses_then == self._uses and not self._is_in_use:
            self._release()
        else:
            self._start_timer()

    def _release(self, *, after: BaseException | None = None) -> None:
        self._release_after_use = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connection is not None:
            task = asyncio.ensure_future(self._return(self._connection, after))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)
            self._connection = None

    async def _return(self, connection: PoolConnectionProxy[Any], after: BaseException | None) -> None:
        try:
            await self._database.release(connection, for_tenants=self._for_tenants, after=after)
        except DRIVER_ERRORS as error:
            logger.debug("a broken connection was released: %s", error)


class ReusedConnections:
    def __init__(self, database: Database) -> None:
        self._own = ReusedConnection(database)
        self._of_tenants = ReusedConnection(database, for_tenants=True)

    def fetch(self, query: str, *arguments: Any, apps: Apps | None = None) -> Awaitable[list[asyncpg.Record]]:
        if apps is None:
            return self._own.fetch(query, *arguments)
        return self._of_tenants.fetch(query, *arguments, apps=apps)

    async def close(self) -> None:
        await self._own.close()
        await self._of_tenants.close()


def _is_broken(connection: PoolConnectionProxy[Any]) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        # The pool has discarded it.
        return True


def _reason(error: BaseException) -> str:
    """Return why the tenants' pool cannot be used; raise if the server cannot be reached."""
    # PgBouncer answers an unknown start-up parameter, as `role` is to it, with a protocol violation.
    if is_unavailable(error) and not isinstance(error, asyncpg.ProtocolViolationError):
        raise translate(error) from error
    return str(error)
