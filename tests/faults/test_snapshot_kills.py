"""A memory snapshot is applied once, though the process that applies it is killed with -9."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import asyncpg
import pytest

from cognizes.engine import Engine, Session
from cognizes.engine.memory.records import MemoryScope
from cognizes.engine.memory.snapshot import MemorySnapshot
from tests.engine_parts import database_of

_APPLY = """
import asyncio, json, os, signal, sys
from cognizes.engine import Engine
from cognizes.engine.memory.snapshot import MemorySnapshot

async def main():
    url, session_id, document, dies = sys.argv[1:]
    async with Engine.open(url, memory_background=False) as engine:
        session = await engine.sessions.get("shop", "ada", session_id)
        if dies == "after":
            async def die(_): os.kill(os.getpid(), signal.SIGKILL)
            engine.sessions.refresh = die
        print("ready", flush=True)
        await engine.memory.snapshots.apply(session, MemorySnapshot.from_json(json.loads(document)))

asyncio.run(main())
"""


async def apply_in_a_process(
    url: str, session: Session, snapshot: MemorySnapshot, dies: str
) -> asyncio.subprocess.Process:
    arguments = (url, session.id, json.dumps(snapshot.to_json()), dies)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _APPLY, *arguments, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parent
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def wait_for_a_waiting_backend(url: str) -> None:
    """Waits until the process stands before the lock of the thread."""
    connection = await asyncpg.connect(url)
    deadline = asyncio.get_running_loop().time() + 60
    try:
        while not await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        ):
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.02)
    finally:
        await connection.close()


@pytest.mark.parametrize("dies", ["after", "before"])
async def test_applied_once_though_killed(engine: Engine, database_url: str, dies: str) -> None:
    session = await engine.sessions.create("shop", "ada", state={"step": 1, "gone": True})
    await engine.memory.working.write_scratchpad(MemoryScope("shop", "ada"), session.id, "the plan")
    snapshot = await engine.memory.snapshots.take(session)
    await engine.sessions.update(session, {"step": 2, "late": "x"})
    if dies == "after":
        process = await apply_in_a_process(database_url, session, snapshot, dies)
        assert await process.wait() == -signal.SIGKILL
    else:
        async with database_of(engine).connection() as connection, connection.transaction():
            await connection.execute("SELECT FROM threads FOR UPDATE")
            process = await apply_in_a_process(database_url, session, snapshot, dies)
            await wait_for_a_waiting_backend(database_url)
            process.kill()
            await process.wait()
    # The next process finds the snapshot applied, or applies it.
    again = await engine.memory.snapshots.apply(session, snapshot)
    assert not again or dies == "before"
    assert session.state == {"step": 1, "gone": True}
    kinds = [event.event_type for event in await engine.sessions.events(session)]
    assert kinds.count("memory_restored") == 1
    loaded = await engine.memory.working.load(MemoryScope("shop", "ada"), session.id)
    assert loaded == snapshot.working_memory
    await engine.sessions.update(session, {"step": 3})
    assert not await engine.memory.snapshots.apply(session, snapshot)
    assert session.state["step"] == 3
