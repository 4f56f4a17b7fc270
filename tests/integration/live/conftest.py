"""A real server in a process of its own, as plain `uvicorn` starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import IO

_START_SECONDS = 120.0
_STOP_SECONDS = 120.0


@dataclass
class Served:
    """A running server. It prints into a file: a pipe that nobody reads would stop it one day."""

    process: subprocess.Popen[bytes]
    url: str
    output: IO[bytes]

    @property
    def ws_url(self) -> str:
        return self.url.replace("http://", "ws://")

    @property
    def printed(self) -> str:
        """All it has printed so far."""
        self.output.seek(0)
        return self.output.read().decode()

    def stop(self) -> tuple[int, str]:
        """Stops it as Ctrl-C would; its exit code and what it printed."""
        self.process.send_signal(signal.SIGINT)
        return self._wait()

    def kill(self) -> None:
        """Kills it; it notices nothing."""
        self.process.kill()
        self._wait()

    def _wait(self) -> tuple[int, str]:
        code = self.process.wait(_STOP_SECONDS)
        printed = self.printed
        self.output.close()
        return code, printed


def serve(database_url: str, **settings: str) -> Served:
    """Starts a server on a free port."""
    # Appending: reading it here moves no writer.
    output = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed with the server
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "cognizes.engine.api.main:app", "--host", "127.0.0.1", "--port", "0"],
        stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "DATABASE_URL": database_url, **settings},
    )  # fmt: skip
    served = Served(process, "", output)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"Uvicorn running on (http://\S+)", served.printed):
            served.url = found[1]
            return served
        time.sleep(0.02)
    process.kill()
    raise AssertionError(served._wait()[1])
