"""Keeping leases, whatever the database does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from cognizes.engine import Engine
from cognizes.engine.pulse.fencing import RunFence
from cognizes.engine.runs.leases import LeaseKeeper


@pytest.fixture
async def keeper(engine: Engine) -> AsyncIterator[LeaseKeeper]:
    opened = LeaseKeeper(engine.database, engine.runs.doorbell, seconds=0.2)
    yield opened
    await opened.close()


async def test_a_lease_is_lost_in_time_while_the_database_says_nothing(
    keeper: LeaseKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def say_nothing() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(keeper, "beat", say_nothing)
    lost = asyncio.Event()
    keeper.hold(RunFence(uuid4(), "r1", 1), lost.set)
    await asyncio.wait_for(lost.wait(), 30)


async def test_an_error_that_nobody_expected_is_not_the_last_beat(
    keeper: LeaseKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[Any] = []
    enough = asyncio.Event()

    async def fail() -> None:
        beats.append(None)
        if len(beats) == 3:
            enough.set()
        raise ValueError("a defect")

    monkeypatch.setattr(keeper, "beat", fail)
    keeper.hold(RunFence(uuid4(), "r1", 1))
    await asyncio.wait_for(enough.wait(), 30)
