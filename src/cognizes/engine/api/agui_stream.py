"""AG-UI frames as a response: `id:` lines, comments as keep-alives, the end of the stream behind the terminal frame."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Annotated

from ag_ui.core import BaseEvent, RunErrorEvent
from fastapi import Depends
from starlette.requests import HTTPConnection
from starlette.responses import Response

from cognizes.engine.agui.frames import KEEP_ALIVE, clean_text, encode, now, speaks_protocol_1
from cognizes.engine.agui.observation import Observation
from cognizes.engine.api.agents import ServedAgents
from cognizes.engine.api.sse import EventStream, HeartbeatWheel, each
from cognizes.engine.errors import EngineError

logger = logging.getLogger(__name__)

_LAST_FRAMES_SECONDS = 0.5


class FrameStreams:
    """Makes streams of frames.

    They do not end with the stop signal but with their runs, which end soon after it. A stream of a run that goes on
    elsewhere ends with RUN_ERROR then: a client takes a stream that just ends for success.
    """

    def __init__(self, wheel: HeartbeatWheel, agents: ServedAgents) -> None:
        self._wheel = wheel
        self._agents = agents

    def open(self, frames: Observation, *, protocol_version: str | None = None) -> Response:
        """A response with frames as a client of that protocol version understands them."""
        encoded = self._encode(frames, protocol_1=speaks_protocol_1(protocol_version))
        return EventStream(each(encoded), wheel=self._wheel, heartbeat=lambda: KEEP_ALIVE)

    async def _encode(self, frames: Observation, *, protocol_1: bool) -> AsyncGenerator[str, None]:
        stopped = asyncio.ensure_future(self._agents.have_stopped.wait())
        upcoming: asyncio.Future[tuple[int | None, BaseEvent] | None] | None = None
        patience = _LAST_FRAMES_SECONDS
        loop = asyncio.get_running_loop()
        try:
            while True:
                upcoming = asyncio.ensure_future(_next(frames))
                await asyncio.wait({upcoming, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if stopped.done():
                    # What is there already comes at once; what is still being said elsewhere is not waited for.
                    began = loop.time()
                    await asyncio.wait([upcoming], timeout=max(patience, 0.0))
                    patience -= loop.time() - began
                if not upcoming.done():
                    yield encode(_stopping())
                    return
                if (error := upcoming.exception()) is not None:
                    logger.error("a stream of frames failed", exc_info=error)
                    yield encode(_failed(error))
                    return
                if (item := upcoming.result()) is None:
                    return
                yield encode(item[1], number=item[0], protocol_1=protocol_1)
        finally:
            stopped.cancel()
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.wait([upcoming])
            await frames.aclose()


async def _next(frames: Observation) -> tuple[int | None, BaseEvent] | None:
    return await anext(frames, None)


def _stopping() -> RunErrorEvent:
    return RunErrorEvent(
        message="this server is about to stop; the run goes on elsewhere, connect again",
        code="SERVER_STOPPED",
        timestamp=now(),
    )


def _failed(error: BaseException) -> RunErrorEvent:
    """The stream failed, not the run; a problem of the engine's own says what to do."""
    said = str(error) if isinstance(error, EngineError) else "this server failed to follow the run; connect again"
    return RunErrorEvent(message=clean_text(said), code="STREAM_FAILED", timestamp=now())


def _streams(connection: HTTPConnection) -> FrameStreams:
    return FrameStreams(connection.app.state.agent_wheel, connection.app.state.agents)


Streams = Annotated[FrameStreams, Depends(_streams)]
