"""Conditions that tests wait for, with time for a slow machine, and short cuts to states of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from cognizes.engine import Engine, Run, RunStatus
from tests.engine_parts import database_of

Found = TypeVar("Found")


async def until(look: Callable[[], Awaitable[Found]], *, seconds: float = 90) -> Found:
    """Return what `look` returns as soon as it is truthy."""
    async with asyncio.timeout(seconds):
        while not (found := await look()):
            await asyncio.sleep(0.02)
    return found


async def until_status(engine: Engine, run: Run, *status: RunStatus) -> Run:
    """Return the run once it has one of these statuses."""

    async def look() -> Run | None:
        found = await engine.runs.get(run.thread_id, run.id)
        return found if found.status in status else None

    return await until(look)


async def expire_lease(engine: Engine, run: Run) -> None:
    """Let the lease of a run expire now."""
    await database_of(engine).pool.execute(
        "UPDATE runs SET lease_expires_at = now() - interval '1 s' WHERE thread_id = $1::uuid AND id = $2",
        run.thread_id, run.id,
    )  # fmt: skip


async def run_events(engine: Engine, run: Run) -> list[str]:
    """Return the types of the run's events."""
    session = await engine.sessions.store.get_thread(run.thread_id)
    return [event.event_type for event in await engine.sessions.events(session) if event.run_id == run.id]


def later(**of: float) -> datetime:
    return datetime.now(UTC) + timedelta(**of)


async def table(engine: Engine, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await database_of(engine).pool.fetch(query, *arguments)]
