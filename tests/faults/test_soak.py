"""An hour of load, in its long version only: memory, threads and file descriptors stay flat."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
@pytest.mark.timeout(5400)
def test_an_hour_of_load_leaves_nothing_behind() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "soak.py"
    done = subprocess.run([sys.executable, script, "--minutes", "60"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
