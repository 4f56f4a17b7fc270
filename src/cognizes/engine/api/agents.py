"""The one place where the server gets to know agents.

Google ADK is an extra, and importing it takes seconds: it is imported here, in the background, and only if it is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Header
from starlette.requests import HTTPConnection

from cognizes.engine.adapters.availability import HOW_TO_GET_AGENTS, has_adk
from cognizes.engine.api.authorization import Caller
from cognizes.engine.engine import Engine
from cognizes.engine.errors import NotFoundError, PermissionDeniedError, SetupError

if TYPE_CHECKING:
    from google.adk.apps.app import App

    from cognizes.engine.adapters.adk.hosting import AgentHost

logger = logging.getLogger(__name__)

DEFAULT_USER = "default"


class ServedAgents:
    """The agents of one server: those given, else those of the settings, else the demo. None without google-adk."""

    def __init__(self, engine: Engine, paths: Sequence[str] | None = None) -> None:
        self._engine = engine
        named = engine.settings.agents.split(",") if paths is None else paths
        self._paths = [path.strip() for path in named if path.strip()]
        self._opening: asyncio.Task[AgentHost | None] | None = None
        self._rehearsing: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self.have_stopped = asyncio.Event()

    async def start(self) -> None:
        """Begins to load the agents. Those that were asked for must be there; the demo may take its time."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name="load-agents")
        if self._paths:
            await self._opening

    async def find_host(self) -> AgentHost | None:
        """The host of the agents, once they are loaded."""
        return await asyncio.shield(self._opening) if self._opening else None

    async def wait_until_warm(self) -> None:
        """Return when the agents are loaded and rehearsed, or cannot be."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._rehearsing is not None:
            await asyncio.wait([self._rehearsing])

    def close_soon(self) -> None:
        """The server is about to stop: no more runs, and those that go on are ended after a while."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="close-agents")

    async def close(self) -> None:
        """Returns when every run has ended."""
        self.close_soon()
        if self._closing is not None:
            await self._closing

    async def _open(self) -> AgentHost | None:
        if not has_adk():
            if self._paths:
                raise SetupError(f"cannot serve {', '.join(self._paths)}: {HOW_TO_GET_AGENTS}")
            return None
        # In a thread, so that the server answers meanwhile.
        apps = await asyncio.to_thread(_load, self._paths, self._engine)
        from cognizes.engine.adapters.adk.hosting import AgentHost  # noqa: PLC0415

        host = AgentHost(self._engine, apps)
        host.start()
        self._rehearsing = asyncio.create_task(asyncio.to_thread(_rehearse), name="rehearse")
        return host

    async def _close(self) -> None:
        try:
            await self._close_host()
        finally:
            self.have_stopped.set()

    async def _close_host(self) -> None:
        if self._opening is None:
            return
        await asyncio.wait([self._opening])
        if self._opening.exception() is None and (host := self._opening.result()) is not None:
            await host.close(seconds=self._engine.settings.shutdown_seconds)
        if self._rehearsing is not None:
            await asyncio.wait([self._rehearsing])


def _load(paths: Sequence[str], engine: Engine) -> dict[str, App]:
    from cognizes.engine.adapters.adk.agent_loading import load_agents  # noqa: PLC0415
    from cognizes.engine.adapters.adk.hosting import AgentHost  # noqa: F401, PLC0415 - so that it is imported here

    return load_agents(paths, engine.settings)


def _rehearse() -> None:
    from cognizes.engine.adapters.adk.rehearsal import rehearse  # noqa: PLC0415

    try:
        rehearse()
    except Exception as error:
        # The first run will then be slow to start, no more.
        logger.warning("the rehearsal of agents failed", exc_info=error)


async def _host(connection: HTTPConnection) -> AgentHost:
    host = await (await _served(connection)).find_host()
    if host is None:
        raise NotFoundError(HOW_TO_GET_AGENTS)
    return host


async def _served(connection: HTTPConnection) -> ServedAgents:
    served: ServedAgents = connection.app.state.agents
    return served


async def _user(
    caller: Caller, x_user_id: Annotated[str | None, Header(description="Whose thread it is.")] = None
) -> str:
    if caller.user_id is not None and x_user_id not in (None, caller.user_id):
        raise PermissionDeniedError(f"X-User-ID must be {caller.user_id!r} for this caller, or absent")
    return caller.user_id or x_user_id or DEFAULT_USER


Served = Annotated[ServedAgents, Depends(_served)]
CurrentHost = Annotated[Any, Depends(_host)]
"""The AgentHost; FastAPI looks at annotations when it starts, and the class is not imported then."""
CurrentUser = Annotated[str, Depends(_user)]
"""The user that the caller is; a caller bound to none (a backend, or anyone without keys) says so in `X-User-ID`."""
