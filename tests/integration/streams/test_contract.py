"""What every backend of `ChunkBackend` promises, seen from the outside."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from cognizes.engine import ConflictError, InvalidInputError, NotFoundError
from cognizes.engine.streams.chunks import Chunk, StreamStatus
from cognizes.engine.streams.writer import LiveMessage
from tests.engine_parts import database_of
from tests.integration.streams.conftest import Pair, next_head, read_to_end, until, watching


async def test_a_message_is_followed_from_both_processes_and_stored_once(pair: Pair) -> None:
    tokens = [f"tok{number} " for number in range(200)]
    async with pair.ours.stream_message(pair.session, role="assistant", author="bot") as message:
        followers = [
            asyncio.create_task(read_to_end(engine, pair.thread_id, message.message_id))
            for engine in (pair.ours, pair.other)
        ]
        for token in tokens:
            await message.write(token)
            await asyncio.sleep(0)
    assert [await follower for follower in followers] == ["".join(tokens)] * 2
    (event,) = await pair.ours.sessions.events(pair.session)
    assert (event.event_type, event.author, event.id) == ("assistant_message", "bot", message.message_id)
    assert event.content == {"text": "".join(tokens), "message_id": message.message_id}
    (stored,) = await pair.other.sessions.messages(pair.session)
    assert (stored.id, stored.role, stored.content) == (message.message_id, "assistant", "".join(tokens))


async def test_chunks_are_the_same_before_and_after_completion(pair: Pair) -> None:
    deltas = ["Hel", "lo", " ", "wörld", "!" * 300, "\x00", "\ud83d", "\ude00", "\ue000", "𝄞"]
    async with pair.ours.stream_message(pair.session) as message:
        for delta in deltas:
            await message.write(delta)
        await until(lambda: _reaches(pair, message.message_id, len(deltas)))
        before = await pair.other.streams.read(pair.thread_id, message.message_id)
        assert before.status is StreamStatus.STREAMING
    expected = [Chunk(number, delta) for number, delta in enumerate(deltas, 1)]
    assert before.chunks == expected
    await database_of(pair.ours).pool.execute("DELETE FROM message_chunks")
    for engine in (pair.ours, pair.other):
        after = await engine.streams.read(pair.thread_id, message.message_id)
        assert (after.chunks, after.current_sequence, after.has_more) == (expected, len(deltas), False)
        assert after.status is StreamStatus.COMPLETED
        page = await engine.streams.read(pair.thread_id, message.message_id, after=4, limit=3)
        assert (page.chunks, page.has_more) == (expected[4:7], True)
        page = await engine.streams.read(pair.thread_id, message.message_id, after=4, up_to=6)
        assert (page.chunks, page.has_more) == (expected[4:6], False)
        page = await engine.streams.read(pair.thread_id, message.message_id, after=10**12)
        assert (page.chunks, page.has_more) == ([], False)


async def _reaches(pair: Pair, message_id: str, sequence: int) -> bool:
    page = await pair.other.streams.read(pair.thread_id, message_id, limit=1)
    return page.current_sequence == sequence


async def test_pages_of_an_open_stream(pair: Pair) -> None:
    async with pair.ours.stream_message(pair.session) as message:
        for number in range(1, 51):
            await message.write(f"{number},")
        await until(lambda: _reaches(pair, message.message_id, 50))
        for engine in (pair.ours, pair.other):
            page = await engine.streams.read(pair.thread_id, message.message_id, after=10, limit=5)
            assert [chunk.delta for chunk in page.chunks] == ["11,", "12,", "13,", "14,", "15,"]
            assert (page.current_sequence, page.has_more) == (50, True)
            page = await engine.streams.read(pair.thread_id, message.message_id, after=10, up_to=12)
            assert [chunk.sequence for chunk in page.chunks] == [11, 12]
            assert not page.has_more
            page = await engine.streams.read(pair.thread_id, message.message_id, after=50)
            assert (page.chunks, page.current_sequence, page.has_more) == ([], 50, False)


async def test_an_exception_leaves_an_interrupted_message(pair: Pair) -> None:
    with pytest.raises(RuntimeError, match="model"):
        async with pair.ours.stream_message(pair.session) as message:
            await message.write("so f")
            await message.write("ar")
            raise RuntimeError("the model is gone")
    (event,) = await pair.ours.sessions.events(pair.session)
    assert event.content == {"text": "so far", "message_id": message.message_id, "interrupted": True}
    page = await pair.other.streams.read(pair.thread_id, message.message_id)
    assert (page.status, [chunk.delta for chunk in page.chunks]) == (StreamStatus.INTERRUPTED, ["so f", "ar"])


async def test_a_cancelled_task_leaves_an_interrupted_message(pair: Pair) -> None:
    written = asyncio.Event()

    async def write() -> None:
        async with pair.ours.stream_message(pair.session, message_id="m") as message:
            await message.write("half")
            written.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await written.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (event,) = await pair.ours.sessions.events(pair.session)
    assert event.content["interrupted"] is True
    assert event.content["text"] == "half"


async def test_an_interrupted_stream_without_words_leaves_no_message(pair: Pair) -> None:
    async with watching(pair.other, pair.thread_id) as watch:
        with pytest.raises(RuntimeError):
            async with pair.ours.stream_message(pair.session, message_id="m"):
                raise RuntimeError
        assert (await next_head(watch, "m", status="interrupted")).current_sequence == 0
    assert await pair.ours.sessions.events(pair.session) == []
    page = await pair.other.streams.read(pair.thread_id, "m")
    assert (page.status, page.chunks) == (StreamStatus.INTERRUPTED, [])


async def test_completing_twice_answers_the_same(pair: Pair) -> None:
    async with pair.ours.stream_message(pair.session) as message:
        await message.write("a")
        await message.write("")
        await message.write("b")
        assert await message.complete("stop") == 2
        assert await message.complete("stop") == 2
        assert await message.abort() == 2
        with pytest.raises(ConflictError):
            await message.write("c")
    (event,) = await pair.ours.sessions.events(pair.session)
    assert event.content == {"text": "ab", "message_id": message.message_id, "finish_reason": "stop"}


async def test_a_second_producer_is_refused(pair: Pair) -> None:
    async with pair.ours.stream_message(pair.session, message_id="m") as message:
        for engine in (pair.ours, pair.other):
            with pytest.raises(ConflictError):
                async with engine.stream_message(pair.session, message_id="m"):
                    pass
            with pytest.raises(ConflictError):
                await engine.streams.open(pair.thread_id, message_id="m", role="assistant")
            with pytest.raises(ConflictError):
                await engine.streams.append(pair.thread_id, "m", first_sequence=1, deltas=["x"])
            with pytest.raises(ConflictError):
                await engine.streams.complete(pair.thread_id, "m")
        await message.write("ours")
    with pytest.raises(ConflictError):
        await pair.other.streams.open(pair.thread_id, message_id="m", role="assistant")
    (event,) = await pair.ours.sessions.events(pair.session)
    assert event.content["text"] == "ours"


async def test_a_producer_without_an_object_uses_any_process(pair: Pair) -> None:
    ours, other, thread = pair.ours.streams, pair.other.streams, pair.thread_id
    message_id = await ours.open(thread, role="assistant", author="rest")
    assert await ours.append(thread, message_id, first_sequence=1, deltas=["a", "", "b"]) == 3
    assert await other.append(thread, message_id, first_sequence=4, deltas=["c"]) == 4
    # Resent, wholly and partly.
    assert await ours.append(thread, message_id, first_sequence=1, deltas=["a", "", "b"]) == 4
    assert await ours.append(thread, message_id, first_sequence=3, deltas=["b", "c", "d"]) == 5
    assert await ours.append(thread, message_id, first_sequence=6, deltas=[]) == 5
    with pytest.raises(ConflictError, match="gap"):
        await other.append(thread, message_id, first_sequence=7, deltas=["x"])
    with pytest.raises(ConflictError, match="another content"):
        await other.append(thread, message_id, first_sequence=5, deltas=["x"])
    page = await other.read(thread, message_id)
    assert [chunk.delta for chunk in page.chunks] == ["a", "", "b", "c", "d"]
    assert await other.complete(thread, message_id, finish_reason="stop") == 5
    assert await ours.complete(thread, message_id) == 5
    assert await ours.append(thread, message_id, first_sequence=5, deltas=["d"]) == 5
    with pytest.raises(ConflictError, match="finished"):
        await ours.append(thread, message_id, first_sequence=6, deltas=["late"])
    (event,) = await pair.ours.sessions.events(pair.session)
    assert (event.author, event.content["text"]) == ("rest", "abcd")
    assert [chunk.delta for chunk in (await ours.read(thread, message_id)).chunks] == ["a", "", "b", "c", "d"]


async def test_aborting_without_an_object_keeps_the_text(pair: Pair) -> None:
    message_id = await pair.ours.streams.open(pair.thread_id, role="assistant")
    await pair.ours.streams.append(pair.thread_id, message_id, first_sequence=1, deltas=["half"])
    assert await pair.other.streams.abort(pair.thread_id, message_id) == 1
    with pytest.raises(ConflictError, match="interrupted"):
        await pair.ours.streams.complete(pair.thread_id, message_id)
    (event,) = await pair.ours.sessions.events(pair.session)
    assert event.content == {"text": "half", "message_id": message_id, "interrupted": True}


async def test_many_appenders_at_once_lose_and_double_nothing(pair: Pair) -> None:
    message_id = await pair.ours.streams.open(pair.thread_id, role="assistant")

    async def append(number: int) -> None:
        streams = (pair.ours, pair.other)[number % 2].streams
        first = 1
        while True:
            try:
                await streams.append(pair.thread_id, message_id, first_sequence=first, deltas=[f"<{number}>"])
                return
            except ConflictError:
                first = (await streams.read(pair.thread_id, message_id)).current_sequence + 1

    await asyncio.gather(*(append(number) for number in range(20)))
    assert await pair.other.streams.complete(pair.thread_id, message_id) == 20
    (event,) = await pair.ours.sessions.events(pair.session)
    assert sorted(event.content["text"].strip("<>").split("><"), key=int) == [str(number) for number in range(20)]


async def test_watching_tells_the_newest_of_every_message_and_its_end(pair: Pair) -> None:
    async with pair.ours.stream_message(pair.session, message_id="before") as before:
        await before.write("x")
        async with watching(pair.ours, pair.thread_id) as near, watching(pair.other, pair.thread_id) as far:
            for watch in (near, far):
                assert (await next_head(watch, "before")).status is StreamStatus.STREAMING
            async with pair.ours.stream_message(pair.session, message_id="later", author="bot", run_id="r") as later:
                for _ in range(100):
                    await later.write("y")
                for watch in (near, far):
                    head = await next_head(watch, "later", sequence=100)
                    assert (head.author, head.run_id, head.role) == ("bot", "r", "assistant")
            for watch in (near, far):
                assert (await next_head(watch, "later", status="completed")).current_sequence == 100
    assert [head.message_id for head in await pair.other.streams.heads([pair.thread_id])] == []


class _Disconnected:
    """An observer that ignores what the backend reports; the reading process writes no streams."""

    def on_stream_opened(self, live: LiveMessage) -> None: ...

    def on_stream_changed(self, thread_id: UUID) -> None: ...

    def on_stream_notification(self, payload: str) -> None: ...


async def test_a_short_stream_with_a_very_long_id_is_delivered(pair: Pair) -> None:
    """The sweep also finds a stream that began and ended between two sweeps without a notification."""
    long_id = "é" * 20_000
    async with watching(pair.other, pair.thread_id) as watch:
        async with pair.ours.stream_message(pair.session, message_id=long_id) as message:
            await message.write("x")
        assert (await next_head(watch, long_id, status="completed")).current_sequence == 1
        pair.other.streams.observe(_Disconnected())
        async with pair.ours.stream_message(pair.session, message_id="unheard") as message:
            await message.write("x")
        assert (await next_head(watch, "unheard", status="completed")).current_sequence == 1
        # A head is delivered once: the next one is that of a new stream.
        async with pair.ours.stream_message(pair.session, message_id="next"):
            pass
        assert (await anext(watch)).message_id == "next"
    assert await read_to_end(pair.other, pair.thread_id, long_id) == "x"


async def test_heads(pair: Pair) -> None:
    another = await pair.ours.sessions.create("app", "user")
    async with (
        pair.ours.stream_message(pair.session, message_id="a") as first,
        pair.other.stream_message(another, message_id="b", role="user"),
    ):
        await first.write("x")
        heads = await pair.ours.streams.heads([pair.thread_id, another.thread_id])
        assert {(head.message_id, head.role, head.current_sequence) for head in heads} == {
            ("a", "assistant", 1),
            ("b", "user", 0),
        }
    assert await pair.ours.streams.heads([pair.thread_id, another.thread_id]) == []


async def test_roles_have_their_kinds_and_a_run_its_messages(pair: Pair) -> None:
    for role in ("user", "system", "tool"):
        async with pair.ours.stream_message(pair.session, role=role) as message:
            await message.write(role)
    async with pair.ours.runs.start(pair.session, run_id="r") as run, run.message("assistant") as message:
        await message.write("hi")
    events = {event.event_type: event for event in await pair.ours.sessions.events(pair.session)}
    assert {"user_message", "system_message", "observe", "assistant_message"} <= set(events)
    assert events["assistant_message"].run_id == "r"
    assert [stored.role for stored in await pair.ours.sessions.messages(pair.session)] == [
        "user",
        "system",
        "tool",
        "assistant",
    ]


async def test_a_message_that_was_never_streamed_has_one_chunk(pair: Pair) -> None:
    event = await pair.ours.sessions.append(pair.session, author="user", kind="user_message", text="hello")
    page = await pair.other.streams.read(pair.thread_id, event.id)
    assert (page.chunks, page.status) == ([Chunk(1, "hello")], StreamStatus.COMPLETED)


async def test_bad_questions(pair: Pair) -> None:
    streams, thread = pair.ours.streams, pair.thread_id
    message_id = await streams.open(thread, role="assistant")
    for after in (-1, 2**63, "1", 1.5, None, True):
        with pytest.raises(InvalidInputError):
            await streams.read(thread, message_id, after=after)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError):
        await streams.append(thread, message_id, first_sequence=0, deltas=["x"])
    with pytest.raises(InvalidInputError):
        await streams.append(thread, message_id, first_sequence=1, deltas=[1])  # type: ignore[list-item]
    with pytest.raises(InvalidInputError):
        await streams.open(thread, role="unknown")
    with pytest.raises(NotFoundError):
        await streams.read(thread, "nothing")
    for act in (
        streams.append(thread, "nothing", first_sequence=1, deltas=["x"]),
        streams.complete(thread, "nothing"),
        streams.abort(thread, "nothing"),
        streams.open("00000000-0000-7000-8000-000000000000", role="user"),
        streams.open("no uuid", role="user"),
    ):
        with pytest.raises(NotFoundError):
            await act
    await streams.abort(thread, message_id)


async def test_a_deleted_thread_takes_its_streams_along(pair: Pair) -> None:
    async with pair.ours.stream_message(pair.session, message_id="done") as message:
        await message.write("x")
    assert (await pair.ours.streams.read(pair.thread_id, "done")).chunks
    with pytest.raises(NotFoundError):
        async with pair.ours.stream_message(pair.session, message_id="open") as message:
            await message.write("x")
            await pair.other.sessions.delete(pair.session)
    for message_id in ("done", "open"):
        with pytest.raises(NotFoundError):
            await pair.ours.streams.read(pair.thread_id, message_id)
