"""The connection pool: named queries, row level security for tenants, connections reused between statements."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from cognizes.engine.concurrency import create_shared_task, retry_while_unavailable
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
_LEFT_TO_BLOCKS = 2
_REUSE_SECONDS = 0.02
_CLOSED = "the engine is closed; open it again, or open another one"
_SILENT_SECONDS = 5.0
"""How long a connection may be in use before its server is checked."""
_CANCEL_SECONDS = 5.0
"""The time limit of the server's confirmation that it cancelled a statement."""
Connection: TypeAlias = "PoolConnectionProxy[Any]"
_Waiter: TypeAlias = "asyncio.Future[Connection | None]"
Fetch = Callable[..., Awaitable[list[asyncpg.Record]]]
"""Runs a named query with its arguments."""


@dataclass(frozen=True)
class RowPage:
    rows: list[asyncpg.Record]
    has_more: bool


class ConnectionPool:
    """Lends the connections of one `asyncpg` pool: first come, first served, and kept for a moment between statements.

    Releasing and acquiring a connection takes a fifth of the time of a short query. So `run` keeps the connection of a
    statement: the next waiting task gets it at once; without one it goes back to the pool after `reuse_seconds`.

    - Statements use at most all connections but two, so blocks (`connection`) and batches find one under any number of
      readers. Where both wait, they alternate.
    - At most that many connections are kept, none of a pool of fewer than four: other users of the pool need some.
    - A task never waits in the queue of the pool while another task of the engine holds all connections: `asyncio`
      puts a waiter that was overtaken at the end of that queue.
    """

    def __init__(
        self,
        pool: asyncpg.Pool[Any],
        *,
        timeout: float,
        reuse_seconds: float = _REUSE_SECONDS,
        connector: HostConnector | None = None,
    ) -> None:
        self.pool = pool
        self.reuse_seconds = reuse_seconds
        self.waiting = 0
        """The number of tasks that wait for a connection."""
        self._timeout = timeout
        self._connector = connector
        size = pool.get_max_size()
        self._most_kept = size - _LEFT_TO_BLOCKS if size >= _POOL_SIZE_FOR_REUSE else 0
        self._most_statements = self._most_kept or size
        self._free = size
        """The number of connections that are neither lent nor kept."""
        self._kept: list[Connection] = []
        self._kept_since_check = 0
        """How many connections, from the first, were kept all the time since the timer was started."""
        self._timer: asyncio.TimerHandle | None = None
        self._lent: dict[Connection, float] = {}
        """The time of the last statement or block of each lent connection."""
        self._expired: set[Connection] = set()
        self._statements = 0
        self._waiting_statements: deque[_Waiter] = deque()
        self._waiting_blocks: deque[_Waiter] = deque()
        self._blocks_next = True
        self._releases: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def run(self, method: str, statement: str, arguments: tuple[Any, ...], *, is_batch: bool = False) -> Any:
        """Run one statement by a method of the connection; one of a batch waits as a block does."""
        connection = await self._take(is_statement=not is_batch)
        try:
            answer = await getattr(connection, method)(statement, *arguments)
        except BaseException as error:
            self._statements -= not is_batch
            self._release_later(connection, after=error)
            self._serve()
            if isinstance(error, DRIVER_ERRORS):
                raise translate(error) from error
            raise
        self._statements -= not is_batch
        if self._is_keepable(connection):
            del self._lent[connection]
            self._kept.append(connection)
            self._serve()
            if self._timer is None and self._kept:
                self._start_timer()
        else:
            await self._release(connection)
        return answer

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend a connection for a block. It goes back to the pool behind it, so other users of the pool get a turn."""
        connection = await self._take(is_statement=False)
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
            await self._release(connection, after=failed)

    async def expire_connections(self) -> None:
        """Replace all connections made so far, each when it is next acquired."""
        self._expired = set(self._lent)
        await self._release_kept()
        await self.pool.expire_connections()

    async def close(self) -> None:
        """Close the connections; wait a few seconds for those in use, then terminate them."""
        self._is_closed = True
        for waiter in (*self._waiting_statements, *self._waiting_blocks):
            if not waiter.done():
                waiter.set_exception(EngineClosedError(_CLOSED))
        await self._release_kept()
        try:
            await asyncio.wait_for(self.pool.close(), timeout=5)
        except TimeoutError:
            self.pool.terminate()

    async def drop_silent_connections(self) -> int:
        """Terminate the lent connections whose server answers no new connection, or is not the primary any more."""
        before = asyncio.get_running_loop().time() - _SILENT_SECONDS
        old = {connection: since for connection, since in self._lent.items() if since < before}
        dropped = 0
        for connection in await self._connector.silent(old) if old and self._connector is not None else ():
            # It may have been answered, and used for another statement, while the server was checked.
            if self._lent.get(connection) == old[connection]:
                terminate(connection)
                dropped += 1
        return dropped

    # Taking and waiting

    async def _take(self, *, is_statement: bool) -> Connection:
        """Return a connection; `PoolTimeoutError` when none is free in time. A statement is counted from here on."""
        if self._is_closed:
            raise EngineClosedError(_CLOSED)
        loop = asyncio.get_running_loop()
        started = loop.time()
        if (self._kept or self._free) and not (is_statement and self._statements >= self._most_statements):
            self._statements += is_statement
            connection = self._next_free()
        else:
            connection = await self._wait(is_statement=is_statement)
        if connection is None or _is_broken(connection):
            try:
                if connection is not None:
                    del self._lent[connection]
                    await self._release_to_pool(connection, None)
                connection = await self._acquire(self._timeout - (loop.time() - started))
            except BaseException:
                self._statements -= is_statement
                self._free += 1
                self._serve()
                raise
            self._lent[connection] = loop.time()
        if (measured := TELEMETRY.instruments) is not None:
            measured.pool_acquire_seconds.observe(loop.time() - started)
        return connection

    async def _wait(self, *, is_statement: bool) -> Connection | None:
        """Wait for a connection, or for the right to acquire one from the pool."""
        loop = asyncio.get_running_loop()
        waiter: _Waiter = loop.create_future()
        queue = self._waiting_statements if is_statement else self._waiting_blocks
        queue.append(waiter)
        timer = loop.call_later(self._timeout, self._time_out, waiter)
        self.waiting += 1
        try:
            return await waiter
        except BaseException:
            if waiter in queue:
                queue.remove(waiter)
            elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                # It was served in the step of the event loop in which it was cancelled.
                self._statements -= is_statement
                if (connection := waiter.result()) is not None:
                    self._release_later(connection)
                else:
                    self._free += 1
                self._serve()
            raise
        finally:
            self.waiting -= 1
            timer.cancel()

    def _serve(self) -> None:
        """Serve waiting tasks while there are connections for them."""
        while (self._kept or self._free) and (waiter := self._next_waiter()) is not None:
            waiter.set_result(self._next_free())

    def _next_waiter(self) -> _Waiter | None:
        statements, blocks = self._waiting_statements, self._waiting_blocks
        for queue in (statements, blocks):
            while queue and queue[0].done():
                queue.popleft()
        may_run = bool(statements) and self._statements < self._most_statements
        if blocks and (self._blocks_next or not may_run):
            self._blocks_next = False
            return blocks.popleft()
        if may_run:
            self._blocks_next = True
            self._statements += 1
            return statements.popleft()
        return None

    def _next_free(self) -> Connection | None:
        """Return a kept connection, or None for the right to acquire one."""
        if self._kept:
            connection = self._kept.pop()
            self._kept_since_check = min(self._kept_since_check, len(self._kept))
            self._lent[connection] = asyncio.get_running_loop().time()
            return connection
        self._free -= 1
        return None

    def _time_out(self, waiter: _Waiter) -> None:
        if not waiter.done():
            waiter.set_exception(self._timeout_error())

    def _timeout_error(self) -> Exception:
        if (measured := TELEMETRY.instruments) is not None:
            measured.pool_timeouts.inc()
        if self._connector is not None and self._connector.failure is not None:
            return DatabaseUnavailableError(
                f"no connection to PostgreSQL in {self._timeout:g} s ({self._connector.failure}); try again in a moment"
            )
        return PoolTimeoutError(
            f"all {self.pool.get_max_size()} connections stayed busy for {self._timeout:g} s; "
            "raise COGNIZES_POOL_SIZE, or send less at once"
        )

    async def _acquire(self, timeout: float) -> Connection:
        self.waiting += 1
        try:
            return await self.pool.acquire(timeout=timeout)
        except TimeoutError as error:
            raise self._timeout_error() from error
        except DRIVER_ERRORS as error:
            if self.pool.is_closing():
                raise EngineClosedError(_CLOSED) from error
            raise translate(error) from error
        finally:
            self.waiting -= 1

    # Keeping and releasing

    def _is_keepable(self, connection: Connection) -> bool:
        return (
            len(self._kept) + self._statements < self._most_kept
            and not self._is_closed
            and connection not in self._expired
        )

    def _start_timer(self) -> None:
        # One timer for many statements: one for each would take as long as the JSON of an event.
        self._kept_since_check = len(self._kept)
        self._timer = asyncio.get_running_loop().call_later(self.reuse_seconds, self._release_unused)

    def _release_unused(self) -> None:
        self._timer = None
        unused, self._kept = self._kept[: self._kept_since_check], self._kept[self._kept_since_check :]
        for connection in unused:
            self._release_later(connection)
        if self._kept:
            self._start_timer()

    async def _release_kept(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        kept, self._kept = self._kept, []
        for connection in kept:
            self._release_later(connection)
        await asyncio.gather(*self._releases)

    def _release_later(self, connection: Connection, *, after: BaseException | None = None) -> None:
        """Release a connection in a task of its own: PostgreSQL confirms a cancellation only after a moment."""
        task = create_shared_task(self._release(connection, after=after), name="release-connection")
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, connection: Connection, *, after: BaseException | None = None) -> None:
        self._lent.pop(connection, None)
        self._expired.discard(connection)
        try:
            await self._release_to_pool(connection, after)
        finally:
            self._free += 1
            self._serve()

    async def _release_to_pool(self, connection: Connection, after: BaseException | None) -> None:
        """Return a connection to its pool; `after` an error of the driver, or a cancellation.

        An abandoned statement is cancelled on the server first: closing the connection would not end it.
        """
        cancels = after is not None and (is_statement_timeout(after) or isinstance(after, asyncio.CancelledError))
        if after is not None and not cancels and is_unavailable(after):
            terminate(connection)
        try:
            await self.pool.release(connection, timeout=_CANCEL_SECONDS if cancels else None)
        except DRIVER_ERRORS as error:
            if cancels:
                logger.warning("PostgreSQL did not confirm that it cancelled a statement: %s", error)
            else:
                logger.debug("a broken connection was released: %s", error)


class Database:
    """Runs named queries on a pool. Waiting for a connection is bounded and ends in `PoolTimeoutError`.

    It also wraps a bare `asyncpg` pool of the caller, which needs no JSON codec: documents are passed as text.
    """

    def __init__(
        self,
        pool: asyncpg.Pool[Any] | ConnectionPool,
        *,
        schema: str = "public",
        pool_timeout: float = 10.0,
        page_bytes: int = 4 * 1024 * 1024,
        reuse_seconds: float = _REUSE_SECONDS,
        retry_seconds: float = 0.0,
    ) -> None:
        if not isinstance(pool, ConnectionPool):
            pool = ConnectionPool(pool, timeout=pool_timeout, reuse_seconds=reuse_seconds)
        self.connections = pool
        self.tenant_connections: ConnectionPool | None = None
        """With row level security: connections for requests of tenants."""
        self.pool = pool.pool
        self.retry_seconds = retry_seconds
        self.writes = 0
        """The number of writes by `write_row` and `write_value`, which no notification announces."""
        self.gate: SequenceGate | None = None
        """What replicas must have; None without replicas."""
        self.page_bytes = page_bytes
        self.queries = Queries(schema)
        self._limits_statements = False
        self._tenant_statements: dict[str, str | None] = {}

    def note_sequence(self, thread_id: UUID, sequence: int) -> None:
        """Note that a caller has received an event: reads on replicas must see it."""
        if self.gate is not None:
            self.gate.note(thread_id, sequence)

    @property
    def pools(self) -> dict[str, asyncpg.Pool[Any]]:
        """The pools by the privileges of their connections: `engine` and, with row level security, `tenants`."""
        tenants = self.tenant_connections
        return {"engine": self.pool} | ({"tenants": tenants.pool} if tenants is not None else {})

    @property
    def waiting(self) -> int:
        """The number of tasks that wait for a connection."""
        return sum(connections.waiting for connections in self._connection_pools())

    @classmethod
    async def connect(cls, url: str, settings: Settings, *, for_reading: bool = False) -> Database:
        """Open a pool on a URL: of the primary, or of any server `for_reading`.

        Connections are made when first needed, up to `pool_size`.
        """
        target = ANY_SERVER if for_reading else READ_WRITE
        with translated():
            pool, connector, limits_statements = await create_pool(url, settings, target)
        database = cls(
            ConnectionPool(pool, timeout=settings.pool_timeout, connector=connector),
            schema=settings.db_schema,
            page_bytes=settings.page_bytes,
            retry_seconds=settings.retry_seconds,
        )
        database._limits_statements = limits_statements
        return database

    async def close(self) -> None:
        """Close the connections; wait a few seconds for those in use, then terminate them."""
        for connections in self._connection_pools():
            await connections.close()

    async def expire_connections(self) -> None:
        """Replace all connections made so far, each when it is next acquired."""
        for connections in self._connection_pools():
            await connections.expire_connections()

    async def drop_silent_connections(self) -> int:
        """Terminate the connections in use whose server answers no new connection, or is not the primary any more.

        Their statements end with `DatabaseUnavailableError` at once instead of after the statement timeout.
        """
        dropped = sum([await connections.drop_silent_connections() for connections in self._connection_pools()])
        if dropped:
            logger.warning("PostgreSQL does not answer, or is read-only: %s connections in use were closed", dropped)
        return dropped

    def connection(self, *, for_tenants: bool = False) -> AbstractAsyncContextManager[Connection]:
        """Hold a connection for the length of a block: with the privileges of the engine, unless `for_tenants`.

        Never acquire a second one while holding one: ten writers on ten connections would deadlock.
        """
        return (self._tenants if for_tenants else self.connections).connection()

    def _connection_pools(self) -> list[ConnectionPool]:
        return [pool for pool in (self.tenant_connections, self.connections) if pool is not None]

    @property
    def _tenants(self) -> ConnectionPool:
        assert self.tenant_connections is not None  # noqa: S101 - `acting_apps` is None without it
        return self.tenant_connections

    # Queries

    async def fetch(self, query: str, *arguments: Any, apps: Apps | None = None) -> list[asyncpg.Record]:
        """Return all rows of a named query, seen by the given apps, else by those of the request of this task."""
        apps = self.acting_apps if apps is None else apps
        if apps is not None:
            if (statement := self._tenant_statement_or_none(query)) is not None:
                return list(await self._tenants.run("fetch", statement, (*arguments, apps)))
            async with self.connection(for_tenants=True) as connection:
                return await self._fetch_as(connection, apps, query, arguments)
        return list(await self.connections.run("fetch", self.queries[query], arguments))

    async def fetch_batch(self, query: str, *arguments: Any, apps: Apps | None) -> list[asyncpg.Record]:
        """Return all rows of a statement of group commit, of the given apps or, with None, of the engine.

        It is one of few at a time, for many callers: single statements always leave it a connection.
        """
        if apps is not None:
            statement = self.tenant_statement(query)
            return list(await self._tenants.run("fetch", statement, (*arguments, apps), is_batch=True))
        return list(await self.connections.run("fetch", self.queries[query], arguments, is_batch=True))

    async def fetch_row(self, query: str, *arguments: Any) -> asyncpg.Record | None:
        if self.acting_apps is not None:
            return next(iter(await self.fetch(query, *arguments)), None)
        return cast("asyncpg.Record | None", await self.connections.run("fetchrow", self.queries[query], arguments))

    async def fetch_value(self, query: str, *arguments: Any) -> Any:
        if self.acting_apps is not None:
            row = await self.fetch_row(query, *arguments)
            return None if row is None else row[0]
        return await self.connections.run("fetchval", self.queries[query], arguments)

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
        return self.tenant_connections is not None

    @property
    def acting_apps(self) -> Apps | None:
        """The apps whose rows this task sees under row level security; None for the engine itself."""
        return current_apps() if self.tenant_connections is not None else None

    def tenant_statement(self, query: str) -> str:
        """Return a named query as one statement that sets its apps first, in one more parameter."""
        sql = self._tenant_statement_or_none(query)
        if sql is None:
            raise ValueError(f"the query {query} writes by itself and cannot be one statement that sets its tenant")
        return sql

    def without_tenants(self) -> Database:
        """Return the same database with the privileges of the engine: for authentication, which no tenant may read."""
        return Database(
            self.connections,
            schema=self.queries.schema,
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
        self.tenant_connections = ConnectionPool(pool, timeout=settings.pool_timeout, connector=connector)
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
