"""Background loops that fail: logged, restarted with backoff, reported; one loop does not affect another."""

from __future__ import annotations

import asyncio
import logging

import pytest

from cognizes.engine.errors import DatabaseError
from cognizes.engine.supervision import Supervisor


class Loop:
    """A round that raises what it is given, then succeeds."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.rounds = 0
        self.succeeded = asyncio.Event()

    async def round(self) -> None:
        self.rounds += 1
        if self.errors:
            raise self.errors.pop(0)
        self.succeeded.set()
        await asyncio.sleep(0.001)


async def test_an_unexpected_exception_is_logged_with_its_cause_and_the_loop_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor, body = Supervisor(), Loop(ValueError("a defect"))
    loop = supervisor.start("sweeper", body.round)
    await asyncio.wait_for(body.succeeded.wait(), 30)
    assert loop.restarts == 1
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "sweeper" in record.getMessage()
    assert record.exc_info is not None
    assert "a defect" in str(record.exc_info[1])
    await loop.stop()
    assert supervisor.names == []


async def test_the_same_known_error_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    body = Loop(DatabaseError("away"), DatabaseError("away"), DatabaseError("full"), DatabaseError("away"))
    loop = Supervisor().start("reader", body.round, longest_pause=0.01)
    await asyncio.wait_for(body.succeeded.wait(), 30)
    await loop.stop()
    found = [record.getMessage().rpartition(": ")[2] for record in caplog.records if record.levelno == logging.WARNING]
    assert (found, loop.restarts) == (["away", "full", "away"], 4)


async def test_a_failing_loop_is_reported_until_a_round_succeeds() -> None:
    supervisor, body = Supervisor(), Loop()
    may_succeed = asyncio.Event()

    async def round_() -> None:
        if not may_succeed.is_set():
            raise DatabaseError("the function is missing")
        await body.round()

    failing = supervisor.start("failing", round_, longest_pause=0.01)
    healthy = supervisor.start("healthy", Loop().round)
    while not supervisor.failures:
        await asyncio.sleep(0.001)
    (failure,) = supervisor.failures
    assert (failure.name, failure.error) == ("failing", "the function is missing")
    assert supervisor.names == ["failing", "healthy"]
    may_succeed.set()
    await asyncio.wait_for(body.succeeded.wait(), 30)
    while supervisor.failures:
        await asyncio.sleep(0.001)
    await failing.stop()
    await healthy.stop()


async def test_the_report_does_not_repeat_texts_of_foreign_exceptions() -> None:
    supervisor = Supervisor()
    loop = supervisor.start("loop", Loop(*(ValueError("postgresql://user:secret@host") for _ in range(1000))).round)
    while not supervisor.failures:
        await asyncio.sleep(0.001)
    assert "ValueError" in supervisor.failures[0].error
    assert "secret" not in supervisor.failures[0].error
    await loop.stop()


async def test_the_pause_doubles_up_to_the_longest_and_starts_over_after_a_success(
    caplog: pytest.LogCaptureFixture,
) -> None:
    body = Loop(*(ValueError() for _ in range(5)))
    loop = Supervisor().start("loop", body.round, longest_pause=0.15)
    await asyncio.wait_for(body.succeeded.wait(), 30)
    body.succeeded.clear()
    body.errors.append(ValueError())
    while body.errors:
        await asyncio.sleep(0.001)
    await asyncio.wait_for(body.succeeded.wait(), 30)
    await loop.stop()
    pauses = [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]
    assert pauses == [0.05, 0.1, 0.15, 0.15, 0.15, 0.05]


async def test_a_future_that_was_cancelled_inside_a_round_does_not_end_the_loop() -> None:
    body = Loop(asyncio.CancelledError())
    loop = Supervisor().start("loop", body.round)
    await asyncio.wait_for(body.succeeded.wait(), 30)
    await loop.stop()


async def test_a_round_that_takes_a_cancellation_for_something_else_is_cancelled_again() -> None:
    began = asyncio.Event()
    swallowed = 0

    async def round_() -> None:
        nonlocal swallowed
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            swallowed += 1
            if swallowed > 1:
                raise
            await asyncio.Event().wait()

    loop = Supervisor().start("loop", round_)
    await began.wait()
    await asyncio.wait_for(loop.stop(), 30)
    assert swallowed == 1
    assert loop.has_ended


async def test_a_loop_that_finishes_ends_its_round_and_begins_no_other() -> None:
    rounds = 0
    may_end = asyncio.Event()

    async def round_() -> None:
        nonlocal rounds
        rounds += 1
        await may_end.wait()

    loop = Supervisor().start("loop", round_)
    while not rounds:
        await asyncio.sleep(0)
    loop.finish()
    await asyncio.sleep(0.01)
    assert not loop.has_ended
    may_end.set()
    await asyncio.wait_for(loop.wait(), 30)
    assert rounds == 1
