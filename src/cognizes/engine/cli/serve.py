"""`cognizes serve` (HTTP) and `cognizes mcp` (the Model Context Protocol on standard input and output).

Before the server starts: checks of the settings, the listening socket, the lock of the data directory. Then the banner.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import ipaddress
import logging
import os
import resource
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console
from rich.markup import escape

from cognizes.engine.adapters.loading import HOW_TO_GET_AGENTS, has_adk
from cognizes.engine.cli.configuration import MCP_KEY, DatabaseUrl, DataDirectory, export_dotenv, load_settings
from cognizes.engine.cli.connections import check_urls, describe_url, naming_server
from cognizes.engine.cli.observability import LogFormatOption, LogLevelOption, configure_logging
from cognizes.engine.cli.workers import SourceFiles, Supervisor
from cognizes.engine.errors import PermissionDeniedError, SetupError
from cognizes.engine.settings import Settings
from cognizes.engine.version import __version__

logger = logging.getLogger(__name__)

_BACKLOG = 2048
_MAXIMUM_DESCRIPTORS = 1_048_576


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
            help="An agent of any framework to serve over AG-UI; may be repeated (COGNIZES_AGENTS, the built-in demo).",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that serve requests (COGNIZES_WORKERS, 1).", show_default=False),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Load the agents again when their source files change; for development.")
    ] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser when it is ready.")] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Accept other machines although no key is required (COGNIZES_INSECURE).")
    ] = False,
) -> None:
    """Start the engine and serve it over HTTP.

    Without DATABASE_URL it runs an embedded PostgreSQL and stores the data in --data-dir; restarts keep it.

    Ctrl-C or SIGTERM stops everything. With several workers, SIGHUP restarts them one at a time.

    [bold]cognizes config[/] lists all settings.
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
        workers=workers,
    )
    export_dotenv()
    check_urls(settings)
    _refuse_open_access(settings)
    configure_logging(settings)
    raise_descriptor_limit()
    with ExitStack() as resources, naming_server(settings):
        listening = resources.enter_context(open_listening_socket(settings.host, settings.port))
        url = page_url(listening)
        if settings.url is None:
            resources.enter_context(serve_lock(settings.data_dir, url))

        def announce() -> None:
            print_banner(settings, url)
            if open_page:
                # In a thread: a text browser would block the server until it is closed.
                threading.Thread(target=_open_browser, args=(url,), daemon=True).start()

        if settings.workers > 1 or reload:
            files = SourceFiles([name.strip() for name in settings.agents.split(",")]) if reload else None
            Supervisor(settings, listening, announce=announce, changed_files=files.changed if files else None).run()
            return
        # A late import: the web framework would cost every other command a second.
        from cognizes.engine.cli.service import run_service  # noqa: PLC0415

        run_service(settings, listening, announce=announce)


def _open_browser(url: str) -> None:
    if not webbrowser.open(url):
        logger.warning("no browser was found; open %s", url)


def _refuse_open_access(settings: Settings) -> None:
    if not settings.insecure and settings.auth != "required" and not is_loopback(settings.host):
        raise SetupError(
            f"refusing to listen on {settings.host or 'every address'}: no key is required, so every client that "
            "reaches this machine could read and change all data; set COGNIZES_AUTH=required and create a key with "
            "`cognizes keys create`, use 127.0.0.1, or add --insecure if a firewall or proxy restricts access"
        )


def _describe_access(settings: Settings) -> str:
    if settings.auth == "required":
        return "with a key or a token (`cognizes keys create`)"
    if is_loopback(settings.host):
        return "this machine only, without a key"
    return "[red]every client that reaches this machine, without a key[/]"


def print_banner(settings: Settings, url: str) -> None:
    lines = {
        "Page": f"[link={url}]{url}[/link]",
        "API docs": f"{url}docs",
        "Data": escape(_data_location(settings)),
        "Access": _describe_access(settings),
        "Agents": f"{url}agui" if settings.agents or has_adk() else escape(HOW_TO_GET_AGENTS),
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
        # The reader of the pipe has exited (`serve | head -1`). Without this, the interpreter fails in its last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _data_location(settings: Settings) -> str:
    if settings.url is None:
        return f"{settings.data_dir} (embedded PostgreSQL)"
    return f"{describe_url(settings.url)} (your PostgreSQL)"


@contextmanager
def serve_lock(data_dir: Path, url: str) -> Iterator[None]:
    """Allow one `serve` per data directory. Libraries, psql and other commands may use the directory at the same time.

    The kernel releases the lock when the process ends, also after kill -9.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        file = (data_dir / "serve.lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise SetupError(
            f"cannot write to the data directory {data_dir} ({error.strerror}); choose another with --data-dir"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise SetupError(
                f"the data directory {data_dir} is already served ({file.read().strip()}); "
                "stop that process, or choose another with --data-dir"
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()}, {url}\n")
        file.flush()
        yield


def open_listening_socket(host: str, port: int) -> socket.socket:
    """Bind the port and listen; the kernel queues connections until the server accepts them.

    Without `listen`, Linux lets a second process bind the same port.
    """
    family, address = _resolve(host, port)
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise SetupError(_explain_bind_error(error, host, port)) from error
    return listening


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    _, address = _resolve(host, 0)
    return ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback


def raise_descriptor_limit() -> None:
    """Let this process open as many descriptors as its hard limit allows; each client connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAXIMUM_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAXIMUM_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def page_url(listening: socket.socket) -> str:
    name = listening.getsockname()
    address = ipaddress.ip_address(str(name[0]).partition("%")[0])
    host = "127.0.0.1" if address.is_unspecified else str(address)
    return f"http://[{host}]:{name[1]}/" if ":" in host else f"http://{host}:{name[1]}/"


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)  # noqa: S104
    except (socket.gaierror, UnicodeError) as error:
        raise SetupError(f"unknown host {host!r}; give an address of this machine with --host") from error
    # A name such as localhost has several addresses; clients that try IPv6 first fall back to IPv4.
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, address


def _explain_bind_error(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} of {host} is used by another program; stop it, or choose another port with --port"
        case errno.EACCES:
            return f"port {port} is reserved for root; choose one above 1023 with --port"
        case errno.EADDRNOTAVAIL:
            return f"{host} is not an address of this machine; choose another with --host"
    return f"cannot listen on port {port} of {host} ({error.strerror}); choose others with --host and --port"


def mcp(
    *,
    app: Annotated[str, typer.Option(help="The app whose memory and threads are served.")] = "default",
    user: Annotated[str | None, typer.Option(help="The user; by default that of the key, else `default`.")] = None,
    key: Annotated[
        str, typer.Option(envvar=MCP_KEY, help="The API key, if COGNIZES_AUTH=required.", show_default=False)
    ] = "",
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> None:
    """Serve memory tools and threads to an MCP client, such as an editor or a desktop assistant, on stdio.

    Log lines go to standard error. `cognizes serve` serves the same over HTTP at /mcp.
    """
    if importlib.util.find_spec("mcp") is None:
        raise SetupError("the extra mcp is not installed; get it with `pip install 'cognizes-engine[mcp]'`")
    settings = load_settings(data_dir=data_dir, database_url=database_url, log_level=log_level, log_format=log_format)
    check_urls(settings)
    configure_logging(settings)
    with naming_server(settings):
        uvloop.run(_serve_mcp(settings, app, user, key))


async def _serve_mcp(settings: Settings, app: str, user: str | None, key: str) -> None:
    # Imported here: other commands do not need them.
    from cognizes.engine.access import Permission  # noqa: PLC0415
    from cognizes.engine.access.authenticator import Credential  # noqa: PLC0415
    from cognizes.engine.adapters.mcp import McpCaller, McpServer  # noqa: PLC0415
    from cognizes.engine.engine import Engine  # noqa: PLC0415

    async with Engine(settings) as engine:
        principal = await engine.access.authenticate(Credential(bearer=key))
        name = user or principal.user_id or "default"
        if not principal.sees(app, name):
            raise PermissionDeniedError(f"this key does not reach the user {name!r} of the app {app!r}")
        caller = McpCaller(app, name, may_write=principal.may(Permission.WRITE), name=principal.name)
        await McpServer(engine, lambda _: caller).serve_stdio()
