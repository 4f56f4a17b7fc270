"""`cognizes queues`: the limits of runs. Needs the database, not a running server."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Annotated

import typer
from rich.table import Table

from cognizes.engine.cli.configuration import DatabaseUrl, DataDirectory, load_settings, print_table
from cognizes.engine.cli.connections import with_engine

queues = typer.Typer(help="Queues: limits of running runs and of claims per second.", no_args_is_help=True)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(help="A queue; runs without one are in the queue of their handler's name.")]


@queues.command("set")
def set_limits(
    name: Name,
    *,
    concurrency: Annotated[int | None, typer.Option(help="Most running runs; 0 stops the queue.")] = None,
    rate: Annotated[int | None, typer.Option(help="Most claims in --per seconds.")] = None,
    per: Annotated[float, typer.Option(min=0.001, max=366 * 86400, help="Seconds of --rate.")] = 1.0,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Set the limits of a queue, for all processes and from the next claim on."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    limits = {"concurrency": concurrency, "rate": rate}
    queue = with_engine(settings, lambda engine: engine.queues.set(name, **limits, per=timedelta(seconds=per)))
    typer.echo(json.dumps(queue.to_json()))


@queues.command("list")
def list_queues(data_dir: DataDirectory = None, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Show the queues that have limits, with their running and pending runs."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    found = with_engine(settings, lambda engine: engine.queues.list())
    if as_json:
        typer.echo(json.dumps([queue.to_json() for queue in found], indent=2))
        return
    table = Table()
    for title in ("queue", "concurrency", "rate", "running", "pending"):
        table.add_column(title)
    for queue in found:
        rate = f"{queue.rate} in {queue.per.total_seconds():g} s" if queue.rate is not None else "-"
        limit = "-" if queue.concurrency is None else str(queue.concurrency)
        table.add_row(queue.name, limit, rate, str(queue.running), str(queue.pending))
    print_table(table)


@queues.command()
def delete(name: Name, data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """Remove the limits of a queue. Its runs stay."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    with_engine(settings, lambda engine: engine.queues.delete(name))
    typer.echo(f"deleted {name}")
