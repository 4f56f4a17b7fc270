"""The one ASGI middleware: what happens to every request before and after its route.

For each request: an id, the caller, the tenant of its database calls, a limit of its body, security headers, a line in
the log and, for administrative writes, an entry in the audit log. A read is cancelled when its client disconnects.
Streams are counted, and end when the key or token of their caller is revoked or expires.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cognizes.engine.access import Permission, Principal
from cognizes.engine.access.audit import printable
from cognizes.engine.access.authenticator import Grant
from cognizes.engine.api.authorization import (
    Access,
    Reach,
    access_of,
    begin_call,
    check_peer,
    credential_of,
    only_reads,
    origins_of,
)
from cognizes.engine.api.direct_routes import DirectRoutes
from cognizes.engine.api.http_protocol import CONNECTION_LIMITS
from cognizes.engine.api.limits import FailedKeys, OpenStreams
from cognizes.engine.api.responses import problem, problem_of, request_id
from cognizes.engine.database.tenancy import acting_as_engine, acting_for, serving_request
from cognizes.engine.engine import Engine
from cognizes.engine.errors import (
    AccessError,
    AuthenticationError,
    EngineError,
    PermissionDeniedError,
    TooManyRequestsError,
)
from cognizes.engine.models import new_id
from cognizes.engine.settings import Settings
from cognizes.engine.telemetry import instruments

logger = logging.getLogger(__name__)
access_logger = logging.getLogger("cognizes.engine.access")
DEFERRED = "cognizes.deferred"
"""In the scope: a list of functions that the middleware calls with `receive` and `send` when the route has returned."""
UPLOAD_SECONDS = 120.0
"""How long a body may take to arrive, and how long a large one may wait for one of the few slots before that."""
_BODY_OVERHEAD = 64 * 1024
"""What a body holds beside one event or one state of the largest size."""
_WATCH_AFTER_SECONDS = 0.25
"""Most requests are answered before; watching the connection of each would cost a task per request."""
_CLIENT_CLOSED_REQUEST = 499
"""The status in the log, as nginx has it. No client receives it."""
_POLICY_VIOLATION = 1008
_SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


class OpenConnections:
    """How many WebSockets are open. Server-sent event streams are counted by their heartbeat timer."""

    def __init__(self) -> None:
        self.websockets = 0


class Middleware:
    """See the module. `counts` is kept up to date for the Monitor."""

    def __init__(self, app: ASGIApp, counts: OpenConnections) -> None:
        self._app = app
        self._counts = counts
        self._entry: ASGIApp | None = None
        self._direct: DirectRoutes | None = None
        self._large_bodies: asyncio.Semaphore | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            if "state" in scope:
                # uvicorn passes the state to its protocols. The limits exist once the engine has started.
                scope["state"][CONNECTION_LIMITS] = lambda: scope["app"].state.connection_limits
            self._direct = DirectRoutes(scope["app"])
            await self._app(scope, receive, send)
            return
        if self._entry is None:
            self._entry = self._create_entry(scope["app"])
        await self._entry(scope, receive, send)

    def _create_entry(self, app: FastAPI) -> ASGIApp:
        settings: Settings = app.state.engine.settings
        self._direct = self._direct or DirectRoutes(app)
        self._large_bodies = asyncio.Semaphore(settings.max_large_bodies)
        origins = origins_of(settings.cors_origins)
        if not origins:
            return self._serve
        return CORSMiddleware(
            self._serve,
            allow_origins=origins,
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["authorization", "content-type", "x-api-key", "x-request-id", "x-user-id", "last-event-id"],
            expose_headers=["x-request-id", "retry-after", "etag"],
            max_age=600,
        )

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve_http(scope, receive, send)
            return
        self._counts.websockets += 1
        try:
            await self._serve_exchange(WebSocketExchange(scope, receive, send))
        finally:
            self._counts.websockets -= 1

    async def _serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
        current = given if _SAFE_ID.fullmatch(given) else str(new_id())
        token = request_id.set(current)
        started = time.perf_counter()
        assert self._large_bodies is not None  # noqa: S101 - made with the entry
        assert self._direct is not None  # noqa: S101 - the same
        # FastAPI adds to the scope what it needs; the copy is released while a stream is open.
        exchange = HttpExchange(
            dict(scope), receive, send, request=current, large_bodies=self._large_bodies, direct=self._direct
        )
        try:
            await self._serve_exchange(exchange)
        finally:
            seconds = time.perf_counter() - started
            if (measured := instruments()) is not None:
                route = _route_of(exchange.scope)
                measured.requests.labels(scope["method"], route, exchange.status).inc()
                if not exchange.is_stream:
                    measured.request_seconds.labels(scope["method"], route).observe(seconds)
            path = scope["path"] if scope["path"].isprintable() else printable(scope["path"])
            access_logger.info(
                "%s %s %s %.1fms", scope["method"], path, exchange.status, seconds * 1000, extra={"request_id": current}
            )
            request_id.reset(token)

    async def _serve_exchange(self, exchange: HttpExchange | WebSocketExchange) -> None:
        engine: Engine = exchange.scope["app"].state.engine
        if not engine.access.is_required:
            try:
                if not engine.settings.insecure:
                    check_peer(exchange.scope, exchange.call.headers)
            except PermissionDeniedError as error:
                logger.info("%s", error)
                await exchange.refuse(error)
                return
            try:
                await exchange.run(self._app)
            finally:
                await _audit(engine, exchange)
            return
        with serving_request():
            try:
                exchange.call.principal = await _authenticate(engine, exchange.scope, exchange.call.headers)
            except EngineError as error:
                if not isinstance(error, AccessError):
                    logger.warning("a caller could not be authenticated: %s", error)
                exchange.call.refusal = error
                await exchange.run(self._app)
            else:
                await self._serve_granted(engine, exchange)

    async def _serve_granted(self, engine: Engine, exchange: HttpExchange | WebSocketExchange) -> None:
        principal = exchange.call.principal
        grant = exchange.grant = engine.access.grants.open(principal)
        try:
            with acting_as_engine() if principal.app_names is None else acting_for(principal.app_names):
                await exchange.run(self._app)
            if grant.revoked.is_set():
                await exchange.end_revoked()
        except TooManyRequestsError as error:
            if exchange.has_started:
                raise
            await exchange.refuse(error)
        finally:
            exchange.end_stream()
            engine.access.grants.close(grant)
            await _audit(engine, exchange)


async def _authenticate(engine: Engine, scope: Scope, headers: Mapping[bytes, bytes]) -> Principal:
    credential = credential_of(scope, headers)
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


def _route_of(scope: Scope) -> str:
    """Return the template of the route, such as /api/sessions/{thread_id}: a label must not have a value per id."""
    if (route := scope.get("route")) is not None:
        return str(route.path)
    return "/monitor" if scope["path"].startswith("/monitor/") else "none"


async def _audit(engine: Engine, exchange: HttpExchange | WebSocketExchange) -> None:
    call = exchange.call
    if call.audited_app is None:
        return
    method, path = exchange.scope.get("method", "WEBSOCKET"), exchange.scope["path"]
    try:
        await engine.access.audit.write(
            actor=call.principal.name,
            action=f"{method} {exchange.template}",
            app_name=call.audited_app,
            target=path,
            status=exchange.status,
            request_id=request_id.get(),
        )
    except EngineError as error:
        request, actor = printable(f"{method} {path}"), printable(call.principal.name)
        logger.error("the audit log could not be written: %s by %s (%s)", request, actor, error)


class _Exchange:
    """What a request and a WebSocket have in common: the caller's grant, and whether it counts as a stream."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.call = begin_call(scope)
        self.grant: Grant | None = None
        self.has_started = False
        self.is_stream = False
        self.status: int | None = None
        self._receive = receive
        self._send = send
        self._is_complete = False
        self._end_stream: Callable[[], None] | None = None

    @property
    def transport(self) -> Any:
        """The transport under uvicorn, with which `EventStream` closes the connection of a client that stops reading.

        ASGI has no message for that, so there is no public way under a plain uvicorn: `receive` is a method of its
        request, which has the transport. None under other servers.
        """
        return getattr(getattr(self._receive, "__self__", None), "transport", None)

    @property
    def template(self) -> str:
        return str(getattr(self.scope.get("route"), "path", self.scope["path"]))

    def begin_stream(self) -> None:
        self.is_stream = True
        if self.grant is not None:
            streams: OpenStreams = self.scope["app"].state.streams
            self._end_stream = streams.begin(self.grant.principal)

    def end_stream(self) -> None:
        if self._end_stream is not None:
            self._end_stream()

    async def receive_unless_revoked(self) -> Message | None:
        """Return the next message; None when the grant is revoked first."""
        if self.grant is None:
            return await self._receive()
        revoked = asyncio.ensure_future(self.grant.revoked.wait())
        message = asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait({revoked, message}, return_when=asyncio.FIRST_COMPLETED)
            return message.result() if message.done() else None
        finally:
            revoked.cancel()
            message.cancel()


class WebSocketExchange(_Exchange):
    """One WebSocket. To the application, a client whose grant is revoked has disconnected."""

    _has_received = False

    async def run(self, app: ASGIApp) -> None:
        await app(self.scope, self.receive, self.send)

    async def receive(self) -> Message:
        self._has_received = True
        message = await self.receive_unless_revoked()
        if message is None:
            return {"type": "websocket.disconnect", "code": _POLICY_VIOLATION}
        if message["type"] == "websocket.disconnect":
            self._is_complete = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "websocket.accept":
            self.begin_stream()
            self.has_started = True
        elif message["type"] == "websocket.close":
            self._is_complete = True
        await self._send(message)

    async def end_revoked(self) -> None:
        """Close the connection of a caller whose grant is revoked, which seemed to be disconnected."""
        if self.has_started and not self._is_complete:
            reason = "the key or token was revoked or has expired"
            await self._send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": reason})

    async def refuse(self, error: EngineError) -> None:
        """Close the connection before the application has accepted it."""
        if not self._has_received:
            await self._receive()
        reason = "other machines need a key" if isinstance(error, PermissionDeniedError) else str(error)[:120]
        await self._send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": reason})


class HttpExchange(_Exchange):
    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        request: str,
        large_bodies: asyncio.Semaphore,
        direct: DirectRoutes,
    ) -> None:
        super().__init__(scope, receive, send)
        self._direct = direct
        self.status = 500
        self._request_id = request.encode()
        self._body = _Body(self, receive, large_bodies)
        self._watch = _DisconnectWatch(self)
        self._deferred: list[Callable[[Receive, Send], Awaitable[None]]] = []
        self._is_withheld = False
        scope[DEFERRED] = self._deferred

    @property
    def may_be_cancelled(self) -> bool | None:
        """Whether the request only reads; None while its body is not complete."""
        if not only_reads(self.scope):
            return False
        return True if self._body.is_complete or self.scope["method"] == "GET" else None

    async def run(self, app: ASGIApp) -> None:
        """Run the application, then the stream that its route left for later.

        An idle connection would keep the frames of all layers and what FastAPI stores in the scope: half its memory.
        """
        self._watch.start()
        try:
            await self._call(app)
        except asyncio.CancelledError:
            if not self._watch.has_cancelled():
                raise
            await self.send({"type": "http.response.start", "status": _CLIENT_CLOSED_REQUEST, "headers": []})
            await self.send({"type": "http.response.body", "body": b""})
        finally:
            self._watch.stop()
            self._body.release_slot()
        if self._deferred:
            kept = ("type", "app", "method", "path", "headers", "endpoint", "route")
            self.scope = {name: self.scope[name] for name in kept if name in self.scope}
            for run in self._deferred:
                await run(self.receive, self.send)

    async def _call(self, app: ASGIApp) -> None:
        receive: Receive | None = self.receive
        if (route := self._direct.find(self.scope)) is not None:
            receive = await self._direct.serve(route, self.scope, self.receive, self.send)
        if receive is not None:
            await app(self.scope, receive, self.send)

    async def receive(self) -> Message:
        """Return the next part of the body; to the application, a client whose grant is revoked has disconnected."""
        if self._body.is_complete:
            message = await self.receive_unless_revoked()
        else:
            message = await self._body.receive()
            if self.grant is not None and self.grant.revoked.is_set():
                message = None
        if message is None:
            return {"type": "http.disconnect"}
        if message["type"] == "http.disconnect":
            self._is_complete = True
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the response, unless its caller may no longer see it."""
        if self._is_withheld:
            return
        if message["type"] == "http.response.start":
            self._watch.stop()
            if self.grant is not None and self.grant.revoked.is_set() and await self._must_withhold(self.grant):
                await self._withhold(self.grant)
                return
            await self._start(message)
            return
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._is_complete = True
        await self._send(message)

    async def _start(self, message: Message) -> None:
        headers = list(message.get("headers", ()))
        if any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers):
            self.begin_stream()
        self.has_started = True
        self.status = message["status"]
        present = {name for name, _ in headers}
        headers.extend(header for header in _SECURITY_HEADERS if header[0] not in present)
        headers.append((b"x-request-id", self._request_id))
        await self._send({**message, "headers": headers})

    async def _must_withhold(self, grant: Grant) -> bool:
        """Return whether the response holds data that its caller may no longer see.

        The response to a write is sent: it says what was stored while the credential was valid.
        """
        needed: Access = access_of(self.scope)
        if needed.reach is Reach.PUBLIC or needed.permission is Permission.WRITE:
            return False
        engine: Engine = self.scope["app"].state.engine
        try:
            return not await engine.access.is_valid(grant.principal)
        except EngineError as error:
            logger.warning("%s could not be checked again: %s", grant.principal.name, error)
            return True

    async def _withhold(self, grant: Grant) -> None:
        logger.info("a response to %s is withheld: its key or token was revoked or has expired", grant.principal.name)
        detail = "the key or token was revoked or has expired while the request was served"
        response = problem(HTTPStatus.UNAUTHORIZED, detail, headers={"WWW-Authenticate": "Bearer"})
        await self._respond(response)
        self._is_withheld = True

    async def end_revoked(self) -> None:
        """End the response to a caller whose grant is revoked, which seemed to be disconnected."""
        if self.has_started and not self._is_complete:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def refuse(self, error: EngineError) -> None:
        """Answer with an error before the application has begun a response."""
        await self._respond(problem_of(error))

    async def _respond(self, response: ASGIApp) -> None:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._start(message)
            else:
                await self._send(message)

        await response(self.scope, self._receive, send)
        self._is_complete = True


class _Body:
    """The body of one request. More bytes than its limit end in 413, before they fill the memory.

    A body with events or state may be larger than others. Of these larger ones only a few are received at a time; the
    others wait before they are read.
    """

    def __init__(self, exchange: HttpExchange, receive: Receive, large_bodies: asyncio.Semaphore) -> None:
        self.is_complete = False
        self._exchange = exchange
        self._receive = receive
        self._large_bodies = large_bodies
        self._upload_seconds = UPLOAD_SECONDS
        self._limit: int | None = None
        self._usual_limit = 0
        self._declared = 0
        self._received = 0
        self._deadline: float | None = None
        self._has_slot = self._had_slot = False

    async def receive(self) -> Message:
        if self._limit is None:
            self._set_limit()
        self._check(self._declared)
        if not self._had_slot and max(self._declared, self._received) > self._usual_limit:
            await self._acquire_slot()
        message = await self._receive_in_time()
        self._received += len(message.get("body", b""))
        self._check(self._received)
        if not message.get("more_body", False):
            self.is_complete = True
            self.release_slot()
        return message

    def release_slot(self) -> None:
        if self._has_slot:
            self._has_slot = False
            self._large_bodies.release()

    def _set_limit(self) -> None:
        # Not before the first byte is asked for: only then a route is found, which says how large its bodies may be.
        scope = self._exchange.scope
        settings: Settings = scope["app"].state.engine.settings
        self._usual_limit = settings.max_body_bytes
        # FastAPI reads the body before `authorize` refuses the caller.
        is_large = access_of(scope).has_large_body and self._exchange.call.refusal is None
        largest = max(settings.max_event_bytes, settings.max_state_bytes) + _BODY_OVERHEAD if is_large else 0
        self._limit = max(settings.max_body_bytes, largest)
        declared = self._exchange.call.headers.get(b"content-length", b"")
        self._declared = int(declared) if declared.isdigit() and len(declared) < 19 else 0

    def _check(self, size: int) -> None:
        if self._limit is not None and size > self._limit:
            setting = "COGNIZES_MAX_BODY_BYTES" if self._limit <= self._usual_limit else "COGNIZES_MAX_EVENT_BYTES"
            raise HTTPException(413, f"the body is {size} bytes or more; the limit is {self._limit} ({setting})")

    async def _receive_in_time(self) -> Message:
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._upload_seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._receive()
        except TimeoutError:
            raise HTTPException(408, f"a body must arrive within {self._upload_seconds:g} s") from None

    async def _acquire_slot(self) -> None:
        try:
            await asyncio.wait_for(self._large_bodies.acquire(), self._upload_seconds)
        except TimeoutError:
            busy = "too many large bodies are being received; try again"
            raise HTTPException(503, busy, headers={"Retry-After": "5"}) from None
        self._has_slot = self._had_slot = True
        self._deadline = None


class _DisconnectWatch:
    """Cancels a read whose client has disconnected, and with it the statement in PostgreSQL.

    A write is not cancelled: the client cannot know how much of it is stored, so it is completed. The watch ends when
    the response begins; streams watch their connections themselves.
    """

    def __init__(self, exchange: HttpExchange) -> None:
        self._exchange = exchange
        self._request: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_disconnected = False

    def start(self) -> None:
        self._request = asyncio.current_task()
        self._set_timer()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def has_cancelled(self) -> bool:
        """Return whether the request was cancelled because of the disconnect and for no other reason."""
        return self._is_disconnected and self._request is not None and self._request.uncancel() == 0

    def _begin(self) -> None:
        self._timer = None
        match self._exchange.may_be_cancelled:
            case True:
                self._task = asyncio.create_task(self._wait_for_disconnect(), name="watch-client")
            case None:
                self._set_timer()

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_SECONDS, self._begin)

    async def _wait_for_disconnect(self) -> None:
        while (await self._exchange.receive())["type"] != "http.disconnect":
            pass
        self._is_disconnected = True
        if self._request is not None:
            self._request.cancel()
