"""The kits of other projects are never left out by `.ci/run` without a failure."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import npm_packages
from tests.kits.sdists import download_sdist
from tests.outside_suites import REQUIRED

ROOT = Path(__file__).parents[2]


def _download() -> object:
    return download_sdist("langgraph-checkpoint-postgres==3.2.0", Path("/nowhere"))


def _install() -> object:
    return npm_packages.install(b"{}")


@pytest.mark.parametrize("prepare", [_download, _install])
@pytest.mark.parametrize(("value", "outcome"), [("", pytest.skip.Exception), ("1", pytest.fail.Exception)])
def test_what_is_missing_fails_where_it_is_required(
    prepare: Callable[[], object], value: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REQUIRED, value)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, stdout="", stderr="no network")
    )
    outcomes = pytest.skip.Exception, pytest.fail.Exception
    with pytest.raises(outcomes, match=r"no network|npm is not installed") as raised:
        prepare()
    assert raised.type is outcome


def test_the_run_of_ci_requires_the_kits() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines.index(f"export {REQUIRED}=1") < lines.index("beyond_python() {")
