"""What the project depends on: pinned versions, licences, and the bill of materials."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[3]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pins() -> dict[str, list[Requirement]]:
    found: dict[str, list[Requirement]] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def test_constraints_name_versions_and_nothing_else() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text
    assert "--" not in text
    assert "sha256" not in text
    for requirements in pins().values():
        for requirement in requirements:
            assert re.fullmatch(r"==[\w.!+]+", str(requirement.specifier))
            assert not requirement.extras, "pip accepts no extras in constraints"
            assert requirement.url is None


def test_constraints_pin_every_package_of_an_installation_within_its_ranges() -> None:
    pinned = pins()
    needed = script("licenses").packages()
    assert needed.keys() - pinned.keys() == {"cognizes-engine"}, "run scripts/constraints.py"
    for text in distribution("cognizes-engine").requires or ():
        requirement = Requirement(text)
        for pin in pinned.get(canonicalize_name(requirement.name), []):
            (version,) = [Version(item.version) for item in pin.specifier]
            assert version in requirement.specifier, f"run scripts/constraints.py: {text} refuses {version}"


def test_licences_of_all_dependencies_are_allowed() -> None:
    licenses = script("licenses")
    found = licenses.packages()
    assert {"asyncpg", "cronsim", "google-adk", "langgraph", "redis"} <= found.keys()
    assert "pytest" not in found, "tools of the tests are not distributed"
    assert {name for name, package in found.items() if not licenses.is_allowed(licenses.license_of(package))} == set()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("MIT", True),
        ("MIT License", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-only", False),
        ("MIT AND AGPL-3.0-only", False),
        ("(GPL-2.0-only OR LGPL-3.0-only) AND MIT", False),
        ("GNU Lesser General Public License v3 (LGPLv3)", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_licence_expressions(expression: str, expected: bool) -> None:
    assert script("licenses").is_allowed(expression) is expected


@pytest.mark.skipif(importlib.util.find_spec("cyclonedx_py") is None, reason="needs the dependency group ci")
def test_a_wrong_call_exits_with_2(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "sbom.py")]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 2
