"""AG-UI frames as a response: `id:` lines, comments as keep-alives, the end of the stream behind the terminal frame."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from ag_ui.core import BaseEvent, RunErrorEvent, RunFinishedEvent
from fastapi import Depends
from starlette.requests import HTTPConnection
from starlette.responses import Response

from cognizes.engine.agui.frames import KEEP_ALIVE, FrameEncoder, clean_text, now, speaks_protocol_1
from cognizes.engine.agui.observation import Observation
from cognizes.engine.api.agents import ServedAgents
from cognizes.engine.api.sse import EventStream, HeartbeatWheel, each
from cognizes.engine.database.tenancy import continue_in_task
from cognizes.engine.errors import EngineError

logger = logging.getLogger(__name__)

_LAST_FRAMES_SECONDS = 0.5
_STOPPING = "this server is about to stop; the run goes on elsewhere, connect again"
_FAILED = "this server failed to follow the run; connect again"


class FrameStreams:
    """Makes streams of frames.

    They do not end with the stop signal but with their runs, which end soon after it. A stream that cannot be followed
    to the end of its run (it goes on elsewhere, its thread was deleted, the database failed) ends with RUN_ERROR: a
    client takes a stream that just ends for success.
    """

    def __init__(self, wheel: HeartbeatWheel, agents: ServedAgents) -> None:
        self._wheel = wheel
        self._agents = agents

    def open(self, frames: Observation, *, protocol_version: str | None = None) -> Response:
        """A response with frames as a client of that protocol version understands them."""
        encoder = FrameEncoder(protocol_1=speaks_protocol_1(protocol_version))
        return EventStream(each(self._encode(frames, encoder)), wheel=self._wheel, heartbeat=lambda: KEEP_ALIVE)

    async def _encode(self, frames: Observation, encoder: FrameEncoder) -> AsyncGenerator[str, None]:
        async with aclosing(self._until_stopped(frames)) as items:
            async for number, frame in items:
                yield encoder.encode(frame, number=number)
                if isinstance(frame, RunFinishedEvent | RunErrorEvent):
                    return
        # The thread was deleted, or the engine closes.
        yield encoder.encode(_error("the run cannot be followed any more; connect again", code="STREAM_ENDED"))

    async def _until_stopped(self, frames: Observation) -> Observation:
        stopped = asyncio.ensure_future(self._agents.have_stopped.wait())
        upcoming: asyncio.Future[tuple[int | None, BaseEvent] | None] | None = None
        patience = _LAST_FRAMES_SECONDS
        loop = asyncio.get_running_loop()
        try:
            while True:
                upcoming = continue_in_task(_next(frames))
                await asyncio.wait({upcoming, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if stopped.done():
                    # What is there already comes at once; what is still being said elsewhere is not waited for.
                    began = loop.time()
                    await asyncio.wait([upcoming], timeout=max(patience, 0.0))
                    patience -= loop.time() - began
                if not upcoming.done():
                    yield None, _error(_STOPPING, code="SERVER_STOPPED")
                    return
                if (error := upcoming.exception()) is not None:
                    logger.error("a stream of frames failed", exc_info=error)
                    said = str(error) if isinstance(error, EngineError) else _FAILED
                    yield None, _error(said, code="STREAM_FAILED")
                    return
                if (item := upcoming.result()) is None:
                    return
                yield item
        finally:
            stopped.cancel()
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.wait([upcoming])
            await frames.aclose()


async def _next(frames: Observation) -> tuple[int | None, BaseEvent] | None:
    return await anext(frames, None)


def _error(message: str, *, code: str) -> RunErrorEvent:
    return RunErrorEvent(message=clean_text(message), code=code, timestamp=now())


async def _streams(connection: HTTPConnection) -> FrameStreams:
    return FrameStreams(connection.app.state.agent_wheel, connection.app.state.agents)


Streams = Annotated[FrameStreams, Depends(_streams)]
