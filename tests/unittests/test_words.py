"""The texts of the project name components and use terms of the field: these words stay out of code and documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_SOURCE = _ROOT / "src" / "cognizes" / "engine"
_WORDS = re.compile(
    r"\b(whoever|somebody|nobody|everybody|anybody|anew|meanwhile|whichever|told|heard of|at hand|goes on|patience"
    r"|heals?|healed|deaf|blind|rehearsal|rehearse)\b",
    re.IGNORECASE,
)
_CLIENT = _ROOT / "src" / "cognizes" / "client"
_FOLDERS = (
    _SOURCE, _CLIENT, _ROOT / "clients" / "typescript" / "src",
    *(_ROOT / name for name in ("examples", "deploy", "tests", "benchmarks", "scripts")),
)  # fmt: skip
_SUFFIXES = {".py", ".sql", ".js", ".mjs", ".ts", ".tsx", ".html", ".css", ".json"}
_REST_TYPES = _ROOT / "clients" / "typescript" / "src" / "rest_types.ts"
_FROZEN = (_SOURCE / "schema" / "migrations", _SOURCE / "schema" / "agent_schema.sql", _REST_TYPES, Path(__file__))
"""Released migrations never change, and a generated script contains them; the REST types contain texts of AG-UI."""
_INSTALLED = "node_modules"


def _files() -> list[Path]:
    sources = [path for folder in _FOLDERS for path in folder.rglob("*") if path.suffix in _SUFFIXES]
    documents = [*(_ROOT / "docs").glob("*.md"), *_ROOT.glob("*.md"), _ROOT / ".env.example"]
    return [
        path
        for path in [*sources, *documents]
        if _INSTALLED not in path.parts and not any(path.is_relative_to(frozen) for frozen in _FROZEN)
    ]


def _found_words(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        f"{number}: {match[0]}"
        for number, line in enumerate(lines, 1)
        # Names consist of words, too.
        for match in _WORDS.finditer(line.replace("_", " "))
    ]


def test_the_files_are_found() -> None:
    names = {path.relative_to(_ROOT).as_posix() for path in _files()}
    assert {"README.md", "CHANGELOG.md", "docs/memory.md", "src/cognizes/engine/engine.py"} <= names
    assert any(name.startswith("src/cognizes/engine/schema/functions/") for name in names)
    assert any(name.startswith("src/cognizes/engine/monitor/static/") for name in names)
    assert any(name.startswith("tests/integration/") for name in names)
    assert not any("/migrations/" in name for name in names)


@pytest.mark.parametrize("path", _files(), ids=lambda path: path.relative_to(_ROOT).as_posix())
def test_words(path: Path) -> None:
    assert not _found_words(path)
