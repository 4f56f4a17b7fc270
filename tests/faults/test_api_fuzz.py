"""Schemathesis over the OpenAPI document, without keys, with a key, and with none where one is asked for.

Not in the default run (marker `fuzz`): some thousand requests. The examples are the same each time.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.running_command import Cognizes, Serving

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(1800)]

PROGRAM = Path(sys.executable).parent / "st"
# Streams have no end, and agents answer by streams; their parameters are tried in test_stream_parameters.
STREAMS = r"(/events$|/agui/\{agent\}|/copilotkit/agent)"
# What we answer must be as the document says. Left out is what a schema cannot say: that a cursor must be one of ours
# or a title not empty (positive_data_acceptance), and that 0 may stand for false or a time (negative_data_rejection).
LEFT_OUT = "positive_data_acceptance,negative_data_rejection"


def _fuzz(serving: Serving, *options: str, left_out: str = LEFT_OUT) -> str:
    command = [str(PROGRAM), "run", f"{serving.url}/openapi.json", "--no-color", "--max-examples", "5"]
    command += ["--generation-deterministic", "--no-shrink", "--continue-on-failure", "--request-timeout", "120"]
    command += ["--phases", "examples,coverage,fuzzing", "--exclude-path-regex", STREAMS, "--exclude-checks", left_out]
    finished = subprocess.run(
        [*command, *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=1500,
        cwd=serving.output.parent,
    )
    report = finished.stdout + finished.stderr
    assert finished.returncode == 0, report[-20_000:]
    found = re.search(r"(\d+) generated", report)
    assert found, report
    assert int(found[1]) > 500
    assert "failed unexpectedly" not in serving.log.read_text()
    return report


@pytest.fixture
def cognizes() -> Iterator[Cognizes]:
    folder = tempfile.mkdtemp(prefix="cognizes-fuzz-")
    yield Cognizes(Path(folder) / "data")
    shutil.rmtree(folder)


def test_without_authentication(cognizes: Cognizes) -> None:
    with cognizes.serve() as serving:
        # The document says which credentials are accepted; this server needs none.
        _fuzz(serving, left_out=f"{LEFT_OUT},ignored_auth")


def test_with_a_key_and_without_one(cognizes: Cognizes) -> None:
    # Hundreds of requests have a wrong key; the limit would answer 429 where 401 is expected.
    unlimited = {"COGNIZES_FAILED_KEYS_PER_SECOND": "100000", "COGNIZES_FAILED_KEYS_AT_ONCE": "100000"}
    with cognizes.serve(COGNIZES_AUTH="required", **unlimited) as serving:
        serving.banner()
        key = cognizes("keys", "create", "--app", "0", "--app", "00", "--app", "shop").stdout.strip()
        _fuzz(serving, "-H", f"Authorization: Bearer {key}")
        # Ids may hold slashes: `GET …/runs/0/cancel` asks for the run `0/cancel`, and that is 401 before it is 404.
        _fuzz(serving, left_out=f"{LEFT_OUT},unsupported_method")
