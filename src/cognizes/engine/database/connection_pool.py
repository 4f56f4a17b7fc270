"""A bounded pool of connections that many clients share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from cognizes.engine.database.driver_errors import (
    DRIVER_ERRORS,
    UNAVAILABLE,
    cut,
    is_statement_timeout,
    translate,
    translated,
)
from cognizes.engine.database.queries import Queries, quote_schema
from cognizes.engine.database.sticky_connection import StickyConnection
from cognizes.engine.database.tenancy import Apps, current_apps, enter_first
from cognizes.engine.errors import EngineClosedError, InvalidInputError, PoolTimeoutError
from cognizes.engine.settings import Settings

logger = logging.getLogger(__name__)

SERVER_ROLE = "cognizes_server"
_ENOUGH_TO_KEEP_ONE = 4
_CLIENT_GRACE_SECONDS = 1.0
"""The server ends a statement first; the client gives up this much later, when the server does not answer."""
_CANCEL_SECONDS = 5.0
"""How long a connection waits until the server confirms that it cancelled a statement."""

Fetch = Callable[..., Awaitable[list[asyncpg.Record]]]
"""Asks a named query with its arguments."""


@dataclass(frozen=True)
class RowPage:
    """The rows of a page and whether the query has rows after them."""

    rows: list[asyncpg.Record]
    has_more: bool


async def _keep_session(connection: Any) -> None:
    """Replaces asyncpg's reset, which costs a round trip per use: no code of ours leaves session state behind."""


class Database:
    """Runs named queries on a pool. Waiting for a connection is bounded and ends in a clear error.

    It also wraps a bare `asyncpg` pool made by somebody else, as long as it needs no JSON codec: values go in and
    come out as text.
    """

    def __init__(
        self,
        pool: asyncpg.Pool[Any],
        *,
        schema: str = "public",
        pool_timeout: float = 10.0,
        page_bytes: int = 4 * 1024 * 1024,
    ) -> None:
        self.pool = pool
        self.page_bytes = page_bytes
        self.queries = Queries(schema)
        self._pool_timeout = pool_timeout
        self._waiting = 0
        self._tenant_pool: asyncpg.Pool[Any] | None = None
        self._limits_statements = False
        self._entering: dict[str, str | None] = {}
        # Taking a connection and giving it back is a fifth of a short question: whoever asks alone, one question after
        # the other, keeps one.
        self._at_hand = StickyConnection(self) if pool.get_max_size() >= _ENOUGH_TO_KEEP_ONE else None

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for a connection now."""
        return self._waiting > 0

    @classmethod
    async def connect(cls, url: str, settings: Settings) -> Database:
        """Opens a pool on a URL. Connections are made when first needed, up to `pool_size`."""
        with translated():
            pool, limits_statements = await _create_pool(url, settings)
        database = cls(
            pool,
            schema=settings.db_schema,
            pool_timeout=settings.pool_timeout,
            page_bytes=settings.page_bytes,
        )
        database._limits_statements = limits_statements
        return database

    async def close(self) -> None:
        """Closes the connections; waits a moment for those in use, then cuts them."""
        if self._at_hand is not None:
            await self._at_hand.close()
        for pool in (self._tenant_pool, self.pool):
            if pool is not None:
                await _close(pool)

    async def expire_connections(self) -> None:
        """Lets nobody get a connection again that was made before now."""
        if self._at_hand is not None:
            await self._at_hand.close()
        for pool in (self._tenant_pool, self.pool):
            if pool is not None:
                await pool.expire_connections()

    async def acquire(self, *, for_tenants: bool = False) -> PoolConnectionProxy[Any]:
        """A connection, to be given back with `release`; `PoolTimeoutError` when none became free in time."""
        return await self._acquire_from(self._pool(for_tenants=for_tenants))

    async def release(
        self, connection: PoolConnectionProxy[Any], *, for_tenants: bool = False, after: BaseException | None = None
    ) -> None:
        """Gives a connection back to where it came from; `after` an error of the driver, or a cancellation.

        A statement that was given up is cancelled on the server first: closing the connection would not end it.
        """
        pool = self._pool(for_tenants=for_tenants)
        if after is None:
            await pool.release(connection)
        elif is_statement_timeout(after) or isinstance(after, asyncio.CancelledError):
            try:
                await pool.release(connection, timeout=_CANCEL_SECONDS)
            except DRIVER_ERRORS as error:
                logger.warning("PostgreSQL did not confirm that it cancelled a statement: %s", error)
        else:
            if isinstance(after, UNAVAILABLE):
                cut(connection)
            await pool.release(connection)

    def _pool(self, *, for_tenants: bool) -> asyncpg.Pool[Any]:
        if not for_tenants:
            return self.pool
        assert self._tenant_pool is not None  # noqa: S101 - nobody acts for tenants without it
        return self._tenant_pool

    async def _acquire_from(self, pool: asyncpg.Pool[Any]) -> PoolConnectionProxy[Any]:
        self._waiting += 1
        try:
            return await pool.acquire(timeout=self._pool_timeout)
        except TimeoutError as error:
            raise PoolTimeoutError(
                f"all {pool.get_max_size()} connections stayed busy for {self._pool_timeout:g} s; "
                "raise COGNIZES_POOL_SIZE, or send less at once"
            ) from error
        except DRIVER_ERRORS as error:
            if pool.is_closing():
                raise EngineClosedError("the engine is closed; open it again, or open another one") from error
            raise translate(error) from error
        finally:
            self._waiting -= 1

    @asynccontextmanager
    async def connection(self, *, for_tenants: bool = False) -> AsyncIterator[PoolConnectionProxy[Any]]:
        """A connection for the length of a block: of the engine itself, whoever's task this is, unless for tenants.

        Never ask for a second one while holding one: ten writers on ten connections would wait for each other.
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

    async def fetch_value_within(self, seconds: float, query: str, *arguments: Any) -> Any:
        """The first column of the first row of a named query of the engine itself, with a time limit of its own."""
        async with self.connection() as connection, connection.transaction():
            await connection.execute(self.queries["limit_statements"], _milliseconds(seconds), True)
            return await connection.fetchval(self.queries[query], *arguments, timeout=seconds + _CLIENT_GRACE_SECONDS)

    async def execute_within(self, seconds: float, statement: str) -> None:
        """Executes a statement that cannot stand in a transaction, with a time limit of its own."""
        async with self.connection() as connection:
            if self._limits_statements:
                await connection.execute(self.queries["limit_statements"], _milliseconds(seconds), False)
            try:
                await connection.execute(statement, timeout=seconds + _CLIENT_GRACE_SECONDS)
            finally:
                # The next user of this connection has the usual limit again, or gets another connection.
                if self._limits_statements:
                    try:
                        await connection.execute("RESET statement_timeout")
                    except DRIVER_ERRORS:
                        cut(connection)
                        raise

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[Fetch]:
        """Several questions on one connection, each asked like `fetch` asks it."""
        apps = self.acting_apps
        async with self.connection(for_tenants=apps is not None) as connection:

            async def fetch(query: str, *arguments: Any) -> list[asyncpg.Record]:
                return await self._ask(connection, apps, query, arguments)

            yield fetch

    async def fetch(self, query: str, *arguments: Any, apps: Apps | None = None) -> list[asyncpg.Record]:
        """All rows of a named query; on behalf of some apps, else of those of the request that this task answers."""
        apps = self.acting_apps if apps is None else apps
        if apps is not None:
            return await self._fetch_for(apps, query, arguments)
        if self._at_hand is not None and self._at_hand.is_free:
            return await self._at_hand.fetch(query, *arguments)
        async with self.connection() as connection:
            rows: list[asyncpg.Record] = await connection.fetch(self.queries[query], *arguments)
            return rows

    async def fetch_row(self, query: str, *arguments: Any) -> asyncpg.Record | None:
        """The first row of a named query."""
        if (apps := self.acting_apps) is not None:
            return next(iter(await self._fetch_for(apps, query, arguments)), None)
        if self._at_hand is not None and self._at_hand.is_free:
            return await self._at_hand.fetch_row(query, *arguments)
        async with self.connection() as connection:
            return await connection.fetchrow(self.queries[query], *arguments)

    async def fetch_value(self, query: str, *arguments: Any) -> Any:
        """The first column of the first row of a named query."""
        if (apps := self.acting_apps) is not None:
            row = next(iter(await self._fetch_for(apps, query, arguments)), None)
            return None if row is None else row[0]
        if self._at_hand is not None and self._at_hand.is_free:
            return await self._at_hand.fetch_value(query, *arguments)
        async with self.connection() as connection:
            return await connection.fetchval(self.queries[query], *arguments)

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
        """The first rows of a named query: at most `limit` and `page_bytes` (or `max_bytes`), and one if there is one.

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

    @property
    def has_second_wall(self) -> bool:
        """Whether requests of tenants are held back by row level security too."""
        return self._tenant_pool is not None

    @property
    def acting_apps(self) -> Apps | None:
        """On whose behalf this task asks, where the second wall stands; None when it works for the engine itself."""
        return current_apps() if self._tenant_pool is not None else None

    def entering(self, query: str) -> str:
        """A named query that first names its apps, in one more parameter."""
        sql = self._entering_or_none(query)
        if sql is None:
            raise ValueError(f"the query {query} writes by itself and cannot be one statement behind the second wall")
        return sql

    def without_tenants(self) -> Database:
        """The same database, always asked by the engine itself: for who comes in, which no tenant may read."""
        return Database(
            self.pool, schema=self.queries.schema, pool_timeout=self._pool_timeout, page_bytes=self.page_bytes
        )

    async def open_tenant_pool(self, url: str, settings: Settings, *, take_role: bool) -> str | None:
        """Opens the connections that requests of tenants use. Returns why they cannot be used, and then none are open.

        With `take_role` they connect as we do and become `cognizes_server`; without, the URL names a member of it.
        `DatabaseUnavailableError` when PostgreSQL is away, which says nothing about the role.
        """
        try:
            pool, _ = await _create_pool(url, settings, **({"role": SERVER_ROLE} if take_role else {}))
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
        return None

    async def _fetch_for(self, apps: Apps, query: str, arguments: tuple[Any, ...]) -> list[asyncpg.Record]:
        async with self.connection(for_tenants=True) as connection:
            return await self._ask(connection, apps, query, arguments)

    async def _ask(
        self, connection: PoolConnectionProxy[Any], apps: Apps | None, query: str, arguments: tuple[Any, ...]
    ) -> list[asyncpg.Record]:
        if apps is None:
            return list(await connection.fetch(self.queries[query], *arguments))
        entering = self._entering_or_none(query)
        if entering is not None:
            return list(await connection.fetch(entering, *arguments, apps))
        async with connection.transaction():
            await connection.fetchval(self.queries["enter_tenant"], apps)
            return list(await connection.fetch(self.queries[query], *arguments))

    def _entering_or_none(self, query: str) -> str | None:
        if query not in self._entering:
            self._entering[query] = enter_first(self.queries[query], quote_schema(self.queries.schema))
        return self._entering[query]


def _reason(error: BaseException) -> str:
    """Return why a connection of tenants cannot be used; raise if only the server is away."""
    # PgBouncer answers a start-up parameter that it does not know, as `role`, with a protocol violation.
    if isinstance(error, UNAVAILABLE) and not isinstance(error, asyncpg.ProtocolViolationError):
        raise translate(error) from error
    return str(error)


async def _close(pool: asyncpg.Pool[Any]) -> None:
    try:
        await asyncio.wait_for(pool.close(), timeout=5)
    except TimeoutError:
        pool.terminate()


async def _create_pool(url: str, settings: Settings, **server_settings: str) -> tuple[asyncpg.Pool[Any], bool]:
    """Returns a pool, and whether its server limits the statements itself.

    A pooler (PgBouncer) refuses parameters that it does not know. Behind one the client alone ends a statement, by a
    request to cancel it; the role's own `statement_timeout` should be set on the server.
    """
    seconds = settings.statement_timeout

    async def create(**parameters: str) -> asyncpg.Pool[Any]:
        return await asyncpg.create_pool(
            url,
            min_size=1,
            max_size=settings.pool_size,
            command_timeout=seconds + _CLIENT_GRACE_SECONDS if seconds else None,
            statement_cache_size=settings.statement_cache_size,
            max_inactive_connection_lifetime=300,
            reset=_keep_session,
            server_settings=parameters or None,
        )

    if not seconds:
        return await create(**server_settings), False
    try:
        return await create(**server_settings, statement_timeout=_milliseconds(seconds)), True
    except asyncpg.ProtocolViolationError as error:
        pool = await create(**server_settings)
        logger.warning(
            "the server does not take statement_timeout at the start of a connection (%s); behind a pooler set it for "
            "the role: ALTER ROLE … SET statement_timeout = '%gs'",
            error,
            seconds,
        )
        return pool, False


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
