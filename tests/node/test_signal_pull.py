"""The Signal-Pull module that the Monitor ships, in Node: no packages, no server."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]


def test_the_javascript_client_heals_itself() -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    script = Path(__file__).parent / "signal_pull.test.mjs"
    done = subprocess.run(["node", "--test", script], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# pass 18" in done.stdout, done.stdout
