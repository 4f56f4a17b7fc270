"""Test suites of other projects, run from their sdists. No part of them is copied here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.outside_suites import report_missing


def download_sdist(requirement: str, directory: Path) -> Path:
    """Return the unpacked sdist of `name==version`; report it as missing without a package index."""
    command = ["uvx", "--quiet", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "--dest", directory]
    download = subprocess.run([*command, requirement], capture_output=True, check=False, text=True)
    archives = list(directory.glob("*.tar.gz"))
    if not archives:
        report_missing(f"cannot download {requirement}: {download.stderr.strip()[-300:]}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(directory, filter="data")
    return directory / archives[0].name.removesuffix(".tar.gz")


def run_suite(
    sdist: Path,
    files: Sequence[str],
    *,
    plugin: str,
    database_url: str,
    left_out: Iterable[str] = (),
    without_parameters: Sequence[str] = (),
    environment: dict[str, str] | None = None,
) -> int:
    """Run test files of an sdist with a plugin of this directory; return the number of tests that passed.

    The test fails if one of them does. `left_out` are names of tests, as `file::test`; `without_parameters` are words
    in the names of parametrized tests.
    """
    without = ("cacheprovider", "schemathesis", "xdist")
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", plugin, "-W", "ignore", "-rfE"),
            *(option for name in without for option in ("-p", f"no:{name}")),
            *(f"--deselect={name}" for name in left_out),
            *(("-k", " and ".join(f"not {word}" for word in without_parameters)) if without_parameters else ()),
            *files,
        ],
        cwd=sdist,
        env={
            **os.environ,
            "KIT_DATABASE_URL": database_url,
            "PYTHONPATH": str(Path(__file__).parent),
            **(environment or {}),
        },
        capture_output=True,
        check=False,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    summary = run.stdout.strip().splitlines()[-1]
    found = re.search(r"(\d+) passed", summary)
    assert found is not None, summary
    return int(found[1])
