"""The fence of a run: only the attempt that holds a run may write for it.

Code that executes a run is fenced on the run's thread. PostgreSQL compares the attempt inside the transaction of each
write, so a worker that was paused and lost its lease changes nothing after it continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import UUID


class RunFence:
    """An attempt at a run. `attempt` grows when the same code claims the run again after a wait.

    `is_releasing`: the code of the run ends it, or makes it wait. That it no longer holds the lease is then no loss.
    """

    def __init__(self, thread_id: UUID, run_id: str, attempt: int) -> None:
        self.thread_id = thread_id
        self.run_id = run_id
        self.attempt = attempt
        self.is_over = False
        self.is_releasing = False

    def end(self) -> None:
        """Stop fencing: the code of the run has ended it, and later writes of that code do not belong to the run."""
        self.is_over = True


_current: ContextVar[RunFence | None] = ContextVar("cognizes_run_fence", default=None)


def fence_of_thread(thread_id: UUID) -> RunFence | None:
    """Return the fence of the run that the calling task executes on this thread, if any."""
    fence = _current.get()
    return fence if fence is not None and fence.thread_id == thread_id and not fence.is_over else None


def attempt_at(thread_id: UUID, run_id: str) -> int | None:
    """Return the attempt with which the calling task executes this run; None when it does not."""
    fence = fence_of_thread(thread_id)
    return fence.attempt if fence is not None and fence.run_id == run_id else None


@contextmanager
def fenced_by(fence: RunFence) -> Iterator[None]:
    """Fence the writes of this task, and of the tasks that it starts, to the run's thread."""
    token = _current.set(fence)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def releasing(thread_id: UUID, run_id: str) -> Iterator[None]:
    """Mark the fence of the calling task while the task ends this run or makes it wait."""
    fence = fence_of_thread(thread_id)
    if fence is None or fence.run_id != run_id:
        yield
        return
    fence.is_releasing = True
    try:
        yield
    finally:
        fence.is_releasing = False
