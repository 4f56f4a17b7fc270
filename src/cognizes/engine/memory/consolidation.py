"""Consolidate sessions into episodes and facts, merge duplicate memories, and find the source events of a memory."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.documents import unescape_text
from cognizes.engine.errors import EngineError, InvalidInputError, NotFoundError
from cognizes.engine.memory.episodic import EpisodicEntry, EpisodicMemoryStore
from cognizes.engine.memory.extraction import Extraction, Extractor, TranscriptTurn
from cognizes.engine.memory.filters import KINDS
from cognizes.engine.memory.long_term import LongTermMemoryStore
from cognizes.engine.memory.records import (
    EventSource,
    MemoryRecord,
    MemoryScope,
    memory_number,
    owner,
    record_from_row,
)
from cognizes.engine.memory.words import find_duplicates, off_loop
from cognizes.engine.models import JsonObject, Session
from cognizes.engine.pulse.events import check_name, check_text
from cognizes.engine.pulse.sessions import Sessions

logger = logging.getLogger(__name__)

CONSOLIDATION_HANDLER = "cognizes.consolidate"
"""The handler of runs that consolidate a session. They get no episode of their own."""
_TURNS = 200
_BATCH_CHARACTERS = 24_000
"""Bounds of the messages that an extractor gets at once: a model has to read them in one request."""
_ALL_CHARACTERS = 2**40
_EXTRACTION_SECONDS = 300.0


@dataclass(frozen=True)
class Consolidated:
    """What a consolidation stored. `last_sequence` is the last event that it covers."""

    episodes: int = 0
    facts: int = 0
    last_sequence: int = 0

    def to_json(self) -> JsonObject:
        return dict(vars(self))


@dataclass(frozen=True)
class Batch:
    """Messages of a session that are not consolidated."""

    thread_id: UUID
    turns: Sequence[TranscriptTurn]
    first_sequence: int
    last_sequence: int


class Consolidation:
    """Stores what a session leaves in memory, from where the last consolidation stopped.

    Each batch can be repeated: an episode has the id of its events, and a fact is set to the same value. So a process
    that is killed between two writes loses nothing and doubles nothing.
    """

    def __init__(
        self,
        database: Database,
        sessions: Sessions,
        *,
        episodic: EpisodicMemoryStore,
        long_term: LongTermMemoryStore,
        extractor: Extractor,
        batch_characters: int = _BATCH_CHARACTERS,
    ) -> None:
        self._database = database
        self._sessions = sessions
        self._episodic = episodic
        self._long_term = long_term
        self.extractor = extractor
        self.extraction_seconds = _EXTRACTION_SECONDS
        self._batch_characters = batch_characters

    async def run(self, session: Session, *, agent_id: str | None = None) -> Consolidated:
        """Consolidate all messages of a session that are not consolidated."""
        total = Consolidated()
        while (batch := await self.next_batch(session, agent_id=agent_id)) is not None:
            stored = await self.store(session, batch, await self.extract(batch), agent_id=agent_id)
            total = Consolidated(total.episodes + stored.episodes, total.facts + stored.facts, stored.last_sequence)
        return total

    async def extract(self, batch: Batch) -> Extraction:
        """Ask the extractor about a batch. Raise `EngineError` if it takes more than `extraction_seconds`."""
        limit = asyncio.timeout(self.extraction_seconds)
        try:
            async with limit:
                return await self.extractor.extract(batch.turns)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise EngineError(f"the extractor did not answer within {self.extraction_seconds} s") from error

    async def next_batch(
        self, session: Session, *, agent_id: str | None = None, after: int | None = None, until: int | None = None
    ) -> Batch | None:
        """Return the next messages, after the last consolidation or after a sequence number; None if there is none.

        The ids of episodes contain the range of a batch. The range is recorded before the batch is processed, so that a
        repetition after a crash, and a consolidation at the same time, form the same batch and store the same episodes.
        """
        thread_id = await self._sessions.store.find_thread(session)
        agent = MemoryScope.of(session, agent_id).agent_id
        if after is None:
            after = await self._database.fetch_value("read_consolidated", thread_id, agent) or 0
        while True:
            rows = await self._read_turns(thread_id, after, until)
            if not rows:
                return None
            last = rows[-1]["sequence_num"]
            planned = await self._database.write_row("plan_consolidation", thread_id, agent, after, last)
            if planned is None:
                raise NotFoundError(f"there is no thread {thread_id}")
            if planned["last_sequence"] <= after:
                break
            # Another consolidation has stored these messages since.
            after = planned["last_sequence"]
        if planned["planned_sequence"] != last:
            rows = await self._database.fetch("read_session_turns", thread_id, after, _TURNS, _ALL_CHARACTERS)
            rows = [row for row in rows if row["sequence_num"] <= planned["planned_sequence"]]
        turns = [_turn(number, row) for number, row in enumerate(rows)]
        return Batch(thread_id, turns, rows[0]["sequence_num"], rows[-1]["sequence_num"])

    async def _read_turns(self, thread_id: UUID, after: int, until: int | None) -> list[asyncpg.Record]:
        rows = await self._database.fetch("read_session_turns", thread_id, after, _TURNS, self._batch_characters)
        return [row for row in rows if until is None or row["sequence_num"] <= until]

    async def store(
        self, session: Session, batch: Batch, extraction: Extraction, *, agent_id: str | None = None
    ) -> Consolidated:
        """Store an extraction of a batch. A fact has the time of its newest turn, so that a newer fact wins.

        A fact that cannot be stored, such as a value nested too deeply, is logged and left out.
        """
        scope = MemoryScope.of(session, agent_id)
        for place, episode in enumerate(extraction.episodes):
            named = _named(batch, episode.turns)
            entry = EpisodicEntry(
                scope,
                episode.summary,
                id=f"session/{batch.thread_id}/{batch.first_sequence}-{batch.last_sequence}/{scope.agent_id}/{place}",
                session_id=session.id,
                created_at=named[-1].created_at,
            )
            await self._episodic.append(entry, sources=_sources(session, named))
        facts = 0
        for fact in extraction.facts:
            named = _named(batch, fact.turns)
            try:
                await self._long_term.set(
                    scope,
                    fact.namespace,
                    fact.key,
                    fact.value,
                    text=fact.text,
                    at=named[-1].created_at,
                    sources=_sources(session, named),
                )
            except InvalidInputError as error:
                logger.warning("a fact of thread %s cannot be stored and is left out: %s", batch.thread_id, error)
                continue
            facts += 1
        await self._database.write_value("store_consolidated", batch.thread_id, scope.agent_id, batch.last_sequence)
        return Consolidated(len(extraction.episodes), facts, batch.last_sequence)


def _named(batch: Batch, numbers: Sequence[int]) -> list[TranscriptTurn]:
    """Return the turns of these numbers, in order; all turns if the extractor names none that exists."""
    wanted = set(numbers)
    return [turn for turn in batch.turns if turn.number in wanted] or list(batch.turns)


def _sources(session: Session, turns: Sequence[TranscriptTurn]) -> list[EventSource]:
    return [EventSource(session.id, turn.event_id) for turn in turns]


def _turn(number: int, row: asyncpg.Record) -> TranscriptTurn:
    author = None if row["author"] is None else unescape_text(row["author"])
    return TranscriptTurn(
        number, row["event_id"], row["role"], author, unescape_text(row["content"]), row["created_at"]
    )


_COMPARED = 10_000
"""Memories that one call compares, the newest ones."""
_COMPARED_CHARACTERS = 4000
"""Longer texts are merged only if they are equal."""
_MERGED_KINDS = ("note", "episodic")


class Upkeep:
    """Optional work on the memories of a user. None of it needs a model."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def merge_duplicates(
        self,
        app: str,
        user: str,
        *,
        agent: str | None = None,
        kinds: Sequence[str] = _MERGED_KINDS,
        similarity: float = 0.9,
        visibility: str = "user",
    ) -> int:
        """Merge equal and near texts; return the number of merged memories.

        Merged memories have the same agent, kind, namespace, author, tags, metadata and expiry. The oldest stays.
        Recall and lists leave the others out; their rows and sources are kept, and they return when the oldest changes,
        expires or is deleted with its session, or when they change. `forget` deletes all of them.
        """
        if not 0 < similarity <= 1:
            raise InvalidInputError(f"invalid similarity {similarity}; it must be above 0 and at most 1")
        if unknown := set(kinds) - set(KINDS):
            raise InvalidInputError(f"unknown kind of memory {sorted(unknown)[0]!r}; kinds are {', '.join(KINDS)}")
        scope = check_name("app", app), owner(user, visibility)
        rows = await self._database.fetch(
            "read_texts_to_merge", *scope, list(kinds), agent, _COMPARED, _COMPARED_CHARACTERS
        )
        length = sum(len(row["text"]) for row in rows)
        pairs = await off_loop(length, lambda: _find_pairs(rows, similarity))
        if not pairs:
            return 0
        duplicates, kept = [one for one, _ in pairs], [other for _, other in pairs]
        merged: int = await self._database.write_value(
            "merge_memories",
            *scope,
            [row["id"] for row in duplicates],
            [row["revision"] for row in duplicates],
            [row["id"] for row in kept],
            [row["revision"] for row in kept],
        )
        return merged

    async def sources(self, app: str, user: str, memory_id: str, *, visibility: str = "user") -> list[EventSource]:
        """Return the events that a memory and its duplicates came from."""
        rows = await self._database.fetch("read_memory_sources", app, owner(user, visibility), memory_number(memory_id))
        return [
            EventSource(
                row["session_id"],
                row["event_id"],
                None if row["thread_id"] is None else str(row["thread_id"]),
                row["sequence_num"],
            )
            for row in rows
        ]

    async def memories_of_event(
        self, app: str, user: str, *, session_id: str, event_id: str, visibility: str = "user"
    ) -> list[MemoryRecord]:
        """Return the memories that came from an event: the message itself, and facts, episodes and notes."""
        names = check_text("session_id", session_id), check_text("event_id", event_id)
        rows = await self._database.fetch("list_memories_of_event", app, owner(user, visibility), *names)
        return [record_from_row(row, visibility) for row in rows]


def _find_pairs(rows: Sequence[asyncpg.Record], similarity: float) -> list[tuple[asyncpg.Record, asyncpg.Record]]:
    groups: dict[tuple[Any, ...], list[asyncpg.Record]] = defaultdict(list)
    for row in reversed(rows):
        # A filter that finds one memory of a group finds all of them, and they expire together.
        names = row["agent_id"], row["kind"], row["namespace"], row["author"]
        groups[*names, tuple(sorted(row["tags"])), row["metadata"], row["expires_at"]].append(row)
    pairs = []
    for group in groups.values():
        # A text that is too long to compare repeats only equal ones.
        texts = [unescape_text(row["text"]) or row["hash"] for row in group]
        pairs += [(group[duplicate], group[first]) for duplicate, first in find_duplicates(texts, similarity).items()]
    return pairs
