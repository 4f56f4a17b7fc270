"""The API server in a process of its own, as plain `uvicorn` starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.idle_agent import IDLE_AGENT

REPOSITORY = Path(__file__).parents[1]
_START_SECONDS = 120.0
_STOP_SECONDS = 120.0


@dataclass
class Served:
    """A running server. It prints into a file: a pipe that is not read fills up and stops the server."""

    process: subprocess.Popen[bytes]
    url: str
    output: IO[bytes]

    @property
    def ws_url(self) -> str:
        return self.url.replace("http://", "ws://")

    @property
    def printed(self) -> str:
        """Everything it has printed so far."""
        self.output.seek(0)
        return self.output.read().decode()

    def stop(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        """Send a signal, by default that of Ctrl-C; return the exit code and the output."""
        self.process.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def close(self) -> None:
        """Stop the server unless it has ended."""
        if self.process.poll() is None:
            self.stop()
        self.output.close()

    def wait(self) -> tuple[int, str]:
        try:
            code = self.process.wait(_STOP_SECONDS)
        finally:
            self.process.kill()
        printed = self.printed
        self.output.close()
        return code, printed


def serve(database_url: str, *, port: int = 0, **settings: str) -> Served:
    """Start a server on a port (0: a free one) and return when it accepts connections. An empty URL means the embedded
    server.

    With `COGNIZES_AGENTS=""` it serves the demo.
    """
    # Appending: reading the file does not move the position of the writer.
    output = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed with the server
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "cognizes.engine.api.main:app", "--host", "127.0.0.1", "--port", str(port)],
        stdout=output, stderr=subprocess.STDOUT,
        # Agents of tests are imported from the repository; a `.env` in it is not read.
        env={
            **os.environ, "PYTHONPATH": str(REPOSITORY), "DATABASE_URL": database_url, "COGNIZES_AGENTS": IDLE_AGENT,
            **settings,
        },
    )  # fmt: skip
    served = Served(process, "", output)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"Uvicorn running on (http://\S+)", served.printed):
            served.url = found[1]
            return served
        time.sleep(0.02)
    process.kill()
    raise AssertionError(served.wait()[1])
