"""`cognizes migrate`: the schema, brought up to date ahead of the engine's start, or only looked at."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from cognizes.engine.cli.configured_database import has_data, open_database
from cognizes.engine.cli.connection_urls import naming_server
from cognizes.engine.cli.options import DatabaseUrl, DataDirectory, load_settings
from cognizes.engine.database import Database
from cognizes.engine.database.migrations import Migrator, functions, migrations, whole_schema
from cognizes.engine.settings import Settings


def migrate(
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing: list what is pending, and exit 1 if anything is.")
    ] = False,
    sql: Annotated[bool, typer.Option("--sql", help="Change nothing: print the whole schema as one script.")] = False,
) -> None:
    """Bring the schema of the database up to date.

    `serve` does this too when it starts. Many processes may do it at once, and doing it twice is safe.
    """
    if check and sql:
        raise typer.BadParameter("give either --check or --sql, not both")
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    if sql:
        typer.echo(whole_schema(schema=settings.db_schema, embedding_dimension=settings.embedding_dimension), nl=False)
        return
    with naming_server(settings):
        if check:
            _report_pending(asyncio.run(pending_scripts(settings)))
        else:
            _report_applied(asyncio.run(_migrate(settings)))


async def pending_scripts(settings: Settings) -> list[str]:
    """What `migrate` would run. Creates nothing, not even the embedded server."""
    if settings.url is None and not has_data(settings):
        return [script.name for script in [*migrations(), *functions()]]
    async with open_database(settings) as database, database.connection() as connection:
        return await migrator(connection, settings).pending()


def migrator(connection: object, settings: Settings) -> Migrator:
    """What migrates the configured schema through a connection."""
    return Migrator(connection, schema=settings.db_schema, embedding_dimension=settings.embedding_dimension)


async def _migrate(settings: Settings) -> list[str]:
    database: Database
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


def _report_applied(names: list[str]) -> None:
    for name in names:
        typer.echo(name)
    typer.echo(f"Ran {len(names)} scripts; the schema is up to date." if names else "The schema was up to date.")
