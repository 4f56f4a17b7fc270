"""A streaming standby of the embedded server: real replication on one machine, without root."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import psutil

from cognizes.engine.database import EmbeddedPostgres


class Standby(EmbeddedPostgres):
    """A standby of another embedded server, in a directory of its own. `pause` makes it fall behind."""

    def __init__(self, primary: EmbeddedPostgres, data_dir: Path) -> None:
        super().__init__(data_dir)
        self._primary = primary

    def _initialise(self) -> None:
        self.cluster.mkdir(mode=0o700)
        self._give_to_service_user(self.cluster)
        source = f"host={_socket(self._primary.url)} user=postgres dbname=postgres"
        self._run("pg_basebackup", "-d", source, "-D", str(self.cluster), "-R", "-c", "fast", "-X", "stream")
        for copied in self.cluster.glob(".s.PGSQL.5432*"):
            copied.unlink()

    def _create_database(self) -> None:
        """The primary creates databases."""

    def url_for(self, database_url: str) -> str:
        """Return the URL of the same database on this standby."""
        return database_url.replace(_socket(database_url), _socket(self.url))

    async def pause(self) -> None:
        """Stop applying what the primary writes, after all that it has written."""
        await self.catch_up()
        await self._execute("SELECT pg_wal_replay_pause()")
        while await self._execute("SELECT pg_get_wal_replay_pause_state()") != "paused":
            await asyncio.sleep(0.01)

    async def resume(self) -> None:
        await self._execute("SELECT pg_wal_replay_resume()")
        await self.catch_up()

    async def catch_up(self) -> None:
        """Wait until all that the primary has written is applied."""
        primary = await asyncpg.connect(self._primary.url)
        try:
            position = await primary.fetchval("SELECT pg_current_wal_flush_lsn()::text")
        finally:
            await primary.close()
        async with asyncio.timeout(60):
            while not await self._execute(f"SELECT pg_last_wal_replay_lsn() >= '{position}'::pg_lsn"):
                await asyncio.sleep(0.01)

    async def _execute(self, statement: str) -> object:
        connection = await asyncpg.connect(self.url.replace("/cognizes-engine?", "/postgres?"))
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    def processes(self) -> list[psutil.Process]:
        postmaster = self._postmaster()
        return [] if postmaster is None else [postmaster, *postmaster.children(recursive=True)]

    def freeze(self) -> None:
        for process in self.processes():
            process.suspend()

    def thaw(self) -> None:
        for process in self.processes():
            process.resume()


def _socket(url: str) -> str:
    return parse_qs(urlsplit(url).query)["host"][0]


@contextmanager
def standby_of(primary: EmbeddedPostgres) -> Iterator[Standby]:
    """Start a standby of a server; stop and remove it at the end."""
    directory = Path(tempfile.mkdtemp(prefix="cognizes-standby-"))
    standby = Standby(primary, directory)
    asyncio.run(standby.start())
    try:
        yield standby
    finally:
        standby.thaw()
        asyncio.run(standby.close())
        shutil.rmtree(directory)
