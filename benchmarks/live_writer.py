"""Run by `live.py` in a separate process: executes the append request of each input line and prints a line.

{"thread": ..., "run": ..., "rate": 100, "seconds": 60, "bytes": 0}    a fixed rate, without waiting for results
{"thread": ..., "run": ..., "writers": 10, "seconds": 2, "bytes": 0}   as fast as ten writers can
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any
from uuid import UUID

import uvloop

from cognizes.engine import Engine, Event


async def append_beat(engine: Engine, thread: UUID, run: str, size: int = 0) -> None:
    """Return an event with its time of sending; its frame is a CUSTOM with the same content."""
    content = {"sent": time.time_ns(), "padding": "x" * size}
    event = Event(
        id="", thread_id=str(thread), invocation_id="", author="agent", event_type="beat", content=content, run_id=run
    )
    await engine.sessions.append_to_thread(thread, event)


async def _append_at_rate(engine: Engine, order: dict[str, Any]) -> int:
    """Send at fixed times even if results are late, so that a slow engine gets the same load."""
    total = int(order["rate"] * order["seconds"])
    start = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for place in range(total):
            if (pause := start + place / order["rate"] - time.perf_counter()) > 0:
                await asyncio.sleep(pause)
            tasks.create_task(append_beat(engine, UUID(order["thread"]), order["run"], order["bytes"]))
    return total


async def _append_at_will(engine: Engine, order: dict[str, Any]) -> int:
    done = 0
    deadline = time.perf_counter() + order["seconds"]

    async def repeat() -> None:
        nonlocal done
        while time.perf_counter() < deadline:
            await append_beat(engine, UUID(order["thread"]), order["run"], order["bytes"])
            done += 1

    await asyncio.gather(*(repeat() for _ in range(order["writers"])))
    return done


async def _serve(url: str) -> None:
    loop = asyncio.get_running_loop()
    async with Engine.open(url) as engine:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            order = json.loads(line)
            start = time.perf_counter()
            appends = await (_append_at_rate if "rate" in order else _append_at_will)(engine, order)
            seconds = time.perf_counter() - start
            print(json.dumps({"appends": appends, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
