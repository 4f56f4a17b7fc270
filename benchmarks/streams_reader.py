"""Follow streams in a separate process and print the age of each chunk; for `streams.py`.

A chunk's text is the moment it was written, as `time.time()` of the same machine.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import uvloop

from cognizes.engine import Engine
from cognizes.engine.streams.chunks import StreamStatus


async def follow(engine: Engine, thread_id: str, message_id: str) -> list[float]:
    """The ages of all chunks of a message, in seconds."""
    ages: list[float] = []
    after = 0
    while True:
        page = await engine.feed.read_chunks(thread_id, message_id, after=after, wait=30)
        now = time.time()
        if page.status is StreamStatus.STREAMING:
            # Chunks of the stored body arrive after the end of the message and do not measure the transport.
            ages += [now - float(chunk.delta) for chunk in page.chunks]
        after += len(page.chunks)
        if page.status is not StreamStatus.STREAMING and not page.has_more:
            return ages


async def main(url: str, settings: dict[str, Any]) -> None:
    async with Engine.open(url, **settings) as engine:
        print("ready", flush=True)
        streams = json.loads(await asyncio.to_thread(sys.stdin.readline))
        print("following", flush=True)
        found = await asyncio.gather(*(follow(engine, thread_id, message_id) for thread_id, message_id in streams))
        print(json.dumps([age for ages in found for age in ages]), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], json.loads(sys.argv[2])))
