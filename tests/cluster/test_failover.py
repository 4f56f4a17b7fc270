"""Failover on a real Patroni cluster: pause, acknowledged events, order and followers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.cluster.traffic import Record, survive

if TYPE_CHECKING:
    from debian_cluster import DebianCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


async def test_primary_frozen_and_listed_first(cluster: DebianCluster, record_property: Record) -> None:
    primary = await asyncio.to_thread(cluster.primary)
    (standby,) = await asyncio.to_thread(cluster.standbys)
    await survive(cluster.url(primary, standby), lambda: cluster.freeze(primary), record_property)


async def test_planned_switchover(cluster: DebianCluster, record_property: Record) -> None:
    primary = await asyncio.to_thread(cluster.primary)
    (standby,) = await asyncio.to_thread(cluster.standbys)
    await survive(cluster.url(primary, standby), lambda: cluster.switchover(standby), record_property)


async def test_primary_killed(cluster: DebianCluster, record_property: Record) -> None:
    primary = await asyncio.to_thread(cluster.primary)
    (standby,) = await asyncio.to_thread(cluster.standbys)
    await survive(cluster.url(primary, standby), lambda: cluster.kill(primary), record_property)


async def test_primary_frozen_behind_haproxy(cluster: DebianCluster, record_property: Record) -> None:
    primary = await asyncio.to_thread(cluster.primary)
    await survive(cluster.haproxy_url(), lambda: cluster.freeze(primary), record_property)


async def test_primary_killed_behind_pgbouncer_and_haproxy(cluster: DebianCluster, record_property: Record) -> None:
    primary = await asyncio.to_thread(cluster.primary)
    await survive(
        cluster.pgbouncer_url(), lambda: cluster.kill(primary), record_property, listen_url=cluster.haproxy_url()
    )
