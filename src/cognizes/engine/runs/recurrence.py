"""Times that repeat: a cron expression in a time zone, or an interval.

A cron expression has five fields (minute, hour, day, month, weekday), or six with seconds first. Changes of the clock
are handled as by Debian's cron: a time that the clock skips fires when the clock has moved, a time that it repeats
fires once, and expressions with `*` in minute or hour follow real time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from cognizes.engine.errors import InvalidInputError

_SHORTEST = timedelta(seconds=1)
_LONGEST = timedelta(days=3660)
_LONGEST_CRON = 200


@dataclass(frozen=True)
class Recurrence:
    """The due times of a schedule. `cron` and `timezone`, or `every`, are given."""

    cron: str | None
    every: timedelta | None
    timezone: str

    @classmethod
    def parse(cls, when: str | timedelta, timezone: str = "UTC") -> Recurrence:
        """Check a cron expression or an interval. `InvalidInputError` says what is wrong with it."""
        zone = _zone(timezone)
        if isinstance(when, timedelta):
            if not _SHORTEST <= when <= _LONGEST:
                raise InvalidInputError(f"the interval is {when}; use one between a second and ten years")
            return cls(None, when, timezone)
        if len(when) > _LONGEST_CRON:
            raise InvalidInputError(f"the cron expression has {len(when)} characters; the limit is {_LONGEST_CRON}")
        try:
            next(CronSim(when, datetime.now(zone)))
        # cronsim checks some values with assertions.
        except (CronSimError, AssertionError, TypeError, ValueError) as error:
            reason = f" ({error})" if str(error) else ""
            raise InvalidInputError(
                f"invalid cron expression {when!r}{reason}; write minute hour day month weekday, for example "
                "'0 8 * * MON-FRI'"
            ) from error
        except (StopIteration, OverflowError) as error:
            raise InvalidInputError(f"the cron expression {when!r} matches no time; check day and month") from error
        return cls(" ".join(when.split()), None, timezone)

    def after(self, moment: datetime, *, anchor: datetime) -> datetime:
        """Return the first due time after a moment; an interval is counted from `anchor`, an earlier due time."""
        return next(self.times(moment, anchor=anchor))

    def times(self, after: datetime, *, anchor: datetime) -> Iterator[datetime]:
        """Yield the due times after a moment."""
        if self.every is not None:
            due = anchor + ((after - anchor) // self.every + 1) * self.every
            while True:
                yield due
                due += self.every
        for found in CronSim(self._expression, after.astimezone(_zone(self.timezone))):
            # A time that the clock repeats can come back as the moment itself.
            if (due := found.astimezone(UTC)) > after:
                yield due

    def missed(self, first: datetime, now: datetime, *, limit: int) -> list[datetime]:
        """Return the newest due times from `first`, which is one, up to `now`, in order; at most `limit`."""
        if self.every is not None:
            newest = (now - first) // self.every
            return [first + place * self.every for place in range(max(0, newest - limit + 1), newest + 1)]
        # One second later: the iteration backwards begins before its start. It never passes `first`.
        start = (now.replace(microsecond=0) + timedelta(seconds=1)).astimezone(_zone(self.timezone))
        backwards = (found.astimezone(UTC) for found in CronSim(self._expression, start, reverse=True))
        found = list(islice(takewhile(lambda due: due >= first, (due for due in backwards if due <= now)), limit))
        return sorted({*found, *([first] if len(found) < limit else [])})

    @property
    def _expression(self) -> str:
        assert self.cron is not None  # noqa: S101 - one of the two is given
        return self.cron


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise InvalidInputError(f"unknown time zone {name!r}; use a name such as Europe/Berlin or UTC") from error
