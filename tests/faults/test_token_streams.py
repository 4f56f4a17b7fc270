"""Token streams under kill -9 of PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cognizes.engine import DatabaseError, Engine, Session
from cognizes.engine.streams.chunks import StreamStatus
from tests.faults.test_stream_faults import _stop
from tests.integration.streams.conftest import read_to_end, until


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cognizes-faults-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)
        asyncio.run(_stop(Path(directory)))


async def test_a_crash_of_postgresql_loses_nothing_of_a_living_stream(data_dir: Path) -> None:
    """The crash empties the table of chunks. The producer writes them again, for present and for later readers."""
    settings = {"data_dir": data_dir, "retry_seconds": 60, "stream_lease_seconds": 120}
    async with Engine.open(**settings) as ours, Engine.open(**settings) as other:
        session = await ours.sessions.create("app", "user")
        async with ours.stream_message(session, message_id="m") as message:
            following = asyncio.create_task(read_to_end(other, session.thread_id, "m"))
            for number in range(100):
                await message.write(f"{number} ")
            await until(lambda: _reads(other, session, 100))
            pid = int((data_dir / "postgres" / "postmaster.pid").read_text().split()[0])
            os.kill(pid, signal.SIGKILL)
            for number in range(100, 200):
                await message.write(f"{number} ")
            await until(lambda: _reads(other, session, 200))
        text = "".join(f"{number} " for number in range(200))
        assert await following == text
        (event,) = await other.sessions.events(session)
        assert event.content["text"] == text


async def _reads(engine: Engine, session: Session, count: int) -> bool:
    """Whether a new reader receives this many chunks from the first one on."""
    try:
        page = await engine.feed.read_chunks(session.thread_id, "m", wait=1)
    except DatabaseError:
        return False
    assert page.status is StreamStatus.STREAMING
    return [chunk.delta for chunk in page.chunks] == [f"{number} " for number in range(count)]
