"""Two servers on one database give a caller its rate and its streams once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest

from cognizes.engine import DatabaseUnavailableError, Engine, TooManyRequestsError
from cognizes.engine.access import Permission
from cognizes.engine.access.authenticator import Principal
from cognizes.engine.api.main import create_app
from tests.engine_parts import database_of
from tests.integration.access.conftest import Guarded
from tests.outages import outages

# One request in an hour, in the long run: the tests end long before.
LIMITS = {"requests_per_second": 1 / 3600, "requests_at_once": 10, "max_streams_per_caller": 3}


class Node:
    """A server on an engine of its own; `exchange` is called by the test and not by a timer."""

    def __init__(self, engine: Engine, key: str) -> None:
        self.app = create_app(engine=engine)
        transport = httpx.ASGITransport(self.app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers={"X-API-Key": key})

    async def exchange(self) -> None:
        await self.app.state.shared_limits.exchange()

    async def ask(self, count: int) -> int:
        """Send requests; return how many were served."""
        codes = [(await self.http.get("/api/access/me")).status_code for _ in range(count)]
        assert set(codes) <= {200, 429}
        return codes.count(200)


@pytest.fixture
async def nodes(database_url: str) -> AsyncIterator[list[Node]]:
    async with AsyncExitStack() as parts:
        engines = [
            await parts.enter_async_context(Engine.open(database_url, auth="required", **LIMITS)) for _ in range(2)
        ]
        key = await Guarded(engines[0]).key("a")
        opened = [Node(engine, key) for engine in engines]
        for node in opened:
            await parts.enter_async_context(node.http)
        yield opened


async def test_requests_to_two_nodes_take_from_one_bucket(nodes: list[Node]) -> None:
    first, second = nodes
    assert await first.ask(6) == 6
    assert await second.ask(1) == 1
    for node in nodes:
        await node.exchange()
    # Three are left of ten, on all nodes together.
    assert await second.ask(5) == 3
    await second.exchange()
    assert await first.ask(1) == 1, "the first node does not know of the last three yet"
    await first.exchange()
    assert await first.ask(1) == 0
    assert await second.ask(1) == 0


async def test_what_was_given_too_much_is_repaid(nodes: list[Node]) -> None:
    first, second = nodes
    assert (await first.ask(10), await second.ask(10)) == (10, 10)
    for node in (*nodes, *nodes):
        await node.exchange()
    refused = await first.http.get("/api/access/me")
    assert refused.status_code == 429
    # Ten tokens below zero and one to spend, at one in an hour.
    assert int(refused.headers["Retry-After"]) > 10 * 3600


async def test_streams_of_two_nodes_are_counted_together(nodes: list[Node]) -> None:
    caller = Principal("key", frozenset({"a"}), "ada", frozenset({Permission.READ}))
    first, second = (node.app.state.streams for node in nodes)
    ends = [first.begin(caller), first.begin(caller)]
    ends.append(second.begin(caller))
    for node in (*nodes, *nodes):
        await node.exchange()
    for streams in (first, second):
        with pytest.raises(TooManyRequestsError, match="3 streams are open"):
            streams.begin(caller)
    ends[0]()
    for node in nodes:
        await node.exchange()
    second.begin(caller)()
    for end in ends[1:]:
        end()


async def test_streams_of_a_dead_process_stop_counting(nodes: list[Node], database_url: str) -> None:
    caller = Principal("key", frozenset({"a"}), "ada", frozenset({Permission.READ}))
    first, second = (node.app.state.streams for node in nodes)
    for _ in range(3):
        first.begin(caller)
    second.begin(caller)
    for node in nodes:
        await node.exchange()
    with pytest.raises(TooManyRequestsError):
        second.begin(caller)
    async with Engine.open(database_url) as engine:
        await database_of(engine).pool.execute("UPDATE shared_streams SET seen_at = now() - interval '11 seconds'")
    await nodes[1].exchange()
    second.begin(caller)


async def test_while_postgresql_is_away_each_node_limits_by_itself(database_url: str) -> None:
    async with (
        outages(database_url) as (url, outage),
        Engine.open(url, auth="required", connect_timeout=1, **LIMITS) as engine,
    ):
        node = Node(engine, await Guarded(engine).key("a"))
        async with node.http:
            assert await node.ask(4) == 4
            outage.begin()
            with pytest.raises(DatabaseUnavailableError):
                await node.exchange()
            outage.end()
            await node.exchange()
            assert await node.ask(10) == 6


async def test_the_table_has_no_names(nodes: list[Node]) -> None:
    await nodes[0].ask(1)
    await nodes[0].exchange()
    rows = await database_of(nodes[0].app.state.engine).pool.fetch("SELECT caller FROM shared_buckets")
    assert [len(row["caller"]) for row in rows] == [64]
