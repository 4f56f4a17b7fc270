"""`cognizes keys`: make, list, revoke and rotate API keys. It needs the database, not a running server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cognizes.engine.access import AccessDesk, Permission
from cognizes.engine.access.api_keys import ApiKey
from cognizes.engine.cli.configured_database import open_database
from cognizes.engine.cli.connection_urls import naming_server
from cognizes.engine.cli.migration import migrator
from cognizes.engine.cli.options import DatabaseUrl, DataDirectory, load_settings
from cognizes.engine.settings import Settings

_ACTOR = "cognizes keys"
_WIDTH_IN_A_FILE = 160

keys = typer.Typer(help="API keys: create, list, revoke, rotate.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]
KeyId = Annotated[str, typer.Argument(help="The part of the key between cgz_ and the next underscore.")]


@keys.command()
def create(
    *,
    app: Annotated[
        list[str] | None, typer.Option("--app", help="An app the key is for; may be repeated.", show_default=False)
    ] = None,
    all_apps: Annotated[bool, typer.Option("--all-apps", help="For every app, also those to come.")] = False,
    permission: Annotated[
        list[Permission] | None, typer.Option(help="read, write or admin; may be repeated (read and write).")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Bind the key to one user of its apps.")] = None,
    name: Annotated[str, typer.Option(help="What it is for, for people.")] = "",
    days: Annotated[float | None, typer.Option(min=0, help="Days until it expires; without it, never.")] = None,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it. It is shown this once: the database keeps a hash."""
    if bool(app) == all_apps:
        raise typer.BadParameter("give --app (it may be repeated) or --all-apps")
    expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)

    async def run(desk: AccessDesk) -> tuple[ApiKey, str]:
        return await desk.keys.create(
            permissions=permission or [Permission.READ, Permission.WRITE],
            app_names=None if all_apps else app,
            user_id=user,
            name=name,
            expires_at=expires_at,
        )

    key, text = _run(load_settings(data_dir=data_dir, database_url=database_url), "create", run)
    _print_new(key, text, as_json=as_json)


@keys.command("list")
def list_keys(data_dir: DataDirectory = None, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Show all keys, without their secrets."""

    async def run(desk: AccessDesk) -> list[ApiKey]:
        return await desk.keys.list()

    found = _run(load_settings(data_dir=data_dir, database_url=database_url), "", run)
    if as_json:
        typer.echo(json.dumps([_shown(key) for key in found], indent=2))
        return
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH_IN_A_FILE)
    table = Table()
    for title in ("id", "name", "apps", "user", "permissions", "expires", "last used", "revoked"):
        table.add_column(title)
    for key in found:
        shown = _shown(key)
        apps = ", ".join(shown["app_names"]) if shown["app_names"] is not None else "all"
        times = [(shown[name] or "-")[:16] for name in ("expires_at", "last_used_at", "revoked_at")]
        table.add_row(key.id, key.name, apps, key.user_id or "-", ", ".join(shown["permissions"]), *times)
    console.print(table)


@keys.command()
def revoke(key_id: KeyId, data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """End a key at once, in every running server; its open streams end too."""

    async def run(desk: AccessDesk) -> str:
        await desk.keys.revoke(key_id)
        return key_id

    _run(load_settings(data_dir=data_dir, database_url=database_url), "revoke", run)
    typer.echo(f"revoked {key_id}")


@keys.command()
def rotate(
    key_id: KeyId,
    grace_hours: Annotated[float, typer.Option(min=0, help="How long the old key still works.")] = 0,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make another key for the same things, and end the old one now or after a time of grace."""

    async def run(desk: AccessDesk) -> tuple[ApiKey, str]:
        return await desk.keys.rotate(key_id, grace=timedelta(hours=grace_hours))

    key, text = _run(load_settings(data_dir=data_dir, database_url=database_url), f"rotate {key_id}", run)
    _print_new(key, text, as_json=as_json)


def _run(settings: Settings, action: str, work: Any) -> Any:
    async def run() -> Any:
        async with _desk(settings) as desk:
            result = await work(desk)
            if action:
                key = result[0].id if isinstance(result, tuple) else result
                await desk.audit.write(actor=_ACTOR, action=f"keys {action}", target=key)
            return result

    return asyncio.run(run())


@asynccontextmanager
async def _desk(settings: Settings) -> AsyncIterator[AccessDesk]:
    with naming_server(settings):
        async with open_database(settings) as database:
            async with database.connection() as connection:
                await migrator(connection, settings).migrate()
            yield AccessDesk(database, settings)


def _print_new(key: ApiKey, text: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({**_shown(key), "key": text}, indent=2))
        return
    typer.echo(text)
    typer.echo("Keep it: it is not shown again. Send it as `Authorization: Bearer <key>`.", err=True)


def _shown(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "app_names": None if key.app_names is None else sorted(key.app_names),
        "user_id": key.user_id,
        "permissions": sorted(key.permissions),
        **{
            name: moment.isoformat() if (moment := getattr(key, name)) else None
            for name in ("created_at", "expires_at", "revoked_at", "last_used_at")
        },
    }
