"""Connections of clients: how many WebSockets are open, and reads whose client has disconnected.

Server-sent event streams hang on the heartbeat wheels, which count.
"""

from __future__ import annotations

import asyncio

from cognizes.engine.api.http_protocol import CONNECTION_LIMITS
from cognizes.engine.api.requests import App, Message, Receive, Scope, Send
from cognizes.engine.api.route_rules import only_reads

_WATCH_AFTER_SECONDS = 0.25
"""Most requests are answered before: watching their connection would cost each of them a task."""
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
        if scope["type"] != "http" or not only_reads(scope["method"], scope["path"]):
            await self._app(scope, receive, send)
            return
        with _Read(scope["method"], receive, send) as read:
            try:
                await self._app(scope, read.receive, read.send)
            except asyncio.CancelledError:
                if not read.uncancel():
                    raise
                await send({"type": "http.response.start", "status": _CLIENT_CLOSED_REQUEST, "headers": []})
                await send({"type": "http.response.body", "body": b""})


class _Read:
    """One request while its response has not begun."""

    def __init__(self, method: str, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._task = asyncio.current_task()
        self._has_whole_body = method != "POST"
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
