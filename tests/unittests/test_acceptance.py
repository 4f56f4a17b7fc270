"""docs/acceptance.md names tests that exist, and each row once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "acceptance.md").read_text()
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
# `path`, `path::name` or `::name`, which is of the file named before it. A name that ends with ... is a prefix.
REFERENCE = re.compile(r"`([\w/]+\.(?:py|mjs))?(?:::([^`]+))?`")


def _references() -> Iterator[tuple[Path, str]]:
    file = ROOT / "tests"
    for path, name in REFERENCE.findall(PAGE):
        if path:
            # A bare name is of the folder of the file before it.
            places = [ROOT / "tests" / path, ROOT / path, file.parent / path]
            file = next((place for place in places if place.exists()), places[0])
        yield file, name


@cache
def _names(file: Path) -> frozenset[str]:
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
            names.update(f"{node.name}::{item.name}" for item in node.body if isinstance(item, FUNCTION))
        elif isinstance(node, FUNCTION):
            names.add(node.name)
    return frozenset(names)


def _exists(file: Path, name: str) -> bool:
    if not name:
        return file.exists()
    if not file.exists():
        return False
    function = name.partition("[")[0]
    if function.endswith("..."):
        return any(known.startswith(function.removesuffix("...")) for known in _names(file))
    return function in _names(file)


def test_every_test_that_the_page_names_exists() -> None:
    references = list(_references())
    assert len(references) > 200
    missing = [f"{file.relative_to(ROOT)}::{name}" for file, name in references if not _exists(file, name)]
    assert missing == []


def test_no_row_is_there_twice() -> None:
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE):
        rows = re.findall(r"^\| ([^|]+) \|", section, flags=re.MULTILINE)
        assert sorted(set(rows)) == sorted(rows), section.splitlines()[0]
