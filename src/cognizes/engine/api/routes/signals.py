"""Signals: a change and its newest sequence. Clients pull the content."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query, WebSocket, WebSocketDisconnect
from starlette.responses import Response

from cognizes.engine.access import Principal
from cognizes.engine.api.authorization import (
    LARGEST,
    Authorizer,
    Caller,
    ContextId,
    CurrentAuthorizer,
    CurrentEngine,
    Reach,
    access,
)
from cognizes.engine.api.sse import EventStream, Heartbeats, HeartbeatTimer
from cognizes.engine.concurrency import WakeUp
from cognizes.engine.engine import Engine
from cognizes.engine.errors import EngineError, InvalidInputError
from cognizes.engine.sync.signals import Signal, SignalSubscription

logger = logging.getLogger(__name__)

router = APIRouter(tags=["signals"])
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "Signals, for as long as you listen"}
}


@router.get("/contexts/{context_id}/events", summary="Signals of a context", response_class=Response, responses=_STREAM)
@access(Reach.THREAD)
async def context_signals(
    context_id: ContextId,
    engine: CurrentEngine,
    heartbeats: Heartbeats,
    after: Annotated[int | None, Query(ge=0, le=LARGEST)] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """`event: signal`, each less than a kilobyte and without content.

    `Last-Event-ID`, or `after` the sequence of an event, sends the missed signals; then come the state and one signal
    for each message that is being streamed, then all changes.
    """
    (resumed,) = read_positions(last_event_id, 1)
    return await _stream(engine, heartbeats, [context_id], [after if resumed is None else resumed])


@router.get("/events", summary="Signals of several contexts", response_class=Response, responses=_STREAM)
@access(Reach.THREADS)
async def signals_of_contexts(
    engine: CurrentEngine,
    heartbeats: Heartbeats,
    authorizer: CurrentAuthorizer,
    caller: Caller,
    contexts: Annotated[str, Query(description="Ids, separated by commas.")],
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """The same signals on one connection; `id:` holds the position in every context."""
    found = list(dict.fromkeys(await authorizer.find_contexts(caller, _split_contexts(contexts))))
    return await _stream(engine, heartbeats, found, read_positions(last_event_id, len(found)))


async def _stream(
    engine: Engine, heartbeats: HeartbeatTimer, thread_ids: list[UUID], after: Sequence[int | None]
) -> EventStream:
    subscription = engine.signals.follow()
    for thread_id, position in zip(thread_ids, after, strict=True):
        await subscription.add(thread_id, after=position)
    frames = SignalFrames(subscription, subscription.positions)
    return EventStream(frames.send, heartbeats=heartbeats, heartbeat=frames.heartbeat)


@router.websocket("/ws/signals")
@access(Reach.THREADS)
async def signals_by_websocket(
    websocket: WebSocket,
    engine: CurrentEngine,
    heartbeats: Heartbeats,
    authorizer: CurrentAuthorizer,
    caller: Caller,
    contexts: str = "",
) -> None:
    """The same signals; `{"type": "subscribe" | "unsubscribe", "contexts": ["id", …]}` changes the contexts.

    `subscribe` may contain cursors: `"after": {"id": 17}`. The answer is `{"type": "subscribed", …}` or
    `{"type": "error", …}`.
    """
    await websocket.accept()
    async with engine.signals.follow(stays_open=True) as subscription:
        connection = _SignalSocket(websocket, subscription, authorizer, caller, seconds=engine.settings.send_seconds)
        leave = heartbeats.add(connection)
        try:
            if contexts:
                await connection.handle({"type": "subscribe", "contexts": contexts.split(",")})
            await connection.run()
        except WebSocketDisconnect:
            return
        except TimeoutError:
            logger.info("a client stopped reading its signals; the WebSocket is closed")
        finally:
            leave()


class _SignalSocket:
    """One WebSocket: receives requests to change its contexts, and sends their signals."""

    def __init__(
        self,
        websocket: WebSocket,
        subscription: SignalSubscription,
        authorizer: Authorizer,
        caller: Principal,
        *,
        seconds: float,
    ) -> None:
        self._websocket = websocket
        self._seconds = seconds
        self._authorizer = authorizer
        self._caller = caller
        self._subscription = subscription
        self._due = WakeUp()
        self._has_ended = False

    def beat(self) -> None:
        self._due.notify()

    def end(self) -> None:
        self._has_ended = True
        self._due.notify()

    async def run(self) -> None:
        """Receive and send until one of both ends."""
        works = (self._receive(), self._send_signals(), self._send_heartbeats())
        tasks = [asyncio.create_task(work, name="ws-signals") for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if self._has_ended:
            await self._websocket.close(1012)

    async def handle(self, request: Any) -> None:
        """Apply a request and answer it."""
        try:
            await self._change(request)
        except EngineError as error:
            await self._send({"type": "error", "detail": str(error)})
            return
        followed = [str(thread_id) for thread_id in self._subscription.thread_ids]
        await self._send({"type": "subscribed", "contexts": followed})

    async def _receive(self) -> None:
        while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
            try:
                # A binary message has no text.
                request = json.loads(message.get("text") or "")
            except (ValueError, RecursionError):
                request = None
            await self.handle(request)

    async def _send_signals(self) -> None:
        while True:
            for signal in await self._subscription.take():
                await self._send_text(signal.to_text())

    async def _send_heartbeats(self) -> None:
        seen = 0
        while True:
            await self._due.wait(seen)
            seen = self._due.version
            if self._has_ended:
                return
            for signal in self._subscription.heartbeats():
                await self._send_text(signal.to_text())

    async def _change(self, request: Any) -> None:
        names = request.get("contexts") if isinstance(request, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise InvalidInputError('send {"type": "subscribe" or "unsubscribe", "contexts": ["id", …]}')
        names = list(dict.fromkeys(names))
        found = await self._authorizer.find_contexts(self._caller, names)
        if request.get("type") == "unsubscribe":
            for thread_id in found:
                await self._subscription.remove(thread_id)
        elif request.get("type") == "subscribe":
            self._authorizer.check_count(len({*found, *self._subscription.thread_ids}))
            after = request.get("after")
            for name, thread_id in zip(names, found, strict=True):
                position = after.get(name) if isinstance(after, dict) else None
                is_number = isinstance(position, int) and not isinstance(position, bool) and position >= 0
                await self._subscription.add(thread_id, after=position if is_number else None)
        else:
            raise InvalidInputError('"type" is "subscribe" or "unsubscribe"')

    async def _send(self, document: dict[str, Any]) -> None:
        await self._send_text(json.dumps(document))

    async def _send_text(self, text: str) -> None:
        """Raise `TimeoutError` if the client stopped reading."""
        async with asyncio.timeout(self._seconds):
            await self._websocket.send_text(text)


class SignalFrames:
    """Encodes signals as server-sent events. The id of a frame holds the position of every context, in their order."""

    def __init__(self, subscription: SignalSubscription, positions: dict[UUID, int]) -> None:
        self._subscription = subscription
        self._positions = {str(thread_id): position for thread_id, position in positions.items()}

    async def send(self, stream: EventStream) -> None:
        """Send signals until all contexts are deleted."""
        async with self._subscription:
            while signals := await self._subscription.take():
                await stream.put("".join(map(self.frame, signals)))

    def heartbeat(self) -> str:
        return "".join(map(self._write_frame, self._subscription.heartbeats()))

    def frame(self, signal: Signal) -> str:
        before = 0 if signal.restarts else self._positions[signal.context_id]
        self._positions[signal.context_id] = max(before, signal.position)
        return self._write_frame(signal)

    def _write_frame(self, signal: Signal) -> str:
        # A heartbeat may overtake queued signals, so it moves no position.
        return f"id: {_write(list(self._positions.values()))}\nevent: signal\ndata: {signal.to_text()}\n\n"


def _write(positions: Sequence[int]) -> str:
    return str(positions[0]) if len(positions) == 1 else ".".join(map(_base_36, positions))


def read_positions(last_event_id: str | None, count: int) -> list[int | None]:
    """Return the position of each context in a `Last-Event-ID`; None for all if it is not valid for `count`."""
    nothing: list[int | None] = [None] * count
    parts = (last_event_id or "").split(".")
    if len(parts) != count or not all(part.isascii() and part.isalnum() and len(part) < 19 for part in parts):
        return nothing
    try:
        return [int(part, 10 if count == 1 else 36) for part in parts]
    except ValueError:
        return nothing


def _split_contexts(names: str) -> list[str]:
    found = list(dict.fromkeys(name for name in names.split(",") if name))
    if not found:
        raise InvalidInputError("name at least one context: contexts=a,b,c")
    return found


def _base_36(number: int) -> str:
    text = ""
    while True:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
        if not number:
            return text
