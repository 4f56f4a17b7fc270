"""LangGraph's conformance kit for checkpointers, on ours."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver

from cognizes.engine.adapters.langgraph import OpenCheckpointSaver

pytestmark = pytest.mark.kits


async def test_every_test_of_the_kit_passes(database_url: str) -> None:
    # The kit is in the dependency group ci: `uv run pytest` collects this module without it.
    from langgraph.checkpoint.conformance import checkpointer_test, validate

    @checkpointer_test(name="OpenCheckpointSaver")
    async def ours() -> AsyncGenerator[BaseCheckpointSaver[str], None]:
        async with OpenCheckpointSaver(database_url) as saver:
            yield saver

    results = (await validate(ours)).results.values()
    assert [failure for result in results for failure in result.failures] == []
    assert sum(result.tests_passed for result in results) == 81
