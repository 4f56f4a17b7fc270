"""Due times: cron expressions in time zones, changes of the clock, intervals, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

from cognizes.engine import InvalidInputError
from cognizes.engine.runs.schedules import Recurrence

START = datetime(2026, 1, 1, tzinfo=UTC)


def times(when: str | timedelta, after: datetime, count: int, timezone: str = "UTC") -> list[str]:
    found = Recurrence.parse(when, timezone).times(after, anchor=after)
    return [moment.isoformat() for moment in islice(found, count)]


def test_a_time_of_day_follows_the_time_zone() -> None:
    winter = times("0 8 * * *", datetime(2026, 1, 10, tzinfo=UTC), 1, "Europe/Berlin")
    summer = times("0 8 * * *", datetime(2026, 7, 10, tzinfo=UTC), 1, "Europe/Berlin")
    assert (winter, summer) == (["2026-01-10T07:00:00+00:00"], ["2026-07-10T06:00:00+00:00"])


def test_a_time_that_the_clock_skips_fires_when_the_clock_has_moved() -> None:
    # 2026-03-29 has no 02:30 in Berlin: the clock moves from 02:00 to 03:00 at 01:00 UTC.
    found = times("30 2 * * *", datetime(2026, 3, 28, 12, tzinfo=UTC), 2, "Europe/Berlin")
    assert found == ["2026-03-29T01:00:00+00:00", "2026-03-30T00:30:00+00:00"]


def test_a_time_that_the_clock_repeats_fires_once() -> None:
    # 2026-10-25 has 02:30 twice in Berlin.
    found = times("30 2 * * *", datetime(2026, 10, 24, 12, tzinfo=UTC), 2, "Europe/Berlin")
    assert found == ["2026-10-25T00:30:00+00:00", "2026-10-26T01:30:00+00:00"]


def test_every_hour_follows_real_time_when_the_clock_changes() -> None:
    found = times("0 * * * *", datetime(2026, 10, 24, 23, 30, tzinfo=UTC), 4, "Europe/Berlin")
    assert found == [f"2026-10-25T0{hour}:00:00+00:00" for hour in range(4)]


def test_intervals_have_no_drift() -> None:
    recurrence = Recurrence.parse(timedelta(minutes=7))
    assert recurrence.after(START + timedelta(minutes=20, seconds=3), anchor=START) == START + timedelta(minutes=21)
    assert recurrence.after(START, anchor=START) == START + timedelta(minutes=7)


@pytest.mark.parametrize("when", ["0 * * * *", timedelta(hours=1)])
def test_missed_times_are_the_newest_ones_in_order(when: str | timedelta) -> None:
    recurrence = Recurrence.parse(when)
    first = START + timedelta(hours=1)
    now = START + timedelta(hours=5, minutes=30)
    assert recurrence.missed(first, now, limit=100) == [START + timedelta(hours=hour) for hour in range(1, 6)]
    assert recurrence.missed(first, now, limit=2) == [START + timedelta(hours=4), START + timedelta(hours=5)]
    assert recurrence.missed(first, first, limit=3) == [first]
    assert recurrence.missed(first, first + timedelta(milliseconds=3), limit=1) == [first]


def test_missed_times_of_years_cost_what_the_limit_costs() -> None:
    recurrence = Recurrence.parse("* * * * * *")
    now = START + timedelta(days=3650)
    assert recurrence.missed(START, now, limit=1) == [now]


def test_missed_times_across_a_change_of_the_clock() -> None:
    recurrence = Recurrence.parse("30 2 * * *", "Europe/Berlin")
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    found = recurrence.missed(first, datetime(2026, 10, 26, 12, tzinfo=UTC), limit=10)
    assert found == [first, datetime(2026, 10, 26, 1, 30, tzinfo=UTC)]
    first = datetime(2026, 3, 29, 1, tzinfo=UTC)
    found = recurrence.missed(first, datetime(2026, 3, 30, 12, tzinfo=UTC), limit=10)
    assert found == [first, datetime(2026, 3, 30, 0, 30, tzinfo=UTC)]


@pytest.mark.parametrize(
    "when",
    [
        "",
        "tomorrow",
        "0 8 * *",
        "0 8 * * * * *",
        "61 * * * *",
        "* * * * FOO",
        "1#2/3 * * * *",
        "0 0 30 2 *",
        "L/2 * * * *",
    ],
)
def test_text_that_is_no_cron_expression_is_refused(when: str) -> None:
    with pytest.raises(InvalidInputError, match="cron expression"):
        Recurrence.parse(when)


def test_long_text_unknown_zones_and_impossible_intervals_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="the limit is 200"):
        Recurrence.parse("0," * 200 + "0 * * * *")
    for zone in ("Mars/Olympus", "", "../etc/passwd", "\0"):
        with pytest.raises(InvalidInputError, match="unknown time zone"):
            Recurrence.parse("0 8 * * *", zone)
    for interval in (timedelta(0), timedelta(seconds=-5), timedelta(days=9999)):
        with pytest.raises(InvalidInputError, match="between a second and ten years"):
            Recurrence.parse(interval)
