"""One request or one WebSocket between the server and the application, with its limits.

A body has a limit and a time in which it must arrive. A read is cancelled when its client disconnects. Streams are
counted, and end when the key or token of their caller is revoked or expires. A response of a direct route is one write
to the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from cognizes.engine.access import Permission
from cognizes.engine.access.authenticator import Grant
from cognizes.engine.api.authorization import Access, Reach, access_of, begin_call, only_reads
from cognizes.engine.api.http_protocol import cycle_of, send_response, take_body
from cognizes.engine.api.limits import OpenStreams
from cognizes.engine.api.responses import DocumentResponse, answer_unexpected_error, problem, problem_of
from cognizes.engine.engine import Engine
from cognizes.engine.errors import EngineError, PermissionDeniedError
from cognizes.engine.settings import Settings
from cognizes.engine.telemetry import ActiveSpan

if TYPE_CHECKING:
    from cognizes.engine.api.middleware import DirectRoutes

logger = logging.getLogger(__name__)

EXCHANGE = "cognizes.exchange"
"""In the scope of a request: its `HttpExchange`."""
UPLOAD_SECONDS = 120.0
"""How long a body may take to arrive, and how long a large one may wait for one of the few slots before that."""
_BODY_OVERHEAD = 64 * 1024
"""What a body holds beside one event or one state of the largest size."""
_SLOWEST_BYTES_A_SECOND = 64 * 1024
"""The rate at which a file of the largest size must arrive."""
_WATCH_AFTER_SECONDS = 0.25
"""Most requests are answered before; watching the connection of each would cost a task per request."""
_CLIENT_CLOSED_REQUEST = 499
"""The status in the log, as nginx has it. No client receives it."""
_POLICY_VIOLATION = 1008
_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_LAST_HEADERS = b"".join(b"%b: %b\r\n" % header for header in _SECURITY_HEADERS) + b"x-request-id: "


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
    def template(self) -> str:
        return str(getattr(self.scope.get("route"), "path", self.scope["path"]))

    @property
    def route(self) -> str:
        """The template of the route, such as /api/sessions/{thread_id}; `none` without a route. It has no ids."""
        if (route := self.scope.get("route")) is not None:
            return str(route.path)
        return "/monitor" if self.scope["path"].startswith("/monitor/") else "none"

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


class SharedParts:
    """What all requests of an application share."""

    def __init__(self, direct: DirectRoutes, settings: Settings) -> None:
        self.direct = direct
        self.max_body_bytes = settings.max_body_bytes
        self.large_bodies = asyncio.Semaphore(settings.max_large_bodies)
        self.watches = DisconnectWatches()


class HttpExchange(_Exchange):
    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        request: str,
        shared: SharedParts,
    ) -> None:
        super().__init__(scope, receive, send)
        self.status = 500
        self._request_id = request.encode()
        self._shared = shared
        self._watch: _DisconnectWatch | None = None
        self._task: asyncio.Task[Any] | None = None
        self._body: _Body | None = None
        self._has_whole_body = False
        # None below a layer that must see each message, such as CORS.
        self._cycle = cycle_of(send)
        self._deferred: list[Callable[[Receive, Send], Awaitable[None]]] = []
        self._is_withheld = False
        self.span: ActiveSpan | None = None
        scope[EXCHANGE] = self

    @property
    def transport(self) -> asyncio.WriteTransport | None:
        """The transport under uvicorn, with which `EventStream` closes the connection of a client that stops reading.

        ASGI has no message for that. None under other servers.
        """
        cycle = cycle_of(self._receive)
        return None if cycle is None else cycle.transport

    def defer(self, run: Callable[[Receive, Send], Awaitable[None]]) -> None:
        """Call a function with `receive` and `send` when the layers of the application have returned."""
        self._deferred.append(run)

    def end_span(self) -> None:
        """End the span of the request, once: with the response, and for a stream when the stream begins."""
        if self.span is None or not self.span.is_recording:
            return
        self.span.set({"http.route": self.route, "http.response.status_code": self.status})
        self.span.rename(f"{self.scope['method']} {self.route}")
        if self.status is None or self.status >= 500:
            self.span.fail(f"status {self.status}")
        self.span.end()

    async def run(self, app: ASGIApp) -> None:
        """Run the application, then the stream that its route left for later.

        An idle connection would keep the frames of all layers and what FastAPI stores in the scope: half its memory.
        """
        self._task = asyncio.current_task()
        self._shared.watches.add(self)
        try:
            await self._call(app)
        except asyncio.CancelledError:
            if self._watch is None or not self._watch.has_cancelled():
                raise
            await self.send({"type": "http.response.start", "status": _CLIENT_CLOSED_REQUEST, "headers": []})
            await self.send({"type": "http.response.body", "body": b""})
        finally:
            self._release_parts()
        if self._deferred:
            kept = ("type", "app", "method", "path", "headers", "endpoint", "route")
            self.scope = {name: self.scope[name] for name in kept if name in self.scope}
            for run in self._deferred:
                await run(self.receive, self.send)

    def _release_parts(self) -> None:
        """Release what refers back to this exchange: the garbage collector would pause all requests to free it."""
        self._stop_watching()
        self._watch = None
        if self._body is not None:
            self._body.release_slot()
            if self._body.is_complete:
                self._has_whole_body, self._body = True, None
        self.scope.pop(EXCHANGE, None)

    async def _call(self, app: ASGIApp) -> None:
        receive: Receive = self.receive
        direct = self._shared.direct
        if (route := direct.find(self.scope)) is not None:
            answer = await direct.serve(route, self.scope, self.receive, self.send)
            if isinstance(answer, Response):
                await self._answer(answer)
                return
            receive = answer
        await app(self.scope, receive, self.send)

    async def _answer(self, response: Response) -> None:
        """Send the response of a direct route; a document as one write, if the server and no layer needs its parts."""
        if (
            self._cycle is None
            or self._cycle.access_log
            or not isinstance(response, DocumentResponse)
            or not response.is_whole
            or self._is_withheld
            or self.scope["method"] == "HEAD"
            or (self.grant is not None and self.grant.revoked.is_set())
        ):
            await response(self.scope, self.receive, self.send)
            return
        self._stop_watching()
        self.has_started = self._is_complete = True
        self.status = response.status_code
        headers = b"".join((response.encode_headers(), _LAST_HEADERS, self._request_id, b"\r\n"))
        await send_response(self._cycle, response.status_code, headers, bytes(response.body))

    # The watch of the connection

    def watch(self) -> bool:
        """Watch the connection, if the request may be cancelled; return False while its body is not complete."""
        if not only_reads(self.scope):
            return True
        if self.scope["method"] != "GET" and not self._is_body_complete:
            return False
        self._watch = _DisconnectWatch(self, self._task)
        return True

    def _stop_watching(self) -> None:
        self._shared.watches.discard(self)
        if self._watch is not None:
            self._watch.stop()

    @property
    def _is_body_complete(self) -> bool:
        return self._has_whole_body or (self._body is not None and self._body.is_complete)

    async def receive(self) -> Message:
        """Return the next part of the body; to the application, a client whose grant is revoked has disconnected."""
        message: Message | None
        if self._is_body_complete:
            message = await self.receive_unless_revoked()
        else:
            message = await self.receive_from_client()
            if self.grant is not None and self.grant.revoked.is_set():
                message = None
        if message is None:
            return {"type": "http.disconnect"}
        if message["type"] == "http.disconnect":
            self._is_complete = True
        return message

    async def receive_from_client(self) -> Message:
        """Return the next message. A revoked grant does not matter here: `send` withholds what it must."""
        if self._is_body_complete:
            return await self._receive()
        return self._receive_whole_body() or await self._receive_body()

    def _receive_whole_body(self) -> Message | None:
        """Return a body of a usual size that has arrived completely: it needs no timer, no slot and no counting."""
        if self._body is not None or self._cycle is None:
            return None
        body = take_body(self._cycle, self._shared.max_body_bytes)
        if body is None:
            return None
        self._has_whole_body = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def _receive_body(self) -> Message:
        if self._body is None:
            self._body = _Body(self, self._receive, self._shared.large_bodies)
        return await self._body.receive()

    async def send(self, message: Message) -> None:
        """Send a part of the response, unless its caller may no longer see it."""
        if self._is_withheld:
            return
        if message["type"] == "http.response.start":
            self._stop_watching()
            if self.grant is not None and self.grant.revoked.is_set() and await self._must_withhold(self.grant):
                await self._withhold(self.grant)
                return
            await self._start(message)
            return
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._is_complete = True
        await self._send(message)

    def bind_writer(self, write: Callable[[RequestResponseCycle, bytes], bool]) -> Callable[[bytes], bool] | None:
        """Return `write` for the connection of this response, which has begun; None when only `send` may write."""
        return None if self._cycle is None or self._is_withheld else partial(write, self._cycle)

    async def _start(self, message: Message) -> None:
        headers = list(message.get("headers", ()))
        if any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers):
            self.begin_stream()
        self.has_started = True
        self.status = message["status"]
        if self.is_stream:
            self.end_span()
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

    async def answer_unexpected(self, error: Exception) -> None:
        """Answer with 500, unless a response has begun."""
        if not self.has_started:
            await self._respond(answer_unexpected_error(error))

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
        self._setting = ""
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
        if access_of(scope).takes_upload:
            # The route stores a file as it arrives: it is never whole in memory, and a slow client may take longer.
            self._usual_limit = self._limit = settings.max_artifact_bytes
            self._setting = "COGNIZES_MAX_ARTIFACT_BYTES"
            self._upload_seconds += self._limit / _SLOWEST_BYTES_A_SECOND
            self._declared = self._declared_size()
            return
        # FastAPI reads the body before `authorize` refuses the caller.
        is_large = access_of(scope).has_large_body and self._exchange.call.refusal is None
        largest = max(settings.max_event_bytes, settings.max_state_bytes) + _BODY_OVERHEAD if is_large else 0
        self._limit = max(settings.max_body_bytes, largest)
        self._setting = "COGNIZES_MAX_BODY_BYTES" if self._limit <= self._usual_limit else "COGNIZES_MAX_EVENT_BYTES"
        self._declared = self._declared_size()

    def _declared_size(self) -> int:
        declared = self._exchange.call.headers.get(b"content-length", b"")
        return int(declared) if declared.isdigit() and len(declared) < 19 else 0

    def _check(self, size: int) -> None:
        if self._limit is not None and size > self._limit:
            raise HTTPException(413, f"the body is {size} bytes or more; the limit is {self._limit} ({self._setting})")

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


class DisconnectWatches:
    """Lets each request that is not answered soon watch its connection; one timer for all requests."""

    def __init__(self) -> None:
        self._recent: set[HttpExchange] = set()
        self._older: set[HttpExchange] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, exchange: HttpExchange) -> None:
        self._recent.add(exchange)
        if self._timer is None:
            self._set_timer()

    def discard(self, exchange: HttpExchange) -> None:
        self._recent.discard(exchange)
        self._older.discard(exchange)

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_SECONDS, self._tick)

    def _tick(self) -> None:
        """Start the watches of the requests that were here at the last tick."""
        self._timer = None
        late, self._older, self._recent = self._older, self._recent, set()
        self._older.update(exchange for exchange in late if not exchange.watch())
        if self._older:
            self._set_timer()


class _DisconnectWatch:
    """Cancels a read whose client has disconnected, and with it the statement in PostgreSQL.

    A write is not cancelled: the client cannot know how much of it is stored, so it is completed. The watch ends when
    the response begins; streams watch their connections themselves.
    """

    def __init__(self, exchange: HttpExchange, request: asyncio.Task[Any] | None) -> None:
        self._exchange = exchange
        self._request = request
        self._is_disconnected = False
        self._task = asyncio.create_task(self._wait_for_disconnect(), name="watch-client")

    def stop(self) -> None:
        self._task.cancel()

    def has_cancelled(self) -> bool:
        """Return whether the request was cancelled because of the disconnect and for no other reason."""
        return self._is_disconnected and self._request is not None and self._request.uncancel() == 0

    async def _wait_for_disconnect(self) -> None:
        while (await self._exchange.receive_from_client())["type"] != "http.disconnect":
            pass
        self._is_disconnected = True
        if self._request is not None:
            self._request.cancel()
