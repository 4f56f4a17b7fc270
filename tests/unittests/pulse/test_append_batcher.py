"""The order of one thread's appends is the order of their submission, whatever happens on the way."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from cognizes.engine.database import Database
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.pulse.group_commit import AppendAnswer, AppendBatcher, AppendItem
from tests.unittests.pulse.scripted_database import ScriptedDatabase, item

THREAD, OTHER, THIRD = UUID(int=1), UUID(int=2), UUID(int=3)


@pytest.fixture
async def server() -> ScriptedDatabase:
    return ScriptedDatabase()


@pytest.fixture
async def batcher(server: ScriptedDatabase) -> AppendBatcher:
    return make_batcher(server)


def make_batcher(server: ScriptedDatabase, *, retry_seconds: float = 30) -> AppendBatcher:
    return AppendBatcher(cast(Database, server), snapshot_every=0, max_state_bytes=1000, retry_seconds=retry_seconds)


async def occupy(server: ScriptedDatabase, batcher: AppendBatcher) -> list[asyncio.Task[AppendAnswer]]:
    """Keeps the batcher's ways to the database in use, so that what comes now waits and shares a batch."""
    tasks = []
    for number in range(2):
        event_id = f"occupied{number}"
        server.gates[event_id] = asyncio.Event()
        tasks.append(asyncio.create_task(batcher.submit(item(uuid4(), event_id))))
        await turn(5)
    return tasks


async def turn(times: int = 1) -> None:
    """Lets everything that is ready run."""
    for _ in range(times):
        await asyncio.sleep(0)


def open_gates(server: ScriptedDatabase) -> None:
    for gate in server.gates.values():
        gate.set()


def submit_all(batcher: AppendBatcher, *items: AppendItem) -> list[asyncio.Task[AppendAnswer]]:
    return [asyncio.create_task(batcher.submit(one)) for one in items]


async def finish(*tasks: Any) -> list[Any]:
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)


async def test_an_event_that_comes_twice_in_a_batch_lets_nobody_overtake(
    server: ScriptedDatabase, batcher: AppendBatcher
) -> None:
    """The other process lets the thread go between the two halves of what was one batch."""
    occupied = await occupy(server, batcher)
    server.held.add(THREAD)

    def let_go(call: list[tuple[UUID, str]]) -> None:
        if any(event_id == "twin" for _, event_id in call):
            twins.append(None)
        if len(twins) == 2:
            server.held.discard(THREAD)

    twins: list[None] = []
    server.before = let_go
    tasks = submit_all(
        batcher, item(THREAD, "a"), item(OTHER, "twin", given=True), item(OTHER, "twin", given=True), item(THREAD, "b")
    )
    await turn()
    open_gates(server)
    await turn(20)
    await server.release_thread(THREAD)
    await finish(*occupied, *tasks)
    assert server.log[THREAD] == ["a", "b"]
    assert server.log[OTHER] == ["twin"]


async def test_a_batch_that_is_sent_item_by_item_lets_nobody_overtake(
    server: ScriptedDatabase, batcher: AppendBatcher
) -> None:
    """The first is in the way of another process, the second of the same batch waits its turn, the third came later."""
    occupied = await occupy(server, batcher)

    def refuse(call: list[tuple[UUID, str]]) -> None:
        if (OTHER, "bad") in call:
            server.held.add(THREAD)
            raise InvalidInputError("something in the batch cannot be stored")
        if (THREAD, "1") in call and not late:
            late.extend(submit_all(batcher, item(THREAD, "3")))

    late: list[asyncio.Task[AppendAnswer]] = []
    server.before = refuse
    bad, first, *rest = submit_all(batcher, item(OTHER, "bad"), item(THREAD, "1"), item(THIRD, "z"), item(THREAD, "2"))
    await turn()
    server.gates["z"] = asyncio.Event()
    for event_id in ("occupied0", "occupied1"):
        server.gates[event_id].set()
    await turn(30)
    open_gates(server)
    await turn(30)
    await server.release_thread(THREAD)
    outcomes = await finish(bad, first, *rest, *occupied, *late)
    assert isinstance(outcomes[0], InvalidInputError)
    assert server.log[THREAD] == ["1", "2", "3"]


async def test_a_cancelled_caller_whose_event_is_on_its_way_is_not_overtaken(
    server: ScriptedDatabase, batcher: AppendBatcher
) -> None:
    """Nobody of the thread is sent before it is known what became of the event of the one who left."""
    server.gates["1"] = asyncio.Event()
    (first,) = submit_all(batcher, item(THREAD, "1"))
    await server_reached(server, "1")
    first.cancel()
    (second,) = submit_all(batcher, item(THREAD, "2"))
    await turn(20)
    assert [call for call in server.calls if (THREAD, "2") in call] == []
    open_gates(server)
    await finish(first, second)
    assert server.log[THREAD] == ["1", "2"]


async def server_reached(server: ScriptedDatabase, event_id: str) -> None:
    await asyncio.wait_for(server.reached.setdefault(event_id, asyncio.Event()).wait(), 60)


async def test_mates_of_a_twin_are_not_stored_twice(server: ScriptedDatabase, batcher: AppendBatcher) -> None:
    """What comes behind the twin cannot be stored; what came before has been, and is not tried again."""
    occupied = await occupy(server, batcher)

    def refuse(call: list[tuple[UUID, str]]) -> None:
        if (THIRD, "bad") in call:
            raise InvalidInputError("bad")

    server.before = refuse
    tasks = submit_all(
        batcher,
        item(THREAD, "new"),
        item(OTHER, "twin", given=True),
        item(OTHER, "twin", given=True),
        item(THIRD, "bad"),
    )
    await turn()
    open_gates(server)
    outcomes = await finish(*tasks)
    await finish(*occupied)
    assert [getattr(one, "status", type(one)) for one in outcomes] == [
        "stored", "stored", "duplicate", InvalidInputError,
    ]  # fmt: skip


async def test_a_lost_answer_is_asked_for_again_and_nothing_is_stored_twice(server: ScriptedDatabase) -> None:
    batcher = make_batcher(server)
    occupied = await occupy(server, batcher)
    tasks = submit_all(batcher, item(THREAD, "1"), item(OTHER, "2"), item(THREAD, "3"))
    await turn()
    server.lost_answers = 1
    open_gates(server)
    outcomes = await finish(*tasks)
    await finish(*occupied)
    assert {outcome.status for outcome in outcomes} <= {"stored", "duplicate"}
    assert server.log[THREAD] == ["1", "3"]
    assert server.log[OTHER] == ["2"]


async def test_closing_waits_for_a_lone_caller_and_for_those_behind(
    server: ScriptedDatabase, batcher: AppendBatcher
) -> None:
    server.gates["1"] = asyncio.Event()
    tasks = submit_all(batcher, item(THREAD, "1"), item(THREAD, "2"), item(THREAD, "3"))
    await server_reached(server, "1")
    closing = asyncio.create_task(batcher.close())
    await turn(10)
    assert not closing.done()
    assert server.given_back == 0
    open_gates(server)
    await finish(closing)
    assert [task.done() and task.exception() for task in tasks] == [None, None, None]
    assert server.log[THREAD] == ["1", "2", "3"]


async def test_closing_waits_for_a_thread_that_somebody_else_holds(
    server: ScriptedDatabase, batcher: AppendBatcher
) -> None:
    server.held |= {THREAD, OTHER}
    tasks = submit_all(batcher, item(THREAD, "1"), item(OTHER, "2"), item(THREAD, "3"))
    await turn(20)
    closing = asyncio.create_task(batcher.close())
    await turn(20)
    assert not closing.done()
    await server.release_thread(THREAD)
    await server.release_thread(OTHER)
    await finish(closing)
    assert [task.done() and task.exception() for task in tasks] == [None, None, None]


async def test_an_error_nobody_thought_of_leaves_nobody_waiting(
    server: ScriptedDatabase, batcher: AppendBatcher
) -> None:
    occupied = await occupy(server, batcher)

    def stumble(call: list[tuple[UUID, str]]) -> None:
        if (THREAD, "1") in call:
            raise ZeroDivisionError

    server.before = stumble
    first = item(THREAD, "1", size=8 * 1024 * 1024)
    tasks = submit_all(batcher, first, item(OTHER, "2"), item(THREAD, "3"))
    await turn()
    open_gates(server)
    outcomes = await finish(*tasks)
    await finish(*occupied)
    assert isinstance(outcomes[0], ZeroDivisionError)
    assert [outcome.status for outcome in outcomes[1:]] == ["stored", "stored"]
