"""Ends of streams at awkward moments: nothing is lost, and nobody else is held up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cognizes.engine import DatabaseUnavailableError, Engine
from cognizes.engine.errors import DatabaseError
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.streams.delta_stream import Segment, StreamKey, Write
from tests.integration.streams.conftest import Pair, until


async def _reaches(pair: Pair, sequence: int) -> bool:
    return (await pair.other.streams.read(pair.thread_id, "m")).current_sequence >= sequence


async def test_what_is_flushed_while_somebody_else_ends_the_message_is_kept(
    pair: Pair, backend: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend:
        pytest.skip("Redis knows nothing of the transaction that stores the message")
    read = pair.other.streams._ending
    message = await pair.ours.streams.write_message(pair.session, message_id="m", run_id="r").open()
    await message.write("one ")
    await until(lambda: _reaches(pair, 1))

    async def and_then_it_grows(*arguments: Any) -> Any:
        ending = await read(*arguments)
        if ending.final_sequence == 1:
            await message.write("two")
            await until(lambda: _reaches(pair, 2))
        return ending

    monkeypatch.setattr(pair.other.streams, "_ending", and_then_it_grows)
    await pair.other.streams.interrupt_run(thread_uuid(pair.thread_id), "r")
    (event,) = await pair.ours.sessions.events(pair.session)
    assert (event.content["text"], event.content["interrupted"]) == ("one two", True)
    assert await message.abort() == 2


async def test_what_was_flushed_after_a_crash_hides_nothing_that_was_written_again(pair: Pair) -> None:
    """The flush that finds its predecessor missing leaves a range within the one that is written from the start."""
    key = StreamKey(thread_uuid(pair.thread_id), "m")
    await pair.ours.streams.open(pair.thread_id, message_id="m")
    deltas = ["a", "b", "c", "d", "e"]
    assert await pair.ours.streams.backend.write([Write(key, "app", Segment.of(3, deltas[2:4]))]) == {key}
    assert await pair.ours.streams.backend.write([Write(key, "app", Segment.of(1, deltas))]) == set()
    page = await pair.other.streams.read(pair.thread_id, "m")
    assert [chunk.delta for chunk in page.chunks] == deltas
    assert await pair.other.streams.abort(pair.thread_id, "m") == 5
    (event,) = await pair.ours.sessions.events(pair.session)
    assert event.content["text"] == "abcde"


async def test_a_message_that_could_not_be_completed_is_flushed_all_the_same(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is being ended it is not; then its producer writes on, or dies."""
    streams = pair.ours.streams

    async def fails(*_: Any, **__: Any) -> Any:
        while streams.flusher._dirty:
            await asyncio.sleep(0)
        raise DatabaseUnavailableError("PostgreSQL is away")

    async with pair.ours.stream_message(pair.session, message_id="m") as message:
        with monkeypatch.context() as patched:
            patched.setattr(streams._rows, "end", fails)
            await message.write("half")
            with pytest.raises(DatabaseUnavailableError):
                await message.complete()
        await until(lambda: _reaches(pair, 1))


async def test_leases_are_kept_while_others_messages_cannot_be_ended(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine.open(database_url, stream_lease_seconds=3) as engine:
        session = await engine.sessions.create("app", "user")
        extended: list[int] = []
        extend, is_stuck = engine.streams._rows.extend, asyncio.Event()

        async def counted(*arguments: Any) -> Any:
            if is_stuck.is_set():
                extended.append(1)
            return await extend(*arguments)

        async def never_ends(**_: Any) -> int:
            is_stuck.set()
            await asyncio.Event().wait()
            return 0

        monkeypatch.setattr(engine.streams._rows, "extend", counted)
        monkeypatch.setattr(engine.streams, "interrupt_silent", never_ends)
        async with engine.stream_message(session) as message:
            await message.write("alive")
            await until(lambda: _is(len(extended) >= 2))


async def test_an_abandoned_message_that_cannot_be_stored_stands_in_nobodys_way(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    streams = pair.ours.streams

    async def fails(*_: Any, **__: Any) -> Any:
        raise DatabaseError("a statement took longer than COGNIZES_STATEMENT_TIMEOUT allows")

    async def silent() -> int:
        ended.append(1)
        return 0

    writer = await streams.write_message(pair.session, message_id="m").open()
    await writer.write("half")
    writer.abandon()
    with monkeypatch.context() as patched:
        patched.setattr(streams._rows, "end", fails)
        patched.setattr(streams, "interrupt_silent", silent)
        await streams.keep()
    assert ended
    assert await writer.abort() == 1


async def _is(value: bool) -> bool:
    return value
