"""Producers that wait for room."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from cognizes.engine.streams.delta_stream import Refused, StreamKey, StreamStatus
from cognizes.engine.streams.flusher import Flusher
from cognizes.engine.streams.live_message import LiveMessage
from cognizes.engine.streams.stream_rows import StreamRow


class _Backend:
    """It never takes anything in."""

    async def write(self, _: Any) -> Refused:
        await asyncio.Event().wait()
        return Refused()


@pytest.mark.parametrize("became", ["is_closing", "is_lost"])
async def test_nobody_waits_for_room_in_a_message_that_is_flushed_no_more(became: str) -> None:
    row = StreamRow(StreamKey(uuid4(), "m"), "assistant", "bot", None, StreamStatus.STREAMING, uuid4(), None)
    message = LiveMessage(row, "app", 1 << 20)
    message.add("more than there is room for")
    flusher = Flusher(_Backend(), buffer_bytes=1, patience=3600)  # type: ignore[arg-type]
    waiting = asyncio.create_task(flusher.wait_for_room(message))
    await asyncio.sleep(0)
    assert not waiting.done()
    setattr(message, became, True)
    flusher.touch(message)
    flusher.start()
    try:
        await asyncio.wait_for(waiting, 60)
    finally:
        await flusher.close()
