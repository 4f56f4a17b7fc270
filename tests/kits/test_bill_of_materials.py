"""The validator of CycloneDX, from the dependency group `ci`, accepts the bill of materials."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.unittests.scripts.test_supply_chain import ROOT, script

pytestmark = pytest.mark.kits


def test_the_bill_of_materials_is_valid_and_complete(tmp_path: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    file = tmp_path / "sbom.json"
    subprocess.run([sys.executable, ROOT / "scripts" / "sbom.py", file], check=True, timeout=300)
    text = file.read_text()
    document = json.loads(text)
    version = SchemaVersion.from_version(document["specVersion"])
    assert JsonStrictValidator(version).validate_str(text) is None
    assert document["metadata"]["component"]["name"] == "cognizes-engine"
    listed = {canonicalize_name(item["name"]): item["version"] for item in document["components"]}
    needed = {name: package.version for name, package in script("licenses").packages().items()}
    assert listed == {name: version for name, version in needed.items() if name != "cognizes-engine"}
    assert str(ROOT) not in text
    assert "file://" not in text
