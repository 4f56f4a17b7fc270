"""Limits that all processes share: N nodes give a caller its rate and its streams once, not N times.

Each process decides by its own buckets, without a round trip. Twice in a second it reports what it gave to a table in
PostgreSQL, where each caller has one bucket, and takes over that bucket's level. So callers get more than their rate
for at most one interval, and repay it. While PostgreSQL is away each process limits by itself.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from itertools import chain

from cognizes.engine.api.limits import OpenStreams, TokenBuckets
from cognizes.engine.concurrency import Sweeper
from cognizes.engine.database import Database
from cognizes.engine.models import new_id
from cognizes.engine.supervision import SupervisedLoop

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
