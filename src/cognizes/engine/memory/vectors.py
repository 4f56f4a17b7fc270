"""The vectors of memories: the queue of those to embed, and the HNSW index of users with many memories.

The queue is a table that processes work off in batches. A claim expires, so another process takes over the memories of
a process that died. A text that the embedder refuses is retried a few times and then parked with the error; the other
texts of its batch do not wait for it.

An exact scan of a user's vectors is fast while there are few, and an HNSW index makes each write of a vector more
expensive than the vector itself. So the index contains only the vectors of users with many memories.
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
from cognizes.engine.memory.recall import vector_literal
from cognizes.engine.memory.words import in_slices

logger = logging.getLogger(__name__)

BATCH = 128
SLICE = 32
"""Texts that are embedded and stored together: PostgreSQL and the event loop serve requests between two slices."""
_EMBEDDED_CHARACTERS = 50_000
_CLAIM = timedelta(minutes=2)
_ATTEMPTS = 5
_FIRST_DELAY = timedelta(seconds=1)
_ERROR_LENGTH = 500
_STORE_ATTEMPTS = 10
_STORE_DELAY = 0.05
"""Seconds between attempts to store the vector of a memory that another transaction has locked, for example one that
stores a growing session again."""
LARGE = 20_000
"""Memories of a user from which his vectors belong in the HNSW index."""
BUILD_SECONDS = 24 * 3600
_MOVED_AT_ONCE = 5000
Pause = Callable[[], Awaitable[None]]


async def no_pause() -> None:
    return None


@dataclass(frozen=True)
class QueueLength:
    """The number of memories that wait for a vector, and of those that could not be embedded."""

    waiting: int
    parked: int


class EmbeddingQueue:
    def __init__(self, database: Database, embedder: Embedder, *, first_delay: timedelta = _FIRST_DELAY) -> None:
        self._database = database
        self._embedder = embedder
        self._first_delay = first_delay

    async def length(self) -> QueueLength:
        row = await self._database.fetch_row("count_embedding_queue")
        assert row is not None  # noqa: S101 - a count returns one row
        return QueueLength(row["waiting"], row["parked"])

    async def work(self, *, batch: int = BATCH, pause: Pause = no_pause) -> int:
        """Embed one batch; return its size. Calls `pause` after each slice.

        `EmbedderUnavailableError` and a cancellation release the claimed memories that have no vector.
        """
        rows = await self._database.fetch("claim_embeddings", batch, _CLAIM, _EMBEDDED_CHARACTERS)
        first = 0
        try:
            while first < len(rows):
                await self._embed(rows[first : first + SLICE])
                first += SLICE
                await pause()
        except (EmbedderUnavailableError, asyncio.CancelledError):
            # The claim would otherwise last for minutes. The stored ones are no longer in the queue.
            if waiting := rows[first:]:
                await asyncio.shield(asyncio.ensure_future(self._database.fetch("release_embeddings", *_keys(waiting))))
            raise
        return len(rows)

    async def queue_all(self) -> None:
        """Queue every memory that has no vector of this embedder. May be repeated after an interruption."""
        last = ("", "", 0)
        while True:
            row = await self._database.fetch_row("queue_for_embedding", self._embedder.name, *last, 1000)
            if row is None:
                return
            last = (row["app_name"], row["user_id"], row["id"])

    async def _embed(self, rows: Sequence[asyncpg.Record]) -> None:
        async def embed(part: Sequence[asyncpg.Record]) -> None:
            literals = await vector_literals(await self._embedder.embed([_text(row) for row in part]))
            await self._store(part, literals)

        await bisect_failures(rows, embed, refuse=self._postpone)

    async def _store(self, rows: Sequence[asyncpg.Record], literals: Sequence[str]) -> None:
        waiting = dict(zip((row["memory_id"] for row in rows), zip(rows, literals, strict=True), strict=True))
        for attempt in range(_STORE_ATTEMPTS):
            if attempt:
                await asyncio.sleep(_STORE_DELAY)
            part, vectors_of_part = zip(*waiting.values(), strict=True)
            revisions = [row["revision"] for row in part]
            model = self._embedder.name
            locked = await self._database.fetch_value(
                "store_vectors", *_keys(part), revisions, model, list(vectors_of_part)
            )
            waiting = {number: waiting[number] for number in locked}
            if not waiting:
                return
        # The claim would otherwise last for minutes.
        await self._database.fetch("release_embeddings", *_keys([row for row, _ in waiting.values()]))

    async def _postpone(self, row: asyncpg.Record, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        logger.warning("memory %s of %s could not be embedded: %s", row["memory_id"], row["app_name"], reason)
        await self._database.fetch(
            "postpone_embedding",
            row["app_name"],
            row["user_id"],
            row["memory_id"],
            escape_text(reason[:_ERROR_LENGTH]),
            _ATTEMPTS,
            self._first_delay * 4 ** row["attempts"],
        )


async def vector_literals(vectors: Vectors) -> list[str]:
    """Return vectors in the input format of pgvector."""
    return await in_slices(vectors, lambda part: list(map(vector_literal, part)), size=lambda vector: len(vector) // 3)


async def bisect_failures(
    rows: Sequence[asyncpg.Record],
    work: Callable[[Sequence[asyncpg.Record]], Awaitable[None]],
    *,
    refuse: Callable[[asyncpg.Record, Exception], Awaitable[None]],
) -> None:
    """Call `work` with the rows; after a failure with each half, until the rows that fail are isolated and refused."""
    try:
        await work(rows)
    except (EmbedderUnavailableError, DatabaseError):
        raise
    except Exception as error:  # noqa: BLE001 - a text that the embedder refuses must not stop the others
        if len(rows) == 1:
            await refuse(rows[0], error)
            return
        middle = len(rows) // 2
        await bisect_failures(rows[:middle], work, refuse=refuse)
        await bisect_failures(rows[middle:], work, refuse=refuse)


class VectorIndex:
    """Builds the HNSW index of one model and moves the vectors of large users into it. It can be interrupted."""

    def __init__(self, database: Database, embedder: Embedder, *, large: int = LARGE) -> None:
        self._database = database
        self._embedder = embedder
        self._large = large

    async def grow(self) -> int:
        """Move the vectors of users with at least `large` memories into the index; return the number of users moved."""
        model = self._embedder.name
        scopes = await self._database.fetch("find_large_scopes", self._large, model)
        moved = 0
        for scope in scopes:
            key = scope["app_name"], scope["user_id"], model
            await self._database.fetch("begin_vector_index", *key)
            while await self._database.fetch("move_into_vector_index", *key, _MOVED_AT_ONCE):
                pass
            name = await self._build()
            moved += bool(await self._database.fetch_value("finish_vector_index", *key, name))
        return moved

    async def _build(self) -> str:
        index = await self._database.fetch_row("describe_vector_index", self._embedder.name, self._embedder.dimension)
        assert index is not None  # noqa: S101 - a format returns one row
        await build_index(self._database, index["name"], index["statement"])
        name: str = index["name"]
        return name


async def build_index(database: Database, name: str, statement: str) -> None:
    """Build an HNSW index unless it exists; drop the invalid index of an interrupted build first."""
    if await database.fetch_value("find_invalid_index", name):
        await database.execute_within(BUILD_SECONDS, f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
    await database.execute_within(BUILD_SECONDS, statement)


def _text(row: asyncpg.Record) -> str:
    text = unescape_text(row["text"])
    return f"{unescape_text(row['author'])}: {text}" if row["author"] else text


def _keys(rows: Sequence[asyncpg.Record]) -> tuple[list[str], list[str], list[int]]:
    return [row["app_name"] for row in rows], [row["user_id"] for row in rows], [row["memory_id"] for row in rows]
