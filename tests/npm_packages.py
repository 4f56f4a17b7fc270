"""npm packages for tests, installed in the user's cache directory and kept for the next run."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

import platformdirs

from tests.outside_suites import report_missing


def install(package_json: bytes, *, runs_scripts: bool = False) -> Path:
    """Return a directory with the dependencies of a `package.json`; report them as missing without npm."""
    if shutil.which("npm") is None:
        report_missing("npm is not installed")
    cache = platformdirs.user_cache_path("cognizes-engine", ensure_exists=True)
    directory = cache / f"node-{hashlib.sha256(package_json).hexdigest()[:12]}"
    with (cache / "node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            building = directory.with_name(f"{directory.name}.building")
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir()
            (building / "package.json").write_bytes(package_json)
            command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
            command += [] if runs_scripts else ["--ignore-scripts"]
            subprocess.run(command, cwd=building, check=True, capture_output=True, timeout=300)
            building.rename(directory)
    return directory
