"""Durable memory: working, long-term and episodic, snapshots that resume a run, and recall over all of it."""

from cognizes.engine.memory.consolidation import Consolidated
from cognizes.engine.memory.context import ContextItem, MemoryContext, estimate_tokens
from cognizes.engine.memory.episodic import EpisodicEntry, EpisodicMemoryStore
from cognizes.engine.memory.extraction import (
    ChatModel,
    EpisodeDraft,
    Extraction,
    Extractor,
    FactDraft,
    GeminiChat,
    LanguageModelExtractor,
    OpenAiChat,
    RuleExtractor,
    TranscriptTurn,
)
from cognizes.engine.memory.filters import Filters, Range
from cognizes.engine.memory.long_term import FactVersion, LongTermEntry, LongTermKey, LongTermMemoryStore
from cognizes.engine.memory.memory import Memory
from cognizes.engine.memory.message_search import MessageHit
from cognizes.engine.memory.records import EventSource, Hit, MemoryPage, MemoryRecord, MemoryScope, Remembered
from cognizes.engine.memory.snapshot import MemorySnapshot, MemorySnapshots
from cognizes.engine.memory.working import WorkingMemory, WorkingMemoryStore

__all__ = [
    "ChatModel",
    "Consolidated",
    "ContextItem",
    "EpisodeDraft",
    "EpisodicEntry",
    "EpisodicMemoryStore",
    "EventSource",
    "Extraction",
    "Extractor",
    "FactDraft",
    "FactVersion",
    "Filters",
    "GeminiChat",
    "Hit",
    "LanguageModelExtractor",
    "LongTermEntry",
    "LongTermKey",
    "LongTermMemoryStore",
    "Memory",
    "MemoryContext",
    "MemoryPage",
    "MemoryRecord",
    "MemoryScope",
    "MemorySnapshot",
    "MemorySnapshots",
    "MessageHit",
    "OpenAiChat",
    "Range",
    "Remembered",
    "RuleExtractor",
    "TranscriptTurn",
    "WorkingMemory",
    "WorkingMemoryStore",
    "estimate_tokens",
]
