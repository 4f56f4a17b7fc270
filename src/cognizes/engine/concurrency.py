"""The engine's primitives for waiting: one wake-up, one lock per key, one queue and one loop of retries, one sweeper.

Every part that waits for something uses these. A part that needs a periodic job registers it with the engine's
`Sweeper`; a part that calls PostgreSQL while it may be away uses `retry_while_unavailable`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from contextvars import Context
from typing import Any, TypeVar
from weakref import WeakSet

from cognizes.engine.errors import DatabaseUnavailableError, EngineError, PoolTimeoutError
from cognizes.engine.supervision import SupervisedLoop, Supervisor
from cognizes.engine.telemetry import TELEMETRY

logger = logging.getLogger(__name__)

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_Result = TypeVar("_Result")


def create_shared_task(work: Coroutine[Any, Any, _Result], *, name: str) -> asyncio.Task[_Result]:
    """Create a task that works for all tenants, also while a request of one tenant is served.

    Its context is empty, so it has engine privileges and none of the variables of the request.
    """
    return asyncio.create_task(work, name=name, context=Context())


class WakeUp:
    """Wakes the tasks that wait for a change.

    `version` counts notifications. A task reads the version, reads the state that it depends on, and then waits for a
    later version. A notification in between is not lost.
    """

    __slots__ = ("__weakref__", "_next", "version")

    def __init__(self) -> None:
        self.version = 0
        self._next: asyncio.Event | None = None

    def notify(self) -> None:
        self.version += 1
        if self._next is not None:
            self._next.set()
            self._next = None

    async def wait(self, after: int, *, timeout: float | None = None) -> bool:
        """Wait for a version later than `after`; return False when `timeout` seconds pass first."""
        if self.version > after:
            return True
        if self._next is None:
            self._next = asyncio.Event()
        if timeout is None:
            await self._next.wait()
            return True
        try:
            async with asyncio.timeout(timeout):
                await self._next.wait()
        except TimeoutError:
            return self.version > after
        return True


class KeyedLock:
    """A first-in, first-out lock per key. A key takes no memory while no task holds or awaits it."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: dict[Hashable, deque[asyncio.Future[None]]] = {}

    def is_locked(self, key: Hashable) -> bool:
        return key in self._waiters

    def has_waiters(self, key: Hashable) -> bool:
        return bool(self._waiters.get(key))

    def acquire(self, key: Hashable) -> _KeyLock:
        """Return a context manager that holds the lock of a key: `async with lock.acquire(key)`."""
        return _KeyLock(self._waiters, key)


class _KeyLock:
    """A class and no generator: every append with a state delta acquires one."""

    __slots__ = ("_key", "_waiters")

    def __init__(self, waiters: dict[Hashable, deque[asyncio.Future[None]]], key: Hashable) -> None:
        self._waiters = waiters
        self._key = key

    async def __aenter__(self) -> None:
        queue = self._waiters.get(self._key)
        if queue is None:
            self._waiters[self._key] = deque()
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future in queue:
                queue.remove(future)
            elif not future.cancelled():
                # The lock was handed over in the same step as the cancellation.
                self.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        queue = self._waiters[self._key]
        while queue:
            future = queue.popleft()
            if not future.done():
                future.set_result(None)
                return
        del self._waiters[self._key]


class RetryQueue:
    """Queues tasks that retry after a conflict, per key: one reads and writes after the other.

    Otherwise all of them read the same version, and all but one conflict again. Only speed depends on the queue: the
    expected version of a write decides. A task that had no conflict never waits.

    After a conflict a task acquires the lock of the key before its next read. It holds the lock until its next write
    that is not a conflict, its end, or for `longest_hold` seconds. It waits for the lock, and then until
    `wait_for_writes` has seen no write of the key in flight, for at most `longest_wait` seconds.
    """

    def __init__(self, wait_for_writes: Callable[[Hashable], Awaitable[None]]) -> None:
        self.wait_for_writes = wait_for_writes
        self.longest_hold = 0.05
        self.longest_wait = 0.2
        self.locks = KeyedLock()
        self.retries: dict[tuple[asyncio.Task[Any] | None, Hashable], _Retry] = {}

    def note_conflict(self, key: Hashable, *, writes: Hashable) -> None:
        """Note that a write of the calling task was refused; `writes` is the key for `wait_for_writes`."""
        task = asyncio.current_task()
        if task is not None and (task, key) not in self.retries:
            self.retries[task, key] = _Retry(self, task, key, writes)

    async def acquire(self, key: Hashable) -> None:
        """Acquire the lock for the calling task; return at once if the task had no conflict on this key."""
        if self.retries and (retry := self.retries.get((asyncio.current_task(), key))) is not None:
            await retry.acquire()

    def release(self, key: Hashable) -> None:
        """Release the lock of the calling task, if it has one, and forget its conflict."""
        if self.retries and (retry := self.retries.get((asyncio.current_task(), key))) is not None:
            retry.end()


class _Retry:
    def __init__(self, queue: RetryQueue, task: asyncio.Task[Any], key: Hashable, writes: Hashable) -> None:
        self._queue = queue
        self._task = task
        self._key = key
        self._writes = writes
        self._lock: _KeyLock | None = None
        # A conflict of a task that does not read again is forgotten.
        self._timer = asyncio.get_running_loop().call_later(queue.longest_wait, self.end)
        task.add_done_callback(self.end)

    async def acquire(self) -> None:
        is_first = self._lock is None
        if is_first:
            self._timer.cancel()
        try:
            async with asyncio.timeout(self._queue.longest_wait):
                if self._lock is None:
                    lock = self._queue.locks.acquire(self._key)
                    await lock.__aenter__()
                    self._lock = lock
                await self._queue.wait_for_writes(self._writes)
        except TimeoutError:
            # The task reads without waiting any longer.
            if self._lock is None:
                self.end()
        except BaseException:
            self.end()
            raise
        if is_first and self._lock is not None:
            self._timer = asyncio.get_running_loop().call_later(self._queue.longest_hold, self.end)

    def end(self, _: object = None) -> None:
        if self._queue.retries.pop((self._task, self._key), None) is None:
            return
        self._timer.cancel()
        self._task.remove_done_callback(self.end)
        if self._lock is not None:
            self._lock.release()


class SharedCalls:
    """Shares a call between the tasks that ask for it in one step of the event loop.

    Tasks that a batch answers, for example, read the same row at the same moment. A task that asks later gets a call of
    its own: it must see what was committed before it asked. With `joins_running`, for reads of what does not change, it
    gets the result of a call that is running.
    """

    def __init__(self, *, joins_running: bool = False) -> None:
        self._joins_running = joins_running
        self._calls: dict[Hashable, asyncio.Task[Any]] = {}

    async def call(self, key: Hashable, attempt: Callable[[], Awaitable[_Result]]) -> _Result:
        """Return the result of `attempt`, or of that of another task with the same key.

        It runs in a task of its own with an empty context. A cancelled caller does not cancel it.
        """
        place = asyncio.get_running_loop(), key
        task: asyncio.Task[_Result] | None = self._calls.get(place)
        if task is None:
            task = self._calls[place] = create_shared_task(self._start(place, attempt), name="shared-call")
        return await asyncio.shield(task)

    async def _start(self, place: Hashable, attempt: Callable[[], Awaitable[_Result]]) -> _Result:
        if not self._joins_running:
            del self._calls[place]
            return await attempt()
        try:
            return await attempt()
        finally:
            del self._calls[place]


async def retry_while_unavailable(
    attempt: Callable[[], Awaitable[_Result]],
    *,
    seconds: float = math.inf,
    errors: tuple[type[EngineError], ...] = (DatabaseUnavailableError,),
    before_retry: Callable[[], None] | None = None,
    longest_pause: float = _LONGEST_PAUSE,
    failed: EngineError | None = None,
) -> _Result:
    """Call `attempt` until it raises none of `errors`, with growing pauses; raise the last error after `seconds`.

    By default it waits for PostgreSQL without a limit. A closed engine raises `EngineClosedError`, which ends the loop.
    `failed` is the error of a first attempt that the caller has made.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    pause = _FIRST_PAUSE
    while True:
        if failed is None:
            try:
                return await attempt()
            except errors as error:
                failed = error
        if loop.time() + pause > deadline:
            raise failed
        failed = None
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
        pause = min(pause * 2, longest_pause)
        if (counted := TELEMETRY.instruments) is not None:
            counted.retries.inc()
        if before_retry is not None:
            before_retry()


class Sweeper:
    """Runs the periodic jobs of an engine, each at its own interval.

    Jobs repair what a lost notification or a dead process leaves behind. They are independent: one that fails or hangs
    does not delay the others. `sweep` runs all of them now, which the listener asks for after a reconnection.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._due: WeakSet[WakeUp] = WeakSet()

    def start(
        self,
        name: str,
        job: Callable[[], Awaitable[object]],
        *,
        seconds: float,
        wake_up: WakeUp | None = None,
        longest_pause: float | None = None,
    ) -> SupervisedLoop:
        """Run `job` every `seconds`, for the first time after the first interval. Stop it with the returned loop.

        A notification of `wake_up` starts the next round of the job at once. `longest_pause` bounds the backoff of a
        job that fails; by default it is the interval.
        """
        due = wake_up or WakeUp()
        self._due.add(due)
        seen = due.version

        async def round_() -> None:
            nonlocal seen
            await due.wait(seen, timeout=seconds)
            seen = due.version
            try:
                await job()
            except (DatabaseUnavailableError, PoolTimeoutError) as error:
                # The database's own state is in `/health`; every other error marks this job as failing there.
                logger.warning("the periodic job %s failed and runs again in %g s: %s", name, seconds, error)

        return self._supervisor.start(name, round_, longest_pause=longest_pause or seconds)

    async def sweep(self) -> None:
        for due in self._due:
            due.notify()
