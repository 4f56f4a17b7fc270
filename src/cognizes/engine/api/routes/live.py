"""Live routes: a WebSocket for threads, server-sent events for runs, and test notifications."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Header, HTTPException, Query, WebSocket, WebSocketException
from starlette.responses import Response

from cognizes.engine.access import Permission
from cognizes.engine.agui.frames import AgUiEvent, AgUiEventType, milliseconds
from cognizes.engine.agui.monitor import FrameGroup
from cognizes.engine.api.agents import Streams
from cognizes.engine.api.authorization import LARGEST, Caller, CurrentEngine, Reach, ThreadOfRun, access
from cognizes.engine.api.responses import DocumentResponse
from cognizes.engine.api.sse import EventStream, Heartbeats
from cognizes.engine.database.documents import dump_json
from cognizes.engine.database.notifications import DEFAULT_CHANNEL, STREAM_CHANNEL
from cognizes.engine.engine import Engine
from cognizes.engine.errors import ConflictError, EngineError, FeedRewoundError, NotFoundError
from cognizes.engine.models import Event, JsonObject, new_id
from cognizes.engine.pulse.session_store import thread_uuid

logger = logging.getLogger(__name__)

router = APIRouter(tags=["live"])
_EVERYTHING = "*"
_GOING_AWAY = 1001
_POLICY_VIOLATION = 1008
_REWOUND = 4409
"""The close code of a feed whose thread lost events: the client reloads the thread."""
_REASON_BYTES = 120


async def _development_only(engine: CurrentEngine) -> None:
    if not engine.settings.development:
        raise HTTPException(404, "test notifications are off (COGNIZES_DEVELOPMENT)")


async def _followed_thread(
    run_id: str,
    engine: CurrentEngine,
    caller: Caller,
    thread: ThreadOfRun,
    thread_id: Annotated[str | None, Query(description="Needed when several threads have a run of this id.")] = None,
) -> UUID | None:
    """Return the thread of the run to follow, among those that the caller may see; None if it need not be named."""
    found = await engine.runs.find_all(run_id, app_names=caller.app_names, user_id=caller.user_id)
    threads = [thread_uuid(run.thread_id) for run in found]
    if thread_id is not None:
        if thread_uuid(thread_id) not in threads:
            raise NotFoundError(f"there is no run {run_id} in thread {thread_id}")
        return thread_uuid(thread_id)
    if len(threads) > 1:
        raise ConflictError(f"several threads have a run {run_id}; add ?thread_id= to name one")
    return thread


FollowedThread = Annotated[UUID | None, Depends(_followed_thread)]


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
    heartbeats: Heartbeats,
    streams: Streams,
    thread: FollowedThread,
    profile: Annotated[Literal["monitor", "agui"], Query()] = "monitor",
    after: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Server-sent events. `id:` numbers the events; `Last-Event-ID` resumes.

    `profile=monitor` has the frames of the seed and never ends; `profile=agui` has only what AG-UI clients accept, and
    ends with the run. 409 if several threads have a run of this id and `thread_id` is missing, or if the thread ends
    before the event to resume after: reload it.
    """
    resumed = int(last_event_id) if last_event_id and last_event_id.isdecimal() and len(last_event_id) < 19 else after
    if resumed:
        await engine.feed.check_run_cursor(run_id, resumed, thread)
    if profile == "agui":
        return streams.open(engine._observer.observe_run(run_id, after=resumed, thread_id=thread))
    greeting = _custom(run_id, "connected", message=f"SSE stream for run_id={run_id}")
    return EventStream(
        partial(engine._monitor_frames.send, run_id, after=resumed, greeting=greeting, thread_id=thread),
        heartbeats=heartbeats,
        heartbeat=partial(_custom, run_id, "heartbeat"),
    )


def _custom(run_id: str, name: str, **data: str) -> str:
    return AgUiEvent(AgUiEventType.CUSTOM, run_id, milliseconds(None), {"name": name, **data}).to_sse()


@router.websocket("/ws/events/{thread_id:path}")
@access(Reach.THREAD)
async def thread_events(websocket: WebSocket, thread_id: str, engine: CurrentEngine, after: int | None = None) -> None:
    """Send every event of a thread from now on, or after a sequence, as `{"channel", "payload", "received_at"}`.

    `*` means all notifications. The path may be any text: test notifications name threads that do not exist.
    """
    items = await _thread_items(engine, thread_id, after)
    async with aclosing(items):
        try:
            first = await anext(items, None)  # The subscription is registered before the client is accepted.
        except FeedRewoundError as error:
            await websocket.accept()
            await websocket.close(_REWOUND, str(error)[:_REASON_BYTES])
            return
        await websocket.accept()
        gone = asyncio.ensure_future(_wait_until_gone(websocket))
        sending = asyncio.create_task(
            _send_all(websocket, first or [], items, seconds=engine.settings.send_seconds), name="ws-events"
        )
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            sending.cancel()
            await asyncio.wait({gone, sending})
        if not sending.cancelled() and (failure := sending.exception()) is not None:
            logger.info("the WebSocket of thread %s is closed: %r", thread_id, failure)


async def _thread_items(engine: Engine, name: str, after: int | None) -> AsyncGenerator[list[JsonObject], None]:
    """Return the messages of a WebSocket. The first page is empty or comes at once.

    The feed delivers the stored events of a thread, and the text of its streamed messages as TEXT_MESSAGE_* and
    REASONING_* frames on the channel of the streams. Other notifications, and everything under `*`, are passed on as
    they arrive; a slow reader misses some.
    """
    try:
        thread = await engine.sessions.store.get_thread(name)
    except NotFoundError:
        if engine._database.acting_apps is not None:
            # Tenants receive no test notifications: a thread that is hidden from them may be another tenant's.
            raise WebSocketException(_POLICY_VIOLATION, f"there is no thread {name}"[:_REASON_BYTES]) from None
        return _notification_items(engine, name)
    return _feed_items(engine, UUID(name), thread.last_sequence if after is None else max(after, 0))


async def _feed_items(engine: Engine, thread_id: UUID, after: int) -> AsyncGenerator[list[JsonObject], None]:
    async with aclosing(engine._monitor_frames.follow_thread(thread_id, after=after)) as pages:
        async for groups in pages:
            yield [item for group in groups for item in _group_items(str(thread_id), group)]


async def _notification_items(engine: Engine, name: str) -> AsyncGenerator[list[JsonObject], None]:
    async with aclosing(engine.feed.notifications(None if name == _EVERYTHING else name)) as pages:
        async for page in pages:
            yield [_item(notification.payload) for notification in page]


def _group_items(thread_id: str, group: FrameGroup) -> list[JsonObject]:
    if group.notification is not None:
        return [_item(group.notification)]
    items = [
        _item({"thread_id": thread_id, **frame.to_json()}, channel=STREAM_CHANNEL)
        for frame in (group.frames if group.is_streamed else ())
        if frame.type.startswith(("TEXT_", "REASONING_"))
    ]
    return items if group.event is None else [*items, _item(_event_payload(group.event))]


def _item(payload: JsonObject, *, channel: str = DEFAULT_CHANNEL) -> JsonObject:
    return {"channel": channel, "payload": payload, "received_at": datetime.now(UTC).isoformat()}


def _event_payload(event: Event) -> JsonObject:
    return {
        "event_id": event.id,
        "thread_id": event.thread_id,
        "sequence_num": event.sequence_num,
        "run_id": event.run_id,
        "author": event.author,
        "event_type": event.event_type,
        "created_at": event.created_at.isoformat() if event.created_at else None,
    }


async def _send_all(
    websocket: WebSocket, first: list[JsonObject], pages: AsyncGenerator[list[JsonObject], None], *, seconds: float
) -> None:
    code, reason = _GOING_AWAY, "the feed has ended"
    items: list[JsonObject] | None = first
    try:
        while items is not None:
            for item in items:
                async with asyncio.timeout(seconds):
                    await websocket.send_text(dump_json(item))
            items = await anext(pages, None)
    except FeedRewoundError as error:
        code, reason = _REWOUND, str(error)[:_REASON_BYTES]
    except EngineError as error:
        logger.warning("the feed of a WebSocket failed: %s", error)
    await websocket.close(code, reason)


async def _wait_until_gone(websocket: WebSocket) -> None:
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass


@router.get("/api/test-notify", include_in_schema=False, dependencies=[Depends(_development_only)])
@access(Reach.EVERYTHING, Permission.ADMIN)
async def notify_thread(engine: CurrentEngine, thread_id: str = "test-thread") -> Response:
    """Send a notification without a stored event; `/ws/events/test-thread` receives it."""
    payload = _test_payload(thread_id=thread_id)
    await engine._database.fetch_value("notify", DEFAULT_CHANNEL, payload)
    return DocumentResponse({"status": "sent", "payload": payload})


@router.get("/api/test-sse-notify/{run_id}", include_in_schema=False, dependencies=[Depends(_development_only)])
@access(Reach.EVERYTHING, Permission.ADMIN)
async def notify_run(run_id: str, engine: CurrentEngine) -> Response:
    """Send a notification without a stored event; `/api/runs/{run_id}/events` receives it as RAW."""
    payload = _test_payload(thread_id="test-thread", run_id=run_id)
    await engine._database.fetch_value("notify", DEFAULT_CHANNEL, payload)
    return DocumentResponse({"status": "sent", "run_id": run_id, "payload": payload})


def _test_payload(**names: str) -> str:
    moment = datetime.now(UTC).isoformat()
    return dump_json(
        {**names, "event_id": str(new_id()), "author": "system", "event_type": "test", "created_at": moment}
    )
