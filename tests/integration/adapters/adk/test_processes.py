"""Several processes on one database, writing to one session."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from google.adk.sessions.session import Session

from cognizes.engine.adapters.adk import OpenSessionService

from .counting_process import count_up

_SCRIPT = Path(__file__).with_name("counting_process.py")


async def write_from_three_sides(service: OpenSessionService, url: str, mode: str, count: int) -> Session:
    await service.create_session(app_name="shop", user_id="ada", session_id="s")
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-W", "ignore", str(_SCRIPT), url, mode, name, str(count))
        for name in ("left", "right")
    ]
    await count_up(url, mode, "here", count)
    assert [await process.wait() for process in processes] == [0, 0]
    session = await service.get_session(app_name="shop", user_id="ada", session_id="s")
    assert session is not None
    return session


async def test_raise_makes_read_and_write_exact(ours: OpenSessionService, database_url: str) -> None:
    session = await write_from_three_sides(ours, database_url, "raise", 20)
    assert session.state == {"count": 60}
    assert [event.actions.state_delta["count"] for event in session.events] == list(range(1, 61))


async def test_rebase_stores_everything_and_merges_key_by_key(ours: OpenSessionService, database_url: str) -> None:
    session = await write_from_three_sides(ours, database_url, "rebase", 20)
    assert len(session.events) == 120
    expected = {
        f"{name}{number}{step}": number for name in ("here", "left", "right") for number in range(20) for step in "ab"
    }
    assert expected.items() <= session.state.items()
    assert session.state["last"] == session.events[-1].author
    assert {"user:here", "user:left", "user:right"} <= session.state.keys()
