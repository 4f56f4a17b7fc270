"""URLs with several hosts."""

from __future__ import annotations

import asyncio
import socket

import pytest

from cognizes.engine import DatabaseUnavailableError
from cognizes.engine.database.hosts import HostConnector, split_hosts


def test_one_url_per_host() -> None:
    assert split_hosts("postgresql://u:p@a:1,b:2/d?x=1") == ["postgresql://u:p@a:1/d?x=1", "postgresql://u:p@b:2/d?x=1"]
    assert split_hosts("postgresql:///d?host=a,b&port=1,2") == [
        "postgresql:///d?host=a&port=1",
        "postgresql:///d?host=b&port=2",
    ]
    assert split_hosts("postgresql:///d?host=/tmp/x") == ["postgresql:///d?host=/tmp/x"]


async def test_a_host_that_never_answers_is_passed_over(database_url: str) -> None:
    """It accepts connections and is silent, as a frozen server does. Its time limit is not that of the next host."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        frozen = HostConnector(f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/d", seconds=0.3)
        with pytest.raises(ConnectionError, match=r"no answer in 0\.3 s"):
            await frozen.connect()
        working = HostConnector(database_url, seconds=10)
        both = HostConnector(f"postgresql://u@127.0.0.1:{silent.getsockname()[1]},127.0.0.1:1/d", seconds=0.3)
        with pytest.raises(DatabaseUnavailableError, match=r"no answer in 0\.3 s"):
            await both.connect()
        connection = await working.connect()
        try:
            assert await asyncio.wait_for(working.silent([connection]), 10) == []
        finally:
            await connection.close()
