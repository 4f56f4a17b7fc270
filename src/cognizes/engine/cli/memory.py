"""`cognizes memory`: the embedding queue, and new vectors after a change of the embedder."""

from __future__ import annotations

import asyncio

import typer

from cognizes.engine.cli.configuration import DatabaseUrl, DataDirectory, load_settings, progress_bar
from cognizes.engine.cli.connections import naming_server
from cognizes.engine.engine import Engine
from cognizes.engine.errors import SetupError
from cognizes.engine.memory.message_search import MessageIndex, WaitingMessages
from cognizes.engine.memory.vectors import EmbeddingQueue, QueueLength
from cognizes.engine.settings import Settings

memory = typer.Typer(help="Memories: their vectors.", no_args_is_help=True)
_POLL_SECONDS = 0.2


@memory.command()
def status(data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """Print how many memories wait for a vector, and which ones could not be embedded."""
    settings = load_settings(data_dir=data_dir, database_url=database_url, memory_background=False)
    with naming_server(settings):
        name, length, parked, messages = asyncio.run(_status(settings))
    typer.echo(f"embedder {name}: {length.waiting} memories wait for a vector, {length.parked} are parked")
    typer.echo(f"{messages.waiting} messages wait to be indexed, {messages.without_vector} others have no vector")
    for line in parked:
        typer.echo(line)


@memory.command()
def reembed(data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """Embed every memory and every message that has no vector of the configured embedder.

    After an interruption it continues where it stopped. Until then, recall finds memories without a vector by words.
    """
    settings = load_settings(data_dir=data_dir, database_url=database_url, memory_background=False)
    with naming_server(settings):
        name, made, parked = asyncio.run(_reembed(settings))
    typer.echo(f"{made} vectors created by {name}; {parked} memories could not be embedded (cognizes memory status)")


async def _status(settings: Settings) -> tuple[str, QueueLength, list[str], WaitingMessages]:
    async with Engine(settings) as engine:
        queue = _queue(engine)
        rows = await engine._database.fetch("list_parked_embeddings", 20)
        name = engine.memory.embedder.name if engine.memory.embedder else "none"
        lines = [f"{row['app_name']}/{row['user_id']}/{row['memory_id']}: {row['error']}" for row in rows]
        return name, await queue.length(), lines, await engine.memory.message_index.count()


async def _reembed(settings: Settings) -> tuple[str, int, int]:
    async with Engine(settings) as engine:
        queue = _queue(engine)
        await queue.queue_all()
        await _reindex_messages(engine.memory.message_index)
        total = (await queue.length()).waiting
        with progress_bar("memories") as bar:
            task = bar.add_task("memories", total=total)
            while (length := await queue.length()).waiting:
                bar.update(task, completed=total - length.waiting)
                if not await queue.work():
                    # Another process has claimed the rest, or a failed embedding is due for a retry.
                    await asyncio.sleep(_POLL_SECONDS)
        name = engine.memory.embedder.name if engine.memory.embedder else ""
        return name, max(total - length.parked, 0), length.parked


async def _reindex_messages(index: MessageIndex) -> None:
    await index.queue_all()
    while (count := await index.count()).waiting or count.without_vector:
        if not await index.work():
            await asyncio.sleep(_POLL_SECONDS)
    await index.build_vector_index()


def _queue(engine: Engine) -> EmbeddingQueue:
    if engine.memory.queue is None:
        raise SetupError("no embedder is configured; install cognizes-engine[embeddings] or set COGNIZES_EMBEDDER")
    return engine.memory.queue
