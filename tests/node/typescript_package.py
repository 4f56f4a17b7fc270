"""The TypeScript client, built and packed as for the npm registry, and installed beside its tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from tests.npm_packages import install
from tests.served import REPOSITORY

SOURCE = REPOSITORY / "clients" / "typescript"
TESTS = Path(__file__).parent / "typescript"
_NOT_COPIED = shutil.ignore_patterns("node_modules", "dist", "*.tgz")


def install_client(directory: Path) -> Path:
    """Build and pack the client; return a directory with its tests, where it is installed from the archive."""
    modules = install((TESTS / "package.json").read_bytes()) / "node_modules"
    built = directory / "client"
    # The link to the module of the Monitor becomes a file.
    shutil.copytree(SOURCE, built, ignore=_NOT_COPIED, symlinks=False)
    (built / "node_modules").symlink_to(modules)
    _run(["npm", "run", "build"], cwd=built)
    _run(["npm", "pack", "--ignore-scripts", "--pack-destination", str(directory)], cwd=built)
    consumer = directory / "consumer"
    shutil.copytree(TESTS, consumer)
    (consumer / "node_modules" / "@cognizes").mkdir(parents=True)
    for package in modules.iterdir():
        if not package.name.startswith("."):
            (consumer / "node_modules" / package.name).symlink_to(package)
    with tarfile.open(next(directory.glob("*.tgz"))) as archive:
        archive.extractall(directory / "archive", filter="data")
    # With its real name: modules behind a link do not find React.
    shutil.move(directory / "archive" / "package", consumer / "node_modules" / "@cognizes" / "client")
    return consumer


def run_tests(directory: Path, name: str, *, passed: int, **environment: str) -> None:
    """Execute a file with `node --test`; fail unless this number of tests passes."""
    done = subprocess.run(
        ["node", "--test", name],
        cwd=directory, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"# pass {passed}\n" in done.stdout, done.stdout


def manifest() -> dict[str, object]:
    loaded: dict[str, object] = json.loads((SOURCE / "package.json").read_text())
    return loaded


def _run(command: list[str], *, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
