"""Write a software bill of materials (CycloneDX, JSON) of this installation of cognizes-engine with its extras.

    uv run python scripts/sbom.py sbom.json

It lists the installed packages that cognizes-engine needs, with version, licence, package URL and dependencies. Tools
of the tests, which are in the same environment, are left out. cyclonedx-bom reads the environment and makes the
document.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from licenses import packages
from packaging.utils import canonicalize_name

ROOT = "cognizes-engine"


def read_environment() -> dict[str, Any]:
    """Return the document of all packages of this environment."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--of", "JSON"]
    found = subprocess.run([*command, sys.executable], check=True, stdout=subprocess.PIPE, text=True)
    document: dict[str, Any] = json.loads(found.stdout)
    return document


def only_needed(document: dict[str, Any], needed: set[str]) -> dict[str, Any]:
    """Keep the components of these names; the root is what the document describes."""
    components = {item["bom-ref"]: item for item in document["components"]}
    names = {ref: canonicalize_name(item["name"]) for ref, item in components.items()}
    (root,) = [ref for ref, name in names.items() if name == ROOT]
    subject = {**components[root], "purl": f"pkg:pypi/{ROOT}@{components[root]['version']}"}
    # The path of a development installation.
    subject.pop("externalReferences", None)
    kept = {ref for ref, name in names.items() if name in needed}
    return {
        **document,
        "metadata": {**document.get("metadata", {}), "component": subject},
        "components": [item for ref, item in components.items() if ref in kept and ref != root],
        "dependencies": [
            {**item, "dependsOn": [ref for ref in item.get("dependsOn", []) if ref in kept]}
            for item in document["dependencies"]
            if item["ref"] in kept
        ],
    }


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: scripts/sbom.py FILE", file=sys.stderr)
        return 2
    document = only_needed(read_environment(), set(packages()))
    try:
        Path(sys.argv[1]).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        print(f"{sys.argv[1]} cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    print(f"{sys.argv[1]}: {len(document['components'])} components")
    return 0


if __name__ == "__main__":
    sys.exit(main())
