"""Producers that die, backends that lose everything or go away, messages of 10 MB."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from cognizes.engine import (
    ConflictError,
    DatabaseUnavailableError,
    Engine,
    LimitExceededError,
    SetupError,
    StreamUnavailableError,
)
from cognizes.engine.api.main import create_app
from cognizes.engine.streams.chunks import StreamStatus
from cognizes.engine.streams.message_streams import choose_backend
from cognizes.engine.streams.writer import MessageWriter
from tests.engine_parts import database_of
from tests.integration.streams.conftest import TIMEOUT, Pair, next_head, read_to_end, until, watching
from tests.integration.streams.redis_server import RedisServer

_PRODUCER = """
import asyncio, sys
from cognizes.engine import Engine

async def main(url, thread_id, settings):
    async with Engine.open(url, stream_lease_seconds=120, **settings) as engine:
        async with engine.stream_message(thread_id, message_id="m", author="bot", run_id="r") as message:
            for number in range(50):
                await message.write(f"word{number} ")
            print("written", flush=True)
            await asyncio.Event().wait()

asyncio.run(main(sys.argv[1], sys.argv[2], {"redis_url": sys.argv[3]} if len(sys.argv) > 3 else {}))
"""


async def test_kill_9_of_the_producer_leaves_an_interrupted_message(
    pair: Pair, database_url: str, backend: dict[str, Any]
) -> None:
    arguments = [database_url, pair.thread_id, *backend.values()]
    process = subprocess.Popen([sys.executable, "-c", _PRODUCER, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with (
            Engine.open(database_url, stream_lease_seconds=6, **backend) as survivor,
            watching(survivor, pair.thread_id) as watch,
        ):
            await asyncio.to_thread(process.stdout.readline)
            await next_head(watch, "m", sequence=50)
            process.send_signal(signal.SIGKILL)
            process.wait()
            # The time of its lease passes. Without any request another process notices, and notifies subscribers.
            await _expire(pair)
            head = await next_head(watch, "m", status="interrupted")
        assert (head.current_sequence, head.author, head.run_id) == (50, "bot", "r")
    finally:
        process.kill()
        process.communicate()
    (event,) = await pair.ours.sessions.events(pair.session)
    text = "".join(f"word{number} " for number in range(50))
    assert event.content == {"text": text, "message_id": "m", "interrupted": True}
    assert (event.author, event.run_id, event.event_type) == ("bot", "r", "assistant_message")
    assert await read_to_end(pair.ours, pair.thread_id, "m", after=48) == "word48 word49 "


async def _expire(pair: Pair) -> None:
    await database_of(pair.ours).pool.execute(
        "UPDATE message_streams SET lease_expires_at = now() - interval '1 second' WHERE status = 'streaming'"
    )


async def test_a_producer_that_was_given_up_gets_an_error_and_cannot_write(pair: Pair) -> None:
    async with pair.ours.stream_message(pair.session, message_id="m") as message:
        await message.write("half")
        await until(lambda: _reaches(pair, 1))
        await _expire(pair)
        await until(lambda: _interrupt(pair))
        with pytest.raises(ConflictError, match="interrupted"):
            await message.complete()
    (event,) = await pair.ours.sessions.events(pair.session)
    assert event.content["interrupted"] is True


async def _interrupt(pair: Pair) -> bool:
    """Its living producer may extend the lease concurrently."""
    await _expire(pair)
    return await pair.other.streams.leases.interrupt_expired(grace=0) > 0 or not await pair.other.streams.heads(
        [pair.thread_id]
    )


async def _reaches(pair: Pair, sequence: int) -> bool:
    return (await pair.other.streams.read(pair.thread_id, "m", limit=1)).current_sequence >= sequence


async def test_a_writer_learns_from_its_lease_that_it_was_given_up(pair: Pair) -> None:
    async with pair.ours.stream_message(pair.session, message_id="m") as message:
        await message.write("half")
        await until(lambda: _reaches(pair, 1))
        await until(lambda: _interrupt(pair))
        await pair.ours.streams.leases.extend()
        with pytest.raises(ConflictError, match="no longer ours"):
            await message.write("more")
        assert await message.abort() == 1


async def test_a_message_stored_by_another_writer_counts_as_completed(pair: Pair) -> None:
    """Its producer died between storing it and ending the stream."""
    message_id = await pair.ours.streams.open(pair.thread_id, message_id="m", role="assistant")
    await pair.ours.streams.append(pair.thread_id, message_id, first_sequence=1, deltas=["so ", "far"])
    await pair.ours.sessions.append(
        pair.session, author="bot", kind="assistant_message", text="so far, so good", event_id="m"
    )
    await _expire(pair)
    await until(lambda: _interrupt(pair))
    page = await pair.other.streams.read(pair.thread_id, "m")
    assert page.status is StreamStatus.COMPLETED
    assert [chunk.delta for chunk in page.chunks] == ["so ", "far", ", so good"]
    assert len(await pair.ours.sessions.events(pair.session)) == 1


async def test_a_silent_producer_over_rest_is_given_up(pair: Pair) -> None:
    await pair.ours.streams.open(pair.thread_id, message_id="m", role="assistant")
    await pair.ours.streams.append(pair.thread_id, "m", first_sequence=1, deltas=["half"])
    async with watching(pair.other, pair.thread_id) as watch:
        await until(lambda: _interrupt(pair))
        assert (await next_head(watch, "m", status="interrupted")).current_sequence == 1
    with pytest.raises(ConflictError):
        await pair.ours.streams.append(pair.thread_id, "m", first_sequence=2, deltas=["late"])


async def _forget(pair: Pair, backend: dict[str, Any]) -> None:
    """What a crash of PostgreSQL does to an UNLOGGED table, and a restart does to a Redis without a disk."""
    if backend:
        async with Redis.from_url(backend["redis_url"]) as redis:
            await redis.flushall()
    else:
        await database_of(pair.ours).pool.execute("TRUNCATE message_chunks")


async def test_a_living_stream_is_written_again_when_the_backend_lost_it(pair: Pair, backend: dict[str, Any]) -> None:
    async with pair.ours.stream_message(pair.session, message_id="m") as message:
        await message.write("one ")
        await until(lambda: _reaches(pair, 1))
        await _forget(pair, backend)
        # The next flush finds what came before missing.
        await message.write("two ")
        assert [chunk.delta for chunk in await until(lambda: _first_chunks(pair, 2))] == ["one ", "two "]
        # Others may read it before its own process has heard that it was taken in.
        await until(lambda: _has_flushed(message, 2))
        await _forget(pair, backend)
        # And one that says nothing more finds it when it extends its lease.
        await pair.ours.streams.leases.extend()
        assert [chunk.delta for chunk in await until(lambda: _first_chunks(pair, 2))] == ["one ", "two "]
    assert await read_to_end(pair.other, pair.thread_id, "m") == "one two "


async def _has_flushed(message: MessageWriter, sequence: int) -> bool:
    return message.live.flushed >= sequence


async def _first_chunks(pair: Pair, count: int) -> list[Any]:
    page = await pair.other.streams.read(pair.thread_id, "m")
    return page.chunks if len(page.chunks) == count else []


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
async def test_a_dead_producer_whose_beginning_is_lost_leaves_what_there_is(pair: Pair) -> None:
    await pair.ours.streams.open(pair.thread_id, message_id="m", role="assistant")
    await pair.ours.streams.append(pair.thread_id, "m", first_sequence=1, deltas=["lost "])
    await pair.ours.streams.append(pair.thread_id, "m", first_sequence=2, deltas=["kept ", "too"])
    await database_of(pair.ours).pool.execute("DELETE FROM message_chunks WHERE sequence = 1")
    await until(lambda: _interrupt(pair))
    page = await pair.other.streams.read(pair.thread_id, "m")
    assert [chunk.delta for chunk in page.chunks] == ["", "kept ", "too"]
    (event,) = await pair.ours.sessions.events(pair.session)
    assert event.content["text"] == "kept too"


async def test_a_message_of_ten_megabytes(pair: Pair) -> None:
    delta = "0123456789abcdef" * 16
    count = 10 * 1024 * 1024 // len(delta)
    async with pair.ours.stream_message(pair.session, message_id="m") as message:
        following = asyncio.create_task(read_to_end(pair.other, pair.thread_id, "m"))
        for _ in range(count):
            await message.write(delta)
    assert await following == delta * count
    (stored,) = await pair.ours.sessions.messages(pair.session)
    assert stored.content == delta * count
    page = await pair.other.streams.read(pair.thread_id, "m", after=count - 3)
    assert [chunk.sequence for chunk in page.chunks] == [count - 2, count - 1, count]


async def test_a_message_larger_than_an_event_is_refused_while_it_is_written(database_url: str) -> None:
    async with Engine.open(database_url, max_event_bytes=8192, stream_lease_seconds=120) as engine:
        session = await engine.sessions.create("app", "user")
        with pytest.raises(LimitExceededError):
            async with engine.stream_message(session) as message:
                while True:
                    await message.write('"\n' * 100)
        (event,) = await engine.sessions.events(session)
        assert event.content["interrupted"] is True
        assert len(event.content["text"]) >= 1000


async def test_closing_the_engine_ends_what_is_being_written(database_url: str, backend: dict[str, Any]) -> None:
    async with Engine.open(database_url, stream_lease_seconds=120, **backend) as engine:
        session = await engine.sessions.create("app", "user")
        message = await engine.stream_message(session, message_id="m").open()
        await message.write("half")
    async with Engine.open(database_url, **backend) as again:
        (event,) = await again.sessions.events(session)
        assert event.content == {"text": "half", "message_id": "m", "interrupted": True}
        assert await again.streams.heads([session.thread_id]) == []


async def test_a_message_that_could_not_be_ended_is_ended_later(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL was away when its block ended. All of its text is kept, flushed or not."""
    rows = pair.ours.streams.rows

    async def is_away(*_: Any, **__: Any) -> Any:
        raise DatabaseUnavailableError("PostgreSQL is away")

    with pytest.raises(DatabaseUnavailableError):
        async with pair.ours.stream_message(pair.session, message_id="m") as message:
            await message.write("all of it")
            monkeypatch.setattr(rows, "end", is_away)
    monkeypatch.undo()
    await pair.ours.streams.leases.end_unowned()
    (event,) = await pair.ours.sessions.events(pair.session)
    assert event.content == {"text": "all of it", "message_id": "m", "interrupted": True}


async def test_chunks_of_open_streams_are_not_pruned(pair: Pair) -> None:
    await pair.ours.streams.open(pair.thread_id, message_id="open", role="assistant")
    await pair.ours.streams.append(pair.thread_id, "open", first_sequence=1, deltas=["kept"])
    async with pair.ours.stream_message(pair.session, message_id="m") as message:
        await message.write("whole")
        await until(lambda: _reaches(pair, 1))
    await database_of(pair.ours).pool.execute("UPDATE message_chunks SET created_at = now() - interval '2 days'")
    await database_of(pair.ours).pool.execute("SELECT prune_chunks(interval '1 day')")
    assert await read_to_end(pair.other, pair.thread_id, "m") == "whole"
    assert [chunk.delta for chunk in (await pair.other.streams.read(pair.thread_id, "open")).chunks] == ["kept"]
    await pair.ours.streams.abort(pair.thread_id, "open")


# Redis alone


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer.on_socket() as server:
        yield server


@pytest.fixture
async def on_own_redis(database_url: str, own_redis: RedisServer) -> AsyncIterator[Pair]:
    settings: dict[str, Any] = {
        "redis_url": own_redis.url,
        "stream_lease_seconds": 120,
        "stream_buffer_bytes": 4096,
        "retry_seconds": 1,
    }
    async with Engine.open(database_url, **settings) as ours, Engine.open(database_url, **settings) as other:
        yield Pair(ours, other, await ours.sessions.create("app", "user"))


async def test_redis_goes_away_and_comes_back(on_own_redis: Pair, own_redis: RedisServer) -> None:
    pair = on_own_redis
    async with pair.ours.stream_message(pair.session, message_id="m") as message:
        await message.write("before ")
        await until(lambda: _reaches(pair, 1))
        own_redis.kill()
        # What fits into the buffer is taken; then the producer gets an error.
        with pytest.raises(StreamUnavailableError, match="Redis"):
            while True:
                await message.write("x" * 512)
        # Readers in the producer's process read on, readers elsewhere get an error.
        assert (await pair.ours.streams.read(pair.thread_id, "m")).chunks
        with pytest.raises(StreamUnavailableError):
            await pair.other.streams.read(pair.thread_id, "m")
        following = asyncio.create_task(read_to_end(pair.other, pair.thread_id, "m"))
        own_redis.start()
        await until(lambda: _has_recovered(pair))
        await message.write("after")
        await until(lambda: _reaches(pair, message.current_sequence))
        text = message.text
    assert await following == text
    assert text.startswith("before xxx")
    assert text.endswith("after")


async def _has_recovered(pair: Pair) -> bool:
    return pair.ours.streams.flusher.failure is None


async def test_health_reports_redis_and_its_recovery(on_own_redis: Pair, own_redis: RedisServer) -> None:
    transport = httpx.ASGITransport(create_app(engine=on_own_redis.ours, agents=[]))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
        for _ in range(2):

            async def is_well() -> bool:
                health = (await http.get("/health")).json()
                return (health["status"], health["deltas"]) == ("ok", {"carried_by": "redis", "status": "ok"})

            await until(is_well)
            own_redis.kill()
            answer = await http.get("/health")
            assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
            assert "Redis is not reachable" in answer.json()["deltas"]["status"]
            own_redis.start()


async def test_a_message_is_completed_while_redis_is_away(on_own_redis: Pair, own_redis: RedisServer) -> None:
    pair = on_own_redis
    async with pair.ours.stream_message(pair.session, message_id="m") as message:
        await message.write("one ")
        own_redis.kill()
        await message.write("two")
    assert await read_to_end(pair.other, pair.thread_id, "m") == "one two"


async def test_an_engine_starts_degraded_without_its_redis_and_recovers_when_it_comes(database_url: str) -> None:
    server = RedisServer.on_socket()
    settings: dict[str, Any] = {"redis_url": server.url, "stream_lease_seconds": 120}
    async with Engine.open(database_url, **settings) as ours, Engine.open(database_url, **settings) as other:
        pair = Pair(ours, other, await ours.sessions.create("app", "user"))
        transport = httpx.ASGITransport(create_app(engine=ours, agents=[]))
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
            answer = await http.get("/health")
            assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
            assert "Redis is not reachable" in answer.json()["deltas"]["status"]
            async with ours.stream_message(pair.session, message_id="before") as message:
                await message.write("stored all the same")
            assert await read_to_end(other, pair.thread_id, "before") == "stored all the same"
            with server:

                async def is_well() -> bool:
                    return bool((await http.get("/health")).json()["status"] == "ok")

                await until(is_well)
                async with (
                    watching(other, pair.thread_id) as watch,
                    ours.stream_message(pair.session, message_id="after") as message,
                ):
                    await message.write("word by word")
                    await next_head(watch, "after", sequence=1)


async def test_an_engine_that_is_closed_at_once_does_not_wait_for_its_doorbell(
    database_url: str, redis_server: RedisServer
) -> None:
    """It is being connected right then."""
    for _ in range(3):
        async with Engine.open(database_url, redis_url=redis_server.url) as engine:
            backend = choose_backend(engine.settings, database_of(engine))
            await backend.start(lambda _: None)
            await asyncio.wait_for(backend.close(), TIMEOUT)


async def test_what_is_no_url_of_a_redis_is_a_clear_error(database_url: str) -> None:
    with pytest.raises(SetupError, match="REDIS_URL") as raised:
        async with Engine.open(database_url, redis_url="https://user:secret@host"):
            pass
    assert "secret" not in str(raised.value)


async def test_a_cluster(database_url: str) -> None:
    with RedisServer.as_cluster() as server:
        settings: dict[str, Any] = {"redis_url": server.url, "stream_lease_seconds": 120}
        async with Engine.open(database_url, **settings) as ours, Engine.open(database_url, **settings) as other:
            async with Redis.from_url(server.url) as redis:
                assert "cmdstat_cluster" in await redis.info("commandstats"), "the backend asks for the slots"
            pair = Pair(ours, other, await ours.sessions.create("app", "user"))
            async with asyncio.timeout(TIMEOUT), watching(pair.other, pair.thread_id) as watch:
                followers = []
                for number in range(5):
                    name = f"m{number}"
                    async with pair.ours.stream_message(pair.session, message_id=name) as message:
                        followers.append(asyncio.create_task(read_to_end(pair.other, pair.thread_id, name)))
                        for word in range(20):
                            await message.write(f"{word} ")
                        await next_head(watch, name, sequence=20)
                assert [await follower for follower in followers] == ["".join(f"{w} " for w in range(20))] * 5
            message_id = await ours.streams.open(pair.thread_id, role="assistant")
            assert await ours.streams.append(pair.thread_id, message_id, first_sequence=1, deltas=["a", "b"]) == 2
            assert await other.streams.append(pair.thread_id, message_id, first_sequence=1, deltas=["a", "b"]) == 2
            assert await other.streams.complete(pair.thread_id, message_id) == 2
