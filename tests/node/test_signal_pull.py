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
    assert "# pass 21" in done.stdout, done.stdout


def test_the_page_reads_events_as_the_server_does() -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    script = Path(__file__).parent / "event_reading.test.mjs"
    done = subprocess.run(["node", "--test", script], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# pass 7" in done.stdout, done.stdout
