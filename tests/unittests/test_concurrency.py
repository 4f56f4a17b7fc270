"""The primitives that every waiting part of the engine uses."""

from __future__ import annotations

import asyncio

import pytest

from cognizes.engine.concurrency import SharedCalls, Sweeper, WakeUp, retry_while_unavailable
from cognizes.engine.errors import DatabaseUnavailableError, NotFoundError, PoolTimeoutError
from cognizes.engine.supervision import Supervisor


async def test_a_notification_wakes_all_tasks_that_wait() -> None:
    wake_up = WakeUp()
    waiting = [asyncio.create_task(wake_up.wait(wake_up.version)) for _ in range(3)]
    await asyncio.sleep(0)
    wake_up.notify()
    assert await asyncio.gather(*waiting) == [True, True, True]


async def test_a_notification_before_the_wait_is_not_lost() -> None:
    wake_up = WakeUp()
    seen = wake_up.version
    wake_up.notify()
    assert await asyncio.wait_for(wake_up.wait(seen), timeout=5)


async def test_a_task_that_has_seen_the_newest_version_waits_for_the_next() -> None:
    wake_up = WakeUp()
    wake_up.notify()
    assert not await wake_up.wait(wake_up.version, timeout=0.01)


async def test_a_retry_ends_with_the_first_success() -> None:
    errors = [DatabaseUnavailableError("away"), DatabaseUnavailableError("away")]
    retries = 0

    def count() -> None:
        nonlocal retries
        retries += 1

    async def attempt() -> str:
        if errors:
            raise errors.pop()
        return "done"

    assert await retry_while_unavailable(attempt, before_retry=count) == "done"
    assert retries == 2


@pytest.mark.parametrize("error", [NotFoundError("no"), PoolTimeoutError("full")])
async def test_other_errors_are_not_retried(error: Exception) -> None:
    calls = 0

    async def attempt() -> None:
        nonlocal calls
        calls += 1
        raise error

    with pytest.raises(type(error)):
        await retry_while_unavailable(attempt)
    assert calls == 1


async def test_the_last_error_is_raised_after_the_time_limit() -> None:
    async def attempt() -> None:
        raise DatabaseUnavailableError("away")

    with pytest.raises(DatabaseUnavailableError):
        await retry_while_unavailable(attempt, seconds=0.05)


async def test_a_failed_first_attempt_of_the_caller_is_the_first_one() -> None:
    steps: list[str] = []

    async def attempt() -> str:
        steps.append("attempt")
        return "done"

    away = DatabaseUnavailableError("away")
    answer = await retry_while_unavailable(attempt, failed=away, before_retry=lambda: steps.append("retry"))
    assert (answer, steps) == ("done", ["retry", "attempt"])
    with pytest.raises(DatabaseUnavailableError) as raised:
        await retry_while_unavailable(attempt, failed=away, seconds=0)
    assert raised.value is away
    assert steps == ["retry", "attempt"]


async def test_a_job_runs_at_its_interval_and_at_once_when_a_sweep_is_asked_for() -> None:
    sweeper, ran = Sweeper(Supervisor()), WakeUp()

    async def job() -> None:
        ran.notify()

    often = sweeper.start("often", job, seconds=0.01)
    assert await ran.wait(2, timeout=10)
    await often.stop()
    before = ran.version
    seldom = sweeper.start("seldom", job, seconds=3600)
    await asyncio.sleep(0)
    await sweeper.sweep()
    assert await ran.wait(before, timeout=10)
    await seldom.stop()


async def test_a_job_that_fails_runs_again_and_does_not_stop_the_others() -> None:
    supervisor = Supervisor()
    sweeper, failed, ran = Sweeper(supervisor), WakeUp(), WakeUp()

    async def failing() -> None:
        failed.notify()
        raise DatabaseUnavailableError("away")

    async def job() -> None:
        ran.notify()

    loops = [sweeper.start("failing", failing, seconds=0.01), sweeper.start("job", job, seconds=0.01)]
    assert await failed.wait(2, timeout=10)
    assert await ran.wait(2, timeout=10)
    assert supervisor.names == ["failing", "job"]
    for loop in loops:
        await loop.stop()


async def test_a_call_is_shared_by_the_tasks_of_one_step_only() -> None:
    calls = SharedCalls()
    made: list[str] = []
    gate = asyncio.Event()

    async def read() -> int:
        made.append("read")
        number = len(made)
        await gate.wait()
        return number

    first = [asyncio.create_task(calls.call("a", read)) for _ in range(3)]
    other = asyncio.create_task(calls.call("b", read))
    while len(made) < 2:
        await asyncio.sleep(0)
    # The first call has begun: what was committed since is not in its result.
    later = asyncio.create_task(calls.call("a", read))
    while len(made) < 3:
        await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(*first, other, later) == [1, 1, 1, 2, 3]


async def test_a_running_call_is_joined_if_its_result_does_not_change() -> None:
    calls = SharedCalls(joins_running=True)
    gate, made = asyncio.Event(), list[int]()

    async def read() -> int:
        made.append(len(made))
        await gate.wait()
        return made[-1]

    first = asyncio.create_task(calls.call("a", read))
    while not made:
        await asyncio.sleep(0)
    later = asyncio.create_task(calls.call("a", read))
    await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(first, later) == [0, 0]
    assert await calls.call("a", read) == 1


async def test_a_cancelled_caller_cancels_no_shared_call() -> None:
    calls = SharedCalls()
    gate = asyncio.Event()

    async def fail() -> int:
        await gate.wait()
        raise NotFoundError("gone")

    first, second = (asyncio.create_task(calls.call("a", fail)) for _ in range(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    with pytest.raises(NotFoundError):
        await second
