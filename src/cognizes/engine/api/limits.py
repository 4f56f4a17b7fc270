"""How much one caller may ask for: requests over time, streams at once, bytes of a body."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from fastapi import Depends
from starlette.exceptions import WebSocketException
from starlette.requests import HTTPConnection

from cognizes.engine.access import Principal
from cognizes.engine.access.authenticator import Credential
from cognizes.engine.api.requests import Scope
from cognizes.engine.errors import InvalidInputError, TooManyRequestsError
from cognizes.engine.settings import Settings

_CALLERS_REMEMBERED = 10_000
_LOOKUPS_AT_ONCE = 2
_LONGEST_ARGUMENT = 32_768
"""Characters of one argument in a path or a query: room for a list of hundreds of ids."""
_POLICY_VIOLATION = 1008
_REASON_BYTES = 120
_TOO_MANY_FAILED = "this key, token or ticket is wrong, and too many wrong keys came from this address"


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
        level = self._level(caller)
        if level < 1:
            retry_after = (1 - level) / self._rate
            raise TooManyRequestsError(f"{what}; wait as long as Retry-After says", retry_after=retry_after)
        return level

    def is_empty(self, caller: str) -> bool:
        """Return whether the caller may send none now."""
        return self._level(caller) < 1

    def take(self, caller: str, what: str = "too many requests") -> None:
        """Counts one; `TooManyRequestsError` says when to come back."""
        self._buckets[caller] = (self.check(caller, what) - 1, self._clock())
        self._buckets.move_to_end(caller)
        if len(self._buckets) > _CALLERS_REMEMBERED:
            self._buckets.popitem(last=False)

    def _level(self, caller: str) -> float:
        now = self._clock()
        level, since = self._buckets.get(caller, (self._size, now))
        return min(self._size, level + (now - since) * self._rate)


class FailedKeys:
    """Limits wrong keys, tokens and tickets, by credential and by address. A valid credential is always accepted.

    A credential that failed too often is refused without a look-up. An address with too many failures gets 429 in place
    of 401, and its unknown credentials are looked up a few at a time, so that a flood of wrong keys takes no more than
    a share of the database. Credentials that were valid before do not wait for that.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        rate, size = settings.failed_keys_per_second, settings.failed_keys_at_once
        self._by_address = TokenBuckets(rate=rate, size=size, clock=clock)
        self._by_credential = TokenBuckets(rate=rate, size=size, clock=clock)
        self._good: OrderedDict[int, None] = OrderedDict()
        self._lookups = asyncio.Semaphore(_LOOKUPS_AT_ONCE)

    def check(self, credential: Credential) -> None:
        """Raise `TooManyRequestsError` for a credential that failed too often."""
        if credential.text and self._by_credential:
            self._by_credential.check(str(hash(credential.text)), _TOO_MANY_FAILED)

    def lookup(self, scope: Scope, credential: Credential) -> AbstractAsyncContextManager[object]:
        """Return a context in which the credential may be looked up."""
        is_limited = (
            credential.text
            and self._by_address
            and hash(credential.text) not in self._good
            and self._by_address.is_empty(address_of(scope))
        )
        return self._lookups if is_limited else nullcontext()

    def note_failure(self, scope: Scope, credential: Credential) -> None:
        """Count a wrong credential; raise `TooManyRequestsError` when the address had too many. None is no attempt."""
        if credential.text:
            self._good.pop(hash(credential.text), None)
            self._by_credential.take(str(hash(credential.text)), _TOO_MANY_FAILED)
            self._by_address.take(address_of(scope), _TOO_MANY_FAILED)

    def note_success(self, credential: Credential) -> None:
        """Remember a key or token that was valid. A ticket is valid once."""
        if credential.bearer:
            known = hash(credential.bearer)
            self._good[known] = None
            self._good.move_to_end(known)
            if len(self._good) > _CALLERS_REMEMBERED:
                self._good.popitem(last=False)


def address_of(scope: Scope) -> str:
    """Return where a request comes from, as `network_of` names it."""
    return network_of(str((scope.get("client") or ("",))[0]))


def network_of(host: str) -> str:
    """Return an IPv4 address as it is and an IPv6 address as its /64, all addresses of which belong to one client."""
    address = _parse_address(host)
    if isinstance(address, IPv6Address):
        return str(ip_network((int(address) >> 64 << 64, 64)))
    return host if address is None else str(address)


def _parse_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


class TrustedProxies:
    """The addresses and networks of the setting `trusted_proxies`."""

    def __init__(self, text: str) -> None:
        self._networks = [ip_network(item.strip()) for item in text.split(",") if item.strip()]

    def __contains__(self, host: str) -> bool:
        address = _parse_address(host) if self._networks else None
        return address is not None and any(address in network for network in self._networks)


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


async def limit_arguments(connection: HTTPConnection) -> None:
    """The dependency of every router: no argument in a path or a query is too long."""
    given = (*connection.path_params.items(), *connection.query_params.multi_items())
    for name, value in given:
        if isinstance(value, str) and len(value) > _LONGEST_ARGUMENT:
            refusal = InvalidInputError(f"{name} is {len(value)} characters; the limit is {_LONGEST_ARGUMENT}")
            if connection.scope["type"] == "websocket":
                raise WebSocketException(_POLICY_VIOLATION, str(refusal)[:_REASON_BYTES]) from refusal
            raise refusal


LIMITED = [Depends(limit_arguments)]
