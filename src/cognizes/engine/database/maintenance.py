"""Housekeeping: by pg_cron where the server has it, else by the engine, one process at a time."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from cognizes.engine.database.connection_pool import Database
from cognizes.engine.database.queries import quote_schema
from cognizes.engine.errors import DatabaseError, DatabaseUnavailableError
from cognizes.engine.settings import Settings
from cognizes.engine.supervision import SupervisedLoop, Supervisor

logger = logging.getLogger(__name__)

_JOB_SECONDS = 600.0
"""The time limit of one job: a backlog of days takes longer than a request may."""


@dataclass(frozen=True)
class Job:
    """One SQL function that keeps a table small or true. `cron_arguments` spells the argument for pg_cron."""

    name: str
    every: timedelta
    cron: str
    arguments: tuple[Any, ...] = ()
    cron_arguments: str = ""


def jobs(settings: Settings) -> list[Job]:
    """The housekeeping of an engine with these settings."""
    chunk_age = timedelta(hours=settings.chunks_kept_hours)
    run_age = timedelta(days=settings.runs_kept_days)
    return [
        Job("release_expired_leases", timedelta(seconds=10), "10 seconds"),
        Job("resume_due_waits", timedelta(seconds=5), "5 seconds"),
        Job(
            "prune_chunks",
            timedelta(minutes=5),
            "*/5 * * * *",
            (chunk_age,),
            f"interval '{chunk_age.total_seconds():.0f} seconds'",
        ),
        Job(
            "prune_snapshots",
            timedelta(minutes=15),
            "*/15 * * * *",
            (settings.snapshots_kept,),
            str(settings.snapshots_kept),
        ),
        Job(
            "prune_runs",
            timedelta(hours=1),
            "7 * * * *",
            (run_age,),
            f"interval '{run_age.total_seconds():.0f} seconds'",
        ),
    ]


class Maintenance:
    """Schedules the jobs. With pg_cron they run without us; without it this process asks for its turn."""

    def __init__(self, database: Database, settings: Settings, *, supervisor: Supervisor | None = None) -> None:
        self._database = database
        self._supervisor = supervisor or Supervisor()
        self._jobs = jobs(settings)
        self._loop: SupervisedLoop | None = None
        self.scheduler = "none"

    async def start(self) -> None:
        """Hands the jobs to pg_cron, or starts our own scheduler."""
        if await self._schedule_by_cron():
            self.scheduler = "pg_cron"
        else:
            self.scheduler = "engine"
            self._loop = self._supervisor.start("maintenance", self._run_round, longest_pause=self._shortest)

    async def close(self) -> None:
        """Stops our scheduler; pg_cron's goes on."""
        if self._loop is not None:
            await self._loop.stop()
            self._loop = None

    async def run_due_jobs(self) -> dict[str, int]:
        """Run what is due and not claimed by another process; return what each job counted.

        A job that fails does not keep the others from running: the first error is raised after the last job.
        """
        done: dict[str, int] = {}
        failures: list[DatabaseError] = []
        for job in self._jobs:
            try:
                if await self._database.fetch_value("claim_job", job.name, job.every):
                    done[job.name] = await self._database.fetch_value_within(_JOB_SECONDS, job.name, *job.arguments)
            except DatabaseUnavailableError:
                raise
            except DatabaseError as error:
                error.add_note(f"while running the job {job.name}")
                failures.append(error)
        if failures:
            raise failures[0]
        return done

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
            logger.warning("pg_cron is there but refuses us (%s); the engine schedules its jobs itself", error)
            return False
        return True

    @property
    def _shortest(self) -> float:
        return min(job.every for job in self._jobs).total_seconds()

    async def _run_round(self) -> None:
        await self.run_due_jobs()
        await asyncio.sleep(self._shortest)
