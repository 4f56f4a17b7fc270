"""How many WebSockets of this process are open. Server-sent event streams hang on the heartbeat wheels, which count."""

from __future__ import annotations

from cognizes.engine.api.http_protocol import CONNECTION_LIMITS
from cognizes.engine.api.requests import App, Receive, Scope, Send


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
