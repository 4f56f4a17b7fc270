"""The pulse on the wire: WebSocket for threads, server-sent events for runs, and test notifications."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, HTTPException, Query, WebSocket
from starlette.responses import Response

from cognizes.engine.access import Permission
from cognizes.engine.api.agui_stream import Streams
from cognizes.engine.api.authorization import LARGEST, CurrentEngine, Reach, ThreadOfRun, access
from cognizes.engine.api.responses import DocumentResponse
from cognizes.engine.api.sse import EventStream, Wheel
from cognizes.engine.api.thread_feed import ThreadFeed
from cognizes.engine.database.documents import dump_json
from cognizes.engine.models import new_id
from cognizes.engine.pulse.event_bridge import AgUiEvent, AgUiEventType, milliseconds
from cognizes.engine.pulse.pg_notify_listener import DEFAULT_CHANNEL

logger = logging.getLogger(__name__)

router = APIRouter(tags=["live"])

_GOING_AWAY = 1001


async def _development_only(engine: CurrentEngine) -> None:
    if not engine.settings.development:
        raise HTTPException(404, "test notifications are off (COGNIZES_DEVELOPMENT)")


@router.get(
    "/api/runs/{run_id:path}/events",
    summary="Follow a run",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Frames, for as long as you listen"}},
)
@access(Reach.RUN)
async def run_events(
    run_id: str,
    engine: CurrentEngine,
    wheel: Wheel,
    streams: Streams,
    thread: ThreadOfRun,
    profile: Annotated[Literal["monitor", "agui"], Query()] = "monitor",
    after: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Server-sent events. `id:` numbers the events; `Last-Event-ID` resumes.

    `profile=monitor` has the frames of the seed and never ends; `profile=agui` has only what AG-UI clients accept, and
    ends with the run.
    """
    resumed = int(last_event_id) if last_event_id and last_event_id.isdecimal() and len(last_event_id) < 19 else after
    if profile == "agui":
        return streams.open(engine.observer.observe_run(run_id, after=resumed, thread_id=thread))
    greeting = _custom(run_id, "connected", message=f"SSE stream for run_id={run_id}")
    return EventStream(
        partial(engine.bridge.forward, run_id, after=resumed, greeting=greeting, thread_id=thread),
        wheel=wheel,
        heartbeat=partial(_custom, run_id, "heartbeat"),
    )


def _custom(run_id: str, name: str, **data: str) -> str:
    return AgUiEvent(AgUiEventType.CUSTOM, run_id, milliseconds(None), {"name": name, **data}).to_sse()


@router.websocket("/ws/events/{thread_id:path}")
@access(Reach.THREAD)
async def thread_events(websocket: WebSocket, thread_id: str, engine: CurrentEngine, after: int | None = None) -> None:
    """Every event of a thread from now on (or after a number), as `{"channel", "payload", "received_at"}`.

    `*` is everything that pulses. The path may be any text: test notifications name threads that do not exist.
    """
    async with ThreadFeed(engine, thread_id, after=after) as feed:
        await websocket.accept()
        gone = asyncio.ensure_future(_wait_until_gone(websocket))
        sending = asyncio.ensure_future(_send_all(websocket, feed, seconds=engine.settings.send_seconds))
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            sending.cancel()
            await asyncio.wait({gone, sending})
        if not sending.cancelled() and (error := sending.exception()) is not None:
            logger.info("a reader of thread %s was given up: %r", thread_id, error)


async def _send_all(websocket: WebSocket, feed: ThreadFeed, *, seconds: float) -> None:
    while (item := await feed.next()) is not None:
        async with asyncio.timeout(seconds):
            await websocket.send_text(dump_json(item))
    await websocket.close(_GOING_AWAY, "there is nothing more to follow")


async def _wait_until_gone(websocket: WebSocket) -> None:
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass


@router.get("/api/test-notify", include_in_schema=False, dependencies=[Depends(_development_only)])
@access(Reach.EVERYTHING, Permission.ADMIN)
async def ring_thread(engine: CurrentEngine, thread_id: str = "test-thread") -> Response:
    """A notification that is no stored event; `/ws/events/test-thread` hears it."""
    payload = _test_payload(thread_id=thread_id)
    await engine.database.fetch_value("notify", DEFAULT_CHANNEL, payload)
    return DocumentResponse({"status": "sent", "payload": payload})


@router.get("/api/test-sse-notify/{run_id}", include_in_schema=False, dependencies=[Depends(_development_only)])
@access(Reach.EVERYTHING, Permission.ADMIN)
async def ring_run(run_id: str, engine: CurrentEngine) -> Response:
    """A notification that is no stored event; `/api/runs/{run_id}/events` shows it as RAW."""
    payload = _test_payload(thread_id="test-thread", run_id=run_id)
    await engine.database.fetch_value("notify", DEFAULT_CHANNEL, payload)
    return DocumentResponse({"status": "sent", "run_id": run_id, "payload": payload})


def _test_payload(**names: str) -> str:
    moment = datetime.now(UTC).isoformat()
    return dump_json(
        {**names, "event_id": str(new_id()), "author": "system", "event_type": "test", "created_at": moment}
    )
