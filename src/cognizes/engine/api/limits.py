"""Limits per caller and per address: requests over time, wrong credentials, streams at once.

All processes share them: N nodes give a caller its rate and its streams once, not N times. Each process decides by its
own buckets, without a round trip. Twice in a second it reports what it gave to a table in PostgreSQL, where each caller
has one bucket, and takes over that bucket's level. So callers get more than their rate for at most one interval, and
repay it. While PostgreSQL is away each process limits by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import chain

from cachetools import LRUCache
from starlette.types import Scope

from cognizes.engine.access import Principal
from cognizes.engine.access.authenticator import Credential
from cognizes.engine.concurrency import Sweeper
from cognizes.engine.database import Database
from cognizes.engine.errors import TooManyRequestsError
from cognizes.engine.models import new_id
from cognizes.engine.settings import Settings
from cognizes.engine.supervision import SupervisedLoop

MAX_CALLERS = 10_000
_CONCURRENT_LOOKUPS = 2
_TOO_MANY_FAILED = "this key, token or ticket is wrong, and too many wrong keys came from this address"


class _Bucket:
    __slots__ = ("level", "since")

    def __init__(self, level: float, since: float) -> None:
        self.level = level
        self.since = since


class _Buckets(LRUCache[str, _Bucket]):
    """The buckets of the callers seen last. The count of a caller goes with its bucket."""

    def __init__(self, callers: int, taken: Counter[str]) -> None:
        super().__init__(callers)
        self._taken = taken

    def popitem(self) -> tuple[str, _Bucket]:
        caller, bucket = super().popitem()
        self._taken.pop(caller, None)
        return caller, bucket


class TokenBuckets:
    """A token bucket per caller. Only the callers seen last have one, so that memory is bounded.

    The buckets are those of this process; `SharedLimits` corrects them by what other processes gave.
    """

    def __init__(
        self, *, rate: float, size: int, clock: Callable[[], float] = time.monotonic, callers: int = MAX_CALLERS
    ) -> None:
        self.rate = rate
        self.size = float(size)
        self._clock = clock
        self._taken: Counter[str] = Counter()
        self._buckets = _Buckets(callers, self._taken)

    def __len__(self) -> int:
        return len(self._buckets)

    def check(self, caller: str, what: str) -> None:
        """Raise `TooManyRequestsError` with the time to wait for a caller without a token."""
        bucket = self._buckets.get(caller)
        if bucket is not None:
            self._check_level(self._level(bucket, self._clock()), what)

    def is_empty(self, caller: str) -> bool:
        bucket = self._buckets.get(caller)
        return bucket is not None and self._level(bucket, self._clock()) < 1

    def take(self, caller: str, what: str = "too many requests") -> None:
        """Take a token; raise `TooManyRequestsError` with the time to wait when there is none."""
        now = self._clock()
        bucket = self._buckets.get(caller)
        if bucket is None:
            self._check_level(self.size, what)
            self._buckets[caller] = _Bucket(self.size - 1, now)
        else:
            level = self._level(bucket, now)
            self._check_level(level, what)
            bucket.level, bucket.since = level - 1, now
        self._taken[caller] += 1

    def take_counts(self) -> dict[str, int]:
        """Return the tokens that each caller took since the last call."""
        taken = dict(self._taken)
        self._taken.clear()
        return taken

    def put_back_counts(self, taken: Mapping[str, int]) -> None:
        """Let the next `take_counts` return these as well, except those of callers that have no bucket any more."""
        self._taken.update({caller: count for caller, count in taken.items() if caller in self._buckets})

    def set_level(self, caller: str, level: float) -> None:
        """Set the tokens of a caller, less those taken since the last `take_counts`."""
        if (bucket := self._buckets.get(caller)) is not None:
            bucket.level, bucket.since = min(self.size, level) - self._taken[caller], self._clock()

    def _level(self, bucket: _Bucket, now: float) -> float:
        return min(self.size, bucket.level + (now - bucket.since) * self.rate)

    def _check_level(self, level: float, what: str) -> None:
        if level < 1:
            retry_after = (1 - level) / self.rate
            raise TooManyRequestsError(f"{what}; wait as long as Retry-After says", retry_after=retry_after)


class FailedKeys:
    """Limits wrong keys, tokens and tickets, by credential and by address. A valid credential is always accepted.

    A credential that failed too often is refused without a look-up. An address with too many failures gets 429 in place
    of 401, and its unknown credentials are looked up a few at a time, so that a flood of wrong keys takes no more than
    a share of the database. Credentials that were valid before do not wait for that.
    """

    def __init__(
        self, settings: Settings, *, clock: Callable[[], float] = time.monotonic, callers: int = MAX_CALLERS
    ) -> None:
        rate, size = settings.failed_keys_per_second, settings.failed_keys_at_once
        self.by_address = TokenBuckets(rate=rate, size=size, clock=clock, callers=callers)
        self.by_credential = TokenBuckets(rate=rate, size=size, clock=clock, callers=callers)
        self.accepted: LRUCache[int, None] = LRUCache(callers)
        """Hashes of credentials that were valid."""
        self._lookups = asyncio.Semaphore(_CONCURRENT_LOOKUPS)

    def check(self, credential: Credential) -> None:
        """Raise `TooManyRequestsError` for a credential that failed too often."""
        if credential.text and self.by_credential:
            self.by_credential.check(str(hash(credential.text)), _TOO_MANY_FAILED)

    def lookup(self, scope: Scope, credential: Credential) -> AbstractAsyncContextManager[object]:
        """Return a context manager in which the credential may be looked up."""
        is_limited = (
            credential.text
            and self.by_address
            and hash(credential.text) not in self.accepted
            and self.by_address.is_empty(address_of(scope))
        )
        return self._lookups if is_limited else nullcontext()

    def note_failure(self, scope: Scope, credential: Credential) -> None:
        """Count a wrong credential; raise `TooManyRequestsError` when its address had too many. None is not counted."""
        if credential.text:
            self.accepted.pop(hash(credential.text), None)
            self.by_credential.take(str(hash(credential.text)), _TOO_MANY_FAILED)
            self.by_address.take(address_of(scope), _TOO_MANY_FAILED)

    def note_success(self, credential: Credential) -> None:
        """Remember a key or token that was valid. A ticket is valid once."""
        if credential.bearer:
            self.accepted[hash(credential.bearer)] = None


def address_of(scope: Scope) -> str:
    return network_of(str((scope.get("client") or ("",))[0]))


def network_of(host: str) -> str:
    """Return an IPv4 address unchanged, and of an IPv6 address its /64 network, which belongs to one client."""
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
    def __init__(self, text: str) -> None:
        self._networks = [ip_network(item.strip()) for item in text.split(",") if item.strip()]

    def __contains__(self, host: str) -> bool:
        address = _parse_address(host) if self._networks else None
        return address is not None and any(address in network for network in self._networks)


class OpenStreams:
    """Counts the open streams of callers: those of this process, and as far as known those of other processes."""

    def __init__(self, settings: Settings) -> None:
        self._most = settings.max_streams_per_caller
        self._open: Counter[str] = Counter()
        self._elsewhere: dict[str, int] = {}

    @property
    def counts(self) -> Mapping[str, int]:
        return self._open

    def set_elsewhere(self, streams: dict[str, int]) -> None:
        self._elsewhere = streams

    def begin(self, principal: Principal) -> Callable[[], None]:
        """Count a stream; return the function to call when it ends."""
        caller = caller_of(principal)
        if self._open[caller] + self._elsewhere.get(caller, 0) >= self._most:
            raise TooManyRequestsError(
                f"{self._most} streams are open already (COGNIZES_MAX_STREAMS_PER_CALLER); close one", retry_after=5
            )
        self._open[caller] += 1
        return lambda: self._end(caller)

    def _end(self, caller: str) -> None:
        self._open[caller] -= 1
        if self._open[caller] <= 0:
            del self._open[caller]


def caller_of(principal: Principal) -> str:
    """Return the name under which requests are counted: a user's, else a key's."""
    return f"{principal.name}/{principal.user_id or ''}"


logger = logging.getLogger(__name__)

_EXCHANGE_SECONDS = 0.5
_CALLERS_AT_ONCE = 1000
_STREAMS = "streams"


class SharedLimits:
    """Exchanges the token buckets, by name, and the open streams of this process with those of others."""

    def __init__(self, database: Database, buckets: Mapping[str, TokenBuckets], streams: OpenStreams) -> None:
        self._database = database
        self._buckets = dict(buckets)
        self._streams = streams
        self._process_id = new_id()
        self._reported: set[str] = set()
        self._active: dict[str, set[str]] = {name: set() for name in buckets}
        self._loop: SupervisedLoop | None = None

    def start(self, sweeper: Sweeper) -> None:
        if self._loop is None:
            self._loop = sweeper.start("shared-limits", self.exchange, seconds=_EXCHANGE_SECONDS)

    async def close(self) -> None:
        """Stop. Other processes stop counting the streams of this one after 10 seconds."""
        if self._loop is not None:
            await self._loop.stop()
            self._loop = None

    async def exchange(self) -> None:
        """Report what callers took in this process, and take over what is left for them."""
        taken = {name: buckets.take_counts() for name, buckets in self._buckets.items()}
        try:
            for name, buckets in self._buckets.items():
                await self._exchange_tokens(name, buckets, taken[name])
        except BaseException:
            for name, buckets in self._buckets.items():
                buckets.put_back_counts(taken[name])
            raise
        await self._exchange_streams()

    async def _exchange_tokens(self, name: str, buckets: TokenBuckets, taken: dict[str, int]) -> None:
        # Callers of the round before are asked for again: others have reported what they gave them since then.
        callers = list(dict.fromkeys(chain(taken, self._active[name])))
        active = set(taken)
        for start in range(0, len(callers), _CALLERS_AT_ONCE):
            part = callers[start : start + _CALLERS_AT_ONCE]
            rows = await self._database.fetch(
                "exchange_limits",
                self._process_id,
                [_digest(name, caller) for caller in part],
                [float(taken.get(caller, 0)) for caller in part],
                [buckets.rate] * len(part),
                [buckets.size] * len(part),
                [0] * len(part),
            )
            for row in rows:
                caller = part[row["place"] - 1]
                buckets.set_level(caller, row["level"])
                taken.pop(caller, None)
        self._active[name] = active

    async def _exchange_streams(self) -> None:
        open_now = {caller: count for caller, count in self._streams.counts.items() if count > 0}
        # A caller without streams is reported once more, so that others do not count the old ones.
        callers = list(dict.fromkeys(chain(open_now, self._reported)))
        elsewhere: dict[str, int] = {}
        for start in range(0, len(callers), _CALLERS_AT_ONCE):
            part = callers[start : start + _CALLERS_AT_ONCE]
            rows = await self._database.fetch(
                "exchange_limits",
                self._process_id,
                [_digest(_STREAMS, caller) for caller in part],
                [0.0] * len(part),
                [1.0] * len(part),
                [1.0] * len(part),
                [open_now.get(caller, 0) for caller in part],
            )
            elsewhere |= {part[row["place"] - 1]: row["streams"] for row in rows if row["streams"]}
        self._reported = set(open_now)
        self._streams.set_elsewhere(elsewhere)


def _digest(name: str, caller: str) -> str:
    """Return the name of a caller's bucket. The table holds no names of users and no addresses."""
    return hashlib.sha256(f"{name}/{caller}".encode("utf-8", "surrogatepass")).hexdigest()
