"""src uses private names of other libraries only where docs/architecture.md says so with a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "cognizes"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
_DOCUMENTED = {"_replace", "_asdict", "_fields", "_make"}
"""Names of named tuples, which begin with an underscore and are public."""


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in _DOCUMENTED


def _stored_on_itself(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}


def _own_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module of ours defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _stored_on_itself(node):
            yield node.attr


def _private_uses(tree: ast.AST, own: set[str]) -> Iterator[tuple[int, str]]:
    """Yield imports from private modules and of private names, and private attributes that are not ours."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, one.name) for one in node.names if any(map(_is_private, one.name.split("."))))
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("cognizes"):
            for one in node.names:
                name = f"{node.module}.{one.name}"
                if any(map(_is_private, name.split("."))):
                    yield node.lineno, name
        elif isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in own:
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and _is_private(str(name.value)) and name.value not in own:
                yield node.lineno, str(name.value)


def _listed() -> dict[str, set[str]]:
    """Return the modules that the table of the page names for each private name."""
    table = PAGE.split("\n## Private interfaces of other libraries\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| ([^|]+) \| [^|]+ \|$", table, flags=re.MULTILINE)
    return {name: set(re.findall(r"`([\w/]+)`", modules)) for name, modules in rows}


def test_private_names_of_other_libraries_are_in_the_table() -> None:
    trees = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    own = {name for tree in trees.values() for name in _own_names(tree)}
    found: dict[str, set[str]] = {}
    for path, tree in trees.items():
        module = path.relative_to(SOURCE / "engine").with_suffix("").as_posix() if "engine" in path.parts else path.stem
        for _, name in _private_uses(tree, own):
            found.setdefault(name, set()).add(module)
    listed = _listed()
    private = {name: modules for name, modules in listed.items() if any(map(_is_private, name.split(".")))}
    assert found == private
    # The others have public names, but their libraries do not document them.
    for name in listed.keys() - private.keys():
        for module in listed[name]:
            assert name.rpartition(".")[2] in (SOURCE / "engine" / f"{module}.py").read_text(), (name, module)
