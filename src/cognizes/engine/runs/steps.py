"""Steps: what a run has finished is not done again, and what it did not finish is known."""

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
from cognizes.engine.pulse.fencing import RunFence


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
    """All steps of a run that were begun, in their order."""
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
    """The steps of one run, written by one attempt at a time."""

    def __init__(self, database: Database, fence: RunFence, *, retry_seconds: float) -> None:
        self._database = database
        self._fence = fence
        self._retry_seconds = retry_seconds
        self._interrupted: dict[str, int] = {}

    def expect_interrupted(self, steps: Iterable[Step]) -> None:
        """Name the steps that an earlier attempt began and did not finish."""
        self._interrupted = {step.name: step.attempt for step in steps}

    async def run(
        self, name: str, work: Callable[[], Awaitable[Any]], *, if_interrupted: Callable[[int], Awaitable[Any]] | None
    ) -> Any:
        """Does the work once and keeps its result, which is JSON. A step that an earlier attempt finished is not done
        again; for one that it began and did not finish, `if_interrupted` is called with that attempt, if given."""
        (row,) = await self._write("begin_step", check_text("the name of a step", name) or _nameless())
        if row["status"] == "finished":
            return load_json(row["result"])
        # Known before the step was begun here: an answer to `begin_step` that was lost is not repeated.
        interrupted_attempt = self._interrupted.get(name) if row["status"] == "started" else None
        try:
            if interrupted_attempt is not None and if_interrupted is not None:
                result = await if_interrupted(interrupted_attempt)
            else:
                result = await work()
            document = dump_json(result)
        except StepInterruptedError:
            raise
        except Exception as error:
            await self._end(name, "failed", None, escape_text(f"{type(error).__name__}: {error}"))
            raise
        await self._end(name, "finished", document, None)
        # What later attempts will get: a tuple is a list then, and now.
        return load_json(document)

    async def _end(self, name: str, status: str, result: str | None, error: str | None) -> None:
        self._interrupted.pop(name, None)
        await self._write("end_step", name, status, result, error)

    async def _write(self, query: str, *arguments: Any) -> list[Any]:
        """Write for the attempt that holds the run, again while PostgreSQL is unavailable; both queries may repeat."""
        holder = self._fence.thread_id, self._fence.run_id, self._fence.attempt
        return await retry_while_unavailable(
            lambda: self._database.fetch(query, *holder, *arguments), seconds=self._retry_seconds
        )


def _nameless() -> str:
    raise InvalidInputError("a step needs a name; it is what makes it run once")
