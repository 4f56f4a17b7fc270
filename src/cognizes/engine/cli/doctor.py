"""`cognizes doctor`: is everything there that the engine needs, and if not, what to do."""

from __future__ import annotations

import asyncio

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cognizes.engine.cli.finding import Finding, Verdict
from cognizes.engine.cli.machine_checks import examine_machine
from cognizes.engine.cli.options import DatabaseUrl, DataDirectory, load_settings
from cognizes.engine.cli.server_checks import examine_server
from cognizes.engine.settings import Settings

_COLOURS = {Verdict.GOOD: "green", Verdict.BEARABLE: "yellow", Verdict.BROKEN: "bold red"}
_WIDTH_IN_A_FILE = 160


def doctor(data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """Check this machine and the database, and say how to mend what is wrong.

    [green]✓[/] is fine, [yellow]![/] works but less well, [red]✗[/] does not work: then the exit code is 1.

    It changes nothing.
    """
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    findings = asyncio.run(_examine(settings))
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH_IN_A_FILE)
    console.print(_table(findings))
    if any(finding.verdict is Verdict.BROKEN for finding in findings):
        raise typer.Exit(1)


async def _examine(settings: Settings) -> list[Finding]:
    return [*examine_machine(settings), *[finding async for finding in examine_server(settings)]]


def _table(findings: list[Finding]) -> Table:
    table = Table()
    table.add_column("")
    table.add_column("check", no_wrap=True)
    table.add_column("found", overflow="fold")
    table.add_column("how to mend it", overflow="fold")
    for finding in findings:
        table.add_row(
            Text(finding.verdict, style=_COLOURS[finding.verdict]),
            finding.subject,
            Text(finding.seen),
            Text(finding.remedy),
        )
    return table
