"""The outermost layer: who calls is asked before a body is read, streams end with their caller's right to them, every
answer has the headers browsers are kept safe by, and administrative writes are noted."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import nullcontext
from http import HTTPStatus
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware

from cognizes.engine.access import ANONYMOUS, Permission, Principal
from cognizes.engine.access.audit import printable
from cognizes.engine.access.principal import Grant
from cognizes.engine.api.authorization import (
    AUDITED,
    PRINCIPAL,
    REFUSAL,
    Reach,
    access_of,
    check_peer,
    credential_of,
    origins_of,
)
from cognizes.engine.api.limits import FailedKeys, OpenStreams
from cognizes.engine.api.problems import problem
from cognizes.engine.api.requests import App, Message, Receive, Scope, Send, request_id
from cognizes.engine.database.tenancy import acting_for
from cognizes.engine.engine import Engine
from cognizes.engine.errors import (
    AccessError,
    AuthenticationError,
    EngineError,
    PermissionDeniedError,
    TooManyRequestsError,
)

logger = logging.getLogger(__name__)

_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
_POLICY_VIOLATION = 1008


class Guard:
    """ASGI middleware. With authentication off it refuses other machines and adds headers."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        engine: Engine = scope["app"].state.engine
        if not engine.access.is_required:
            if not engine.settings.insecure:
                try:
                    check_peer(scope)
                except PermissionDeniedError as error:
                    await _refuse(error, scope, receive, send)
                    return
            await self._app(scope, receive, _with_headers(scope, send))
            await _audit(engine, scope, ANONYMOUS)
            return
        try:
            principal = await _identify(engine, scope)
        except EngineError as error:
            if not isinstance(error, AccessError):
                logger.warning("a caller could not be identified: %s", error)
            scope[REFUSAL] = error
            await self._app(scope, receive, _with_headers(scope, send))
            return
        scope[PRINCIPAL] = principal
        await self._serve(engine, principal, scope, receive, send)

    async def _serve(self, engine: Engine, principal: Principal, scope: Scope, receive: Receive, send: Send) -> None:
        grant = engine.access.grants.open(principal)
        connection = _Connection(engine, scope, receive, _with_headers(scope, send), grant)
        try:
            with acting_for(principal.app_names) if principal.app_names is not None else nullcontext():
                await self._app(scope, connection.receive, connection.send)
            await connection.finish()
        except TooManyRequestsError as error:
            if connection.has_started:
                raise
            retry = {"Retry-After": str(math.ceil(error.retry_after))}
            answer = problem(HTTPStatus.TOO_MANY_REQUESTS, str(error), headers=retry)
            await answer(scope, receive, _with_headers(scope, send))
        finally:
            connection.leave()
            engine.access.grants.close(grant)
            await _audit(engine, scope, principal)


async def _refuse(error: PermissionDeniedError, scope: Scope, receive: Receive, send: Send) -> None:
    logger.info("%s", error)
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": "other machines need a key"})
    else:
        await problem(HTTPStatus.FORBIDDEN, str(error))(scope, receive, _with_headers(scope, send))


async def _identify(engine: Engine, scope: Scope) -> Principal:
    credential = credential_of(scope)
    failed: FailedKeys = scope["app"].state.failed_keys
    failed.check(credential)
    async with failed.lookup(scope, credential):
        try:
            principal = await engine.access.authenticate(credential)
        except AuthenticationError:
            failed.note_failure(scope, credential)
            raise
    failed.note_success(credential)
    return principal


class _Connection:
    """One request or WebSocket of a caller who can lose the right to it."""

    def __init__(self, engine: Engine, scope: Scope, receive: Receive, send: Send, grant: Grant) -> None:
        self._engine = engine
        self._scope = scope
        self._is_websocket = scope["type"] == "websocket"
        self._receive = receive
        self._send = send
        self._grant = grant
        self._streams: OpenStreams = scope["app"].state.streams
        self._leave: Callable[[], None] | None = None
        self.has_started = False
        self._is_complete = False
        self._is_withheld = False

    @property
    def transport(self) -> Any:
        """What the server lays bare for those who must hang up on a client that stopped reading."""
        return getattr(getattr(self._receive, "__self__", None), "transport", None)

    async def receive(self) -> Message:
        """What the client sends, or that it is gone: to the application, an expired client has left."""
        over = asyncio.ensure_future(self._grant.revoked.wait())
        message = asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait({over, message}, return_when=asyncio.FIRST_COMPLETED)
            if message.done():
                return self._seen(message.result())
        finally:
            over.cancel()
            message.cancel()
        if self._is_websocket:
            return {"type": "websocket.disconnect", "code": _POLICY_VIOLATION}
        return {"type": "http.disconnect"}

    def _seen(self, message: Message) -> Message:
        if message["type"] in ("http.disconnect", "websocket.disconnect"):
            self._is_complete = True
        return message

    async def send(self, message: Message) -> None:
        """Pass a message on and count streams. Withhold what is read for a caller whose right has ended since."""
        kind = message["type"]
        if self._is_withheld:
            return
        if kind == "http.response.start" and self._grant.revoked.is_set() and await self._must_withhold():
            await self._withhold()
            return
        if kind == "websocket.accept" or (kind == "http.response.start" and _is_stream(message)):
            self._leave = self._streams.enter(self._grant.principal)
        if kind in ("http.response.start", "websocket.accept"):
            self.has_started = True
        if kind == "websocket.close" or (kind == "http.response.body" and not message.get("more_body", False)):
            self._is_complete = True
        await self._send(message)

    async def _must_withhold(self) -> bool:
        """Return whether the answer is read from the database and its caller may no longer see it.

        The answer to a write is sent: it tells the caller what was stored while the key was valid.
        """
        needed = access_of(self._scope)
        if needed.reach is Reach.PUBLIC or needed.permission is Permission.WRITE:
            return False
        try:
            return not await self._engine.access.is_valid(self._grant.principal)
        except EngineError as error:
            logger.warning("%s could not be checked again: %s", self._grant.principal.name, error)
            return True

    async def _withhold(self) -> None:
        self._is_withheld = self.has_started = self._is_complete = True
        logger.info("the answer to a request of %s is withheld: its right has ended", self._grant.principal.name)
        headers = {"WWW-Authenticate": "Bearer", "X-Request-ID": self._scope["cognizes.request_id"]}
        detail = "the key or token was revoked or has expired while the request was served"
        await problem(HTTPStatus.UNAUTHORIZED, detail, headers=headers)(self._scope, self._receive, self._send)

    async def finish(self) -> None:
        """Ends what the application left open because its client seemed to be gone."""
        if not self.has_started or self._is_complete or not self._grant.revoked.is_set():
            return
        if self._is_websocket:
            await self._send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": "the right has expired"})
        else:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def leave(self) -> None:
        """No longer counts as a stream."""
        if self._leave is not None:
            self._leave()


def _is_stream(message: Message) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in message["headers"])


def _with_headers(scope: Scope, send: Send) -> Send:
    if scope["type"] != "http":
        return send

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            scope["cognizes.status"] = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_with_headers


async def _audit(engine: Engine, scope: Scope, principal: Principal) -> None:
    if not scope.get(AUDITED):
        return
    method, path = scope.get("method", "WEBSOCKET"), scope["path"]
    try:
        await engine.access.audit.write(
            actor=principal.name,
            action=f"{method} {getattr(scope.get('route'), 'path', path)}",
            app_name=scope[AUDITED],
            target=path,
            status=scope.get("cognizes.status"),
            request_id=scope.get("cognizes.request_id", request_id.get()),
        )
    except EngineError as error:
        request, actor = printable(f"{method} {path}"), printable(principal.name)
        logger.error("the audit log could not be written: %s by %s (%s)", request, actor, error)


class Cors:
    """ASGI middleware: pages of the origins in the settings may call; without any, nothing is added."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._allowing: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if self._allowing is None:
            origins = origins_of(scope["app"].state.engine.settings.cors_origins)
            self._allowing = self._app if not origins else _allow(self._app, origins)
        await self._allowing(scope, receive, send)


def _allow(app: Any, origins: list[str]) -> CORSMiddleware:
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=["authorization", "content-type", "x-api-key", "x-request-id", "x-user-id", "last-event-id"],
        expose_headers=["x-request-id", "retry-after", "etag"],
        max_age=600,
    )
