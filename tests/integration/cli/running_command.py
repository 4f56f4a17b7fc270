"""The `cognizes` command in a separate process, as a user runs it."""

from __future__ import annotations

import io
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from cognizes.engine.cli import main
from tests.idle_agent import IDLE_AGENT
from tests.served import REPOSITORY

PROGRAM = Path(sys.executable).parent / "cognizes"


def processes_of(directory: Path) -> list[psutil.Process]:
    """The processes that have the directory in their command line: the embedded PostgreSQL's postmaster."""
    found = psutil.process_iter(["cmdline", "name"])
    return [process for process in found if str(directory) in " ".join(process.info["cmdline"] or [])]


@dataclass(frozen=True)
class Cognizes:
    """Runs the command with a clean environment."""

    data_dir: Path

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return subprocess.run(
            [PROGRAM, *arguments],
            check=False,
            env=self.environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def fail(self, *arguments: str, code: int = 1, **environment: str) -> str:
        """Run it, check that it fails with this exit code and a one-line error, and return that line."""
        finished = self(*arguments, **environment)
        assert finished.returncode == code, finished.stderr
        assert finished.stdout == ""
        (sentence,) = finished.stderr.splitlines()
        return sentence.removeprefix("cognizes: ")

    @contextmanager
    def serve(
        self, *arguments: str, program: tuple[str | Path, ...] = (PROGRAM,), **environment: str
    ) -> Iterator[Serving]:
        """`cognizes serve` on any free port, until the end of the block; with `COGNIZES_AGENTS=""`, of the demo."""
        environment = {"COGNIZES_AGENTS": IDLE_AGENT, "PYTHONPATH": str(REPOSITORY), **environment}
        with tempfile.TemporaryDirectory() as folder, ExitStack() as files:
            output, log = Path(folder) / "stdout", Path(folder) / "stderr"
            process = subprocess.Popen(
                [*program, "serve", "--port", "0", *arguments],
                env=self.environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=files.enter_context(output.open("w")),
                stderr=files.enter_context(log.open("w")),
            )
            try:
                yield Serving(process, output, log)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait(30)

    def environment(self, environment: dict[str, str]) -> dict[str, str]:
        return {**os.environ, "COGNIZES_DATA_DIR": str(self.data_dir), "COLUMNS": "200", **environment}


class QuickCognizes(Cognizes):
    """The command without a process, which would cost a second of imports per case.

    In a thread, where `asyncio.run` does not meet the loop of the test.
    """

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        output, errors = io.StringIO(), io.StringIO()
        handlers, level = logging.root.handlers[:], logging.root.level
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(errors):
            patch.setattr(sys, "argv", ["cognizes", *arguments])
            for name, value in self.environment(environment).items():
                patch.setenv(name, value)
            with ThreadPoolExecutor(max_workers=1) as thread:
                code = thread.submit(_exit_code).result()
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
        return subprocess.CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())


def _exit_code() -> int:
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@dataclass(frozen=True)
class Serving:
    """A running `cognizes serve`."""

    process: subprocess.Popen[bytes]
    output: Path
    log: Path

    @property
    def url(self) -> str:
        """The URL of its page, without a slash at the end."""
        found = re.search(r"Page +(http://\S+)/$", self.banner(), re.MULTILINE)
        assert found, self.output.read_text()
        return found[1]

    def banner(self) -> str:
        """The banner that it prints when it is ready."""
        self.wait_for(lambda: "Ctrl-C" in self.output.read_text())
        return self.output.read_text()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait, but fail if the process has ended."""
        deadline = time.monotonic() + 120
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(30)
