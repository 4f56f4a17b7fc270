"""A real server in a process of its own, as plain `uvicorn` starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass
class Served:
    """A running server."""

    process: subprocess.Popen[str]
    url: str
    start_up: list[str]

    @property
    def ws_url(self) -> str:
        return self.url.replace("http://", "ws://")

    def stop(self) -> tuple[int, str]:
        """Stops it as Ctrl-C would; its exit code and the rest of what it printed."""
        self.process.send_signal(signal.SIGINT)
        rest, _ = self.process.communicate(timeout=20)
        return self.process.returncode, rest


def serve(database_url: str, **settings: str) -> Served:
    """Starts a server on a free port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "cognizes.engine.api.main:app", "--host", "127.0.0.1", "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "DATABASE_URL": database_url, **settings},
    )  # fmt: skip
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.rstrip())
        if found := re.search(r"Uvicorn running on (http://\S+)", line):
            return Served(process, found[1], lines)
    raise AssertionError("\n".join(lines))


@pytest.fixture
def served(database_url: str) -> Iterator[Served]:
    """A server over the test's database."""
    server = serve(database_url, COGNIZES_HEARTBEAT_SECONDS="1")
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.process.communicate()
