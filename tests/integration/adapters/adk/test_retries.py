"""Writers that retry after a conflict queue: a success costs little more than one read and one append."""

from __future__ import annotations

import asyncio

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.session import Session

from cognizes.engine.adapters.adk import OpenSessionService

_NAMES = {"app_name": "shop", "user_id": "ada", "session_id": "s"}
_FOREVER = 600.0
"""Limits that no test reaches: time decides none of them."""


@pytest.fixture(autouse=True)
async def _unlimited(ours: OpenSessionService) -> None:
    queue = (await ours.engine()).sessions.retry_queue
    queue.longest_hold = queue.longest_wait = _FOREVER


async def read(service: OpenSessionService) -> Session:
    found = await service.get_session(**_NAMES)
    assert found is not None
    return found


async def append(service: OpenSessionService, session: Session, value: int = 0) -> None:
    await service.append_event(session, Event(author="agent", actions=EventActions(state_delta={"n": value})))


async def conflict(service: OpenSessionService, session: Session) -> None:
    with pytest.raises(StaleSessionError):
        await append(service, session)


async def test_ten_retrying_writers_need_few_attempts(ours: OpenSessionService) -> None:
    await ours.create_session(**_NAMES)
    copies = [await read(ours) for _ in range(10)]
    attempts = 0

    async def write(session: Session) -> None:
        nonlocal attempts
        for _ in range(5):
            while True:
                attempts += 1
                try:
                    await append(ours, session, session.state.get("n", 0) + 1)
                    break
                except StaleSessionError:
                    session = await read(ours)

    await asyncio.gather(*map(write, copies))
    assert (await read(ours)).state == {"n": 50}
    # Each of the other nine has one conflict, with the writer that was first.
    assert attempts <= 50 + 9


async def test_a_task_without_a_conflict_never_waits(ours: OpenSessionService) -> None:
    session = await ours.create_session(**_NAMES)
    stale = await read(ours)
    await append(ours, session)
    await conflict(ours, stale)
    await read(ours)
    # This task has the lock and appends nothing; another one reads and appends.
    async with asyncio.timeout(60):
        other = await asyncio.create_task(read(ours))
        await asyncio.create_task(append(ours, other))


async def retry(ours: OpenSessionService, stale: Session, *, appends: asyncio.Event) -> int:
    """Return the number of events that a retry reads before it appends."""
    await conflict(ours, stale)
    session = await read(ours)
    events = len(session.events)
    await appends.wait()
    await append(ours, session)
    return events


async def test_a_retry_reads_after_the_one_before_has_appended(ours: OpenSessionService) -> None:
    session = await ours.create_session(**_NAMES)
    stale = [await read(ours), await read(ours)]
    await append(ours, session)
    appends = asyncio.Event()
    tasks = [asyncio.create_task(retry(ours, one, appends=appends)) for one in stale]
    appends.set()
    assert sorted(await asyncio.gather(*tasks)) == [1, 2]


@pytest.mark.parametrize("end", ["cancelled", "returned", "failed", "deleted"])
async def test_the_lock_is_released_without_an_append(ours: OpenSessionService, end: str) -> None:
    """The next task gets the lock when the one before is cancelled, returns, or cannot append."""
    session = await ours.create_session(**_NAMES)
    stale = [await read(ours), await read(ours)]
    await append(ours, session)
    has_lock, is_over, second_waits = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def first() -> None:
        await conflict(ours, stale[0])
        found = await read(ours)
        has_lock.set()
        await second_waits.wait()
        if end == "cancelled":
            await asyncio.Event().wait()
        if end == "deleted":
            await asyncio.create_task(ours.delete_session(**_NAMES))
            assert await ours.get_session(**_NAMES) is None
        if end == "failed":
            with pytest.raises(AlreadyExistsError):
                await ours.append_event(found, Event(id=found.events[0].id, author="another"))
        if end != "returned":
            await is_over.wait()

    async def second() -> bool:
        await conflict(ours, stale[1])
        second_waits.set()
        return await ours.get_session(**_NAMES) is not None

    holder = asyncio.create_task(first())
    await has_lock.wait()
    waiter = asyncio.create_task(second())
    await second_waits.wait()
    if end == "cancelled":
        holder.cancel()
    async with asyncio.timeout(60):
        assert await waiter is (end != "deleted")
    is_over.set()
    await asyncio.gather(holder, return_exceptions=True)
    assert not (await ours.engine()).sessions.retry_queue.retries


async def test_a_cancelled_wait_leaves_the_queue(ours: OpenSessionService) -> None:
    session = await ours.create_session(**_NAMES)
    stale = [await read(ours) for _ in range(3)]
    await append(ours, session)
    appends = asyncio.Event()
    first, second, third = (asyncio.create_task(retry(ours, one, appends=appends)) for one in stale)
    queue = (await ours.engine()).sessions.retry_queue
    while len(queue.retries) < 3 or not queue.locks.has_waiters(("shop", "ada", "s")):
        await asyncio.sleep(0)
    second.cancel()
    appends.set()
    assert {await first, await third} == {1, 2}
    with pytest.raises(asyncio.CancelledError):
        await second
    assert not queue.retries
    assert not queue.locks.is_locked(("shop", "ada", "s"))


async def test_a_lock_without_an_append_is_limited(ours: OpenSessionService) -> None:
    session = await ours.create_session(**_NAMES)
    stale = [await read(ours), await read(ours)]
    await append(ours, session)
    queue = (await ours.engine()).sessions.retry_queue
    queue.longest_hold = 0.001
    await conflict(ours, stale[0])
    await read(ours)
    async with asyncio.timeout(60):
        await asyncio.create_task(retry(ours, stale[1], appends=_set_event()))
    await append(ours, await read(ours))
    assert not queue.retries


async def test_a_wait_is_limited(ours: OpenSessionService) -> None:
    session = await ours.create_session(**_NAMES)
    stale = [await read(ours), await read(ours)]
    await append(ours, session)
    queue = (await ours.engine()).sessions.retry_queue
    await conflict(ours, stale[0])
    await read(ours)
    queue.longest_wait = 0.001
    async with asyncio.timeout(60):
        await asyncio.create_task(retry(ours, stale[1], appends=_set_event()))


async def test_a_conflict_that_is_not_retried_is_forgotten(ours: OpenSessionService) -> None:
    session = await ours.create_session(**_NAMES)
    stale = await read(ours)
    await append(ours, session)
    queue = (await ours.engine()).sessions.retry_queue
    queue.longest_wait = 0.001
    await conflict(ours, stale)
    async with asyncio.timeout(60):
        while queue.retries:
            await asyncio.sleep(0.001)


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
