"""`engine.memory`: the stores, snapshots and recall, in as few words as they deserve."""

from __future__ import annotations

from uuid import UUID

from cognizes.engine.database import Database
from cognizes.engine.memory.episodic import EpisodicEntry, EpisodicMemoryStore
from cognizes.engine.memory.ingest import Ingest
from cognizes.engine.memory.long_term import LongTermMemoryStore
from cognizes.engine.memory.snapshot import MemorySnapshots
from cognizes.engine.memory.working import WorkingMemoryStore
from cognizes.engine.pulse.state_manager import StateManager
from cognizes.engine.settings import Settings


class Memory:
    """What an agent remembers: `working`, `long_term`, `episodic` and `snapshots`."""

    def __init__(self, database: Database, manager: StateManager, settings: Settings) -> None:
        self._ingest = Ingest(database, embeds=True)
        self.working = WorkingMemoryStore(database)
        self.long_term = LongTermMemoryStore(database, self._ingest, max_depth=settings.max_json_depth)
        self.episodic = EpisodicMemoryStore(database, self._ingest)
        self.snapshots = MemorySnapshots(
            database,
            manager,
            episodic=self.episodic,
            long_term=self.long_term,
            max_state_bytes=settings.max_state_bytes,
        )

    async def remember_run(self, thread_id: str | UUID, run_id: str) -> EpisodicEntry:
        """The episode of a run that ended; written once, however often it is asked for."""
        return await self.episodic.write_for_run(thread_id, run_id)
