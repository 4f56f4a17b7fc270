"""Tokens and cost: counted once, summed by model, deleted with their thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from pydantic import ValidationError

from cognizes.engine import Engine, Event, InvalidInputError, NotFoundError, Settings, TokenUsage, Worker
from cognizes.engine.archive.threads import ExportedThreads
from cognizes.engine.runs import HandledRun
from tests.integration.runs.conditions import until

PRICES = (
    '{"flash": {"input": 0.3, "output": 2.5, "cached_input": 0.03}, "pro-*": {"input": 2, "output": 12},'
    ' "pro-2-*": {"input": 1, "output": 1}}'
)


@pytest.fixture
async def priced(database_url: str) -> AsyncIterator[Engine]:
    async with Engine.open(database_url, prices=PRICES, embedder="none") as engine:
        yield engine


def usage(model: str = "flash", given: int = 100, made: int = 10, **more: int) -> TokenUsage:
    return TokenUsage(model, input_tokens=given, output_tokens=made, **more)


async def test_tokens_are_summed_by_model_per_run_thread_user_and_app(priced: Engine) -> None:
    first = await priced.sessions.create("shop", "ada")
    second = await priced.sessions.create("shop", "ada")
    other = await priced.sessions.create("shop", "bob")
    foreign = await priced.sessions.create("bank", "ada")
    for session, run_id, used in (
        (first, "r1", usage()),
        (first, "r1", usage("pro-3", 1000, 100)),
        (first, "r2", usage(given=7, made=3)),
        (second, None, usage(given=1, made=1)),
        (other, "r1", usage(given=50, made=5)),
        (foreign, None, usage(given=900, made=90)),
    ):
        await priced.sessions.append(session, author="a", kind="message", text="x", run_id=run_id, usage=used)
    run = await priced.usage.of_run(first.thread_id, "r1")
    assert [(one.model, one.calls, one.input_tokens, one.output_tokens) for one in run.models] == [
        ("flash", 1, 100, 10),
        ("pro-3", 1, 1000, 100),
    ]
    assert (await priced.usage.of_thread(first.thread_id)).total_tokens == 100 + 10 + 1100 + 10
    assert (await priced.usage.of_user("shop", "ada")).input_tokens == 1108
    assert (await priced.usage.of_app("shop")).input_tokens == 1158
    assert (await priced.usage.of_app("shop")).calls == 5
    assert (await priced.usage.of_app("none")).models == []
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert (await priced.usage.of_app("shop", since=tomorrow)).models == []
    assert (await priced.usage.of_user("shop", "ada", until=tomorrow)).calls == 4
    with pytest.raises(InvalidInputError, match="no time zone"):
        await priced.usage.of_app("shop", since=datetime(2026, 1, 1))  # noqa: DTZ001


async def test_an_event_that_is_sent_again_counts_once_alone_and_in_a_batch(priced: Engine) -> None:
    session = await priced.sessions.create("shop", "ada")
    thread = UUID(session.thread_id)

    def event(number: int) -> Event:
        return Event(f"e{number}", "", "", "a", "message", {"text": str(number)}, usage=usage())

    assert await priced.sessions.append_to_thread(thread, event(0))
    assert not await priced.sessions.append_to_thread(thread, event(0))
    await asyncio.gather(*(priced.sessions.append_to_thread(thread, event(number)) for number in range(30)))
    await asyncio.gather(*(priced.sessions.append_to_thread(thread, event(number)) for number in range(30)))
    totals = await priced.usage.of_thread(thread)
    assert (totals.calls, totals.input_tokens, totals.output_tokens) == (30, 3000, 300)
    # An event that is refused counts nothing.
    with pytest.raises(NotFoundError):
        await priced.sessions.append_to_thread(UUID(int=1), event(99))
    assert await priced.usage.record(thread, usage(), usage_id="response-1")
    assert not await priced.usage.record(thread, usage(), usage_id="response-1")
    assert (await priced.usage.of_thread(thread)).calls == 31


async def test_a_run_that_is_tried_again_counts_a_repeated_call_once(priced: Engine) -> None:
    session = await priced.sessions.create("shop", "ada")

    async def handler(run: HandledRun) -> None:
        await run.record_usage(usage(), usage_id=f"{run.id}/summary")
        if run.attempt == 1:
            raise RuntimeError("the first attempt fails after the call")

    run = await priced.runs.enqueue(session, "h")
    async with Worker(priced, {"h": handler}):
        await until(lambda: _has_completed(priced, run.thread_id, run.id))
    assert (await priced.usage.of_run(run.thread_id, run.id)).calls == 1


async def _has_completed(engine: Engine, thread_id: str, run_id: str) -> bool:
    return (await engine.runs.get(thread_id, run_id)).status == "completed"


async def test_cost_is_that_of_the_prices(priced: Engine) -> None:
    session = await priced.sessions.create("shop", "ada")
    for name, used in (
        ("a", usage(given=1_000_000, made=100_000, cached_tokens=400_000, reasoning_tokens=50_000)),
        ("b", usage("pro-3", 500_000, 0)),
        ("c", usage("pro-2-mini", 10, 10)),
        ("d", usage("home-made", 5, 5)),
    ):
        await priced.usage.record(session.thread_id, used, usage_id=name)
    totals = await priced.usage.of_thread(session.thread_id)
    costs = {one.model: one.cost for one in totals.models}
    # 600 000 at 0.30, 400 000 from the cache at 0.03, 100 000 made at 2.50; the longest prefix decides.
    assert costs == {"flash": 0.442, "pro-3": 1.0, "pro-2-mini": 0.00002, "home-made": None}
    assert totals.cost == 1.44202
    assert totals.unpriced_models == ["home-made"]


async def test_totals_of_several_runs_come_in_their_order(priced: Engine) -> None:
    runs = []
    for number in range(3):
        run = await priced.runs.create(await priced.sessions.create("shop", f"user-{number}"))
        for call in range(number):
            await priced.usage.record(run.thread_id, usage(given=10), usage_id=f"call-{call}", run_id=run.id)
        runs.append(run)
    await priced.usage.record(runs[2].thread_id, usage(given=7), usage_id="of another run", run_id="other")
    assert [one.calls for one in await priced.usage.of_runs(runs[::-1])] == [2, 1, 0]
    assert [one.input_tokens for one in await priced.usage.of_runs(runs)] == [0, 10, 20]


async def test_usage_is_deleted_with_its_thread_and_its_user_and_moves_with_an_archive(
    priced: Engine, empty_database_url: str
) -> None:
    sessions = [await priced.sessions.create("shop", user) for user in ("ada", "ada", "bob")]
    for session in sessions:
        await priced.usage.record(session.thread_id, usage(), usage_id="u")
    lines = [line async for line in priced.archive.export("shop", user_id="bob", report=ExportedThreads())]
    async with Engine.open(empty_database_url, embedder="none") as target:
        await target.archive.import_lines(lines)
        assert (await target.usage.of_user("shop", "bob")).calls == 1
    await priced.sessions.delete(sessions[0])
    assert (await priced.usage.of_user("shop", "ada")).calls == 1
    assert [line async for line in priced.user_data.export("shop", "ada") if '"token_usage"' in line]
    erased = await priced.user_data.erase("shop", "ada")
    assert erased["token_usage"] == 1
    assert (await priced.usage.of_user("shop", "ada")).models == []
    assert (await priced.usage.of_app("shop")).calls == 1


@pytest.mark.parametrize(
    "bad",
    [TokenUsage("", 1, 1), TokenUsage("m", -1, 1), TokenUsage("m", 1.5, 1), TokenUsage("m", 2**53, 0)],  # type: ignore[arg-type]
)
async def test_counts_that_are_none_are_refused(priced: Engine, bad: TokenUsage) -> None:
    session = await priced.sessions.create("shop", "ada")
    with pytest.raises(InvalidInputError):
        await priced.usage.record(session.thread_id, bad, usage_id="u")
    with pytest.raises(InvalidInputError):
        await priced.sessions.append(session, author="a", kind="message", text="x", usage=bad)
    with pytest.raises(NotFoundError):
        await priced.usage.record(UUID(int=1), usage(), usage_id="u")
    assert (await priced.usage.of_app("shop")).models == []


@pytest.mark.parametrize("text", ["{", "[]", '{"m": 1}', '{"m": {"input": 1}}', '{"m": {"input": -1, "output": 1}}'])
def test_bad_prices_are_named(text: str) -> None:
    with pytest.raises(ValidationError, match="per million tokens"):
        Settings(prices=text)
