"""`cognizes psql`: the bundled psql on the configured database."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated
from urllib.parse import quote, urlsplit

import typer

from cognizes.engine.cli.connection_urls import check_urls, hide_password
from cognizes.engine.cli.options import DatabaseUrl, DataDirectory, load_settings
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.database.embedded import binaries
from cognizes.engine.settings import Settings


def psql(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Handed to psql as they are.", show_default=False)
    ] = None,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Open psql on the database.

    Brings its own psql, and starts the embedded PostgreSQL if it does not run.

    What is no option of ours goes to psql, and its exit code comes back: [bold]cognizes psql -c "select 1"[/]
    """
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    check_urls(settings)
    with _running_server(settings) as url:
        raise typer.Exit(_run_psql(url, arguments or []))


@contextmanager
def _running_server(settings: Settings) -> Iterator[str]:
    """The URL to connect to. The embedded server stays while we hold our share in it."""
    if settings.url is not None:
        yield settings.url
        return
    embedded = EmbeddedPostgres(settings.data_dir)
    asyncio.run(embedded.start())
    try:
        yield embedded.url
    finally:
        asyncio.run(embedded.close())


def _on_same_server(url: str, arguments: list[str]) -> list[str]:
    """Return psql's arguments with `-d NAME` as the URL of that database on the configured server.

    psql itself would take the name for one on its own default server.
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
        return name  # a connection string names its own server
    return urlsplit(url)._replace(path=f"/{quote(name, safe='')}").geturl()


def _run_psql(url: str, arguments: list[str]) -> int:
    shown, password = hide_password(url)
    environment = {**os.environ, "PGPASSWORD": password} if password else dict(os.environ)
    # Ctrl-C reaches psql too, and there it cancels a query: we stay, to give back our share when psql is done.
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
