"""Schedules: runs at due times, once across processes, and what happens to missed times."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from cognizes.engine import AlreadyExistsError, Engine, InvalidInputError, NotFoundError, RunStatus
from cognizes.engine.runs import CatchUp, HandledRun, Schedule, Worker
from tests.engine_parts import database_of
from tests.integration.runs.conditions import table, until


async def make_due(engine: Engine, schedule: Schedule, **ago: float) -> None:
    """Move the next time of a schedule into the past."""
    await database_of(engine).pool.execute(
        "UPDATE schedules SET next_at = date_trunc('second', clock_timestamp()) - $2::interval WHERE id = $1::uuid",
        schedule.id,
        timedelta(**ago),
    )


async def test_a_worker_executes_a_scheduled_run_in_a_new_session(engine: Engine) -> None:
    seen = []

    async def report(run: HandledRun) -> str:
        firing = await engine.schedules.firing_of(run.run)
        seen.append((run.input, run.session.app_name, run.session.user_id, firing))
        return "done"

    schedule = await engine.schedules.create(
        "0 8 * * *", "report", app_name="shop", user_id="ada", name="daily", input={"n": 1}, timezone="Europe/Berlin"
    )
    assert [moment.minute for moment in schedule.next_times(3)] == [0, 0, 0]
    await make_due(engine, schedule, seconds=1)
    async with Worker(engine, {"report": report}):

        async def completed() -> bool:
            firings = await engine.schedules.firings(schedule.id)
            return [firing.status for firing in firings] == [RunStatus.COMPLETED]

        await until(completed)
    ((value, app, user, firing),) = seen
    assert (value, app, user) == ({"n": 1}, "shop", "ada")
    session = await engine.sessions.store.get_thread(firing.thread_id)
    created = (await engine.sessions.events(session))[0]
    assert created.content["schedule_id"] == schedule.id
    assert (await engine.schedules.get(schedule.id)).next_at == schedule.next_at


async def test_runs_of_a_session_stay_in_its_thread(engine: Engine) -> None:
    session = await engine.sessions.create("shop", "ada")
    schedule = await engine.schedules.create(timedelta(hours=1), "poll", session=session)
    await make_due(engine, schedule, seconds=5)
    assert await engine.schedules.fire_due() == 1
    (run,) = await engine.runs.list(session.thread_id)
    assert (run.handler, run.status) == ("poll", RunStatus.PENDING)
    assert len((await engine.sessions.list("shop")).items) == 1
    await engine.sessions.delete(session)
    with pytest.raises(NotFoundError):
        await engine.schedules.get(schedule.id)


async def test_many_processes_fire_each_time_once(database_url: str, engine: Engine) -> None:
    made = [
        await engine.schedules.create(timedelta(hours=1), "poll", app_name="shop", user_id=f"user {n}")
        for n in range(30)
    ]
    for schedule in made:
        await make_due(engine, schedule, seconds=1)
    async with Engine.open(database_url) as other, Engine.open(database_url) as third:
        counts = await asyncio.gather(*(each.schedules.fire_due() for each in (engine, other, third) for _ in range(3)))
    assert sum(counts) == len(made)
    assert await table(engine, "SELECT count(*), count(DISTINCT schedule_id) FROM schedule_firings") == [(30, 30)]
    assert await table(engine, "SELECT count(*) FROM runs WHERE status = 'pending'") == [(30,)]


@pytest.mark.parametrize(
    ("catch_up", "limit", "expected"),
    [(CatchUp.SKIP, 100, 0), (CatchUp.ONE, 100, 1), (CatchUp.ALL, 100, 6), (CatchUp.ALL, 4, 4)],
)
async def test_the_catch_up_policy_decides_about_missed_times(
    engine: Engine, catch_up: CatchUp, limit: int, expected: int
) -> None:
    schedule = await engine.schedules.create(
        timedelta(hours=1), "poll", app_name="shop", user_id="ada", catch_up=catch_up, catch_up_limit=limit
    )
    await make_due(engine, schedule, hours=5, minutes=10)
    late = await engine.schedules.get(schedule.id)
    assert await engine.schedules.fire_due() == expected
    due = [firing.due_at for firing in await engine.schedules.firings(schedule.id)]
    assert due == [late.next_at + timedelta(hours=5 - n) for n in range(expected)]
    after = await engine.schedules.get(schedule.id)
    assert after.next_at == late.next_at + timedelta(hours=6)
    assert await engine.schedules.fire_due() == 0


async def test_skip_fires_a_time_that_is_on_time(engine: Engine) -> None:
    schedule = await engine.schedules.create(
        timedelta(hours=1), "poll", app_name="shop", user_id="ada", catch_up=CatchUp.SKIP
    )
    await make_due(engine, schedule, seconds=2)
    assert await engine.schedules.fire_due() == 1


async def test_a_paused_schedule_does_not_fire_and_resumes_after_now(engine: Engine) -> None:
    schedule = await engine.schedules.create(timedelta(minutes=1), "poll", app_name="shop", user_id="ada")
    paused = await engine.schedules.pause(schedule.id)
    assert (paused.next_times(), (await engine.schedules.pause(schedule.id)).paused_at) == ([], paused.paused_at)
    await make_due(engine, schedule, minutes=10)
    late = await engine.schedules.get(schedule.id)
    assert await engine.schedules.fire_due() == 0
    resumed = await engine.schedules.resume(schedule.id)
    assert resumed.next_at == late.next_at + timedelta(minutes=11)
    assert resumed.paused_at is None
    assert (await engine.schedules.resume(schedule.id)).next_at == resumed.next_at
    assert await engine.schedules.fire_due() == 0
    await engine.schedules.delete(schedule.id)
    with pytest.raises(NotFoundError):
        await engine.schedules.delete(schedule.id)


async def test_a_deleted_schedule_keeps_its_runs(engine: Engine) -> None:
    schedule = await engine.schedules.create(timedelta(minutes=1), "poll", app_name="shop", user_id="ada")
    await make_due(engine, schedule, seconds=1)
    await engine.schedules.fire_due()
    await engine.schedules.delete(schedule.id)
    assert len((await engine.runs.search(handler="poll")).items) == 1


async def test_a_schedule_that_cannot_fire_does_not_stop_the_others(engine: Engine) -> None:
    broken = await engine.schedules.create("0 8 * * *", "poll", app_name="shop", user_id="ada")
    good = await engine.schedules.create(timedelta(minutes=1), "poll", app_name="shop", user_id="ada")
    await database_of(engine).pool.execute("UPDATE schedules SET timezone = 'No/Where' WHERE id = $1::uuid", broken.id)
    await make_due(engine, broken, seconds=9)
    await make_due(engine, good, seconds=1)
    with pytest.raises(InvalidInputError, match="No/Where"):
        await engine.schedules.fire_due()
    assert len(await engine.schedules.firings(good.id)) == 1


async def test_lists_are_pages(engine: Engine) -> None:
    made = [
        (await engine.schedules.create("@ * * * *".replace("@", str(n)), "poll", app_name="shop", user_id="ada")).id
        for n in range(5)
    ]
    await engine.schedules.create("0 * * * *", "poll", app_name="other", user_id="ada")
    first = await engine.schedules.list(app_name="shop", limit=3)
    second = await engine.schedules.list(app_name="shop", limit=3, cursor=first.next_cursor)
    assert [item.id for item in [*first.items, *second.items]] == made
    assert second.next_cursor is None
    with pytest.raises(InvalidInputError, match="invalid cursor"):
        await engine.schedules.list(cursor="abc")


async def test_wrong_values_change_nothing(engine: Engine) -> None:
    await engine.schedules.create("0 8 * * *", "poll", app_name="shop", user_id="ada", name="daily")
    good = {"app_name": "shop", "user_id": "ada"}
    for when, handler, more, error, text in (
        ("soon", "poll", good, InvalidInputError, "invalid cron expression 'soon'"),
        ("0 8 * * *", "poll", {**good, "timezone": "Mars"}, InvalidInputError, "unknown time zone 'Mars'"),
        ("0 8 * * *", "", good, InvalidInputError, "handler is blank"),
        ("0 8 * * *", "poll", {}, InvalidInputError, "needs a session"),
        ("0 8 * * *", "poll", {**good, "catch_up": "some"}, InvalidInputError, "catch-up policy 'some'"),
        ("0 8 * * *", "poll", {**good, "catch_up_limit": 10**6}, InvalidInputError, "catch_up_limit is 1000000"),
        ("0 8 * * *", "poll", {**good, "max_attempts": 0}, InvalidInputError, "max_attempts"),
        ("0 8 * * *", "poll", {**good, "input": object()}, InvalidInputError, "is not JSON"),
        ("0 8 * * *", "poll", {**good, "name": "daily"}, AlreadyExistsError, "has a schedule 'daily'"),
    ):
        with pytest.raises(error, match=text):
            await engine.schedules.create(when, handler, **more)
    for unknown in ("", "x", "00000000-0000-0000-0000-000000000000"):
        for call in (engine.schedules.get, engine.schedules.pause, engine.schedules.resume, engine.schedules.delete):
            with pytest.raises(NotFoundError, match="there is no schedule"):
                await call(unknown)
    assert len((await engine.schedules.list()).items) == 1


async def test_the_search_for_due_schedules_reads_an_index(engine: Engine) -> None:
    await database_of(engine).pool.execute(
        "INSERT INTO schedules (id, app_name, user_id, name, handler, max_attempts, every, next_at)"
        " SELECT gen_random_uuid(), 'a', 'u', n::text, 'h', 1, '1 h', now() + interval '1 day'"
        " FROM generate_series(1, 5000) n"
    )
    await database_of(engine).pool.execute("ANALYZE schedules")
    statement = database_of(engine).queries["read_due_schedules"].replace("$1", "100")
    plan = "\n".join(row[0] for row in await table(engine, f"EXPLAIN {statement}"))
    assert "idx_schedules_next_at" in plan
