"""The engine of a service: which one its URI names, and one shared engine per settings and event loop.

- ``cognizes://`` the default: `DATABASE_URL`, or the embedded server in its default directory
- ``cognizes:///absolute/dir`` the embedded server in that directory
- ``cognizes://user:password@host:5432/name`` a server; ``cognizes:///name?host=/run/postgresql`` one behind a socket

`on_conflict`, `cache_size`, `max_results`, `pool_size` and `db_schema` may follow as query parameters; all others are
PostgreSQL's.

ADK builds a session service, a memory service and plugins independently and never closes them; each would open its own
pool. The first user opens the shared engine and the last one closes it. Without a close, the end of the event loop
closes it: `asyncio.run` cancels the task that keeps the engine open.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit
from weakref import WeakKeyDictionary

from cognizes.engine.engine import Engine
from cognizes.engine.settings import Settings

logger = logging.getLogger(__name__)

SCHEME = "cognizes"

_OUR_PARAMETERS = ("on_conflict", "cache_size", "max_results", "pool_size", "db_schema")
_GIVEN_BY_ADK = frozenset({"agents_dir", "per_agent"})
_OF_OTHER_SERVICES = frozenset({"on_conflict", "cache_size", "max_results"})
_DRIVER = re.compile(r"^(postgres(?:ql)?)\+\w+://")


@dataclass(frozen=True)
class ServiceAddress:
    """A URI taken apart: settings of the engine, and options of the service."""

    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)


def parse_address(url: str | None) -> ServiceAddress:
    """The address behind a `cognizes://` URI, a PostgreSQL URL (also as SQLAlchemy spells it), or None."""
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
    """The settings of the engine among a service's options; one that nobody knows is told and ignored."""
    unknown = options.keys() - Settings.model_fields.keys() - _GIVEN_BY_ADK - _OF_OTHER_SERVICES
    if unknown:
        logger.warning("%s knows no option %s; ignored", service, ", ".join(sorted(unknown)))
    return {name: value for name, value in options.items() if name in Settings.model_fields}


@dataclass
class _Shared:
    opened: asyncio.Future[Engine]
    last_left: asyncio.Event
    keeper: asyncio.Task[None]
    users: int = 0


class SharedEngines:
    """Hands out engines by their settings and counts who uses them."""

    def __init__(self) -> None:
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Settings, _Shared]] = WeakKeyDictionary()

    async def acquire(self, settings: Settings) -> Engine:
        """An open engine; give it back with `release`, on the same event loop."""
        engines = self._of_loop.setdefault(asyncio.get_running_loop(), {})
        shared = engines.get(settings)
        if shared is None or shared.keeper.done():
            shared = engines[settings] = _share(settings)
        shared.users += 1
        # Shielded: one impatient caller must not spoil it for those who wait with him.
        return await asyncio.shield(shared.opened)

    async def release(self, settings: Settings) -> None:
        """Gives an engine back; the last one closes it."""
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
"""The process's. It holds nothing that outlives an event loop."""


class EngineLease:
    """One service's share in the engine of its settings, on whichever event loop the service is used."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._opening: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Engine]] = WeakKeyDictionary()

    async def engine(self) -> Engine:
        """The engine, opened when first asked for."""
        loop = asyncio.get_running_loop()
        opening = self._opening.get(loop)
        if opening is None or _has_failed(opening):
            opening = self._opening[loop] = loop.create_task(SHARED_ENGINES.acquire(self.settings), name="lease-engine")
        return opening.result() if opening.done() else await asyncio.shield(opening)

    async def close(self) -> None:
        """Gives the share back. Using the service again takes a new one."""
        opening = self._opening.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            await asyncio.wait([opening])
            if not _has_failed(opening):
                await SHARED_ENGINES.release(self.settings)


def _has_failed(task: asyncio.Task[Engine]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
