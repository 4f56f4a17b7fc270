"""Steps of a run: a finished step is not repeated, and an interrupted one is known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from cognizes.engine.concurrency import retry_while_unavailable
from cognizes.engine.database import Database
from cognizes.engine.database.documents import dump_json, escape_text, load_json, unescape_text
from cognizes.engine.errors import InvalidInputError, StepInterruptedError
from cognizes.engine.pulse.events import check_text
from cognizes.engine.pulse.sessions import RunFence
from cognizes.engine.telemetry import span


@dataclass(frozen=True)
class Step:
    """A step of a run: `started`, `finished` with a result, or `failed` with an error."""

    name: str
    status: str
    attempt: int
    result: Any
    error: str | None
    started_at: datetime
    finished_at: datetime | None


async def list_steps(database: Database, thread_id: UUID, run_id: str) -> list[Step]:
    """Return the steps of a run in the order in which they started."""
    return [
        Step(
            name=row["name"],
            status=row["status"],
            attempt=row["attempt"],
            result=load_json(row["result"]) if row["result"] is not None else None,
            error=unescape_text(row["error"]) if row["error"] is not None else None,
            started_at=row["started_at"],
            finished_at=row["finished_at"],
        )
        for row in await database.fetch("list_steps", thread_id, run_id)
    ]


class Steps:
    def __init__(self, database: Database, fence: RunFence, *, retry_seconds: float) -> None:
        self._database = database
        self._fence = fence
        self._retry_seconds = retry_seconds
        self._interrupted: dict[str, int] = {}

    def expect_interrupted(self, steps: Iterable[Step]) -> None:
        """Set the steps that an earlier attempt started and did not finish."""
        self._interrupted = {step.name: step.attempt for step in steps}

    async def run(
        self, name: str, work: Callable[[], Awaitable[Any]], *, if_interrupted: Callable[[int], Awaitable[Any]] | None
    ) -> Any:
        """Call `work` unless the step has finished; store and return its JSON result.

        If an earlier attempt started the step and did not finish it, `if_interrupted` is called with that attempt
        instead, if given.
        """
        if not check_text("the name of a step", name):
            raise InvalidInputError("the name of a step is empty; the name identifies the step in later attempts")
        (row,) = await self._write("begin_step", name)
        if row["status"] == "finished":
            return load_json(row["result"])
        # Read before this attempt started the step: `begin_step` may be sent twice and then finds its own row.
        interrupted_attempt = self._interrupted.get(name) if row["status"] == "started" else None
        attributes = {"cognizes.step.name": name, "cognizes.run.id": self._fence.run_id}
        try:
            with span(f"step {name}", attributes):
                if interrupted_attempt is not None and if_interrupted is not None:
                    result = await if_interrupted(interrupted_attempt)
                else:
                    result = await work()
                document = dump_json(result)
        except StepInterruptedError:
            raise
        except Exception as error:
            await self._end(name, "failed", error=escape_text(f"{type(error).__name__}: {error}"))
            raise
        await self._end(name, "finished", result=document)
        # Later attempts get the stored document, where a tuple is a list: this one gets the same.
        return load_json(document)

    async def _end(self, name: str, status: str, *, result: str | None = None, error: str | None = None) -> None:
        self._interrupted.pop(name, None)
        await self._write("end_step", name, status, result, error)

    async def _write(self, query: str, *arguments: Any) -> list[Any]:
        """Write for the attempt that holds the run, again while PostgreSQL is unavailable; both queries may repeat."""
        holder = self._fence.thread_id, self._fence.run_id, self._fence.attempt
        return await retry_while_unavailable(
            lambda: self._database.fetch(query, *holder, *arguments), seconds=self._retry_seconds
        )
