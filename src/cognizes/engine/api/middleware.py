"""Connections of clients: how many WebSockets are open, and reads whose client has disconnected.

Server-sent event streams hang on the heartbeat wheels, which count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from cognizes.engine.api.authorization import REFUSAL, access_of, only_reads
from cognizes.engine.api.http_protocol import CONNECTION_LIMITS
from cognizes.engine.api.requests import App, Message, Receive, Scope, Send
from cognizes.engine.settings import Settings

_WATCH_AFTER_SECONDS = 0.25
"""Most requests are answered before: watching their connection would cost each of them a task."""
UPLOAD_SECONDS = 120.0
"""How long a body may take to arrive, and how long a large one waits before that for one of the few places."""
_BODY_OVERHEAD = 64 * 1024
"""What a body holds beside one event or one state of the largest size."""
_CLIENT_CLOSED_REQUEST = 499
"""The status in the log, as nginx has it. No client receives it."""


class OpenConnections:
    """The count; `CountConnections` keeps it."""

    def __init__(self) -> None:
        self.websockets = 0


class CountConnections:
    """ASGI middleware: counts WebSockets for as long as they are open, and gives the server the limits it must keep."""

    def __init__(self, app: App, counts: OpenConnections) -> None:
        self._app = app
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" and "state" in scope:
            # uvicorn hands the state to its protocols. The limits exist once the engine has started.
            scope["state"][CONNECTION_LIMITS] = lambda: scope["app"].state.connection_limits
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        self._counts.websockets += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._counts.websockets -= 1


class CancelAbandonedReads:
    """ASGI middleware: cancels a read whose client has disconnected, and with it the statement on the server.

    A write is not cancelled: the client cannot know how much of it is stored, so it is completed. A response that has
    begun is not concerned; streams watch their connections themselves.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with _Read(scope, receive, send) as read:
            try:
                await self._app(scope, read.receive, read.send)
            except asyncio.CancelledError:
                if not read.uncancel():
                    raise
                await send({"type": "http.response.start", "status": _CLIENT_CLOSED_REQUEST, "headers": []})
                await send({"type": "http.response.body", "body": b""})


class _Read:
    """One request while its response has not begun."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._task = asyncio.current_task()
        self._has_whole_body = scope["method"] == "GET"
        self._is_abandoned = False
        self._watch: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> _Read:
        self._arm()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):
            self._has_whole_body = True
        return message

    async def send(self, message: Message) -> None:
        self._stop()
        await self._send(message)

    def uncancel(self) -> bool:
        """Whether it was cancelled because the client has disconnected, and for no other reason."""
        return self._is_abandoned and self._task is not None and self._task.uncancel() == 0

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_SECONDS, self._start)

    def _start(self) -> None:
        if not only_reads(self._scope):
            return
        if self._has_whole_body:
            self._watch = asyncio.create_task(self._wait_for_disconnect(), name="watch-client")
        else:
            self._arm()

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_abandoned = True
        if self._task is not None:
            self._task.cancel()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None


class BodyLimit:
    """ASGI middleware: a body over the limit ends in 413, before it fills the memory.

    What carries events or state may be larger than other requests, up to what an event or a state may be. Of those
    larger ones only a few are received at a time; the others wait before they are read.
    """

    def __init__(self, app: App, settings: Callable[[], Settings]) -> None:
        self._app = app
        self._settings = settings
        self._slots: asyncio.Semaphore | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with _Body(scope, receive, self._settings(), self._large_bodies) as body:
            await self._app(scope, body.receive, send)

    def _large_bodies(self) -> asyncio.Semaphore:
        if self._slots is None:
            self._slots = asyncio.Semaphore(self._settings().max_large_bodies)
        return self._slots


class _Body:
    """The body of one request while it comes in."""

    def __init__(
        self, scope: Scope, receive: Receive, settings: Settings, slots: Callable[[], asyncio.Semaphore]
    ) -> None:
        self._receive = receive
        self._usual = settings.max_body_bytes
        self._scope = scope
        self._settings = settings
        self._limit = 0
        declared = Headers(scope=scope).get("content-length", "")
        self._declared = int(declared) if declared.isdecimal() and len(declared) < 19 else 0
        self._received = 0
        self._slots = slots
        self._slot: asyncio.Semaphore | None = None
        self._had_slot = False
        self._upload_seconds = UPLOAD_SECONDS
        self._deadline: float | None = None
        self._is_complete = False

    def __enter__(self) -> _Body:
        return self

    def __exit__(self, *_: object) -> None:
        self._give_slot_back()

    async def receive(self) -> Message:
        if not self._limit:
            # Only now a route is found, which says how large its bodies may be.
            self._limit = body_limit(self._scope, self._settings)
        self._check(self._declared)
        if not self._had_slot and max(self._declared, self._received) > self._usual:
            await self._wait_for_slot()
        message = await self._next_message()
        self._received += len(message.get("body", b""))
        self._check(self._received)
        if not message.get("more_body", False):
            self._is_complete = True
            self._give_slot_back()
        return message

    def _check(self, size: int) -> None:
        if size > self._limit:
            setting = "COGNIZES_MAX_BODY_BYTES" if self._limit <= self._usual else "COGNIZES_MAX_EVENT_BYTES"
            raise HTTPException(413, f"the body is {size} bytes or more; the limit is {self._limit} ({setting})")

    async def _next_message(self) -> Message:
        # After its body, a request only waits for its client to leave.
        if self._is_complete:
            return await self._receive()
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._upload_seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._receive()
        except TimeoutError:
            raise HTTPException(408, f"a body must arrive within {self._upload_seconds:g} s") from None

    async def _wait_for_slot(self) -> None:
        slots = self._slots()
        try:
            await asyncio.wait_for(slots.acquire(), self._upload_seconds)
        except TimeoutError:
            busy = "too many large bodies are being received; try again"
            raise HTTPException(503, busy, headers={"Retry-After": "5"}) from None
        self._slot, self._had_slot = slots, True
        self._deadline = None

    def _give_slot_back(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.release()


def body_limit(scope: Scope, settings: Settings) -> int:
    """Return the largest body of a request. An unidentified caller sends no large one."""
    if REFUSAL in scope or not access_of(scope).has_large_body:
        return settings.max_body_bytes
    largest = max(settings.max_event_bytes, settings.max_state_bytes)
    return max(settings.max_body_bytes, largest + _BODY_OVERHEAD)
