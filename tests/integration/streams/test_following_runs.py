"""AG-UI observers of a run that goes on in another process: chunk by chunk, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ag_ui.core import BaseEvent

from cognizes.engine.adapters.observers import make_observer
from cognizes.engine.agui.observation import started
from cognizes.engine.pulse.session_store import thread_uuid
from tests.integration.streams.conftest import PATIENCE, Pair, until
from tests.unittests.agui.legality import assert_legal


class Following:
    """What an observer in the other process was told so far."""

    def __init__(self, pair: Pair, run_id: str) -> None:
        self.frames: list[dict[str, Any]] = []
        self._pair = pair
        self._run_id = run_id
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        first = started(self._pair.thread_id, self._run_id)
        observation = make_observer(self._pair.other).observe_thread(thread_uuid(self._pair.thread_id), first)
        async for _, frame in observation:
            self.frames.append(_plain(frame))

    async def end(self) -> list[dict[str, Any]]:
        await asyncio.wait_for(self._task, PATIENCE)
        assert_legal(self.frames)
        return self.frames

    @property
    def snapshot(self) -> list[dict[str, Any]]:
        return next(frame["messages"] for frame in self.frames if frame["type"] == "MESSAGES_SNAPSHOT")

    @property
    def deltas(self) -> list[str]:
        return [frame["delta"] for frame in self.frames if frame["type"] == "TEXT_MESSAGE_CONTENT"]

    @property
    def is_attached(self) -> bool:
        return any(frame["type"] == "MESSAGES_SNAPSHOT" for frame in self.frames)


def _plain(frame: BaseEvent) -> dict[str, Any]:
    return frame.model_dump(by_alias=True, exclude_none=True, mode="json")


async def _is(value: bool) -> bool:
    return value


@pytest.fixture
async def tasks() -> AsyncIterator[list[Following]]:
    made: list[Following] = []
    yield made
    for following in made:
        following._task.cancel()
        await asyncio.wait([following._task])


async def test_the_text_so_far_then_every_chunk_then_the_end(pair: Pair, tasks: list[Following]) -> None:
    async with (
        pair.ours.runs.start(pair.session, run_id="r") as run,
        run.message("assistant", message_id="m") as message,
    ):
        for word in ("one ", "two "):
            await message.write(word)
        await until(lambda: _written(pair, 2))
        tasks.append(late := Following(pair, "r"))
        await until(lambda: _is(late.is_attached))
        for number, word in enumerate(("three ", "four "), 1):
            await message.write(word)
            # Each chunk is told while the message is still being written.
            await until(lambda number=number: _is(len(late.deltas) == number))
    frames = await late.end()
    assert late.snapshot[-1] == {"id": "m", "role": "assistant", "content": "one two "}
    assert late.deltas == ["three ", "four "]
    assert [frame["type"] for frame in frames[3:]] == [
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ]
    assert {frame["messageId"] for frame in frames[3:-1]} == {"m"}


async def test_the_end_that_nobody_told_comes_with_the_whole(pair: Pair, tasks: list[Following]) -> None:
    """The other process cannot read chunks any more: the event brings what they did not."""
    async with pair.ours.runs.start(pair.session, run_id="r") as run:
        async with run.message("assistant", message_id="m") as message:
            await message.write("one ")
            await until(lambda: _written(pair, 1))
            tasks.append(late := Following(pair, "r"))
            await until(lambda: _is(late.is_attached))
            pair.other.streams.backend.read = _nothing  # type: ignore[method-assign]
            await message.write("two")
        await pair.ours.sessions.append(pair.session, author="bot", kind="assistant_message", text="more", run_id="r")
    await late.end()
    assert late.snapshot[-1]["content"] == "one "
    assert "".join(late.deltas) == "twomore"


async def test_an_interrupted_message_is_closed(pair: Pair, tasks: list[Following]) -> None:
    with pytest.raises(RuntimeError):
        async with (
            pair.ours.runs.start(pair.session, run_id="r") as run,
            run.message("assistant", message_id="m") as message,
        ):
            await message.write("half")
            await until(lambda: _written(pair, 1))
            tasks.append(late := Following(pair, "r"))
            await until(lambda: _is(late.is_attached))
            raise RuntimeError("no more")
    frames = await late.end()
    assert late.snapshot[-1]["content"] + "".join(late.deltas) == "half"
    assert frames[-1]["type"] == "RUN_ERROR"


async def _written(pair: Pair, sequence: int) -> bool:
    return (await pair.other.streams.read(pair.thread_id, "m")).current_sequence >= sequence


async def _nothing(asked: Any, *, limit: int) -> Any:
    return {key: [] for key, _ in asked}
