"""The agents of a server, loaded in the background, and their frames as streams of server-sent events.

This module knows the protocol `HostedAgent` and no framework.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing, nullcontext, suppress
from typing import Annotated

from ag_ui.core import RunErrorEvent, RunFinishedEvent
from fastapi import Depends, Header
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Send
from typing_extensions import override

from cognizes.engine.adapters.loading import HOW_TO_GET_AGENTS, load_agents, warm_up
from cognizes.engine.agui.frames import KEEP_ALIVE, FrameEncoder, clean_text, now, speaks_protocol_1
from cognizes.engine.agui.observation import Observation
from cognizes.engine.api.authorization import Caller
from cognizes.engine.api.sse import EventStream, HeartbeatTimer, Source, StreamConnection, each
from cognizes.engine.engine import Engine
from cognizes.engine.errors import EngineError, FeedRewoundError, NotFoundError, PermissionDeniedError
from cognizes.engine.hosting import AgentHost

logger = logging.getLogger(__name__)

DEFAULT_USER = "default"
_STOPPING = "this server is about to stop; the run continues elsewhere, connect again"
_FAILED = "this server failed to follow the run; connect again"


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
        if "google.adk" in sys.modules:
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


class FrameStreams:
    """Makes streams of frames.

    A stream ends with its run, not with the stop signal: runs end soon after the signal. A stream that cannot be
    followed to the end of its run (it continues elsewhere, its thread was deleted, the database failed) ends with
    RUN_ERROR, because a client takes a stream without a terminal frame for success.
    """

    def __init__(self, heartbeats: HeartbeatTimer, agents: ServedAgents, *, last_frames_seconds: float = 0.5) -> None:
        self._heartbeats = heartbeats
        self._agents = agents
        self._last_frames_seconds = last_frames_seconds

    def open(
        self,
        frames: Observation,
        *,
        protocol_version: str | None = None,
        until: AbstractContextManager[object] | None = None,
    ) -> Response:
        """Return a response with frames, encoded for a client of that protocol version.

        The context `until` is entered at once and left with the response, also if the client leaves before its start.
        """
        encoder = FrameEncoder(protocol_1=speaks_protocol_1(protocol_version))
        return _FrameStream(
            each(self.encode(frames, encoder)),
            heartbeats=self._heartbeats,
            heartbeat=lambda: KEEP_ALIVE,
            until=until or nullcontext(),
        )

    async def encode(self, frames: Observation, encoder: FrameEncoder) -> AsyncGenerator[str, None]:
        """Yield the text of each frame up to a terminal one, also when the frames end without it."""
        async with aclosing(self._until_stopped(frames)) as items:
            async for number, frame in items:
                yield encoder.encode(frame, number=number)
                if isinstance(frame, RunFinishedEvent | RunErrorEvent):
                    return
        # The thread was deleted, or the engine closes.
        yield encoder.encode(_error("the run can no longer be followed; connect again", code="STREAM_ENDED"))

    async def _until_stopped(self, frames: Observation) -> Observation:
        deadline = _StopDeadline(self._last_frames_seconds)
        watching = asyncio.create_task(deadline.begin_after(self._agents.have_stopped), name="watch-server-stop")
        try:
            while True:
                try:
                    # Frames that exist are delivered; frames of a run that continues elsewhere are not waited for.
                    async with deadline.limit():
                        item = await anext(frames, None)
                except TimeoutError:
                    if not deadline.has_passed:
                        raise
                    yield None, _error(_STOPPING, code="SERVER_STOPPED")
                    return
                if item is None:
                    return
                yield item
        except FeedRewoundError as error:
            # The client reloads the thread.
            yield None, _error(str(error), code="FEED_REWOUND")
        except Exception as error:
            logger.error("a stream of frames failed", exc_info=error)
            yield None, _error(str(error) if isinstance(error, EngineError) else _FAILED, code="STREAM_FAILED")
        finally:
            watching.cancel()
            await frames.aclose()


class _FrameStream(EventStream):
    """A stream that leaves a context with its response."""

    def __init__(
        self,
        source: Source,
        *,
        heartbeats: HeartbeatTimer,
        heartbeat: Callable[[], str],
        until: AbstractContextManager[object],
    ) -> None:
        super().__init__(source, heartbeats=heartbeats, heartbeat=heartbeat)
        self._context = ExitStack()
        self._context.enter_context(until)

    @override
    async def run(self, receive: Receive, send: Send, *, connection: StreamConnection | None = None) -> None:
        with self._context:
            await super().run(receive, send, connection=connection)


class _StopDeadline:
    """Limits waits for the next frame to some seconds after the server has stopped."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._when: float | None = None
        self._waiting: asyncio.Timeout | None = None

    @property
    def has_passed(self) -> bool:
        return self._waiting is not None and self._waiting.expired()

    def limit(self) -> asyncio.Timeout:
        """Return a context that raises `TimeoutError` at the deadline; without a deadline it never does."""
        self._waiting = asyncio.timeout_at(self._when)
        return self._waiting

    async def begin_after(self, have_stopped: asyncio.Event) -> None:
        """Set the deadline, also of the wait that is in progress, when the server stops."""
        await have_stopped.wait()
        self._when = asyncio.get_running_loop().time() + self._seconds
        if self._waiting is not None:
            with suppress(RuntimeError):  # no wait is in progress
                self._waiting.reschedule(self._when)


def _error(message: str, *, code: str) -> RunErrorEvent:
    return RunErrorEvent(message=clean_text(message), code=code, timestamp=now())


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


async def _streams(connection: HTTPConnection) -> FrameStreams:
    return FrameStreams(connection.app.state.agent_heartbeats, connection.app.state.agents)


Served = Annotated[ServedAgents, Depends(_served)]
Streams = Annotated[FrameStreams, Depends(_streams)]
CurrentHost = Annotated[AgentHost, Depends(_host)]
CurrentUser = Annotated[str, Depends(_user)]
"""The user of the caller; a caller without one (a backend's key, or no keys) names a user in `X-User-ID`."""
