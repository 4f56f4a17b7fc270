"""Our checkpointer on a database of its own, and LangGraph's in memory as the model of its behaviour."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from cognizes.engine.adapters.langgraph import OpenCheckpointSaver


@pytest.fixture
async def saver(database_url: str) -> AsyncIterator[OpenCheckpointSaver]:
    async with OpenCheckpointSaver(database_url) as opened:
        yield opened


@pytest.fixture(params=["ours", "in memory"])
def each_saver(request: pytest.FixtureRequest) -> BaseCheckpointSaver[str]:
    """Ours, and LangGraph's own: a test that passes on both describes LangGraph's behaviour."""
    found: BaseCheckpointSaver[str] = request.getfixturevalue("saver") if request.param == "ours" else InMemorySaver()
    return found
