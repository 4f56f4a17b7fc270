"""Run by `append.py` in a separate process: print the memory of an engine and its sessions as JSON."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from contextlib import AsyncExitStack

import psutil

_PROCESS = psutil.Process()
_ENGINES = 5
_SESSIONS = 20_000


def _resident() -> float:
    gc.collect()
    return _PROCESS.memory_info().rss / 2**20


async def _measure(url: str) -> dict[str, float]:
    figures = {"interpreter_mib": _resident()}
    from cognizes.engine import Engine, Session  # noqa: PLC0415 - what the import costs is a figure

    figures["imported_mib"] = _resident()
    async with AsyncExitStack() as opened:
        first = await opened.enter_async_context(Engine.open(url))
        await first.sessions.create("memory", "probe")
        figures["first_engine_mib"] = _resident()
        for _ in range(_ENGINES):
            another = await opened.enter_async_context(Engine.open(url))
            await another.sessions.create("memory", "probe")
        figures["engine_mib"] = (_resident() - figures["first_engine_mib"]) / _ENGINES

        before = _resident()
        held: list[Session] = []
        for _ in range(_SESSIONS // 100):
            held += await asyncio.gather(
                *(first.sessions.create("memory", "probe", state={"step": 1, "cart": []}) for _ in range(100))
            )
        figures["thousand_sessions_mib"] = (_resident() - before) / len(held) * 1000
    return figures


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_measure(sys.argv[1]))))
