"""An engine and its HTTP server as one process: started together, stopped together by a signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import uvicorn
import uvloop

from cognizes.engine.api.http_protocol import BoundedHttpProtocol
from cognizes.engine.api.main import create_app
from cognizes.engine.engine import Engine
from cognizes.engine.errors import SetupError
from cognizes.engine.settings import Settings

logger = logging.getLogger(__name__)

_GRACE_SECONDS = 10
_LONGEST_WARM_UP = 60


def run_service(settings: Settings, listening: socket.socket, *, announce: Callable[[], None]) -> None:
    """Serves until SIGINT or SIGTERM; `announce` is called once requests are answered."""
    uvloop.run(Service(settings, listening, announce=announce).run())


class Service:
    """The engine starts first, outside the web application, so that its failure is an error and not a log entry."""

    def __init__(self, settings: Settings, listening: socket.socket, *, announce: Callable[[], None]) -> None:
        self._engine = Engine(settings)
        self._listening = listening
        self._announce = announce
        self._starting: asyncio.Task[Engine] | None = None
        self._server: _HttpServer | None = None
        self._stopping = False

    async def run(self) -> None:
        """Returns after a signal, with everything closed. A second signal waits for nobody."""
        self._take_signals()
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
        app = create_app(self._engine.settings, engine=self._engine)
        # Here and not by the application, for the same reason: an agent that cannot be loaded is an error.
        await app.state.agents.start()
        if self._stopping:
            await app.state.agents.close()
            return
        self._server = _HttpServer(
            app,
            proxies=self._engine.settings.trusted_proxies,
            announce=self._announce,
            warm_up=app.state.agents.wait_until_warm,
        )
        # Newer versions of uvicorn exit when the application does not start, older ones just return.
        with suppress(SystemExit):
            await self._server.serve(sockets=[self._listening])
        await self._server.finish_warm_up()
        if not self._server.started:
            raise SetupError("the web application did not start; the log above says why")

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # `nohup` asks us to outlive the terminal.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._stop)

    def _stop(self) -> None:
        insisting, self._stopping = self._stopping, True
        if self._server is not None:
            self._server.should_exit = True
            if insisting:
                self._server.cut_requests()
        elif self._starting is not None and (insisting or self._engine.embedded is None):
            # The embedded server comes up in a thread that cannot be called off: wait for it, then stop it.
            self._starting.cancel()


class _HttpServer(uvicorn.Server):
    """uvicorn, but signals are ours: it would end the process by SIGTERM before the engine is closed."""

    def __init__(
        self, app: object, *, proxies: str, announce: Callable[[], None], warm_up: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]
                loop="uvloop",
                http=BoundedHttpProtocol,
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

    def cut_requests(self) -> None:
        """Waits no longer for answers under way. uvicorn's own `force_exit` would leave the application unclosed."""
        for task in self.server_state.tasks:
            task.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            # Imported objects stay for good: a full collection over them would delay every request.
            gc.collect()
            gc.freeze()
            self._warming = asyncio.create_task(self._freeze_after_warm_up(), name="freeze-after-warm-up")
            self._announce()

    async def finish_warm_up(self) -> None:
        """Return when the garbage collector works as usual."""
        if self._warming is not None:
            await self._warming

    async def _freeze_after_warm_up(self) -> None:
        """Keep the agents, which are imported while requests are served, out of collections as well.

        Collections wait until then; one before the second freeze would take as long as those that it avoids.
        """
        gc.disable()
        try:
            async with asyncio.timeout(_LONGEST_WARM_UP):
                await self._warm_up()
        except TimeoutError:
            logger.warning("the agents are not loaded after %s s; garbage is collected from now on", _LONGEST_WARM_UP)
        finally:
            gc.freeze()
            gc.enable()
