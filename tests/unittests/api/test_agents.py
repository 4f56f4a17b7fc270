"""A stream of frames always ends with a terminal frame: a client takes one that just ends for success."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from ag_ui.core import BaseEvent, CustomEvent, RunFinishedEvent

from cognizes.engine.agui.frames import FrameEncoder
from cognizes.engine.agui.observation import Observation, started
from cognizes.engine.api.agents import FrameStreams
from cognizes.engine.api.sse import HeartbeatTimer
from cognizes.engine.errors import NotFoundError


async def observation(*items: BaseEvent | Exception | asyncio.Event) -> Observation:
    for number, item in enumerate(items, 1):
        if isinstance(item, Exception):
            raise item
        if isinstance(item, asyncio.Event):
            await item.wait()
        else:
            yield number, item


def make_streams() -> tuple[FrameStreams, asyncio.Event]:
    have_stopped = asyncio.Event()
    agents: Any = SimpleNamespace(have_stopped=have_stopped)
    return FrameStreams(HeartbeatTimer(1), agents, last_frames_seconds=0.001), have_stopped


async def read(encoded: AsyncGenerator[str, None]) -> list[dict[str, Any]]:
    async with asyncio.timeout(30):
        return [json.loads(text.split("data: ")[1]) async for text in encoded]


FINISHED = RunFinishedEvent(thread_id="t", run_id="r")


@pytest.mark.parametrize(
    ("rest", "code"),
    [
        ([], "STREAM_ENDED"),
        ([NotFoundError("there is no thread t")], "STREAM_FAILED"),
        ([ValueError("odd")], "STREAM_FAILED"),
    ],
)
async def test_a_stream_that_breaks_off_ends_with_an_error(rest: list[Any], code: str) -> None:
    streams, _ = make_streams()
    frames = await read(streams.encode(observation(started("t", "r"), *rest), FrameEncoder()))
    assert [frame["type"] for frame in frames] == ["RUN_STARTED", "RUN_ERROR"]
    assert frames[-1]["code"] == code
    assert "odd" not in frames[-1]["message"], "an unexpected error is only in the log"


async def test_nothing_follows_the_terminal_frame() -> None:
    streams, _ = make_streams()
    late = CustomEvent(name="late", value=1)
    frames = await read(streams.encode(observation(started("t", "r"), FINISHED, late), FrameEncoder()))
    assert [frame["type"] for frame in frames] == ["RUN_STARTED", "RUN_FINISHED"]


async def test_a_server_that_stops_tells_clients_whose_run_continues_elsewhere() -> None:
    streams, have_stopped = make_streams()
    frames = observation(started("t", "r"), asyncio.Event())
    reading = asyncio.create_task(read(streams.encode(frames, FrameEncoder())))
    await asyncio.sleep(0)
    have_stopped.set()
    assert (await reading)[-1]["code"] == "SERVER_STOPPED"


async def test_frames_that_are_there_when_the_server_stops_are_sent() -> None:
    streams, have_stopped = make_streams()
    have_stopped.set()
    frames = await read(streams.encode(observation(started("t", "r"), FINISHED), FrameEncoder()))
    assert [frame["type"] for frame in frames] == ["RUN_STARTED", "RUN_FINISHED"]


async def test_a_reader_that_leaves_closes_the_observation() -> None:
    closed = asyncio.Event()

    async def watched() -> Observation:
        try:
            yield 1, started("t", "r")
            await asyncio.Event().wait()
        finally:
            closed.set()

    streams, _ = make_streams()
    encoded = streams.encode(watched(), FrameEncoder())
    await anext(encoded)
    await encoded.aclose()
    assert closed.is_set()
