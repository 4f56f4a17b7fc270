"""AG-UI frames as a server-sent event response that ends behind its terminal frame."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Annotated

from ag_ui.core import RunErrorEvent, RunFinishedEvent
from fastapi import Depends
from starlette.requests import HTTPConnection
from starlette.responses import Response

from cognizes.engine.agui.frames import KEEP_ALIVE, FrameEncoder, clean_text, now, speaks_protocol_1
from cognizes.engine.agui.observation import Observation
from cognizes.engine.api.agents import ServedAgents
from cognizes.engine.api.sse import EventStream, HeartbeatTimer, each
from cognizes.engine.errors import EngineError

logger = logging.getLogger(__name__)

_LAST_FRAMES_SECONDS = 0.5
_STOPPING = "this server is about to stop; the run continues elsewhere, connect again"
_FAILED = "this server failed to follow the run; connect again"


class FrameStreams:
    """Makes streams of frames.

    A stream ends with its run, not with the stop signal: runs end soon after the signal. A stream that cannot be
    followed to the end of its run (it continues elsewhere, its thread was deleted, the database failed) ends with
    RUN_ERROR, because a client takes a stream without a terminal frame for success.
    """

    def __init__(self, heartbeats: HeartbeatTimer, agents: ServedAgents) -> None:
        self._heartbeats = heartbeats
        self._agents = agents

    def open(self, frames: Observation, *, protocol_version: str | None = None) -> Response:
        """Return a response with frames, encoded for a client of that protocol version."""
        encoder = FrameEncoder(protocol_1=speaks_protocol_1(protocol_version))
        return EventStream(
            each(self._encode(frames, encoder)), heartbeats=self._heartbeats, heartbeat=lambda: KEEP_ALIVE
        )

    async def _encode(self, frames: Observation, encoder: FrameEncoder) -> AsyncGenerator[str, None]:
        async with aclosing(self._until_stopped(frames)) as items:
            async for number, frame in items:
                yield encoder.encode(frame, number=number)
                if isinstance(frame, RunFinishedEvent | RunErrorEvent):
                    return
        # The thread was deleted, or the engine closes.
        yield encoder.encode(_error("the run can no longer be followed; connect again", code="STREAM_ENDED"))

    async def _until_stopped(self, frames: Observation) -> Observation:
        deadline = _StopDeadline()
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
        except Exception as error:
            logger.error("a stream of frames failed", exc_info=error)
            yield None, _error(str(error) if isinstance(error, EngineError) else _FAILED, code="STREAM_FAILED")
        finally:
            watching.cancel()
            await frames.aclose()


class _StopDeadline:
    """Limits waits for the next frame from the moment that the server has stopped."""

    def __init__(self) -> None:
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
        self._when = asyncio.get_running_loop().time() + _LAST_FRAMES_SECONDS
        if self._waiting is not None:
            with suppress(RuntimeError):  # no wait is in progress
                self._waiting.reschedule(self._when)


def _error(message: str, *, code: str) -> RunErrorEvent:
    return RunErrorEvent(message=clean_text(message), code=code, timestamp=now())


async def _streams(connection: HTTPConnection) -> FrameStreams:
    return FrameStreams(connection.app.state.agent_heartbeats, connection.app.state.agents)


Streams = Annotated[FrameStreams, Depends(_streams)]
