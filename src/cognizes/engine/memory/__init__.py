"""Durable memory: working, long-term and episodic, snapshots that resume a run, and recall over all of it."""

from cognizes.engine.memory.episodic import EpisodicEntry, EpisodicMemoryStore
from cognizes.engine.memory.filters import Filters, Range
from cognizes.engine.memory.ingest import Remembered
from cognizes.engine.memory.long_term import LongTermEntry, LongTermKey, LongTermMemoryStore
from cognizes.engine.memory.memory import Memory
from cognizes.engine.memory.message_search import MessageHit
from cognizes.engine.memory.records import Hit, MemoryRecord
from cognizes.engine.memory.scope import MemoryPage, MemoryScope
from cognizes.engine.memory.snapshot import MemorySnapshot, MemorySnapshots
from cognizes.engine.memory.working import WorkingMemory, WorkingMemoryStore

__all__ = [
    "EpisodicEntry",
    "EpisodicMemoryStore",
    "Filters",
    "Hit",
    "LongTermEntry",
    "LongTermKey",
    "LongTermMemoryStore",
    "Memory",
    "MemoryPage",
    "MemoryRecord",
    "MemoryScope",
    "MemorySnapshot",
    "MemorySnapshots",
    "MessageHit",
    "Range",
    "Remembered",
    "WorkingMemory",
    "WorkingMemoryStore",
]
