"""Maintenance jobs: scheduled by pg_cron where the server has it, else by the engine, in one process at a time."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from cognizes.engine.concurrency import Sweeper
from cognizes.engine.database.connection_pool import Database
from cognizes.engine.database.queries import quote_schema
from cognizes.engine.errors import DatabaseError, DatabaseUnavailableError
from cognizes.engine.settings import Settings, retention_rules
from cognizes.engine.supervision import SupervisedLoop

logger = logging.getLogger(__name__)

_JOB_SECONDS = 600.0
"""The time limit of one call of a job: a backlog of days takes longer than a request."""
_BATCH = 10_000
"""The number of rows that one call of a batched job deletes: it bounds the time of its locks."""
_EVERY_MINUTES = {5: "*/5 * * * *", 15: "*/15 * * * *", 60: "7 * * * *"}


@dataclass(frozen=True)
class Job:
    """One SQL function that returns how many rows it changed. A batched job is called until it has none left."""

    name: str
    every: timedelta
    cron: str
    arguments: tuple[timedelta | int | str, ...] = ()
    is_batched: bool = False

    @property
    def cron_arguments(self) -> str:
        return ", ".join(map(_literal, self.arguments))


def jobs(settings: Settings) -> list[Job]:
    def every_minutes(minutes: int, name: str, *arguments: timedelta | int | str, is_batched: bool = False) -> Job:
        batch = (_BATCH,) if is_batched else ()
        return Job(name, timedelta(minutes=minutes), _EVERY_MINUTES[minutes], (*arguments, *batch), is_batched)

    found = [
        Job("release_expired_leases", timedelta(seconds=10), "10 seconds"),
        Job("resume_due_waits", timedelta(seconds=5), "5 seconds"),
        every_minutes(5, "prune_chunks", timedelta(hours=settings.chunks_kept_hours)),
        every_minutes(5, "prune_graph_items", is_batched=True),
        every_minutes(15, "prune_snapshots", settings.snapshots_kept),
        every_minutes(60, "prune_runs", timedelta(days=settings.runs_kept_days)),
    ]
    found.append(every_minutes(60, "prune_dead_letters", timedelta(days=settings.dead_letters_kept_days)))
    for name, days in (
        ("prune_audit_log", settings.audit_kept_days),
        ("prune_streams", settings.streams_kept_days),
        ("fold_state_writes", settings.state_history_kept_days),
        ("prune_fact_history", settings.fact_history_kept_days),
    ):
        if days:
            found.append(every_minutes(60, name, timedelta(days=days), is_batched=True))
    rules_of_kinds = retention_rules(settings.memories_kept_days)
    found.append(every_minutes(15, "expire_memories", json.dumps(rules_of_kinds), is_batched=True))
    if rules := retention_rules(settings.threads_kept_days):
        found.append(every_minutes(60, "prune_threads", json.dumps(rules), is_batched=True))
    return found


def _literal(value: timedelta | int | str) -> str:
    if isinstance(value, timedelta):
        return f"interval '{value.total_seconds():.0f} seconds'"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


class Maintenance:
    """Schedules the jobs. With pg_cron they run in the server; without it the processes of the engine claim them."""

    def __init__(
        self, database: Database, settings: Settings, *, sweeper: Sweeper, schedule: Sequence[Job] | None = None
    ) -> None:
        self._database = database
        self._sweeper = sweeper
        self._jobs = list(jobs(settings) if schedule is None else schedule)
        self._loop: SupervisedLoop | None = None
        self.scheduler = "none"

    async def start(self) -> None:
        if await self._schedule_by_cron():
            self.scheduler = "pg_cron"
        else:
            self.scheduler = "engine"
            seconds = min(job.every for job in self._jobs).total_seconds()
            self._loop = self._sweeper.start("maintenance", self.run_due_jobs, seconds=seconds)

    async def close(self) -> None:
        """Stop the sweeper's job; those of pg_cron continue."""
        if self._loop is not None:
            await self._loop.stop()
            self._loop = None

    async def run_due_jobs(self) -> dict[str, int]:
        """Run the jobs that are due and not claimed by another process; return what each job counted.

        A failing job does not stop the others: the first error is raised after the last job.
        """
        done: dict[str, int] = {}
        failures: list[DatabaseError] = []
        for job in self._jobs:
            try:
                if await self._database.fetch_value("claim_job", job.name, job.every):
                    done[job.name] = await self._run(job)
            except DatabaseUnavailableError:
                raise
            except DatabaseError as error:
                error.add_note(f"while running the job {job.name}")
                failures.append(error)
        if failures:
            raise failures[0]
        return done

    async def _run(self, job: Job) -> int:
        total = 0
        while True:
            changed: int = await self._database.fetch_value_within(_JOB_SECONDS, job.name, *job.arguments)
            total += changed
            if not job.is_batched or not changed:
                return total

    async def _schedule_by_cron(self) -> bool:
        if not await self._database.fetch_value("has_cron"):
            return False
        schema = quote_schema(self._database.queries.schema)
        try:
            async with self._database.connection() as connection, connection.transaction():
                await connection.execute(self._database.queries["create_cron"])
                for job in self._jobs:
                    name = f"cognizes:{self._database.queries.schema}:{job.name}"
                    command = f"SELECT {schema}.{job.name}({job.cron_arguments})"
                    await connection.execute(self._database.queries["schedule_cron"], name, job.cron, command)
        except DatabaseUnavailableError:
            raise
        except DatabaseError as error:
            logger.warning("pg_cron is installed but refuses the jobs (%s); the engine schedules them", error)
            return False
        return True
