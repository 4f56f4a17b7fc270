"""One Patroni cluster for all tests marked `cluster`; each test begins with a healthy one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
if TYPE_CHECKING:
    from debian_cluster import DebianCluster


@pytest.fixture(scope="session")
def started_cluster() -> Iterator[DebianCluster]:
    from debian_cluster import DebianCluster

    if (reason := DebianCluster.available()) is not None:
        pytest.skip(reason)
    with DebianCluster(2) as running:
        yield running


@pytest.fixture
def cluster(started_cluster: DebianCluster) -> DebianCluster:
    """Return the cluster, healthy and with synchronous replication."""
    started_cluster.restore_network()
    started_cluster.set_synchronous(True)
    return started_cluster


@pytest.fixture
def asynchronous_cluster(started_cluster: DebianCluster) -> DebianCluster:
    """Return the cluster, healthy and with asynchronous replication."""
    started_cluster.restore_network()
    started_cluster.set_synchronous(False)
    return started_cluster
