"""What every request goes through: an id, and a line in the log."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

from starlette.datastructures import Headers, MutableHeaders

from cognizes.engine.access.audit import printable
from cognizes.engine.models import new_id

logger = logging.getLogger("cognizes.engine.access")

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request being served, for logs and problem details."""

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

LATER = "cognizes.later"
"""In the scope: a list of what `RequestContext` runs, with receive and send, when the application has returned."""
_KEPT_BY_FASTAPI = ("fastapi_inner_astack", "fastapi_function_astack", "fastapi_middleware_astack")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RequestContext:
    """ASGI middleware: keeps or makes `X-Request-ID`, and logs method, path, status and duration."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        current = given if _SANE_ID.fullmatch(given) else str(new_id())
        token = request_id.set(current)
        later: list[Callable[[Receive, Send], Awaitable[None]]] = []
        scope[LATER] = later
        scope["cognizes.request_id"] = current
        started = time.perf_counter()
        status = 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = current
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
            for name in _KEPT_BY_FASTAPI:
                scope.pop(name, None)
            for run in later:
                await run(receive, send_with_id)
        finally:
            duration = (time.perf_counter() - started) * 1000
            path = printable(scope["path"])
            logger.info("%s %s %s %.1fms", scope["method"], path, status, duration, extra={"request_id": current})
            request_id.reset(token)
