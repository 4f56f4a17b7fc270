"""SIGHUP replaces the workers of `cognizes serve --workers`, whatever happens during the replacement."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.cli.test_serve_workers import wait_for, workers_of
from tests.served import REPOSITORY


class Supervised:
    """A supervisor of two workers that serve when the test says so."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.cli.supervised_processes"],
                cwd=directory, stderr=log, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            )  # fmt: skip

    @property
    def workers(self) -> set[int]:
        return workers_of(self.process.pid)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def has_announced(self) -> bool:
        return (self._directory / "announced").exists()

    def starting(self) -> set[int]:
        return {pid for pid in self.workers if not (self._directory / str(pid)).exists()}

    def let_serve(self, workers: set[int]) -> None:
        for pid in workers:
            (self._directory / str(pid)).touch()

    def is_settled(self) -> bool:
        return len(self.workers) == 2 and not self.starting()

    def hang_up(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def replacement(self) -> set[int]:
        """Wait until a new worker starts; return its process id."""
        wait_for(lambda: bool(self.starting()))
        return self.starting()

    def replace_all(self, outdated: set[int]) -> None:
        """Let the newest of the starting workers serve until two others than these serve, and no more."""
        deadline = time.monotonic() + 60
        while not self.is_settled() or self.workers & outdated:
            assert time.monotonic() < deadline, f"workers {self.workers}, starting {self.starting()}\n{self.log}"
            self.let_serve(set(sorted(self.starting())[-1:]))
            time.sleep(0.01)


@pytest.fixture(scope="module")
def supervised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    """One supervisor: each test begins and ends with two workers that serve."""
    running = Supervised(tmp_path_factory.mktemp("supervised"))
    try:
        wait_for(lambda: len(running.workers) == 2)
        running.replace_all(set())
        wait_for(running.has_announced)
        yield running
        running.process.terminate()
        assert running.process.wait(60) == 0
    finally:
        running.process.kill()
        running.process.wait()


def test_a_hangup_during_a_replacement_replaces_every_worker_again(supervised: Supervised) -> None:
    first = supervised.workers
    supervised.hang_up()
    supervised.let_serve(supervised.replacement())
    wait_for(lambda: len(supervised.workers & first) == 1)
    last = supervised.replacement()
    supervised.hang_up()
    before = supervised.workers
    assert last < before
    supervised.replace_all(before)


def test_a_worker_that_ends_during_its_replacement_is_not_replaced_twice(supervised: Supervised) -> None:
    first = supervised.workers
    supervised.hang_up()
    new = supervised.replacement()
    psutil.Process(min(first)).kill()
    wait_for(lambda: f"worker {min(first)} ended with exit code" in supervised.log)
    supervised.let_serve(new)
    supervised.replace_all(first)


def test_a_new_worker_that_ends_leaves_the_old_ones_until_the_next_hangup(supervised: Supervised) -> None:
    first = supervised.workers
    supervised.hang_up()
    psutil.Process(supervised.replacement().pop()).kill()
    wait_for(lambda: "the old ones stay" in supervised.log)
    assert supervised.workers == first
    supervised.hang_up()
    supervised.replace_all(first)
