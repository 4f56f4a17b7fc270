"""How many are listening: open server-sent event streams and WebSockets of this process."""

from __future__ import annotations

from cognizes.engine.api.requests import App, Message, Receive, Scope, Send


class OpenConnections:
    """The counts; `CountConnections` keeps them."""

    def __init__(self) -> None:
        self.streams = 0
        self.websockets = 0


class CountConnections:
    """ASGI middleware: counts connections that stay open."""

    def __init__(self, app: App, counts: OpenConnections) -> None:
        self._app = app
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            self._counts.websockets += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._counts.websockets -= 1
        elif scope["type"] == "http":
            await self._count_stream(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _count_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_stream = False

        async def watch(message: Message) -> None:
            nonlocal is_stream
            if message["type"] == "http.response.start" and _is_event_stream(message):
                is_stream = True
                self._counts.streams += 1
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            if is_stream:
                self._counts.streams -= 1


def _is_event_stream(message: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in message.get("headers", ())
    )
