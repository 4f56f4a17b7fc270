"""A connection that stays at hand between two uses, for a caller that comes back at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from cognizes.engine.database.driver_errors import DRIVER_ERRORS, translate
from cognizes.engine.database.tenancy import Apps

if TYPE_CHECKING:
    from cognizes.engine.database.connection_pool import Database

logger = logging.getLogger(__name__)

_IDLE_SECONDS = 0.02


class StickyConnection:
    """Runs one statement after the other on a connection of the pool, given back after a short idle time.

    Giving back and taking again costs more than a tenth of an append. One user at a time; when somebody else waits for
    a connection of the pool, this one goes back after every use. One for tenants takes it from behind the second wall,
    and names in every statement on whose behalf it is sent.
    """

    def __init__(self, database: Database, *, for_tenants: bool = False) -> None:
        self._database = database
        self._for_tenants = for_tenants
        self._connection: PoolConnectionProxy[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._uses = 0
        self._is_in_use = False
        self._goes_back = False
        self._releases: set[asyncio.Task[None]] = set()

    @property
    def is_free(self) -> bool:
        """Whether nobody uses it now."""
        return not self._is_in_use

    async def fetch(self, query: str, *arguments: Any, apps: Apps | None = None) -> list[asyncpg.Record]:
        """All rows of a named query."""
        rows: list[asyncpg.Record] = await self._use("fetch", query, arguments, apps)
        return rows

    async def fetch_row(self, query: str, *arguments: Any) -> asyncpg.Record | None:
        """The first row of a named query."""
        row: asyncpg.Record | None = await self._use("fetchrow", query, arguments)
        return row

    async def fetch_value(self, query: str, *arguments: Any) -> Any:
        """The first column of the first row of a named query."""
        return await self._use("fetchval", query, arguments)

    async def _use(self, method: str, query: str, arguments: tuple[Any, ...], apps: Apps | None = None) -> Any:
        sql = self._database.queries[query]
        if apps is not None:
            sql, arguments = self._database.entering(query), (*arguments, apps)
        self._uses += 1
        self._is_in_use = True
        try:
            if self._connection is not None and _is_broken(self._connection):
                self._give_back()
            if self._connection is None:
                self._connection = await self._acquire()
            answer = await getattr(self._connection, method)(sql, *arguments)
        except DRIVER_ERRORS as error:
            self._give_back(after=error)
            raise translate(error) from error
        except BaseException as error:
            self._give_back(after=error)
            raise
        finally:
            self._is_in_use = False
        if self._database.is_awaited or self._goes_back:
            self._give_back()
        elif self._timer is None:
            self._watch()
        return answer

    async def _acquire(self) -> PoolConnectionProxy[Any]:
        if self._releases:
            # The pool gives to whoever asks first: those who waited must get their chance.
            await asyncio.wait(self._releases)
            await asyncio.sleep(0)
        return await self._database.acquire(for_tenants=self._for_tenants)

    def _watch(self) -> None:
        # One timer for many uses: setting and cancelling one for each would cost as much as the JSON of an event.
        self._timer = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._give_back_if_idle, self._uses)

    def _give_back_if_idle(self, uses_then: int) -> None:
        if uses_then == self._uses and not self._is_in_use:
            self._give_back()
        else:
            self._watch()

    async def close(self) -> None:
        """Gives the connection back now, or after the use that is under way."""
        if self._is_in_use:
            self._goes_back = True
        else:
            self._give_back()
        await asyncio.gather(*self._releases)

    def _give_back(self, *, after: BaseException | None = None) -> None:
        self._goes_back = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connection is not None:
            task = asyncio.ensure_future(self._release(self._connection, after))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)
            self._connection = None

    async def _release(self, connection: PoolConnectionProxy[Any], after: BaseException | None) -> None:
        try:
            await self._database.release(connection, for_tenants=self._for_tenants, after=after)
        except DRIVER_ERRORS as error:
            logger.debug("a broken connection was given back: %s", error)


def _is_broken(connection: PoolConnectionProxy[Any]) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        # The pool has noticed, and taken it away.
        return True


class StickyConnections:
    """One of the engine itself, and one for its tenants."""

    def __init__(self, database: Database) -> None:
        self._own = StickyConnection(database)
        self._of_tenants = StickyConnection(database, for_tenants=True)

    def fetch(self, query: str, *arguments: Any, apps: Apps | None = None) -> Awaitable[list[asyncpg.Record]]:
        """All rows of a named query; with apps, on their behalf."""
        if apps is None:
            return self._own.fetch(query, *arguments)
        return self._of_tenants.fetch(query, *arguments, apps=apps)

    async def close(self) -> None:
        """Gives the connections back now."""
        await self._own.close()
        await self._of_tenants.close()
