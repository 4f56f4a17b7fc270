"""A host that closes ends all of its runs, also those that are just beginning."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from cognizes.engine import Engine
from cognizes.engine.hosting.hosted_run import STOPPED
from cognizes.engine.models import RunStatus
from tests.integration.hosting.test_first_text import locked
from tests.integration.hosting.test_recording import hosting, say, turn, wait_for_ever
from tests.integration.runs.conditions import table, until


async def test_a_run_that_begins_while_the_host_closes_is_stopped(engine: Engine, database_url: str) -> None:
    thread = str(uuid4())
    async with hosting(engine, wait_for_ever) as host:
        await turn(host, "quick", thread_id=thread)
        earlier = await say(host, "quick", thread_id=thread)
        await earlier.wait()
        async with locked(database_url, earlier):
            beginning = asyncio.create_task(say(host, "slow", thread_id=thread))
            await until(lambda: table(engine, "SELECT FROM pg_locks WHERE NOT granted"))
            closing = asyncio.create_task(host.close(seconds=0))
            await asyncio.wait([closing], timeout=0.2)
            assert not closing.done()
        run = await beginning
        await closing
        stopped = await engine.runs.get(run.thread_id, run.run_id)
        assert (stopped.status, stopped.error) == (RunStatus.FAILED, STOPPED)
