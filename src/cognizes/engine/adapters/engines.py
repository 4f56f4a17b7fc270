"""The engine of a service: which one its URI names, and one shared engine per settings and event loop.

- ``cognizes://`` the default: `DATABASE_URL`, or the embedded server in its default directory
- ``cognizes:///absolute/dir`` the embedded server in that directory
- ``cognizes://user:password@host:5432/name`` a server; ``cognizes:///name?host=/run/postgresql`` one behind a socket

`on_conflict`, `cache_size`, `max_results`, `pool_size` and `db_schema` may follow as query parameters; all others are
PostgreSQL's.

Frameworks build their services and plugins independently and often never close them; each would open its own pool. The
first user opens the shared engine and the last one closes it. Without a close, the end of the event loop closes it:
`asyncio.run` cancels the task that keeps the engine open.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit
from weakref import WeakKeyDictionary

from cachetools import LRUCache

from cognizes.engine.engine import Engine
from cognizes.engine.settings import Settings

logger = logging.getLogger(__name__)

SCHEME = "cognizes"
_OUR_PARAMETERS = ("on_conflict", "cache_size", "max_results", "pool_size", "db_schema")
_GIVEN_BY_ADK = frozenset({"agents_dir", "per_agent"})
_OF_OTHER_SERVICES = frozenset({"on_conflict", "cache_size", "max_results"})
_MOST_SETTINGS = 64
_DRIVER = re.compile(r"^(postgres(?:ql)?)\+\w+://")


@dataclass(frozen=True)
class ServiceAddress:
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)


def parse_address(url: str | None) -> ServiceAddress:
    """Return the address of a `cognizes://` URI, a PostgreSQL URL (also with a SQLAlchemy driver), or None."""
    if url is None:
        return ServiceAddress()
    if not url.startswith(f"{SCHEME}:"):
        return ServiceAddress(settings={"database_url": _DRIVER.sub(r"\1://", url)})
    parts = urlsplit(url)
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    options = {name: parameters.pop(name) for name in _OUR_PARAMETERS if name in parameters}
    if parts.netloc or "host" in parameters:
        query = f"?{urlencode(parameters)}" if parameters else ""
        return ServiceAddress({"database_url": f"postgresql://{parts.netloc}{parts.path}{query}"}, options)
    if parts.path.strip("/"):
        return ServiceAddress({"database_url": None, "data_dir": Path(unquote(parts.path))}, options)
    return ServiceAddress({}, options)


def known_settings(options: dict[str, Any], service: str) -> dict[str, Any]:
    """Return the engine's settings among a service's options; an unknown option is logged and ignored."""
    unknown = options.keys() - Settings.model_fields.keys() - _GIVEN_BY_ADK - _OF_OTHER_SERVICES
    if unknown:
        logger.warning("%s ignores the unknown option %s", service, ", ".join(sorted(unknown)))
    return {name: value for name, value in options.items() if name in Settings.model_fields}


@dataclass
class _Shared:
    opened: asyncio.Future[Engine]
    last_left: asyncio.Event
    keeper: asyncio.Task[None]
    users: int = 0


class SharedEngines:
    """Opens one engine per settings and event loop, and counts its users."""

    def __init__(self) -> None:
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Settings, _Shared]] = WeakKeyDictionary()
        self._settings: LRUCache[tuple[Any, ...], Settings] = LRUCache(_MOST_SETTINGS)

    def settings(self, options: dict[str, Any]) -> Settings:
        """Return the settings of these options, read again when the environment or `.env` has changed.

        Reading them takes milliseconds, and applications make a service per request.
        """
        file = Path(".env")
        stat = file.stat() if file.is_file() else None
        given = tuple(sorted(options.items(), key=itemgetter(0)))
        key = given, frozenset(os.environ.items()), os.getcwd(), stat and (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        try:
            known = self._settings.get(key)
        except TypeError:
            # A value without a hash, such as a list.
            return Settings(**options)
        if known is None:
            known = self._settings[key] = Settings(**options)
        return known

    async def acquire(self, settings: Settings) -> Engine:
        """Return an open engine; call `release` on the same event loop."""
        engines = self._of_loop.setdefault(asyncio.get_running_loop(), {})
        shared = engines.get(settings)
        if shared is None or shared.keeper.done():
            shared = engines[settings] = _share(settings)
        shared.users += 1
        # Shielded: a cancelled caller must not cancel the opening for other callers.
        return await asyncio.shield(shared.opened)

    async def release(self, settings: Settings) -> None:
        """Release an engine; the last user closes it."""
        engines = self._of_loop[asyncio.get_running_loop()]
        shared = engines[settings]
        shared.users -= 1
        if shared.users == 0:
            del engines[settings]
            shared.last_left.set()
            await asyncio.wait([shared.keeper])


def _share(settings: Settings) -> _Shared:
    opened: asyncio.Future[Engine] = asyncio.get_running_loop().create_future()
    last_left = asyncio.Event()
    return _Shared(opened, last_left, asyncio.create_task(_keep_open(settings, opened, last_left), name="keep-engine"))


async def _keep_open(settings: Settings, opened: asyncio.Future[Engine], last_left: asyncio.Event) -> None:
    try:
        async with Engine(settings) as engine:
            opened.set_result(engine)
            await last_left.wait()
    except BaseException as error:
        if not opened.done():
            opened.set_exception(error)
        elif not isinstance(error, asyncio.CancelledError):
            raise


SHARED_ENGINES = SharedEngines()
"""The engines of this process. It holds nothing that outlives an event loop."""


class EngineLease:
    """A service's use of the shared engine of its settings, on each event loop that uses the service."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._opening: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Engine]] = WeakKeyDictionary()

    async def engine(self) -> Engine:
        """Return the engine; open it on first use."""
        loop = asyncio.get_running_loop()
        opening = self._opening.get(loop)
        if opening is None or _has_failed(opening):
            opening = self._opening[loop] = loop.create_task(SHARED_ENGINES.acquire(self.settings), name="lease-engine")
        return opening.result() if opening.done() else await asyncio.shield(opening)

    async def close(self) -> None:
        """Release the engine. Later use of the service acquires it again."""
        opening = self._opening.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            await asyncio.wait([opening])
            if not _has_failed(opening):
                await SHARED_ENGINES.release(self.settings)


class GivenEngine(EngineLease):
    """The use of an engine that the caller opened and closes."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.settings)
        self._engine = engine

    async def engine(self) -> Engine:
        return self._engine

    async def close(self) -> None:
        """Do nothing: the engine belongs to the caller."""


def lease_engine(
    service: str, database_url: str | None, settings: dict[str, Any], *, engine: Engine | None = None
) -> EngineLease:
    """Return the lease of a service that takes a URL and settings of the engine, or an open engine.

    `TypeError` for a name that is no setting, or for both.
    """
    if engine is not None:
        if database_url is not None or settings:
            raise TypeError(f"{service} got an engine; a URL and settings belong to an engine that it opens itself")
        return GivenEngine(engine)
    address = parse_address(database_url)
    options = settings | address.options
    if unknown := sorted(options.keys() - Settings.model_fields.keys()):
        raise TypeError(
            f"{service} got the unknown setting {', '.join(unknown)}; see cognizes.engine.settings.Settings"
        )
    return EngineLease(SHARED_ENGINES.settings(options | address.settings))


class EngineUser:
    """A service on the shared engine of its settings: connects when first used, and closes with `async with`."""

    _lease: EngineLease

    async def engine(self) -> Engine:
        """Return the engine of the running event loop; open it on first use."""
        return await self._lease.engine()

    async def close(self) -> None:
        """Release the engine; the last service that uses it closes it."""
        await self._lease.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _has_failed(task: asyncio.Task[Engine]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
