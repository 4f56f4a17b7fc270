"""Two engines on one database: what one writes, the other reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from cognizes.engine import Engine, Session
from cognizes.engine.feed import Chunks, StreamEnd, StreamView
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.streams.chunks import StreamHead, StreamStatus
from tests.integration.streams.redis_server import RedisServer

Found = TypeVar("Found")

TIMEOUT = 150
"""Seconds that a condition may take on a machine that stalls; nothing here waits that long when it works."""


@dataclass
class Pair:
    """Two processes' worth of engines, and a session."""

    ours: Engine
    other: Engine
    session: Session

    @property
    def thread_id(self) -> str:
        return self.session.thread_id


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A real Redis of this test run's own."""
    with RedisServer.on_socket() as server:
        yield server


@pytest.fixture(params=["postgres", "redis"])
def backend(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings that choose a backend; whatever passes here passes on both."""
    if request.param == "postgres":
        return {}
    return {"redis_url": request.getfixturevalue("redis_server").url}


@pytest.fixture
async def pair(database_url: str, backend: dict[str, Any]) -> AsyncIterator[Pair]:
    settings = {"stream_lease_seconds": 120, **backend}
    async with Engine.open(database_url, **settings) as ours, Engine.open(database_url, **settings) as other:
        yield Pair(ours, other, await ours.sessions.create("app", "user"))


async def until(look: Callable[[], Awaitable[Found]]) -> Found:
    """Looks until it finds something."""
    async with asyncio.timeout(TIMEOUT):
        while not (found := await look()):
            await asyncio.sleep(0.01)
    return found


async def read_to_end(engine: Engine, thread_id: str, message_id: str, *, after: int = 0) -> str:
    """The text behind a chunk as a follower sees it, until the message has ended."""
    text = ""
    async with asyncio.timeout(TIMEOUT):
        while True:
            page = await engine.feed.read_chunks(thread_id, message_id, after=after, wait=TIMEOUT)
            for chunk in page.chunks:
                assert chunk.sequence == after + 1
                after += 1
                text += chunk.delta
            if page.status is not StreamStatus.STREAMING and not page.has_more:
                assert after == page.current_sequence
                return text


@asynccontextmanager
async def watching(engine: Engine, thread_id: str) -> AsyncIterator[AsyncIterator[StreamHead]]:
    """Yield the heads of the streams of a thread as the feed delivers them, from now on."""
    thread = await engine.sessions.store.get_thread(thread_id)
    async with aclosing(
        engine.feed.follow(thread_uuid(thread_id), thread.last_sequence, streams=StreamView.HEADS)
    ) as pages:
        first = await anext(pages)

        async def heads() -> AsyncIterator[StreamHead]:
            for item in first:
                if isinstance(item, Chunks | StreamEnd):
                    yield item.head
            async for page in pages:
                for item in page:
                    if isinstance(item, Chunks | StreamEnd):
                        yield item.head

        yield heads()


async def next_head(
    watch: AsyncIterator[StreamHead],
    message_id: str,
    *,
    status: str | None = None,
    sequence: int = 0,
) -> StreamHead:
    """The next head of a message that has come so far."""
    async with asyncio.timeout(TIMEOUT):
        async for head in watch:
            if (
                head.message_id == message_id
                and head.current_sequence >= sequence
                and head.status == (status or head.status)
            ):
                return head
    raise AssertionError("the watch ended")
