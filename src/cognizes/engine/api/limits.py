"""How much one caller may ask for: requests over time, streams at once, bytes of a body."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, MutableMapping
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

from fastapi import Depends
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException, WebSocketException
from starlette.requests import HTTPConnection

from cognizes.engine.access import Principal
from cognizes.engine.access.desk import Credential
from cognizes.engine.api.requests import App, Message, Receive, Scope, Send
from cognizes.engine.errors import InvalidInputError, TooManyRequestsError
from cognizes.engine.settings import Settings

_CALLERS_REMEMBERED = 10_000
_ROOM_FOR_THE_REST_OF_A_BODY = 64 * 1024
_LONGEST_ARGUMENT = 32_768
"""Characters of one argument in a path or a query: room for a list of hundreds of ids."""
_POLICY_VIOLATION = 1008
_REASON_BYTES = 120
_TOO_MANY_FAILED = "too many wrong keys, tokens or tickets came from this address"
UPLOAD_SECONDS = 120.0
"""For how long a large body waits until it may come, and then may take to come."""
_CARRIES_EVENTS = re.compile(
    r"/api/sessions(/[^/]+/(events|state|runs/.+))?"
    r"|(/v1)?/contexts/[^/]+/messages(/.+)?"
    r"|/agui/[^/]+(/connect)?|/copilotkit/agent/[^/]+/(run|connect)"
    r"|(/api)?/memory(/.*)?|/api/runs(/.*)?"
)


class TokenBuckets:
    """A token bucket for each caller: so many at once, so many a second in the long run. Per process, and for those who
    came last: what is remembered is bounded."""

    def __init__(self, *, rate: float, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._size = float(size)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def check(self, caller: str, what: str) -> float:
        """How many the caller may still send now, one at least; `TooManyRequestsError` says when to come back."""
        now = self._clock()
        level, since = self._buckets.get(caller, (self._size, now))
        level = min(self._size, level + (now - since) * self._rate)
        if level < 1:
            retry_after = (1 - level) / self._rate
            raise TooManyRequestsError(f"{what}; wait as long as Retry-After says", retry_after=retry_after)
        return level

    def take(self, caller: str, what: str = "too many requests") -> None:
        """Counts one; `TooManyRequestsError` says when to come back."""
        self._buckets[caller] = (self.check(caller, what) - 1, self._clock())
        self._buckets.move_to_end(caller)
        if len(self._buckets) > _CALLERS_REMEMBERED:
            self._buckets.popitem(last=False)


class FailedKeys:
    """Who shows wrong keys, tokens or tickets too often is no longer asked who it is, for a while.

    Counted by address. A key that was good before is looked at all the same: behind a proxy many callers share an
    address, and one of them must not lock the others out.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._buckets = TokenBuckets(
            rate=settings.failed_keys_per_second, size=settings.failed_keys_at_once, clock=clock
        )
        self._good: OrderedDict[int, None] = OrderedDict()

    def check(self, scope: Scope, credential: Credential) -> None:
        """`TooManyRequestsError` when nothing more is believed of this address for now."""
        if credential.text and self._buckets and hash(credential.text) not in self._good:
            self._buckets.check(address_of(scope), _TOO_MANY_FAILED)

    def note_failure(self, scope: Scope, credential: Credential) -> None:
        """It was wrong. Showing nothing at all is no attempt."""
        if credential.text:
            self._good.pop(hash(credential.text), None)
            self._buckets.take(address_of(scope), _TOO_MANY_FAILED)

    def note_success(self, credential: Credential) -> None:
        """It was good. A ticket is good once."""
        if credential.bearer:
            known = hash(credential.bearer)
            self._good[known] = None
            self._good.move_to_end(known)
            if len(self._good) > _CALLERS_REMEMBERED:
                self._good.popitem(last=False)


def address_of(scope: Scope) -> str:
    """Where a request comes from. Of IPv6 the network, of which anybody has all addresses."""
    host = (scope.get("client") or ("",))[0]
    try:
        address = ip_address(host)
    except ValueError:
        return str(host)
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or ip_network((int(address) >> 64 << 64, 64)))
    return str(address)


class OpenStreams:
    """How many streams each caller holds open in this process."""

    def __init__(self, settings: Settings) -> None:
        self._most = settings.max_streams_per_caller
        self._open: Counter[str] = Counter()

    def enter(self, principal: Principal) -> Callable[[], None]:
        """Counts a stream; returns what to call when it ends."""
        caller = caller_of(principal)
        if self._open[caller] >= self._most:
            raise TooManyRequestsError(
                f"{self._most} streams are open already (COGNIZES_MAX_STREAMS_PER_CALLER); close one", retry_after=5
            )
        self._open[caller] += 1
        return lambda: self._leave(caller)

    def _leave(self, caller: str) -> None:
        self._open[caller] -= 1
        if self._open[caller] <= 0:
            del self._open[caller]


def caller_of(principal: Principal) -> str:
    """Whose requests are counted together: a user's, else a key's."""
    return f"{principal.name}/{principal.user_id or ''}"


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
        self._limit = body_limit(scope, settings)
        declared = Headers(scope=scope).get("content-length", "")
        self._declared = int(declared) if declared.isdecimal() and len(declared) < 19 else 0
        self._received = 0
        self._slots = slots
        self._slot: asyncio.Semaphore | None = None
        self._had_slot = False
        self._upload_seconds = UPLOAD_SECONDS
        self._slot_until = 0.0

    def __enter__(self) -> _Body:
        return self

    def __exit__(self, *_: object) -> None:
        self._give_slot_back()

    async def receive(self) -> Message:
        self._check(self._declared)
        if not self._had_slot and max(self._declared, self._received) > self._usual:
            await self._wait_for_slot()
        message = await self._next_message()
        self._received += len(message.get("body", b""))
        self._check(self._received)
        if not message.get("more_body", False):
            self._give_slot_back()
        return message

    def _check(self, size: int) -> None:
        if size > self._limit:
            setting = "COGNIZES_MAX_BODY_BYTES" if self._limit <= self._usual else "COGNIZES_MAX_EVENT_BYTES"
            raise HTTPException(413, f"the body is {size} bytes or more; the limit is {self._limit} ({setting})")

    async def _next_message(self) -> Message:
        if self._slot is None:
            return await self._receive()
        # Others wait for the slot: who sends slower than that does not keep it.
        try:
            async with asyncio.timeout_at(self._slot_until):
                return await self._receive()
        except TimeoutError:
            raise HTTPException(408, f"a large body must come within {self._upload_seconds:g} s") from None

    async def _wait_for_slot(self) -> None:
        slots = self._slots()
        try:
            await asyncio.wait_for(slots.acquire(), self._upload_seconds)
        except TimeoutError:
            busy = "too many large bodies are being received; try again"
            raise HTTPException(503, busy, headers={"Retry-After": "5"}) from None
        self._slot, self._had_slot = slots, True
        self._slot_until = asyncio.get_running_loop().time() + self._upload_seconds

    def _give_slot_back(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.release()


def limit_arguments(connection: HTTPConnection) -> None:
    """The dependency of every router: no argument in a path or a query is too long."""
    given = (*connection.path_params.items(), *connection.query_params.multi_items())
    for name, value in given:
        if isinstance(value, str) and len(value) > _LONGEST_ARGUMENT:
            refusal = InvalidInputError(f"{name} is {len(value)} characters; the limit is {_LONGEST_ARGUMENT}")
            if connection.scope["type"] == "websocket":
                raise WebSocketException(_POLICY_VIOLATION, str(refusal)[:_REASON_BYTES]) from refusal
            raise refusal


LIMITED = [Depends(limit_arguments)]


def body_limit(scope: MutableMapping[str, Any], settings: Settings) -> int:
    """The largest body of a request: that of a stranger is never a large one."""
    if "cognizes.refusal" in scope or not _CARRIES_EVENTS.fullmatch(scope["path"]):
        return settings.max_body_bytes
    largest = max(settings.max_event_bytes, settings.max_state_bytes)
    return max(settings.max_body_bytes, largest + _ROOM_FOR_THE_REST_OF_A_BODY)
