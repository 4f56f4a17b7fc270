"""Supervision of background loops: a loop that raises is logged, restarted with backoff, and reported by `/health`.

Every long-running task of an engine is started by its `Supervisor`: housekeeping, the watch over the embedded server,
the notification listener, the flusher and the leases of streams, sweeps, workers. None of them ends because of an
exception; each ends only when its owner stops it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass

from cognizes.engine.errors import EngineError

logger = logging.getLogger(__name__)

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 30.0
_SETTLED_SECONDS = 60.0
"""A loop whose round has run this long without an exception counts as recovered, although it has not returned."""
_CANCEL_SECONDS = 0.5
Round = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class LoopFailure:
    """A loop whose last round raised. `error` holds no text of foreign exceptions: it is shown to callers."""

    name: str
    error: str
    restarts: int


class SupervisedLoop:
    """Calls `round_` repeatedly until it is stopped.

    A round that returns is a success. A round that raises is logged with its cause, a repeated `EngineError` at level
    DEBUG; the next one begins after a pause that doubles up to `longest_pause` and starts over after a success.
    """

    def __init__(self, name: str, round_: Round, *, longest_pause: float) -> None:
        self.name = name
        self.restarts = 0
        self._round = round_
        self._longest_pause = longest_pause
        self._pause = _FIRST_PAUSE
        self._error: BaseException | None = None
        self._running_since: float | None = None
        self._is_stopping = False
        # An empty context: a loop that a request starts must not work with the rights of its tenant.
        self._task: asyncio.Task[None] = asyncio.create_task(self._run(), name=name, context=Context())

    @property
    def failure(self) -> LoopFailure | None:
        """The failure of the last round; None when it succeeded, or when the current round has run long enough."""
        if self._error is None or self._has_settled():
            return None
        known = isinstance(self._error, EngineError)
        text = str(self._error) if known else f"{type(self._error).__name__}; the log of the server has the traceback"
        return LoopFailure(self.name, text, self.restarts)

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    def finish(self) -> None:
        """Begin no further round; the current one is not cancelled. `wait` returns when it has ended."""
        self._is_stopping = True

    async def wait(self) -> None:
        await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Cancel the current round, and return when the loop has ended."""
        self._is_stopping = True
        while not self._task.done():
            # Repeated: redis-py takes a cancellation during a connect for a timeout of its own.
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_CANCEL_SECONDS)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_stopping:
            self._running_since = loop.time()
            try:
                await self._round()
            except asyncio.CancelledError as error:
                # A cancelled future inside a round raises this too, and must not end the loop.
                if self._is_stopping or self._task.cancelling():
                    raise
                await self._recover(error)
            except Exception as error:  # noqa: BLE001 - logged with its cause, and shown by `failure`
                await self._recover(error)
            else:
                self._error = None
                self._pause = _FIRST_PAUSE

    async def _recover(self, error: BaseException) -> None:
        if self._has_settled():
            self._pause = _FIRST_PAUSE
        self._running_since = None
        known = isinstance(error, EngineError)
        # While a server is away, a loop with a short pause fails several times per second with the same message.
        is_repeated = known and str(error) == str(self._error)
        self._error = error
        self.restarts += 1
        pause, self._pause = self._pause, min(self._pause * 2, self._longest_pause)
        logger.log(
            logging.DEBUG if is_repeated else logging.WARNING if known else logging.ERROR,
            "the background task %s failed and restarts in %.2g s: %s",
            self.name,
            pause,
            error if known else repr(error),
            exc_info=None if known else error,
        )
        await asyncio.sleep(pause)

    def _has_settled(self) -> bool:
        since = self._running_since
        return since is not None and asyncio.get_running_loop().time() - since > _SETTLED_SECONDS


class Supervisor:
    """Starts the background loops of one engine and reports those that fail."""

    def __init__(self) -> None:
        self._loops: set[SupervisedLoop] = set()

    def start(self, name: str, round_: Round, *, longest_pause: float = _LONGEST_PAUSE) -> SupervisedLoop:
        """Start a loop. `round_` is one iteration, or a coroutine function that itself never returns.

        `longest_pause` bounds the backoff; choose a short one where readers wait for the loop.
        """
        self._loops = {loop for loop in self._loops if not loop.has_ended}
        loop = SupervisedLoop(name, round_, longest_pause=longest_pause)
        self._loops.add(loop)
        return loop

    @property
    def names(self) -> list[str]:
        return sorted(loop.name for loop in self._loops if not loop.has_ended)

    @property
    def failures(self) -> list[LoopFailure]:
        found = [failure for loop in self._loops if not loop.has_ended and (failure := loop.failure) is not None]
        return sorted(found, key=lambda failure: failure.name)
