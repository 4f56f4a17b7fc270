"""`cognizes serve`: everything in one process, until Ctrl-C."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from cognizes.engine.adapters.availability import HOW_TO_GET_AGENTS, has_adk
from cognizes.engine.cli.connection_urls import check_urls, describe_url, naming_server
from cognizes.engine.cli.listening_socket import (
    is_loopback,
    open_listening_socket,
    page_url,
    raise_descriptor_limit,
)
from cognizes.engine.cli.log_output import configure_logging
from cognizes.engine.cli.options import DatabaseUrl, DataDirectory, LogFormat, LogLevel, export_dotenv, load_settings
from cognizes.engine.cli.serve_lock import serve_lock
from cognizes.engine.errors import SetupError
from cognizes.engine.settings import Settings
from cognizes.engine.version import __version__


def serve(
    *,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (COGNIZES_HOST, 127.0.0.1).", show_default=False)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port to listen on; 0 for any (COGNIZES_PORT, 8000).", show_default=False),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE.MODULE:AGENT",
            help="A Google ADK agent to serve over AG-UI; may be repeated (COGNIZES_AGENTS, the built-in demo).",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(case_sensitive=False, help="How much to log (COGNIZES_LOG_LEVEL, INFO).", show_default=False),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(help="For people or for machines (COGNIZES_LOG_FORMAT, text).", show_default=False),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Answer other machines although no key is asked for (COGNIZES_INSECURE)."),
    ] = False,
) -> None:
    """Start the engine and serve it over HTTP.

    Without DATABASE_URL it runs an embedded PostgreSQL and keeps the data in --data-dir, over restarts too.

    Ctrl-C or SIGTERM stops everything. [bold]cognizes config[/] lists all settings.
    """
    settings = load_settings(
        data_dir=data_dir,
        database_url=database_url,
        host=host,
        port=port,
        log_level=log_level,
        log_format=log_format,
        agents=",".join(agent) if agent else None,
        insecure=insecure or None,
    )
    export_dotenv()
    check_urls(settings)
    _refuse_strangers(settings)
    configure_logging(settings)
    raise_descriptor_limit()
    with ExitStack() as held, naming_server(settings):
        listening = held.enter_context(open_listening_socket(settings.host, settings.port))
        url = page_url(listening)
        if settings.url is None:
            held.enter_context(serve_lock(settings.data_dir, url))
        # Here and not above: the web framework costs every other command a second.
        from cognizes.engine.cli.service import run_service  # noqa: PLC0415

        run_service(settings, listening, announce=lambda: _print_banner(settings, url))


def _refuse_strangers(settings: Settings) -> None:
    if not settings.insecure and settings.auth != "required" and not is_loopback(settings.host):
        raise SetupError(
            f"refusing to listen on {settings.host or 'every address'}: no key is asked for, so whoever reaches this "
            "machine could read and change everything; set COGNIZES_AUTH=required and make a key with `cognizes keys "
            "create`, use 127.0.0.1, or add --insecure if a firewall or proxy keeps strangers out"
        )


def _describe_access(settings: Settings) -> str:
    if settings.auth == "required":
        return "with a key or a token (`cognizes keys create`)"
    if is_loopback(settings.host):
        return "this machine only, no key needed"
    return "[red]whoever reaches this machine, without a key[/]"


def _print_banner(settings: Settings, url: str) -> None:
    lines = {
        "Page": f"[link={url}]{url}[/link]",
        "API docs": f"{url}docs",
        "Data": escape(_place_of_data(settings)),
        "Access": _describe_access(settings),
        "Agents": f"{url}agui" if has_adk() else escape(HOW_TO_GET_AGENTS),
        "Stop": "Ctrl-C",
    }
    console = Console(highlight=False, soft_wrap=True)
    with console.capture() as banner:
        console.print(f"\n[bold green]Cognizes Engine {__version__} is running.[/]\n")
        for title, text in lines.items():
            if text:
                console.print(f"  [bold]{title:<10}[/]{text}")
        console.print()
    try:
        sys.stdout.write(banner.get())
        sys.stdout.flush()
    except OSError:
        # The reader went away (`serve | head -1`): the server stays, and so must the interpreter when it flushes again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _place_of_data(settings: Settings) -> str:
    if settings.url is None:
        return f"{settings.data_dir} (embedded PostgreSQL)"
    return f"{describe_url(settings.url)} (your PostgreSQL)"
