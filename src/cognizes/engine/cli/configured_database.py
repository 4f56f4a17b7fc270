"""The database that the settings mean, for commands that need no whole engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from cognizes.engine.cli.connection_urls import check_urls
from cognizes.engine.database import Database, EmbeddedPostgres
from cognizes.engine.errors import DatabaseUnavailableError
from cognizes.engine.settings import Settings

_CONNECT_SECONDS = 10


@asynccontextmanager
async def open_database(settings: Settings) -> AsyncIterator[Database]:
    """A pool on the given server, or on the embedded one, which runs at least as long."""
    check_urls(settings)
    async with AsyncExitStack() as parts:
        url = settings.url
        if url is None:
            embedded = EmbeddedPostgres(settings.data_dir)
            await embedded.start()
            parts.push_async_callback(embedded.close)
            url = embedded.url
        database = await connect(url, settings)
        parts.push_async_callback(database.close)
        yield database


async def connect(url: str, settings: Settings) -> Database:
    """A pool, or an error within seconds: a firewall that swallows packets would keep us for a minute."""
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            return await Database.connect(url, settings)
    except TimeoutError as error:
        raise DatabaseUnavailableError("PostgreSQL did not answer") from error


def has_data(settings: Settings) -> bool:
    """Whether the embedded PostgreSQL was ever created in the data directory."""
    return (EmbeddedPostgres(settings.data_dir).cluster / "PG_VERSION").exists()
