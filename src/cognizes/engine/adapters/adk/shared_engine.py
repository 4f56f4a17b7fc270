"""One engine per database and event loop in a process, however many services use it.

ADK builds a session service, a memory service and plugins apart from each other and never closes them; without sharing
each would bring a pool of its own. The first to come opens the engine, the last to leave closes it. Nobody left? Then
the end of the event loop does: `asyncio.run` cancels the task that keeps the engine open.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from cognizes.engine.engine import Engine
from cognizes.engine.settings import Settings


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
