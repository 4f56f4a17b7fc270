"""`cognizes import-adk`: copy the sessions of ADK's database service into the engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from cognizes.engine.adapters.loading import HOW_TO_GET_AGENTS, has_adk
from cognizes.engine.cli.configuration import DatabaseUrl, DataDirectory, load_settings, progress_bar
from cognizes.engine.cli.connections import naming_server
from cognizes.engine.engine import Engine
from cognizes.engine.errors import SetupError
from cognizes.engine.settings import Settings

if TYPE_CHECKING:
    from cognizes.engine.adapters.adk.importer import ImportProgress, ImportReport


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
        report = asyncio.run(_import(source, settings))
    typer.echo(
        f"{report.sessions_found} sessions and {report.events_found} events found: {report.sessions_created} sessions "
        f"and {report.events_copied} events copied, {report.events_present} events were already present."
    )
    for skipped in report.skipped:
        typer.echo(f"skipped {skipped.app_name}/{skipped.user_id}/{skipped.session_id}: {skipped.reason}", err=True)
    if not report.is_complete:
        raise SetupError("the counts of source and target differ; fix what is named above and run it again")


async def _import(source: str, settings: Settings) -> ImportReport:
    # A late import: ADK and SQLAlchemy would cost every other command seconds.
    from cognizes.engine.adapters.adk.importer import import_sessions  # noqa: PLC0415

    async with Engine(settings) as engine:
        with progress_bar("events") as bar:
            task = bar.add_task("events", total=None)

            def show(progress: ImportProgress) -> None:
                bar.update(task, completed=progress.events_done, total=progress.events_total)

            return await import_sessions(source, engine, progress=show)
