"""`cognizes serve --workers N`: a supervising process with N processes that serve one listening socket.

The supervisor serves no request. It restarts a worker that ends, with growing pauses, and stops all on SIGINT or
SIGTERM. SIGHUP replaces the workers one at a time: the new one serves before the old one stops. A worker ends by itself
when its supervisor was killed. `serve --reload` replaces them when the source files of agents change.
"""

from __future__ import annotations

import importlib.util
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from cognizes.engine.cli.observability import configure_logging
from cognizes.engine.errors import EngineError, SetupError
from cognizes.engine.settings import Settings

if TYPE_CHECKING:
    from cognizes.engine.api.metrics import ProcessGroup


logger = logging.getLogger(__name__)

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 10.0
_SETTLED_SECONDS = 60.0
"""A worker that has run this long restarts without a long pause."""
_LOOK_SECONDS = 0.5
"""The time between two looks at source files."""
_KILL_SECONDS = 30.0
"""How long workers may take to stop, beyond the time for their runs; then they are killed."""

Work = Callable[[Settings, socket.socket, Connection, Path | None, int], None]
"""Sends None to the connection when it serves, or why it does not start; ends after SIGTERM."""


@dataclass(eq=False)
class _Worker:
    process: SpawnProcess
    started: Connection
    """Receives None when the worker serves, or why it does not start."""
    since: float
    number: int
    """The smallest number that no other worker has; the label of its metrics."""
    generation: int
    """How many replacements were requested before it started: a smaller number than the supervisor's is outdated."""
    failures: int = 0
    is_serving: bool = False
    is_leaving: bool = False


class Supervisor:
    """Starts, watches and stops the workers. `announce` is called once, when all of them serve.

    After `changed_files` returns names, the workers are replaced one at a time. If the new one does not start, the old
    one stays. `work` is what a worker process executes.
    """

    def __init__(
        self,
        settings: Settings,
        listening: socket.socket,
        *,
        announce: Callable[[], None],
        changed_files: Callable[[], Sequence[str]] | None = None,
        work: Work | None = None,
    ) -> None:
        self._settings = settings.model_copy(update={"workers": 1})
        self._count = settings.workers
        self._listening = listening
        self._announce: Callable[[], None] | None = announce
        self._work = work or _serve
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []
        self._due: list[tuple[float, int]] = []
        """When to start a worker again, and how often it has failed in succession."""
        self._signals: deque[int] = deque()
        self._generation = 0
        self._changed_files = changed_files
        self._kill_at: float | None = None
        self._error: str | None = None
        self._sockets: Path | None = None
        """The directory in which workers answer each other's scrapes."""

    def run(self) -> None:
        """Serve until a signal; raise `SetupError` when the first workers do not start."""
        with ExitStack() as resources:
            wake_up = resources.enter_context(self._handle_signals())
            if self._settings.metrics:
                self._sockets = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="cognizes-")))
            for _ in range(self._count):
                self._start()
            while self._workers or (self._due and self._kill_at is None):
                self._wait(wake_up)
        if self._error is not None:
            raise SetupError(self._error)

    @contextmanager
    def _handle_signals(self) -> Iterator[socket.socket]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.setblocking(False)
            before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                # `nohup` ignores SIGHUP.
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    signal.signal(number, self._note_signal)
            try:
                yield ours
            finally:
                signal.set_wakeup_fd(before)

    def _note_signal(self, number: int, _: FrameType | None) -> None:
        self._signals.append(number)

    def _wait(self, wake_up: socket.socket) -> None:
        """Wait for the next event and handle all that have happened."""
        moments = [moment for moment, _ in self._due] + ([self._kill_at] if self._kill_at is not None else [])
        if self._changed_files is not None:
            moments.append(time.monotonic() + _LOOK_SECONDS)
        timeout = max(0.0, min(moments) - time.monotonic()) if moments else None
        by_object: dict[object, _Worker] = {worker.process.sentinel: worker for worker in self._workers}
        by_object |= {worker.started: worker for worker in self._workers if not worker.is_serving}
        for ready in wait([wake_up, *by_object], timeout):  # type: ignore[list-item]
            if ready is wake_up:
                wake_up.recv(4096)
            elif isinstance(ready, Connection):
                self._receive(by_object[ready])
        for worker in [worker for worker in self._workers if not worker.process.is_alive()]:
            self._note_end(worker)
        while self._signals:
            self._obey(self._signals.popleft())
        self._replace_after_changes()
        now = time.monotonic()
        if self._kill_at is None:
            for due in [due for due in self._due if due[0] <= now]:
                self._due.remove(due)
                if len(self._staying()) < self._count:
                    self._start(failures=due[1])
            self._replace_outdated()
        elif now >= self._kill_at:
            for worker in self._workers:
                worker.process.kill()
            self._kill_at = now + _KILL_SECONDS

    def _staying(self) -> list[_Worker]:
        return [worker for worker in self._workers if not worker.is_leaving]

    def _replace_outdated(self) -> None:
        """Start one new worker beside the outdated ones, or stop an outdated one after the new one serves.

        The decision depends only on which workers exist, so neither another SIGHUP nor the end of a worker during a
        replacement changes their number.
        """
        serving = [worker for worker in self._staying() if worker.is_serving]
        if len(serving) > self._count:
            self._stop_worker(min(serving, key=lambda worker: (worker.generation, worker.since)))
            return
        is_settled = len(serving) == len(self._workers) == self._count and not self._due
        if is_settled and any(worker.generation < self._generation for worker in serving):
            self._start()

    def _start(self, *, failures: int = 0) -> None:
        number = min(set(range(len(self._workers) + 1)) - {worker.number for worker in self._workers})
        receiving, sending = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=self._work,
            args=(self._settings, self._listening, sending, self._sockets, number),
            name="cognizes-worker",
        )
        process.start()
        sending.close()
        self._workers.append(_Worker(process, receiving, time.monotonic(), number, self._generation, failures))

    def _receive(self, worker: _Worker) -> None:
        try:
            error: str | None = worker.started.recv()
        except EOFError:
            return
        if error is not None:
            self._fail(worker, error)
            return
        worker.is_serving = True
        if self._announce is not None and sum(one.is_serving for one in self._workers) >= self._count:
            self._announce()
            self._announce = None

    def _fail(self, worker: _Worker, error: str) -> None:
        if self._announce is not None and self._error is None:
            self._error = error
            self._stop()
        elif self._announce is None:
            logger.error("worker %s does not start: %s", worker.process.pid, error)

    def _note_end(self, worker: _Worker) -> None:
        if not worker.is_serving and worker.started.poll():
            self._receive(worker)
        worker.process.join()
        worker.started.close()
        self._workers.remove(worker)
        others = self._staying()
        if worker.is_leaving or self._kill_at is not None:
            return
        if not worker.is_serving and self._announce is not None:
            self._fail(worker, "a worker process ended before it served requests; the log above says why")
        elif worker.is_serving and len(others) >= self._count:
            logger.error("worker %s ended with exit code %s", worker.process.pid, worker.process.exitcode)
        elif len(others) >= self._count:
            logger.error("the new worker %s ended before it served requests; the old ones stay", worker.process.pid)
            for other in others:
                other.generation = max(other.generation, worker.generation)
        else:
            has_settled = time.monotonic() - worker.since > _SETTLED_SECONDS
            failures = 0 if has_settled else worker.failures + 1
            pause = min(_FIRST_PAUSE * 2**failures, _LONGEST_PAUSE)
            logger.error(
                "worker %s ended with exit code %s; another one starts in %.2g s",
                worker.process.pid,
                worker.process.exitcode,
                pause,
            )
            self._due.append((time.monotonic() + pause, failures))

    def _obey(self, number: int) -> None:
        if number != signal.SIGHUP:
            self._stop()
        else:
            self._generation += 1

    def _replace_after_changes(self) -> None:
        """Replace the workers when source files changed. A change during a replacement is found after it."""
        is_quiet = self._announce is None and all(one.is_serving and not one.is_leaving for one in self._workers)
        if self._changed_files is not None and self._kill_at is None and is_quiet and (found := self._changed_files()):
            logger.info("%s changed; the agents are loaded again", ", ".join(found[:3]))
            self._obey(signal.SIGHUP)

    def _stop(self) -> None:
        """Stop all workers. Called again, they cancel the requests in progress."""
        self._kill_at = self._kill_at or time.monotonic() + self._settings.shutdown_seconds + _KILL_SECONDS
        for worker in self._workers:
            self._stop_worker(worker)

    def _stop_worker(self, worker: _Worker) -> None:
        worker.is_leaving = True
        worker.process.terminate()


def _serve(
    settings: Settings, listening: socket.socket, started: Connection, sockets: Path | None, number: int
) -> None:
    """Run one worker: the process of `cognizes serve`, which only SIGTERM of its supervisor stops."""
    # Ctrl-C reaches every process of the terminal: the supervisor passes it on once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    configure_logging(settings)
    threading.Thread(target=_end_with_supervisor, name="watch-supervisor", daemon=True).start()
    # A late import, as in `serve`.
    from cognizes.engine.cli.service import run_service  # noqa: PLC0415

    try:
        run_service(
            settings,
            listening,
            announce=lambda: started.send(None),
            stop_signals=(signal.SIGTERM,),
            process_group=_process_group(sockets, number),
        )
    except EngineError as error:
        started.send(str(error))
        sys.exit(1)


def _process_group(sockets: Path | None, number: int) -> ProcessGroup | None:
    if sockets is None:
        return None
    try:
        from cognizes.engine.api.metrics import ProcessGroup  # noqa: PLC0415
    except ImportError:
        # The engine says which package is missing.
        return None
    return ProcessGroup(sockets, str(number))


def _end_with_supervisor() -> None:
    supervisor = multiprocessing.parent_process()
    if supervisor is not None:
        supervisor.join()
        os.kill(os.getpid(), signal.SIGTERM)


_SKIPPED = frozenset({"__pycache__", "node_modules"})
Stamp = tuple[int, int]


class SourceFiles:
    """Watches the packages of agents, given as `package.module:agent`, and the file `.env`.

    A package is watched with all its folders, a single module with the modules beside it. Files are compared by time
    and size, which works on every file system.
    """

    def __init__(self, agents: Sequence[str]) -> None:
        modules = {agent.partition(":")[0].partition(".")[0] for agent in agents if ":" in agent}
        if not modules:
            raise SetupError("--reload needs agents of your own; give them with --agent package.module:agent")
        self._folders = [folder for module in sorted(modules) for folder in _folders(module)]
        self._seen = self._read_stamps()

    def changed(self) -> list[str]:
        """Return the files that changed, appeared or disappeared since the last call, or since the creation."""
        before, self._seen = self._seen, self._read_stamps()
        return sorted(
            str(path) for path in before.keys() | self._seen.keys() if before.get(path) != self._seen.get(path)
        )

    def _read_stamps(self) -> dict[Path, Stamp]:
        found = {}
        for path in self._paths():
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # the file was deleted after it was listed, or an editor replaces it
            found[path] = status.st_mtime_ns, status.st_size
        return found

    def _paths(self) -> Iterator[Path]:
        yield Path(".env").absolute()
        for folder, is_recursive in self._folders:
            for place, names, files in os.walk(folder):
                names[:] = [name for name in names if is_recursive and name not in _SKIPPED and name[0] != "."]
                yield from (Path(place) / file for file in files if file.endswith(".py"))


def _folders(module: str) -> list[tuple[Path, bool]]:
    """Return the folders of a top-level module, and whether their folders belong to it."""
    if (here := str(Path.cwd())) not in sys.path:
        # As the loader of agents does: modules of the current directory can be imported.
        sys.path.insert(0, here)
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.submodule_search_locations:
        return [(Path(place), True) for place in spec.submodule_search_locations]
    if spec is not None and spec.has_location and spec.origin:
        return [(Path(spec.origin).parent, False)]
    raise SetupError(f"--reload finds no source of the module {module!r}; check the name in --agent")
