"""`cognizes webhooks`: create, list, rotate and delete webhooks, and redeliver calls that were given up."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from cognizes.engine.cli.configuration import DatabaseUrl, DataDirectory, load_settings, print_table
from cognizes.engine.cli.connections import with_engine

webhooks = typer.Typer(
    help="Webhooks: signed HTTP calls when a run waits for a person, fails or completes.", no_args_is_help=True
)
App = Annotated[str | None, typer.Option("--app", help="Only those of this app.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WebhookId = Annotated[str, typer.Argument(help="The id of the webhook.")]
_ONCE = "Store the secret: it is not shown again. Receivers check the signature with it."


@webhooks.command()
def create(
    url: Annotated[str, typer.Argument(help="An https URL; an internal address needs COGNIZES_WEBHOOK_NETWORKS.")],
    *,
    app: Annotated[str, typer.Option("--app", help="The app whose runs it is called for.")],
    event: Annotated[
        list[str] | None, typer.Option(help="waiting, failed or completed; may be repeated (all).", show_default=False)
    ] = None,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create a webhook and print its secret, once."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    events = {"events": event} if event else {}
    webhook, secret = with_engine(settings, lambda engine: engine.webhooks.create(app, url, **events))
    if as_json:
        typer.echo(json.dumps({**webhook.to_json(), "secret": secret}, indent=2))
        return
    typer.echo(f"{webhook.id} {secret}")
    typer.echo(_ONCE, err=True)


@webhooks.command("list")
def list_webhooks(
    app: App = None, data_dir: DataDirectory = None, database_url: DatabaseUrl = None, as_json: AsJson = False
) -> None:
    """Show webhooks, without their secrets, with the number of waiting and dead deliveries."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    found = with_engine(settings, lambda engine: engine.webhooks.list(app_name=app))
    if as_json:
        typer.echo(json.dumps([webhook.to_json() for webhook in found], indent=2))
        return
    table = Table()
    for title in ("id", "app", "url", "events", "waiting", "dead"):
        table.add_column(title)
    for webhook in found:
        counts = str(webhook.waiting), str(webhook.dead)
        table.add_row(webhook.id, webhook.app_name, webhook.url, ", ".join(webhook.events), *counts)
    print_table(table)


@webhooks.command()
def rotate(webhook_id: WebhookId, data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """Replace the secret of a webhook and print the new one, once."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    typer.echo(with_engine(settings, lambda engine: engine.webhooks.rotate(webhook_id)))
    typer.echo(_ONCE, err=True)


@webhooks.command()
def delete(webhook_id: WebhookId, data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """Delete a webhook with its deliveries."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    with_engine(settings, lambda engine: engine.webhooks.delete(webhook_id))
    typer.echo(f"deleted {webhook_id}")


@webhooks.command("dead-letters")
def dead_letters(
    app: App = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The number of newest calls.")] = 100,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Print the newest calls that were given up, one JSON object per line."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    page = with_engine(settings, lambda engine: engine.webhooks.dead_letters(app_name=app, limit=limit))
    for item in page.items:
        typer.echo(json.dumps(item.to_json()))


@webhooks.command()
def redeliver(
    delivery_id: Annotated[str, typer.Argument(help="The id of the dead letter.")],
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Send a call that was given up again, by the next server or worker."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    with_engine(settings, lambda engine: engine.webhooks.redeliver(delivery_id))
    typer.echo(f"queued {delivery_id}")
