"""Group commit without a database: who is sent with whom, and who hears what."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from cognizes.engine.errors import DatabaseUnavailableError, EngineClosedError, InvalidInputError
from cognizes.engine.pulse.group_commit import GroupCommit


@dataclass
class Number:
    value: int
    size: int = 1
    key: str = ""
    tenant_key: str = ""

    @property
    def order_key(self) -> str:
        return self.key or str(self.value)

    @property
    def identity(self) -> int:
        return self.value


class Server:
    """Answers with the value doubled; remembers the batches; holds them until released."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.refusal: type[Exception] = InvalidInputError
        self.under_way: list[set[str]] = []

    async def send(self, items: list[Number]) -> list[int | None]:
        self.batches.append([item.value for item in items])
        keys = {item.order_key for item in items}
        assert all(keys.isdisjoint(others) for others in self.under_way)
        self.under_way.append(keys)
        await self.gate.wait()
        await asyncio.sleep(0)
        self.under_way.remove(keys)
        if self.error:
            raise self.error
        if any(item.value < 0 for item in items):
            raise self.refusal("negative")
        return [item.value * 2 for item in items]


@pytest.fixture
async def server() -> Server:
    return Server()


async def turns(times: int = 10) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def behind_one(server: Server, group: GroupCommit[Number, int], *items: Number) -> list[asyncio.Task[int]]:
    """A batch with the number 0 is on its way, and these wait behind it."""
    server.gate.clear()
    tasks = [asyncio.create_task(group.submit(Number(0)))]
    await turns()
    assert server.batches == [[0]]
    tasks += [asyncio.create_task(group.submit(item)) for item in items]
    await turns()
    assert server.batches == [[0]]
    return tasks


async def test_one_caller_alone_is_sent_at_once(server: Server) -> None:
    group = GroupCommit(server.send)
    assert await group.submit(Number(1)) == 2
    assert await group.submit(Number(2)) == 4
    assert server.batches == [[1], [2]]
    await group.close()
    assert group.is_idle


async def test_arrivals_during_a_batch_share_the_next_one_in_order(server: Server) -> None:
    group = GroupCommit(server.send)
    tasks = await behind_one(server, group, *(Number(n) for n in range(1, 5)))
    server.gate.set()
    assert await asyncio.gather(*tasks) == [0, 2, 4, 6, 8]
    assert server.batches == [[0], [1, 2, 3, 4]]


async def test_answered_callers_join_the_next_batch(server: Server) -> None:
    group = GroupCommit(server.send)

    async def writer(start: int) -> None:
        for step in range(10):
            await group.submit(Number(start + step))

    await asyncio.gather(*(writer(100 * n) for n in range(20)))
    assert sum(len(batch) for batch in server.batches) == 200
    assert len(server.batches) <= 25


async def test_items_that_wait_are_sent_before_callers_that_do_not_submit_again(server: Server) -> None:
    group = GroupCommit(server.send)
    sent_before_answer: list[int] = []

    async def client(number: int) -> None:
        await group.submit(Number(number))
        sent_before_answer.append(len(server.batches))

    for number in range(3):
        first = [asyncio.create_task(client(10 * number + place)) for place in range(5)]
        server.gate.clear()
        await turns()
        second = [asyncio.create_task(client(10 * number + place)) for place in range(5, 10)]
        await turns()
        server.gate.set()
        await asyncio.gather(*first, *second)
    # The callers of the first batch do not submit again: from then on no batch waits for callers that were answered.
    assert sent_before_answer[:5] == [1] * 5
    assert sent_before_answer[10:15] == [4] * 5
    assert sent_before_answer[20:25] == [6] * 5


@pytest.mark.parametrize("error", [InvalidInputError, ZeroDivisionError])
async def test_one_bad_item_fails_alone(server: Server, error: type[Exception]) -> None:
    server.refusal = error
    group = GroupCommit(server.send)
    tasks = await behind_one(server, group, Number(1), Number(-1), Number(3))
    server.gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [answer if isinstance(answer, int) else type(answer) for answer in answers] == [0, 2, error, 6]


async def test_an_absent_server_fails_each_caller_once(server: Server) -> None:
    group = GroupCommit(server.send)
    tasks = await behind_one(server, group, Number(1), Number(2), Number(3))
    server.error = DatabaseUnavailableError("away")
    server.gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [DatabaseUnavailableError] * 4
    assert server.batches == [[0], [1, 2, 3]]
    server.error = None
    assert await group.submit(Number(5)) == 10


async def test_a_cancelled_caller_is_not_sent_and_does_not_block_others(server: Server) -> None:
    group = GroupCommit(server.send)
    tasks = await behind_one(server, group, Number(1), Number(2))
    tasks[1].cancel()
    await turns()
    server.gate.set()
    assert await tasks[2] == 4
    assert server.batches == [[0], [2]]


async def test_a_caller_who_leaves_while_its_item_is_sent_cuts_nothing_off(server: Server) -> None:
    group = GroupCommit(server.send)
    (first, second) = await behind_one(server, group, Number(2))
    first.cancel()
    await turns()
    assert server.under_way == [{"0"}]
    server.gate.set()
    assert await second == 4
    assert server.batches == [[0], [2]]


async def test_batches_are_bounded_by_count_and_bytes(server: Server) -> None:
    group = GroupCommit(server.send, max_items=3, max_bytes=100)
    sizes = [1, 1, 1, 90, 90, 500]
    tasks = await behind_one(server, group, *(Number(n, size) for n, size in enumerate(sizes, start=1)))
    server.gate.set()
    await asyncio.gather(*tasks)
    assert server.batches == [[0], [1, 2, 3], [4], [5], [6]]


async def test_an_item_and_its_twin_are_not_in_one_batch(server: Server) -> None:
    group = GroupCommit(server.send)
    tasks = await behind_one(server, group, Number(1, key="k"), Number(1, key="k"), Number(2, key="k"), Number(3))
    server.gate.set()
    await asyncio.gather(*tasks)
    assert server.batches == [[0], [1, 3], [1, 2]]


async def test_a_key_is_never_in_two_batches_and_keeps_its_order(server: Server) -> None:
    """The server itself asserts that batches under way share no key."""
    group = GroupCommit(server.send, server.send, max_items=7)
    tasks = [
        asyncio.create_task(group.submit(Number(100 * number + key, key=str(key))))
        for number in range(1, 40)
        for key in range(6)
    ]
    await asyncio.gather(*tasks)
    sent = [value for batch in server.batches for value in batch]
    for key in range(6):
        assert [value // 100 for value in sent if value % 100 == key] == list(range(1, 40))


async def test_two_senders_share_many_items(server: Server) -> None:
    group = GroupCommit(server.send, server.send)
    server.gate.clear()
    tasks = [asyncio.create_task(group.submit(Number(n))) for n in range(40)]
    await turns()
    assert sorted(map(len, server.batches)) == [20, 20]
    server.gate.set()
    assert await asyncio.gather(*tasks) == [2 * n for n in range(40)]


async def test_few_items_wait_for_the_batch_in_flight_and_share_the_next(server: Server) -> None:
    group = GroupCommit(server.send, server.send)
    tasks = await behind_one(server, group, *(Number(n) for n in range(1, 10)))
    server.gate.set()
    assert await asyncio.gather(*tasks) == [2 * n for n in range(10)]
    assert server.batches == [[0], list(range(1, 10))]
    await group.close()
    assert group.is_idle


async def test_an_item_does_not_wait_long_for_a_batch_that_hangs(server: Server) -> None:
    group = GroupCommit(server.send, server.send)
    tasks = await behind_one(server, group, Number(1))
    async with asyncio.timeout(60):
        while server.batches != [[0], [1]]:
            await asyncio.sleep(0.001)
    server.gate.set()
    assert await asyncio.gather(*tasks) == [0, 2]
    await group.close()


async def test_few_items_do_not_wait_for_a_large_batch(server: Server) -> None:
    group = GroupCommit(server.send, server.send)
    server.gate.clear()
    tasks = [asyncio.create_task(group.submit(Number(0, size=1024 * 1024)))]
    await turns()
    tasks.append(asyncio.create_task(group.submit(Number(1))))
    await turns()
    assert server.batches == [[0], [1]]
    server.gate.set()
    assert await asyncio.gather(*tasks) == [0, 2]


async def test_closing_waits_for_the_queue_and_refuses_new_ones(server: Server) -> None:
    group = GroupCommit(server.send)
    tasks = await behind_one(server, group, Number(1), Number(2))
    closing = asyncio.create_task(group.close())
    await turns()
    assert not closing.done()
    with pytest.raises(EngineClosedError):
        await group.submit(Number(3))
    server.gate.set()
    await closing
    assert [task.done() and task.result() for task in tasks] == [0, 2, 4]
    assert group.is_idle


async def test_a_postponed_item_waits_in_its_queue_and_does_not_delay_others(server: Server) -> None:
    free = asyncio.Event()

    async def send(items: list[Number]) -> list[int | None]:
        answers = await server.send(items)
        return [None if item.key == "held" and not free.is_set() else answer
                for item, answer in zip(items, answers, strict=True)]  # fmt: skip

    async def send_blocking(items: list[Number]) -> list[int | None]:
        await free.wait()
        return await server.send(items)

    group = GroupCommit(send, blocking_sender=send_blocking)
    held = [asyncio.create_task(group.submit(Number(n, key="held"))) for n in (1, 2)]
    await turns()
    held.append(asyncio.create_task(group.submit(Number(3, key="held"))))
    assert await group.submit(Number(9)) == 18
    assert not any(task.done() for task in held)
    free.set()
    assert await asyncio.gather(*held) == [2, 4, 6]
    assert server.batches == [[1, 2], [9], [1, 2], [3]]


async def test_the_end_of_the_loop_leaves_no_caller_waiting(server: Server) -> None:
    """`asyncio.run` cancels every task; a caller who is stubborn enough to wait on must not wait for ever."""
    group = GroupCommit(server.send)
    tasks = await behind_one(server, group, Number(1))
    (worker,) = (task for task in asyncio.all_tasks() if task.get_name() == "group-commit")
    worker.cancel()
    outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, asyncio.CancelledError]


async def test_a_batch_is_of_one_tenant_and_tenants_are_served_round_robin(server: Server) -> None:
    group = GroupCommit(server.send)
    loud = [Number(n, tenant_key="loud") for n in range(1, 5)]
    quiet = [Number(n, tenant_key="quiet") for n in range(5, 7)]
    tasks = await behind_one(server, group, *loud[:2], *quiet[:1], *loud[2:], *quiet[1:])
    server.gate.set()
    await asyncio.gather(*tasks)
    assert server.batches == [[0], [1, 2, 3, 4], [5, 6]]
    await group.close()
    assert group.is_idle


async def test_a_busy_tenant_delays_others_by_one_batch(server: Server) -> None:
    group = GroupCommit(server.send, max_items=2)
    loud = [Number(n, tenant_key="loud") for n in range(1, 7)]
    tasks = await behind_one(server, group, *loud, Number(7, tenant_key="quiet"))
    server.gate.set()
    await asyncio.gather(*tasks)
    assert server.batches == [[0], [1, 2], [7], [3, 4], [5, 6]]


async def test_items_of_a_key_keep_their_order_across_tenants(server: Server) -> None:
    group = GroupCommit(server.send)
    tenants = ["a", "b", "b", "a", "", "a"]
    items = [Number(n, key="k", tenant_key=tenant_key) for n, tenant_key in enumerate(tenants, 1)]
    tasks = await behind_one(server, group, *items)
    server.gate.set()
    await asyncio.gather(*tasks)
    assert server.batches == [[0], [1], [2, 3], [4], [5], [6]]


async def test_cancelled_items_release_their_key_to_the_next_tenant(server: Server) -> None:
    group = GroupCommit(server.send)
    items = [Number(n, key="k", tenant_key=tenant_key) for n, tenant_key in enumerate("aab", 1)]
    tasks = await behind_one(server, group, *items)
    for task in tasks[1:3]:
        task.cancel()
    await asyncio.wait(tasks[1:3])
    server.gate.set()
    assert await tasks[3] == 6
    await tasks[0]
    assert server.batches == [[0], [3]]
    await group.close()
    assert group.is_idle


async def test_a_blocked_key_sends_only_items_of_its_tenant() -> None:
    sent: list[tuple[str, list[int]]] = []

    async def send(items: list[Number]) -> list[int | None]:
        sent.append(("send", [item.value for item in items]))
        return [None if item.value == 1 else item.value for item in items]

    async def send_blocking(items: list[Number]) -> list[int | None]:
        sent.append(("send_blocking", [item.value for item in items]))
        await turns()
        return [item.value for item in items]

    group = GroupCommit(send, blocking_sender=send_blocking)
    items = [Number(n, key="k", tenant_key=tenant_key) for n, tenant_key in enumerate("aab", 1)]
    first = asyncio.create_task(group.submit(items[0]))
    while len(sent) < 2:
        await turns()
    rest = [asyncio.create_task(group.submit(item)) for item in items[1:]]
    assert await asyncio.gather(first, *rest) == [1, 2, 3]
    assert sent == [("send", [1]), ("send_blocking", [1]), ("send_blocking", [2]), ("send", [3])]
    await group.close()
