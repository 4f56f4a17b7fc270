"""`cognizes migrate` and `cognizes psql`: the schema of the configured database, and psql on it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated
from urllib.parse import quote, urlsplit

import typer

from cognizes.engine.cli.configuration import DatabaseUrl, DataDirectory, load_settings
from cognizes.engine.cli.connections import check_urls, has_data, hide_password, naming_server, open_database
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.database.embedded import binaries
from cognizes.engine.database.migrations import (
    FUNCTIONS,
    Migrator,
    ScriptPlan,
    functions,
    make_plan,
    migrations,
    whole_schema,
)
from cognizes.engine.settings import Settings


def migrate(
    *,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing: list pending scripts, and exit 1 if there are any.")
    ] = False,
    sql: Annotated[bool, typer.Option("--sql", help="Change nothing: print the whole schema as one script.")] = False,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Change nothing: show pending scripts, their locks, rewrites and new indexes."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --plan: print JSON.")] = False,
) -> None:
    """Bring the schema of the database up to date.

    `serve` does this too when it starts. Several processes may run it at the same time, and it may be repeated.
    """
    if check + sql + plan > 1:
        raise typer.BadParameter("give one of --check, --plan and --sql")
    if as_json and not plan:
        raise typer.BadParameter("--json needs --plan")
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    if sql:
        typer.echo(whole_schema(schema=settings.db_schema, embedding_dimension=settings.embedding_dimension), nl=False)
        return
    with naming_server(settings):
        if plan:
            _report_plan(asyncio.run(_plan(settings)), as_json=as_json)
        elif check:
            _report_pending(asyncio.run(_pending_scripts(settings)))
        else:
            _report_applied(asyncio.run(_migrate(settings)))


def migrator(connection: object, settings: Settings) -> Migrator:
    return Migrator(
        connection,
        schema=settings.db_schema,
        embedding_dimension=settings.embedding_dimension,
        lock_seconds=settings.migration_lock_seconds,
        wait_seconds=settings.migration_wait_seconds,
    )


async def _pending_scripts(settings: Settings) -> list[str]:
    """Return the scripts that `migrate` would run. Creates nothing, not even the embedded server."""
    if settings.url is None and not has_data(settings):
        return [script.name for script in [*migrations(), *functions()]]
    async with open_database(settings) as database, database.connection() as connection:
        return await migrator(connection, settings).pending()


async def _plan(settings: Settings) -> list[ScriptPlan]:
    """Return what `migrate` would do. Creates nothing in the database, and no embedded server for an empty one."""
    if settings.url is None and not has_data(settings):
        return [ScriptPlan(script.name, []) for script in migrations()] + [
            ScriptPlan(FUNCTIONS, [], count=len(functions()))
        ]
    async with open_database(settings) as database, database.connection() as connection:
        return await make_plan(migrator(connection, settings), connection)


async def _migrate(settings: Settings) -> list[str]:
    async with open_database(settings) as database, database.connection() as connection:
        return await migrator(connection, settings).migrate()


def _report_pending(names: list[str]) -> None:
    if not names:
        typer.echo("The schema is up to date.")
        return
    for name in names:
        typer.echo(name)
    typer.echo(f"{len(names)} scripts are pending; run `cognizes migrate`.", err=True)
    raise typer.Exit(1)


def _report_plan(plans: list[ScriptPlan], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([plan.to_json() for plan in plans], indent=2))
        return
    if not plans:
        typer.echo("The schema is up to date.")
        return
    for plan in plans:
        typer.echo(plan.name if plan.count == 1 else f"{plan.name} ({plan.count} scripts)")
        if not plan.tables:
            typer.echo("  locks no existing table")
        for table in plan.tables:
            size = f"{table.rows} rows, {table.size / 2**20:.1f} MiB"
            typer.echo(f"  {table.table} ({size}): {table.lock}, {table.effect}")
            if table.is_rewritten:
                typer.echo("    rewrites the table, with all its indexes")
            for index in table.indexes:
                typer.echo(f"    builds the index {index}, which reads the whole table")
    typer.echo(
        "All scripts run in one transaction: locks last until its end. A script that waits for a lock longer than "
        "COGNIZES_MIGRATION_LOCK_SECONDS is rolled back and tried again."
    )


def _report_applied(names: list[str]) -> None:
    for name in names:
        typer.echo(name)
    typer.echo(f"Ran {len(names)} scripts; the schema is up to date." if names else "The schema was up to date.")


def psql(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Passed to psql unchanged.", show_default=False)
    ] = None,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Open psql on the database.

    Uses the bundled psql, and starts the embedded PostgreSQL if it is not running.

    Other options go to psql, and its exit code is returned: [bold]cognizes psql -c "select 1"[/]
    """
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    check_urls(settings)
    with _running_server(settings) as url:
        raise typer.Exit(_run_psql(url, arguments or []))


@contextmanager
def _running_server(settings: Settings) -> Iterator[str]:
    """Yield the URL of the database. The embedded server keeps running inside the block."""
    if settings.url is not None:
        yield settings.url
        return
    embedded = EmbeddedPostgres(settings.data_dir)
    asyncio.run(embedded.start())
    try:
        yield embedded.url
    finally:
        asyncio.run(embedded.close())


def _run_psql(url: str, arguments: list[str]) -> int:
    shown, password = hide_password(url)
    environment = {**os.environ, "PGPASSWORD": password} if password else dict(os.environ)
    # Ctrl-C also reaches psql, where it cancels a query. This process must survive it to close the embedded server.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        command = [str(binaries() / "psql"), "--dbname", shown, *_on_same_server(shown, arguments)]
        process = subprocess.Popen(command, env=environment)  # noqa: S603
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: process.terminate())
        code = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code


def _on_same_server(url: str, arguments: list[str]) -> list[str]:
    """Replace `-d NAME` by the URL of that database on the configured server.

    psql would connect to a database of that name on its default server.
    """
    changed: list[str] = []
    is_name = False
    for argument in arguments:
        option, given = argument[:2], argument[2:]
        if is_name:
            changed.append(_other_database(url, argument))
        elif option == "-d" and given:
            changed += ["-d", _other_database(url, given)]
        elif argument.startswith("--dbname="):
            changed += ["-d", _other_database(url, argument.removeprefix("--dbname="))]
        else:
            changed.append(argument)
        is_name = not is_name and argument in ("-d", "--dbname")
    return changed


def _other_database(url: str, name: str) -> str:
    if "=" in name or "://" in name:
        return name  # a connection string contains its own server
    return urlsplit(url)._replace(path=f"/{quote(name, safe='')}").geturl()
