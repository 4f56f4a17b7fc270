"""`cognizes worker`: executes runs with your functions, until Ctrl-C."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import uvloop

from cognizes.engine.cli.configuration import DatabaseUrl, DataDirectory, export_dotenv, load_settings
from cognizes.engine.cli.connections import check_urls, naming_server
from cognizes.engine.cli.observability import LogFormatOption, LogLevelOption, configure_logging, exporting_traces
from cognizes.engine.errors import SetupError
from cognizes.engine.settings import Settings

if TYPE_CHECKING:
    from cognizes.engine.engine import Engine


def worker(
    *,
    handler: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]MODULE:FUNCTION",
            help="A handler, named like its function or by NAME; may be repeated.",
            show_default=False,
        ),
    ],
    concurrency: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 10,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> None:
    """Execute runs: claim those of the given handlers, call the functions, store their results.

    Consolidations of memory are executed, too.

    Any number of workers may run, on any number of machines. After Ctrl-C or SIGTERM, runs may continue for
    COGNIZES_SHUTDOWN_SECONDS; the others are released, and another worker continues them.
    """
    settings = load_settings(data_dir=data_dir, database_url=database_url, log_level=log_level, log_format=log_format)
    export_dotenv()
    check_urls(settings)
    configure_logging(settings)
    handlers = load_handlers(handler)
    with naming_server(settings), exporting_traces():
        uvloop.run(_work(settings, handlers, concurrency))


def load_handlers(specifications: list[str]) -> dict[str, Any]:
    handlers: dict[str, Any] = {}
    for specification in specifications:
        name, separator, place = specification.rpartition("=")
        module_name, colon, attribute = place.partition(":")
        if not colon or not module_name or not attribute or (separator and not name):
            raise SetupError(f"{specification!r} is not a handler; write [name=]package.module:function")
        function = _load(module_name, attribute)
        name = name or attribute.rpartition(".")[2]
        if name in handlers:
            raise SetupError(f"two handlers are called {name!r}; give one another name: other={place}")
        handlers[name] = function
    return handlers


def _load(module_name: str, attribute: str) -> Any:
    if (here := str(Path.cwd())) not in sys.path:
        # Like `python -m`: modules of the current directory can be imported.
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SetupError(f"the handler {module_name}:{attribute} cannot be loaded: {error}") from error
    if not inspect.iscoroutinefunction(found):
        raise SetupError(f"the handler {module_name}:{attribute} is not an `async def` function")
    return found


@asynccontextmanager
async def _serving_metrics(engine: Engine) -> AsyncIterator[None]:
    """Serve the metrics on the port of the settings, if there is one."""
    settings = engine.settings
    if not settings.metrics or not settings.metrics_port:
        yield
        return
    # Late imports: other commands do not need them.
    from cognizes.engine.api.metrics import MetricsExport  # noqa: PLC0415
    from cognizes.engine.cli.serve import open_listening_socket  # noqa: PLC0415

    with open_listening_socket(settings.metrics_host, settings.metrics_port) as listening:
        async with MetricsExport(engine).serving(listening):
            yield


async def _work(settings: Settings, handlers: dict[str, Any], concurrency: int) -> None:
    # Imported here: other commands do not need them.
    from cognizes.engine.engine import Engine  # noqa: PLC0415
    from cognizes.engine.runs import Worker  # noqa: PLC0415

    async with Engine(settings) as engine:
        executor = Worker(engine, {**engine.consolidations.handlers, **handlers}, concurrency=concurrency)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, executor.stop)
        typer.echo(f"worker {executor.id} executes {', '.join(handlers)}; Ctrl-C stops it")
        sys.stdout.flush()
        async with _serving_metrics(engine):
            await executor.run()
