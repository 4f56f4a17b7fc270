"""Ends of streams at awkward moments: nothing is lost, and no other stream is delayed."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from redis.asyncio import Redis

from cognizes.engine import ConflictError, DatabaseUnavailableError, Engine, LeaseLostError, StreamUnavailableError
from cognizes.engine.errors import DatabaseError
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.pulse.sessions import RunFence, fenced_by
from cognizes.engine.streams.backend import RefusedWrites, SegmentWrite
from cognizes.engine.streams.chunks import Segment, StreamKey, StreamStatus
from tests.engine_parts import database_of
from tests.integration.streams.conftest import TIMEOUT, Pair, next_head, until, watching
from tests.integration.streams.redis_server import RedisServer


async def _reaches(pair: Pair, sequence: int) -> bool:
    return (await pair.other.streams.read(pair.thread_id, "m")).current_sequence >= sequence


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
async def test_chunks_flushed_while_another_process_ends_the_message_are_kept(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL looks at the chunks again; a stream in Redis is frozen: see the next test."""
    read = pair.other.streams.endings.read_ending
    message = await pair.ours.streams.write_message(pair.session, message_id="m", run_id="r").open()
    await message.write("one ")
    await until(lambda: _reaches(pair, 1))

    async def and_then_it_grows(*arguments: Any) -> Any:
        ending = await read(*arguments)
        if ending.final_sequence == 1:
            await message.write("two")
            await until(lambda: _reaches(pair, 2))
        return ending

    monkeypatch.setattr(pair.other.streams.endings, "read_ending", and_then_it_grows)
    await pair.other.streams.interrupt_run(thread_uuid(pair.thread_id), "r")
    (event,) = await pair.ours.sessions.events(pair.session)
    assert (event.content["text"], event.content["interrupted"]) == ("one two", True)
    assert await message.abort() == 2


@pytest.mark.parametrize("backend", ["redis"], indirect=True)
@pytest.mark.parametrize("outlives", [False, True])
async def test_nothing_reaches_a_stream_in_redis_while_it_is_being_ended(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, outlives: bool
) -> None:
    """So the stored text is all that readers could read. A producer that is alive after all continues."""
    ours, endings = pair.ours.streams, pair.other.streams.endings
    refused = asyncio.Event()
    write, read = ours.backend.write, endings.read_ending
    message = await ours.write_message(pair.session, message_id="m", run_id="r").open()
    await message.write("one ")
    await until(lambda: _reaches(pair, 1))

    async def noting(writes: Any) -> RefusedWrites:
        answer = await write(writes)
        if answer.frozen:
            refused.set()
        return answer

    async def and_then_it_grows(*arguments: Any) -> Any:
        ending = await read(*arguments)
        await message.write("two")
        await asyncio.wait_for(refused.wait(), TIMEOUT)
        return ending

    monkeypatch.setattr(ours.backend, "write", noting)
    monkeypatch.setattr(endings, "read_ending", and_then_it_grows)
    if outlives:
        row = await pair.other.streams.rows.find(StreamKey(thread_uuid(pair.thread_id), "m"))
        assert row is not None
        await endings.end_expired(row)  # its lease holds
        await until(lambda: _reaches(pair, 2))
        assert await message.complete() == 2
        return
    await pair.other.streams.interrupt_run(thread_uuid(pair.thread_id), "r")
    (event,) = await pair.ours.sessions.events(pair.session)
    assert (event.content["text"], event.content["interrupted"]) == ("one ", True)
    assert list((await ours.backend.heads([message.live.row.key])).values()) == [1]
    assert await message.abort() == 1


async def test_a_message_whose_id_an_event_has_by_now_is_kept(pair: Pair) -> None:
    """The event says nothing, so it is not the message."""
    async with pair.ours.stream_message(pair.session, message_id="m") as message:
        await message.write("all of it")
        await pair.other.sessions.append(pair.session, author="bot", kind="work_plan", event_id="m")
        assert await message.complete() == 1
    plan, said = await pair.ours.sessions.events(pair.session)
    assert (plan.id, plan.event_type) == ("m", "work_plan")
    assert (said.event_type, said.content) == ("assistant_message", {"text": "all of it", "message_id": "m"})
    (stored,) = await pair.other.sessions.messages(pair.session)
    assert (stored.id, stored.content) == ("m", "all of it")
    page = await pair.other.streams.read(pair.thread_id, "m")
    assert (page.status, [chunk.delta for chunk in page.chunks]) == (StreamStatus.COMPLETED, ["all of it"])


async def test_closing_ends_all_messages_at_once(
    database_url: str, backend: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits here until all others are being ended."""
    async with Engine.open(database_url, stream_lease_seconds=120, **backend) as engine:
        session = await engine.sessions.create("app", "user")
        for number in range(5):
            message = await engine.stream_message(session, message_id=f"m{number}").open()
            await message.write("half")
        end, under_way, all_under_way = engine.streams.rows.end, list[Any](), asyncio.Event()

        async def together(row: Any, *arguments: Any, **named: Any) -> Any:
            under_way.append(row)
            if len(under_way) == 5:
                all_under_way.set()
            await all_under_way.wait()
            return await end(row, *arguments, **named)

        monkeypatch.setattr(engine.streams.rows, "end", together)
        engine.streams.closing_seconds = 3600.0
    async with Engine.open(database_url) as again:
        stored = await again.sessions.events(session)
        assert sorted(event.id for event in stored) == [f"m{number}" for number in range(5)]
        assert all(event.content["interrupted"] for event in stored)


async def test_closing_waits_for_no_message_longer_than_its_limit(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Engine.open(database_url, stream_lease_seconds=120) as engine:
        session = await engine.sessions.create("app", "user")
        for number in range(3):
            await engine.stream_message(session, message_id=f"m{number}").open()

        async def never_ends(*_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr(engine.streams.rows, "end", never_ends)
        engine.streams.closing_seconds = 0.01
    assert "3 messages could not be ended in time" in caplog.text


async def test_a_slow_response_does_not_expire_a_producer(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may have stood still, and the producer with it."""
    leases, rows = pair.other.streams.leases, pair.other.streams.rows
    await pair.ours.streams.open(pair.thread_id, message_id="m")
    await pair.ours.streams.append(pair.thread_id, "m", first_sequence=1, deltas=["half"])
    await database_of(pair.ours).pool.execute(
        "UPDATE message_streams SET lease_expires_at = now() - interval '1 second'"
    )
    with monkeypatch.context() as patched:
        list_expired = rows.list_expired

        async def slowly(**named: Any) -> Any:
            silent = await list_expired(**named)
            await asyncio.sleep(0.02)
            return silent

        patched.setattr(rows, "list_expired", slowly)
        patched.setattr(leases, "seconds", 0.03)
        assert await leases.interrupt_expired(grace=0) == 0
    assert [head.message_id for head in await pair.other.streams.heads([pair.thread_id])] == ["m"]

    async def is_ended() -> bool:
        await leases.interrupt_expired(grace=0)
        return not await pair.other.streams.heads([pair.thread_id])

    await until(is_ended)


async def test_what_was_flushed_after_a_crash_hides_nothing_that_was_written_again(pair: Pair) -> None:
    """The flush that finds its predecessor missing leaves a range within the one that is written from the start."""
    key = StreamKey(thread_uuid(pair.thread_id), "m")
    await pair.ours.streams.open(pair.thread_id, message_id="m")
    deltas = ["a", "b", "c", "d", "e"]
    backend = pair.ours.streams.backend
    assert (await backend.write([SegmentWrite(key, None, "app", Segment.of(3, deltas[2:4]))])).incomplete == {key}
    assert await backend.write([SegmentWrite(key, None, "app", Segment.of(1, deltas))]) == RefusedWrites()
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
        while not streams.flusher.is_idle:
            await asyncio.sleep(0)
        raise DatabaseUnavailableError("PostgreSQL is away")

    async with pair.ours.stream_message(pair.session, message_id="m") as message:
        with monkeypatch.context() as patched:
            patched.setattr(streams.rows, "end", fails)
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
        extend, is_stuck = engine.streams.rows.extend_leases, asyncio.Event()

        async def counted(*arguments: Any) -> Any:
            if is_stuck.is_set():
                extended.append(1)
            return await extend(*arguments)

        async def never_ends(**_: Any) -> int:
            is_stuck.set()
            await asyncio.Event().wait()
            return 0

        monkeypatch.setattr(engine.streams.rows, "extend_leases", counted)
        monkeypatch.setattr(engine.streams.leases, "interrupt_expired", never_ends)
        async with engine.stream_message(session) as message:
            await message.write("alive")
            await until(lambda: _is(len(extended) >= 2))


async def test_an_abandoned_message_that_cannot_be_stored_does_not_block_others(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = pair.ours.streams
    end = streams.rows.end

    async def fails_for_the_first(row: Any, *arguments: Any, **options: Any) -> Any:
        if row.key.message_id == "first":
            raise DatabaseError("a statement took longer than COGNIZES_STATEMENT_TIMEOUT allows")
        return await end(row, *arguments, **options)

    writers = [await streams.write_message(pair.session, message_id=name).open() for name in ("first", "second")]
    for writer in writers:
        await writer.write("half")
        writer.abandon()
    with monkeypatch.context() as patched:
        patched.setattr(streams.rows, "end", fails_for_the_first)
        await streams.leases.end_unowned()
    second = await streams.rows.find(StreamKey(thread_uuid(pair.thread_id), "second"))
    assert second is not None
    assert second.status is StreamStatus.INTERRUPTED
    assert await writers[0].abort() == 1


async def _is(value: bool) -> bool:
    return value


@pytest.mark.parametrize("backend", ["redis"], indirect=True)
async def test_a_producer_without_a_lease_shows_nothing_that_is_not_stored_when_redis_is_emptied(
    pair: Pair, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL is away for the producer, and Redis loses the chunks and the freeze while another process ends it."""
    ours, other = pair.ours.streams, pair.other.streams
    message = await ours.write_message(pair.session, message_id="m").open()
    await message.write("one ")
    await until(lambda: _reaches(pair, 1))
    live = message.live

    async def away(*_: Any) -> Any:
        raise DatabaseUnavailableError("PostgreSQL is away")

    monkeypatch.setattr(ours.rows, "extend_leases", away)
    await database_of(pair.ours).pool.execute(
        "UPDATE message_streams SET lease_expires_at = now() - interval '1 second'"
    )
    live.leased_until = asyncio.get_running_loop().time() - 1  # what time does while nothing extends it
    row = await other.rows.find(live.row.key)
    assert row is not None
    end, shown = other.rows.end, list[str]()

    async def and_redis_is_emptied(*arguments: Any, **named: Any) -> Any:
        async with Redis.from_url(redis_server.url) as redis:
            await redis.flushall()
        await message.write("two")

        async def is_shown_or_held_back() -> bool:
            shown[:] = [chunk.delta for chunk in (await pair.other.streams.read(pair.thread_id, "m")).chunks]
            return bool(shown) or live.awaits_lease

        await until(is_shown_or_held_back)
        return await end(*arguments, **named)

    monkeypatch.setattr(other.rows, "end", and_redis_is_emptied)
    await other.endings.end_expired(row)
    (event,) = await pair.ours.sessions.events(pair.session)
    assert event.content["text"].startswith("".join(shown))
    assert event.content["text"] == "one "
    monkeypatch.undo()
    await ours.leases.extend()
    with pytest.raises(ConflictError):
        await message.write("three")


@pytest.mark.parametrize("backend", ["redis"], indirect=True)
async def test_a_producer_that_gets_its_lease_back_fills_an_emptied_redis(
    pair: Pair, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = pair.ours.streams
    async with pair.ours.stream_message(pair.session, message_id="m") as message:
        await message.write("one ")
        await until(lambda: _reaches(pair, 1))
        live = message.live
        live.leased_until = asyncio.get_running_loop().time() - 1
        async with Redis.from_url(redis_server.url) as redis:
            await redis.flushall()
        await message.write("two")
        await until(lambda: _is(live.awaits_lease))
        await ours.leases.extend()
        await until(lambda: _reaches(pair, 2))
    (event,) = await pair.ours.sessions.events(pair.session)
    assert event.content["text"] == "one two"


@pytest.mark.parametrize("backend", ["redis"], indirect=True)
async def test_what_is_written_while_postgresql_is_away_is_stored_by_the_process_that_ends_the_stream(
    pair: Pair, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt to store it fails, and Redis loses the freeze before the second one."""
    message = await pair.ours.streams.write_message(pair.session, message_id="m", run_id="r").open()
    await message.write("one ")
    await until(lambda: _reaches(pair, 1))
    fetch_row = database_of(pair.other).fetch_row
    failures = [DatabaseUnavailableError("PostgreSQL is away")]

    async def fails_once(query: str, *arguments: Any) -> Any:
        if query == "end_stream" and failures:
            async with Redis.from_url(redis_server.url) as redis:
                await redis.flushall()
            await message.write("two")
            await until(lambda: _reaches(pair, 2))
            raise failures.pop()
        return await fetch_row(query, *arguments)

    monkeypatch.setattr(database_of(pair.other), "fetch_row", fails_once)
    await pair.other.streams.interrupt_run(thread_uuid(pair.thread_id), "r")
    (event,) = await pair.ours.sessions.events(pair.session)
    assert event.content["text"] == "one two"


async def test_a_run_that_its_own_process_interrupts_keeps_what_was_not_flushed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_: Any) -> Any:
        raise StreamUnavailableError("the backend is away")

    message = await pair.ours.streams.write_message(pair.session, message_id="m", run_id="r").open()
    monkeypatch.setattr(pair.ours.streams.backend, "write", away)
    await message.write("shown to readers of this process")
    await pair.ours.streams.interrupt_run(thread_uuid(pair.thread_id), "r")
    (event,) = await pair.ours.sessions.events(pair.session)
    assert (event.content["text"], event.content["interrupted"]) == ("shown to readers of this process", True)


async def test_a_message_whose_end_takes_long_is_flushed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should its process die before PostgreSQL answers, another one stores all of it."""
    end, may_end = pair.ours.streams.rows.end, asyncio.Event()

    async def slowly(*arguments: Any, **named: Any) -> Any:
        await may_end.wait()
        return await end(*arguments, **named)

    monkeypatch.setattr(pair.ours.streams.rows, "end", slowly)
    message = await pair.ours.streams.write_message(pair.session, message_id="m").open()
    await message.write("one ")
    await until(lambda: _reaches(pair, 1))
    await message.write("two")
    completing = asyncio.create_task(message.complete())
    await until(lambda: _reaches(pair, 2))
    may_end.set()
    assert await completing == 2


async def test_closing_flushes_what_could_not_be_stored(
    pair: Pair, database_url: str, backend: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL stays away until the engine is closed; the process that ends the message finds all of it."""

    async def never_ends(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    async with Engine.open(database_url, stream_lease_seconds=120, **backend) as engine:
        message = await engine.stream_message(pair.session, message_id="m").open()
        monkeypatch.setattr(engine.streams.rows, "end", never_ends)
        engine.streams.closing_seconds = 0.01
        await message.write("all of it")
    page = await pair.other.streams.read(pair.thread_id, "m")
    assert "".join(chunk.delta for chunk in page.chunks) == "all of it"


async def test_a_lease_that_cannot_be_extended_does_not_stop_the_others(
    pair: Pair, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    """PostgreSQL refuses the row of one stream, and with it the statement for all."""
    messages = [await pair.ours.stream_message(pair.session, message_id=name).open() for name in ("a", "bad", "c")]
    await pool.execute(
        """CREATE FUNCTION refuse_bad() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN RAISE EXCEPTION 'this row cannot be updated'; END $$;
           CREATE TRIGGER refuse_bad BEFORE UPDATE ON message_streams FOR EACH ROW
           WHEN (NEW.message_id = 'bad' AND NEW.status = 'streaming') EXECUTE FUNCTION refuse_bad()"""
    )
    await pool.execute("UPDATE message_streams SET lease_expires_at = now() + '9 s' WHERE message_id <> 'bad'")
    before = {message.message_id: message.live.leased_until for message in messages}
    await pair.ours.streams.leases.extend()
    after = {message.message_id: message.live.leased_until for message in messages}
    assert [name for name in after if after[name] > before[name]] == ["a", "c"]
    assert "'bad' is not extended" in caplog.text
    extended = "SELECT count(*) FROM message_streams WHERE message_id <> 'bad' AND lease_expires_at > now() + '60 s'"
    assert await pool.fetchval(extended) == 2
    for message in messages:
        await message.write("x")
        assert await message.complete() == 1


async def test_a_process_that_starts_after_a_failover_ends_no_living_stream(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases expired while PostgreSQL was away. A promoted standby has run for long, so its start time says nothing."""
    async with Engine.open(database_url, stream_lease_seconds=600) as writing:
        session = await writing.sessions.create("app", "user")
        async with writing.stream_message(session, message_id="m") as message:
            await message.write("before")
            await until(lambda: _has_run_for_long(writing))
            expire = "UPDATE message_streams SET lease_expires_at = now() - interval '5 s' WHERE message_id = 'm'"
            assert await database_of(writing).pool.execute(expire) == "UPDATE 1"
            async with Engine.open(database_url, stream_lease_seconds=600) as starting:
                # So that the time since the start of the server does not protect the stream.
                monkeypatch.setattr(starting.streams.leases, "seconds", 1.0)
                await starting.streams.leases.end_unowned()
                (head,) = await starting.streams.heads([session.thread_id])
                assert head.status == "streaming"
            await message.write(" and after")
        (event,) = await writing.sessions.events(session)
        assert event.content["text"] == "before and after"


async def _has_run_for_long(engine: Engine) -> bool:
    found: bool = await database_of(engine).pool.fetchval(
        "SELECT pg_postmaster_start_time() < now() - interval '2 s' AND EXISTS (SELECT FROM message_chunks)"
    )
    return found


async def test_an_id_is_free_again_if_its_stream_was_interrupted_before_its_first_chunk(pair: Pair) -> None:
    """Its process was killed after it had opened the stream. A subscriber of the first stream receives the second."""
    key = StreamKey(thread_uuid(pair.thread_id), "m")
    await pair.ours.streams.rows.open(
        key, role="assistant", author="assistant", run_id="r", invocation_id="", owner=uuid4()
    )
    async with watching(pair.other, pair.thread_id) as watch:
        await next_head(watch, "m", status="streaming")
        with pytest.raises(ConflictError):
            await pair.ours.stream_message(pair.session, message_id="m").open()
        await pair.ours.streams.interrupt_run(key.thread_id, "r")
        await next_head(watch, "m", status="interrupted")
        assert (await pair.other.streams.read(pair.thread_id, "m")).status is StreamStatus.INTERRUPTED
        async with pair.ours.stream_message(pair.session, message_id="m", run_id="r") as message:
            await message.write("at last")
            await next_head(watch, "m", status="streaming", sequence=1)
            await until(lambda: _reaches(pair, 1))
        await next_head(watch, "m", status="completed", sequence=1)
    page = await pair.other.streams.read(pair.thread_id, "m")
    assert (page.status, [chunk.delta for chunk in page.chunks]) == (StreamStatus.COMPLETED, ["at last"])
    (event,) = await pair.ours.sessions.events(pair.session)
    assert (event.id, event.content["text"]) == ("m", "at last")


async def test_the_former_owner_of_a_stream_that_was_opened_again_cannot_end_it(pair: Pair) -> None:
    former = await pair.ours.stream_message(pair.session, message_id="m", run_id="r").open()
    await pair.other.streams.interrupt_run(thread_uuid(pair.thread_id), "r")
    async with pair.other.stream_message(pair.session, message_id="m", run_id="r") as message:
        await message.write("new")
        await former.write("old")
        with pytest.raises(ConflictError, match="another producer"):
            await former.complete()
        # Otherwise its deltas would be flushed a quarter of a second later.
        assert former.live.is_lost
    (event,) = await pair.ours.sessions.events(pair.session)
    assert event.content["text"] == "new"


async def test_the_former_owner_of_a_stream_that_was_opened_again_writes_no_chunk_into_it(pair: Pair) -> None:
    """Its lease has not expired, and no extension has reported the loss: the backend refuses its chunks."""
    former = await pair.ours.stream_message(pair.session, message_id="m", run_id="r").open()
    await pair.other.streams.interrupt_run(thread_uuid(pair.thread_id), "r")
    async with pair.other.stream_message(pair.session, message_id="m", run_id="r") as message:
        for delta in ("OLD1 ", "OLD2 ", "OLD3 "):
            await former.write(delta)
        await until(lambda: _is(former.live.is_lost))
        with pytest.raises(ConflictError, match="no longer ours"):
            await former.write("OLD4 ")
        await message.write("new ")
        await until(lambda: _is(message.live.flushed == 1))
        (segments,) = (await pair.ours.streams.backend.read([(message.live.row.key, 0)], limit=10)).values()
        assert [segment.text for segment in segments] == ["new "]
    (event,) = await pair.ours.sessions.events(pair.session)
    assert event.content["text"] == "new "


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
async def test_a_stream_whose_first_chunk_is_being_written_is_not_opened_again(pair: Pair, pool: asyncpg.Pool) -> None:
    """The first chunk of its owner is committed after the stream was interrupted without one."""
    former = await pair.ours.stream_message(pair.session, message_id="m", run_id="r").open()
    key, owner = former.live.row.key, former.live.row.owner

    async def waits_for_chunks() -> bool:
        query = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)"
        return bool(opening.done() or await pool.fetchval(query))

    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(
            "SELECT write_chunks(ARRAY[$1::uuid], ARRAY['m'], ARRAY[$2::uuid], ARRAY['app'], ARRAY[1], ARRAY[1], "
            "ARRAY['old'], ARRAY['\\x03'::bytea], ARRAY[]::text[])",
            key.thread_id,
            owner,
        )
        await pair.other.streams.interrupt_run(key.thread_id, "r")
        opening = asyncio.create_task(pair.other.stream_message(pair.session, message_id="m").open())
        await until(waits_for_chunks)
    with pytest.raises(ConflictError, match="exists"):
        await opening


async def test_what_an_attempt_that_lost_its_run_wrote_is_flushed(pair: Pair) -> None:
    """It cannot complete its message, but it owns the stream: the process that ends it finds all of the text."""
    async with pair.ours.runs.start(pair.session) as run:
        fence = RunFence(thread_uuid(pair.thread_id), run.id, 1)
    message = await pair.ours.stream_message(pair.session, message_id="m", run_id=run.id).open()
    await message.write("shown to readers of this process")
    with fenced_by(fence), pytest.raises(LeaseLostError):
        await message.complete()
    await until(lambda: _reaches(pair, 1))


async def test_an_id_whose_stream_left_text_stays_taken(pair: Pair) -> None:
    message = await pair.ours.stream_message(pair.session, message_id="m", run_id="r").open()
    await message.write("half")
    await until(lambda: _reaches(pair, 1))
    await pair.other.streams.interrupt_run(thread_uuid(pair.thread_id), "r")
    with pytest.raises(ConflictError, match="exists"):
        await pair.other.stream_message(pair.session, message_id="m", run_id="r").open()
    (event,) = await pair.ours.sessions.events(pair.session)
    assert (event.content["text"], event.content["interrupted"]) == ("half", True)
