"""Watches that begin while PostgreSQL is away."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from cognizes.engine.errors import DatabaseUnavailableError
from cognizes.engine.streams.delta_stream import StreamHead, StreamStatus
from cognizes.engine.streams.stream_hub import StreamHub, StreamWatch


async def test_a_watch_whose_first_look_failed_is_entered_again_and_goes_on() -> None:
    failures = [DatabaseUnavailableError("PostgreSQL is away")]

    async def look(_: list[UUID], __: float) -> list[StreamHead]:
        if failures:
            raise failures.pop()
        return []

    hub, thread_id = StreamHub(look, lambda _: False), uuid4()
    watch = StreamWatch(hub, [thread_id])
    with pytest.raises(DatabaseUnavailableError):
        await watch.__aenter__()
    assert not hub.is_watched(thread_id)
    async with watch:
        following = asyncio.create_task(anext(watch))
        await asyncio.sleep(0)
        hub.tell(StreamHead(str(thread_id), "m", "assistant", "bot", None, StreamStatus.STREAMING, 1))
        assert (await following).current_sequence == 1
