"""Suites and packages from outside of the repository, without which a test of conformance cannot run."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

REQUIRED = "REQUIRE_OUTSIDE_SUITES"


def report_missing(reason: str) -> NoReturn:
    """Skip the test; fail it where `.ci/run` requires these suites, so that their absence does not go unnoticed."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{reason}, and {REQUIRED} is set", pytrace=False)
    pytest.skip(reason)
