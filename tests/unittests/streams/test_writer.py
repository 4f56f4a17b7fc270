"""Messages in memory: back-pressure of producers and the limit of a message's size."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from cognizes.engine.database.documents import dump_json
from cognizes.engine.errors import LimitExceededError
from cognizes.engine.streams.backend import RefusedWrites
from cognizes.engine.streams.chunks import StreamKey, StreamRow
from cognizes.engine.streams.writer import Flusher, LiveMessage

_ENVELOPE_BYTES = 4096


class _Backend:
    """Accepts no write."""

    async def write(self, _: Any) -> RefusedWrites:
        await asyncio.Event().wait()
        return RefusedWrites()


def live_message(*, max_bytes: int = 1 << 20, changed: list[UUID] | None = None) -> LiveMessage:
    row = StreamRow(StreamKey(uuid4(), "m"), "assistant", "bot", None, owner=uuid4())
    return LiveMessage(row, "app", max_bytes, (changed if changed is not None else []).append)


@pytest.mark.parametrize("became", ["is_closing", "is_lost"])
async def test_a_producer_does_not_wait_for_a_message_that_is_not_flushed_any_more(became: str) -> None:
    message = live_message()
    message.add("more than there is room for")
    flusher = Flusher(_Backend(), buffer_bytes=1, retry_seconds=3600)  # type: ignore[arg-type]
    waiting = asyncio.create_task(flusher.wait_for_room(message))
    await asyncio.sleep(0)
    assert not waiting.done()
    setattr(message, became, True)
    flusher.schedule(message)
    flusher.start()
    try:
        await asyncio.wait_for(waiting, 60)
    finally:
        await flusher.close()


def test_each_delta_is_reported_with_its_thread() -> None:
    changed: list[UUID] = []
    message = live_message(changed=changed)
    message.add("a")
    message.add("b")
    assert changed == [message.row.key.thread_id] * 2


@pytest.mark.parametrize("delta", ["x", "é", "\x01", "𝄞", '"', "\ud83d"])
def test_the_limit_of_a_message_is_exact_for_every_character(delta: str) -> None:
    """The size is estimated far from the limit and exact near it: the last delta that fits is accepted."""
    max_bytes = _ENVELOPE_BYTES + 3000
    message = live_message(max_bytes=max_bytes)
    with pytest.raises(LimitExceededError):
        while True:
            message.add(delta)
    size = len(dump_json(delta).encode(errors="surrogatepass")) - 2
    assert message.log.last_sequence == 3000 // size
    assert message.unflushed == message.log.last_sequence * len(delta.encode(errors="surrogatepass"))
