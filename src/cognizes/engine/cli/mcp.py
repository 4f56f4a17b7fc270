"""`cognizes mcp`: the Model Context Protocol on standard input and output."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import typer
import uvloop

from cognizes.engine.cli.configuration import DatabaseUrl, DataDirectory, load_settings
from cognizes.engine.cli.connections import check_urls, naming_server
from cognizes.engine.cli.logs import LogFormatOption, LogLevelOption, configure_logging
from cognizes.engine.errors import PermissionDeniedError, SetupError
from cognizes.engine.settings import Settings


def mcp(
    *,
    app: Annotated[str, typer.Option(help="The app whose memory and threads are served.")] = "default",
    user: Annotated[str | None, typer.Option(help="The user; by default that of the key, else `default`.")] = None,
    key: Annotated[
        str, typer.Option(envvar="COGNIZES_MCP_KEY", help="The API key, if COGNIZES_AUTH=required.", show_default=False)
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
        uvloop.run(_serve(settings, app, user, key))


async def _serve(settings: Settings, app: str, user: str | None, key: str) -> None:
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
