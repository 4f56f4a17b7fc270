"""Inputs on a thread whose run executes, here or on another server: refused, queued, or taken instead of that run."""

from __future__ import annotations

import asyncio
import re
from uuid import uuid4

import asyncpg
import pytest
from ag_ui.core import RunFinishedEvent

from cognizes.engine import Engine
from cognizes.engine.errors import ConflictError
from cognizes.engine.hosting import HostedRun
from cognizes.engine.models import RunStatus
from tests.integration.hosting.test_recording import hosting, say, turn, wait_for_ever
from tests.integration.runs.conditions import expire_lease


async def test_the_second_of_two_simultaneous_inputs_learns_which_run_executes(engine: Engine) -> None:
    thread = str(uuid4())
    async with hosting(engine, wait_for_ever) as host:
        inputs = [say(host, "slow", thread_id=thread, onBusy=policy) for policy in ("reject", "reject")]
        first, second = await asyncio.gather(*inputs, return_exceptions=True)
        assert isinstance(first, HostedRun)
        assert isinstance(second, ConflictError)
        assert re.match(f"run {first.run_id} executes on this thread", str(second))


async def test_an_input_behind_a_queued_one_learns_which_run_another_server_executes(
    engine: Engine, database_url: str
) -> None:
    thread = str(uuid4())
    async with (
        Engine.open(database_url) as other,
        hosting(other, wait_for_ever) as elsewhere,
        hosting(engine, wait_for_ever) as host,
    ):
        run = await say(elsewhere, "slow", thread_id=thread)
        queued = asyncio.create_task(turn(host, "quick", thread_id=thread, onBusy="queue"))
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            with pytest.raises(ConflictError, match=f"run {run.run_id} executes on this thread"):
                await say(host, "quick", thread_id=thread)
        assert not queued.done()
        assert await elsewhere.cancel("generic", "ada", thread)
        assert isinstance((await queued)[-1], RunFinishedEvent)


async def test_cancel_ends_the_run_that_keeps_the_thread_busy(engine: Engine, database_url: str) -> None:
    """An older run of another agent, whose server died, does not keep a thread busy, and is not cancelled."""
    thread = str(uuid4())
    session = await engine.sessions.create("generic", "ada", session_id=thread)
    dead = await engine.runs.begin_leased(session, handler="another")
    await expire_lease(engine, dead)
    busy = await engine.runs.begin_leased(session)
    connection = await asyncpg.connect(database_url)
    async with hosting(engine, wait_for_ever) as host, connection.transaction():
        # The sweep does not release the run.
        await connection.execute("SELECT FROM runs WHERE id = $1 FOR UPDATE", dead.id)
        with pytest.raises(ConflictError, match=busy.id):
            await say(host, "quick", thread_id=thread)
        async with asyncio.timeout(10):
            frames = await turn(host, "quick", thread_id=thread, onBusy="cancel")
        assert isinstance(frames[-1], RunFinishedEvent)
    await connection.close()
    found = [await engine.runs.get(session.thread_id, run.id) for run in (dead, busy)]
    assert found[0].status is not RunStatus.CANCELLED
    assert found[1].status is RunStatus.CANCELLED
