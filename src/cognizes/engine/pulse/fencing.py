"""Who may write for a run: the attempt that holds it, and nobody who held it before.

A run that is executed fences everything its code appends to its thread: the check happens inside the transaction of the
write, so a worker that was paused and lost its lease meanwhile changes nothing when it wakes up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import UUID


class RunFence:
    """An attempt at a run. `attempt` grows when the run is claimed again by the same code, after a wait."""

    def __init__(self, thread_id: UUID, run_id: str, attempt: int) -> None:
        self.thread_id = thread_id
        self.run_id = run_id
        self.attempt = attempt
        self.is_over = False
        self.is_letting_go = False

    @contextmanager
    def letting_go(self) -> Iterator[None]:
        """While the run's own code ends it, or lets it wait: that it is held no longer is no loss."""
        self.is_letting_go = True
        try:
            yield
        finally:
            self.is_letting_go = False

    def end(self) -> None:
        """The run was ended by its own code: what that code does afterwards is not the run's any more."""
        self.is_over = True


_current: ContextVar[RunFence | None] = ContextVar("cognizes_run_fence", default=None)


def fence_of_thread(thread_id: UUID) -> RunFence | None:
    """The fence of the run that the calling task executes on this thread, if it does."""
    fence = _current.get()
    return fence if fence is not None and fence.thread_id == thread_id and not fence.is_over else None


def attempt_at(thread_id: UUID, run_id: str) -> int | None:
    """The attempt with which the calling task executes this run; None when it does not."""
    fence = fence_of_thread(thread_id)
    return fence.attempt if fence is not None and fence.run_id == run_id else None


@contextmanager
def fenced_by(fence: RunFence) -> Iterator[None]:
    """What the task, and those it starts, append to the run's thread is written by this attempt or not at all."""
    token = _current.set(fence)
    try:
        yield
    finally:
        _current.reset(token)
