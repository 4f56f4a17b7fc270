"""A bounded pool of connections that many clients share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from cognizes.engine.database.driver_errors import DRIVER_ERRORS, UNAVAILABLE, translate, translated
from cognizes.engine.database.queries import Queries
from cognizes.engine.errors import PoolTimeoutError
from cognizes.engine.settings import Settings

logger = logging.getLogger(__name__)


async def _keep_session(connection: Any) -> None:
    """Replaces asyncpg's reset, which costs a round trip per use: no code of ours leaves session state behind."""


def cut(connection: PoolConnectionProxy[Any]) -> None:
    """Ends a connection that failed in an unknown state, so that nobody gets it again."""
    try:
        connection.terminate()
    except asyncpg.InterfaceError:
        logger.debug("the driver had given the broken connection up already")


class Database:
    """Runs named queries on a pool. Waiting for a connection is bounded and ends in a clear error.

    It also wraps a bare `asyncpg` pool made by somebody else, as long as it needs no JSON codec: values go in and
    come out as text.
    """

    def __init__(self, pool: asyncpg.Pool[Any], *, schema: str = "public", pool_timeout: float = 10.0) -> None:
        self.pool = pool
        self.queries = Queries(schema)
        self._pool_timeout = pool_timeout
        self._waiting = 0

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for a connection now."""
        return self._waiting > 0

    @classmethod
    async def connect(cls, url: str, settings: Settings) -> Database:
        """Opens a pool on a URL. Connections are made when first needed, up to `pool_size`."""
        with translated():
            pool = await asyncpg.create_pool(
                url,
                min_size=1,
                max_size=settings.pool_size,
                command_timeout=settings.statement_timeout or None,
                statement_cache_size=settings.statement_cache_size,
                max_inactive_connection_lifetime=300,
                reset=_keep_session,
            )
        return cls(pool, schema=settings.db_schema, pool_timeout=settings.pool_timeout)

    async def close(self) -> None:
        """Closes the connections; waits a moment for those in use, then cuts them."""
        try:
            await asyncio.wait_for(self.pool.close(), timeout=5)
        except TimeoutError:
            self.pool.terminate()

    async def acquire(self) -> PoolConnectionProxy[Any]:
        """A connection, to be given back to `pool.release`; `PoolTimeoutError` when none became free in time."""
        self._waiting += 1
        try:
            return await self.pool.acquire(timeout=self._pool_timeout)
        except TimeoutError as error:
            raise PoolTimeoutError(
                f"all {self.pool.get_max_size()} connections stayed busy for {self._pool_timeout:g} s; "
                "raise COGNIZES_POOL_SIZE, or send less at once"
            ) from error
        except DRIVER_ERRORS as error:
            raise translate(error) from error
        finally:
            self._waiting -= 1

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[PoolConnectionProxy[Any]]:
        """A connection for the length of a block.

        Never ask for a second one while holding one: ten writers on ten connections would wait for each other.
        """
        connection = await self.acquire()
        try:
            yield connection
        except DRIVER_ERRORS as error:
            if isinstance(error, UNAVAILABLE):
                cut(connection)
            raise translate(error) from error
        finally:
            await self.pool.release(connection)

    async def fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """All rows of a named query."""
        async with self.connection() as connection:
            rows: list[asyncpg.Record] = await connection.fetch(self.queries[query], *arguments)
            return rows

    async def fetch_row(self, query: str, *arguments: Any) -> asyncpg.Record | None:
        """The first row of a named query."""
        async with self.connection() as connection:
            return await connection.fetchrow(self.queries[query], *arguments)

    async def fetch_value(self, query: str, *arguments: Any) -> Any:
        """The first column of the first row of a named query."""
        async with self.connection() as connection:
            return await connection.fetchval(self.queries[query], *arguments)
