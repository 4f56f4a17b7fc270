"""`cognizes memory`: the embedding queue, and vectors after a change of the embedder."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from cognizes.engine import Engine
from cognizes.engine.memory.records import MemoryScope, Remembered
from tests.engine_parts import database_of
from tests.integration.cli.running_command import Cognizes


async def _remember(data_dir: Path, embedder: str) -> None:
    async with Engine.open(data_dir=data_dir, embedder=embedder, memory_background=False) as engine:
        await engine.memory.remember(MemoryScope("shop", "ada"), [Remembered(str(n), f"tea {n}") for n in range(5)])


async def _claim_and_die(data_dir: Path) -> None:
    async with Engine.open(data_dir=data_dir, memory_background=False) as engine:
        assert engine.memory.queue is not None
        await engine.memory.queue.queue_all()
        assert await engine.memory.queue.work(batch=2) == 2
        assert len(await database_of(engine).fetch("claim_embeddings", 1, timedelta(seconds=1), 100)) == 1


def test_reembed_embeds_every_memory_and_continues_after_an_interruption(quick: Cognizes, data_dir: Path) -> None:
    asyncio.run(_remember(data_dir, "none"))
    assert "0 memories wait" in quick("memory", "status").stdout
    asyncio.run(_claim_and_die(data_dir))
    assert "embedder wordllama-256: 3 memories wait for a vector, 0 are parked" in quick("memory", "status").stdout
    assert "3 vectors created by wordllama-256" in quick("memory", "reembed").stdout
    assert "0 vectors created" in quick("memory", "reembed").stdout
    assert "no embedder" in quick.fail("memory", "reembed", COGNIZES_EMBEDDER="none")
    printed = quick.fail("memory", "status", COGNIZES_EMBEDDER="nonsense")
    assert "COGNIZES_EMBEDDER" in printed


@pytest.mark.minilm
def test_reembed_with_another_embedder_replaces_every_vector(quick: Cognizes, data_dir: Path) -> None:
    asyncio.run(_remember(data_dir, "none"))
    assert "5 vectors created by wordllama-256" in quick("memory", "reembed").stdout
    printed = quick("memory", "reembed", COGNIZES_EMBEDDER="minilm").stdout
    assert "5 vectors created by all-MiniLM-L6-v2-int8-384" in printed
