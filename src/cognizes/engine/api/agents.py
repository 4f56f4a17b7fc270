"""The agents of a server, loaded in the background. It knows the protocol `HostedAgent` and no framework."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends, Header
from starlette.requests import HTTPConnection

from cognizes.engine.adapters.loading import HOW_TO_GET_AGENTS, load_agents, warm_up
from cognizes.engine.api.authorization import Caller
from cognizes.engine.engine import Engine
from cognizes.engine.errors import NotFoundError, PermissionDeniedError
from cognizes.engine.hosting import AgentHost

DEFAULT_USER = "default"


class ServedAgents:
    """The agents of one server: those given, else those of the settings, else the demo."""

    def __init__(self, engine: Engine, paths: Sequence[str] | None = None) -> None:
        self._engine = engine
        named = engine.settings.agents.split(",") if paths is None else paths
        self._paths = [path.strip() for path in named if path.strip()]
        self._opening: asyncio.Task[AgentHost | None] | None = None
        self._warming_up: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self.have_stopped = asyncio.Event()

    async def start(self) -> None:
        """Begin to load the agents. Return when those that were named are loaded; the demo loads in the background."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name="load-agents")
        if self._paths:
            await self._opening

    async def find_host(self) -> AgentHost | None:
        """Return the host when the agents are loaded; None when there is no agent."""
        return await asyncio.shield(self._opening) if self._opening else None

    async def wait_until_warm(self) -> None:
        """Return when the agents are loaded and warmed up, or cannot be."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._warming_up is not None:
            await asyncio.wait([self._warming_up])

    def close_soon(self) -> None:
        """Accept no more runs, and end the active ones after a while: the server is about to stop."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="close-agents")

    async def close(self) -> None:
        self.close_soon()
        if self._closing is not None:
            await self._closing

    async def _open(self) -> AgentHost | None:
        # In a thread: importing a framework takes seconds.
        agents = await asyncio.to_thread(load_agents, self._paths, self._engine)
        if not agents:
            return None
        host = AgentHost(self._engine, agents)
        host.start()
        self._warming_up = asyncio.create_task(asyncio.to_thread(warm_up), name="warm-up-agents")
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
        if self._warming_up is not None:
            await asyncio.wait([self._warming_up])


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
CurrentHost = Annotated[AgentHost, Depends(_host)]
CurrentUser = Annotated[str, Depends(_user)]
"""The user of the caller; a caller without one (a backend's key, or no keys) names a user in `X-User-ID`."""
