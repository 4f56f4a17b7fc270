"""The modules of the Monitor in Node: no packages, no server."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.outside_suites import report_missing

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]


MODULES = {"signal_pull": 22, "event_reading": 9, "markdown": 11}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_the_page_passes_its_tests(module: str) -> None:
    if shutil.which("node") is None:
        report_missing("node is not installed")
    script = Path(__file__).parent / f"{module}.test.mjs"
    done = subprocess.run(["node", "--test", script], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"# pass {MODULES[module]}\n" in done.stdout, done.stdout
