"""While PostgreSQL is away every write waits as an append does, and the outage costs a run none of its attempts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from ag_ui.core import BaseEvent, RunAgentInput, RunFinishedEvent, UserMessage

from cognizes.engine import DatabaseUnavailableError, Engine, Event, RunStatus, Session
from cognizes.engine.adapters.agui import AguiAgent, source_of
from cognizes.engine.hosting import AgentHost
from cognizes.engine.memory import EpisodicEntry, MemoryScope, Remembered
from cognizes.engine.runs import HandledRun, Worker
from tests.engine_parts import database_of, maintenance_of
from tests.integration.runs.conditions import run_events, until, until_status
from tests.outages import Outages, outages


@pytest.fixture
async def proxied(database_url: str) -> AsyncIterator[tuple[str, Outages]]:
    async with outages(database_url) as found:
        yield found


async def _enqueue(engine: Engine, session: Session) -> Any:
    return await engine.runs.enqueue(session, "order", run_id="queued")


async def _create_session(engine: Engine, session: Session) -> Any:
    return await engine.sessions.create("shop", "ada", session_id="another")


async def _append(engine: Engine, session: Session) -> Any:
    return await engine.sessions.append(session, author="user", kind="user_message", text="hello")


async def _signal(engine: Engine, session: Session) -> Any:
    return await engine.runs.signal("waits", correlation_key="go", payload=1)


async def _set_fact(engine: Engine, session: Session) -> Any:
    return await engine.memory.long_term.set(MemoryScope.of(session), "prefs", "colour", "blue")


async def _delete_fact(engine: Engine, session: Session) -> Any:
    return await engine.memory.long_term.delete(MemoryScope.of(session), "prefs", "none")


async def _append_episode(engine: Engine, session: Session) -> Any:
    return await engine.memory.episodic.append(EpisodicEntry(MemoryScope.of(session), "bought a lamp"))


async def _remember(engine: Engine, session: Session) -> Any:
    return await engine.memory.remember(MemoryScope.of(session), [Remembered("n1", "likes blue")])


async def _write_scratchpad(engine: Engine, session: Session) -> Any:
    return await engine.memory.working.write_scratchpad(MemoryScope.of(session), session.id, "half a thought")


async def _stream(engine: Engine, session: Session) -> Any:
    async with engine.stream_message(session, message_id="m") as message:
        await message.write("hello")


WRITES: list[Callable[[Engine, Session], Awaitable[Any]]] = [
    _append, _create_session, _enqueue, _signal, _set_fact, _delete_fact, _append_episode, _remember, _write_scratchpad,
    _stream,
]  # fmt: skip


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__.strip("_"))
async def test_a_write_waits_until_the_outage_is_over(
    proxied: tuple[str, Outages], write: Callable[[Engine, Session], Awaitable[Any]]
) -> None:
    url, outage = proxied
    async with Engine.open(url, retry_seconds=60, connect_timeout=1) as engine:
        session = await engine.sessions.create("shop", "ada")
        waiting = await engine.runs.enqueue(session, "order", run_id="waits")
        claimed = await engine.runs.claim_one(waiting.thread_id, waiting.id)
        await engine.runs.wait(claimed, kind="signal", correlation_key="go")
        outage.begin()
        writing = asyncio.create_task(write(engine, session))
        await asyncio.sleep(0.5)
        assert not writing.done(), writing.exception()
        outage.end()
        async with asyncio.timeout(60):
            await writing


async def _complete(engine: Engine, handler: Callable[[HandledRun], Awaitable[Any]]) -> Any:
    session = await engine.sessions.create("shop", "ada")
    run = await engine.runs.enqueue(session, "order", max_attempts=1)
    async with Worker(engine, {"order": handler}):
        return await until(lambda: _ended(engine, run))


async def _ended(engine: Engine, run: Any) -> Any:
    try:
        found = await engine.runs.get(run.thread_id, run.id)
    except DatabaseUnavailableError:
        return None
    return found if found.completed_at is not None else None


async def test_an_outage_longer_than_the_retries_costs_no_attempt(proxied: tuple[str, Outages]) -> None:
    """The handler gets the error of its append; the run has one attempt and completes all the same."""
    url, outage = proxied
    failures: list[BaseException] = []

    async def order(run: HandledRun) -> Any:
        if not failures:
            outage.begin()
            asyncio.get_running_loop().call_later(1.5, outage.end)
            try:
                await run.think("while PostgreSQL is away")
            except Exception as error:
                failures.append(error)
                raise
        return run.attempt

    async with Engine.open(url, retry_seconds=0.2, connect_timeout=1, run_backoff_seconds=0) as engine:
        done = await _complete(engine, order)
        assert failures
        assert (done.status, done.error, done.result) == (RunStatus.COMPLETED, None, 2)
        assert await run_events(engine, done) == [
            "run_created", "run_started", "run_released", "run_resumed", "run_finished",
        ]  # fmt: skip


async def test_an_outage_longer_than_the_lease_costs_no_attempt(proxied: tuple[str, Outages]) -> None:
    """The worker stops the handler, because another one could hold the run, and gives the run back after the outage."""
    url, outage = proxied
    attempts: list[int] = []

    async def order(run: HandledRun) -> Any:
        attempts.append(run.attempt)
        if len(attempts) == 1:
            outage.begin()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                asyncio.get_running_loop().call_later(4, outage.end)
                raise
        return run.attempt

    async with Engine.open(url, run_lease_seconds=1, connect_timeout=1) as engine:
        await maintenance_of(engine).close()
        # The first sweep of a database has none before it: no gap shows the outage.
        await engine.runs.expire()
        done = await _complete(engine, order)
        assert (done.status, done.error, done.result, attempts) == (RunStatus.COMPLETED, None, 2, [1, 2])


async def test_a_process_that_starts_after_an_outage_takes_no_run_of_a_living_worker(database_url: str) -> None:
    """Sweeps in the new process find an expired lease; the worker extends it a moment later."""
    async with Engine.open(database_url, run_lease_seconds=600) as working:
        await maintenance_of(working).close()
        session = await working.sessions.create("shop", "ada")
        run = await working.runs.enqueue(session, "order", max_attempts=1)
        await working.runs.expire()
        held = await working.runs.claim_one(run.thread_id, run.id)
        # As after an outage of a minute: no sweep ran, and the lease is over.
        await database_of(working).pool.execute(
            "UPDATE maintenance_jobs SET last_run_at = last_run_at - interval '1 minute' WHERE name = 'lease_sweep'"
        )
        await database_of(working).pool.execute("UPDATE runs SET lease_expires_at = now() - interval '10 s'")
        async with Engine.open(database_url) as starting:
            await maintenance_of(starting).close()

            async def order(run: HandledRun) -> None:
                raise AssertionError("the run belongs to the other process")

            async with Worker(starting, {"order": order}):
                await until(lambda: _swept(starting))
                assert await working.runs.heartbeat([held]) == [held]
            done = await working.runs.finish(held, result="kept")
            assert (done.status, done.attempt) == (RunStatus.COMPLETED, 1)


async def _swept(engine: Engine) -> bool:
    found: bool = await database_of(engine).pool.fetchval(
        "SELECT last_run_at > now() - interval '30 s' FROM maintenance_jobs WHERE name = 'lease_sweep'"
    )
    return found


async def test_the_run_of_a_dead_worker_is_released_when_its_grace_is_over(database_url: str) -> None:
    async with Engine.open(database_url, run_lease_seconds=1) as engine:
        await maintenance_of(engine).close()
        session = await engine.sessions.create("shop", "ada")
        run = await engine.runs.enqueue(session, "order")
        await engine.runs.expire()
        await database_of(engine).fetch("claim_run", *_claim(run))
        await database_of(engine).pool.execute(
            "UPDATE maintenance_jobs SET last_run_at = last_run_at - interval '1 minute' WHERE name = 'lease_sweep'"
        )

        async def order(run: HandledRun) -> int:
            return run.attempt

        async with Worker(engine, {"order": order}):
            done = await until_status(engine, run, RunStatus.COMPLETED)
        assert done.result == 2


def _claim(run: Any) -> tuple[Any, ...]:
    return UUID(run.thread_id), run.id, "dead", timedelta(seconds=1), str(uuid4()), False


async def test_an_outage_longer_than_the_lease_costs_a_hosted_run_no_attempt(proxied: tuple[str, Outages]) -> None:
    """The server stops the agent and releases the run after the outage, for the recovery of any server."""
    url, outage = proxied

    async def agent(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        outage.begin()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(4, outage.end)
            raise
        yield RunFinishedEvent(thread_id=run_input.thread_id, run_id=run_input.run_id)

    async with Engine.open(url, run_lease_seconds=1, connect_timeout=1) as engine:
        await maintenance_of(engine).close()
        await engine.runs.expire()
        source = source_of(agent)
        assert source is not None
        host = AgentHost(engine, [AguiAgent(source, name="generic", engine=engine)])
        run_input = RunAgentInput(
            thread_id="t", run_id="r", state={}, messages=[UserMessage(id="u", content="hello")], tools=[], context=[],
            forwarded_props={},
        )  # fmt: skip
        hosted = await host.run("generic", "ada", run_input)
        async with asyncio.timeout(60):
            await hosted.wait()
        released = await until(lambda: _released(engine))
        await host.close(seconds=0)
        assert [(event.content["is_failure"], event.content["reason"]) for event in released] == [
            (False, "PostgreSQL was unavailable")
        ]


async def _released(engine: Engine) -> list[Event]:
    try:
        session = await engine.sessions.get("generic", "ada", "t")
        events = await engine.sessions.events(session) if session is not None else []
    except DatabaseUnavailableError:
        return []
    return [event for event in events if event.event_type == "run_released"]
