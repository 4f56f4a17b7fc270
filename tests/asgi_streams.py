"""Streams of an application in this process: server-sent events and WebSockets, read while they are open.

httpx reads an answer of an ASGI application to its end before it hands it over, and a stream has none.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

TIMEOUT = 60


class AsgiStream:
    """One open request or WebSocket. `status` is the HTTP status, or 101 and the like for a WebSocket."""

    def __init__(self, app: Any, path: str, *, websocket: bool = False, **headers: str) -> None:
        place, _, query = path.partition("?")
        self.status = 0
        self.headers: dict[str, str] = {}
        self.close_code: int | None = None
        self.received: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._answered = asyncio.Event()
        self._app = app
        self._scope: dict[str, Any] = {
            "type": "websocket" if websocket else "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "ws" if websocket else "http",
            "path": place,
            "raw_path": quote(place).encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(b"host", b"engine")]
            + [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("engine", 80),
            "subprotocols": [],
            "state": {},
        }
        if websocket:
            del self._scope["method"]
            self._inbox.put_nowait({"type": "websocket.connect"})
        else:
            self._inbox.put_nowait({"type": "http.request", "body": b"", "more_body": False})

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        async with asyncio.timeout(TIMEOUT):
            await self._answered.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inbox.put_nowait({"type": f"{self._scope['type']}.disconnect", "code": 1000})
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._task
        finally:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def next(self) -> bytes | None:
        """The next piece; None when the stream has ended."""
        async with asyncio.timeout(TIMEOUT):
            return await self.received.get()

    async def end(self) -> list[bytes]:
        """Reads on until the server ends the stream; what came until then."""
        pieces = []
        while (piece := await self.next()) is not None:
            pieces.append(piece)
        return pieces

    def send_json(self, value: Any) -> None:
        """Says something on a WebSocket."""
        self._inbox.put_nowait({"type": "websocket.receive", "text": json.dumps(value)})

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._inbox.get, self._take)
        finally:
            self._answered.set()
            self.received.put_nowait(None)

    async def _take(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "http.response.start":
                self.status = message["status"]
                self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
                self._answered.set()
            case "http.response.body":
                if message.get("body"):
                    self.received.put_nowait(message["body"])
                if not message.get("more_body"):
                    self.received.put_nowait(None)
                    self._inbox.put_nowait({"type": "http.disconnect"})
            case "websocket.accept":
                self.status = 101
                self._answered.set()
            case "websocket.send":
                self.received.put_nowait((message.get("text") or "").encode() or message.get("bytes"))
            case "websocket.close":
                self.close_code = message["code"]
                self._answered.set()
                self.received.put_nowait(None)
