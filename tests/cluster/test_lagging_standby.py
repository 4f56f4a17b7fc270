"""Asynchronous replication: reads on a replica that lags, and a failover to it that loses acknowledged events."""

from __future__ import annotations

import asyncio
from dataclasses import astuple
from typing import TYPE_CHECKING

import pytest

from cognizes.engine import Engine
from cognizes.engine.sync.client import SignalPullClient
from tests.cluster.traffic import Record, Traffic
from tests.engine_parts import reads_of
from tests.integration.sync.conftest import serving

if TYPE_CHECKING:
    from debian_cluster import DebianCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


async def test_reads_on_a_replica_that_lags_show_what_was_acknowledged(
    asynchronous_cluster: DebianCluster, record_property: Record
) -> None:
    cluster = asynchronous_cluster
    primary = await asyncio.to_thread(cluster.primary)
    (standby,) = await asyncio.to_thread(cluster.standbys)
    async with Engine.open(cluster.url(primary), read_url=cluster.url(standby)) as engine:
        session = await engine.sessions.create("shop", "reader")

        async def write_and_read(count: int) -> None:
            for _ in range(count):
                event = await engine.sessions.append(session, author="user", kind="user_message", text="hello")
                assert (await engine.timeline.read(session.thread_id, limit=1)).last_sequence == event.sequence_num

        async def read_until_answered_by_the_replica() -> None:
            before = reads_of(engine).counters.replica
            async with asyncio.timeout(60):
                while reads_of(engine).counters.replica == before:
                    await engine.timeline.read(session.thread_id, limit=1)

        await write_and_read(20)
        await read_until_answered_by_the_replica()
        await asyncio.to_thread(cluster.freeze_replication, standby)
        counters = reads_of(engine).counters
        replica, behind, _ = astuple(counters)
        await write_and_read(50)
        assert (counters.replica, counters.behind >= behind + 50) == (replica, True)
        await asyncio.to_thread(cluster.resume_processes, standby)
        await read_until_answered_by_the_replica()
        record_property("read_by_replica", counters.replica)
        record_property("read_by_primary_because_behind", counters.behind)


async def test_followers_reload_after_a_failover_that_lost_events(
    asynchronous_cluster: DebianCluster, record_property: Record
) -> None:
    """The new primary gives the numbers of the lost events to new ones; every follower ends up with what is stored."""
    cluster = asynchronous_cluster
    primary = await asyncio.to_thread(cluster.primary)
    (standby,) = await asyncio.to_thread(cluster.standbys)
    url = cluster.url(primary, standby)
    async with Engine.open(url) as writing, Engine.open(url) as following, serving(following) as api:
        traffic = Traffic(writing, following)
        await traffic.start()
        client = SignalPullClient(api, str(traffic.sessions[0].thread_id))
        async with client:
            await asyncio.sleep(1)
            await asyncio.to_thread(cluster.freeze_replication, standby)
            behind = len(traffic.times)
            async with asyncio.timeout(60):
                while len(traffic.times) < behind + 200:
                    await asyncio.sleep(0.05)
            before = len(traffic.times)
            await asyncio.to_thread(cluster.kill, primary)
            await asyncio.to_thread(cluster.kill_replication, standby)
            await traffic.wait_for_recovery(before)
            await traffic.stop_writing()
            stored = await traffic.stored()
            lost = traffic.lost(stored)
            assert lost > 0, "the standby did not lag; the test shows nothing"
            await traffic.wait_for_followers(stored)
            assert traffic.rewinds >= 1
            ids = stored[str(traffic.sessions[0].thread_id)]
            async with asyncio.timeout(60):
                await client.wait_for(lambda copy: [message.text for message in copy.messages] == ids)
        await traffic.stop()
    record_property("pause_seconds", round(traffic.pause, 1))
    record_property("acknowledged", len(traffic.times))
    record_property("lost", lost)
    record_property("followers_that_reloaded", traffic.rewinds)
