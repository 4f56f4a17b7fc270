"""Backups of the embedded server: one tar file with a manifest, a dump of the database and the files of artifacts.

`pg_dump` reads the database in one snapshot while the engine runs. A restore builds another database beside the empty
one and renames it when it is complete, so that a kill at any moment leaves either nothing or everything.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import asyncpg

from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.database.driver_errors import translated
from cognizes.engine.database.embedded import DATABASE, MAJOR_VERSION, binaries
from cognizes.engine.database.migrations import migrations
from cognizes.engine.database.queries import Queries
from cognizes.engine.errors import ConflictError, InvalidInputError, SetupError
from cognizes.engine.version import __version__

BACKUP_FORMAT = "cognizes-backup"
BACKUP_VERSION = 1
_MANIFEST, _DUMP, _FILES = "manifest.json", "database.dump", "artifacts"
_FIELDS = {"version": int, "schema": int, "engine": str}
"""What every manifest has, of newer engines, too."""
_RESTORING = f"{DATABASE}-restoring"
OnProgress = Callable[[int, int], None]
"""Receives the number of all tables and of finished ones."""


@dataclass(frozen=True)
class Manifest:
    engine: str
    schema: int
    postgresql: int
    created_at: str

    def encode(self) -> bytes:
        values = {"format": BACKUP_FORMAT, "version": BACKUP_VERSION, **self.__dict__}
        return json.dumps(values, indent=2).encode()


async def back_up(server: EmbeddedPostgres, target: Path, *, schema: str, on_progress: OnProgress) -> int:
    """Write a backup of a started server; return its size. `InvalidInputError` if the file exists."""
    queries = Queries(schema)
    async with _connected(server.url) as connection:
        if await connection.fetchval(queries["find_migrations_table"]) is None:
            raise InvalidInputError(f"the engine in {server.data_dir} has no data yet; there is nothing to back up")
        number = await connection.fetchval(queries["read_schema_number"])
        tables = await connection.fetchval(queries["count_tables"])
    manifest = Manifest(__version__, number, MAJOR_VERSION, datetime.now(UTC).isoformat())
    return await asyncio.to_thread(_write, server, target, manifest, partial(on_progress, tables))


def _write(server: EmbeddedPostgres, target: Path, manifest: Manifest, on_progress: Callable[[int], None]) -> int:
    if target.exists():
        raise InvalidInputError(f"{target} exists; choose another file, or move it away")
    if not target.parent.is_dir():
        raise InvalidInputError(f"{target.parent} is not a directory; create it first")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        work = Path(folder)
        # Files never change. A link keeps one that is deleted before the archive has it; the second pass adds new ones.
        _link_files(server.data_dir / _FILES, work / _FILES)
        options = ("--format=custom", "--verbose", f"--dbname={server.url}", f"--file={work / _DUMP}")
        _run("pg_dump", *options, marker="dumping contents of table", on_progress=on_progress)
        _link_files(server.data_dir / _FILES, work / _FILES)
        (work / _MANIFEST).write_bytes(manifest.encode())
        archive = work / "backup.tar"
        with tarfile.open(archive, "w") as tar:
            for name in (_MANIFEST, _DUMP, _FILES):
                if (work / name).exists():
                    tar.add(work / name, arcname=name)
        archive.chmod(0o600)
        with archive.open("rb") as written:
            os.fsync(written.fileno())
        archive.rename(target)
    return target.stat().st_size


def read_manifest(source: Path) -> Manifest:
    """Return the manifest of a backup; `InvalidInputError` for another file, and for one of a newer engine."""
    try:
        with tarfile.open(source) as tar:
            found = tar.extractfile(_MANIFEST)
            values = json.loads(found.read()) if found is not None else {}
    except (OSError, tarfile.TarError, KeyError, ValueError) as error:
        raise InvalidInputError(f"{source} is not a backup of `cognizes backup` ({error})") from error
    if not isinstance(values, dict) or values.get("format") != BACKUP_FORMAT:
        raise InvalidInputError(f"{source} is not a backup of `cognizes backup`")
    damaged = [name for name, kind in _FIELDS.items() if not isinstance(values.get(name), kind)]
    if damaged:
        raise InvalidInputError(f"the manifest of {source} has no valid {', '.join(damaged)}; the backup is damaged")
    newest = migrations()[-1].number
    if values["version"] > BACKUP_VERSION or values["schema"] > newest:
        raise InvalidInputError(
            f"{source} was written by cognizes-engine {values['engine']} (schema {values['schema']}, this engine knows "
            f"{newest}); upgrade cognizes-engine, then restore"
        )
    return Manifest(
        values["engine"], values["schema"], values.get("postgresql", MAJOR_VERSION), str(values.get("created_at"))
    )


async def restore(server: EmbeddedPostgres, source: Path, *, schema: str, on_progress: OnProgress) -> Manifest:
    """Restore a backup into a started server without data.

    `InvalidInputError` for a file that is not a backup, and for a server that has data; `ConflictError` while another
    process uses the server. Nothing is changed then.
    """
    manifest = read_manifest(source)
    queries = Queries(schema)
    with ExitStack() as held:
        try:
            held.enter_context(server.alone())
        except SetupError as error:
            raise ConflictError(str(error)) from error
        folder = held.enter_context(tempfile.TemporaryDirectory(dir=server.data_dir, prefix="restore."))
        async with _connected(server.url) as connection:
            filled = await connection.fetchval(queries["find_filled_table"])
        if filled is not None:
            raise InvalidInputError(
                f"the engine in {server.data_dir} has data (in the table {filled}); restore into a new --data-dir"
            )
        work = Path(folder)
        tables = await asyncio.to_thread(_extract, source, work)
        async with _connected(_on_database(server.url, "postgres")) as administration:
            await administration.execute(queries["create_server_role"])
            # DATABASE statements take no parameters; both names are constants.
            await administration.execute(f'DROP DATABASE IF EXISTS "{_RESTORING}"')
            await administration.execute(f'CREATE DATABASE "{_RESTORING}" TEMPLATE template0')
            await asyncio.to_thread(_read_back, server, work, partial(on_progress, tables))
            await administration.execute(f'DROP DATABASE IF EXISTS "{DATABASE}" WITH (FORCE)')
            await administration.execute(f'ALTER DATABASE "{_RESTORING}" RENAME TO "{DATABASE}"')
    return manifest


def _extract(source: Path, folder: Path) -> int:
    """Unpack a backup; return the number of tables in its dump."""
    try:
        with tarfile.open(source) as tar:
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise InvalidInputError(f"{source} is damaged ({error}); use another backup") from error
    listed = subprocess.run(  # noqa: S603
        [str(binaries() / "pg_restore"), "--list", str(folder / _DUMP)], capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        raise InvalidInputError(f"the dump in the backup is damaged: {listed.stderr.strip()}")
    return sum(" TABLE DATA " in line for line in listed.stdout.splitlines())


def _read_back(server: EmbeddedPostgres, folder: Path, on_progress: Callable[[int], None]) -> None:
    url = _on_database(server.url, _RESTORING)
    options = ("--exit-on-error", "--no-owner", "--verbose", f"--dbname={url}", str(folder / _DUMP))
    _run("pg_restore", *options, marker="processing data for table", on_progress=on_progress)
    for path in (folder / _FILES).rglob("*"):
        if path.is_file():
            place = server.data_dir / _FILES / path.relative_to(folder / _FILES)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.rename(place)


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    with translated():
        connection = await asyncpg.connect(url)
        try:
            yield connection
        finally:
            await connection.close()


def _run(program: str, *arguments: str, marker: str, on_progress: Callable[[int], None]) -> None:
    """Run a program and count its lines that name a table; `SetupError` with its last lines if it fails."""
    command = [str(binaries() / program), "--no-password", *arguments]
    tail: list[str] = []
    done = 0
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as process:  # noqa: S603
        assert process.stderr is not None  # noqa: S101
        for line in process.stderr:
            tail = [*tail[-4:], line.strip()]
            if marker in line:
                done += 1
                on_progress(done)
    if process.returncode != 0:
        raise SetupError(f"{program} failed: {' | '.join(tail)}")


def _link_files(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        place = target / path.relative_to(source)
        if path.is_file() and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, place)
            except FileNotFoundError:
                continue  # deleted after it was listed
            except OSError:
                place.write_bytes(path.read_bytes())  # another file system


def _on_database(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{quote(name, safe='')}").geturl()
