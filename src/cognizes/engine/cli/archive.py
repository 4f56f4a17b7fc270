"""`cognizes backup`, `restore`, `export`, `import`, `import-adk` and `user`: data out of the engine, and into it."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

import typer

from cognizes.engine.adapters.loading import HOW_TO_GET_AGENTS, has_adk
from cognizes.engine.archive.backup import back_up, read_manifest, restore
from cognizes.engine.archive.threads import ExportedThreads, ImportedThreads
from cognizes.engine.cli.configuration import DatabaseUrl, DataDirectory, load_settings, progress_bar
from cognizes.engine.cli.connections import naming_server
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.engine import Engine
from cognizes.engine.errors import InvalidInputError, SetupError
from cognizes.engine.settings import Settings

if TYPE_CHECKING:
    from cognizes.engine.adapters.adk.importer import ImportProgress, ImportReport


user = typer.Typer(help="Data of one user: export, erase.", no_args_is_help=True)
App = Annotated[str, typer.Option("--app", help="The app, the name of its agent.")]
User = Annotated[str, typer.Option("--user", help="The id of the user.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="A new file; by default standard output.")]


def backup(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    data_dir: DataDirectory = None,
) -> None:
    """Write a consistent copy of the embedded database and of the files of artifacts, also while the engine runs.

    For a PostgreSQL server of your own use pg_dump or the backup of the server.
    """
    settings = _embedded(data_dir, "backup")
    size = asyncio.run(_back_up(settings, file))
    typer.echo(f"{file}: {size} bytes")


def restore_backup(
    file: Annotated[Path, typer.Argument(help="A file that `cognizes backup` wrote.")],
    data_dir: DataDirectory = None,
) -> None:
    """Restore a backup into a data directory without data. No other process may use the directory."""
    settings = _embedded(data_dir, "restore")
    asyncio.run(_restore(settings, file))
    typer.echo(f"{file} is restored into {settings.data_dir}; `cognizes serve` migrates it if necessary.")


def export(
    *,
    app: App,
    user_id: Annotated[str | None, typer.Option("--user", help="Only sessions of this user.")] = None,
    session: Annotated[str | None, typer.Option("--session", help="Only this session.")] = None,
    output: Output = None,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Write sessions as NDJSON: with their ids, events, messages, runs, snapshots and branches. *.gz is compressed."""
    settings = load_settings(data_dir=data_dir, database_url=database_url, memory_background=False)
    with naming_server(settings):
        report = asyncio.run(_export(settings, app, user_id, session, output))
    typer.echo(f"{report.threads} sessions exported", err=True)
    _report_skipped(report.skipped)


def import_archive(
    file: Annotated[Path, typer.Argument(help="A file that `cognizes export` wrote; - for standard input.")],
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Import sessions of another installation. Sessions and states that exist are never changed."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    with naming_server(settings):
        report = asyncio.run(_import(settings, file))
    typer.echo(
        f"{report.imported} sessions with {report.rows} rows imported, {report.present} were present, "
        f"{report.states_kept} states of users or apps existed and were kept"
    )
    _report_skipped(report.skipped)


@user.command("export")
def export_user(
    app: App, user_id: User, output: Output = None, data_dir: DataDirectory = None, database_url: DatabaseUrl = None
) -> None:
    """Write every row of one user as NDJSON. *.gz is compressed."""
    settings = load_settings(data_dir=data_dir, database_url=database_url, memory_background=False)
    with naming_server(settings):
        rows = asyncio.run(_export_user(settings, app, user_id, output))
    typer.echo(f"{rows} rows exported", err=True)


@user.command()
def erase(
    *,
    app: App,
    user_id: User,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Delete all data of one user: sessions, events, messages, state, memories, runs, streams, artifacts.

    Entries of the audit log stay; the names in them become a pseudonym.
    """
    settings = load_settings(data_dir=data_dir, database_url=database_url, memory_background=False)
    if not yes:
        typer.confirm(f"Delete all data of the user {user_id!r} of the app {app!r}?", abort=True)
    with naming_server(settings):
        counts = asyncio.run(_erase(settings, app, user_id))
    if as_json:
        typer.echo(json.dumps(counts, indent=2))
        return
    for table, rows in counts.items():
        typer.echo(f"{table}: {rows}")


def _embedded(data_dir: Path | None, command: str) -> Settings:
    settings = load_settings(data_dir=data_dir, database_url=None)
    if settings.url is not None:
        raise InvalidInputError(
            f"`cognizes {command}` is for the embedded server and DATABASE_URL is set; use pg_dump and pg_restore, the "
            "backup of your server, or give --data-dir"
        )
    return settings


async def _back_up(settings: Settings, file: Path) -> int:
    server = EmbeddedPostgres(settings.data_dir)
    if not (server.cluster / "PG_VERSION").exists():
        raise InvalidInputError(f"{settings.data_dir} has no embedded database; give its --data-dir")
    await server.start()
    try:
        with progress_bar("tables") as bar:
            task = bar.add_task("tables", total=None)
            return await back_up(
                server,
                file,
                schema=settings.db_schema,
                on_progress=lambda total, done: bar.update(task, total=total, completed=done),
            )
    finally:
        await server.close()


async def _restore(settings: Settings, file: Path) -> None:
    read_manifest(file)  # before the server creates its directory
    server = EmbeddedPostgres(settings.data_dir)
    await server.start()
    try:
        with progress_bar("tables") as bar:
            task = bar.add_task("tables", total=None)
            await restore(
                server,
                file,
                schema=settings.db_schema,
                on_progress=lambda total, done: bar.update(task, total=total, completed=done),
            )
    finally:
        await server.close()


async def _export(
    settings: Settings, app: str, user_id: str | None, session: str | None, output: Path | None
) -> ExportedThreads:
    report = ExportedThreads()
    async with Engine(settings) as engine:
        lines = engine.archive.export(app, user_id=user_id, session_id=session, report=report)
        async with aclosing(lines):
            with _writing(output) as file:
                async for line in lines:
                    file.write(line)
    return report


async def _import(settings: Settings, path: Path) -> ImportedThreads:
    async with Engine(settings) as engine:
        with progress_bar("sessions") as bar, _reading(path) as lines:
            task = bar.add_task("sessions", total=None)
            return await engine.archive.import_lines(
                lines, on_progress=lambda report: bar.update(task, completed=report.imported + report.present)
            )


async def _export_user(settings: Settings, app: str, user_id: str, output: Path | None) -> int:
    rows = -1  # the header
    async with Engine(settings) as engine:
        lines = engine.user_data.export(app, user_id)
        async with aclosing(lines):
            with _writing(output) as file:
                async for line in lines:
                    file.write(line)
                    rows += 1
    return rows


async def _erase(settings: Settings, app: str, user_id: str) -> dict[str, int]:
    async with Engine(settings) as engine:
        return await engine.user_data.erase(app, user_id)


@contextmanager
def _writing(path: Path | None) -> Iterator[IO[str]]:
    """Open a file that appears when it is complete; standard output without a path."""
    if path is None:
        yield sys.stdout
        return
    if path.exists():
        raise InvalidInputError(f"{path} exists; choose another file, or move it away")
    partial = path.with_name(f".{path.name}.partial")
    try:
        with _open(partial, "wt", is_compressed=path.suffix == ".gz") as file:
            yield file
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _reading(path: Path) -> Iterator[Iterator[str]]:
    if str(path) == "-":
        yield iter(sys.stdin)
        return
    try:
        with _open(path, "rt", is_compressed=path.suffix == ".gz") as file:
            yield iter(file)
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{path} is not text; it is not an archive of `cognizes export`") from error
    except OSError as error:
        raise InvalidInputError(f"cannot read {path}: {error.strerror or error}") from error


def _open(path: Path, mode: Literal["rt", "wt"], *, is_compressed: bool) -> IO[str]:
    if is_compressed:
        return gzip.open(path, mode, encoding="utf-8")
    return path.open(mode, encoding="utf-8")


def _report_skipped(skipped: dict[str, str]) -> None:
    for session, reason in skipped.items():
        typer.echo(f"skipped {session}: {reason}", err=True)
    if skipped:
        raise SetupError(f"{len(skipped)} sessions were skipped, see above")


def import_adk(
    source: Annotated[str, typer.Argument(help="SQLAlchemy URL of ADK's database, e.g. sqlite:///sessions.db.")],
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Copy sessions, events and states out of the tables of ADK's DatabaseSessionService.

    After an interruption it continues where it stopped. Repeated, it copies only new events. It never changes the
    source, and never overwrites what the engine has stored since.
    """
    if not has_adk():
        raise SetupError(HOW_TO_GET_AGENTS)
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    with naming_server(settings):
        report = asyncio.run(_import_adk(source, settings))
    typer.echo(
        f"{report.sessions_found} sessions and {report.events_found} events found: {report.sessions_created} sessions "
        f"and {report.events_copied} events copied, {report.events_present} events were already present."
    )
    for skipped in report.skipped:
        typer.echo(f"skipped {skipped.app_name}/{skipped.user_id}/{skipped.session_id}: {skipped.reason}", err=True)
    if not report.is_complete:
        raise SetupError("the counts of source and target differ; fix what is named above and run it again")


async def _import_adk(source: str, settings: Settings) -> ImportReport:
    # A late import: ADK and SQLAlchemy would cost every other command seconds.
    from cognizes.engine.adapters.adk.importer import import_sessions  # noqa: PLC0415

    async with Engine(settings) as engine:
        with progress_bar("events") as bar:
            task = bar.add_task("events", total=None)

            def show(progress: ImportProgress) -> None:
                bar.update(task, completed=progress.events_done, total=progress.events_total)

            return await import_sessions(source, engine, progress=show)
