"""Connecting: one of several hosts, each with a time limit of its own, and pools of such connections.

The connect timeout of asyncpg covers all hosts of a URL together, so one frozen host would use it up. `HostConnector`
tries the hosts one after the other, starts with the one that answered last, and accepts only a server with the wanted
role: the primary, or any server for reading.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from cognizes.engine.database.driver_errors import is_unavailable
from cognizes.engine.errors import DatabaseUnavailableError
from cognizes.engine.settings import Settings

logger = logging.getLogger(__name__)

READ_WRITE = "read-write"
ANY_SERVER = "any"
CLIENT_GRACE_SECONDS = 1.0
"""The server's time limit ends a statement first; the client's is this much longer, for a server that hangs."""


def split_hosts(url: str) -> list[str]:
    """Return one URL per host of a PostgreSQL URL, in its order."""
    parts = urlsplit(url)
    user, at, addresses = parts.netloc.rpartition("@")
    query = parse_qsl(parts.query, keep_blank_values=True)
    named = dict(query)
    if "," in addresses:
        return [_with(url, parts.netloc, f"{user}{at}{address}") for address in addresses.split(",")]
    if "," not in named.get("host", ""):
        return [url]
    hosts, ports = named["host"].split(","), named.get("port", "").split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    kept = [(name, value) for name, value in query if name not in ("host", "port")]
    base = url.partition("?")[0]
    return [
        f"{base}?{urlencode([*kept, ('host', host), *([('port', port)] if port else [])])}"
        for host, port in zip(hosts, ports, strict=False)
    ]


def _with(url: str, netloc: str, replacement: str) -> str:
    return url.replace(f"//{netloc}", f"//{replacement}", 1)


class HostConnection(asyncpg.Connection):
    """A connection of a pool; `place` is that of its host in the URL."""

    __slots__ = ("place",)

    place: int


class HostConnector:
    """Connects to the hosts of a URL; `connect` is what a pool calls for each new connection."""

    def __init__(self, url: str, *, seconds: float, target: str = READ_WRITE) -> None:
        self._urls = split_hosts(url)
        self._seconds = seconds
        # A target in the URL is the choice of the operator.
        self._target = None if "target_session_attrs=" in url else target
        self._first = 0
        self.failure: BaseException | None = None
        """Why the last attempt to connect failed; None after a success."""

    async def connect(self, *_: Any, **parameters: Any) -> asyncpg.Connection[Any]:
        """Return a connection to the first host that answers in time and has the wanted role."""
        errors: list[BaseException] = []
        for place in self._order():
            try:
                connection = await self._connect_to(place, **parameters)
            except BaseException as error:
                # The next attempt starts with another host, also if the caller does not wait for this one.
                self._first = (place + 1) % len(self._urls)
                self.failure = error
                if not is_unavailable(error):
                    raise
                errors.append(error)
            else:
                self._first, self.failure = place, None
                return connection
        if len(errors) == 1:
            raise errors[0]
        raise DatabaseUnavailableError(f"no host of the database URL can be used ({_join(errors)})") from errors[-1]

    async def _connect_to(self, place: int, **parameters: Any) -> asyncpg.Connection[Any]:
        if self._target is not None:
            parameters["target_session_attrs"] = self._target
        try:
            async with asyncio.timeout(self._seconds):
                connection: asyncpg.Connection[Any] = await asyncpg.connect(
                    self._urls[place], **{"timeout": self._seconds, **parameters}
                )
        except TimeoutError as error:
            raise ConnectionError(f"no answer in {self._seconds:g} s") from error
        # asyncpg's `isinstance` is true for every class of connections.
        if type(connection) is HostConnection:
            connection.place = place
        return connection

    def _order(self) -> list[int]:
        count = len(self._urls)
        return [(self._first + step) % count for step in range(count)]

    async def silent(self, connections: Iterable[PoolConnectionProxy[Any]]) -> list[PoolConnectionProxy[Any]]:
        """Return those of a pool's connections whose host does not answer a new one, or has lost the wanted role."""
        by_host: dict[int, list[PoolConnectionProxy[Any]]] = {}
        for connection in connections:
            # The proxy has the attributes of its connection; it has none when the pool has discarded the connection.
            if (place := getattr(connection, "place", None)) is not None:
                by_host.setdefault(place, []).append(connection)
        answers = await asyncio.gather(*(self._answers(place) for place in by_host))
        return [one for known, answers_ in zip(by_host.values(), answers, strict=True) if not answers_ for one in known]

    async def _answers(self, place: int) -> bool:
        try:
            probe = await self._connect_to(place)
        except (OSError, asyncpg.TargetServerAttributeNotMatched):
            return False
        except asyncpg.PostgresError:
            return True  # It answers: too many connections, for example.
        probe.terminate()
        return True


def _join(errors: Iterable[BaseException]) -> str:
    return "; ".join(str(error) or type(error).__name__ for error in errors)


async def _skip_reset(connection: Any) -> None:
    """Replace asyncpg's reset of a released connection, a round trip: our statements leave no session state behind."""


async def create_pool(
    url: str, settings: Settings, target: str, **server_settings: str
) -> tuple[asyncpg.Pool[Any], HostConnector, bool]:
    """Return a pool, what connects it, and whether its server limits the time of statements.

    A pooler (PgBouncer) refuses start-up parameters that it does not know. Behind one only the client limits the time,
    by a cancel request; set `statement_timeout` for the role on the server.
    """
    seconds = settings.statement_timeout
    connector = HostConnector(url, seconds=settings.connect_timeout, target=target)

    async def create(**parameters: str) -> asyncpg.Pool[Any]:
        return await asyncpg.create_pool(
            connect=connector.connect,
            connection_class=HostConnection,
            min_size=1,
            max_size=settings.pool_size,
            command_timeout=seconds + CLIENT_GRACE_SECONDS if seconds else None,
            statement_cache_size=settings.statement_cache_size,
            max_inactive_connection_lifetime=300,
            reset=_skip_reset,
            server_settings=parameters or None,
        )

    if not seconds:
        return await create(**server_settings), connector, False
    try:
        return await create(**server_settings, statement_timeout=milliseconds(seconds)), connector, True
    except asyncpg.ProtocolViolationError as error:
        pool = await create(**server_settings)
        logger.warning(
            "the server does not accept statement_timeout as a start-up parameter (%s); behind a pooler set it for "
            "the role: ALTER ROLE … SET statement_timeout = '%gs'",
            error,
            seconds,
        )
        return pool, connector, False


def milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
