"""The engine on a server of one's own: PostgreSQL 17 with pg_cron, directly and through PgBouncer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cognizes.engine import Engine
from cognizes.engine.database.maintenance import jobs
from tests.engine_parts import database_of, listener_of, maintenance_of
from tests.integration.database.test_schema import (  # noqa: F401 - the same tests, on this server
    test_indexes,
    test_table,
    test_the_server_is_16_or_newer_with_pgvector,
    test_trigger,
)

pytestmark = pytest.mark.server


@pytest.fixture
async def engine(server_url: str) -> AsyncIterator[Engine]:
    """Takes the place of the engine on the embedded server."""
    async with Engine.open(server_url) as opened:
        yield opened


async def test_pg_cron_has_the_jobs(engine: Engine, server_url: str) -> None:
    assert maintenance_of(engine).scheduler == "pg_cron"
    rows = await database_of(engine).pool.fetch("SELECT jobname, schedule, command FROM cron.job ORDER BY jobname")
    assert [row["jobname"] for row in rows] == [
        f"cognizes:public:{name}" for name in sorted(job.name for job in jobs(engine.settings))
    ]
    for row in rows:
        await database_of(engine).pool.execute(row["command"])
    async with Engine.open(server_url):
        assert await database_of(engine).pool.fetchval("SELECT count(*) FROM cron.job") == len(rows)


async def test_pg_cron_really_runs_them(new_debian_server: Any) -> None:
    async with Engine.open(new_debian_server.url) as engine:
        session = await engine.sessions.create("app", "user")
        await engine.runs.create(session, run_id="silent", running=True)
        await database_of(engine).pool.execute("UPDATE runs SET lease_expires_at = now() - interval '1 s'")
        async with asyncio.timeout(120):
            while (await engine.runs.get(session.thread_id, "silent")).status == "running":
                await asyncio.sleep(0.1)
        # No handler can claim the run, so it has failed.
        assert (await engine.runs.get(session.thread_id, "silent")).status == "failed"
        assert (await engine.sessions.events(session))[-1].event_type == "run_failed"


async def test_the_first_minute_on_17(engine: Engine) -> None:
    session = await engine.sessions.create("shop", "ada", state={"cart": [], "user:lang": "en"})
    await engine.sessions.append(session, author="user", kind="user_message", text="hi", state={"n": 1})
    assert (await engine.sessions.at(session, version=1)).state == {"cart": [], "user:lang": "en"}
    fork = await engine.sessions.fork(session, at_sequence=1)
    assert fork.state == session.state


async def test_a_hundred_clients_and_the_listener_through_pgbouncer(debian_server: Any, server_url: str) -> None:
    async with Engine.open(debian_server.pgbouncer_url, listen_url=server_url) as engine:
        heard: list[str] = []

        async def hear(event: Any) -> None:
            heard.append(event.payload["event_id"])

        listener_of(engine).on_event("event_stream", hear)
        sessions = await asyncio.gather(*(engine.sessions.create("app", f"u{n}") for n in range(100)))
        events = await asyncio.gather(
            *(engine.sessions.append(session, author="user", kind="message", state={"n": 1}) for session in sessions)
        )
        async with asyncio.timeout(60):
            while len(heard) < 100:
                await asyncio.sleep(0.05)
        assert sorted(heard) == sorted(event.id for event in events)
