"""The `cognizes` command. It exits with 0 for success, 1 for a failure and 2 for wrong usage.

An `EngineError` is printed as one line without a traceback.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cognizes.engine.cli import archive, configuration, database, doctor, keys, operations, serve, worker
from cognizes.engine.errors import ConflictError, EngineError, InvalidInputError, NotFoundError
from cognizes.engine.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    name="cognizes",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    # Typer's tracebacks print local variables, which contain URLs with passwords.
    pretty_exceptions_enable=False,
)
app.command()(serve.serve)
app.command()(database.migrate)
app.command()(configuration.config)
app.command()(doctor.doctor)
app.command()(worker.worker)
app.command()(serve.mcp)
app.command("import-adk")(archive.import_adk)
app.command()(archive.backup)
app.command("restore")(archive.restore_backup)
app.command()(archive.export)
app.command("import")(archive.import_archive)
app.add_typer(archive.user, name="user")
app.add_typer(keys.keys, name="keys")
app.add_typer(operations.memory, name="memory")
app.add_typer(operations.schedules, name="schedules")
app.add_typer(operations.queues, name="queues")
app.add_typer(operations.webhooks, name="webhooks")
# psql uses `-h` for the host.
app.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})(database.psql)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cognizes-engine {__version__}")
        raise typer.Exit


@app.callback()
def cognizes(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Cognizes Engine: sessions, state, events and memory of AI agents, on PostgreSQL alone.

    Start with [bold]cognizes serve[/]. Without DATABASE_URL it runs an embedded PostgreSQL.
    """


def main() -> None:
    try:
        app()
    except EngineError as error:
        typer.echo(f"cognizes: {error}", err=True)
        sys.exit(2 if isinstance(error, InvalidInputError | NotFoundError | ConflictError) else 1)
