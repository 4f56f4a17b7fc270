"""Reads on a real standby: they see what the caller received, and fall back to the primary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import astuple
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import asyncpg
import httpx
import pytest

from cognizes.engine import Engine, Session
from cognizes.engine.api.main import create_app
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.database.replicas import ReadCounters, ReadDatabase, having_seen
from cognizes.engine.database.tenancy import acting_for
from cognizes.engine.memory import MemoryScope, Remembered
from tests.engine_parts import database_of, debug_of, history_of, reads_of, replica_of
from tests.integration.runs.conditions import until
from tests.outages import outages
from tests.standbys import Standby, standby_of


@pytest.fixture(scope="module")
def standby(postgres_server: EmbeddedPostgres) -> Iterator[Standby]:
    with standby_of(postgres_server) as started:
        yield started


@pytest.fixture
async def lagging(standby: Standby) -> AsyncIterator[Standby]:
    yield standby
    await standby.resume()


@pytest.fixture
async def engine(database_url: str, standby: Standby) -> AsyncIterator[Engine]:
    await standby.catch_up()
    async with Engine.open(database_url, read_url=standby.url_for(database_url), read_timeout=20) as opened:
        assert reads_of(opened).open_replicas == 1
        yield opened


@pytest.fixture
async def session(engine: Engine) -> Session:
    session = await engine.sessions.create("shop", "ada")
    for number in range(3):
        await engine.sessions.append(session, author="user", kind="user_message", text=f"message {number}")
    return session


def counted(engine: Engine) -> ReadCounters:
    """Return what was counted since the last time."""
    found, reads_of(engine).counters = reads_of(engine).counters, ReadCounters()
    return found


def texts(items: list[dict[str, object]]) -> list[object]:
    return [item["content"] for item in items]


async def test_timelines_pulls_history_debug_and_recall_are_read_from_the_replica(
    engine: Engine, session: Session, standby: Standby
) -> None:
    await engine.memory.remember(MemoryScope.of(session), [Remembered("n1", "likes blue lamps")])
    await standby.catch_up()
    counted(engine)
    app = create_app(engine=engine)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        for path in (
            f"/conversations/{session.thread_id}/messages",
            f"/contexts/{session.thread_id}/messages",
            f"/contexts/{session.thread_id}/llm-context?max_tokens=1000",
            f"/api/sessions/{session.thread_id}/events",
            f"/api/sessions/{session.thread_id}/state?sequence=2",
            f"/api/debug/threads/{session.thread_id}/events/1",
            f"/api/debug/threads/{session.thread_id}/state",
        ):
            answer = await http.get(path)
            assert answer.status_code == 200, (path, answer.text)
            replica, behind, unavailable = astuple(counted(engine))
            assert replica > 0, path
            assert (behind, unavailable) == (0, 0), path
            assert "message" in answer.text or "state" in answer.text
    assert [hit.text for hit in await engine.memory.recall("lamps", app="shop", user="ada")] == ["likes blue lamps"]
    assert astuple(counted(engine))[1:] == (0, 0)


async def test_a_writer_reads_its_own_event_while_the_replica_is_behind(
    engine: Engine, session: Session, lagging: Standby
) -> None:
    await lagging.pause()
    await engine.sessions.append(session, author="user", kind="user_message", text="newest")
    assert texts((await engine.timeline.read(session.thread_id)).items)[-1] == "newest"
    assert (await engine.contexts.messages(session.thread_id)).messages[-1].sequence_num == 4
    assert astuple(counted(engine))[0] == 0
    await lagging.resume()
    assert texts((await engine.timeline.read(session.thread_id)).items)[-1] == "newest"
    assert astuple(counted(engine)) == (1, 0, 0)


async def test_a_follower_reads_the_event_of_its_notification(
    engine: Engine, session: Session, lagging: Standby, database_url: str
) -> None:
    """Another process writes; this one delivers the event and must not answer with an older timeline."""
    await lagging.pause()
    async with aclosing(engine.live(session, after=3)) as events, Engine.open(database_url) as another:
        await another.sessions.append(session, author="user", kind="user_message", text="of another process")
        assert (await anext(events)).sequence_num == 4
        assert texts((await engine.timeline.read(session.thread_id)).items)[-1] == "of another process"
        assert (await history_of(engine).read_page(UUID(session.thread_id), after=3)).events
    assert counted(engine).behind >= 2


async def test_a_request_names_the_sequence_that_its_caller_received_elsewhere(
    engine: Engine, session: Session, lagging: Standby, pool: asyncpg.Pool
) -> None:
    """No notification reaches this process: the caller learned of the event from another one."""
    await engine.timeline.read(session.thread_id)
    await lagging.pause()
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT set_config('cognizes.notify', 'off', true)")
        await connection.execute(
            "INSERT INTO messages (thread_id, role, content) VALUES ($1, 'user', 'silent')", session.thread_id
        )
    path = f"/conversations/{session.thread_id}/messages"
    app = create_app(engine=engine)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        assert "silent" not in (await http.get(path)).text
        assert "silent" in (await http.get(path, headers={"X-Seen-Sequence": "4"})).text
        for wrong in ("x", "-1", "9" * 30):
            assert (await http.get(path, headers={"X-Seen-Sequence": wrong})).status_code == 200
    with having_seen(4):
        assert texts((await engine.timeline.read(session.thread_id)).items)[-1] == "silent"


async def test_a_new_session_is_found_while_the_replica_does_not_have_it(engine: Engine, lagging: Standby) -> None:
    await lagging.pause()
    session = await engine.sessions.create("shop", "new")
    assert (await engine.timeline.read(session.thread_id)).items == []
    assert (await debug_of(engine).get_debug_info(session.thread_id)).thread_id == session.thread_id


async def test_a_memory_is_recalled_while_the_replica_is_behind(
    engine: Engine, session: Session, lagging: Standby
) -> None:
    await lagging.pause()
    await engine.memory.remember(MemoryScope.of(session), [Remembered("n1", "likes blue lamps")])
    assert [hit.text for hit in await engine.memory.recall("lamps", app="shop", user="ada")] == ["likes blue lamps"]
    assert counted(engine).behind > 0


async def test_what_one_replica_showed_another_one_shows(engine: Engine, session: Session, standby: Standby) -> None:
    """A read notes the head that the replica had, so that a later read on a slower replica does not go back."""
    await standby.catch_up()
    await engine.timeline.read(session.thread_id)
    gate = database_of(engine).gate
    assert gate is not None
    gate.forget()
    await engine.timeline.read(session.thread_id)
    assert gate.needed(UUID(session.thread_id)) == 3


async def test_the_primary_answers_while_the_replica_is_gone(
    engine: Engine, session: Session, standby: Standby
) -> None:
    await standby.close()
    try:
        for _ in range(2):
            assert len((await engine.timeline.read(session.thread_id)).items) == 3
        assert astuple(counted(engine)) == (0, 0, 2)
    finally:
        await standby.start()
    await until(lambda: _reads_from_replica(engine, session))


async def _reads_from_replica(engine: Engine, session: Session) -> bool:
    counted(engine)
    assert len((await engine.timeline.read(session.thread_id)).items) == 3
    return counted(engine).replica == 1


async def test_the_primary_answers_while_the_replica_is_frozen(
    database_url: str, session: Session, standby: Standby
) -> None:
    await standby.catch_up()
    async with Engine.open(database_url, read_url=standby.url_for(database_url), read_timeout=0.5) as engine:
        await engine.timeline.read(session.thread_id)
        standby.freeze()
        try:
            assert len((await engine.timeline.read(session.thread_id)).items) == 3
            assert len((await engine.timeline.read(session.thread_id)).items) == 3
            assert counted(engine).unavailable == 2
        finally:
            standby.thaw()
        await until(lambda: _reads_from_replica(engine, session))


async def test_an_engine_starts_without_its_replica(database_url: str, session: Session, standby: Standby) -> None:
    await standby.close()
    try:
        async with Engine.open(database_url, read_url=standby.url_for(database_url)) as engine:
            assert reads_of(engine).open_replicas == 0
            assert len((await engine.timeline.read(session.thread_id)).items) == 3
            await standby.start()
            await until(lambda: _reads_from_replica(engine, session))
    finally:
        if not standby.is_running():
            await standby.start()


async def test_a_long_thread_is_pulled_from_the_replica(engine: Engine, session: Session, standby: Standby) -> None:
    """A reader stores the number of messages, past 256: on the primary, never on the replica."""
    for number in range(300):
        await engine.sessions.append(session, author="user", kind="user_message", text=f"{number}")
    await standby.catch_up()
    counted(engine)
    assert (await engine.contexts.messages(session.thread_id, limit=10)).total == 303
    assert astuple(counted(engine)) == (3, 0, 0)
    assert await reads_of(engine).pool.fetchval("SELECT count(*) FROM message_counts") == 1


async def test_row_level_security_holds_on_the_replica(database_url: str, session: Session, standby: Standby) -> None:
    await standby.catch_up()
    async with Engine.open(
        database_url, read_url=standby.url_for(database_url), auth="required", read_timeout=20
    ) as engine:
        await standby.catch_up()
        reads: ReadDatabase = reads_of(engine)
        await until(lambda: _is_open(reads))
        thread = UUID(session.thread_id)
        with acting_for(["shop"]):
            assert len(await reads.fetch("read_events", thread, 0, 10, 10_000)) == 3
        assert astuple(counted(engine)) == (1, 0, 0)
        replica = replica_of(engine)
        with acting_for(["bank"]):
            assert replica.acting_apps == ("bank",)
            assert await replica.fetch("read_events", thread, 0, 10, 10_000) == []
            assert await reads.fetch("read_events", thread, 0, 10, 10_000) == []


async def _is_open(reads: ReadDatabase) -> bool:
    return reads.open_replicas == 1


async def test_a_replica_without_row_level_security_is_not_used(
    database_url: str, session: Session, standby: Standby
) -> None:
    await standby.catch_up()
    url = standby.url_for(database_url)
    async with Engine.open(database_url, read_url=url, read_tenant_url=url, auth="required") as engine:
        assert reads_of(engine).open_replicas == 0


async def test_writes_wait_while_the_pool_is_connected_to_a_standby(
    database_url: str, standby: Standby, pool: asyncpg.Pool
) -> None:
    """The address leads to a standby for a while, as after a failover that a proxy has not noticed."""
    await standby.catch_up()
    async with outages(database_url) as (url, proxy):
        primary = proxy.socket
        async with Engine.open(f"{url}&target_session_attrs=any", retry_seconds=60) as engine:
            session = await engine.sessions.create("shop", "ada")
            await standby.catch_up()
            app = create_app(engine=engine)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
                assert (await http.get("/health")).status_code == 200
                proxy.begin()
                proxy.socket = proxy.socket.replace(_directory(database_url), _directory(standby.url))
                proxy.end()
                health = await _until_it_answers(http)
                assert health.status_code == 503
                assert (await http.get("/live")).status_code == 200
                writes = [
                    asyncio.create_task(engine.sessions.append(session, author="a", kind="note", text="waits")),
                    asyncio.create_task(engine.runs.enqueue(session, "order")),
                    asyncio.create_task(engine.memory.remember(MemoryScope.of(session), [Remembered("n", "waits")])),
                ]
                done, _ = await asyncio.wait(writes, timeout=1)
                assert not done
                proxy.begin()
                proxy.socket = primary
                proxy.end()
                async with asyncio.timeout(60):
                    await asyncio.gather(*writes)
                await until(lambda: _is_healthy(http))


def _directory(url: str) -> str:
    return parse_qs(urlsplit(url).query)["host"][0]


async def _until_it_answers(http: httpx.AsyncClient) -> httpx.Response:
    """Return an answer that names the standby: at first the listener may be the reason."""
    async with asyncio.timeout(60):
        while "standby" not in (answer := await http.get("/health")).text:
            await asyncio.sleep(0.1)
    return answer


async def _is_healthy(http: httpx.AsyncClient) -> bool:
    return (await http.get("/health")).status_code == 200


async def test_a_standby_that_is_listed_first_is_passed_over(database_url: str, standby: Standby) -> None:
    hosts = f"{_directory(standby.url)},{_directory(database_url)}"
    async with Engine.open(database_url.replace(_directory(database_url), hosts)) as engine:
        assert await engine.sessions.create("shop", "ada")
