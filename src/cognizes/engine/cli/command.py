"""The `cognizes` command. It exits with 0 for success, 1 for a failure and 2 for wrong usage.

An `EngineError` is printed as one line without a traceback.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cognizes.engine.cli.archive import backup, export, import_adk, import_archive, restore_backup, user
from cognizes.engine.cli.configuration import config
from cognizes.engine.cli.database import migrate, psql
from cognizes.engine.cli.doctor import doctor
from cognizes.engine.cli.keys import keys
from cognizes.engine.cli.operations import memory, queues, schedules, webhooks
from cognizes.engine.cli.serve import mcp, serve
from cognizes.engine.cli.worker import worker
from cognizes.engine.errors import ConflictError, EngineError, InvalidInputError, NotFoundError
from cognizes.engine.version import __version__

app = typer.Typer(
    name="cognizes",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    # Typer's tracebacks print local variables, which contain URLs with passwords.
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(migrate)
app.command()(config)
app.command()(doctor)
app.command()(worker)
app.command()(mcp)
app.command("import-adk")(import_adk)
app.command()(backup)
app.command("restore")(restore_backup)
app.command()(export)
app.command("import")(import_archive)
app.add_typer(user, name="user")
app.add_typer(keys, name="keys")
app.add_typer(memory, name="memory")
app.add_typer(schedules, name="schedules")
app.add_typer(queues, name="queues")
app.add_typer(webhooks, name="webhooks")
# psql uses `-h` for the host.
app.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})(psql)


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
