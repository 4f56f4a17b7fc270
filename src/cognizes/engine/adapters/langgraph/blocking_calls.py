"""Calls of an asynchronous service from code without an event loop."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

from cognizes.engine.adapters.engines import EngineUser

_Result = TypeVar("_Result")
_CLOSE_SECONDS = 10.0


class BlockingCalls:
    """Runs coroutines of a service for threads that may block, on the event loop that uses the service.

    A service that no event loop uses gets a loop in a thread of its own, which ends with `close` or the process.
    """

    def __init__(self, service: str, close: Callable[[], Awaitable[None]]) -> None:
        self._service = service
        self._close = close
        self._loop: asyncio.AbstractEventLoop | None = _running_loop()
        self._own_thread: threading.Thread | None = None
        self._own_loop_lock = threading.Lock()

    def use_running_loop(self) -> None:
        """Note the loop of an asynchronous call: blocking calls of other threads use it from now on."""
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.get_running_loop()

    def run(self, method: str, call: Callable[[], Awaitable[_Result]]) -> _Result:
        """Return the result of a coroutine; `InvalidStateError` on the thread of the event loop, which would block."""
        running = _running_loop()
        if running is not None and self._loop in (None, running):
            raise asyncio.InvalidStateError(
                f"{self._service}.{method} blocks and cannot be called on an event loop; use "
                f"`await {self._service}.a{method}(...)`, or `ainvoke` and `astream` of the graph"
            )

        async def work() -> _Result:
            return await call()

        return asyncio.run_coroutine_threadsafe(work(), self._open_loop()).result()

    def close(self) -> None:
        """Close the service and end the thread of its own loop. On another event loop, that loop closes the service."""
        with self._own_loop_lock:
            thread, loop, self._own_thread = self._own_thread, self._loop, None
            if thread is None or loop is None:
                return
            self._loop = None
        atexit.unregister(self.close)
        self._stop(loop, thread)

    def _open_loop(self) -> asyncio.AbstractEventLoop:
        with self._own_loop_lock:
            if self._loop is None or self._loop.is_closed():
                self._loop = asyncio.new_event_loop()
                self._own_thread = threading.Thread(
                    target=self._loop.run_forever, name=f"{self._service}-loop", daemon=True
                )
                self._own_thread.start()
                atexit.register(self.close)
            return self._loop

    def _stop(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        """Close the service, so that an embedded server is stopped, and end the thread."""

        async def close() -> None:
            await self._close()

        try:
            asyncio.run_coroutine_threadsafe(close(), loop).result(_CLOSE_SECONDS)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_CLOSE_SECONDS)
            loop.close()


class BlockingService(EngineUser):
    """A service with blocking methods: `async with` on an event loop, `with` in a thread without one."""

    _blocking: BlockingCalls

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocking.close()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
