"""The process of `cognizes serve`: an engine and its HTTP server, started together and stopped by a signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import uvicorn
import uvloop

from cognizes.engine.api.http_protocol import BoundedHttpProtocol
from cognizes.engine.api.main import create_app
from cognizes.engine.cli.observability import exporting_traces
from cognizes.engine.engine import Engine
from cognizes.engine.errors import SetupError
from cognizes.engine.runs import Worker
from cognizes.engine.settings import Settings

if TYPE_CHECKING:
    from cognizes.engine.api.metrics import ProcessGroup

logger = logging.getLogger(__name__)

_GRACE_SECONDS = 10
_WARM_UP_SECONDS = 60
_GC_THRESHOLDS = (10_000, 10, 10)
"""Requests leave few cycles. With the default of 700 objects, collections take a part of the time of each of them."""
_SWITCH_SECONDS = 0.0005
"""How long a thread that computes, such as the embedder, keeps the event loop waiting; the default is 5 ms."""

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_service(
    settings: Settings,
    listening: socket.socket,
    *,
    announce: Callable[[], None],
    stop_signals: Sequence[signal.Signals] = _STOP_SIGNALS,
    process_group: ProcessGroup | None = None,
) -> None:
    """Serve until one of the signals; call `announce` when the server accepts requests."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    service = Service(settings, listening, announce=announce, stop_signals=stop_signals, process_group=process_group)
    with exporting_traces():
        uvloop.run(service.run())


class Service:
    """Starts the engine before the web application, so that a failure raises instead of being logged by uvicorn."""

    def __init__(
        self,
        settings: Settings,
        listening: socket.socket,
        *,
        announce: Callable[[], None],
        stop_signals: Sequence[signal.Signals] = _STOP_SIGNALS,
        process_group: ProcessGroup | None = None,
    ) -> None:
        self._process_group = process_group
        self._engine = Engine(settings)
        self._listening = listening
        self._announce = announce
        self._stop_signals = stop_signals
        self._starting: asyncio.Task[Engine] | None = None
        self._server: _HttpServer | None = None
        self._stopping = False

    async def run(self) -> None:
        """Run until a signal and close everything. A second signal cancels the requests in progress."""
        self._install_signal_handlers()
        self._starting = asyncio.create_task(self._engine.start())
        try:
            await self._starting
        except asyncio.CancelledError:
            return
        try:
            if not self._stopping:
                await self._serve()
        finally:
            await self._engine.close()

    async def _serve(self) -> None:
        app = create_app(self._engine.settings, engine=self._engine, process_group=self._process_group)
        # Not in the lifespan of the application, for the same reason: an agent that cannot be loaded must raise.
        await app.state.agents.start()
        if self._stopping:
            await app.state.agents.close()
            return
        self._server = _HttpServer(
            app,
            proxies=self._engine.settings.trusted_proxies,
            max_message_bytes=self._engine.settings.max_body_bytes,
            announce=self._announce,
            warm_up=app.state.agents.wait_until_warm,
        )
        async with AsyncExitStack() as resources:
            if self._engine.settings.memory_background:
                # What `POST /memory/consolidations` enqueues, without another process.
                handlers = self._engine.consolidations.handlers
                await resources.enter_async_context(Worker(self._engine, handlers, concurrency=1))
            # uvicorn raises SystemExit when the application does not start; older versions return.
            with suppress(SystemExit):
                await self._server.serve(sockets=[self._listening])
        await self._server.finish_warm_up()
        if not self._server.started:
            raise SetupError("the web application did not start; the log above says why")

    def _install_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()
        for number in self._stop_signals:
            # `nohup` ignores SIGHUP, so that the process survives its terminal.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._stop)

    def _stop(self) -> None:
        repeated, self._stopping = self._stopping, True
        if self._server is not None:
            self._server.should_exit = True
            if repeated:
                self._server.cancel_requests()
        elif self._starting is not None and (repeated or self._engine._embedded is None):
            # The embedded server starts in a thread that cannot be cancelled: wait for it, then stop it.
            self._starting.cancel()


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers, which would end the process before the engine is closed."""

    def __init__(
        self,
        app: object,
        *,
        proxies: str,
        max_message_bytes: int,
        announce: Callable[[], None],
        warm_up: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]
                loop="uvloop",
                http=BoundedHttpProtocol,
                # Clients of a WebSocket send names of contexts; the default is 16 MiB.
                ws_max_size=max_message_bytes,
                proxy_headers=bool(proxies),
                forwarded_allow_ips=proxies,
                lifespan="on",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self._announce = announce
        self._warm_up = warm_up
        self._warming: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def cancel_requests(self) -> None:
        """Cancel the requests in progress. uvicorn's `force_exit` would skip the shutdown of the application."""
        for task in self.server_state.tasks:
            task.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            # Imported objects are never garbage; without the freeze, each full collection would traverse them.
            gc.collect()
            gc.freeze()
            self._warming = asyncio.create_task(self._freeze_after_warm_up(), name="freeze-after-warm-up")
            self._announce()

    async def finish_warm_up(self) -> None:
        """Wait until the garbage collector is enabled again."""
        if self._warming is not None:
            await self._warming

    async def _freeze_after_warm_up(self) -> None:
        """Freeze the agents as well, which are imported while the server already accepts requests.

        The collector is disabled until then: a collection before the second freeze would traverse all of them.
        """
        gc.disable()
        try:
            async with asyncio.timeout(_WARM_UP_SECONDS):
                await self._warm_up()
        except TimeoutError:
            logger.warning("the agents are not loaded after %s s; garbage collection is enabled", _WARM_UP_SECONDS)
        finally:
            gc.freeze()
            gc.set_threshold(*_GC_THRESHOLDS)
            gc.enable()
