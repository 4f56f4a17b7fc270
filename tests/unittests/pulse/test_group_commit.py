"""Group commit without a database: who is sent with whom, and who hears what."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from cognizes.engine.errors import DatabaseUnavailableError, InvalidInputError
from cognizes.engine.pulse.group_commit import GroupCommit


@dataclass
class Number:
    value: int
    size: int = 1


class Server:
    """Answers with the value doubled; remembers the batches; holds them until released."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def send(self, items: list[Number]) -> list[int]:
        self.batches.append([item.value for item in items])
        await self.gate.wait()
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        if any(item.value < 0 for item in items):
            raise InvalidInputError("negative")
        return [item.value * 2 for item in items]


@pytest.fixture
async def server() -> Server:
    return Server()


async def test_one_caller_alone_is_sent_at_once(server: Server) -> None:
    group = GroupCommit(server.send)
    assert await group.submit(Number(1)) == 2
    assert await group.submit(Number(2)) == 4
    assert server.batches == [[1], [2]]
    assert group.is_idle


async def test_arrivals_during_a_batch_share_the_next_one_in_order(server: Server) -> None:
    group = GroupCommit(server.send)
    server.gate.clear()
    tasks = [asyncio.create_task(group.submit(Number(n))) for n in range(5)]
    await asyncio.sleep(0)
    assert server.batches == [[0]]
    server.gate.set()
    assert await asyncio.gather(*tasks) == [0, 2, 4, 6, 8]
    assert server.batches == [[0], [1, 2, 3, 4]]


async def test_those_who_were_answered_join_the_next_batch(server: Server) -> None:
    group = GroupCommit(server.send)

    async def writer(start: int) -> None:
        for step in range(10):
            await group.submit(Number(start + step))

    await asyncio.gather(*(writer(100 * n) for n in range(20)))
    assert sum(len(batch) for batch in server.batches) == 200
    assert len(server.batches) <= 25


async def test_one_bad_item_fails_alone(server: Server) -> None:
    group = GroupCommit(server.send)
    server.gate.clear()
    tasks = [asyncio.create_task(group.submit(Number(n))) for n in (0, 1, -1, 3)]
    await asyncio.sleep(0)
    server.gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [answer if isinstance(answer, int) else type(answer) for answer in answers] == [0, 2, InvalidInputError, 6]


async def test_an_absent_server_fails_everybody_once(server: Server) -> None:
    group = GroupCommit(server.send)
    server.gate.clear()
    tasks = [asyncio.create_task(group.submit(Number(n))) for n in range(4)]
    await asyncio.sleep(0)
    server.error = DatabaseUnavailableError("away")
    server.gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [DatabaseUnavailableError] * 4
    assert server.batches == [[0], [1, 2, 3]]
    server.error = None
    assert await group.submit(Number(5)) == 10


async def test_a_cancelled_caller_is_not_sent_and_blocks_nobody(server: Server) -> None:
    group = GroupCommit(server.send)
    server.gate.clear()
    tasks = [asyncio.create_task(group.submit(Number(n))) for n in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    server.gate.set()
    assert await tasks[2] == 4
    assert server.batches == [[0], [2]]


async def test_a_cancelled_leader_hands_over(server: Server) -> None:
    group = GroupCommit(server.send)
    server.gate.clear()
    leader, follower = (asyncio.create_task(group.submit(Number(n))) for n in (1, 2))
    await asyncio.sleep(0)
    leader.cancel()
    await asyncio.sleep(0)
    server.gate.set()
    assert await follower == 4


async def test_batches_are_bounded_by_count_and_bytes(server: Server) -> None:
    group = GroupCommit(server.send, max_items=3, max_bytes=100)
    server.gate.clear()
    sizes = [1, 1, 1, 1, 90, 90, 500]
    tasks = [asyncio.create_task(group.submit(Number(n, size))) for n, size in enumerate(sizes)]
    await asyncio.sleep(0)
    server.gate.set()
    await asyncio.gather(*tasks)
    assert server.batches == [[0], [1, 2, 3], [4], [5], [6]]


async def test_closing_waits_for_the_queue(server: Server) -> None:
    group = GroupCommit(server.send)
    server.gate.clear()
    tasks = [asyncio.create_task(group.submit(Number(n))) for n in range(3)]
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.05, server.gate.set)
    await tasks[0]
    await group.close()
    assert [task.done() for task in tasks] == [True, True, True]
