"""docs/architecture.md names every package and every module once."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "cognizes" / "engine"
CLIENT = ROOT / "src" / "cognizes" / "client"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
RE_EXPORTS = {"pulse": {"event_bridge", "pg_notify_listener"}}
"""Modules at paths that seed 000 fixes; the page names them below the table."""


def _modules() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        package = str(path.parent.relative_to(SOURCE))
        if path.stem != "__init__" and package not in (".", "schema"):
            found.setdefault(package, set()).add(path.stem)
    found["client"] = {path.stem for path in CLIENT.glob("*.py")} - {"__init__"}
    return {package: modules - RE_EXPORTS.get(package, set()) for package, modules in found.items()}


def _rows() -> dict[str, list[str]]:
    """The modules that the table names, by the packages of its first column."""
    table = PAGE.split("| package | modules |")[1].split("\n\n")[0]
    rows: dict[str, list[str]] = {}
    for packages, modules in re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|$", table, flags=re.MULTILINE):
        for package, part in zip(re.findall(r"`([\w/]+)/`", packages), modules.split(";"), strict=True):
            assert package not in rows, f"{package} has two rows"
            rows[package] = re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", part))
    return rows


def test_the_number_of_modules_is_right() -> None:
    files = [path.stem for folder in (SOURCE, CLIENT) for path in folder.rglob("*.py")]
    packages = files.count("__init__")
    assert f"`src` has {len(files) - packages} modules beside {packages} `__init__.py` files" in PAGE


def test_every_module_is_named_in_the_row_of_its_package() -> None:
    rows, modules = _rows(), _modules()
    assert rows.keys() == modules.keys()
    for package, names in rows.items():
        assert sorted(names) == sorted(modules[package]), package
