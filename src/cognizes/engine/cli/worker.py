"""`cognizes worker`: executes runs by functions of yours, until Ctrl-C."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from cognizes.engine.cli.configuration import DatabaseUrl, DataDirectory, export_dotenv, load_settings
from cognizes.engine.cli.connections import check_urls, naming_server
from cognizes.engine.cli.logs import LogFormatOption, LogLevelOption, configure_logging
from cognizes.engine.errors import SetupError
from cognizes.engine.settings import Settings


def worker(
    *,
    handler: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]MODULE:FUNCTION",
            help="A handler, under the function's name or one of your own; may be repeated.",
            show_default=False,
        ),
    ],
    concurrency: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 10,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> None:
    """Execute runs: claim those of the given handlers, call them, store what comes of it.

    Start as many as you like, on as many machines. Ctrl-C or SIGTERM lets runs go on for COGNIZES_SHUTDOWN_SECONDS and
    gives back what is left; another worker continues it.
    """
    settings = load_settings(data_dir=data_dir, database_url=database_url, log_level=log_level, log_format=log_format)
    export_dotenv()
    check_urls(settings)
    configure_logging(settings)
    handlers = load_handlers(handler)
    with naming_server(settings):
        uvloop.run(_work(settings, handlers, concurrency))


def load_handlers(specifications: list[str]) -> dict[str, Any]:
    """The functions that were named, by the names of their handlers."""
    handlers: dict[str, Any] = {}
    for specification in specifications:
        name, separator, place = specification.rpartition("=")
        module_name, colon, attribute = place.partition(":")
        if not colon or not module_name or not attribute or (separator and not name):
            raise SetupError(f"{specification!r} is no handler; write [name=]package.module:function")
        function = _load(module_name, attribute)
        name = name or attribute.rpartition(".")[2]
        if name in handlers:
            raise SetupError(f"two handlers are called {name!r}; give one another name: other={place}")
        handlers[name] = function
    return handlers


def _load(module_name: str, attribute: str) -> Any:
    if (here := str(Path.cwd())) not in sys.path:
        # As `python -m` would: the module lies where the command was typed.
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SetupError(f"the handler {module_name}:{attribute} cannot be loaded: {error}") from error
    if not inspect.iscoroutinefunction(found):
        raise SetupError(f"the handler {module_name}:{attribute} is no `async def` function")
    return found


async def _work(settings: Settings, handlers: dict[str, Any], concurrency: int) -> None:
    # Here and not above: every other command would pay for them.
    from cognizes.engine.engine import Engine  # noqa: PLC0415
    from cognizes.engine.runs import Worker  # noqa: PLC0415

    async with Engine(settings) as engine:
        hand = Worker(engine, handlers, concurrency=concurrency)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, hand.stop)
        typer.echo(f"worker {hand.id} executes {', '.join(handlers)}; Ctrl-C stops it")
        sys.stdout.flush()
        await hand.run()
