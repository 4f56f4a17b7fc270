"""Failover on a real Patroni cluster: pause, acknowledged events, order and followers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from cognizes.engine import DatabaseError, Engine, Event, Session

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
if TYPE_CHECKING:
    from debian_cluster import DebianCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
_WRITERS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[DebianCluster]:
    from debian_cluster import DebianCluster

    if (reason := DebianCluster.available()) is not None:
        pytest.skip(reason)
    with DebianCluster(2) as running:
        yield running


class Traffic:
    """Writers on threads of their own in one engine, a follower of each thread in another one."""

    def __init__(self, writing: Engine, following: Engine) -> None:
        self._writing, self._following = writing, following
        self.acknowledged: dict[str, list[str]] = {}
        self.followed: dict[str, list[Event]] = {}
        self.times: list[float] = []
        self.is_stopping = False

    async def write(self, session: Session) -> None:
        acknowledged = self.acknowledged.setdefault(str(session.thread_id), [])
        while not self.is_stopping:
            event_id = str(uuid4())
            while True:
                with suppress(DatabaseError):
                    await self._writing.sessions.append(
                        session, author="user", kind="user_message", text="hello", event_id=event_id
                    )
                    break
            acknowledged.append(event_id)
            self.times.append(asyncio.get_running_loop().time())

    async def follow(self, session: Session) -> None:
        followed = self.followed.setdefault(str(session.thread_id), [])
        async with aclosing(self._following.live(session)) as events:
            async for event in events:
                followed.append(event)

    @property
    def pause(self) -> float:
        return max(later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False))

    def is_complete(self) -> bool:
        return all(
            [event.id for event in self.followed.get(thread, ())] == ids for thread, ids in self.acknowledged.items()
        )


async def _survive(url: str, fault: Callable[[], None], record: Callable[[str, object], None]) -> None:
    """Write while a fault happens; fail if an acknowledged event is lost, out of order, or missed by a follower."""
    async with Engine.open(url) as writing, Engine.open(url) as following:
        traffic = Traffic(writing, following)
        sessions = [await writing.sessions.create("shop", f"user-{number}") for number in range(_WRITERS)]
        followers = [asyncio.create_task(traffic.follow(session)) for session in sessions]
        writers = [asyncio.create_task(traffic.write(session)) for session in sessions]
        await asyncio.sleep(1)
        before = len(traffic.times)
        await asyncio.to_thread(fault)
        async with asyncio.timeout(120):
            while len(traffic.times) < before + 200 or traffic.times[-1] - traffic.times[before] < traffic.pause:
                await asyncio.sleep(0.1)
        traffic.is_stopping = True
        await asyncio.gather(*writers)
        async with asyncio.timeout(60):
            while not traffic.is_complete():
                await asyncio.sleep(0.1)
        for events in traffic.followed.values():
            assert [event.sequence_num for event in events] == list(range(1, len(events) + 1))
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
    # Reached only when every acknowledged event was found by its follower.
    record("pause_seconds", round(traffic.pause, 1))
    record("acknowledged", len(traffic.times))
    record("lost", 0)


async def test_primary_frozen_and_listed_first(
    cluster: DebianCluster, record_property: Callable[[str, object], None]
) -> None:
    await asyncio.to_thread(cluster.heal)
    primary = await asyncio.to_thread(cluster.primary)
    (standby,) = await asyncio.to_thread(cluster.standbys)
    await _survive(cluster.url(primary, standby), lambda: cluster.freeze(primary), record_property)


async def test_planned_switchover(cluster: DebianCluster, record_property: Callable[[str, object], None]) -> None:
    await asyncio.to_thread(cluster.heal)
    primary = await asyncio.to_thread(cluster.primary)
    (standby,) = await asyncio.to_thread(cluster.standbys)
    await _survive(cluster.url(primary, standby), lambda: cluster.switchover(standby), record_property)


async def test_primary_killed(cluster: DebianCluster, record_property: Callable[[str, object], None]) -> None:
    await asyncio.to_thread(cluster.heal)
    primary = await asyncio.to_thread(cluster.primary)
    (standby,) = await asyncio.to_thread(cluster.standbys)
    await _survive(cluster.url(primary, standby), lambda: cluster.kill(primary), record_property)
