"""Threads as NDJSON: they move between installations with equal ids, sequence numbers and history.

An archive has a header, the state of each user and of the app with its history, then thread by thread its rows, and an
end. Only an archive with an end is complete. A thread is imported in one transaction. A line holds the JSON text that
PostgreSQL made of a row. It is not parsed and encoded again: a stored document comes back with the same text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any
from uuid import UUID

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.errors import DatabaseError, DatabaseUnavailableError, InvalidInputError, NotFoundError
from cognizes.engine.version import __version__

THREADS_FORMAT = "cognizes-threads"
THREADS_VERSION = 1
_ROWS_AT_ONCE = 200
_BATCH_LINES = 500
_BATCH_CHARACTERS = 4 * 1024 * 1024
_THREAD_COLUMNS = ("id", "app_name", "user_id", "session_id", "last_sequence")
_SCOPE_TABLES = frozenset({"user_states", "app_states", "state_writes"})


@dataclass
class ExportedThreads:
    """What an export contains, complete after its last line: `skipped` maps a thread to the reason."""

    threads: int = 0
    skipped: dict[str, str] = field(default_factory=dict)


@dataclass
class ImportedThreads:
    """What an import did. `present` threads existed already with the same head; `skipped` ones were not imported."""

    imported: int = 0
    present: int = 0
    rows: int = 0
    states_kept: int = 0
    skipped: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Scope:
    app_name: str
    user_id: str | None


class ThreadArchive:
    """Exports and imports threads, with the privileges of the engine."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def export(
        self, app_name: str, *, user_id: str | None = None, session_id: str | None = None, report: ExportedThreads
    ) -> AsyncGenerator[str, None]:
        """Yield the lines of an archive: threads of an app, of a user or of a session, as one transaction sees them.

        A thread with a run that is executed, or with a message that is streamed, is skipped and named in `report`: both
        installations would continue it. `NotFoundError`, before the first line, when there is no such thread.
        """
        queries = self._database.queries
        async with (
            self._database.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            threads = await connection.fetch(queries["list_archive_threads"], app_name, user_id, session_id)
            if not threads:
                wanted = " of this user" if user_id is not None else ""
                raise NotFoundError(f"the app {app_name!r} has no such sessions{wanted}; check the names")
            tables = [row["name"] for row in await connection.fetch(queries["list_thread_tables"])]
            yield header_line(THREADS_FORMAT, THREADS_VERSION)
            users = dict.fromkeys(thread["user_id"] for thread in threads)
            for scope in (None, *users):
                for row in await connection.fetch(queries["read_scope_rows"], app_name, scope):
                    yield row_line(row["table_name"], row["row"])
            for thread in threads:
                if reason := _reason_to_skip(thread):
                    report.skipped[thread["session_id"]] = reason
                    continue
                yield row_line("threads", thread["row"])
                for table in tables:
                    arguments = (table, thread["id"])
                    async for row in connection.cursor(queries["read_thread_rows"], *arguments, prefetch=_ROWS_AT_ONCE):
                        yield row_line(table, row["row"])
                report.threads += 1
            yield json.dumps({"end": report.threads}) + "\n"

    async def import_lines(
        self, lines: Iterable[str], *, on_progress: Callable[[ImportedThreads], None] | None = None
    ) -> ImportedThreads:
        """Import an archive. A thread that exists is not changed; after an interruption the import can be repeated.

        A state of a user or of the app is imported only if there is none. `InvalidInputError` for a file that is not an
        archive, that ends early, or that a newer engine wrote: threads before the damage are imported.
        """
        report = ImportedThreads()
        for owner, owned in groupby(_content(lines), key=_OwnerOf()):
            if isinstance(owner, _Scope):
                await self._import_scope(owner, owned, report)
            else:
                await self._import_thread(owner, owned, report)
            if on_progress is not None:
                on_progress(report)
        return report

    async def _import_scope(self, scope: _Scope, lines: Iterable[Line], report: ImportedThreads) -> None:
        async with self._database.connection() as connection, connection.transaction():
            if await connection.fetchval(self._database.queries["has_scope"], scope.app_name, scope.user_id):
                report.states_kept += 1
                return
            report.rows += (await self._insert(connection, lines, thread_id=None, app_name=scope.app_name)).total()

    async def _import_thread(self, thread: dict[str, Any], lines: Iterable[Line], report: ImportedThreads) -> None:
        name = str(thread["session_id"])
        try:
            async with self._database.connection() as connection, connection.transaction():
                found = await connection.fetch(
                    self._database.queries["find_imported"],
                    UUID(thread["id"]),
                    thread["app_name"],
                    thread["user_id"],
                    thread["session_id"],
                )
                if reason := _conflict(thread, found):
                    report.skipped[name] = reason
                elif found:
                    report.present += 1
                else:
                    counts = await self._insert(
                        connection, lines, thread_id=UUID(thread["id"]), app_name=thread["app_name"]
                    )
                    if counts["events"] != thread["last_sequence"]:
                        raise InvalidInputError(
                            f"the archive has {counts['events']} of {thread['last_sequence']} events of the session "
                            f"{name!r}; it is damaged, export it again"
                        )
                    report.imported += 1
                    report.rows += counts.total()
        except DatabaseUnavailableError:
            raise
        except (DatabaseError, InvalidInputError) as error:
            if not isinstance(error.__cause__, asyncpg.PostgresError):
                raise
            report.skipped[name] = f"PostgreSQL refuses its rows: {error.__cause__}"

    async def _insert(
        self,
        connection: asyncpg.pool.PoolConnectionProxy[Any],
        lines: Iterable[Line],
        *,
        thread_id: UUID | None,
        app_name: str,
    ) -> Counter[str]:
        counts: Counter[str] = Counter()
        for table, texts in _batches(lines):
            counts[table] += await connection.fetchval(
                self._database.queries["import_rows"], table, texts, thread_id, app_name
            )
        return counts


def _reason_to_skip(thread: asyncpg.Record) -> str | None:
    if thread["active_run"] is not None:
        return f"its run {thread['active_run']} is not ended; wait for its end, or cancel it"
    if thread["open_stream"] is not None:
        return f"its message {thread['open_stream']} is being streamed; export it again when it is stored"
    return None


def _conflict(thread: dict[str, Any], found: list[asyncpg.Record]) -> str | None:
    for row in found:
        if str(row["id"]) != thread["id"]:
            return f"the session exists as the thread {row['id']}; delete one of them"
        if row["last_sequence"] != thread["last_sequence"]:
            return (
                f"the thread exists with {row['last_sequence']} events, the archive has {thread['last_sequence']}; "
                "threads are not merged"
            )
    return None


def _batches(lines: Iterable[Line]) -> Iterable[tuple[str, list[str]]]:
    """Group consecutive lines of one table, bounded in number and size."""
    batch: list[str] = []
    size, table = 0, ""
    for line in lines:
        if batch and (line.table != table or len(batch) >= _BATCH_LINES or size > _BATCH_CHARACTERS):
            yield table, batch
            batch, size = [], 0
        table = line.table
        batch.append(line.text)
        size += len(line.text)
    if batch:
        yield table, batch


def _content(lines: Iterable[str]) -> Iterator[Line]:
    """Yield the lines between the header and the end."""
    numbered = enumerate(lines, 1)
    first = next(numbered, None)
    if first is None:
        raise InvalidInputError("the file is empty; it is not an archive")
    check_header(parse_line(*first), THREADS_FORMAT, THREADS_VERSION)
    for number, text in numbered:
        line = parse_line(number, text)
        if "end" in line.values:
            return
        yield line
    raise InvalidInputError("the archive ends early; export it again. Complete threads before its end are imported")


class _OwnerOf:
    """Returns the owner of a line: a state, or the thread whose row came last."""

    def __init__(self) -> None:
        self._thread: dict[str, Any] | None = None

    def __call__(self, line: Line) -> _Scope | dict[str, Any]:
        row = line.row
        if line.table == "threads":
            missing = [name for name in _THREAD_COLUMNS if name not in row]
            if missing:
                raise InvalidInputError(f"line {line.number} is a thread without {', '.join(missing)}")
            self._thread = row
            return row
        if line.table in _SCOPE_TABLES:
            is_app = line.table == "app_states" or row.get("scope") == "app"
            return _Scope(str(row.get("app_name")), None if is_app else str(row.get("user_id")))
        if not line.table or self._thread is None:
            raise InvalidInputError(f"line {line.number} belongs to no thread; the archive is damaged")
        return self._thread


def header_line(archive_format: str, version: int, **values: str) -> str:
    head = {
        "format": archive_format,
        "version": version,
        "engine": __version__,
        "exported_at": datetime.now(UTC).isoformat(),
    }
    return json.dumps({**head, **values}) + "\n"


def row_line(table: str, row: str) -> str:
    return f'{{"table": {json.dumps(table)}, "row": {row}}}\n'


@dataclass(frozen=True)
class Line:
    """A parsed line, and its text."""

    number: int
    text: str
    values: dict[str, Any]

    @property
    def table(self) -> str:
        return str(self.values.get("table", ""))

    @property
    def row(self) -> dict[str, Any]:
        return self.values.get("row") or {}


def parse_line(number: int, text: str) -> Line:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"line {number} is not JSON; the file is damaged or not an archive") from error
    if not isinstance(values, dict):
        raise InvalidInputError(f"line {number} is not a JSON object; the file is damaged or not an archive")
    return Line(number, text, values)


def check_header(line: Line, archive_format: str, version: int) -> None:
    """Raise `InvalidInputError` unless the line begins an archive of this format that this engine can read."""
    if line.values.get("format") != archive_format:
        raise InvalidInputError(f"the file is not a {archive_format} archive; `cognizes export` writes one")
    found = line.values.get("version")
    if not isinstance(found, int) or found < 1:
        raise InvalidInputError(f"the archive has no valid version ({found!r})")
    if found > version:
        raise InvalidInputError(
            f"the archive has version {found} of the format, and this engine reads up to {version}; "
            "upgrade cognizes-engine"
        )
