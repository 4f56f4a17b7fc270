"""Schedules: runs that are created at times of a cron expression, or at an interval.

Every process that executes runs, and every server, looks for due schedules once per second. Creating the runs and
moving the schedule to its next time are one transaction, so a due time fires once, whatever process is killed.

A cron expression has five fields (minute, hour, day, month, weekday), or six with seconds first. Changes of the clock
are handled as by Debian's cron: a time that the clock skips fires when the clock has moved, a time that it repeats
fires once, and expressions with `*` in minute or hour follow real time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice, takewhile
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import asyncpg
from cronsim import CronSim, CronSimError

from cognizes.engine.concurrency import Sweeper, WakeUp
from cognizes.engine.database import Database
from cognizes.engine.database.documents import decode_cursor, encode_cursor, load_json
from cognizes.engine.errors import (
    AlreadyExistsError,
    DatabaseUnavailableError,
    EngineError,
    InvalidInputError,
    NotFoundError,
)
from cognizes.engine.models import (
    JsonObject,
    JsonValue,
    Page,
    Run,
    RunStatus,
    Session,
    new_id,
    new_thread_id,
    user_slot,
)
from cognizes.engine.pulse.events import check_name
from cognizes.engine.pulse.sessions import Sessions
from cognizes.engine.runs.queues import check_priority
from cognizes.engine.runs.run_rows import checked_document
from cognizes.engine.settings import Settings
from cognizes.engine.supervision import SupervisedLoop

logger = logging.getLogger(__name__)

_SECONDS = 1.0
_AT_ONCE = 100
_ON_TIME = timedelta(minutes=1)
"""A firing that is later than this counts as missed."""
MAX_CATCH_UP = 1000
MAX_NEXT_TIMES = 100

_Times = list[datetime]
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


class CatchUp(StrEnum):
    """What happens to due times that no process fired: skip them, fire the newest one, or fire all up to a limit."""

    SKIP = "skip"
    ONE = "one"
    ALL = "all"


@dataclass(frozen=True)
class Schedule:
    """When runs of a handler are created, for whom, and what happens to missed times.

    `thread_id` is the thread of all its runs; None: each run has a session of its own.
    """

    id: str
    app_name: str
    user_id: str
    thread_id: str | None
    name: str
    handler: str
    input: Any
    max_attempts: int
    cron: str | None
    every: timedelta | None
    timezone: str
    catch_up: CatchUp
    catch_up_limit: int
    next_at: datetime
    paused_at: datetime | None
    created_at: datetime
    queue: str | None = None
    priority: int = 0

    @property
    def recurrence(self) -> Recurrence:
        return Recurrence(self.cron, self.every, self.timezone)

    def next_times(self, count: int = 5) -> _Times:
        """Return the next due times; none while the schedule is paused."""
        if self.paused_at is not None or count < 1:
            return []
        following = self.recurrence.times(self.next_at, anchor=self.next_at)
        return [self.next_at, *islice(following, min(count, MAX_NEXT_TIMES) - 1)]

    def to_json(self, count: int = 5) -> JsonObject:
        """Return the schedule as REST and the command line show it, with `count` next times."""
        return {
            "id": self.id,
            "app_name": self.app_name,
            "user_id": self.user_id,
            "thread_id": self.thread_id,
            "name": self.name,
            "handler": self.handler,
            "input": self.input,
            "max_attempts": self.max_attempts,
            "queue": self.queue,
            "priority": self.priority,
            "cron": self.cron,
            "every_seconds": self.every.total_seconds() if self.every is not None else None,
            "timezone": self.timezone,
            "catch_up": self.catch_up,
            "catch_up_limit": self.catch_up_limit,
            "paused_at": self.paused_at.isoformat() if self.paused_at is not None else None,
            "created_at": self.created_at.isoformat(),
            "next_times": [moment.isoformat() for moment in self.next_times(count)],
        }


@dataclass(frozen=True)
class Firing:
    """A due time for which a run was created."""

    due_at: datetime
    fired_at: datetime
    thread_id: str
    run_id: str
    status: RunStatus


# `list` is a method of the class below.
_Firings = list[Firing]
_Schedules = Page[Schedule]


class Schedules:
    """Creates, pauses, lists and fires schedules."""

    def __init__(self, database: Database, sessions: Sessions, *, settings: Settings, sweeper: Sweeper) -> None:
        self._database = database
        self._unrestricted = database.without_tenants()
        self._sessions = sessions
        self._settings = settings
        self._sweeper = sweeper
        self._due = WakeUp()
        self._loop: SupervisedLoop | None = None

    def start(self) -> None:
        """Fire due schedules in this process, unless it does so already."""
        if self._loop is None:
            self._loop = self._sweeper.start("fire-schedules", self.fire_due, seconds=_SECONDS, wake_up=self._due)

    async def close(self) -> None:
        if self._loop is not None:
            await self._loop.stop()
            self._loop = None

    async def create(
        self,
        when: str | timedelta,
        handler: str,
        *,
        session: Session | None = None,
        app_name: str | None = None,
        user_id: str | None = None,
        name: str | None = None,
        input: JsonValue = None,  # noqa: A002 - the usual word
        timezone: str = "UTC",
        catch_up: str = CatchUp.ONE,
        catch_up_limit: int = 100,
        max_attempts: int | None = None,
        queue: str | None = None,
        priority: int = 0,
    ) -> Schedule:
        """Create a schedule: a cron expression such as `0 8 * * MON-FRI` in a time zone, or an interval.

        Its runs belong to `session`, or each to a new session of `app_name` and `user_id`. An interval is counted from
        now. `AlreadyExistsError` when the user has a schedule of this name.
        """
        recurrence = Recurrence.parse(when, timezone)
        if catch_up not in list(CatchUp):
            raise InvalidInputError(f"unknown catch-up policy {catch_up!r}; use one of {', '.join(CatchUp)}")
        if not 1 <= catch_up_limit <= MAX_CATCH_UP:
            raise InvalidInputError(f"catch_up_limit is {catch_up_limit}; use a number from 1 to {MAX_CATCH_UP}")
        if max_attempts is not None and max_attempts < 1:
            raise InvalidInputError("max_attempts must be at least 1")
        if session is not None:
            thread_id = await self._sessions.store.find_thread(session)
            app_name, user_id = session.app_name, session.user_id
        elif app_name and user_id:
            thread_id = None
        else:
            raise InvalidInputError("a schedule needs a session, or app_name and user_id for new sessions")
        schedule_id = new_id()
        label = check_name("name", name) if name else str(schedule_id)
        now = await self._database.fetch_value("read_time")
        row = await self._database.fetch_row(
            "create_schedule",
            schedule_id,
            check_name("app_name", app_name),
            check_name("user_id", user_id),
            thread_id,
            label,
            check_name("handler", handler),
            self._document(input),
            max_attempts or self._settings.run_attempts,
            recurrence.cron,
            recurrence.every,
            timezone,
            catch_up,
            catch_up_limit,
            recurrence.after(now, anchor=now),
            check_name("queue", queue) if queue is not None else "",
            check_priority(priority),
        )
        if row is None:
            raise AlreadyExistsError(f"the user {user_id!r} of the app {app_name!r} has a schedule {label!r}")
        return _schedule(row)

    async def get(self, schedule_id: str, *, app_name: str | None = None) -> Schedule:
        """Return a schedule of an app, or of any app."""
        return _found(schedule_id, await self._database.fetch_row("read_schedule", _uuid(schedule_id), app_name))

    async def list(
        self, *, app_name: str | None = None, user_id: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> _Schedules:
        """Return schedules in the order of their creation, a page at a time."""
        after = decode_cursor(cursor, _position) if cursor else (None, None)
        rows = await self._database.fetch("list_schedules", app_name, user_id, *after, limit + 1)
        found = [_schedule(row) for row in rows[:limit]]
        return Page(
            items=found,
            next_cursor=encode_cursor(found[-1].created_at.isoformat(), found[-1].id) if len(rows) > limit else None,
        )

    async def pause(self, schedule_id: str, *, app_name: str | None = None) -> Schedule:
        """Stop firing until `resume`."""
        return _found(schedule_id, await self._database.fetch_row("pause_schedule", _uuid(schedule_id), app_name))

    async def resume(self, schedule_id: str, *, app_name: str | None = None) -> Schedule:
        """Continue at the next time after now. Times during the pause are not made up for."""
        schedule = await self.get(schedule_id, app_name=app_name)
        now = await self._database.fetch_value("read_time")
        next_at = schedule.recurrence.after(now, anchor=schedule.next_at)
        row = await self._database.fetch_row("resume_schedule", _uuid(schedule_id), app_name, next_at)
        return _found(schedule_id, row)

    async def delete(self, schedule_id: str, *, app_name: str | None = None) -> None:
        """Delete a schedule. Runs that it created stay."""
        if await self._database.fetch_row("delete_schedule", _uuid(schedule_id), app_name) is None:
            raise _unknown(schedule_id)

    async def firings(self, schedule_id: str, *, app_name: str | None = None, limit: int = 100) -> _Firings:
        """Return the newest firings. A firing is stored as long as its run."""
        schedule = await self.get(schedule_id, app_name=app_name)
        return [_firing(row) for row in await self._database.fetch("list_firings", UUID(schedule.id), limit)]

    async def firing_of(self, run: Run) -> Firing | None:
        """Return the firing that created a run; None for a run of another origin."""
        row = await self._database.fetch_row("find_firing", UUID(run.thread_id), run.id)
        return _firing(row) if row is not None else None

    async def fire_due(self) -> int:
        """Fire the schedules that are due, in this process; return how many runs were created."""
        created = 0
        failures: list[EngineError] = []
        rows = await self._unrestricted.fetch("read_due_schedules", _AT_ONCE)
        for row in rows:
            try:
                created += await self._fire(_schedule(row), row["now"])
            except DatabaseUnavailableError:
                raise
            except EngineError as error:
                # The others fire; the first error marks this job as failing.
                logger.warning("the schedule %s could not be fired: %s", row["id"], error)
                failures.append(error)
        if failures:
            raise failures[0]
        if len(rows) == _AT_ONCE:
            self._due.notify()
        return created

    async def _fire(self, schedule: Schedule, now: datetime) -> int:
        due = due_times(schedule, now)
        slot = user_slot(schedule.app_name, schedule.user_id)
        rows = await self._unrestricted.fetch(
            "fire_schedule",
            UUID(schedule.id),
            schedule.next_at,
            schedule.recurrence.after(now, anchor=schedule.next_at),
            due,
            [new_thread_id(slot) for _ in due],
            [str(new_id()) for _ in due],
        )
        return len(rows)

    def _document(self, value: Any) -> str:
        return checked_document(
            "the input of a schedule",
            value,
            max_depth=self._settings.max_json_depth,
            max_bytes=self._settings.max_event_bytes,
        )


def due_times(schedule: Schedule, now: datetime) -> Sequence[datetime]:
    """Return the times for which a due schedule creates runs now, by its catch-up policy."""
    limit = schedule.catch_up_limit if schedule.catch_up is CatchUp.ALL else 1
    due = schedule.recurrence.missed(schedule.next_at, now, limit=limit)
    if schedule.catch_up is CatchUp.SKIP:
        return [moment for moment in due if now - moment <= _ON_TIME]
    return due


def _schedule(row: asyncpg.Record) -> Schedule:
    return Schedule(
        id=str(row["id"]),
        app_name=row["app_name"],
        user_id=row["user_id"],
        thread_id=str(row["thread_id"]) if row["thread_id"] is not None else None,
        name=row["name"],
        handler=row["handler"],
        input=load_json(row["input_text"]),
        max_attempts=row["max_attempts"],
        cron=row["cron"],
        every=row["every"],
        timezone=row["timezone"],
        catch_up=CatchUp(row["catch_up"]),
        catch_up_limit=row["catch_up_limit"],
        next_at=row["next_at"],
        paused_at=row["paused_at"],
        created_at=row["created_at"],
        queue=row["queue"] or None,
        priority=row["priority"],
    )


def _firing(row: asyncpg.Record) -> Firing:
    return Firing(row["due_at"], row["fired_at"], str(row["thread_id"]), row["run_id"], RunStatus(row["status"]))


def _found(schedule_id: str, row: asyncpg.Record | None) -> Schedule:
    if row is None:
        raise _unknown(schedule_id)
    return _schedule(row)


def _unknown(schedule_id: str) -> NotFoundError:
    return NotFoundError(f"there is no schedule {schedule_id[:80]!r}")


def _uuid(schedule_id: str) -> UUID:
    try:
        return UUID(schedule_id)
    except ValueError as error:
        raise _unknown(schedule_id) from error


def _position(created_at: str, schedule_id: str) -> tuple[datetime, UUID]:
    return datetime.fromisoformat(created_at), UUID(schedule_id)
