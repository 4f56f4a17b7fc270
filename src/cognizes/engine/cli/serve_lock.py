"""One `serve` per data directory. Libraries, psql and other commands may use the directory beside it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cognizes.engine.errors import SetupError


@contextmanager
def serve_lock(data_dir: Path, url: str) -> Iterator[None]:
    """Holds the directory; whoever comes second is told who has it. The kernel lets go even after a kill -9."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        file = (data_dir / "serve.lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise SetupError(
            f"cannot write to the data directory {data_dir} ({error.strerror}); choose another with --data-dir"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise SetupError(
                f"the data directory {data_dir} is already served ({file.read().strip()}); "
                "stop that one, or choose another with --data-dir"
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()}, {url}\n")
        file.flush()
        yield
