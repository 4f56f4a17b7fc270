"""AG-UI observers of a run that continues in another process: chunk by chunk, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ag_ui.core import BaseEvent

from cognizes.engine.agui.observation import Observation, started
from cognizes.engine.pulse.session_store import thread_uuid
from tests.engine_parts import observer_of
from tests.integration.streams.conftest import TIMEOUT, Pair, until
from tests.unittests.agui.legality import assert_legal


class Following:
    """What an observer in the other process received so far."""

    def __init__(self, pair: Pair, run_id: str, observation: Observation | None = None) -> None:
        self.frames: list[dict[str, Any]] = []
        self.numbers: list[int | None] = []
        first = started(pair.thread_id, run_id)
        of_thread = observer_of(pair.other).observe_thread(thread_uuid(pair.thread_id), first)
        self.task = asyncio.create_task(self._follow(observation or of_thread))

    async def _follow(self, observation: Observation) -> None:
        async for number, frame in observation:
            self.numbers.append(number)
            self.frames.append(_plain(frame))

    async def end(self) -> list[dict[str, Any]]:
        await asyncio.wait_for(self.task, TIMEOUT)
        assert_legal(self.frames)
        return self.frames

    @property
    def snapshot(self) -> list[dict[str, Any]]:
        return next(frame["messages"] for frame in self.frames if frame["type"] == "MESSAGES_SNAPSHOT")

    @property
    def deltas(self) -> list[str]:
        return [frame["delta"] for frame in self.frames if frame["type"] == "TEXT_MESSAGE_CONTENT"]

    @property
    def thoughts(self) -> list[str]:
        return [frame["delta"] for frame in self.frames if frame["type"] == "REASONING_MESSAGE_CONTENT"]

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
        following.task.cancel()
        await asyncio.wait([following.task])


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
            # Each chunk is sent while the message is still being written.
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


async def test_thoughts_are_followed_and_arrive_before_the_text(pair: Pair, tasks: list[Following]) -> None:
    async with pair.ours.runs.start(pair.session, run_id="r") as run:
        async with run.message("thought", message_id="m/thought") as thought:
            await thought.write("let me ")
            await until(lambda: _written(pair, 1, "m/thought"))
            tasks.append(late := Following(pair, "r"))
            await until(lambda: _is(late.is_attached))
            await thought.write("see")
            # While it is being thought.
            await until(lambda: _is(late.thoughts == ["see"]))
        async with run.message("assistant", message_id="m") as message:
            await message.write("I ")
            await until(lambda: _is(late.deltas == ["I "]))
            await message.write("see.")
    frames = await late.end()
    assert late.snapshot[-1] == {"id": "m/thought", "role": "reasoning", "content": "let me "}
    assert _kinds(frames)[3:] == [
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ]
    assert (late.thoughts, "".join(late.deltas)) == (["see"], "I see.")
    # A later reader receives the same under the same ids, from the stored rows.
    tasks.append(after := Following(pair, "later"))
    await after.end()
    assert after.snapshot == [
        {"id": "m/thought", "role": "reasoning", "content": "let me see"},
        {"id": "m", "role": "assistant", "content": "I see."},
    ]
    kinds = [event.event_type for event in await pair.ours.sessions.events(pair.session)]
    assert kinds == ["run_started", "thought", "assistant_message", "run_finished"]
    assert [message.content for message in await pair.ours.sessions.messages(pair.session)] == ["I see."]
    page = await pair.other.streams.read(pair.thread_id, "m/thought")
    assert [chunk.delta for chunk in page.chunks] == ["let me ", "see"]


async def test_thoughts_are_no_messages(pair: Pair) -> None:
    async with (
        pair.other.signals.follow([pair.thread_id]) as signals,
        pair.ours.stream_message(pair.session, role="thought", message_id="t") as thought,
    ):
        # The first signal is the state: from here on the subscription sees each stream that ends.
        assert (await anext(signals)).type == "state_changed"
        await thought.write("hm")
        await until(lambda: _written(pair, 1, "t"))
        for engine in (pair.ours, pair.other):
            assert await engine.streams.heads([pair.thread_id]) == []
            assert (await engine.contexts.messages(pair.thread_id)).messages == []
            (head,) = await engine.streams.heads([pair.thread_id], with_thoughts=True)
            assert (head.message_id, head.role) == ("t", "thought")
        async with pair.ours.stream_message(pair.session, message_id="m"):
            pass
        # No signal names the thought.
        async with asyncio.timeout(TIMEOUT):
            while (signal := await anext(signals)).type != "message_completed":
                assert signal.fields.get("message_id", "m") == "m"
        assert signal.fields["message_id"] == "m"


async def test_what_a_dead_producer_thought_and_said_is_kept_and_sent_once(pair: Pair, tasks: list[Following]) -> None:
    run = await pair.ours.runs.create(pair.session, run_id="r", running=True)
    thought = await pair.ours.streams.write_message(
        pair.session, role="thought", message_id="m/thought", run_id="r"
    ).open()
    await thought.write("let me see")
    message = await pair.ours.streams.write_message(pair.session, message_id="m", run_id="r").open()
    await message.write("I ")
    await until(lambda: _written(pair, 1, "m/thought"))
    await until(lambda: _written(pair, 1))
    tasks.append(late := Following(pair, "r"))
    await until(lambda: _is(late.is_attached))
    await pair.other.streams.interrupt_run(thread_uuid(pair.thread_id), "r")
    await pair.ours.runs.fail(pair.thread_id, run.id, error="its process went away")
    await late.end()
    assert [(message["id"], message["content"]) for message in late.snapshot] == [
        ("m/thought", "let me see"),
        ("m", "I "),
    ]
    assert late.thoughts == late.deltas == []
    kept = [event for event in await pair.ours.sessions.events(pair.session) if not event.event_type.startswith("run")]
    assert [(event.event_type, event.content["interrupted"]) for event in kept] == [
        ("thought", True),
        ("assistant_message", True),
    ]
    for writer in (thought, message):
        assert await writer.abort() == 1


async def test_the_end_without_a_notification_comes_with_the_whole(pair: Pair, tasks: list[Following]) -> None:
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


async def test_the_events_of_a_cancelled_run_contain_what_its_process_stores_later(
    pair: Pair, tasks: list[Following]
) -> None:
    """The cancellation of another process is stored before the executing process stores its text so far."""
    run = await pair.ours.runs.create(pair.session, run_id="r", running=True)
    silent = await pair.ours.streams.write_message(pair.session, message_id="silent", run_id="r").open()
    message = await pair.ours.streams.write_message(pair.session, message_id="m", run_id="r").open()
    await message.write("half")
    await pair.other.runs.cancel(pair.thread_id, run.id)
    observer = observer_of(pair.other)
    tasks.append(live := Following(pair, "r", observer.observe_run("r")))
    await until(lambda: _is(bool(live.frames)))
    await message.abort()
    await silent.abort()
    # The same for a reader that comes later, and for one that resumes after the last frame.
    tasks.append(late := Following(pair, "r", observer.observe_run("r")))
    tasks.append(resumed := Following(pair, "r", observer.observe_run("r", after=3)))
    for following in (live, late):
        frames = await following.end()
        assert following.deltas == ["half"]
        assert (frames[-1]["type"], frames[-1]["outcome"]["type"]) == ("RUN_FINISHED", "cancelled")
        assert following.numbers[-1] == 3
    frames = await resumed.end()
    assert (resumed.snapshot[-1]["content"], resumed.deltas) == ("half", [])
    assert frames[-1]["type"] == "RUN_FINISHED"


async def _written(pair: Pair, sequence: int, message_id: str = "m") -> bool:
    return (await pair.other.streams.read(pair.thread_id, message_id)).current_sequence >= sequence


def _kinds(frames: list[dict[str, Any]]) -> list[str]:
    """The types of frames, each run of equal ones once."""
    types = [frame["type"] for frame in frames]
    return [kind for number, kind in enumerate(types) if number == 0 or types[number - 1] != kind]


async def _nothing(asked: Any, *, limit: int) -> Any:
    return {key: [] for key, _ in asked}
