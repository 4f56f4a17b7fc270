"""The graph (HNSW index) of a model's vectors, for users whose memories are many.

Comparing every vector of a user is exact, and fast while they are few; keeping a graph costs every write of a vector
more than the vector itself. So only the vectors of users with many memories are in it.
"""

from __future__ import annotations

import logging

from cognizes.engine.database import Database
from cognizes.engine.memory.embedders.embedder import Embedder

logger = logging.getLogger(__name__)

CROWDED = 20_000
_AT_ONCE = 5000
LONGEST_BUILD_SECONDS = 24 * 3600


class VectorGraph:
    """Builds the graph of one model, and moves crowded users into it. Interrupted, it goes on where it stopped."""

    def __init__(self, database: Database, embedder: Embedder, *, crowded: int = CROWDED) -> None:
        self._database = database
        self._embedder = embedder
        self._crowded = crowded

    async def grow(self) -> int:
        """Takes in the users who became crowded; returns how many are ready now."""
        model = self._embedder.name
        scopes = await self._database.fetch("find_crowded_scopes", self._crowded, model)
        ready = 0
        for scope in scopes:
            key = scope["app_name"], scope["user_id"], model
            await self._database.fetch("begin_graph", *key)
            while await self._database.fetch("move_into_graph", *key, _AT_ONCE):
                pass
            name = await self._build()
            ready += bool(await self._database.fetch_value("finish_graph", *key, name))
        return ready

    async def _build(self) -> str:
        graph = await self._database.fetch_row("describe_graph", self._embedder.name, self._embedder.dimension)
        assert graph is not None  # noqa: S101 - a format always answers
        await build_graph(self._database, graph["name"], graph["statement"])
        name: str = graph["name"]
        return name


async def build_graph(database: Database, name: str, statement: str) -> None:
    """Build a graph unless it exists; what an interrupted build left is dropped first."""
    if await database.fetch_value("find_broken_graph", name):
        await database.execute_within(LONGEST_BUILD_SECONDS, f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
    await database.execute_within(LONGEST_BUILD_SECONDS, statement)
