"""Tests use public names of src: `tests/engine_parts.py` alone has access to private attributes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
_ALLOWED = {
    # A part of the standard library whose name begins with an underscore.
    ("integration/cli/test_doctor_command.py", "_replace"),
    ("unittests/cli/test_log_without_queries.py", "_clear_cache"),
}


def _private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the private attributes of other objects, and those that `setattr` replaces."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            if not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            for given in node.args:
                if isinstance(given, ast.Constant) and isinstance(given.value, str):
                    name = given.value.rpartition(".")[2]
                    if name.startswith("_") and not name.endswith("__"):
                        yield node.lineno, name


def test_no_test_uses_a_private_attribute() -> None:
    found = [
        f"tests/{path}:{line}: {name}"
        for file in sorted(TESTS.rglob("*.py"))
        if (path := file.relative_to(TESTS).as_posix()) != "engine_parts.py"
        for line, name in _private_names(ast.parse(file.read_text()))
        if (path, name) not in _ALLOWED
    ]
    assert not found, "\n".join(found)
