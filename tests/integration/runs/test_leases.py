"""LeaseKeeper: leases are extended, or lost in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from cognizes.engine import Engine, RunStatus
from cognizes.engine.errors import DatabaseUnavailableError
from cognizes.engine.pulse.sessions import RunFence
from cognizes.engine.runs.leases import LeaseKeeper
from tests.engine_parts import database_of, supervisor_of
from tests.integration.runs.conditions import expire_lease, until_status


@pytest.fixture
async def keeper(engine: Engine) -> AsyncIterator[LeaseKeeper]:
    opened = LeaseKeeper(database_of(engine), engine.runs.notifications, seconds=0.2, supervisor=supervisor_of(engine))
    yield opened
    await opened.close()


async def test_a_lease_is_lost_in_time_while_postgresql_does_not_answer(
    keeper: LeaseKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(keeper, "extend", hang)
    lost = asyncio.Event()
    keeper.hold(RunFence(uuid4(), "r1", 1), lost.set)
    await asyncio.wait_for(lost.wait(), 30)


async def test_an_unexpected_error_does_not_stop_the_extension_of_leases(
    keeper: LeaseKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[Any] = []
    enough = asyncio.Event()

    async def fail() -> None:
        rounds.append(None)
        if len(rounds) == 3:
            enough.set()
        raise ValueError("a defect")

    monkeypatch.setattr(keeper, "extend", fail)
    keeper.hold(RunFence(uuid4(), "r1", 1))
    await asyncio.wait_for(enough.wait(), 30)


async def test_a_sweep_does_not_wait_for_a_worker_that_extends_its_leases(engine: Engine) -> None:
    session = await engine.sessions.create("shop", "ada")
    runs = [await engine.runs.enqueue(session, "work", run_id=run_id) for run_id in ("a", "b")]
    for run in await engine.runs.claim(["work"], limit=2):
        await expire_lease(engine, run)
    async with database_of(engine).connection() as worker, worker.transaction():
        await worker.execute(
            "UPDATE runs SET lease_expires_at = now() + interval '1 h' WHERE thread_id = $1::uuid AND id = 'b'",
            session.thread_id,
        )
        assert await asyncio.wait_for(engine.runs.expire(), 20) == 1
    assert [(await engine.runs.get(run.thread_id, run.id)).status for run in runs] == ["pending", "running"]
    assert await engine.runs.expire() == 0


async def test_a_block_continues_after_its_wait_when_postgresql_is_available_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = database_of(engine).fetch_row
    refused: list[str] = []

    async def fetch_row(name: str, *arguments: Any) -> Any:
        if name == "claim_run" and not refused:
            refused.append(name)
            raise DatabaseUnavailableError("PostgreSQL restarts")
        return await ask(name, *arguments)

    monkeypatch.setattr(database_of(engine), "fetch_row", fetch_row)
    session = await engine.sessions.create("shop", "ada")
    async with engine.runs.start(session, run_id="r1") as run:
        waiting = asyncio.create_task(answer(engine, session.thread_id))
        assert await run.wait(kind="signal", correlation_key="go") == "on"
        await waiting
    assert refused == ["claim_run"]
    assert (await engine.runs.get(session.thread_id, "r1")).status == "completed"


async def answer(engine: Engine, thread_id: str) -> None:
    await until_status(engine, await engine.runs.get(thread_id, "r1"), RunStatus.WAITING)
    await engine.runs.signal("r1", correlation_key="go", payload="on", thread_id=thread_id)
