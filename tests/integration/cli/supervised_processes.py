"""A supervisor whose workers do nothing. Each serves when a file with its process id exists here."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from cognizes.engine.cli.workers import Supervisor
from cognizes.engine.settings import Settings


def work(_: Settings, _listening: socket.socket, started: Connection, _sockets: Path | None, _number: int) -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    while not stopped.is_set() and not Path(str(os.getpid())).exists():
        time.sleep(0.01)
    started.send(None)
    stopped.wait()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listening:
        Supervisor(Settings(workers=2), listening, announce=Path("announced").touch, work=work).run()
