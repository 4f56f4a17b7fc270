"""The monitor profile follows messages chunk by chunk, in the process that writes them and in another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from cognizes.engine import Engine, Event
from cognizes.engine.pulse.event_bridge import AgUiEvent
from cognizes.engine.pulse.session_store import thread_uuid
from tests.engine_parts import bridge_of, monitor_of
from tests.integration.streams.conftest import TIMEOUT, Pair


class Reader:
    """Reads the frames of a run as they come."""

    def __init__(self, engine: Engine, run_id: str, *, after: int = 0) -> None:
        self.frames: list[AgUiEvent] = []
        self._task = asyncio.create_task(self._read(engine, run_id, after))

    async def _read(self, engine: Engine, run_id: str, after: int) -> None:
        async with aclosing(bridge_of(engine).subscribe(run_id, after=after)) as frames:
            async for frame in frames:
                self.frames.append(frame)
                if frame.type == "RUN_FINISHED":
                    return

    async def until(self, text: str) -> None:
        """Wait until this text was received."""
        async with asyncio.timeout(TIMEOUT):
            while self.text != text:
                assert not self._task.done(), self._task.result()
                await asyncio.sleep(0.005)

    async def end(self) -> list[str]:
        await asyncio.wait_for(self._task, TIMEOUT)
        return [frame.type.value for frame in self.frames]

    def close(self) -> None:
        self._task.cancel()

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    @property
    def deltas(self) -> list[str]:
        return [frame.data["delta"] for frame in self.frames if frame.type == "TEXT_MESSAGE_CONTENT"]

    @property
    def thoughts(self) -> list[str]:
        return [frame.data["delta"] for frame in self.frames if frame.type == "REASONING_MESSAGE_CONTENT"]


@pytest.fixture
async def readers(pair: Pair) -> AsyncIterator[list[Reader]]:
    """One in the writing process, one in the other; both follow before the run exists."""
    made = [Reader(engine, "r") for engine in (pair.ours, pair.other)]
    yield made
    for reader in made:
        reader.close()


async def test_every_chunk_is_sent_while_the_message_is_written_and_nothing_twice(
    pair: Pair, readers: list[Reader]
) -> None:
    words = [f"word{number} " for number in range(12)]
    async with pair.ours.runs.start(pair.session, run_id="r") as run:
        async with run.message("assistant", message_id="m") as message:
            for number, word in enumerate(words, 1):
                await message.write(word)
                for reader in readers:
                    await reader.until("".join(words[:number]))
        await pair.ours.sessions.append(pair.session, author="agent", kind="message", text="not streamed", run_id="r")
    for reader in readers:
        kinds = await reader.end()
        assert kinds == [
            "RUN_STARTED",
            "TEXT_MESSAGE_START", *["TEXT_MESSAGE_CONTENT"] * len(words), "TEXT_MESSAGE_END",
            "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
            "RUN_FINISHED",
        ]  # fmt: skip
        assert reader.deltas == [*words, "not streamed"]
        first = reader.frames[1 : len(words) + 3]
        assert {frame.data["messageId"] for frame in first} == {"m"}
        assert {frame.run_id for frame in reader.frames} == {"r"}
        # Only what is stored moves the position that `Last-Event-ID` names.
        assert [frame.sequence for frame in first] == [None] * (len(words) + 1) + [2]


async def test_thoughts_come_before_the_text_and_are_not_repeated(pair: Pair, readers: list[Reader]) -> None:
    async with pair.ours.runs.start(pair.session, run_id="r") as run:
        async with run.message("thought", message_id="m/thought") as thinking:
            await thinking.write("let me ")
            async with asyncio.timeout(TIMEOUT):
                while any(reader.thoughts != ["let me "] for reader in readers):
                    await asyncio.sleep(0.005)
            await thinking.write("see")
        async with run.message("assistant", message_id="m") as message:
            await message.write("I see.")
    for reader in readers:
        kinds = await reader.end()
        assert "".join(reader.thoughts) == "let me see"
        assert reader.text == "I see."
        for kind in ("REASONING_START", "REASONING_END", "TEXT_MESSAGE_START", "TEXT_MESSAGE_END"):
            assert kinds.count(kind) == 1
        assert kinds.index("REASONING_END") < kinds.index("TEXT_MESSAGE_START")


async def test_a_reader_that_comes_in_the_middle_receives_the_text_so_far(pair: Pair) -> None:
    async with (
        pair.ours.runs.start(pair.session, run_id="r") as run,
        run.message("assistant", message_id="m") as message,
    ):
        await message.write("one ")
        await message.write("two ")
        # Nothing moves any more: what is there is found without a notification.
        late = [Reader(engine, "r", after=1) for engine in (pair.ours, pair.other)]
        for reader in late:
            await reader.until("one two ")
        await message.write("three")
    for reader in late:
        assert await reader.end() == [
            "TEXT_MESSAGE_START", *["TEXT_MESSAGE_CONTENT"] * 3, "TEXT_MESSAGE_END", "RUN_FINISHED",
        ]  # fmt: skip


async def test_an_interrupted_message_ends_once(pair: Pair, readers: list[Reader]) -> None:
    with pytest.raises(RuntimeError):
        async with (
            pair.ours.runs.start(pair.session, run_id="r") as run,
            run.message("assistant", message_id="m") as message,
        ):
            await message.write("half")
            for reader in readers:
                await reader.until("half")
            raise RuntimeError("no more")
    for reader in readers:
        kinds = await reader.end()
        assert reader.text == "half"
        assert (kinds.count("TEXT_MESSAGE_START"), kinds.count("TEXT_MESSAGE_END")) == (1, 1)
        assert reader.frames[-1].data["status"] == "failed"


async def test_two_messages_at_once_and_another_run_beside_them(pair: Pair, readers: list[Reader]) -> None:
    async with (
        pair.ours.runs.start(pair.session, run_id="r") as run,
        pair.ours.runs.start(pair.session, run_id="beside") as beside,
        run.message("assistant", message_id="a") as one,
        run.message("assistant", message_id="b") as two,
        beside.message("assistant", message_id="c") as foreign,
    ):
        for number in range(5):
            await one.write(f"a{number}")
            await two.write(f"b{number}")
            await foreign.write(f"c{number}")
        async with asyncio.timeout(TIMEOUT):
            while any(len(reader.text) < 20 for reader in readers):
                await asyncio.sleep(0.005)
    for reader in readers:
        kinds = await reader.end()
        assert (kinds.count("TEXT_MESSAGE_START"), kinds.count("TEXT_MESSAGE_END")) == (2, 2)
        for name in ("a", "b"):
            assert _text_of(reader, name) == "".join(f"{name}{number}" for number in range(5))


async def test_a_message_that_is_stored_while_its_stream_is_open_is_sent_once(pair: Pair) -> None:
    """ADK stores the event itself and ends the stream afterwards; a reader may come in between."""
    run = await pair.ours.runs.create(pair.session, run_id="r", running=True)
    message = await pair.ours.streams.write_message(pair.session, message_id="m", run_id="r").open()
    await message.write("all of it")
    event = Event("m", pair.thread_id, "", "agent", "assistant_message", {"text": "all of it"}, run_id="r")
    await pair.ours.sessions.append_to_thread(thread_uuid(pair.thread_id), event)
    late = [Reader(engine, "r", after=after) for engine in (pair.ours, pair.other) for after in (0, 2)]
    async with asyncio.timeout(TIMEOUT):
        while not all(engine.feed.open_streams(thread_uuid(pair.thread_id)) for engine in (pair.ours, pair.other)):
            await asyncio.sleep(0.005)
    await message.mark_stored()
    await pair.ours.runs.finish(pair.thread_id, run.id)
    for reader, expected in zip(late, ["all of it", "", "all of it", ""], strict=True):
        await reader.end()
        assert reader.text == expected


async def test_a_reader_of_a_quiet_thread_follows_no_streams(pair: Pair) -> None:
    """An open stream costs a query now and then; a thread in which nothing is streamed costs none."""
    reader = Reader(pair.other, "r")
    async with pair.ours.runs.start(pair.session, run_id="r") as run:
        await pair.ours.sessions.append(pair.session, author="a", kind="message", text="hello", run_id="r")
        await reader.until("hello")
        assert not _has_streams(pair)
        async with run.message("assistant", message_id="m") as message:
            await message.write("x")
            await reader.until("hellox")
            assert _has_streams(pair)
        # The next sweep notices that nothing is open any more.
        async with asyncio.timeout(TIMEOUT):
            while _has_streams(pair):
                await asyncio.sleep(0.05)
    await reader.end()


def _has_streams(pair: Pair) -> bool:
    return pair.other.feed.open_streams(thread_uuid(pair.thread_id)) > 0


def _text_of(reader: Reader, message_id: str) -> str:
    frames: list[dict[str, Any]] = [frame.data for frame in reader.frames if frame.type == "TEXT_MESSAGE_CONTENT"]
    return "".join(data["delta"] for data in frames if data["messageId"] == message_id)


class Outlet:
    """A connection that keeps what it is sent."""

    def __init__(self) -> None:
        self.bodies: list[str | bytes] = []

    async def put(self, frames: str | bytes) -> None:
        self.bodies.append(frames)


async def test_subscribers_of_a_run_share_the_encoded_frames(pair: Pair) -> None:
    session = await pair.ours.sessions.create("app", "user")
    thread = thread_uuid(session.thread_id)
    await pair.ours.sessions.append(session, author="a", kind="run_started", run_id="shared")
    outlets = [Outlet() for _ in range(5)]
    monitor = monitor_of(pair.other)
    sending = [asyncio.create_task(monitor.send("shared", outlet, thread_id=thread)) for outlet in outlets]
    try:
        async with asyncio.timeout(TIMEOUT):
            while not all(outlet.bodies for outlet in outlets):
                await asyncio.sleep(0.005)
            for number in range(20):
                await pair.ours.sessions.append(
                    session, author="a", kind="note", content={"n": number}, run_id="shared"
                )
            while not all(b'"n":19' in _joined(outlet) for outlet in outlets):
                await asyncio.sleep(0.005)
        assert len({_joined(outlet) for outlet in outlets}) == 1
        # Each subscriber read the first event, which is older, by itself.
        for bodies in zip(*(outlet.bodies[1:] for outlet in outlets), strict=True):
            assert len({id(body) for body in bodies}) == 1, "the frames are encoded once"
    finally:
        for task in sending:
            task.cancel()


def _joined(outlet: Outlet) -> bytes:
    return b"".join(body if isinstance(body, bytes) else body.encode() for body in outlet.bodies)
