"""Consolidations: durable runs that turn a session into episodes and facts.

The runs belong to a session of their own, so that they do not keep the consolidated session busy. What an extractor
found is the result of a step: after a crash the model is not asked again.
"""

from __future__ import annotations

from cognizes.engine.errors import AlreadyExistsError, NotFoundError
from cognizes.engine.memory.consolidation import CONSOLIDATION_HANDLER, Batch, Consolidated
from cognizes.engine.memory.extraction import Extraction
from cognizes.engine.memory.memory import Memory
from cognizes.engine.models import JsonObject, Run, Session
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.runs.context import HandledRun
from cognizes.engine.runs.runs import Runs
from cognizes.engine.runs.worker import Handler

JOBS_SESSION = "cognizes.memory"
"""The session of a user that the runs belong to."""


class Consolidations:
    """Enqueues consolidations; `handlers` is for a worker.

    async with Worker(engine, engine.consolidations.handlers):
        await engine.consolidations.enqueue(session)
    """

    def __init__(self, runs: Runs, memory: Memory) -> None:
        self._runs = runs
        self._memory = memory
        self.handlers: dict[str, Handler] = {CONSOLIDATION_HANDLER: self.handle}

    async def enqueue(self, session: Session, *, agent_id: str | None = None, max_attempts: int | None = None) -> Run:
        """Create a run that consolidates the messages that the session has when the run is first executed.

        Return the run that waits for its first execution if there is one of the same session and agent.
        """
        jobs = await self._jobs_session(session)
        waiting = await self._runs._database.fetch_value(
            "find_waiting_consolidation", thread_uuid(jobs.thread_id), CONSOLIDATION_HANDLER, session.id, agent_id
        )
        if waiting is not None:
            return await self._runs.get(jobs.thread_id, waiting)
        given = {"session_id": session.id, "agent_id": agent_id}
        return await self._runs.enqueue(jobs, CONSOLIDATION_HANDLER, input=given, max_attempts=max_attempts)

    async def handle(self, run: HandledRun) -> JsonObject:
        """Consolidate the session that the input of a run names. A session that was deleted is no error."""
        own, given = run.session, run.input
        session = await self._runs._sessions.get(own.app_name, own.user_id, given["session_id"])
        if session is None:
            return {"deleted": True}
        try:
            return (await self._consolidate(run, session, given["agent_id"])).to_json()
        except NotFoundError:
            return {"deleted": True}

    async def _consolidate(self, run: HandledRun, session: Session, agent_id: str | None) -> Consolidated:
        consolidation, total = self._memory.consolidation, Consolidated()
        # Another attempt must form the same batches although messages were added.
        until: int = await run.step("head", lambda: session.last_sequence)
        after: int | None = None
        while (
            batch := await consolidation.next_batch(session, agent_id=agent_id, after=after, until=until)
        ) is not None:

            async def extract(batch: Batch = batch) -> JsonObject:
                return (await consolidation.extract(batch)).to_json()

            name = f"extract {batch.first_sequence}-{batch.last_sequence}"
            found = Extraction.from_json(await run.step(name, extract))
            stored = await consolidation.store(session, batch, found, agent_id=agent_id)
            after = stored.last_sequence
            total = Consolidated(total.episodes + stored.episodes, total.facts + stored.facts, after)
        return total

    async def _jobs_session(self, session: Session) -> Session:
        sessions = self._runs._sessions
        names = session.app_name, session.user_id
        found = await sessions.get(*names, JOBS_SESSION)
        if found is not None:
            return found
        try:
            return await sessions.create(*names, session_id=JOBS_SESSION, title="Consolidation of memory")
        except AlreadyExistsError:
            # Created at the same moment by another caller.
            return await self._jobs_session(session)
