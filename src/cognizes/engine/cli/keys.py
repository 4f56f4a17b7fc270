"""`cognizes keys`: create, list, revoke and rotate API keys. Needs the database, not a running server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

import typer
from rich.table import Table

from cognizes.engine.access import Authenticator, Permission
from cognizes.engine.access.authenticator import ApiKey
from cognizes.engine.cli.configuration import DatabaseUrl, DataDirectory, load_settings, print_table
from cognizes.engine.cli.connections import naming_server, open_database
from cognizes.engine.cli.database import migrator
from cognizes.engine.settings import Settings

_ACTOR = "cognizes keys"
_Result = TypeVar("_Result")
keys = typer.Typer(help="API keys: create, list, revoke, rotate.", no_args_is_help=True)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
KeyId = Annotated[str, typer.Argument(help="The part of the key between cgz_ and the next underscore.")]


@keys.command()
def create(
    *,
    app: Annotated[
        list[str] | None, typer.Option("--app", help="An app the key is for; may be repeated.", show_default=False)
    ] = None,
    all_apps: Annotated[bool, typer.Option("--all-apps", help="For every app, including future ones.")] = False,
    permission: Annotated[
        list[Permission] | None, typer.Option(help="read, write or admin; may be repeated (read and write).")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Bind the key to one user of its apps.")] = None,
    name: Annotated[str, typer.Option(help="A description of its purpose.")] = "",
    days: Annotated[float | None, typer.Option(min=0, help="Days until it expires; without it, never.")] = None,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it. It is shown only once: the database stores a hash."""
    if bool(app) == all_apps:
        raise typer.BadParameter("give --app (it may be repeated) or --all-apps")
    expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)

    async def run(authenticator: Authenticator) -> tuple[ApiKey, str]:
        return await authenticator.keys.create(
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

    async def run(authenticator: Authenticator) -> list[ApiKey]:
        return await authenticator.keys.list()

    found = _run(load_settings(data_dir=data_dir, database_url=database_url), "", run)
    if as_json:
        typer.echo(json.dumps([_shown(key) for key in found], indent=2))
        return
    table = Table()
    for title in ("id", "name", "apps", "user", "permissions", "expires", "last used", "revoked"):
        table.add_column(title)
    for key in found:
        shown = _shown(key)
        apps = ", ".join(shown["app_names"]) if shown["app_names"] is not None else "all"
        times = [(shown[name] or "-")[:16] for name in ("expires_at", "last_used_at", "revoked_at")]
        table.add_row(key.id, key.name, apps, key.user_id or "-", ", ".join(shown["permissions"]), *times)
    print_table(table)


@keys.command()
def revoke(key_id: KeyId, data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """Revoke a key at once, in every running server, and end its open streams."""

    async def run(authenticator: Authenticator) -> str:
        await authenticator.keys.revoke(key_id)
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
    """Create a key with the same rights, and revoke the old one now or after a grace period."""

    async def run(authenticator: Authenticator) -> tuple[ApiKey, str]:
        return await authenticator.keys.rotate(key_id, grace=timedelta(hours=grace_hours))

    key, text = _run(load_settings(data_dir=data_dir, database_url=database_url), f"rotate {key_id}", run)
    _print_new(key, text, as_json=as_json)


def _run(settings: Settings, action: str, work: Callable[[Authenticator], Awaitable[_Result]]) -> _Result:
    async def run() -> _Result:
        async with _authenticator(settings) as authenticator:
            result = await work(authenticator)
            if action:
                key = result[0].id if isinstance(result, tuple) else str(result)
                await authenticator.audit.write(actor=_ACTOR, action=f"keys {action}", target=key)
            return result

    return asyncio.run(run())


@asynccontextmanager
async def _authenticator(settings: Settings) -> AsyncIterator[Authenticator]:
    with naming_server(settings):
        async with open_database(settings) as database:
            async with database.connection() as connection:
                await migrator(connection, settings).migrate()
            yield Authenticator(database, settings)


def _print_new(key: ApiKey, text: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({**_shown(key), "key": text}, indent=2))
        return
    typer.echo(text)
    typer.echo("Store it: it is not shown again. Send it as `Authorization: Bearer <key>`.", err=True)


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
