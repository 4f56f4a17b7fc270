"""The backend for `REDIS_URL`: Redis Streams, on one server or a Cluster.

Each message is a Redis stream. The id of an entry is the sequence of its last chunk, so Redis refuses entries that
exist and finds the entries after a chunk. A hash tag keeps the keys of a message on one node. One more stream carries
the notifications: every process waits on it with a single blocking read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from cognizes.engine.database import Database
from cognizes.engine.errors import EngineClosedError, SetupError, StreamUnavailableError
from cognizes.engine.streams.backend import OnNotification, RefusedWrites, SegmentWrite
from cognizes.engine.streams.chunks import Segment, StreamKey, format_notifications
from cognizes.engine.supervision import SupervisedLoop, Supervisor

logger = logging.getLogger(__name__)

_NOTIFICATIONS = "cognizes:{doorbell}"
"""The name that released versions use, like `:sealed` below: during a rolling update both versions share these keys."""
_NOTIFICATIONS_KEPT = 1000
_SEGMENTS_KEPT = 1_000_000
"""Redis trims older segments. At a flush each 20 ms that takes more than five hours."""
_BLOCK_SECONDS = 2.0
_RETRY_SECONDS = 0.25
_CONNECT_SECONDS = 2.0
_ANSWER_SECONDS = 10.0
_PING_SECONDS = 2.0
_FREEZE_SECONDS = 120
"""Longer than storing a message takes, retries included."""
_FROZEN_FOR_ALL = "1"
"""The value of a freeze while a stream is being ended; of one that was opened again, the freeze names its owner."""
_NO_OWNER = "-"
_INCOMPLETE, _FROZEN, _LOST = 0, 2, 3

# Redis runs a script atomically: a reader never sees a stream that is being rewritten.
_WRITE = """
local writer = redis.call('GET', KEYS[2])
if writer == '1' then return 2 end
if writer and writer ~= ARGV[3] then return 3 end
local last = 0
if tonumber(ARGV[4]) == 1 then
    redis.call('DEL', KEYS[1])
else
    local tail = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
    if tail[1] then last = tonumber(string.match(tail[1][1], '^%d+')) end
end
for place = 4, #ARGV, 4 do
    if tonumber(ARGV[place]) > last + 1 then return 0 end
    if tonumber(ARGV[place + 1]) > last then
        redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], ARGV[place + 1] .. '-0',
                   'f', ARGV[place], 't', ARGV[place + 2], 'l', ARGV[place + 3])
        last = tonumber(ARGV[place + 1])
    end
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""
_APPEND = """
local tail = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local last = 0
if tail[1] then last = tonumber(string.match(tail[1][1], '^%d+')) end
local writer = redis.call('GET', KEYS[2])
if writer and writer ~= '-' then return {'ended', last} end
local first = tonumber(ARGV[3])
if first <= last then return {'known', last} end
if first > last + 1 then return {'gap', last} end
if tonumber(ARGV[4]) >= first then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], ARGV[4] .. '-0', 'f', ARGV[3], 't', ARGV[5], 'l', ARGV[6])
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    last = tonumber(ARGV[4])
end
return {'appended', last}
"""
_HEAD = """
local tail = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
if tail[1] then return tonumber(string.match(tail[1][1], '^%d+')) end
return 0
"""


class RedisBackend:
    """Chunks in Redis. If Redis lost its data, living producers write it again. If Redis is unavailable at the start,
    the backend connects as soon as it answers."""

    def __init__(
        self,
        url: str,
        database: Database,
        *,
        idle_seconds: float,
        kept_seconds: float,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._url = url
        self._supervisor = supervisor or Supervisor()
        self._database = database
        self._idle = timedelta(seconds=idle_seconds)
        self._kept_milliseconds = int(kept_seconds * 1000)
        # redis-py types every response as the union of what all options could return.
        self._client: Any = None
        self._blocking_client: Any = None
        self._listening: SupervisedLoop | None = None
        self._last_notification = "$"
        self._unreachable: StreamUnavailableError | None = None

    async def start(self, on_notification: OnNotification) -> None:
        """Connect and listen; if Redis is unavailable, connect later. `SetupError` if the URL is not valid."""
        try:
            await self._open()
        except StreamUnavailableError as error:
            logger.warning("token deltas do not reach other processes until Redis answers: %s", error)
        self._listening = self._supervisor.start(
            "stream-notifications", partial(self._listen_round, on_notification), longest_pause=_RETRY_SECONDS
        )

    async def close(self) -> None:
        if self._listening is not None:
            await self._listening.stop()
        self._unreachable = None
        clients, self._client, self._blocking_client = (self._client, self._blocking_client), None, None
        for client in clients:
            if client is not None:
                await client.aclose()

    async def _open(self) -> None:
        blocking: Any = None
        client: Any = None
        try:
            with _translated():
                blocking = await self._connect()
                client = await self._connect()
                newest = await client.xrevrange(_NOTIFICATIONS, count=1)
        except BaseException as error:
            for opened in (blocking, client):
                if opened is not None:
                    await opened.aclose()
            self._unreachable = error if isinstance(error, StreamUnavailableError) else self._unreachable
            raise
        # An id, not `$`: a notification between two reads must not be lost.
        self._last_notification = newest[0][0].decode() if newest else "0-0"
        self._blocking_client, self._client, self._unreachable = blocking, client, None

    async def ping(self) -> None:
        with _translated():
            async with asyncio.timeout(_PING_SECONDS):
                await self._connected.ping()

    async def write(self, writes: Sequence[SegmentWrite]) -> RefusedWrites:
        """Write with one pipeline for all streams and the notification."""
        segments: dict[StreamKey, list[Segment]] = {}
        writers = {write.key: _writer(write.owner) for write in writes}
        for write in writes:
            segments.setdefault(write.key, []).append(write.segment)
        heads = [(key.address, found[-1].last_sequence) for key, found in segments.items()]
        payloads = list(format_notifications(heads))
        with _translated():
            pipeline = self._connected.pipeline(**self._plain)
            for key, found in segments.items():
                arguments = [writers[key], *(item for segment in found for item in _fields(segment))]
                pipeline.eval(
                    _WRITE, 2, _name(key), _freeze_name(key), _SEGMENTS_KEPT, self._kept_milliseconds, *arguments
                )
            if self._is_cluster:
                # A pipeline over several nodes has no order: notify when all chunks are written.
                answers = await pipeline.execute()
                pipeline = self._connected.pipeline()
                self._notify(pipeline, payloads)
                await pipeline.execute()
            else:
                self._notify(pipeline, payloads)
                answers = await pipeline.execute()
        answered = dict(zip(segments, answers, strict=False))
        return RefusedWrites(
            incomplete={key for key, answer in answered.items() if answer == _INCOMPLETE},
            frozen={key for key, answer in answered.items() if answer == _FROZEN},
            lost={key for key, answer in answered.items() if answer == _LOST},
        )

    async def append(self, key: StreamKey, segment: Segment) -> tuple[str, int]:
        """Check in PostgreSQL that the stream is open, and in a script that the range follows the last chunk."""
        row = await self._database.fetch_row("touch_stream", key.thread_id, key.message_id, self._idle)
        if row is None:
            return "missing", 0
        if row["status"] != "streaming" or row["owner"] is not None:
            return "ended" if row["status"] != "streaming" else "owned", row["final_sequence"] or 0
        with _translated():
            arguments = (_SEGMENTS_KEPT, self._kept_milliseconds, *_fields(segment))
            answer, last = await self._connected.eval(_APPEND, 2, _name(key), _freeze_name(key), *arguments)
            if answer == b"appended":
                pipeline = self._connected.pipeline()
                self._notify(pipeline, list(format_notifications([(key.address, last)])))
                await pipeline.execute()
        return answer.decode(), last

    async def read(self, asked: Sequence[tuple[StreamKey, int]], *, limit: int) -> dict[StreamKey, list[Segment]]:
        """Read with one pipeline for all streams."""
        with _translated():
            pipeline = self._connected.pipeline(**self._plain)
            for key, after in asked:
                pipeline.xrange(_name(key), min=f"{after + 1}-0", count=limit)
            answers = await pipeline.execute()
        return {
            key: [_segment(number, fields) for number, fields in entries]
            for (key, _), entries in zip(asked, answers, strict=True)
        }

    async def heads(self, keys: Sequence[StreamKey]) -> dict[StreamKey, int]:
        """Read with one pipeline for all streams."""
        if not keys:
            return {}
        with _translated():
            pipeline = self._connected.pipeline(**self._plain)
            for key in keys:
                pipeline.eval(_HEAD, 1, _name(key))
            return dict(zip(keys, await pipeline.execute(), strict=True))

    async def freeze(self, key: StreamKey) -> None:
        """Set a key with an expiry that the write scripts check."""
        with _translated():
            await self._connected.set(_freeze_name(key), _FROZEN_FOR_ALL, ex=_FREEZE_SECONDS)

    async def unfreeze(self, key: StreamKey) -> None:
        with _translated():
            await self._connected.delete(_freeze_name(key))

    async def reopen(self, key: StreamKey, owner: UUID | None) -> None:
        """Keep the freeze for all other processes, as long as the chunks: the former owner may still write."""
        with _translated():
            await self._connected.set(_freeze_name(key), _writer(owner), px=self._kept_milliseconds)

    async def delete(self, keys: Sequence[StreamKey]) -> None:
        with _translated():
            pipeline = self._connected.pipeline(**self._plain)
            for key in keys:
                pipeline.delete(_name(key), _freeze_name(key))
            if keys:
                await pipeline.execute()

    @property
    def _connected(self) -> Any:
        if self._client is not None:
            return self._client
        if self._unreachable is not None:
            raise StreamUnavailableError(str(self._unreachable)) from self._unreachable
        raise EngineClosedError("the engine is closed; open one with Engine.open()")

    @property
    def _is_cluster(self) -> bool:
        return isinstance(self._client, RedisCluster)

    @property
    def _plain(self) -> dict[str, Any]:
        """Options of a pipeline without MULTI; a Cluster has no other kind."""
        return {} if self._is_cluster else {"transaction": False}

    def _notify(self, pipeline: Any, payloads: list[str]) -> None:
        for payload in payloads:
            pipeline.xadd(_NOTIFICATIONS, {"m": payload}, maxlen=_NOTIFICATIONS_KEPT, approximate=True)

    async def _connect(self) -> Any:
        # One retry replaces a connection that a restart of Redis broke; callers handle longer outages.
        options: dict[str, Any] = {
            "socket_connect_timeout": _CONNECT_SECONDS,
            "socket_timeout": _ANSWER_SECONDS,
            "retry": Retry(NoBackoff(), 1),
            "protocol": 2,
        }
        try:
            client: Any = Redis.from_url(self._url, **options)
        except ValueError as error:
            # The message does not repeat the URL, which may hold a password.
            raise SetupError("REDIS_URL is not a valid Redis URL; write redis://user:password@host:6379/0") from error
        try:
            cluster = await client.info("cluster")
        except BaseException:
            await client.aclose()
            raise
        if not cluster.get("cluster_enabled"):
            return client
        await client.aclose()
        client = RedisCluster.from_url(self._url, **options)
        return await client.initialize()

    async def _listen_round(self, on_notification: OnNotification) -> None:
        """Wait for notifications. The supervisor repeats a round that fails because Redis is away."""
        if self._client is None:
            await self._open()
            logger.info("Redis is reachable; token deltas reach other processes")
        with _translated():
            found = await self._blocking_client.xread(
                {_NOTIFICATIONS: self._last_notification}, count=100, block=int(_BLOCK_SECONDS * 1000)
            )
        for _, entries in found:
            for number, fields in entries:
                self._last_notification = number.decode()
                on_notification(fields[b"m"].decode())


def _name(key: StreamKey) -> str:
    thread_id, digest = key.address
    return f"cognizes:{{{thread_id}:{digest}}}:chunks"


def _freeze_name(key: StreamKey) -> str:
    thread_id, digest = key.address
    return f"cognizes:{{{thread_id}:{digest}}}:sealed"


def _writer(owner: UUID | None) -> str:
    return str(owner) if owner is not None else _NO_OWNER


def _fields(segment: Segment) -> tuple[int, int, bytes, bytes]:
    # Redis stores any bytes: NUL and lone surrogates need no escape.
    text = segment.text.encode(errors="surrogatepass")
    return segment.first_sequence, segment.last_sequence, text, segment.lengths


def _segment(number: bytes, fields: dict[bytes, bytes]) -> Segment:
    first, last = int(fields[b"f"]), int(number.partition(b"-")[0])
    return Segment(first, fields[b"t"].decode(errors="surrogatepass"), fields[b"l"], last - first + 1)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise StreamUnavailableError(
            f"Redis is not reachable ({error}); messages are stored all the same, try again in a moment"
        ) from error
