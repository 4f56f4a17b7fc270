"""Observers of a log, each at its own pace."""

from __future__ import annotations

import asyncio

from ag_ui.core import CustomEvent

from cognizes.engine.hosting.hosted_run import FrameLog


def frame(name: str) -> CustomEvent:
    return CustomEvent(name=name, value=None)


async def collect(log: FrameLog, after: int = 0) -> list[tuple[int, str]]:
    return [(number, item.name) async for number, item in log.follow(after) if isinstance(item, CustomEvent)]


async def test_every_observer_sees_everything_after_its_place() -> None:
    log = FrameLog()
    log.extend([frame("a")])
    early, late = asyncio.create_task(collect(log)), asyncio.create_task(collect(log, after=1))
    await asyncio.sleep(0)
    log.extend([frame("b"), frame("c")])
    await asyncio.sleep(0)
    log.extend([frame("d")])
    log.close()
    assert await early == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    assert await late == [(2, "b"), (3, "c"), (4, "d")]
    assert await collect(log, after=3) == [(4, "d")]
