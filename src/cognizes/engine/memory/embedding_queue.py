"""The queue of memories that wait for a vector: in a table, worked off in batches, stopped by nothing.

A claim runs out by itself, so the memories of a process that died are taken by another. A text that no embedder takes
is tried a few times and then parked with the error; its neighbours in the batch do not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.documents import escape_text, unescape_text
from cognizes.engine.errors import DatabaseError
from cognizes.engine.memory.embedders.embedder import Embedder, EmbedderUnavailableError, Vectors
from cognizes.engine.memory.recall import spell_vector

logger = logging.getLogger(__name__)

BATCH = 256
_CLAIM = timedelta(minutes=2)
_ATTEMPTS = 5
_FIRST_PAUSE = timedelta(seconds=1)
_LONGEST_ERROR = 500


@dataclass(frozen=True)
class QueueLength:
    """How many memories wait for a vector, and how many wait in vain."""

    waiting: int
    parked: int


class EmbeddingQueue:
    """Works off the queue with one embedder."""

    def __init__(self, database: Database, embedder: Embedder, *, first_pause: timedelta = _FIRST_PAUSE) -> None:
        self._database = database
        self._embedder = embedder
        self._first_pause = first_pause

    async def length(self) -> QueueLength:
        """What is in the queue now."""
        row = await self._database.fetch_row("count_embedding_queue")
        assert row is not None  # noqa: S101 - a count always answers
        return QueueLength(row["waiting"], row["parked"])

    async def work(self, *, batch: int = BATCH) -> int:
        """Embeds one batch; returns how many memories it took. `EmbedderUnavailableError` gives them back."""
        rows = await self._database.fetch("claim_embeddings", batch, _CLAIM)
        if rows:
            try:
                await self._embed(rows)
            except EmbedderUnavailableError:
                await self._database.fetch("release_embeddings", *_keys(rows))
                raise
        return len(rows)

    async def queue_all(self) -> None:
        """Queues every memory that has no vector of this embedder. Interrupted, it can be called again."""
        last = ("", "", 0)
        while True:
            row = await self._database.fetch_row("queue_for_embedding", self._embedder.name, *last, 1000)
            if row is None:
                return
            last = (row["app_name"], row["user_id"], row["id"])

    async def _embed(self, rows: Sequence[asyncpg.Record]) -> None:
        async def embed(part: Sequence[asyncpg.Record]) -> None:
            await self._store(part, await self._embedder.embed([_text(row) for row in part]))

        await in_halves(rows, embed, refuse=self._postpone)

    async def _store(self, rows: Sequence[asyncpg.Record], vectors: Vectors) -> None:
        # A batch holds hundreds of thousands of numbers.
        spelled = await asyncio.to_thread(lambda: [spell_vector(vector) for vector in vectors])
        revisions = [row["revision"] for row in rows]
        await self._database.fetch_value("store_vectors", *_keys(rows), revisions, self._embedder.name, spelled)

    async def _postpone(self, row: asyncpg.Record, error: Exception) -> None:
        told = f"{type(error).__name__}: {error}"
        logger.warning("memory %s of %s could not be embedded: %s", row["memory_id"], row["app_name"], told)
        await self._database.fetch(
            "postpone_embedding",
            row["app_name"],
            row["user_id"],
            row["memory_id"],
            escape_text(told[:_LONGEST_ERROR]),
            _ATTEMPTS,
            self._first_pause * 4 ** row["attempts"],
        )


async def in_halves(
    rows: Sequence[asyncpg.Record],
    work: Callable[[Sequence[asyncpg.Record]], Awaitable[None]],
    *,
    refuse: Callable[[asyncpg.Record, Exception], Awaitable[None]],
) -> None:
    """Work on rows; when that fails, on both halves, until the rows that cause it are alone and can be refused."""
    try:
        await work(rows)
    except (EmbedderUnavailableError, DatabaseError):
        raise
    except Exception as error:  # noqa: BLE001 - a text that an embedder cannot take must not stop the others
        if len(rows) == 1:
            await refuse(rows[0], error)
            return
        middle = len(rows) // 2
        await in_halves(rows[:middle], work, refuse=refuse)
        await in_halves(rows[middle:], work, refuse=refuse)


def _text(row: asyncpg.Record) -> str:
    text = unescape_text(row["text"])
    return f"{unescape_text(row['author'])}: {text}" if row["author"] else text


def _keys(rows: Sequence[asyncpg.Record]) -> tuple[list[str], list[str], list[int]]:
    return [row["app_name"] for row in rows], [row["user_id"] for row in rows], [row["memory_id"] for row in rows]
