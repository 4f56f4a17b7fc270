"""What the engine changes about uvicorn: limits on connections, and when the application learns of the shutdown.

Before a request reaches the application, `BoundedHttpProtocol` limits header size, header time and connections per
address. `cognizes serve` uses it. A uvicorn that is started by hand needs
``--http cognizes.engine.api.http_protocol:BoundedHttpProtocol``; its own protocols have no such limits.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from types import FrameType
from typing import Any

from starlette.types import Receive, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from cognizes.engine.api.limits import TrustedProxies, network_of
from cognizes.engine.settings import Settings

logger = logging.getLogger(__name__)

CONNECTION_LIMITS = "cognizes.connection_limits"
"""In the lifespan state, which uvicorn passes to its protocols: a function that returns the `ConnectionLimits`."""
_UNLIMITED = 1_048_576
_WARN_EVERY_SECONDS = 10.0


@contextmanager
def on_shutdown_signal(callback: Callable[[], None]) -> Iterator[None]:
    """Call back in the event loop on SIGINT or SIGTERM, then run the handler that was installed before.

    An ASGI server tells the application to shut down after the last connection is closed; a stream of events would
    keep it waiting.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(callback)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    watched = [number for number, handler in before.items() if callable(handler)]
    for number in watched:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in watched:
            if signal.getsignal(number) is handle:
                signal.signal(number, before[number])


def descriptor_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


class Slot:
    """One counted connection of an address. It is idle while it waits for its client."""

    __slots__ = ("address", "protocol")

    def __init__(self, address: str, protocol: BoundedHttpProtocol) -> None:
        self.address = address
        self.protocol = protocol


class _Address:
    __slots__ = ("idle", "open")

    def __init__(self) -> None:
        self.open = 0
        self.idle: dict[Slot, None] = {}


class ConnectionLimits:
    """Counts the connections of this process by address.

    Where an address or the process has reached its limit, the connection that has waited longest for its client makes
    room for a new one, so that half-sent requests never keep out complete ones. Only when every connection is in use is
    a new one refused. The process keeps a quarter of its descriptors for the database and files, and one address gets
    at most half of the others. Trusted proxies and unix sockets have no limit per address.
    """

    def __init__(self, settings: Settings, *, descriptors: int) -> None:
        self.max_header_bytes = settings.max_header_bytes
        self.header_seconds = settings.header_seconds
        self._total = max(2, descriptors * 3 // 4)
        self._per_address = min(settings.max_connections_per_address, self._total // 2)
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self._addresses: dict[str, _Address] = {}
        self._idle: dict[Slot, None] = {}
        self._open = 0
        self._warned_at: float | None = None

    def __len__(self) -> int:
        return self._open

    def enter(self, host: str | None, protocol: BoundedHttpProtocol) -> Slot | None:
        """Count a connection; return None when it must be refused."""
        address = "" if not host or host in self._proxies else network_of(host)
        of_address = self._addresses.get(address)
        if self._open >= self._total and not self._close_oldest(self._idle):
            self._warn(f"all {self._total} connections of this process are in use")
            return None
        if (
            address
            and of_address is not None
            and of_address.open >= self._per_address
            and not self._close_oldest(of_address.idle)
        ):
            self._warn(f"all {self._per_address} connections of the address {address} are in use")
            return None
        slot = Slot(address, protocol)
        of_address = self._addresses.setdefault(address, _Address())
        of_address.open += 1
        of_address.idle[slot] = None
        self._open += 1
        self._idle[slot] = None
        return slot

    def mark_idle(self, slot: Slot) -> None:
        """Note that the connection waits for its client: for a request or for the rest of one."""
        if (of_address := self._addresses.get(slot.address)) is not None:
            self._idle[slot] = None
            of_address.idle[slot] = None

    def mark_busy(self, slot: Slot) -> None:
        """Note that a complete request of the connection is served."""
        self._idle.pop(slot, None)
        if (of_address := self._addresses.get(slot.address)) is not None:
            of_address.idle.pop(slot, None)

    def leave(self, slot: Slot) -> None:
        self.mark_busy(slot)
        self._open -= 1
        of_address = self._addresses[slot.address]
        of_address.open -= 1
        if not of_address.open:
            del self._addresses[slot.address]

    def _close_oldest(self, idle: dict[Slot, None]) -> bool:
        slot = next(iter(idle), None)
        if slot is None:
            return False
        slot.protocol.abort()
        return True

    def _warn(self, what: str) -> None:
        now = asyncio.get_running_loop().time()
        if self._warned_at is None or now - self._warned_at > _WARN_EVERY_SECONDS:
            self._warned_at = now
            logger.warning("%s; new ones are refused", what)


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with the limits of `ConnectionLimits`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits: ConnectionLimits = app_state[CONNECTION_LIMITS]()
        self._slot: Slot | None = None
        self._header_timer: asyncio.TimerHandle | None = None
        # Bytes received since the parser last completed something: a header block, part of a body, a message.
        self._pending_bytes = 0
        self._in_body = False
        if self.ws_protocol_class is not None:
            self.ws_protocol_class = BoundedWebSocketProtocol

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._slot = self._limits.enter(self.client[0] if self.client else None, self)
        if self._slot is None:
            self._refuse(HTTPStatus.TOO_MANY_REQUESTS, "too many connections; close one or try again later")
        else:
            self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        limit = self._limits.max_header_bytes
        while data and self._slot is not None and not self.transport.is_closing():
            # A body is passed on whole; of a header block no byte above the limit reaches the parser.
            room = len(data) if self._in_body else limit - self._pending_bytes
            piece, data = (data, b"") if len(data) <= room else (data[:room], data[room:])
            self._pending_bytes += len(piece)
            super().data_received(piece)
            if self._pending_bytes >= limit and (data or self._pending_bytes > limit):
                self._refuse(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    f"the headers are larger than {limit} bytes (COGNIZES_MAX_HEADER_BYTES)",
                )
        if self._header_timer is None and self._slot is not None and self._is_waiting():
            self._start_header_timer()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self._in_body = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._pending_bytes = 0
        self._in_body = True
        self._stop_header_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._pending_bytes = 0
        super().on_body(body)

    def on_chunk_header(self) -> None:
        """Note progress: without this, many small chunks would count as one long trailer."""
        self._pending_bytes = 0

    def on_message_complete(self) -> None:
        self._pending_bytes = 0
        self._in_body = False
        if self._slot is not None:
            self._limits.mark_busy(self._slot)
        super().on_message_complete()

    # Everything else

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._slot is not None and self._is_waiting():
            self._limits.mark_idle(self._slot)

    def handle_websocket_upgrade(self) -> None:
        # The transport now calls the WebSocket protocol, which releases the slot.
        slot, self._slot = self._slot, None
        self._stop_header_timer()
        super().handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        if slot is not None and isinstance(protocol, BoundedWebSocketProtocol):
            self._limits.mark_busy(slot)
            protocol.hold(self._limits, slot)

    def abort(self) -> None:
        self._leave()
        self.transport.abort()

    def _is_waiting(self) -> bool:
        """Return whether the next step is the client's: no request is being served."""
        return (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing()

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self._limits.header_seconds, self._end_waiting)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _end_waiting(self) -> None:
        self._header_timer = None
        if not self._is_waiting():
            return
        if self._pending_bytes and not self._in_body:
            seconds = f"{self._limits.header_seconds:g} s (COGNIZES_HEADER_SECONDS)"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the headers did not arrive within {seconds}")
        else:
            # The client opened the connection ahead of use: a response without a request would confuse it.
            self.transport.close()

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        if self.cycle is None or self.cycle.response_complete:
            problem = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": detail}
            body = json.dumps(problem).encode()
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/problem+json\r\n"
                f"content-length: {len(body)}\r\nretry-after: 5\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()

    def _leave(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            self._limits.leave(slot)


def cycle_of(channel: Receive | Send) -> RequestResponseCycle | None:
    """Return uvicorn's request that has this `receive` or `send`; None if another server or layer made it."""
    cycle = getattr(channel, "__self__", None)
    return cycle if isinstance(cycle, RequestResponseCycle) else None


def take_body(cycle: RequestResponseCycle, largest: int) -> bytes | None:
    """Return a body that has arrived completely, as `receive` does; None for another one and for a larger one."""
    if cycle.more_body or cycle.disconnected or cycle.response_complete or len(cycle.body) > largest:
        return None
    body, cycle.body = bytes(cycle.body), bytearray()
    cycle.message_event.clear()
    cycle.flow.resume_reading()
    return body


async def send_response(cycle: RequestResponseCycle, status: int, headers: bytes, body: bytes) -> None:
    """Send a whole response with one write. uvicorn writes headers and body separately, with a system call for each.

    `headers` holds `content-length`. Each line of it ends with CR LF.
    """
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    first = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers])
    last = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
    cycle.transport.write(b"".join((STATUS_LINE[status], first, headers, last, body)))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()


class BoundedWebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol; the connection counts until it is closed."""

    _limits: ConnectionLimits | None = None
    _slot: Slot | None = None

    def hold(self, limits: ConnectionLimits, slot: Slot) -> None:
        """Take over the slot of the HTTP connection that was upgraded."""
        self._limits, self._slot = limits, slot

    def connection_lost(self, exc: Exception | None) -> None:
        slot, self._slot = self._slot, None
        if slot is not None and self._limits is not None:
            self._limits.leave(slot)
        super().connection_lost(exc)
