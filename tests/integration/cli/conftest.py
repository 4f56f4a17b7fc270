"""The `cognizes` command, in a separate data directory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.running_command import Cognizes, QuickCognizes, processes_of


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """An empty directory. Not `tmp_path`: the path of a unix socket has to be short."""
    with tempfile.TemporaryDirectory(prefix="cognizes-cli-") as directory:
        yield Path(directory) / "data"
        assert processes_of(Path(directory)) == [], "a test left a process behind"


@pytest.fixture
def cognizes(data_dir: Path) -> Cognizes:
    """The command, by default on the data directory of the test."""
    return Cognizes(data_dir)


@pytest.fixture
def quick(data_dir: Path) -> Cognizes:
    """The command in the process of the test."""
    return QuickCognizes(data_dir)


@pytest.fixture(scope="package")
def kept_data_dir() -> Iterator[Path]:
    """A data directory with an embedded PostgreSQL in it, for tests that only read."""
    directory = Path(tempfile.mkdtemp(prefix="cognizes-cli-"))
    try:
        QuickCognizes(directory)("migrate").check_returncode()
        yield directory
        assert processes_of(directory) == []
    finally:
        shutil.rmtree(directory)
